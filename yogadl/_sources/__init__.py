"""Anything that has records, as a source: a spec, and records or columns."""
