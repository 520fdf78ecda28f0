"""Show the first records of a version."""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from yogadl._core.printable import printable
from yogadl._core.shown import json_of, names_of, text_of, values_of
from yogadl._dataref import RecordsRef
from yogadl.cli._arguments import (
    TAGGED,
    Answer,
    command,
    declared,
    fetch,
    key_of,
    number_of,
    open_version,
    typed,
)
from yogadl.cli._output import columns_of, counted, cut, note, table, width

_RECORDS: Final = 5
_READ_BYTES: Final = 8 * 2**20
_NAME_COLUMNS: Final = 24


@command(
    *TAGGED,
    *declared(
        f"-n --records COUNT  how many records (default: {_RECORDS})",
        records=typed(number_of("records"), _RECORDS),
    ),
)
def head(arguments: argparse.Namespace) -> Answer:
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
    if not arguments.json:
        return Answer(lines=_lines(ref, count))
    fields = ref.spec.fields
    records = [
        {field.name: json_of(field.leaf, value) for field, value in zip(fields, row, strict=True)}
        for row in _rows(ref, count)
    ]
    return Answer(key_of(storage, arguments) | {"records": len(ref), "head": records})


def _lines(ref: RecordsRef, count: int) -> Iterator[str | list[str]]:
    """Yield a table with one column for each field; if that is too wide, a line for each field."""
    names, leaves = names_of(ref.spec), [field.leaf for field in ref.spec.fields]
    right = {0, *(number for number, leaf in enumerate(leaves, 1) if leaf.is_numeric and leaf.shape == ())}
    briefly, fully = [], []
    for number, row in enumerate(_rows(ref, count)):
        pairs = list(zip(leaves, row, strict=True))
        briefly.append([f"{number:,}", *(text_of(leaf, value, is_brief=True) for leaf, value in pairs)])
        fully.append([f"{number:,}", *(text_of(leaf, value) for leaf, value in pairs)])
    tables = (table(["record", *names], rows, right) for rows in (fully, briefly))
    fitting = next((lines for lines in tables if max(map(columns_of, lines)) <= width()), None)
    if fitting is not None:
        yield fitting
    else:
        yield from _lines_of_fields(names, fully)
    if count < len(ref):
        note(f"{counted(count, 'record')} of {len(ref):,}; -n shows more")


def _lines_of_fields(names: Sequence[str], rows: list[list[str]]) -> Iterator[str]:
    shown = [cut(printable(name), _NAME_COLUMNS) for name in names]
    widest = max(map(columns_of, shown))
    for number, *texts in rows:
        yield f"record {number}"
        for name, text in zip(shown, texts, strict=True):
            space = " " * (widest - columns_of(name))
            yield cut(f"  {name}{space}  {printable(text)}", width())


def _rows(ref: RecordsRef, count: int) -> Iterator[list[Any]]:
    """Yield the values of one record after another; the value of a pickled field is None."""
    step = max(1, min(1024, _READ_BYTES // ref.record_bytes))
    for first in range(0, count, step):
        indices = np.arange(first, min(first + step, count), dtype=np.int64)
        yield from values_of(ref.spec, partial(ref.columns, indices), len(indices))
