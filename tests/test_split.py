"""Shares of a reference: `ref.split`."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import yogadl
from yogadl._order import derive_key
from yogadl._order._apportion import apportion
from yogadl._order._permutation import EXACT_LIMIT, permute
from yogadl._split import _CHUNK_RECORDS, SPLIT_TAG, split
from yogadl.errors import ConfigurationError


def numbers(count):
    return yogadl.from_source({"id": np.arange(count)}, fingerprint="n")


def ids(ref):
    return ref.gather(range(len(ref)))["id"].tolist()


def labelled(labels, **options):
    return yogadl.from_source({"id": np.arange(len(labels)), "label": labels}, **options)


def counted(share, labels):
    """Return how often each of these labels comes in a share."""
    found = [labels[n] for n in ids(share)]
    return [sum(label == other for other in found) for label in dict.fromkeys(labels)]


def test_the_split_of_version_1_is_frozen():
    train, rest = numbers(10).split(0.8, seed=1)
    assert (ids(train), ids(rest)) == ([0, 4, 8, 5, 6, 1, 7, 3], [9, 2])
    a, b, c = numbers(1000).split(0.5, 0.3, seed=-(2**70))
    assert [ids(share)[:5] for share in (a, b, c)] == [
        [241, 700, 110, 622, 211],
        [651, 630, 202, 220, 119],
        [896, 924, 710, 54, 721],
    ]
    large = numbers(EXACT_LIMIT + 1).split(0.001, seed=7)
    assert ids(large[0])[:6] == [9679, 7960, 19820, 1456, 21197, 2169]
    by = labelled(np.arange(20) % 3).split(0.5, 0.25, seed=3, by="label")
    assert [ids(share) for share in by] == [
        [6, 7, 13, 9, 15, 14, 1, 12, 11, 2],
        [5, 4, 3, 19, 8],
        [16, 0, 10, 18, 17],
    ]


@pytest.mark.parametrize("seed", [0, -5, 2**64])
@pytest.mark.parametrize("values", [None, "three", "all", "one"])
def test_the_documented_program_is_the_library_s(stranger, seed, values):
    for count in (1, 2, 10, 137):
        labels = {"three": np.arange(count) % 3, "all": np.arange(count), "one": np.zeros(count)}.get(values)
        ref = numbers(count) if labels is None else labelled(labels)
        found = ref.split(0.7, 0.2, 0.1, seed=seed, by=None if labels is None else "label")
        wanted = stranger["split_shares"](count, [7, 2, 1], seed, None if labels is None else labels.tolist())
        assert [ids(share) if len(share) else [] for share in found] == wanted


def test_a_split_has_keys_of_its_own():
    shuffled = numbers(100).stream(shuffle=True, shuffle_seed=1).indices().tolist()
    assert ids(numbers(100).split(1, seed=1)[0]) != shuffled
    assert (
        ids(numbers(100).split(1, seed=1)[0])
        == permute(np.arange(100), 100, derive_key(SPLIT_TAG, 1)).tolist()
    )


@given(
    count=st.integers(0, 300),
    parts=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    seed=st.integers(-(2**70), 2**70),
    kinds=st.integers(0, 7),
)
@settings(deadline=None, max_examples=150)
def test_shares_are_exact_and_disjoint_and_cover_all(count, parts, seed, kinds):
    whole = sum(parts)
    shares = [Fraction(part, whole) for part in parts]
    labels = np.arange(count) * 7919 % max(1, kinds)
    records = labelled(labels)._records if count else numbers(9)[:0]._records
    found = split(records, shares, seed, "label" if kinds and count else None)
    assert [len(some) for some in found] == apportion(count, parts)
    assert sum(map(len, found)) == count
    assert sorted(n for some in found for n in some.tolist()) == list(range(count))
    for number, some in enumerate(found):
        assert abs(len(some) - count * shares[number]) < 1
        for label, of in zip(*np.unique(labels, return_counts=True), strict=True) if kinds and count else ():
            exact = Fraction(int(of) * len(some), count)
            assert abs(int((labels[some] == label).sum()) - exact) < max(1, math.ceil(math.log2(len(found))))


@given(total=st.integers(0, 10**20), weights=st.lists(st.integers(1, 10**20), min_size=1, max_size=9))
def test_what_is_apportioned_adds_up_and_is_less_than_1_off(total, weights):
    counts = apportion(total, weights)
    assert sum(counts) == total
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - Fraction(total * weight, sum(weights))) < 1


def test_of_equal_remainders_the_earlier_is_first():
    assert apportion(2, [1, 1, 1, 1]) == [1, 1, 0, 0]
    assert apportion(5, [1, 2, 1]) == [1, 3, 1]


@pytest.mark.parametrize(
    ("shares", "sizes"),
    [
        ((0.8,), [8, 2]),
        ((1,), [10]),
        ((1.0,), [10]),
        ((0.8, 0.1, 0.1), [8, 1, 1]),
        ((1 / 3, 1 / 3, 1 / 3), [4, 3, 3]),
        ((0.1,) * 10, [1] * 10),
        ((0.7, 0.1, 0.1, 0.1), [7, 1, 1, 1]),
        ((0.29,), [3, 7]),
        ((np.float32(0.5), np.float64(0.5)), [5, 5]),
        ((Fraction(1, 10),), [1, 9]),
        ((1e-300,), [0, 10]),
        ((0.999,), [10, 0]),
    ],
)
def test_what_the_shares_leave_is_the_last(shares, sizes):
    assert [len(share) for share in numbers(10).split(*shares)] == sizes


@pytest.mark.parametrize(
    "shares", [(), (0,), (-0.1,), (0.8, 0.3), (2,), (True,), ("0.8",), ([0.8, 0.2],), (float("nan"),),
               (float("inf"),), (None,), (0.5, 0), (1j,)], ids=repr,
)  # fmt: skip
def test_what_are_no_shares_is_refused(shares):
    with pytest.raises(ConfigurationError, match="split"):
        numbers(10).split(*shares)


def test_a_misspelt_argument_is_told():
    with pytest.raises(ConfigurationError, match="did you mean seed="):
        numbers(10).split(0.8, shuffle_seed=1)
    with pytest.raises(ConfigurationError, match="seed must be a whole number"):
        numbers(10).split(0.8, seed=0.5)


def test_each_share_is_a_reference_with_a_fingerprint_of_its_own():
    ref = numbers(100)
    shares = [*ref.split(0.5, seed=1), *ref.split(0.5, seed=2), *ref.split(0.25, 0.25)]
    assert len({ref.fingerprint, *(share.fingerprint for share in shares)}) == 8
    train, rest = ref.split(0.5, seed=1)
    assert train.fingerprint == shares[0].fingerprint
    ranks = [train.stream(shuffle=True, shard_rank=rank, num_shards=2).indices().tolist() for rank in (0, 1)]
    assert sorted(ranks[0] + ranks[1]) == list(range(50))
    again = pickle.loads(pickle.dumps(train))
    assert (again.fingerprint, ids(again)) == (train.fingerprint, ids(train))
    both = yogadl.concat([train, rest])
    assert sorted(ids(both)) == list(range(100))
    inner = train[10:40].split(0.5)
    assert sorted(ids(inner[0]) + ids(inner[1])) == sorted(ids(train)[10:40])


NANS = np.array([0.0, np.nan, -0.0, 1.5] * 25)
NANS[5] = -np.nan
DAYS = np.array(["2020-01-01", "NaT", "2021-01-01", "NaT"] * 25, "M8[D]")


@pytest.mark.parametrize(
    ("labels", "kinds"),
    [
        (np.arange(100) % 2 == 0, [50, 50]),
        (np.array([0] * 50 + [1] * 30 + [2] * 20, np.uint8), [50, 30, 20]),
        (NANS, [50, 50, 25]),
        (DAYS, [25, 50, 25]),
        (np.array([1 + 2j, 1 - 2j] * 50), [50, 50]),
        (np.array([b"a", b"", b"a", b"b"] * 25, object), [50, 25, 25]),
        (np.array(["a", "", "\ud800", "b"] * 25, object), [25, 25, 25, 25]),
        (np.arange(100, dtype=np.int64) // 50 + 2**62, [50, 50]),
    ],
    ids=["bool", "uint8", "float", "date", "complex", "bytes", "str", "int64"],
)  # fmt: skip
def test_each_value_is_split_alike(labels, kinds):
    ref = labelled(labels)
    values = [str(value) if value != value else value for value in labels.tolist()]
    if labels.dtype.kind == "M":
        values = [str(value) for value in labels]
    seen = dict.fromkeys(values)
    total = [sum(value == other for other in values) for value in seen]
    train, rest = ref.split(0.8, seed=4, by="label")
    assert (len(train), len(rest)) == (80, 20)
    for share, part in ((train, 4), (rest, 1)):
        found = [values[n] for n in ids(share)]
        assert [5 * found.count(value) for value in seen] == [part * of for of in total]
    assert sorted(kinds)[-1] == max(total) or labels.dtype.kind in "fM"


def test_numbers_of_other_libraries_are_told_apart():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn):
        train, _ = labelled((np.arange(100) % 4).astype(dtype)).split(0.8, by="label")
        assert np.bincount(np.array(ids(train)) % 4).tolist() == [20] * 4


@pytest.mark.parametrize(
    ("records", "by", "said"),
    [
        ({"id": np.arange(9), "x": np.zeros((9, 2))}, "x", r"by='x' is float64 of shape \(2,\)"),
        ({"id": np.arange(9)}, "label", "there is no field 'label'"),
        ({"id": np.arange(9)}, 3, "there is no field 3"),
        ([{"id": 1, "p": {"a": 1, "b": 2}}] * 3, "p", "by='p' is 2 fields"),
        ([{"id": 1, "t": np.zeros(n)} for n in range(3)], "t", "by='t' is float64 of shape"),
        (np.arange(9), "id", "the record is a single value"),
    ],
)
def test_a_field_that_can_t_be_split_by_is_refused(records, by, said):
    with pytest.raises(ConfigurationError, match=said):
        yogadl.from_source(records).split(0.5, by=by)


def test_values_are_read_once_and_so_much_at_a_time():
    class Source:
        spec = labelled(np.arange(3)).spec
        fingerprint, record_bytes = "s", 2**14

        def __init__(self):
            self.read = []

        def __len__(self):
            return 2500

        def columns(self, indices, fields=None, memory=None):
            assert list(fields) == [1]
            self.read.append(indices.tolist())
            return [indices % 5]

    source = Source()
    found = split(source, [0.5], 1, "label")
    assert [len(read) for read in source.read] == [1024, 1024, 452]
    assert [n for read in source.read for n in read] == list(range(2500))
    assert np.bincount(found[0] % 5).tolist() == [250] * 5
    source.read, source.record_bytes = [], 2**40
    split(source, [0.5], 1, "label")
    assert [len(read) for read in source.read] == [1] * 2500


@pytest.mark.parametrize("count", [_CHUNK_RECORDS + more for more in (-1, 0, 1, _CHUNK_RECORDS)])
def test_as_many_records_as_are_read_at_a_time_and_more(count):
    shares = labelled(np.arange(count) % 2).split(0.5, by="label")
    assert [len(share) for share in shares] == [count - count // 2, count // 2]
    assert abs(2 * int(shares[0].gather(range(len(shares[0])))["label"].sum()) - count // 2) <= 2


def test_by_what_a_function_returns():
    ref = numbers(100).map(lambda record: {"id": record["id"], "half": int(record["id"]) // 50})
    train, _ = ref.split(0.8, by="half")
    assert np.bincount(np.array(ids(train)) // 50).tolist() == [40, 40]


def test_too_many_records_for_a_field_are_refused_before_any_is_read():
    class Huge:
        spec = labelled(np.arange(3)).spec
        fingerprint, record_bytes = "s", 8

        def __len__(self):
            return 2**31 + 1

    from yogadl._split import _values

    with pytest.raises(ConfigurationError, match="too many to split by a field"):
        _values(Huge(), "label")
