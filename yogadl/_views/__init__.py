"""What is read at random and is no cache: views, joined references, functions of records."""
