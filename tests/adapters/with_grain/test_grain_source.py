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


def test_a_source_of_ones_own_is_cached(cached):
    assert ids(cached(Rows())) == list(range(23))


def test_a_range_is_cached(cached):
    assert [int(x) for x in cached(grain.sources.RangeDataSource(3, 30, 4))] == list(range(3, 30, 4))
    assert [int(x) for x in cached(grain.MapDataset.range(5).shuffle(seed=1))] == list(
        grain.MapDataset.range(5).shuffle(seed=1)
    )


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


@pytest.mark.parametrize("source", [
    grain.MapDataset.source(RECORDS).filter(OddOnly()),
    grain.MapDataset.source(RECORDS).to_iter_dataset(NO_THREADS).filter(OddOnly()),
    grain.load(Rows(), num_epochs=1, transformations=[OddOnly()]),
])  # fmt: skip
def test_what_a_filter_drops_is_not_there(cached, source):
    assert ids(cached(source)) == list(range(1, 23, 2))


def test_what_a_flat_map_adds_is_there(cached):
    found = ids(cached(grain.MapDataset.source(RECORDS).apply(Twice())))
    assert found == [i for i in range(23) for _ in range(2)]


def test_elements_from_workers_are_cached(cached):
    dataset = grain.MapDataset.source(RECORDS).to_iter_dataset(NO_THREADS)
    assert ids(cached(dataset.mp_prefetch(grain.MultiprocessingOptions(2)))) == list(range(23))


def test_a_map_dataset_is_built_by_several_processes(cached):
    assert ids(cached(grain.MapDataset.source(RECORDS).map(Double()), workers=2)) == list(range(23))


def test_a_map_dataset_is_read_without_a_cache():
    ref = yogadl.from_source(grain.MapDataset.source(RECORDS).map(Double()))
    assert ids(ref.stream(shuffle=True)) == ref.stream(shuffle=True).indices().tolist()
    with pytest.raises(UnsupportedDataError, match="only be read in order"):
        yogadl.from_source(grain.MapDataset.source(RECORDS).filter(OddOnly()))


def test_a_stream_of_ours_is_cached_in_its_order(cached):
    stream = numbered(23).stream(shuffle=True)
    assert ids(cached(yogadl_grain.map_dataset(stream))) == stream.indices().tolist()


@pytest.mark.parametrize("source", [
    grain.MapDataset.source(RECORDS).repeat(),
    grain.MapDataset.source(RECORDS).repeat().map(Double()).to_iter_dataset(),
    grain.experimental.RepeatIterDataset(grain.MapDataset.source(RECORDS).to_iter_dataset()),
    grain.load(Rows()),
    grain.load(Rows(), shard_options=grain.sharding.ShardOptions(0, 5)),
])  # fmt: skip
def test_what_never_ends_is_refused(cached, source):
    with pytest.raises(UnsupportedDataError, match="never ends"):
        cached(source)


def test_what_has_no_records_is_refused(cached):
    for source in (grain.MapDataset.source([]), grain.MapDataset.source([]).to_iter_dataset()):
        with pytest.raises(UnsupportedDataError, match="no records"):
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
