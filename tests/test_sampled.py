"""Records drawn with replacement: `ref.sampled`."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import RECORDS_LIMIT, sampled, whole_weights
from listed import Listed

import yogadl
from yogadl.errors import ConfigurationError, CursorError, StageError

COUNT = 60


def in_memory(count=COUNT, **fields):
    return yogadl.from_source({"id": np.arange(count), **fields}, fingerprint="n")


@pytest.fixture
def ref(storage):
    records = [{"id": n, "label": "rare" if n % 20 == 7 else "common", "w": n % 4} for n in range(COUNT)]
    storage.submit(records, "d", "1", build=yogadl.BuildOptions(part_bytes=500))
    return storage.fetch("d", "1")


def ids(records):
    return [int(record["id"]) for record in records]


# The draw.


def test_the_draw_of_version_1_is_frozen():
    assert ids(in_memory().sampled(records=8).stream(shuffle_seed=1)) == FROZEN[0]
    weights = np.arange(COUNT) / 7
    assert ids(in_memory().sampled(weights, records=8).stream(shuffle_seed=-(2**70))) == FROZEN[1]
    by = in_memory(label=np.arange(COUNT) // 50).sampled(by="label", records=8)
    assert ids(by.at(3)) == FROZEN[2]


FROZEN = [
    [43, 15, 26, 5, 18, 48, 49, 30],
    [56, 43, 26, 59, 44, 28, 59, 58],
    [57, 53, 14, 58, 30, 58, 55, 44],
]

some_weights = st.lists(
    st.one_of(st.sampled_from([0.0, 1.0, 5e-324, 1e-300, 1e300, 1.7e308, 0.1, 3.0]), st.floats(0, 1e3)),
    min_size=1,
    max_size=9,
).filter(any)


@given(some_weights, st.integers(0, 2**31), st.integers(1, 2**40))
def test_the_documented_program_is_the_library_s(stranger, weights, draw, records):
    whole = whole_weights(np.array(weights))
    assert whole.tolist() == stranger["whole_weights"](weights)
    assert 0 < int(whole.sum()) < 2**62
    numbers = np.array([0, 1, records // 2, records - 1])
    found = sampled(np.full(4, draw), numbers, np.cumsum(whole))
    assert found.tolist() == [stranger["sample_index"](int(i), draw, whole.tolist()) for i in numbers]


@pytest.mark.parametrize("weights", [[0, 1, 2, 3, 10.0], None, [0, 1e-300, 0]])
def test_records_come_as_often_as_they_weigh(weights):
    whole = np.array(weights or [1] * 4)
    counts = Counter(ids(in_memory(len(whole)).sampled(weights, records=16_000).stream()))
    assert sum(counts.values()) == 16_000
    for number, share in enumerate(whole / whole.sum()):
        assert abs(counts[number] - 16_000 * share) <= 5 * (16_000 * share * (1 - share)) ** 0.5


def test_values_of_a_field_come_equally_often(ref):
    found = Counter(record["label"] for record in ref.sampled(by="label", records=10_000).stream())
    assert abs(found["rare"] - 5000) < 250
    rare = Counter(ids(r for r in ref.sampled(by="label", records=9000) if r["label"] == "rare"))
    assert set(rare) == {7, 27, 47}
    assert all(abs(count - 1500) < 200 for count in rare.values())


def test_a_shuffle_is_of_the_draw_of_its_epoch(ref):
    """And epochs and seeds draw others: `together/test_algebra.py` compares them with the page's program."""
    sample = ref.sampled(records=40)
    first, second = (ids(sample.at(epoch, seed=5)) for epoch in range(2))
    assert first != second
    shuffled = ids(sample.stream(shuffle_seed=5, shuffle=True))
    assert shuffled != first
    assert sorted(shuffled) == sorted(first)
    same = sample.stream(shuffle_seed=5, skip_shuffle_at_epoch_end=True)
    assert ids(same) == ids(same) == first


@pytest.mark.parametrize("records", [1, COUNT, COUNT + 1, 1000])
def test_an_epoch_has_as_many_records_as_asked_for(ref, records):
    found = ref.sampled("w", records=records)
    assert len(found) == records
    read = list(found.stream(shuffle=True))
    assert len(read) == records
    assert all(record["w"] > 0 for record in read)
    assert len(ref.sampled()) == COUNT


# What it takes.


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda ref: ref.sampled([1, 2]), r"one number for each of 60 records, not of shape \(2,\)"),
        (lambda ref: ref.sampled(3), "not of shape"),
        (lambda ref: ref.sampled([-1] + [1] * 59), "a finite number, 0 or more"),
        (lambda ref: ref.sampled([np.nan] + [1] * 59), "a finite number, 0 or more"),
        (lambda ref: ref.sampled([np.inf] + [1] * 59), "a finite number, 0 or more"),
        (lambda ref: ref.sampled([0] * 60), "one of them is more than 0"),
        (lambda ref: ref.sampled(["a"] * 60), "one number for each record, or the name of a field"),
        (lambda ref: ref.sampled(["1"] * 60), "one number for each record, or the name of a field"),
        (lambda ref: ref.sampled([1j] * 60), "one number for each record, or the name of a field"),
        (lambda ref: ref.sampled("label"), "weights='label' is str: a weight is a number"),
        (lambda ref: ref.sampled("none"), "there is no field 'none'"),
        (lambda ref: ref.sampled(by="none"), "there is no field 'none'"),
        (lambda ref: ref.sampled("w", by="label"), "weights= or by=, not both"),
        (lambda ref: ref.sampled(records=0), "records must be"),
        (lambda ref: ref.sampled(records=2.5), "records must be"),
        (lambda ref: ref.sampled(records=2**62 + 1), "at most 2"),
        (lambda ref: ref[:0].sampled(), "no records to sample from"),
        (lambda ref: ref.sampled()[0], r"no \[...\]: each epoch has other records"),
        (lambda ref: ref.sampled().stream(shuffle=yogadl.Blocks(2, 2)), "can't be read in blocks"),
        (lambda ref: yogadl.concat([ref.sampled(), ref]), "sampled records can't be joined"),
    ],
)
def test_what_makes_no_sense_is_refused(ref, call, says):
    with pytest.raises(ConfigurationError, match=says):
        call(ref)


def test_what_it_has_not_is_told(ref):
    with pytest.raises(AttributeError, match=r"sampled records have no filter.*before you sample them"):
        ref.sampled().filter(bool)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        ref.sampled().other()


def test_as_many_records_as_indices_can_count():
    found = in_memory(3).sampled(records=RECORDS_LIMIT)
    assert len(found) == 2**62
    assert found.at(0).gather([2**62 - 1])["id"][0] in (0, 1, 2)


# What it is good for.


def test_a_cursor_of_another_sample_is_refused(ref):
    iterator = iter(ref.sampled("w").stream().batch(5))
    next(iterator)
    for other in (ref.sampled(), ref.sampled("w", records=COUNT + 1)):
        with pytest.raises(CursorError):
            other.stream(cursor=iterator.state_dict())


def test_records_are_known_by_their_indices_in_the_data(ref):
    iterator, count = iter(ref.fields("id").sampled(records=9).stream(shuffle=True).batch(4)), 0
    for batch in iterator:
        count += len(batch["id"])
        assert iterator.last.indices.tolist() == batch["id"].tolist()
        assert iterator.last.documents == []
    assert count == 9


def odd(record):
    if record["id"] % 2 == 0:
        raise ValueError("even")
    return record["id"]


@pytest.mark.parametrize("view", ["sampled", "fields", "map"])
def test_another_of_the_epoch_comes_in_the_place_of_one_that_fails_whose_file_is_told(view):
    sample = yogadl.from_source(Listed(range(COUNT)), fingerprint="f").sampled()
    if view != "sampled":
        sample = sample.fields("id") if view == "fields" else sample.map(dict)
    loader = sample.stream(shuffle=True).map(odd, on_error="substitute").batch(7)
    evens = set()
    for epoch in range(2):
        drawn = ids(sample.at(epoch))
        found = np.concatenate(list(loader.at(epoch)))
        assert len(found) == COUNT
        assert set(found.tolist()) <= {number for number in drawn if number % 2}
        evens |= {number for number in drawn if number % 2 == 0}
    assert {rejected.index for rejected in loader.rejected()} >= evens
    assert {rejected.index % 2 for rejected in loader.rejected()} == {0}
    assert all(rejected.file == f"{rejected.index}.png" for rejected in loader.rejected())
    with pytest.raises(StageError) as caught:
        list(sample.stream().map(odd, spec=yogadl.Leaf("int64")))
    assert f"{caught.value.record}.png" in caught.value.__notes__[0]


def test_of_fewer_records_there_is_no_such_sample(ref):
    sample = ref.sampled(by="label")._records
    assert sample.over(ref[:-1]._records) is sample
    assert sample.over(ref.fields("label", "id")._records) is not sample
