"""Leases, which decide which of any number of machines builds or prunes."""
