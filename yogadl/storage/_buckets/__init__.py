"""Buckets, which hold objects by name, and the stores that have them."""
