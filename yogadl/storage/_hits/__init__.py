"""Find the version of a function or of a source; what finds none builds it."""
