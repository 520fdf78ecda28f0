"""What `python -m benchmarks compare` is made of."""
