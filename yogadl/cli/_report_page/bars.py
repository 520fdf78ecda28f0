"""Histograms: the range from the least to the greatest number is divided into equal steps."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

BARS: Final = 32


@dataclass(frozen=True)
class Bars:
    """A histogram.

    Attributes:
        edges: The least number of each step, then the greatest number; as text, since they may be times.
        counts: The number of values in each step.
    """

    edges: tuple[str, ...]
    counts: tuple[int, ...]


def bars_of(values: NDArray[Any]) -> Bars:
    """Return the histogram of numbers or times: at least one, all finite, of numpy's own dtypes."""
    if values.dtype.kind in "mM":
        return _bars_of_integers(values.view(np.int64), values.dtype)
    return _bars_of_integers(values) if values.dtype.kind in "iu" else _bars_of_floats(values)


def _bars_of_integers(values: NDArray[Any], dtype: np.dtype[Any] | None = None) -> Bars:
    """Return a histogram whose steps all have the same number of integers, except the last."""
    least, greatest = int(values.min()), int(values.max())
    step = -(-(greatest - least + 1) // BARS)
    # Unsigned, because the distance between two 64-bit integers may need all 64 bits.
    distances = values.astype(np.uint64) - np.uint64(least % 2**64)
    counts = np.bincount((distances // np.uint64(step)).astype(np.int64))
    edges = [*range(least, greatest + 1, step), greatest]
    return Bars(tuple(label_of(edge, dtype) for edge in edges), tuple(counts.tolist()))


def _bars_of_floats(values: NDArray[Any]) -> Bars:
    # The distance between two values may overflow; the distance between their halves does not.
    halves = values.astype(np.float64) / 2
    least, greatest = float(halves.min()), float(halves.max())
    distance = greatest - least or 1.0  # the halves of the two smallest numbers are equal
    places = np.minimum((halves - least) / distance * BARS, BARS - 1).astype(np.int64)
    counts = np.bincount(places, minlength=BARS)
    steps = 2 * (least + distance * (np.arange(1, BARS) / BARS))
    edges = [float(values.min()), *steps.tolist(), float(values.max())]
    return Bars(tuple(map(label_of, edges)), tuple(counts.tolist()))


def label_of(number: int | float, dtype: np.dtype[Any] | None = None) -> str:
    """Return a number as text; with a dtype of times, the time of which the number counts the units."""
    if dtype is not None:
        return str(np.array(number, np.int64).view(dtype)[()])
    return f"{number:.6g}" if isinstance(number, float) else f"{number:,}"
