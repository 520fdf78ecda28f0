"""Describe the code and the values that a cache is built from, so that a change is noticed."""
