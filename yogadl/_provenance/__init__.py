"""Describe what a cache is built from, so that a change is noticed."""
