"""Find the version of a function or of a source, or build it."""
