"""Which records came, in order, and which should have."""

import numpy as np


def ids(items):
    """Return the ids of records or batches."""
    return [int(number) for item in items for number in np.atleast_1d(item["id"])]


def gold(stream, *epochs):
    """Return the indices of these epochs of a stream."""
    return [int(index) for epoch in epochs for index in stream.indices(epoch)]
