"""Hold what `yogadl.adapters.grain` is made of: one idea a module."""
