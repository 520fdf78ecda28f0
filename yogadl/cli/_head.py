"""Show the first records of a version."""

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from yogadl._core.printable import printable
from yogadl._core.shown import json_of, names_of, text_of, values_of
from yogadl._core.spec import Spec
from yogadl._dataref import RecordsRef
from yogadl.cli._arguments import add_json, add_storage, add_tagged, fetch, number_of, open_version
from yogadl.cli._output import columns_of, counted, cut, note, say, say_json, say_table, table, width

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
    step = max(1, min(1024, _READ_BYTES // ref.record_bytes))
    for first in range(0, count, step):
        indices = np.arange(first, min(first + step, count), dtype=np.int64)
        yield from values_of(ref.spec, partial(ref.columns, indices), len(indices))


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
