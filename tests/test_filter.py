"""`ref.filter`: the records that a function is true of, worked out once."""

import pickle
import threading
from functools import partial

import numpy as np
import pytest
from filter_functions import OwnError, PicklesNot, is_small
from inside import _filter, set_constants
from processes import children, fork, wait
from trees import assert_equal

import yogadl
from yogadl.errors import ConfigurationError, StageError

RECORDS = 101


def arrays(records=RECORDS):
    return {"label": np.arange(records) % 7, "x": np.arange(records * 2.0).reshape(records, 2)}


@pytest.fixture
def ref(storage):
    storage.submit(arrays(), "d", "1", build=yogadl.BuildOptions(part_bytes=1000))
    return storage.fetch("d", "1")


def is_same(found, wanted):
    """Return whether two references have the same records in the same order, and say so of themselves."""
    return (
        found.fingerprint == wanted.fingerprint
        and len(found) == len(wanted)
        and np.array_equal(found.gather(range(len(found)))["x"], wanted.gather(range(len(wanted)))["x"])
    )


# What is selected.


def test_a_filter_is_a_selection_by_its_mask(ref):
    mask = arrays()["label"] < 3
    assert is_same(ref.filter(is_small), ref.select(mask))
    assert is_same(ref.filter(is_small, fields=("label",)), ref.select(mask))
    assert is_same(ref.filter(is_small, ("label",)), ref.select(mask))


def test_the_function_gets_records_as_the_reference_gives_them(ref):
    seen = []
    ref.filter(lambda record: seen.append(record) or True)
    assert_equal(seen, list(ref))


@pytest.mark.parametrize("names", [("label",), ["label"], ("label", "x"), ("x", "label"), "label"])
def test_the_function_gets_the_fields_asked_for_and_these_alone_are_read(ref, names, monkeypatch):
    read = []
    reader = type(ref._records.open()[1])
    columns = reader.columns
    monkeypatch.setattr(
        reader, "columns", lambda self, i, f=None, m=None: read.append(f) or columns(self, i, f, m)
    )
    keys = []
    found = ref.filter(lambda record: keys.append(list(record)) or True, fields=names)
    wanted = [names] if isinstance(names, str) else list(names)
    assert keys == [wanted] * RECORDS
    assert {tuple(fields) for fields in read} == {tuple(["label", "x"].index(name) for name in wanted)}
    assert found[0].keys() == {"label", "x"}  # what is selected has all fields


def test_a_single_value_has_no_fields_but_can_be_filtered():
    ref = yogadl.from_source(np.arange(20))
    assert ref.filter(lambda value: bool(value % 2)).gather([0, -1]).tolist() == [1, 19]
    with pytest.raises(ConfigurationError, match="single value"):
        ref.filter(is_small, fields=("label",))


READ, READ_BYTES = _filter._READ_RECORDS, _filter._READ_BYTES


@pytest.mark.parametrize("records", [1, 2, READ - 1, READ, READ + 1, 3 * READ + 5])
@pytest.mark.parametrize("kept", ["none", "all", "the first", "the last", "some"])
def test_any_number_of_records_is_read_to_its_end(records, kept):
    numbers = np.arange(records)
    mask = {
        "none": numbers < 0,
        "all": numbers >= 0,
        "the first": numbers == 0,
        "the last": numbers == records - 1,
        "some": numbers % 3 == 1,
    }[kept]
    ref = yogadl.from_source({"x": numbers}, fingerprint="numbers")
    found = ref.filter(lambda record: mask[record["x"]])
    assert len(found) == mask.sum()
    assert is_same(found, ref.select(mask))


@pytest.mark.parametrize(
    ("size", "at_once"),
    [
        (READ_BYTES // 2 - 8, 2),
        (READ_BYTES // 2, 2),
        (READ_BYTES // 2 + 8, 1),
        (READ_BYTES, 1),
        (3 * READ_BYTES, 1),
    ],
)
def test_large_records_are_read_a_few_at_a_time(size, at_once):
    counts = []

    class Large:
        def __len__(self):
            return 9

        def __getitems__(self, indices):
            counts.append(len(indices))
            return [{"x": np.full(size // 8, i, np.float64)} for i in indices]

        def __getitem__(self, index):
            return self.__getitems__([index])[0]

    ref = yogadl.from_source(Large())
    counts.clear()
    assert len(ref.filter(lambda record: record["x"][0] > 4)) == 4
    assert counts == [at_once] * (9 // at_once) + [1] * (9 % at_once)


def test_of_no_records_none_are_selected_and_nothing_is_called(ref):
    def fail(record):
        raise AssertionError

    for empty in (ref[:0], ref[:0].map(fail, spec=ref.spec)):
        for options in ({}, {"workers": 2}, {"fields": "x", "workers": 1}):
            assert len(empty.filter(fail, **options)) == 0
    assert list(ref[:0].filter(fail).stream(shuffle=True).batch(4)) == []
    assert is_same(ref.filter(lambda record: False), ref.select([]))
    with pytest.raises(ConfigurationError, match="pass its spec="):
        ref[:0].map(fail).filter(fail)


# Views.


def test_views_of_equal_fingerprints_do_not_share_what_was_selected(ref):
    plus, minus = ref.map(lambda r: {"label": r["label"] + 1}), ref.map(lambda r: {"label": r["label"] - 1})
    assert plus.fingerprint == minus.fingerprint == ref.fingerprint
    assert len({len(each.filter(is_small)) for each in (ref, plus, minus)}) == 3


def test_the_same_fields_under_another_function_or_other_fields_under_the_same_are_told_apart(storage):
    storage.submit({"a": np.arange(9), "b": np.arange(9)[::-1].copy()}, "d", "1")
    ref = storage.fetch("d", "1")

    def first_is_small(record):
        return next(iter(record.values())) < 3

    a, b = (ref.filter(first_is_small, fields=(name,)) for name in "ab")
    assert [r["a"] for r in a] == [0, 1, 2]
    assert [r["a"] for r in b] == [6, 7, 8]
    assert [r["a"] for r in ref.fields("b", "a").filter(first_is_small)] == [6, 7, 8]
    assert [r["a"] for r in ref.fields("a", "b").filter(first_is_small)] == [0, 1, 2]


def test_a_filter_of_what_is_mapped_with_another_spec_is_another(ref):
    def shape(record):
        return {"text": str(record["label"]), "n": record["x"]}

    def has_two(record):
        return np.shape(record["n"]) == (2,)

    plain = ref.map(shape)
    varying = ref.map(shape, spec={"n": yogadl.Leaf("float64", (None,))})
    assert len(plain.filter(has_two)) == len(varying.filter(has_two)) == RECORDS


# Streams over it.


def test_a_cursor_of_another_filter_is_refused(ref):
    iterator = iter(ref.filter(is_small).stream().batch(5))
    next(iterator)
    with pytest.raises(yogadl.errors.CursorError):
        ref.filter(lambda record: record["label"] < 4).stream(cursor=iterator.state_dict())


def test_it_pickles_and_reads_in_a_fork(ref):
    found = ref.filter(is_small)
    assert is_same(pickle.loads(pickle.dumps(found)), found)
    wanted = list(found.stream(shuffle=True).batch(6))[2]["x"].tolist()

    def child():
        assert list(found.stream(shuffle=True).batch(6))[2]["x"].tolist() == wanted
        assert is_same(ref.filter(is_small), found)
        assert len(ref.filter(lambda record: record["label"] == 6)) == 14

    assert wait(fork(child)) == 0


# Records that fail.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("broken", [(), (0,), (RECORDS - 1,), (3, 4, 57), range(RECORDS)])
@pytest.mark.usefixtures("forked_workers")
def test_records_for_which_it_raises_are_left_out_if_asked_to(ref, caplog, workers, broken):
    def choose(record):
        if record["x"][0] // 2 in broken:
            raise OSError(f"broken {record['x'][0]}")
        return is_small(record)

    found = ref.filter(choose, workers=workers, on_error="skip")
    mask = (arrays()["label"] < 3) & ~np.isin(np.arange(RECORDS), list(broken))
    assert found.fingerprint == ref.select(mask).fingerprint
    said = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    wanted = f"yogadl: filter(choose) left out {len(broken)} of {RECORDS} records: the first is record"
    assert said == [f"{wanted} {first}: OSError: broken {2.0 * first}" for first in broken[:1]]


@pytest.mark.parametrize("workers", [0, 2])
def test_records_that_can_t_be_mapped_are_left_out_if_asked_to(ref, caplog, workers):
    def inverse(record):
        return {"inverse": 6 // int(record["label"])}  # fails for 0

    found = ref.map(inverse, on_error="skip", workers=workers)
    labels = arrays()["label"]
    assert found.gather(range(len(found)))["inverse"].tolist() == (6 // labels[labels > 0]).tolist()
    assert "map(inverse) left out 15 of 101 records: the first is record 0: ZeroDivisionError" in caplog.text
    caplog.clear()
    again = ref.map(inverse, on_error="skip")  # kept beside the cache
    assert again.fingerprint == found.fingerprint == ref.select(labels > 0).fingerprint
    assert not caplog.text
    numbers = ref.map(lambda record: record["label"]).map(lambda label: 6 // label, on_error="skip")
    assert len(numbers) == len(found)


def test_what_is_skipped_is_told_apart_from_what_is_not(ref):
    def choose(record):
        if record["label"] == 5:
            raise ValueError
        return bool(record["label"] < 3)

    found = ref.filter(choose, on_error="skip")
    assert len(found) < len(ref.map(choose, on_error="skip")) < RECORDS
    with pytest.raises(StageError, match="failed at record 5"):
        ref.filter(choose)
    assert ref.filter(choose, on_error="skip").fingerprint == found.fingerprint


def test_what_it_returns_and_other_functions_errors_are_never_skipped(ref):
    def broken(record):
        raise OSError

    with pytest.raises(StageError, match="for record 0 it returned None"):
        ref.filter(lambda record: None, on_error="skip")
    mapped = ref.map(broken, spec=ref.spec)
    with pytest.raises(StageError, match=r"map\(broken\) failed at record 0"):
        mapped.filter(is_small, on_error="skip")


# What the function may do.


@pytest.mark.parametrize(("yes", "no"), [(True, False), (np.True_, np.False_), (True, np.False_)])
def test_python_and_numpy_booleans_are_taken(ref, yes, no):
    found = ref.filter(lambda record: yes if record["label"] < 3 else no)
    assert is_same(found, ref.filter(is_small))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "returned None: does it end without `return`?"),
        (0, "returned 0: give bool"),
        (1, "returned 1: give bool"),
        (1.0, "returned 1.0: give bool"),
        ("yes", "returned 'yes': give bool"),
        ([], "returned []: give bool"),
        (np.int64(1), "give bool"),
        (np.array(True), "give bool"),
        (np.array([True]), "give bool"),
        (np.zeros(3, bool), "give bool"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("at", [0, 57, RECORDS - 1])
def test_anything_but_a_boolean_is_refused_with_its_record(ref, value, said, at):
    numbers = ref.map(lambda record: {"n": np.int64(record["x"][0] // 2)})
    with pytest.raises(StageError) as caught:
        numbers.filter(lambda record: value if record["n"] == at else True)
    assert caught.value.record == at
    assert f"for record {at} it returned" in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("kind", [ValueError, KeyError, StopIteration, PicklesNot, partial(OwnError, two=2)])
@pytest.mark.parametrize("at", [0, 40, RECORDS - 1])
def test_what_the_function_raises_is_the_cause_of_a_stage_error(ref, kind, at):
    def choose(record):
        if record["x"][0] >= 2 * at:
            raise kind("no")
        return True

    with pytest.raises(StageError, match=rf"^filter\(choose\) failed at record {at}: \w+: '?no") as caught:
        ref.filter(choose)
    assert caught.value.record == at
    assert type(caught.value.__cause__) is getattr(kind, "func", kind)


def test_the_first_record_that_fails_is_told_however_it_fails(ref):
    def choose(record):
        number = record["x"][0] // 2
        if number == 30:
            return None
        if number > 30:
            raise ValueError("later")
        return True

    def mapped(record):
        if record["x"][0] // 2 == 60:
            raise KeyError("still later")
        return record

    for each in (ref, ref.map(mapped)):
        with pytest.raises(StageError, match="record 30 it returned None"):
            each.filter(choose)
    with pytest.raises(StageError, match=r"map\(mapped\) failed at record 60") as caught:
        ref.map(mapped).filter(is_small)
    assert type(caught.value.__cause__) is KeyError


@pytest.mark.parametrize("way", ["filter", "map", "flat_map"])
@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_other_ends_of_the_function_pass_through(ref, way, end):
    def stop(record):
        raise end

    with pytest.raises(end):
        getattr(ref, way)(stop, **({"on_error": "skip"} if way != "flat_map" else {}))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        *[({"fields": names}, "field") for names in ((), ("nothing",), ("label", "label"))],
        *[({"fn": fn}, "a function of one argument, a record")
          for fn in (None, "label", 3, [True] * RECORDS, np.ones(RECORDS, bool))],
        *[({"workers": workers}, "workers must be a whole number") for workers in (-1, 1.5, "2", None, True)],
        *[({"on_error": value}, 'on_error must be "raise" or "skip"') for value in ("substitute", None)],
        ({"num_workers": 2}, "did you mean workers="),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(ref, options, says):
    with pytest.raises(ConfigurationError, match=says):
        ref.filter(**{"fn": is_small, **options})


@pytest.mark.parametrize(
    ("fn", "options", "says"),
    [
        (dict, {"on_error": "substitute"}, 'on_error must be "raise" or "skip"'),
        (dict, {"on_error": None}, 'on_error must be "raise" or "skip"'),
        (dict, {"workers": 2}, "workers of map"),
        (3, {"on_error": "skip"}, "map takes a function of one argument"),
    ],
)
def test_what_makes_no_sense_is_refused_by_map_too(ref, fn, options, says):
    with pytest.raises(ConfigurationError, match=says):
        ref.map(fn, **options)


# Workers.


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_select_the_same_and_are_gone_afterwards(ref, workers):
    before = children()
    assert is_same(ref.filter(is_small, workers=workers), ref.select(arrays()["label"] < 3))
    with pytest.raises(StageError, match="for record 0 it returned None") as caught:
        ref.filter(lambda record: None, workers=workers)
    assert caught.value.__cause__ is None
    assert children() == before


@pytest.mark.parametrize(
    ("records", "constants"),
    [
        *[(records, {}) for records in (1, 2, 64, 65)],  # fewer than tasks are enough
        *[(records, {"TASKS": 1, "TASK_RECORDS": 8}) for records in (7, 8, 9, 31, 32, 33)],
    ],
)
@pytest.mark.usefixtures("forked_workers")
def test_tasks_of_any_number_of_records_end_where_the_next_begins(records, constants, monkeypatch):
    set_constants(monkeypatch, **constants)
    ref = yogadl.from_source({"x": np.arange(records)}, fingerprint="numbers")
    assert [r["x"] for r in ref.filter(lambda r: r["x"] % 2 == 0, workers=2)] == list(range(0, records, 2))


def test_workers_call_lambdas_local_functions_and_objects_on_views(ref):
    least = 2

    class Between:
        def __init__(self, most):
            self.most = most

        def __call__(self, record):
            return least <= record["label"] < self.most

    view = ref.map(lambda record: {"label": record["label"], "x": record["x"]})[5:95].fields("x", "label")
    wanted = [r["x"].tolist() for r in view if 2 <= r["label"] < 4]
    assert [r["x"].tolist() for r in view.filter(Between(4), workers=2)] == wanted


@pytest.mark.parametrize("kind", [ValueError, StopIteration, PicklesNot, partial(OwnError, two=2)])
def test_an_error_in_a_worker_is_that_of_the_first_record_with_the_workers_traceback(ref, kind, request):
    def choose(record):
        if record["x"][0] >= 2 * 33:
            raise kind("no")
        return True

    if kind is not ValueError:
        request.getfixturevalue("forked_workers")
    with pytest.raises(StageError, match=r"^filter\(choose\) failed at record 33: \w+: '?no") as caught:
        ref.filter(choose, workers=3)
    assert (caught.value.record, caught.value.stage) == (33, 0)
    assert type(caught.value.__cause__) is (kind if kind in (ValueError, StopIteration) else RuntimeError)
    (note,) = caught.value.__cause__.__notes__
    assert "in a worker process of filter" in note
    assert "in choose" in note


def test_what_does_not_pickle_can_not_be_sent_to_workers(ref):
    lock = threading.Lock()
    with pytest.raises(ConfigurationError, match="can't be sent to workers"):
        ref.filter(lambda record: lock is not None, workers=2)
