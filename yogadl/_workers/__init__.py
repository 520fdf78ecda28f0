"""Processes that do work for others: how they start, and what passes between."""
