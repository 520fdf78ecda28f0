"""Keep what the TensorFlow adapter needs and what needs no TensorFlow: reading rows, packing columns."""
