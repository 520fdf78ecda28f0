"""Several records made of each: `ref.flat_map`."""

import logging
import os
import re
import threading

import numpy as np
import pytest
from filter_functions import halves
from hypothesis import given
from hypothesis import strategies as st
from inside import _filter, set_constants
from xxhash import xxh3_128_digest

import yogadl
from yogadl.errors import ConfigurationError, CursorError, StageError
from yogadl.storage import copy

COUNT = 40


def pieces(record):
    return [{"id": record["id"], "piece": n} for n in range(int(record["id"]) % 4)]


def pieces_of(numbers):
    return [(n, piece) for n in numbers for piece in range(n % 4)]


@pytest.fixture
def ref(storage):
    storage.submit(
        {"id": np.arange(COUNT), "x": np.ones((COUNT, 20))},
        "d",
        "1",
        build=yogadl.BuildOptions(part_bytes=1000),
    )
    return storage.fetch("d", "1")


def pairs(records):
    return [(int(record["id"]), int(record["piece"])) for record in records]


WHOLE = pieces_of(range(COUNT))


# What comes of it.


def test_it_has_a_spec_and_no_lineage(ref):
    flat = ref.flat_map(pieces)
    assert pairs(flat) == WHOLE
    assert flat.lineage is None
    assert flat.spec.fields[1].name == "piece"


@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 1000), max_size=20), st.booleans())
def test_any_numbers_of_pieces_are_found(counts, chosen, is_counted):
    numbered = yogadl.from_source(np.array([*counts, 2]), fingerprint="n")
    flat = numbered.flat_map(lambda count: list(range(count)), **({"count": int} if is_counted else {}))
    wanted = [piece for count in [*counts, 2] for piece in range(count)]
    assert len(flat) == len(wanted)
    assert [int(piece) for piece in flat] == wanted
    indices = [index % len(wanted) for index in chosen]
    assert flat.gather(indices).tolist() == [wanted[index] for index in indices]
    assert sorted(map(int, flat.stream(shuffle=True))) == sorted(wanted)


@pytest.mark.parametrize("made", [list, tuple, np.array, type("Own", (list,), {})])
def test_any_sequence_of_records_is_taken(made):
    ref = yogadl.from_source(np.arange(4)).flat_map(lambda n: made([np.array([n, 0.5])] * int(n)))
    assert len(ref) == 6
    assert ref.gather(range(6)).tolist() == [[n, 0.5] for n in (1, 2, 2, 3, 3, 3)]


def test_records_without_pieces_leave_nothing(ref):
    with pytest.raises(ConfigurationError, match="pass its spec="):
        _ = ref.flat_map(lambda record: []).spec
    assert list(ref.flat_map(lambda record: [])) == []
    none = ref.flat_map(lambda record: [], spec=ref.fields("id").spec)
    assert len(none) == 0
    assert list(none) == []
    assert list(ref[:0].flat_map(pieces, spec=ref.spec)) == []


def test_fields_are_the_only_ones_that_are_read(ref):
    seen = []

    def see(record):
        seen.append(record.keys())
        return pieces(record)

    assert pairs(ref.flat_map(see, fields=("id",))) == WHOLE
    assert {tuple(keys) for keys in seen} == {("id",)}


def test_a_cursor_of_other_pieces_is_refused(ref):
    with pytest.raises(CursorError):
        ref.flat_map(lambda record: [record] * 2).stream(cursor=ref.flat_map(pieces).stream().cursor(3))


def test_a_function_after_it_may_change_what_it_gets_in_place(ref):
    def windows(record):
        values = np.arange(6.0) + 10 * record["id"]
        return [{"x": values[start : start + 4]} for start in range(3)] + [{"x": values[:4]}] * 2

    def centred(record):
        record["x"] -= record["x"][0]
        return record

    for flat in (ref.flat_map(windows).map(centred), ref.flat_map(windows).map(dict).map(centred)):
        assert len(flat) == 5 * COUNT
        for x in (
            flat.gather(range(5 * COUNT))["x"],
            np.array([record["x"] for record in flat]),
            flat.gather([4, 3, 3, 0] * 50 * COUNT)["x"],
            np.concatenate([batch["x"] for batch in flat.stream(shuffle=True).batch(7)]),
        ):
            assert len(x) >= 5 * COUNT
            assert (x == np.arange(4.0)).all()


def test_what_it_gives_shares_no_memory(ref):
    base = np.arange(9.0)
    spec = {"x": yogadl.Leaf("float64", (None,))}
    flat = ref.flat_map(lambda record: [{"x": base[: 3 + n]} for n in range(3)], spec=spec)
    found = flat.gather([0, 0, 1, 2])["x"]
    assert list(map(len, found)) == [3, 3, 4, 5]
    assert not any(
        np.shares_memory(one, other) for one in [*found, base] for other in found if one is not other
    )


def test_a_shape_that_varies_is_said_with_the_name_of_the_function(ref):
    flat = ref.flat_map(lambda record: [np.zeros(1 + int(record["id"]) % 2)])
    with pytest.raises(StageError, match=r"write flat_map\(\.\.\., spec="):
        list(flat)


# How often the functions are called.


def test_pieces_that_are_read_together_share_a_call(ref):
    calls = []

    def note(record):
        calls.append(int(record["id"]))
        return pieces(record)

    flat = ref.flat_map(note)
    assert calls == list(range(COUNT))
    assert flat.spec.fields[0].name == "id"  # found out from one more call
    calls.clear()
    flat.gather([3, 4, 0, 5])  # of records 3, 3, 1 and 3
    assert calls == [1, 3]
    calls.clear()
    assert pairs(flat) == WHOLE
    assert calls == [n for n in range(COUNT) if n % 4]


@pytest.mark.parametrize(("count", "names"), [(None, "locked"), (len, "locked or len")])
def test_counts_that_are_kept_in_memory_are_named_by_their_functions(ref, caplog, count, names):
    lock = threading.Lock()  # which has no description

    def locked(record):
        with lock:
            return pieces(record)

    with caplog.at_level(logging.DEBUG, "yogadl"):
        ref.flat_map(locked, count=count)
    (said,) = caplog.records
    assert re.match(rf"yogadl: what {names} counted is kept only in memory", said.getMessage())


def test_counts_are_kept_beside_the_cache(ref, storage, tmp_path):
    ref.flat_map(halves, fields="id")
    before = ref.flat_map(pieces, count=len_of_id).fingerprint
    plans = list((tmp_path / "caches").rglob("*.plan"))
    assert len(plans) == 2
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(_filter, "results_of", None)
        monkeypatch.setattr("yogadl._views.flat.results_of", None)
        assert ref.flat_map(pieces, count=len_of_id).fingerprint == before
        with pytest.raises(TypeError):
            ref.flat_map(pieces, count=other_count)
    other = yogadl.open_storage(tmp_path / "copy")
    copy(storage, other, "d", "1")
    assert len(list((tmp_path / "copy").rglob("*.plan"))) == 2
    plans[0].write_bytes(plans[0].read_bytes()[:-1])
    plans[1].write_bytes(b"")
    assert ref.flat_map(pieces, count=len_of_id).fingerprint == before


def test_kept_counts_that_are_no_counts_are_made_again(ref, tmp_path):
    wanted = pairs(ref.flat_map(pieces))
    [plan] = (tmp_path / "caches").rglob("*.plan")
    name, content = plan.read_bytes()[:64], plan.read_bytes()[80:]
    integers = np.frombuffer(content, "<i8", 2, 8)
    assert content[:8] == b"pieces1\n"
    assert integers.tolist() == [COUNT, 3]
    counts = np.frombuffer(content, "<u4", COUNT, 24)
    other = np.roll(counts, 1)
    for bad in (
        b"",
        b"packs-1\n" + content[8:],
        content[:-4],
        content + bytes(8),
        content[:8] + np.array([COUNT - 2, 3]).tobytes() + content[24:-8],
        content[:8] + np.array([-1, 3]).tobytes() + content[24:],
        content[:8] + np.array([COUNT, 2]).tobytes() + content[24:],
        content[:8] + np.array([COUNT, 2**62]).tobytes() + np.full(COUNT, 2**61, "<u8").tobytes(),
    ):
        plan.write_bytes(name + xxh3_128_digest(bad) + bad)
        assert pairs(ref.flat_map(pieces)) == wanted
        assert plan.read_bytes()[80:] == content
    plan.write_bytes(name + xxh3_128_digest(content[:24] + other.tobytes()) + content[:24] + other.tobytes())
    with pytest.raises(StageError, match="and 3 were counted"):  # sound, but of another function
        list(ref.flat_map(pieces))


@pytest.mark.parametrize("most", [2**32 - 2, 2**32 - 1, 2**32])
def test_counts_of_any_size_are_kept(ref, tmp_path, most):
    def count(record):
        return most if record["id"] == 7 else 1

    flat = ref.flat_map(lambda record: range(count(record)), count=count, spec=yogadl.Leaf("int64"))
    assert len(flat) == most + COUNT - 1
    [plan] = (tmp_path / "caches").rglob("*.plan")
    os.utime(plan, ns=(1, 1))
    again = ref.flat_map(lambda record: range(count(record)), count=count, spec=yogadl.Leaf("int64"))
    assert [int(n) for n in (again[6], again[8], again[6 + most], again[7 + most])] == [0, 1, most - 1, 0]
    assert plan.stat().st_mtime_ns == 1  # it was not made again


def len_of_id(record):
    return int(record["id"]) % 4


def other_count(record):
    return int(record["id"]) % 4 + 0


# Workers.


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_count_the_same(ref, workers, request):
    if workers == 1:
        request.getfixturevalue("forked_workers")
    assert pairs(ref.select(range(COUNT)).flat_map(pieces, workers=workers)) == WHOLE

    def fail(record):
        if record["id"] > 12:
            raise ValueError("no")
        return pieces(record)

    with pytest.raises(StageError, match=r"^flat_map\(fail\) failed at record 13: ValueError: no") as caught:
        ref.flat_map(fail, workers=workers)
    assert caught.value.record == 13


# What goes wrong.


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (None, "TypeError: it must return a list of records, or another sequence, not None"),
        ("text", "not 'text'"),
        ({"a": 1}, "not {'a': 1}"),
        (7, "not 7"),
        (iter([1]), "not <list_iterator"),
    ],
)
def test_what_is_no_list_is_refused(ref, made, says):
    with pytest.raises(StageError) as caught:
        ref.flat_map(lambda record: made if record["id"] == 21 else [])
    assert says in str(caught.value)
    assert caught.value.record == 21


@pytest.mark.parametrize("said", [-1, True, 1.0, None, "3", 2**62 + 1])
def test_what_is_no_count_is_refused(ref, said):
    with pytest.raises(StageError, match=r"^count of flat_map\(<lambda>\) failed at record 2") as caught:
        ref.flat_map(pieces, count=lambda record: said if record["id"] == 2 else np.int64(1))
    assert caught.value.record == 2


def test_another_number_than_was_counted_is_an_error_that_names_the_record(ref):
    flat = ref.flat_map(pieces, count=lambda record: 2 if record["id"] > 3 else record["id"] % 4)
    assert pairs([flat[0], flat[5], flat[10]]) == [(1, 0), (3, 2), (6, 0)]
    for index, made, record in ((6, 0, 4), (8, 1, 5), (12, 3, 7)):
        with pytest.raises(
            StageError, match=f"returned {made} records for record {record}, and 2 were"
        ) as caught:
            flat.gather([index, index + 1])
        assert caught.value.record == index


def test_a_function_that_fails_when_it_is_read_names_both_records(ref, tmp_path):
    def fail(record):
        if record["id"] == 3:
            raise OSError("broken")
        return pieces(record)

    flat = ref.flat_map(fail, count=len_of_id)
    with pytest.raises(StageError) as caught:
        list(flat)
    assert "failed at record 3, of which record 3 of the result is a piece: OSError: broken" in str(
        caught.value
    )
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(StageError, match="at record 3"):
        list(flat.stream().batch(4).prefetch(2, threads=2))


def test_pieces_that_are_not_alike_are_an_error_of_the_first_of_them(ref):
    flat = ref.flat_map(lambda record: [np.zeros(1 + int(record["id"]) // 30)] * 2)
    with pytest.raises(StageError, match="not like the first") as caught:
        list(flat)
    assert caught.value.record == 60


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (3, {}, "flat_map takes a function of one argument"),
        (pieces, {"count": 3}, "count is a function of one argument"),
        (pieces, {"workers": -1}, "workers"),
        (pieces, {"fields": ("y",)}, "there is no field 'y'"),
        (pieces, {"count": lambda record: 2**62}, r"more than 2\*\*62 records"),
    ],
)
def test_what_makes_no_sense_is_refused(ref, function, options, says):
    with pytest.raises(ConfigurationError, match=says):
        ref.flat_map(function, **options)


@pytest.mark.parametrize("at_once", [1, 2, 39, 40, 41])
def test_any_number_of_records_is_counted_at_a_time(ref, at_once, monkeypatch):
    set_constants(monkeypatch, CHOSEN_READ_RECORDS=at_once)
    assert pairs(ref.flat_map(pieces)) == WHOLE
