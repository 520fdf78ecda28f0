"""Check the arguments of callers; all errors about an argument's name or value are worded here.

The module also reads and writes sizes with units, and finds the line of the user's code that a warning should
point at.
"""

import functools
import math
import operator
import re
import sys
from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from fractions import Fraction

_UNITS: Final = {
    "": 1, "B": 1,
    "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([A-Za-z]*)")


def bytes_of(size: int | str) -> int:
    """Return the number of bytes in a size such as ``5000``, ``"256MB"`` or ``"1GiB"``.

    Raises:
        ConfigurationError: if it is no size.
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        unit = _UNITS.get(match[2].upper()) if match else None
        count = 0 if not match or unit is None else int(float(match[1]) * unit)
    else:
        count = size if type(size) is int else 0
    if count < 1:
        raise ConfigurationError(f"give a size such as 256MB or 1GiB, not {size!r}")
    return count


def in_words(size_bytes: float) -> str:
    """Return a number of bytes as text with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 999.5:
            is_whole = unit == "B" or size_bytes >= 99.95
            return f"{size_bytes:.{0 if is_whole else 1}f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.1f} TB"


def users_level(*libraries: str) -> int:
    """Return the `stacklevel` that makes a warning of the calling function point at the user's own line.

    The user's line is the innermost one outside of this library. The `yogadl` command counts as a user: it
    shows such warnings itself.

    Args:
        libraries: Packages through which the user may have called this library; their lines are skipped, too,
            and those of context managers.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_library_frame(frame, {"yogadl", "contextlib", *libraries}):
        frame, level = frame.f_back, level + 1
    return level


def _is_library_frame(frame: FrameType, libraries: set[str]) -> bool:
    names = frame.f_globals.get("__name__", "").split(".")
    return names[0] in libraries and names[:2] != ["yogadl", "cli"]


P = ParamSpec("P")
R = TypeVar("R")

# Names that mean the same argument, here and in other libraries.
_SYNONYMS: Final = (
    {"batch_size", "n"},
    {"collate", "collate_fn"},
    {"drop_last", "drop_remainder"},
    {"epochs", "num_epochs"},
    {"num_replicas", "num_shards", "process_count", "shard_count", "world_size"},
    {"num_workers", "worker_count", "workers"},
    {"offset", "skip", "start", "start_offset"},
    {"process_index", "rank", "shard_index", "shard_rank"},
    {"seed", "shuffle_seed"},
)

# Arguments of clones before 0.2.0, and what is given instead. An entry holds for each function that has the
# argument before the first "=". The table goes at 1.0; docs/howto/migrating.md has it, too.
MOVED: Final = (
    ("mirror_limit", "mirror=yogadl.Mirror(limit=...)"),
    ("mirror_fill", "mirror=yogadl.Mirror(fill=...)"),
    ("max_requests", "limits=yogadl.Limits(requests=...)"),
    ("max_requests_per_s", "limits=yogadl.Limits(requests_per_s=...)"),
    ("max_price", "limits=yogadl.Limits(price=...)"),
    ("prices", "limits=yogadl.Limits(prices=...)"),
    ("lease_ttl_s", "lease=yogadl.Lease(ttl_s=...)"),
    ("wait_s", "lease=yogadl.Lease(wait_s=...)"),
    ("exclusive", "lease=yogadl.Lease(exclusive=...)"),
    ("engine", "build=yogadl.BuildOptions(engine=...)"),
    ("part_bytes", "build=yogadl.BuildOptions(part_bytes=...)"),
    ("progress", "build=yogadl.BuildOptions(progress=...)"),
    ("check_space", "build=yogadl.BuildOptions(check_space=...)"),
    ("metadata", "build=yogadl.BuildOptions(metadata=...)"),
    ("spec", "records=yogadl.RecordOptions(spec=...)"),
    ("on_error", "records=yogadl.RecordOptions(on_error=...)"),
    ("allow_pickle", "records=yogadl.RecordOptions(allow_pickle=...)"),
    ("read", "files=yogadl.FileOptions(read=...)"),
    ("features", "files=yogadl.FileOptions(features=...)"),
    ("segments", "extra=yogadl.PackFields(segments=...)"),
    ("positions", "extra=yogadl.PackFields(positions=...)"),
    ("cu_seqlens", "extra=yogadl.PackFields(cu_seqlens=...)"),
    ("max_segments", "extra=yogadl.PackFields(max_segments=...)"),
    ("mask", "extra=yogadl.PackFields(mask=...)"),
    ("base_version", "new_version=..., after the version that has the records: compact(id, OLD, NEW)"),
    ("base_version", "files=yogadl.FileOptions(base_version=...)"),
)

# Arguments of some functions only: if another function gets one, no similar name is suggested.
_NO_TYPO: Final = frozenset({"skip_finished_epoch", "skip_shuffle_at_epoch_end"})

# Other functions that may take the argument; each key is the text of a call to the function.
Elsewhere = Mapping[str, Callable[..., Any]]


def value_argument(name: str, value: Any, kind: type[R]) -> R:  # Any: the value is checked here
    """Return a value of a class of options; if none is given, that of all defaults.

    Raises:
        ConfigurationError: if the value is anything else.
    """
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ConfigurationError(f"{name} must be yogadl.{kind.__name__}(...), not {value!r:.100}")
    return value


def above_zero(name: str, value: Any) -> float | None:  # Any: the value is checked here
    """Return a number above 0, or ``None`` if none is given.

    Raises:
        ConfigurationError: if the value is anything else.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and value > 0):
        raise ConfigurationError(f"{name} must be a number above 0, not {value!r}")
    number: float | None = value
    return number


def explains_names(
    elsewhere: Elsewhere | None = None, title: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that makes a function suggest the right name when an argument has a wrong one.

    Args:
        elsewhere: Functions that the argument may belong to instead.
        title: The function's name in errors; its qualified name if not given.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name_in_errors = title or function.__qualname__.removesuffix(".__init__")
        names = names_of(function)
        known = frozenset(names)

        @functools.wraps(function)
        def checked(*args: P.args, **options: P.kwargs) -> R:
            if not known.issuperset(options):
                unknown = next(name for name in options if name not in known)
                raise unknown_argument(name_in_errors, unknown, names, elsewhere)
            return function(*args, **options)

        return checked

    return decorate


def unknown_argument(
    title: str, name: str, names: Collection[str], elsewhere: Elsewhere | None = None
) -> ConfigurationError:
    """Return the error for an unknown argument: it suggests similar names, or else lists all names."""
    moved = moved_to(name, names)
    if moved is not None:
        return ConfigurationError(f"{title} has no argument {name!r} any more: give {moved}")
    suggestions = [f"{found}=" for found in _synonyms_among(name, names)]
    if not suggestions:
        others = {text: names_of(function) for text, function in (elsewhere or {}).items()}
        suggestions = [f"{found}=" for found in _similar_names(name, names)]
        suggestions += [f"{text}(...)" for text in others if text.endswith(f".{name}")]
        suggestions += [
            f"{text}({found}=...)"
            for text, other_names in others.items()
            for found in _synonyms_among(name, other_names)
        ]
        # Misspelt arguments of other functions are suggested only if nothing else fits.
        misspelt = [
            f"{text}({found}=...)"
            for text, other_names in others.items()
            for found in _similar_names(name, other_names)
        ]
        suggestions = suggestions or misspelt
    hint = f"did you mean {' or '.join(suggestions)}?" if suggestions else f"it has {', '.join(names)}"
    return ConfigurationError(f"{title} has no argument {name!r}: {hint}")


def moved_to(name: str, names: Collection[str]) -> str | None:
    """Return what a function with these arguments has in the place of one of this name; else ``None``."""
    return next((new for old, new in MOVED if old == name and new.partition("=")[0] in names), None)


def names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's arguments, except `self`."""
    # inspect.signature would be too slow: this runs for many functions at every import.
    code = vars(function).get("__wrapped__", function).__code__
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return tuple(name for name in names if name != "self")


def _synonyms_among(name: str, names: Collection[str]) -> list[str]:
    synonyms = {name}.union(*(group for group in _SYNONYMS if name in group))
    return [candidate for candidate in names if candidate in synonyms]


def _similar_names(name: str, names: Collection[str]) -> list[str]:
    import difflib  # needed only for errors

    if name in _NO_TYPO:
        return []
    return difflib.get_close_matches(name, names, n=2)


def int_argument(name: str, value: Any, least: int | None = 0) -> int:  # Any: the value is checked here
    """Return `value` as a Python int; a bool is refused.

    If `least` is given, the value must be at least that.

    Raises:
        ConfigurationError: if the value is anything else; the error names the argument.
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        limit = "" if least is None else f" of at least {least}"
        raise ConfigurationError(f"{name} must be a whole number{limit}, not {value!r}")
    return number


def bool_argument(name: str, value: Any) -> bool:  # Any: the value is checked here
    """Return `value` as a Python bool.

    Raises:
        ConfigurationError: if the value is neither True nor False; the error names the argument.
    """
    if not isinstance(value, bool | np.bool_):
        raise ConfigurationError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def fraction_argument(name: str, value: Any) -> "Fraction":  # Any: the value is checked here
    """Return a number above 0 as a fraction; a float is read as the decimal number that Python prints for it.

    Raises:
        ConfigurationError: if the value is anything else; the error names the argument.
    """
    from fractions import Fraction  # slow to import, and rarely needed
    from numbers import Integral, Real

    if not isinstance(value, bool | np.bool_) and isinstance(value, Real):
        if isinstance(value, Integral):
            fraction = Fraction(int(value))
        elif isinstance(value, Fraction):
            fraction = value
        else:
            number = float(value)
            fraction = Fraction(repr(number)) if math.isfinite(number) else Fraction(0)
        if fraction > 0:
            return fraction
    raise ConfigurationError(f"{name} must be a number above 0, not {value!r}")


def as_array(indices: Any, records: int) -> NDArray[Any]:
    """Return indices as an array, whatever they are; it takes memory only for indices that are in range.

    Raises:
        IndexError: if a range leaves the records.
        ConfigurationError: if they are lists that make no array.
    """
    if isinstance(indices, range):
        for one in (indices[0], indices[-1]) if indices else ():
            if not -records <= one < records:
                raise IndexError(f"record {one} is out of range: there are {records}")
        return np.arange(*(indices.start, indices.stop, indices.step) if indices else (0,))
    try:
        return np.asarray(indices)
    except ValueError as error:
        raise ConfigurationError(f"indices must be a flat list of integers: {error}") from error


def checked_indices(indices: Any, records: int) -> NDArray[np.int64]:
    """Return `indices` as int64, with negative indices counted from the end.

    Raises:
        IndexError: if one is out of range.
        ConfigurationError: if they are not a flat list of integers.
    """
    array = as_array(indices, records)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise ConfigurationError(
            f"indices must be a flat list of integers, not {array.dtype} of shape {array.shape}"
        )
    if len(array):
        low, high = int(array.min()), int(array.max())
        if low < -records or high >= records:
            raise IndexError(f"record {low if low < -records else high} is out of range: there are {records}")
    checked = array.astype(np.int64)
    if len(checked) and low < 0:
        checked[checked < 0] += records
    return checked
