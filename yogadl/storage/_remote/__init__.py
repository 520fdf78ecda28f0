"""Caches in a bucket, on a machine that has none, some or all of their files."""
