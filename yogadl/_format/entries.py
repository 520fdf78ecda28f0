"""Define how a value of varying length is stored: its bytes, and an entry with their place."""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.leaf import BYTES, MAX_DIMENSIONS, Leaf, is_too_large

# An entry consists of 32-bit words: the heap block, the start in it, the length; then, unless every value is
# a scalar, the rank of the value and the sizes of its shape. An unknown rank gets room for this many sizes.
ENTRY_WORDS: Final = 3
MAX_UNKNOWN_RANK: Final = 8
ENTRY_DTYPE: Final = np.dtype("<u4")


def entry_words(leaf: Leaf) -> int:
    """Return the number of 32-bit words in the entry of a value of this leaf."""
    if leaf.shape is None:
        return ENTRY_WORDS + 1 + MAX_UNKNOWN_RANK
    return ENTRY_WORDS + 1 + len(leaf.shape) if leaf.shape else ENTRY_WORDS


def decoded(leaf: Leaf, data: bytes, shape: tuple[int, ...]) -> Any:
    """Return the value of a bytes or str leaf from its stored bytes."""
    if shape == ():
        return data if leaf.dtype == BYTES else data.decode("utf-8", "surrogatepass")
    count = int(np.prod(shape, dtype=np.int64))
    lengths = np.frombuffer(data, ENTRY_DTYPE, count).tolist()
    items, start = np.empty(count, object), 4 * count
    for i, length in enumerate(lengths):
        item = data[start : start + length]
        items[i] = item if leaf.dtype == BYTES else item.decode("utf-8", "surrogatepass")
        start += length
    return items.reshape(shape)


def are_readable(leaf: Leaf, ways: NDArray[np.int64]) -> bool:
    """Return whether values of this leaf may be stored in all of these ways (varying, row_bytes, shape)."""
    for varying, row_bytes, rank, *sizes in ways.tolist():
        if varying:
            # An entry without a rank belongs to a scalar, and numeric scalars are stored as fixed rows.
            words = range(ENTRY_WORDS + leaf.is_numeric, ENTRY_WORDS + 2 + MAX_DIMENSIONS)
            is_readable = row_bytes % 4 == 0 and row_bytes // 4 in words
        else:
            is_shape = 0 <= rank <= len(sizes) and min(sizes[:rank], default=0) >= 0
            is_shape = is_shape and not is_too_large(tuple(sizes[:rank]))
            found_bytes = math.prod(sizes[:rank]) * leaf.numpy_dtype.itemsize
            is_readable = leaf.is_numeric and is_shape and found_bytes == row_bytes
        if not is_readable:
            return False
    return True
