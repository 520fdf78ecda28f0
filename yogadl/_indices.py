"""Check which records were asked for, once, at the door."""

from typing import Any

import numpy as np

from yogadl._interfaces import Indices
from yogadl.errors import ConfigurationError


def checked_indices(indices: Any, records: int) -> Indices:
    """Return `indices` as int64 in range, counting negative ones from the end.

    Raises:
        IndexError: if one is out of range.
        ConfigurationError: if they are no integers.
    """
    array = np.asarray(indices)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise ConfigurationError(
            f"indices must be a flat list of integers, not {array.dtype} of shape {array.shape}"
        )
    if len(array):
        low, high = int(array.min()), int(array.max())
        if low < -records or high >= records:
            raise IndexError(f"record {low if low < -records else high} is out of range: there are {records}")
    found = array.astype(np.int64)
    if len(found) and low < 0:
        found[found < 0] += records
    return found
