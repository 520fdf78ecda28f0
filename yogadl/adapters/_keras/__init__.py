"""Keep what the Keras adapter needs and what needs no Keras: batches by number, fields, sources, files."""
