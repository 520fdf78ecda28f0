"""Summarize the values of a field, as numbers, bars and small images."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.json_value import encode
from yogadl._core.protocols import Column
from yogadl._core.shown import fault_of, kind_of
from yogadl._core.spec import BYTES, JSON, NUMPY_DTYPES, OBJECT, STR, Leaf

# Histograms: the range from the least to the greatest number is divided into equal steps.


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
    distance = greatest - least or 1.0  # halving can make tiny numbers equal; avoid 0
    places = np.minimum((halves - least) / distance * BARS, BARS - 1).astype(np.int64)
    counts = np.bincount(places, minlength=BARS)
    steps = 2 * (least + distance * (np.arange(1, BARS) / BARS))
    edges = [float(values.min()), *steps.tolist(), float(values.max())]
    return Bars(tuple(map(label_of, edges)), tuple(counts.tolist()))


def label_of(number: int | float, dtype: np.dtype[Any] | None = None) -> str:
    """Return a number as text; or a time, if `dtype` is a numpy dtype of times.

    The number then counts the dtype's units, such as the seconds since 1970 for ``datetime64[s]``.
    """
    if dtype is not None:
        return str(np.array(number, np.int64).view(dtype)[()])
    return f"{number:.6g}" if isinstance(number, float) else f"{number:,}"


# Summarize the values of a field in a few numbers: a pure function of a column.


# A few records may hold millions of values of a field. If there are more than this, a random choice of them
# is summarized.
MOST_VALUES: Final = 2**17
# Integers and short texts are counted one by one up to this number of different values.
MOST_CLASSES: Final = 20
_SHORT_TEXT: Final = 40
_SEED_BITS: Final = 64  # numpy takes no negative seed, so the seed is reduced to this many bits
_NO_VALUES: Final = "no values: all are of length 0"


@dataclass(frozen=True)
class Distribution:
    """The distribution of numbers, or of classes.

    Attributes:
        title: The name of the values.
        figures: Statistics as pairs of name and value.
        bars: The histogram, or ``None`` if there are no numbers to draw, or if classes are better.
        classes: The count of each class, the most frequent first, or ``None`` if there are too many classes.
    """

    title: str
    figures: tuple[tuple[str, str], ...]
    bars: Bars | None = None
    classes: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True)
class Summary:
    """The summary of a field's values in a sample of the records."""

    distributions: tuple[Distribution, ...]
    notes: tuple[str, ...] = ()


def summary_of(leaf: Leaf, column: Column, seed: int) -> Summary:
    """Return a summary of a column.

    Args:
        leaf: The field's leaf.
        column: The field's values in the sample; an empty column if the field is pickled.
        seed: The seed of the random choice among too many values.
    """
    if leaf.dtype == OBJECT:
        return Summary((), ("pickled, so not opened: unpickling runs code",))
    if not len(column):
        return Summary((), ("no records",))
    if leaf.dtype == JSON:
        leaf, column = Leaf(STR), [encode(value).decode() for value in column]
    lengths = _lengths(leaf, column)
    if leaf.dtype in (STR, BYTES):
        return _summarize_texts(leaf, column, lengths, seed)
    values = _flattened(column)
    if not values.size:
        return Summary(lengths, (_NO_VALUES,))
    chosen, notes = _choose(values.size, seed)
    return Summary(
        (_summarize_any_dtype(leaf, values if chosen is None else values[chosen]), *lengths), tuple(notes)
    )


def _choose(count: int, seed: int) -> tuple[NDArray[np.int64] | None, list[str]]:
    """Return the numbers of the values to summarize, None for all; and a note on the choice."""
    if count <= MOST_VALUES:
        return None, []
    chosen = np.random.default_rng(seed % 2**_SEED_BITS).integers(0, count, MOST_VALUES)
    return chosen, [f"{MOST_VALUES:,} of the sample's {count:,} values, chosen at random"]


def _flattened(column: Column) -> NDArray[Any]:
    """Return all values of a column, one after another."""
    if isinstance(column, np.ndarray):
        return column.reshape(-1)
    return np.concatenate([np.asarray(value).reshape(-1) for value in column])


def _lengths(leaf: Leaf, column: Column) -> tuple[Distribution, ...]:
    """Return the distributions of the sizes that vary, if any do."""
    if leaf.shape is None:
        return (_summarize_numbers("elements", np.array([np.size(value) for value in column])),)
    axes = [axis for axis, size in enumerate(leaf.shape) if size is None]
    return tuple(
        _summarize_numbers(
            "length" if len(axes) == 1 else f"size of axis {axis}",
            np.array([np.shape(value)[axis] for value in column], np.int64),
        )
        for axis in axes
    )


def _summarize_texts(leaf: Leaf, column: Column, lengths: tuple[Distribution, ...], seed: int) -> Summary:
    """Summarize strings, bytes, or arrays of them."""
    texts: list[Any] = []
    for value in column:
        texts += value.reshape(-1).tolist() if isinstance(value, np.ndarray) else [value]
    if not texts:
        return Summary(lengths, (_NO_VALUES,))
    chosen, notes = _choose(len(texts), seed)
    texts = texts if chosen is None else [texts[number] for number in chosen.tolist()]
    distributions = []
    if all(len(text) <= _SHORT_TEXT for text in texts):
        counts = Counter(texts)
        if len(counts) <= MOST_CLASSES:
            class_counts = [(_visible(text), n) for text, n in counts.most_common()]
            distributions.append(
                Distribution("values", (("distinct", f"{len(counts):,}"),), classes=tuple(class_counts))
            )
    unit = "characters" if leaf.dtype == STR else "bytes"
    distributions.append(_summarize_numbers(unit, np.array([len(text) for text in texts], np.int64)))
    kinds = Counter(kind_of(text) for text in texts if isinstance(text, bytes))
    notes += [
        f"{number:,} of {len(texts):,} {'begins' if number == 1 else 'begin'} as a {kind}"
        for kind, number in kinds.items()
        if kind
    ]
    return Summary((*distributions, *lengths), tuple(notes))


MOST_FAULTS: Final = 5  # that are named


def faults_of(column: Column, indices: NDArray[np.int64]) -> str | None:
    """Return which values are no whole image files, if most of a column of bytes are such files."""
    values = [value for value in column if isinstance(value, bytes)]
    kinds = [kind_of(value) for value in values]
    images = len(values) - kinds.count(None)
    if len(values) < len(column) or 2 * images <= len(values):
        return None
    found = []
    for index, kind, value in zip(indices.tolist(), kinds, values, strict=True):
        fault = "is no JPEG or PNG" if kind is None else fault_of(kind, value)
        if fault is not None:
            found.append((index, fault))
    if not found:
        return None
    named = [f"record {index:,} {fault}" for index, fault in sorted(found)[:MOST_FAULTS]]
    more = [f"{len(found) - len(named):,} more"] if len(found) > len(named) else []
    return f"Broken, {len(found):,} of {len(values):,}: {', '.join(named + more)}"


def _visible(text: str | bytes) -> str:
    """Return a short text, in quotes if it would be invisible."""
    if isinstance(text, bytes):
        return repr(text)
    return text if text.strip() else f'"{text}"'


def _summarize_any_dtype(leaf: Leaf, values: NDArray[Any]) -> Distribution:
    """Summarize numbers of any dtype, converted to a dtype of numpy's own."""
    if values.dtype.kind == "c":
        with np.errstate(all="ignore"):  # numbers that are too large become infinite
            return _summarize_numbers("magnitude", np.abs(values.astype(np.complex128)))
    if leaf.dtype not in NUMPY_DTYPES and values.dtype.kind not in "mM":  # bfloat16, int4, ...
        values = values.astype(np.int64 if leaf.dtype.startswith(("int", "uint")) else np.float64)
    return _summarize_numbers("values", values)


def _summarize_numbers(title: str, values: NDArray[Any]) -> Distribution:
    """Summarize one or more numbers, truth values or times."""
    if values.dtype.kind == "b":
        return Distribution(title, (), classes=_counts(*np.unique(values, return_counts=True)))
    finite, figures = _finite_values(values)
    if not finite.size:
        return Distribution(title, tuple(figures))
    ordered = np.sort(finite)
    dtype = finite.dtype if finite.dtype.kind in "mM" else None
    plain = ordered if dtype is None else ordered.view(np.int64)
    least, greatest = plain[0].item(), plain[-1].item()
    statistics = [("min", label_of(least, dtype)), ("median", _median(plain, dtype))]
    if dtype is None:
        statistics.append(("mean", label_of(_mean(plain))))
    statistics.append(("max", label_of(greatest, dtype)))
    if least == greatest:
        return Distribution(title, (("all", label_of(least, dtype)), *figures))
    classes = _classes(ordered) if finite.dtype.kind in "iu" else None
    if classes is not None:
        statistics.append(("distinct", f"{len(classes):,}"))
    return Distribution(title, (*statistics, *figures), None if classes else bars_of(finite), classes)


def _finite_values(values: NDArray[Any]) -> tuple[NDArray[Any], list[tuple[str, str]]]:
    """Return the finite values, and the count of each kind of other value, such as NaN."""
    if values.dtype.kind in "iu":
        return values, []
    masks = {"NaN" if values.dtype.kind == "f" else "no time": np.isnan(values)}
    if values.dtype.kind == "f":
        masks |= {"infinite": np.isposinf(values), "minus infinite": np.isneginf(values)}
    finite = values[~np.logical_or.reduce(list(masks.values()))]
    return finite, [(name, f"{int(mask.sum()):,}") for name, mask in masks.items() if mask.any()]


def _median(ordered: NDArray[Any], dtype: np.dtype[Any] | None) -> str:
    """Return the median: the middle number, or the mean of the middle two; for times, in whole units."""
    low, high = (ordered[middle].item() for middle in ((len(ordered) - 1) // 2, len(ordered) // 2))
    if dtype is not None:
        return label_of((low + high) // 2, dtype)
    if isinstance(low, int):
        return f"{Decimal(low + high) / 2:,}"  # a float has too few digits for the mean of large integers
    return label_of(float((Fraction(low) + Fraction(high)) / 2))


def _mean(ordered: NDArray[Any]) -> float:
    """Return the mean, computed so that the sum can't overflow."""
    numbers = ordered.astype(np.float64)
    largest = float(max(abs(numbers[0]), abs(numbers[-1]))) or 1.0
    return float((numbers / largest).mean()) * largest


def _classes(ordered: NDArray[Any]) -> tuple[tuple[str, int], ...] | None:
    """Return the count of each integer, in order of size, or ``None`` if there are too many integers."""
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    if len(starts) > MOST_CLASSES:
        return None
    return _counts(ordered[starts], np.diff(np.append(starts, len(ordered))))


def _counts(values: NDArray[Any], counts: NDArray[Any]) -> tuple[tuple[str, int], ...]:
    pairs: Sequence[tuple[Any, int]] = list(zip(values.tolist(), counts.tolist(), strict=True))
    return tuple((str(value) if isinstance(value, bool) else label_of(value), n) for value, n in pairs)
