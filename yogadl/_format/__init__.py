"""The format of a cache on disk. The only package that imports lmdb.

Writing: `writer` turns columns into sealed parts, `layout` describes where their blocks lie, and `manifest`
makes them a cache. Reading: `reader` gathers rows from parts that `rows` maps into memory, without lmdb.
"""
