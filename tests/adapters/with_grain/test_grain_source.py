"""Grain's data as sources: its datasets, loaders and random-access sources, cached."""

import grain
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from grain_stages import NO_THREADS, Double, OddOnly, Twice, ids, numbered

import yogadl
from yogadl.adapters import grain as yogadl_grain
from yogadl.errors import UnsupportedDataError

RECORDS = [{"id": np.int64(i), "x": np.full(3, i / 2)} for i in range(23)]


class Rows:
    """A random-access source of one's own."""

    def __len__(self):
        return len(RECORDS)

    def __getitem__(self, index):
        return RECORDS[index]


SOURCES = {
    "MapDataset": lambda: grain.MapDataset.source(RECORDS).map(Double()),
    "MapDataset of a source": lambda: grain.MapDataset.source(Rows()).map(Double()),
    "IterDataset": lambda: (
        grain.MapDataset.source(RECORDS).to_iter_dataset(grain.ReadOptions(2, 8)).map(Double())
    ),
    "DataLoader": lambda: grain.load(Rows(), num_epochs=1, transformations=[Double()]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_its_records_are_cached_in_order(cached, name):
    ref = cached(SOURCES[name]())
    assert ids(ref) == list(range(23))
    np.testing.assert_array_equal(ref.gather(range(23))["x"], [2 * record["x"] for record in RECORDS])


def of_records():
    return grain.MapDataset.source(RECORDS)


ODD, TWICE = list(range(1, 23, 2)), [i for i in range(23) for _ in range(2)]
STREAM = numbered(23).stream(shuffle=True)
IDS = {
    "own": (Rows, ..., {}),
    "filter": (lambda: of_records().filter(OddOnly()), ODD, {}),
    "filter of an IterDataset": (lambda: of_records().to_iter_dataset(NO_THREADS).filter(OddOnly()), ODD, {}),
    "filter of a loader": (lambda: grain.load(Rows(), num_epochs=1, transformations=[OddOnly()]), ODD, {}),
    "flat map": (lambda: of_records().apply(Twice()), TWICE, {}),
    "own workers": (
        lambda: of_records().to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(2)), ..., {},
    ),
    "workers": (lambda: of_records().map(Double()), ..., {"workers": 2}),
    "ours": (lambda: yogadl_grain.map_dataset(STREAM), STREAM.indices().tolist(), {}),
}  # fmt: skip


@pytest.mark.parametrize(("make", "wanted", "options"), IDS.values(), ids=IDS)
def test_what_it_yields_is_cached(cached, make, wanted, options):
    assert ids(cached(make(), **options)) == (list(range(23)) if wanted is ... else wanted)


@pytest.mark.parametrize(
    "make",
    [lambda: grain.sources.RangeDataSource(3, 30, 4), lambda: grain.MapDataset.range(5).shuffle(seed=1)],
)
def test_a_range_is_cached(cached, make):
    assert [int(x) for x in cached(make())] == [int(x) for x in make()]


@pytest.mark.parametrize("open_source", [
    grain.sources.ArrayRecordDataSource,
    lambda path: grain.MapDataset.source(grain.sources.ArrayRecordDataSource(path)),
])  # fmt: skip
def test_array_records_are_cached(cached, tmp_path, open_source):
    path = str(tmp_path / "records.array_record")
    writer = ArrayRecordWriter(path, "group_size:1")
    wanted = [bytes([i]) * (i + 1) for i in range(23)]
    for record in wanted:
        writer.write(record)
    writer.close()
    assert list(cached(open_source(path))) == wanted


def test_parquet_is_cached(cached, tmp_path):
    path = str(tmp_path / "records.parquet")
    table = pa.table({"id": range(23), "name": [f"number {i}" for i in range(23)]})
    pq.write_table(table, path, row_group_size=7)
    ref = cached(grain.experimental.ParquetIterDataset(path))
    assert ids(ref) == list(range(23))
    assert ref[7]["name"] == "number 7"


def test_a_map_dataset_is_read_without_a_cache():
    ref = yogadl.from_source(grain.MapDataset.source(RECORDS).map(Double()))
    assert ids(ref.stream(shuffle=True)) == ref.stream(shuffle=True).indices().tolist()
    with pytest.raises(UnsupportedDataError, match="only be read in order"):
        yogadl.from_source(grain.MapDataset.source(RECORDS).filter(OddOnly()))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (of_records().repeat(), "never ends"),
        (of_records().repeat().map(Double()).to_iter_dataset(), "never ends"),
        (grain.experimental.RepeatIterDataset(of_records().to_iter_dataset()), "never ends"),
        (grain.load(Rows()), "never ends"),
        (grain.load(Rows(), shard_options=grain.sharding.ShardOptions(0, 5)), "never ends"),
        (grain.MapDataset.source([]), "no records"),
        (grain.MapDataset.source([]).to_iter_dataset(), "no records"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_end_or_no_records_is_refused(cached, source, says):
    with pytest.raises(UnsupportedDataError, match=says):
        cached(source)


def test_an_error_of_the_source_names_the_record(cached):
    def fail(record):
        if record["id"] == 7:
            raise KeyError("broken")
        return record

    for dataset in (grain.MapDataset.source(RECORDS).map(fail),
                    grain.MapDataset.source(RECORDS).to_iter_dataset(NO_THREADS).map(fail)):  # fmt: skip
        with pytest.raises(KeyError) as caught:
            cached(dataset)
        assert "record 7" in caught.value.__notes__[-1]
