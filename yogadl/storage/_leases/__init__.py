"""Decide which of any number of machines builds."""
