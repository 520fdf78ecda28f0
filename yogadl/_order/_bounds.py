"""Find the interval between bounds that each number lies in."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_COMPARED: Final = 16


def bounds_reached(numbers: NDArray[Any], bounds: NDArray[Any]) -> NDArray[np.unsignedinteger[Any]]:
    """Return for each number how many of the ascending bounds it has reached.

    If there are few bounds, each number is compared with all of them, since a search mispredicts every other
    branch (benchmarks/stages.py).
    """
    if len(bounds) > _COMPARED:
        return np.searchsorted(bounds, numbers, side="right").astype(np.uint64)
    found = np.zeros(len(numbers), np.uint8)
    for bound in bounds:
        found += numbers >= bound
    return found
