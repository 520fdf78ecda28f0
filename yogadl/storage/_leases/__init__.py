"""Decide who builds, among any number of machines."""
