"""Records in tables of each library come back as that library itself gives them."""

import itertools
from collections.abc import Callable
from typing import Any

import datasets
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from record_cases import Case, all_cases, are_same, plain

from yogadl.adapters import arrays
from yogadl.errors import UnsupportedDataError

RECORDS = 7


def records_of(case: Case) -> list[dict[str, Any]]:
    return list(itertools.islice(itertools.cycle(case.records), RECORDS))


def of_parquet(records, tmp_path, **options):
    path = tmp_path / "table.parquet"
    pq.write_table(pa.Table.from_pylist(records), path, row_group_size=3)
    return arrays.parquet(path, **options), pq.read_table(path).to_pylist()


def of_polars(records, tmp_path):
    frame = pl.DataFrame(records, strict=True)
    return frame, frame.to_dicts()


def of_pandas(records, tmp_path):
    frame = pd.DataFrame(records)
    return frame, frame.to_dict("records")


def of_datasets(records, tmp_path):
    dataset = datasets.Dataset.from_list(records)
    return dataset, [dataset[number] for number in range(len(dataset))]


def of_stream(records, tmp_path):
    table = pa.Table.from_pylist(records)
    return table.to_reader(max_chunksize=2), table.to_pylist()


def of_table(records, tmp_path):
    table = pa.Table.from_pylist(records)
    return table, table.to_pylist()


KINDS: dict[str, Callable[..., Any]] = {
    "pyarrow": of_table, "stream": of_stream, "parquet": of_parquet, "polars": of_polars, "pandas": of_pandas,
    "datasets": of_datasets,
}  # fmt: skip
# Of a tuple of several types Arrow makes a list.
CASES = [
    case for case in all_cases() if isinstance(case.records[0], dict) and case.name != "missing in tuples"
]


# What a table of the library can have, and a cache has not.
REFUSED = {
    ("pandas", "an array of one shape"): "Can only convert 1-dimensional",
    ("pandas", "arrays of several shapes"): "Can only convert 1-dimensional",
    ("pandas", "a tuple"): "make all its values of one type",
    ("pandas", "a tuple of lists"): "make all its values of one type",
    ("pandas", "a list of chats and arrays"): "write its tolist",
    ("pandas", "limits of uint64"): "too large",
    ("polars", "a date"): "Arrow has no type",
    ("polars", "an integer above 2**63 - 1"): "Arrow has no type",
    ("polars", "limits of json integers"): "Arrow has no type",
    ("polars", "a complex number"): "Arrow has no type",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_record_of_a_table_is_what_the_library_gives(storage, tmp_path, case, kind):
    records, options = records_of(case), case.options
    try:
        if kind == "parquet":
            table, expected = of_parquet(records, tmp_path, **options)
            options = {}
        else:
            table, expected = KINDS[kind](records, tmp_path)
    except (pa.ArrowException, pl.exceptions.PolarsError, OverflowError, TypeError) as error:
        assert kind != "pandas"
        pytest.skip(f"not a table of {kind}: {type(error).__name__}")
    if (kind, case.name) in REFUSED:
        with pytest.raises(UnsupportedDataError, match=REFUSED[kind, case.name]):
            storage.submit(table, "d", "1", **options)
        return
    if case.found is not None and (kind == "pandas" or "missing" in case.options):
        expected = list(itertools.islice(itertools.cycle(case.expected), RECORDS))
    found = [plain(record) for record in storage.submit(table, "d", "1", **options)]
    assert are_same(found, [plain(as_python(record)) for record in expected]), (found[:3], expected[:3])


def as_python(value: Any) -> Any:
    """Return a value with what Arrow has in the place of what pandas has: a time, and None for a null."""
    if isinstance(value, dict):
        return {key: as_python(item) for key, item in value.items()}
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, pd.Timestamp):
        return value.to_pydatetime()
    return value
