"""Find between which bounds numbers lie."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_COMPARED: Final = 16


def bounds_reached(numbers: NDArray[Any], bounds: NDArray[Any]) -> NDArray[np.unsignedinteger[Any]]:
    """Return how many of the bounds, which ascend, each number has reached.

    With few bounds it is compared with them all, since a search takes the wrong branch every other time
    (benchmarks/stages.py).
    """
    if len(bounds) > _COMPARED:
        return np.searchsorted(bounds, numbers, side="right").astype(np.uint64)
    found = np.zeros(len(numbers), np.uint8)
    for bound in bounds:
        found += numbers >= bound
    return found
