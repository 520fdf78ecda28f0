"""However records are cut into parts, blocks and chunks, the content is the same."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trees import assert_same

import yogadl
from yogadl import Leaf
from yogadl.errors import UnsupportedDataError


def assert_reads(ref, records):
    assert len(ref) == len(records)
    for found, expected in zip(ref, records, strict=True):
        assert_same(found, expected)
    order = np.random.default_rng(0).permutation(len(records))
    for found, index in zip(ref.__getitems__(order), order, strict=True):
        assert_same(found, records[index])


# Shapes that are found to vary in a late chunk, which is after 16 records, or in a later part.
LATE = {
    "size": ([np.zeros(3)], [np.zeros(4)], (None,)),
    "one of two sizes": ([np.zeros((3, 2))], [np.zeros((3, 5))], (3, None)),
    "to nothing": ([np.zeros(3)], [np.zeros(0)], (None,)),
    "from nothing": ([np.zeros(0)], [np.zeros(3)], (None,)),
    "rank": ([np.zeros((2, 3))], [np.zeros(6)], None),
    "rank from scalars": ([np.float64(3)], [np.arange(3.0)], None),
    "rank to scalars": ([np.arange(3.0)], [np.float64(3)], None),
    "rank of the same bytes": ([np.float64(3)], [np.ones(1)], None),
    "size of the same bytes": ([np.ones((2, 3))], [np.zeros((3, 2))], (None, None)),
    "size, then rank": ([np.zeros(3)], [np.zeros(4), np.zeros((1, 1)), np.float64(1)], None),
    "text to arrays": (["a"], [np.array(["a", "b"], object)], None),
    "arrays to text": ([np.array(["a", "b"], object)], ["a"], None),
    "arrays of text": ([np.array(["a", "b"], object)], [np.array(["a"], object)], (None,)),
    "bytes to arrays": ([b"a"], [np.array([b"a", b"b"], object)], None),
}


@pytest.mark.parametrize(
    ("turn", "part_bytes"), [(1, None), (16, None), (17, 1), (15, 100), (40, 100), (1039, None)]
)
@pytest.mark.parametrize("name", LATE)
def test_a_shape_found_to_vary_late_fails_no_build(built, name, turn, part_bytes):
    early, late, shape = LATE[name]
    values = early * turn + late * 3 + early * 2
    records = [{"n": n, "v": value} for n, value in enumerate(values)]
    ref = built(records, build=yogadl.BuildOptions(part_bytes=part_bytes))
    assert ref.spec.fields[1].leaf.shape == shape
    if turn < 100:
        assert_reads(ref, records)
    else:
        assert_reads(ref[turn - 5 :], records[turn - 5 :])
    batch = ref.gather([turn, 0])["v"]
    assert isinstance(batch, list)
    assert_same(batch, [values[turn], values[0]])


def test_a_field_stored_fixed_in_early_parts_and_varying_in_later_ones_gathers_in_one_batch(built):
    rows = [np.full(3, k, np.int16) for k in range(60)] + [np.full(k % 5, k, np.int16) for k in range(60, 90)]
    ref = built(
        iter([{"x": row, "n": k} for k, row in enumerate(rows)]), build=yogadl.BuildOptions(part_bytes=100)
    )
    order = np.random.default_rng(0).permutation(90)
    batch = ref.gather(order)
    assert batch["n"].tolist() == order.tolist()
    for found, index in zip(batch["x"], order, strict=True):
        assert_same(found, rows[index])


@pytest.mark.parametrize(
    ("part_bytes", "sizes"), [(80, {10}), (88, {11, 1}), (1, {1}), (8, {1}), (10**9, {100})]
)
def test_a_part_holds_what_fits(storage, part_bytes, sizes):
    storage.submit(np.arange(100), "d", "1", build=yogadl.BuildOptions(part_bytes=part_bytes))
    ref = storage.fetch("d", "1")
    assert ref.gather(range(99, -1, -1)).tolist() == list(range(99, -1, -1))
    parts = storage.info("d", "1").parts
    assert parts == -(-100 // max(sizes))


def test_parts_of_unequal_size_are_found_by_search(built):
    values = [b"x" * ((k * 7919) % 300) for k in range(200)]
    ref = built(
        [{"b": value, "n": k} for k, value in enumerate(values)], build=yogadl.BuildOptions(part_bytes=500)
    )
    order = np.random.default_rng(0).permutation(200)
    batch = ref.gather(order)
    assert batch["n"].tolist() == order.tolist()
    assert batch["b"] == [values[index] for index in order]


def test_a_record_larger_than_a_part_has_a_part_of_its_own(storage):
    storage.submit([b"x", b"y" * 5000, b"z"], "d", "1", build=yogadl.BuildOptions(part_bytes=100))
    assert list(storage.fetch("d", "1")) == [b"x", b"y" * 5000, b"z"]
    assert storage.info("d", "1").parts == 3


def test_parts_of_the_same_bytes_are_one_file(storage):
    storage.submit(np.zeros(1000), "d", "1", build=yogadl.BuildOptions(part_bytes=800))
    assert storage.info("d", "1").parts == 10
    assert len(list((Path(storage.location) / "d" / "parts").glob("*.mdb"))) == 1
    ref = storage.fetch("d", "1")
    assert ref.gather(np.arange(1000)).tolist() == [0.0] * 1000
    storage.verify("d", "1")


def test_versions_share_the_parts_they_have_in_common(storage):
    storage.submit(np.arange(1000), "d", "1", build=yogadl.BuildOptions(part_bytes=800))
    storage.submit(np.arange(1100), "d", "2", build=yogadl.BuildOptions(part_bytes=800))
    assert (
        len(list((Path(storage.location) / "d" / "parts").glob("*.mdb")))
        == storage.info("d", "2").parts
        == 11
    )


class Items:
    """The same records by position, and by nothing else."""

    def __init__(self, records):
        self._records = records

    def __len__(self):
        return len(self._records)

    def __getitem__(self, index):
        return self._records[index]


COUNT = 97
COLUMNS = {
    "n": np.arange(COUNT),
    "x": (np.arange(COUNT * 6) * 0.37).astype(np.float32).reshape(COUNT, 2, 3),
    "wide": (np.arange(COUNT * 600) * 7919 % 251).astype(np.uint8).reshape(COUNT, 600),
    "text": [f"text {'ü' * (k % 5)}" for k in range(COUNT)],
    "ragged": [np.arange(k % 4, dtype=np.int16) for k in range(COUNT)],
}
RECORDS = [{name: column[k] for name, column in COLUMNS.items()} for k in range(COUNT)]
# Found with the code as first released; the same for ever, on every machine.
FINGERPRINT = "b07ade2be76533ba6215d408da2175c3"


def generate():
    yield from RECORDS


def in_partitions(storage, partitions, version, part_bytes=None, order=None):
    build = storage.begin("same", version, partitions=partitions)
    bounds = [COUNT * k // partitions for k in range(partitions + 1)]
    for k in order or range(partitions):
        build.write(k, RECORDS[bounds[k] : bounds[k + 1]], part_bytes=part_bytes)
    build.commit()


WAYS = {
    "arrays": lambda s: s.submit(COLUMNS, "same", "1"),
    "arrays in tiny parts": lambda s: s.submit(COLUMNS, "same", "1", build=yogadl.BuildOptions(part_bytes=1)),
    "arrays in parts": lambda s: s.submit(COLUMNS, "same", "1", build=yogadl.BuildOptions(part_bytes=7000)),
    "a list": lambda s: s.submit(RECORDS, "same", "1"),
    "an iterator": lambda s: s.submit(iter(RECORDS), "same", "1"),
    "an iterator in parts": lambda s: s.submit(
        iter(RECORDS), "same", "1", build=yogadl.BuildOptions(part_bytes=3000)
    ),
    "a generator function": lambda s: s.submit(generate, "same", "1"),
    "random access": lambda s: s.submit(Items(RECORDS), "same", "1"),
    "one partition": lambda s: in_partitions(s, 1, "1"),
    "three partitions": lambda s: in_partitions(s, 3, "1", 5000),
    "seven partitions, last first": lambda s: in_partitions(s, 7, "1", order=range(6, -1, -1)),
    "two workers": lambda s: s.submit(RECORDS, "same", "1", workers=2),
    "two workers over arrays": lambda s: s.submit(
        COLUMNS, "same", "1", workers=2, build=yogadl.BuildOptions(part_bytes=9000)
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_records_have_the_same_fingerprint_however_they_were_built(storage, way):
    WAYS[way](storage)
    ref = storage.fetch("same", "1")
    assert ref.fingerprint == FINGERPRINT
    assert_reads(ref, RECORDS)
    assert storage.verify("same", "1").records == COUNT


def changed(change):
    records = [dict(record) for record in RECORDS]
    change(records)
    return records


def flip_a_bit(records):
    wide = records[50]["wide"].copy()
    wide[599] ^= 1
    records[50]["wide"] = wide


CHANGES = {
    "one bit": flip_a_bit,
    "one number": lambda r: r[96].update(n=np.int64(95)),
    "order": lambda r: r.reverse(),
    "two swapped": lambda r: r.insert(0, r.pop(1)),
    "one missing": lambda r: r.pop(),
    "one twice": lambda r: r.append(r[-1]),
    "dtype": lambda r: [record.update(n=np.uint64(record["n"])) for record in r],
    "shape": lambda r: [record.update(x=record["x"].reshape(3, 2)) for record in r],
    "text": lambda r: r[3].update(text=r[3]["text"] + " "),
    "text to bytes": lambda r: [record.update(text=record["text"].encode()) for record in r],
    "a name": lambda r: [record.update(m=record.pop("n")) for record in r],
    "order of names": lambda r: [record.update(n=record.pop("n")) for record in r],
    "swapped values": lambda r: (r[7].update(n=r[8]["n"]), r[8].update(n=np.int64(7))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_makes_another_fingerprint(built, change):
    assert built(changed(CHANGES[change])).fingerprint != FINGERPRINT


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=25),
    cuts=st.lists(st.integers(0, 25), max_size=3),
    part_bytes=st.sampled_from([None, 1, 30, 200]),
)
def test_any_partitions_of_ragged_records_have_the_fingerprint_of_the_whole(
    storage, lengths, cuts, part_bytes
):
    records = [{"x": np.arange(size, dtype=np.int8), "n": n} for n, size in enumerate(lengths)]
    storage.submit(records, "d", "whole")
    bounds = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    build = storage.begin("d", "cut", partitions=len(bounds) - 1)
    for k, (start, end) in enumerate(itertools.pairwise(bounds)):
        build.write(k, records[start:end], part_bytes=part_bytes)
    build.commit()
    assert storage.fetch("d", "cut").fingerprint == storage.fetch("d", "whole").fingerprint
    assert_reads(storage.fetch("d", "cut"), records)


def test_a_spec_is_what_the_records_are(built):
    ref = built(COLUMNS)
    leaves = [field.leaf for field in ref.spec.fields]
    assert leaves == [
        Leaf("int64"), Leaf("float32", (2, 3)), Leaf("uint8", (600,)), Leaf("str"), Leaf("int16", (None,)),
    ]  # fmt: skip


def test_nothing_is_published_if_a_late_record_cant_be_stored(storage):
    with pytest.raises(UnsupportedDataError, match="record 30: field 'x' is None"):
        storage.submit(
            ({"x": 1 if n < 30 else None} for n in range(50)),
            "d",
            "1",
            build=yogadl.BuildOptions(part_bytes=8),
        )
    assert storage.datasets() == []
    storage.submit([{"x": 1}], "d", "1")
    assert len(storage.fetch("d", "1")) == 1


def test_a_source_that_lies_about_its_length_publishes_nothing(storage):
    class Liar:
        def __len__(self):
            return 5

        def __iter__(self):
            return iter([1, 2, 3])

    with pytest.raises(UnsupportedDataError, match="length of the source is 5, but it returned 3 records"):
        storage.submit(Liar(), "d", "1")
    assert storage.versions("d") == []
