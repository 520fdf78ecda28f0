"""Keep copies of what a bucket holds on this machine, shared by its processes."""
