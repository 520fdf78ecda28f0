"""Raise an error that explains how to replace the lock server of yogadl 0.1.4."""

from yogadl._removed import missing

raise missing("yogadl", "rw_coordinator")
