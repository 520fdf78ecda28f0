"""Show the first records of a version, and describe values in a few words, and in JSON."""

import argparse
import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.leaf import OBJECT, Leaf
from yogadl._core.printable import printable
from yogadl._core.spec import Spec
from yogadl._dataref import RecordsRef
from yogadl.cli._arguments import add_json, add_storage, add_tagged, fetch, number_of, open_version
from yogadl.cli._output import columns_of, counted, cut, note, say, say_json, say_table, table, width

# The limits of what is shown of a string or of bytes: in text, and in JSON. In brief text, a value that is
# longer than the first of two limits is cut to the second.
_SHOWN: Final = 40
_WHOLE_BRIEFLY: Final = 24
_SHOWN_BRIEFLY: Final = 12
_SHOWN_JSON: Final = 200


def names_of(spec: Spec) -> list[str]:
    """Return the fields' names to show: a record of a single value has no name, and a key may be empty."""
    if isinstance(spec.tree, Leaf):
        return ["(the record)"]
    return [field.name or '""' for field in spec.fields]


def row_of_field(name: str, leaf: Leaf) -> list[str]:
    """Return a field's name, dtype and shape as a row of a table."""
    if leaf.shape is None:
        shape = "varies"
    else:
        shape = " x ".join("varies" if count is None else str(count) for count in leaf.shape)
    return [name, "pickled" if leaf.dtype == OBJECT else leaf.dtype, shape]


def text_of(leaf: Leaf, value: Any, is_brief: bool = False) -> str:  # any value of a batch
    """Return a value in a few words: a scalar as it is, an array as dtype, shape, least and greatest."""
    if leaf.dtype == OBJECT:
        return "pickled"
    if isinstance(value, np.ndarray) and value.ndim:
        shape = "x".join(map(str, value.shape))
        bounds = _bounds(value)
        between = "" if bounds is None else f" {_number(bounds[0])} to {_number(bounds[1])}"
        return f"{leaf.dtype}[{shape}]{between}"
    if isinstance(value, str | bytes):
        return _cut(value, is_brief)
    return _number(_plain(value))


def _cut(value: str | bytes, is_brief: bool) -> str:
    whole, most = (_WHOLE_BRIEFLY, _SHOWN_BRIEFLY) if is_brief else (_SHOWN, _SHOWN)
    if len(value) <= whole and len(repr(value)) <= whole + len("b''"):
        return repr(value)
    kept = value[:most]
    if len(repr(kept)) > most + len("b''"):
        kept = value[: most // 4]  # most characters are escaped, each by four characters or more
    if len(kept) == len(value):
        return repr(value)
    if isinstance(value, bytes):
        return f"{counted(len(value), 'byte')}: {kept!r}..."
    return f"{kept!r}..." if is_brief else f"{counted(len(value), 'character')}: {kept!r}..."


def json_of(leaf: Leaf, value: Any) -> dict[str, Any]:  # any value of a batch
    """Return a value as JSON; the keys are the same for every value.

    `value` is set for scalars, strings and bytes (in hexadecimal), `min` and `max` for arrays of numbers,
    `length` for strings and bytes, of which `value` may be just the beginning.
    """
    facts: dict[str, Any] = {
        "dtype": leaf.dtype, "shape": [], "value": None, "min": None, "max": None, "length": None
    }  # fmt: skip
    if leaf.dtype == OBJECT:
        return facts | {"shape": None}
    if isinstance(value, np.ndarray) and value.ndim:
        low, high = _bounds(value) or (None, None)
        return facts | {"shape": list(value.shape), "min": _json(low), "max": _json(high)}
    if isinstance(value, bytes):
        return facts | {"value": value[:_SHOWN_JSON].hex(), "length": len(value)}
    if isinstance(value, str):
        return facts | {"value": value[:_SHOWN_JSON], "length": len(value)}
    return facts | {"value": _json(_plain(value))}


def _bounds(array: NDArray[Any]) -> tuple[Any, Any] | None:
    """Return the least and the greatest value, without NaN and NaT, or None without values or an order."""
    if array.dtype.kind in "Oc" or not array.size:
        return None
    if array.dtype.kind not in "biufmM":
        array = array.astype(np.float64)  # bfloat16 and other dtypes of ml_dtypes
    if array.dtype.kind in "fmM":
        array = array[~np.isnan(array)]
        if not array.size:
            return None
    return _plain(array.min()), _plain(array.max())


def _plain(value: Any) -> Any:  # a numpy scalar, or an array without dimensions
    """Return a number as a Python number, and a date as text."""
    kinds = {"m": str, "M": str, "b": bool, "i": int, "u": int, "c": complex}
    return kinds.get(np.asarray(value).dtype.kind, float)(value)


def _number(value: Any) -> str:  # what `_plain` returns
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:.4g}" if isinstance(value, complex) else str(value)


def _json(value: Any) -> Any:  # what `_plain` returns
    if isinstance(value, complex):
        return [_json(value.real), _json(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # "nan", "inf", "-inf": JSON has no numbers for them
    return value


_RECORDS: Final = 5
_READ_BYTES: Final = 8 * 2**20
_NAME_COLUMNS: Final = 24


def add_head_arguments(parser: argparse.ArgumentParser) -> None:
    add_tagged(parser)
    add_storage(parser)
    parser.add_argument(
        "-n",
        "--records",
        metavar="COUNT",
        type=number_of("records"),
        default=_RECORDS,
        help=f"how many records (default: {_RECORDS})",
    )
    add_json(parser)


def run_head(arguments: argparse.Namespace) -> int:
    """Show the first records of a version.

    Scalars are shown as they are. For an array the table shows the dtype, the shape, the smallest and the
    largest value. The names of nested fields are joined by slashes. Pickled fields are not opened, since
    unpickling runs code.

    Example:
      yogadl head squares 1 -n 3 -s /data/caches
    """
    storage = open_version(arguments)
    # `fetch` allows pickled fields here, but `_rows` does not read them.
    ref = fetch(storage, arguments)
    count = min(arguments.records, len(ref))
    fields = ref.spec.fields
    if arguments.json:
        records = [
            {field.name: json_of(field.leaf, value) for field, value in zip(fields, row, strict=True)}
            for row in _rows(ref, count)
        ]
        key = {"storage": storage.location, "id": arguments.id, "version": arguments.version}
        say_json(**key, records=len(ref), head=records)
        return 0
    briefly, fully = [], []
    for number, row in enumerate(_rows(ref, count)):
        pairs = [(field.leaf, value) for field, value in zip(fields, row, strict=True)]
        briefly.append([f"{number:,}", *(text_of(leaf, value, is_brief=True) for leaf, value in pairs)])
        fully.append([f"{number:,}", *(text_of(leaf, value) for leaf, value in pairs)])
    _show(ref.spec, fully, briefly)
    if count < len(ref):
        note(f"{counted(count, 'record')} of {len(ref):,}; -n shows more")
    return 0


def _rows(ref: RecordsRef, count: int) -> Iterator[list[Any]]:
    """Yield the values of one record after another; the value of a pickled field is None."""
    fields = ref.spec.fields
    readable = [number for number, field in enumerate(fields) if field.leaf.dtype != OBJECT]
    step = max(1, min(1024, _READ_BYTES // ref.record_bytes))
    for first in range(0, count, step):
        indices = np.arange(first, min(first + step, count), dtype=np.int64)
        columns: list[Any] = [[None] * len(indices)] * len(fields)
        for number, column in zip(readable, ref.columns(indices, readable), strict=True):
            columns[number] = column
        yield from map(list, zip(*columns, strict=True))


def _show(spec: Spec, fully: list[list[str]], briefly: list[list[str]]) -> None:
    """Print a table with one column for each field; if that is too wide, print one line for each field."""
    names = names_of(spec)
    scalars = [field.leaf.is_numeric and field.leaf.shape == () for field in spec.fields]
    right = {0, *(number for number, is_scalar in enumerate(scalars, 1) if is_scalar)}
    for rows in (fully, briefly):
        lines = table(["record", *names], rows, right)
        if max(map(columns_of, lines)) <= width():
            say_table(lines)
            return
    shown = [cut(printable(name), _NAME_COLUMNS) for name in names]
    widest = max(map(columns_of, shown))
    for number, *texts in fully:
        say(f"record {number}")
        for name, text in zip(shown, texts, strict=True):
            space = " " * (widest - columns_of(name))
            say(cut(f"  {name}{space}  {printable(text)}", width()))
