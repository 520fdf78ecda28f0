"""Find the records in the files of other libraries: a module a format."""
