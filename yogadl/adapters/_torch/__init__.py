"""What `yogadl.adapters.torch` is made of, one idea a module; every name of users is there."""
