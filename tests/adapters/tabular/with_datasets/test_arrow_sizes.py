"""Arrow's columns with values and counts around each size constant come back, into a cache and out again."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inside import open_source
from sizes import SCALED, around, arrangements, check_reads, constant, made_small, records_of

from yogadl.adapters import arrays

TYPES = {
    "binary": ("bytes", pa.binary()),
    "large binary": ("bytes", pa.large_binary()),
    "binary view": ("bytes", pa.binary_view()),
    "string": ("str", pa.string()),
    "list": ("array", pa.list_(pa.uint8())),
}
SMALLER = SCALED | {
    "adapters.arrays._columns._CHUNK_BYTES": 2**14,
    "adapters.arrays._columns._CHUNK_RECORDS": 70,
    "adapters.arrays._columns._LEAST_RECORDS": 33,
    "_foreign.arrow_columns._JOINED_BYTES": 2**14 + 2**13,
    "adapters.arrow_export._MAX_BYTES": 2**13,
}
OF_VALUES = [
    ("_format.layout.HEAP_BLOCK_BYTES", "binary"),
    ("_format.layout.HEAP_BLOCK_BYTES", "large binary"),
    ("_format.layout.HEAP_BLOCK_BYTES", "binary view"),
    ("_format.layout.HEAP_BLOCK_BYTES", "string"),
    ("_format.layout.HEAP_BLOCK_BYTES", "list"),
    ("adapters.arrays._columns._CHUNK_BYTES", "binary"),
    ("_foreign.arrow_columns._JOINED_BYTES", "binary"),
    ("_foreign.arrow_columns._JOINED_BYTES", "list"),
]
OF_RECORDS = [
    "adapters.arrays._columns._CHUNK_RECORDS",
    "adapters.arrays._columns._LEAST_RECORDS",
    "adapters.arrays._source._FIRST_RECORDS",
]


small = made_small(SMALLER)


def sources(table, folder):
    """Yield the same table as sources that are read in different ways."""
    yield "table", table
    yield "chunks", pa.concat_tables([table.slice(row, 3) for row in range(0, table.num_rows, 3)])
    yield "reader", table.to_reader(max_chunksize=5)
    pq.write_table(table, folder / "table.parquet", row_group_size=11)
    yield "parquet", arrays.parquet(folder / "table.parquet")


@pytest.mark.parametrize(("name", "kind"), OF_VALUES)
def test_values_of_sizes_around_a_constant_come_back(storage, tmp_path, name, kind):
    kind, arrow_type = TYPES[kind]
    sizes = list(itertools.chain.from_iterable(arrangements(around(constant(name))).values()))
    records = records_of(kind, sizes)
    values = pa.array([record["value"] for record in records], arrow_type)
    table = pa.table({"value": values, "number": np.arange(len(records))})
    for way, source in sources(table, tmp_path):
        storage.submit(source, "d", way)
        check_reads(storage.fetch("d", way), records)


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", ["bytes", "str", "array"])
def test_values_of_sizes_around_a_constant_are_exported(storage, tmp_path, kind, format):
    limit = constant("adapters.arrow_export._MAX_BYTES")
    for way, sizes in arrangements([*around(limit), *around(limit // 4)]).items():
        records = records_of(kind, sizes)
        storage.submit(records, "d", way)
        exported = storage.export("d", way, tmp_path / way, format)
        path = exported.folder / exported.files[0]
        table = pq.read_table(path) if format == "parquet" else pa.ipc.open_file(path).read_all()
        table.validate(full=True)
        storage.submit(table, "d", f"{way} again")
        check_reads(storage.fetch("d", f"{way} again"), records)


@pytest.mark.parametrize("name", OF_RECORDS)
def test_counts_around_a_constant_come_back(storage, tmp_path, name):
    for count in around(constant(name)):
        numbers = np.arange(count)
        table = pa.table({"number": numbers, "text": [str(number) for number in numbers]})
        for way, source in sources(table, tmp_path):
            storage.submit(source, "d", f"{way} {count}")
            found = storage.fetch("d", f"{way} {count}").gather(numbers)
            assert np.array_equal(found["number"], numbers)
            assert found["text"] == table["text"].to_pylist()


def test_a_tables_spec_is_final():
    table = pa.table({"number": [1, 2], "text": ["a", "b"]})
    assert open_source(table).has_final_spec
