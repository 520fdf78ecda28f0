"""Build a version: by one process or by many, exactly once."""
