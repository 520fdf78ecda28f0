"""Values and counts just below, at, just above and several times each size constant come back."""

import ast
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import MAX_DIMENSIONS, BatchMemory, open_source
from sizes import (
    SCALED,
    SMALL,
    VARYING_KINDS,
    Cut,
    around,
    arrangements,
    bounded,
    check_reads,
    constant,
    records_of,
    rows_of,
    scaled,
    value,
)

import yogadl
from yogadl.errors import UnsupportedDataError

LIBRARY = Path(yogadl.__file__).parent
TESTS = Path(__file__).parents[1]
PAGE_BYTES = 4096

# Where the size of a value decides what happens to it, besides `SCALED`.
OF_VALUES = [
    "_format.fields._LEAST_PIECE_BYTES",
    "_format.fields._WHOLE_ROW_BYTES",
    "_format.columns.MAX_MIXED_BYTES",
    "_format.reader._LEAST_BYTES",
    "_format.part._LARGE_ROW_BYTES",
    "_format.rows._GIL_FREE_ROW_BYTES",
    "_stream.items.UNLOCKED_BYTES",
]
# Where the number of records does.
OF_RECORDS = [
    "_format.columns._CHUNK",
    "_format.reader._SAMPLED_ROWS",
    "_format.reader._SPARED_RECORDS",
    "_format.reader._TRUSTED_RECORDS",
    "_order.permutation.CHUNK",
    "_order.permutation.EXACT_LIMIT",
    "_order.permutation._LANDINGS_LIMIT",
    "_views.records._SAMPLED_RECORDS",
    "_core.columns.CHUNK_RECORDS",
    "_stream.items.MOST_RECORDS",
    "_stream.items.TOGETHER",
    "_stream.items.UNLOCKED_RECORDS",
    "_stream.run.INDICES_PER_CHUNK",
    "storage._builds.build._SAMPLED_RECORDS",
]
# Where the number of parts or blocks does: made this small, and crossed by more parts.
OF_PARTS = {
    "_format.fields._MAX_FLAT_BLOCKS": 3,
    "_format.rows.MAX_MAPPED_PARTS": 3,
    "_format.rows._REMAP_CACHE_BYTES": 0,
    "_format.rows._REMAP_AFTER_PAGES": 3,
    "_format.rows._FEW_PARTS": 3,
}


@pytest.fixture(autouse=True)
def ending():
    with bounded():
        yield


@pytest.fixture
def scale():
    with scaled():
        yield


def cached(storage, source, version="1", **options):
    storage.submit(source, "d", version, **options)
    storage.verify("d", version)
    return storage.fetch("d", version)


def test_jpegs_larger_than_a_block_do_not_fill_the_disk(storage):
    records = [{"jpeg": bytes([number]) * 1_200_000} for number in range(8)]
    check_reads(cached(storage, records), records)
    assert storage.info("d", "1").size_bytes < 10_000_000


def test_records_that_are_far_smaller_than_the_first_fit_and_take_little_more_than_they_have(storage):
    records = [{"image": np.full(size, 7, np.uint8), "label": size} for size in [5_000_000, *[20] * 9_000]]
    ref = cached(storage, records)
    assert storage.info("d", "1").size_bytes < 1.15 * sum(20 + record["image"].nbytes for record in records)
    assert ref.gather(range(9_001))["label"].tolist() == [5_000_000, *[20] * 9_000]
    assert ref[0]["image"].tobytes() == records[0]["image"].tobytes()
    assert {value.tobytes() for value in ref.gather(range(1, 9_001))["image"]} == {b"\7" * 20}


def limits(names):
    """Return sizes to cross, each once, named after the first constant of that size."""
    found = {}
    for name in names:
        found.setdefault(SCALED.get(name) or constant(name), name)
    return [pytest.param(limit, id=name) for limit, name in found.items()]


OF_BATCHES = [name for name in SCALED if name.startswith("_stream.")]
SIZES = [
    *limits([name for name in [*OF_VALUES, *SCALED] if name not in OF_BATCHES]),
    pytest.param(PAGE_BYTES - constant("_format.layout.PAGE_HEADER_BYTES"), id="page"),
]


@pytest.mark.usefixtures("scale")
@pytest.mark.parametrize("kind", VARYING_KINDS)
@pytest.mark.parametrize("limit", SIZES)
def test_values_that_vary_around_a_constant_come_back(storage, limit, kind):
    sizes = list(itertools.chain.from_iterable(arrangements(around(limit)).values()))
    records = records_of(kind, sizes)
    check_reads(cached(storage, Cut(records, [len(records)])), records)


@pytest.mark.usefixtures("scale")
@pytest.mark.parametrize("kind", VARYING_KINDS)
@pytest.mark.parametrize("way", arrangements([]))
def test_values_around_a_block_come_back_alone_and_mixed_with_small_ones(storage, kind, way):
    sizes = arrangements(around(constant("_format.layout.HEAP_BLOCK_BYTES")))[way]
    records = records_of(kind, sizes)
    columns = {"value": [record["value"] for record in records], "number": np.arange(len(records))}
    sources = [records, iter(records), columns, Cut(records, [len(records)]), Cut(records, [2, 3])]
    for number, source in enumerate(sources):
        check_reads(cached(storage, source, str(number)), records)


@pytest.mark.usefixtures("scale")
@pytest.mark.parametrize("limit", SIZES)
def test_rows_of_sizes_around_a_constant_come_back(storage, limit):
    for sizes in (around(limit), [limit], [3 * limit, 1], [limit + 1, 0, limit - 1]):
        records = rows_of(sizes)
        check_reads(cached(storage, records, "-".join(map(str, sizes))), records)


@pytest.mark.usefixtures("scale")
@pytest.mark.parametrize("limit", limits(OF_BATCHES))
def test_batches_of_sizes_around_a_constant_come_back(storage, limit):
    for row_bytes in sorted({size // 31 for size in [*around(limit), limit // 4, limit // 5]}):
        records = [{"value": value("fixed", row_bytes, seed)} for seed in range(100)]
        ref = cached(storage, records, str(row_bytes))
        check_reads(ref, records, 31)


@pytest.mark.parametrize("limit", limits(OF_RECORDS))
def test_counts_around_a_constant_come_back(storage, limit):
    for count in around(limit):
        numbers = np.arange(count) * 3
        one_by_one = numbers.tolist() if count < 10_000 else numbers
        refs = [
            yogadl.from_source(numbers),
            cached(storage, one_by_one, "1"),
            cached(storage, numbers, "2", build=yogadl.BuildOptions(part_bytes=3_000 + count)),
        ]
        assert refs[1].fingerprint == refs[2].fingerprint
        for ref in refs:
            for threads in (1, 2):
                found = list(ref.stream().batch(count).prefetch(2, threads=threads))
                assert np.array_equal(np.concatenate(found), numbers)
            stream = ref.stream(shuffle=True, shuffle_seed=2)
            order = stream.indices()
            assert np.array_equal(np.sort(order), np.arange(count))
            for loader in (stream.batch(1 + count // 3), stream.batch(1 + count // 7).prefetch(2, threads=2)):
                assert np.array_equal(np.concatenate(list(loader)), numbers[order])


@pytest.mark.parametrize("count", [2, 3, 4, 10])
def test_numbers_of_parts_and_blocks_around_a_constant_are_read(storage, count):
    records = [{"value": value("fixed", 100, seed), "text": "abc"[: seed % 4]} for seed in range(count)]
    with scaled(OF_PARTS):
        ref = cached(storage, records, build=yogadl.BuildOptions(part_bytes=1))
        assert storage.info("d", "1").parts == count
        for _ in range(2):
            check_reads(ref, records)


@pytest.mark.parametrize("limit", [2**16, 2**17, 2**18])
def test_files_of_sizes_around_a_slot_of_the_window_are_read(storage, limit):
    rows = np.random.default_rng(1).integers(0, 256, (3 * limit // 1000, 1000), np.uint8)
    with scaled({"_format.rows._HUGE_PAGE_BYTES": 2**17}):
        for spare in (0, 3 * PAGE_BYTES, 6 * PAGE_BYTES):
            ref = cached(storage, rows, str(spare), build=yogadl.BuildOptions(part_bytes=limit - spare))
            order = np.random.default_rng(2).permutation(len(rows))
            assert np.array_equal(ref.gather(order), rows[order])


@pytest.mark.parametrize(
    "limit",
    limits(
        ["_core.memory._LEAST_BYTES", "_format.fields._LEAST_PIECE_BYTES", "_format.fields._WHOLE_ROW_BYTES"]
    ),
)
def test_batches_are_gathered_whole_into_memory_that_is_used_again(storage, limit):
    memory = BatchMemory()
    for size in around(limit):
        records = [{"value": value("fixed", size, seed), "number": seed} for seed in range(20)]
        ref = cached(storage, records, str(size))
        for count in [1, 2, 20] * 2:
            found = ref.columns(np.arange(count), None, memory)
            assert np.array_equal(found[0], [record["value"] for record in records[:count]])


def test_shapes_of_as_many_dimensions_as_are_allowed_come_back(storage):
    for rank in (MAX_DIMENSIONS - 1, MAX_DIMENSIONS):
        arrays = [np.full((size, *[1] * (rank - 1)), size) for size in (2, 2, 3, 0)]
        for some in (arrays, arrays[:2]):
            records = [{"value": array} for array in some]
            check_reads(cached(storage, records, f"{rank} {len(some)}"), records)
    with pytest.raises(UnsupportedDataError, match=r"has 32 dimensions, more than 31; reshape it"):
        storage.submit([np.ones([1] * (MAX_DIMENSIONS + 1))], "d", "refused")


class Gaps(Cut):
    """A source of one field that gives an empty chunk after each."""

    def chunks(self, start=0):
        for columns in super().chunks(start):
            yield from (columns, [[]])


def test_shapes_of_any_number_of_dimensions_come_back_up_to_as_many_as_are_allowed(storage):
    most = constant("_format.fields.MAX_UNKNOWN_RANK")
    for rank in (most - 1, most):
        records = [{"value": array} for array in (np.ones([2] * rank), np.float64(1), np.ones(3))]
        for number, source in enumerate((records, Gaps(records, [2, 1]))):
            check_reads(cached(storage, source, f"{rank} {number}"), records)
    for rank in (most + 1, 3 * most):
        one, many = {"value": np.ones(1)}, {"value": np.ones([1] * rank)}
        for source in ([one, many], [one, many, one], Cut([many, one], [2])):
            with pytest.raises(UnsupportedDataError, match="dimensions"):
                storage.submit(source, "d", "refused")
        # Stored before the number of dimensions was found to vary, a part knows its own.
        check_reads(cached(storage, [many, one, one], str(rank)), [many, one, one])


def test_empty_arrays_of_as_large_dimensions_as_are_allowed_come_back(storage):
    limit, some = constant("_format.columns._SIZE_LIMIT"), np.ones((1, 2), np.uint8)
    for size in around(limit):
        empty = np.empty((0, size), np.uint8)
        check_reads(cached(storage, [{"value": empty}] * 2, str(size)), [{"value": empty}] * 2)
        records = [{"value": array} for array in (some, empty, empty, some)]
        for source in (records, Cut(records, [4])):
            if size < limit:
                check_reads(cached(storage, source, "varying"), records)
            else:
                with pytest.raises(UnsupportedDataError, match=f"record 1.*a dimension of {size}"):
                    storage.submit(source, "d", "refused")


def test_records_of_as_many_fields_as_are_allowed_come_back(storage):
    with scaled({"_core.spec.MAX_FIELDS": 300}):
        for count in (299, 300):
            record = {str(number): number for number in range(count)}
            ref = cached(storage, [record, record], str(count))
            assert ref[1] == record
            columns = ref.gather([0, 1]).values()
            assert [column.tolist() for column in columns] == [[number] * 2 for number in range(count)]
        with pytest.raises(UnsupportedDataError, match="more than 300"):
            storage.submit([record | {"one more": 1}], "d", "refused")


def test_records_as_deep_as_is_allowed_come_back(storage):
    most = constant("_core.spec.MAX_DEPTH")
    record = 5
    for depth in range(1, most + 1):
        record = {"value": record}
        if depth in (most - 1, most):
            ref = cached(storage, [record], str(depth))
            assert ref[0] == record
            assert list(ref.stream()) == [record]
    with pytest.raises(UnsupportedDataError, match="deep"):
        storage.submit([{"value": record}], "d", "refused")


@pytest.mark.parametrize("kind", [*VARYING_KINDS, "fixed"])
def test_values_larger_than_one_may_be_are_refused_by_record(storage, kind):
    with scaled({"_core.columns.MAX_LEAF_BYTES": 5000}):
        below, at, above, several = around(5000)
        if kind != "fixed":
            records = records_of(kind, [below, 3, at, 3, below])
            check_reads(cached(storage, records), records)
        for size in (below, at):
            records = records_of(kind, [size] * 3)
            check_reads(cached(storage, records, str(size)), records)
        for sizes, refused in (([above], 0), ([several, 3], 0), ([3, 3, above, 3], 2), ([at, 3, several], 2)):
            for source in (records_of(kind, sizes), Cut(records_of(kind, sizes), [len(sizes)])):
                with pytest.raises(UnsupportedDataError, match=f"record {refused}.*split it into several"):
                    storage.submit(source, "d", "refused")


class Stopping:
    """Records that can't be read from one of them on while there is a file that says so."""

    def __init__(self, records, stops_at, while_there_is):
        self.records, self.stops_at, self.while_there_is = records, stops_at, while_there_is
        self.read = []

    def __len__(self):
        return len(self.records)

    def __getitem__(self, number):
        if number >= self.stops_at and self.while_there_is.exists():
            raise OSError("the share is gone")
        self.read.append(number)
        return self.records[number]


@pytest.mark.usefixtures("scale")
@pytest.mark.parametrize("kind", [*VARYING_KINDS, "fixed"])
@pytest.mark.parametrize("limit", limits(["storage._builds.build._SAMPLED_BYTES"]))
def test_a_build_goes_on_at_records_of_sizes_around_what_is_compared(storage, tmp_path, limit, kind):
    count = constant("storage._builds.build._SAMPLED_RECORDS")
    ways = {str(size): [size] * 12 * count for size in around(limit // count)}
    if kind != "fixed":
        ways = {"mixed": arrangements([*around(limit), *around(limit // count)])["large ones first"]} | ways
    is_gone = tmp_path / "gone"
    went_on = 0
    for way, sizes in ways.items():
        records = records_of(kind, sizes)
        is_gone.touch()
        source = Stopping(records, len(records) - 1, is_gone)
        with pytest.raises(OSError, match="the share is gone"):
            storage.submit(source, "d", way, build=yogadl.BuildOptions(part_bytes=4 * limit))
        is_gone.unlink()
        source.read.clear()
        check_reads(cached(storage, source, way, build=yogadl.BuildOptions(part_bytes=4 * limit)), records)
        went_on += len(set(source.read)) < len(records)
    assert went_on >= 3  # where nothing was sealed yet it begins anew


@pytest.mark.usefixtures("scale")
def test_records_that_turn_large_are_not_held_by_the_thousand():
    large_bytes = constant("_core.columns.CHUNK_BYTES")
    records = records_of("bytes", [SMALL] * 300 + [large_bytes] * 300)
    read = 0

    def reading():
        nonlocal read
        for record in records:
            read += 1
            yield record

    given, most = 0, 0
    for values, _ in open_source(reading()).chunks():
        given += len(values)
        most = max(most, sum(map(len, values)))
    assert given == read == 600
    assert most <= 64 * large_bytes


@st.composite
def sizes_and_chunks(draw):
    """Return sizes of values, most of them around some constant, and how they come and are stored."""
    near = st.builds(
        lambda limit, times, more: max(0, limit * times // 4 + more),
        st.sampled_from(sorted(constant(name) for name in OF_VALUES) + sorted(SCALED.values())),
        st.integers(1, 12),
        st.integers(-2, 2),
    ).map(lambda size: min(size, 3 * 2**17))
    sizes = draw(st.lists(st.one_of(near, near, st.integers(0, 40)), min_size=1, max_size=40))
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=10))
    part_bytes = draw(st.one_of(st.none(), near.map(lambda size: max(1, size))))
    return sizes, lengths, part_bytes


@pytest.mark.parametrize("kind", VARYING_KINDS)
def test_values_of_any_sizes_in_any_chunks_come_back(tmp_path_factory, kind):
    storage = yogadl.open_storage(tmp_path_factory.mktemp("caches"))

    @settings(max_examples=20)
    @given(sizes_and_chunks(), st.integers(1, 12))
    def check(drawn, batch):
        sizes, lengths, part_bytes = drawn
        records = records_of(kind, sizes)
        with scaled():
            storage.submit(Cut(records, lengths), "d", "1", build=yogadl.BuildOptions(part_bytes=part_bytes))
            check_reads(storage.fetch("d", "1"), records, batch)

    check()


def names_in(text):
    """Return the names in a text, in which a dot alone stands for the module of the name before."""
    names = []
    for word in text.split():
        names.append(names[-1].rpartition(".")[0] + word if word.startswith(".") else word)
    return names


def files_of(text):
    """Return the names that each file has, by the file: `FILE: NAME ...`."""
    words = re.split(r"(\S+):\s", text)
    return {file: names_in(names) for file, names in zip(words[1::2], words[2::2], strict=True)}


# What other tests cross.
ELSEWHERE = files_of("""
storage/test_storage_metadata.py: _format.manifest.MAX_METADATA_BYTES ._METADATA_DEPTH
adapters/tabular/with_datasets/test_arrow_sizes.py: adapters.arrays._columns._CHUNK_BYTES ._CHUNK_RECORDS
    adapters.arrays._columns._LEAST_RECORDS _foreign.arrow_columns._JOINED_BYTES
    adapters.arrays._source._FIRST_RECORDS
    adapters.arrow_export._MAX_BYTES
foreign/with_pyarrow/test_parquet.py: _foreign.groups._HELD_BYTES _foreign.parquet_columns._END_BYTES
    ._TAIL_BYTES
test_concat.py: _format.joined._MOST_BLOCKS _format.rows._VIEWED_BYTES
adapters/tabular/with_datasets/test_to_hf.py: adapters.datasets._AT_ONCE_BYTES ._AT_ONCE_RECORDS
    adapters.datasets._MOST_BYTES ._READ_ROWS
adapters/with_grain/test_grain_sizes.py: adapters.grain._items._AHEAD_BYTES ._LEAST_RECORDS_AHEAD
    adapters.grain._items._MOST_RECORDS_AHEAD
adapters/with_ray/test_ray_reading.py: adapters.ray._BLOCK_BYTES
faults/test_foreign_caches.py: _format.table.MOST_EMPTY_RECORDS
foreign/test_adopt.py: _foreign.file_reader._MOST_RECORDS ._UNREAD_BLOCK_BYTES
foreign/test_cut_files.py: _format.rows._JOINED_VALUE_BYTES ._READ_GAP_BYTES ._STRETCH_BYTES
foreign/test_webdataset.py: _foreign.tar._TAIL_BYTES
storage/test_storage_runs.py: _views.records._MOST_HASHED_BYTES
foreign/test_crc32c.py: _foreign.crc32c._BLOCK_BYTES ._ROW_BYTES
foreign/test_foreign_sizes.py: storage._remote.ranges.INTERLEAVED_GAP_BYTES _foreign.arrow._BATCH_RECORDS
    _foreign.example._COPIED_BYTES ._FEW_BYTES ._SMALL_BYTES _foreign.mds._SMALL_BYTES
    _foreign.npy._BATCH_RECORDS ._SMALL_BYTES _format.writer._FEW_BYTES ._FEW_RECORDS
foreign/test_mds.py: _foreign.mds._BATCH_RECORDS
foreign/test_megatron.py: _foreign.megatron._BATCH_RECORDS
foreign/test_unread.py: _foreign.file_reader._JOINED_RECORDS
foreign/with_pyarrow/test_arrow_pyarrow.py: _foreign.arrow._SMALL_BYTES
foreign/test_adopt_fence.py: _format.files.MAX_FOREIGN_BYTES ._MOST_TEXT_BYTES
foreign/test_forged_foreign.py: _format.table.MAX_FOREIGN_BLOCK_BYTES
test_memory.py: _views.chunks._OFFSET_BYTES _views.chosen._INDEX_BYTES _views.shares._PLAIN_BYTES
    _views.shares._STRATIFIED_BYTES ._WEIGHT_BYTES _views.lengths.PLAN_BYTES _views.flat._COUNT_BYTES
test_packed.py: _views.lengths._READ_BYTES ._READ_RECORDS
test_packs.py: _order.lengths.LENGTH_LIMIT ._CHUNK _order.packs.CAPACITY_LIMIT
cli/test_report.py: _core.shown.MOST_IMAGE_BYTES
cli/test_report_values.py: _core.shown.MOST_FILE_BYTES
test_notebook.py: _core.shown._NOTEBOOK_FIELDS _stream.stream._SHOWN_BYTES ._SHOWN_RECORDS
test_filter.py: _views.chosen._READ_BYTES ._READ_RECORDS ._TASK_RECORDS
adapters/tabular/test_sql.py: adapters.sql._CHUNK_BYTES ._CHUNK_RECORDS ._FIRST_RECORDS
adapters/with_tensorflow/test_tensorflow_sizes.py: adapters.tensorflow._loader._GATHERED_BYTES
    adapters.tensorflow._loader._GATHERED_RECORDS adapters.tensorflow._source._CHUNK_BYTES ._CHUNK_RECORDS
    adapters.tensorflow._source._LARGE_RECORDS ._VARYING_RECORDS ._HELD_BYTES ._MOST_BYTES
adapters/with_torch/test_torch_sizes.py: adapters.torch._iterable._READ_BYTES ._READ_RECORDS
    adapters.torch._source._MOST_BYTES ._MOST_RECORDS
format/test_format_sizes.py: _format.fields.MAX_UNKNOWN_RANK _format.columns._SIZE_LIMIT
    _format.layout.PAGE_HEADER_BYTES _format.rows._HUGE_PAGE_BYTES _core.spec.MAX_DIMENSIONS
    _core.columns.MAX_LEAF_BYTES ._UNSEEN_RECORDS _core.spec.MAX_DEPTH .MAX_FIELDS
stream/test_tickets.py: _stream.tickets.TOGETHER_BYTES .TOGETHER_RECORDS
stream/test_stream_workers.py: _core.memory.JOINED_BYTES _stream.worker._PAGES ._SMALL_BYTES
    _stream.workers._CALLED_RECORDS ._CHUNK_BYTES
storage/test_storage_blocks.py: _stream.block_ahead._COMING_BYTES ._REQUEST_BYTES ._WINDOW_BYTES
    _stream.run._BLOCK_RECORDS storage._remote.ranges.HELD_GAP_BYTES
    storage._remote.held_ranges.MOST_IN_MEMORY_BYTES
storage/test_storage_checked_ranges.py: storage._remote.ranges.MOST_CHECKED_BYTES .TOGETHER_BYTES
    storage._remote.ranges.AHEAD_BYTES storage._remote.ranges._AT_ONCE_BYTES
storage/with_zstandard/test_storage_codec.py: _format.codec.LEAST_ROW_BYTES
    _format.fields._KEPT_VALUES_BYTES
storage/with_zstandard/test_codec_sizes.py: _format.codec.AUTO_BYTES .MAX_DICTIONARY_BYTES
    _format.codec._DICTIONARY_BYTES ._TRAINED_BYTES _format.writer.SAMPLE_BYTES .SAMPLE_RECORDS
storage/test_storage_export.py: storage._catalogue.export._CHUNK_BYTES
storage/test_storage_ranges.py: _format.rows.KEPT_BYTES .KEPT_ROW_BYTES storage._remote.ranges.GAP_BYTES
    storage._remote.ranges.MOST_RANGE_BYTES .PAGE_BYTES .MOST_HELD_BYTES
storage/test_storage_shares.py: storage._builds.executors._PART_BYTES ._WAITING_BYTES
    storage._builds.shares._SHARE_BYTES
test_split.py: _views.shares._CHUNK_BYTES ._CHUNK_RECORDS
test_json_value.py: _core.json_value.MAX_JSON_DEPTH ._ORJSON_DEPTH
test_values.py: _core.infer.SAMPLED_RECORDS
test_key.py: _core.key.MAX_NAME_BYTES .MAX_SEGMENT_BYTES
test_order.py: _order.keys.RECORDS_LIMIT _order.permutation._NARROW_LIMIT
""")
# What no record crosses: how large a file of ours may be, what a message says, what is fast.
OF_NO_RECORD = set(
    names_in("""
_core.frozen.MAX_DEPTH _core.json_value._ONCE_FROM_DEPTH _core.memory._IDLE_BLOCKS ._SETTLING_BYTES
_foreign.arrow._MAX_METADATA_BYTES _foreign.compressed._BZIP2_BLOCKS _foreign.flatbuffer._MAX_STRING_BYTES
_foreign.mds._MAX_CONFIG_BYTES _foreign.megatron._HEADER_BYTES _foreign.npy._MAX_HEADER_BYTES
_foreign.tar._MAX_PAX_BYTES _foreign.tfrecord._FOOTER_BYTES ._HEADER_BYTES _format.joined._HEADER_BYTES
_format.manifest.MAX_MANIFEST_BYTES ._SMALL_BYTES _format.part._FULL_BYTES _format.rows.PAGE_BYTES
_format.rows._MOST_BYTES _format.table.LEAST_PAGE_BYTES .MAX_CACHE_BYTES .MAX_RECORDS
_format.table.MOST_FOREIGN_TABLE_BYTES ._MAX_HEADER_BYTES _format.writer._PART_BLOCKS
_provenance.values.MOST_WARNING_BYTES adapters.tensorflow._cache._MANY_RECORDS
adapters.tensorflow._loader._IDENTITY_BYTES adapters.tensorflow._source._HEADER_BYTES ._LARGE_GRAPH_BYTES
adapters.torch._loader._PINNED_AHEAD
""")
)
SIZE = re.compile(
    "(^|_)(BYTES|RECORDS|ROWS|PARTS|BLOCKS|PAGES|CHUNK|INDICES|LIMIT|RANK|DIMENSIONS|FIELDS|DEPTH|AHEAD|TOGETHER)$"
)


def size_constants():
    """Return the numbers in the library's modules that are named as sizes.

    Not the command's, nor those of buckets, leases and mirrors: what they carry is files.
    """
    for path in LIBRARY.rglob("*.py"):
        module = ".".join(path.relative_to(LIBRARY).with_suffix("").parts)
        of_records = (
            "storage._remote.held_ranges",
            "storage._remote.planning",
            "storage._remote.ranges",
            "storage._builds.shares",
            "storage._builds.build",
            "storage._builds.executors",
            "storage._catalogue.export",
        )
        is_of_files = module.startswith("storage.") and module not in of_records
        if is_of_files or module.startswith(("cli.", "testing.")):
            continue
        for statement in ast.parse(path.read_text("utf-8")).body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
                constants = [node for node in ast.walk(statement.value) if isinstance(node, ast.Constant)]
                is_text = any(isinstance(node.value, str) for node in constants)
                if isinstance(target, ast.Name) and SIZE.search(target.id) and not is_text:
                    yield f"{module}.{target.id}"


def test_every_size_constant_is_crossed_by_a_test():
    here = {*OF_VALUES, *OF_RECORDS, *OF_PARTS, *SCALED}
    known = here | OF_NO_RECORD | set(itertools.chain.from_iterable(ELSEWHERE.values()))
    found = set(size_constants())
    assert found - known == set(), (
        "write a test with sizes around the new constant, and put its name into a list here"
    )
    assert known - found == set(), "these constants are gone"
    for file in ELSEWHERE:
        assert (TESTS / file).exists(), file
