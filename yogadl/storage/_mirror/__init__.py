"""The mirror: copies of a bucket's files on this machine, shared by its processes."""
