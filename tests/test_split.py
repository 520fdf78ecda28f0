"""Shares of a reference: `ref.split`."""

import itertools
import math
import re
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import _CHUNK_RECORDS, EXACT_LIMIT, SPLIT_TAG, RandomAccess, apportion, derive_key, permute
from inside import split_split as split
from listed import Listed
from xxhash import xxh3_64_intdigest

import yogadl
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
    train, rest = numbers(20).split(0.8, seed=1, key="id")
    assert (ids(train), ids(rest)) == (
        [0, 1, 2, 5, 6, 8, 9, 12, 13, 15, 16, 17, 18, 19],
        [3, 4, 7, 10, 11, 14],
    )


@pytest.mark.parametrize("seed", [0, -5, 2**64])
@pytest.mark.parametrize("values", [None, "three", "all", "one"])
def test_the_documented_program_is_the_library_s(stranger, seed, values):
    for count in (1, 2, 10, 137):
        labels = {"three": np.arange(count) % 3, "all": np.arange(count), "one": np.zeros(count)}.get(values)
        ref = numbers(count) if labels is None else labelled(labels)
        found = ref.split(0.7, 0.2, 0.1, seed=seed, by=None if labels is None else "label")
        wanted = stranger["split_shares"](count, [7, 2, 1], seed, None if labels is None else labels.tolist())
        assert [ids(share) if len(share) else [] for share in found] == wanted


KEYS = {
    "int": np.arange(-70, 67),
    "bool": np.arange(137) % 2 == 0,
    "large": np.arange(137).astype(np.uint64) + np.uint64(2**63),
    "date": np.arange("2000-01-01", "2000-05-17", dtype="datetime64[D]"),
    "str": np.array([f"{n % 50} é" for n in range(137)]),
}


@pytest.mark.parametrize("kind", [*KEYS, "bytes"])
@pytest.mark.parametrize("seed", [0, -5, 2**64])
def test_the_documented_program_divides_by_the_same_keys(stranger, kind, seed):
    keys = [b"%d" % (n % 9) for n in range(137)] if kind == "bytes" else KEYS[kind]
    ref = yogadl.from_source([{"id": n, "key": key} for n, key in enumerate(keys)])
    if kind in ("str", "bytes"):
        words = [xxh3_64_intdigest(key if kind == "bytes" else str(key).encode()) for key in keys]
    else:
        words = np.asarray(keys).astype(np.uint64 if kind == "large" else np.int64).tolist()
    found = ref.split(0.7, 0.2, 0.1, seed=seed, key="key")
    share = [stranger["key_share"](int(word), [7, 2, 1], seed) for word in words]
    assert [ids(each) if len(each) else [] for each in found] == [
        [n for n in range(137) if share[n] == number] for number in range(3)
    ]


def test_the_share_of_a_key_never_changes():
    small, large = numbers(500).split(0.7, key="id"), numbers(2000).split(0.7, key="id")
    assert sum(map(len, small)) == 500
    for before, after in zip(small, large, strict=True):
        assert ids(after)[: len(before)] == ids(before)
    assert abs(len(large[0]) - 1400) < 100
    shuffled = numbers(2000).select(np.random.default_rng(0).permutation(2000)).split(0.7, key="id")
    assert sorted(ids(shuffled[0])) == ids(large[0])
    by_name = yogadl.from_source([{"id": n, "file": f"{n % 10}.txt"} for n in range(100)])
    train, test = by_name.split(0.5, key="file")
    assert {n % 10 for n in ids(train)}.isdisjoint({n % 10 for n in ids(test)})
    assert len(train) + len(test) == 100


def test_many_shares_by_key_cover_all():
    shares = numbers(3000).split(*[0.04] * 25, key="id")
    assert sorted(n for share in shares for n in ids(share)) == list(range(3000))
    assert all(60 < len(share) < 190 for share in shares)
    assert [len(share) for share in numbers(9).split(1, key="id")] == [9]


def test_the_file_that_a_source_lists_is_a_key():
    listed = yogadl.from_source(Listed(n % 10 for n in range(50)), fingerprint="f")
    train, test = listed.split(0.5, key="file")
    assert {n % 10 for n in ids(train)}.isdisjoint({n % 10 for n in ids(test)})
    assert 0 < len(train) < 50
    joined = yogadl.concat([listed[:7], listed.select([]), listed])
    shares = joined.split(0.5, key="file")
    for alone, both in zip((train, test), shares, strict=True):
        assert ids(both) == [n for n in ids(alone) if n < 7] + ids(alone)
    mixed = yogadl.concat([listed, numbers(9).fields("id")])
    with pytest.raises(ConfigurationError, match="a source that lists the file"):
        mixed.split(0.5, key="file")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda ref: ref.split(0.5, key="id", by="x"),
            "key= or by=, not both: .* hash of a record's key alone",
        ),
        (lambda ref: ref.split(0.5, key="id", grows=True), "key= without grows="),
        (lambda ref: ref.split(0.5, key="none"), "there is no field 'none'"),
        (lambda ref: ref.split(0.5, key="file"), 'key="file" needs records that have a field "file"'),
        (lambda ref: ref.split(0.5, key="x"), "key='x' is float64: a split by key takes integers"),
        (lambda ref: ref.split(0.5, key="p"), r"key='p' is float64 of shape \(2,\)"),
        (lambda ref: ref.split(0.7, 0.7, key="id"), "add up to at most 1"),
        (lambda ref: ref.split(0.8, shuffle_seed=1), "did you mean seed="),
        (lambda ref: ref.split(0.8, seed=0.5), "seed must be a whole number"),
        (lambda ref: ref.split(0.8, grows=1), "grows must be True or False, not 1"),
    ],
)
def test_what_makes_no_sense_is_refused(call, said):
    ref = yogadl.from_source({"id": np.arange(9), "x": np.zeros(9), "p": np.zeros((9, 2))})
    with pytest.raises(ConfigurationError, match=said):
        call(ref)


def test_what_is_said_instead_of_by_with_key_works(storage):
    def divided(version, said):
        ref = storage.fetch("d", version)
        [line] = [line for line in lines if said in line]
        return eval(line, {"ref": ref})

    labels = np.arange(400) % 4 // 3
    storage.submit({"id": np.arange(400), "label": labels}, "d", "1")
    with pytest.raises(ConfigurationError) as refused:
        storage.fetch("d", "1").split(0.75, seed=3, key="id", by="label")
    lines = re.findall(r"ref\.split\(.*?\)", str(refused.value))
    storage.append({"id": np.arange(400, 440), "label": labels[:40]}, "d", "2", base_version="1")
    exact, later = divided("1", "by='label'"), divided("2", "by='label'")
    assert counted(exact[1], labels) == [75, 25]
    near = divided("1", "key='id'")
    assert all(
        abs(count / total - 0.75) < 0.1
        for count, total in zip(counted(near[0], labels), (300, 100), strict=True)
    )
    for before, after in (*zip(exact, later, strict=True), *zip(near, divided("2", "key='id'"), strict=True)):
        assert ids(after)[: len(before)] == ids(before)


def test_a_split_has_keys_of_its_own():
    shuffled = numbers(100).stream(shuffle=True, shuffle_seed=1).indices().tolist()
    (whole,) = numbers(100).split(1, seed=1)
    assert ids(whole) != shuffled
    assert ids(whole) == permute(np.arange(100), 100, derive_key(SPLIT_TAG, 1)).tolist()


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
    assert apportion(2, [1, 1, 1, 1]) == [1, 1, 0, 0]  # of equal remainders the earlier is first
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - Fraction(total * weight, sum(weights))) < 1


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


def test_each_share_is_a_reference_with_a_fingerprint_of_its_own():
    ref = numbers(100)
    shares = [*ref.split(0.5, seed=1), *ref.split(0.5, seed=2), *ref.split(0.25, 0.25)]
    assert len({ref.fingerprint, *(share.fingerprint for share in shares)}) == 8
    assert ref.split(0.5, seed=1)[0].fingerprint == shares[0].fingerprint


NANS = np.array([0.0, np.nan, -0.0, 1.5] * 25)
NANS[5] = -np.nan
DAYS = np.array(["2020-01-01", "NaT", "2021-01-01", "NaT"] * 25, "M8[D]")


@pytest.mark.parametrize(
    "labels",
    [
        np.arange(100) % 2 == 0,
        np.array([0] * 50 + [1] * 30 + [2] * 20, np.uint8),
        NANS,
        DAYS,
        np.array([1 + 2j, 1 - 2j] * 50),
        np.array([b"a", b"", b"a", b"b"] * 25, object),
        np.array(["a", "", "\ud800", "b"] * 25, object),
        np.arange(100, dtype=np.int64) // 50 + 2**62,
    ],
    ids=["bool", "uint8", "float", "date", "complex", "bytes", "str", "int64"],
)
def test_each_value_is_split_alike(labels):
    values = list(map(str, labels)) if labels.dtype.kind == "M" else labels.tolist()
    values = [str(value) if value != value else value for value in values]
    total = Counter(values)
    train, rest = labelled(labels).split(0.8, seed=4, by="label")
    assert (len(train), len(rest)) == (80, 20)
    for share, part in ((train, 4), (rest, 1)):
        found = Counter(values[n] for n in ids(share))
        assert {value: 5 * count for value, count in found.items()} == {
            value: part * count for value, count in total.items()
        }


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
    class Source(RandomAccess):
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


def test_too_many_records_for_a_field_are_refused_before_any_is_read():
    class Huge:
        spec = labelled(np.arange(3)).spec
        fingerprint, record_bytes = "s", 8

        def __len__(self):
            return 2**31 + 1

    from inside import numbers_of_values

    with pytest.raises(ConfigurationError, match="too many to split by a field"):
        numbers_of_values(Huge(), "label")


# Datasets that grow. Sizes at 0, 1 and a prime, as small as the number of shares, and past the exact shuffle.
ADDED = [(10, 1), (1, 1, 2, 3), (101, 7, 50), (1_000, 333), (EXACT_LIMIT + 1, 5)]


def grown(storage, added, label=7):
    """Build versions that continue each other, and return them."""
    start = 0
    for number, count in enumerate(added):
        ids = np.arange(start, start + count)
        records = {"id": ids, "label": ids % label}
        if number:
            storage.append(
                records,
                "d",
                str(number),
                base_version=str(number - 1),
                build=yogadl.BuildOptions(part_bytes=4096),
            )
        else:
            storage.submit(records, "d", "0")
        start += count
    return [storage.fetch("d", str(number)) for number in range(len(added))]


VIEWS = {
    "whole": lambda ref: ref,
    "slice": lambda ref: ref[1::2],
    "select": lambda ref: ref.select(np.argsort(np.arange(len(ref)) % 3, kind="stable")),
    "filter": lambda ref: ref.filter(is_odd, fields=("id",)),
    "map": lambda ref: ref.map(lambda record: {**record, "more": 1}),
    "fields": lambda ref: ref.fields("label", "id"),
    "several": lambda ref: ref.map(dict).filter(is_odd)[::2].fields("id", "label"),
}


def is_odd(record):
    return record["id"] % 2 == 1 if isinstance(record, dict) else record % 2 == 1


@pytest.mark.parametrize("by", [None, "label"])
@pytest.mark.parametrize("added", ADDED, ids=str)
def test_shares_of_a_version_begin_with_those_of_the_one_before(storage, added, by):
    refs = grown(storage, added)
    before = [[] for _ in range(3)]
    count = 0
    for ref, more in zip(refs, added, strict=True):
        shares = [ids(share) for share in ref.split(0.6, 0.3, seed=3, by=by, grows=True)]
        assert sorted(itertools.chain(*shares)) == list(range(count + more))
        for share, earlier, weight in zip(shares, before, (0.6, 0.3, 0.1), strict=True):
            assert share[: len(earlier)] == earlier
            assert abs(len(share) - len(earlier) - weight * more) <= 1
            assert all(number >= count for number in share[len(earlier) :])
        before, count = shares, count + more


def test_each_value_of_each_version_is_split_alike(storage):
    refs = grown(storage, (700, 350, 7 * 13))
    train, _ = refs[-1].split(0.8, seed=1, by="label", grows=True)
    found = np.array(ids(train))
    for start, stop in ((0, 700), (700, 1050), (1050, 1141)):
        its = found[(found >= start) & (found < stop)]
        assert np.abs(np.bincount(its % 7, minlength=7) - 0.8 * (stop - start) / 7).max() <= 1


def test_a_version_that_continues_none_is_split_as_ever(storage):
    (ref,) = grown(storage, (101,))
    plain = [ids(share) for share in numbers(101).split(0.8, seed=1)]
    for other, grows in itertools.product((numbers(101), ref), (None, True, False)):
        assert [ids(share) for share in other.split(0.8, seed=1, grows=grows)] == plain


def test_a_version_that_continues_others_wants_to_be_told(storage):
    _, ref = grown(storage, (10, 10))
    for view in VIEWS.values():
        with pytest.raises(ConfigurationError, match=r"'d' version '1' continues version '0'") as caught:
            view(ref).split(0.8, seed=2, by="id")
        for grows in ("True", "False"):
            assert f"ref.split(0.8, seed=2, by='id', grows={grows})" in str(caught.value)
    assert list(map(ids, ref.split(0.8, seed=2, grows=False))) == list(
        map(ids, numbers(20).split(0.8, seed=2))
    )


UNDIVIDED = {
    "joined": (lambda ref: yogadl.concat([numbers(3), ref.fields("id").map(dict)]), "split each, and"),
    "sample": (lambda ref: ref.sampled().at(0)[1:], "split the records first"),
    "chunks": (lambda ref: tokenised(ref).chunks("t", 2), "split the records first"),
    "windows": (lambda ref: ref.windows({"id": [-1, 0]}, None), "split the records first"),
    "packed": (
        lambda ref: tokenised(ref).packed(4, fields="t").at(0),
        "split the records first",
    ),
}


def tokenised(ref):
    spec = {"t": yogadl.Leaf("int64", (None,))}
    return ref.map(lambda record: {"t": np.arange(record["id"] % 3)}, spec=spec)


@pytest.mark.parametrize("name", UNDIVIDED)
def test_where_records_are_of_several_versions_grows_is_not_advised(storage, name):
    _, ref = grown(storage, (10, 10))
    view, advice = UNDIVIDED[name]
    with pytest.raises(ConfigurationError, match=f"For shares that .*, {advice}.*grows=False") as caught:
        view(ref).split(0.8, seed=2)
    assert "grows=True)" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=advice):
        view(ref).split(0.8, seed=2, grows=True)
    assert len(view(ref).split(0.8, seed=2, grows=False)) == 2


@pytest.mark.parametrize("by", [None, "label"])
def test_a_slice_that_is_an_earlier_version_is_split_as_that_one(storage, by):
    first, second, third = grown(storage, (100, 30, 71))
    wanted = [(share.fingerprint, ids(share)) for share in first.split(0.8, seed=2, by=by)]
    assert [len(numbers) for _, numbers in wanted] == [80, 20]
    for view in (third[:100], third[:130][:100], third[:100].map(dict), third.fields("id", "label")[:100]):
        for grows in (None, True, False):
            shares = view.split(0.8, seed=2, by=by, grows=grows)
            assert [(share.fingerprint, ids(share)) for share in shares] == wanted
    for view in (third[:130], yogadl.concat([third[:100], third]), third[:129]):
        with pytest.raises(ConfigurationError, match="continues version"):
            view.split(0.8)
    for old, new in zip(second.split(0.8, grows=True), third[:130].split(0.8, grows=True), strict=True):
        assert old.fingerprint == new.fingerprint


def test_records_of_several_versions_in_one_are_refused(storage):
    tokens = [{"tokens": np.arange(number % 5)} for number in range(20)]
    refs = storage.submit(tokens, "t", "0"), storage.append(tokens, "t", "1", base_version="0")
    chunks = [ref.chunks("tokens", 4) for ref in refs]
    views = [view for each in chunks for view in (each, each[1:], each.map(dict))]
    joined = [yogadl.concat([refs[1]] * parents)[3:] for parents in (1, 2)]
    for advice, refused in (("split the records first", views), ("split each, and call concat", joined)):
        for view in refused:
            with pytest.raises(ConfigurationError, match=advice):
                view.split(0.8, grows=True)


def test_versions_put_together_are_split_as_before(storage):
    refs = grown(storage, (50, 20, 9))
    storage.compact("d", "2", "2c")
    before, after = (ref.split(0.5, grows=True) for ref in (refs[-1], storage.fetch("d", "2c")))
    assert list(map(ids, before)) == list(map(ids, after))
