"""Hold one file a framework: its data as a source, our stream as its loader.

Nothing is imported here, so that a framework is loaded only by its own adapter.
"""
