"""How a cache lies on disk. The only package that imports lmdb.

Writing: `writer` turns columns into sealed parts, `layout` says where their blocks lie, `manifest` makes a
cache of them. Reading: `reader` gathers rows through a `window` of mapped parts, without lmdb.
"""
