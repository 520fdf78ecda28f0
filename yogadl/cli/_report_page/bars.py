"""Count how many numbers lie in each of a few equal steps from the least to the greatest."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

BARS: Final = 32


@dataclass(frozen=True)
class Bars:
    """How many numbers lie in each step.

    Attributes:
        edges: The least number of each step, and the greatest of all: as text, since they may be dates.
        counts: How many numbers lie in each.
    """

    edges: tuple[str, ...]
    counts: tuple[int, ...]


def bars_of(values: NDArray[Any]) -> Bars:
    """Return the bars of some numbers or times, one at least, all finite and of numpy's dtypes."""
    if values.dtype.kind in "mM":
        return _bars_of_integers(values.view(np.int64), values.dtype)
    return _bars_of_integers(values) if values.dtype.kind in "iu" else _bars_of_floats(values)


def _bars_of_integers(values: NDArray[Any], dtype: np.dtype[Any] | None = None) -> Bars:
    """Return bars that each stand for as many integers as the next one, but for the last."""
    least, greatest = int(values.min()), int(values.max())
    step = -(-(greatest - least + 1) // BARS)
    # Without a sign: the distance between two numbers of 64 bits may have 64 itself.
    distances = values.astype(np.uint64) - np.uint64(least % 2**64)
    counts = np.bincount((distances // np.uint64(step)).astype(np.int64))
    edges = [*range(least, greatest + 1, step), greatest]
    return Bars(tuple(label_of(edge, dtype) for edge in edges), tuple(counts.tolist()))


def _bars_of_floats(values: NDArray[Any]) -> Bars:
    halves = values.astype(np.float64) / 2  # the distance between the halves is finite, too
    least, greatest = float(halves.min()), float(halves.max())
    distance = greatest - least or 1.0  # that of the two smallest numbers is lost in halves
    places = np.minimum((halves - least) / distance * BARS, BARS - 1).astype(np.int64)
    counts = np.bincount(places, minlength=BARS)
    steps = 2 * (least + distance * (np.arange(1, BARS) / BARS))
    edges = [float(values.min()), *steps.tolist(), float(values.max())]
    return Bars(tuple(map(label_of, edges)), tuple(counts.tolist()))


def label_of(number: int | float, dtype: np.dtype[Any] | None = None) -> str:
    """Return a number as text; if it counts the units of a dtype of times, the time."""
    if dtype is not None:
        return str(np.array(number, np.int64).view(dtype)[()])
    return f"{number:.6g}" if isinstance(number, float) else f"{number:,}"
