"""Words and checks that all of the library shares: no input or output."""
