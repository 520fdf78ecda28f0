"""Records without a cache, and views: nothing copied, everything read as of a cache."""

import itertools

import numpy as np
import pytest
from indexed import Batched, Items
from listed import Listed
from trees import assert_same

import yogadl
from yogadl.errors import ConfigurationError, StageError, UnsupportedDataError


def records(count):
    return [
        {
            "n": n,
            "x": np.full((2, 3), n, np.float32),
            "t": f"t{n}",
            "deep": {"a": (n, -n)},
            "r": np.arange(n % 3),
        }
        for n in range(count)
    ]


def columns(count):
    rows = records(count)
    return {
        "n": np.arange(count),
        "x": np.stack([row["x"] for row in rows]),
        "t": [row["t"] for row in rows],
        "deep": {"a": np.arange(count)},
        "r": [row["r"] for row in rows],
    }


@pytest.mark.parametrize("make", [list, Items, Batched])
def test_an_object_is_read_where_it_is(make):
    ref = yogadl.from_source(make(records(20)))
    assert len(ref) == 20
    for found, expected in zip(ref, records(20), strict=True):
        assert_same(found, expected)
    batch = ref.gather([3, -1, 3])
    assert batch["n"].tolist() == [3, 19, 3]
    assert batch["x"].shape == (3, 2, 3)
    assert batch["x"].flags.writeable
    assert [array.shape for array in batch["r"]] == [(0,), (1,), (0,)]
    assert batch["t"] == ["t3", "t19", "t3"]


def test_arrays_are_read_by_column():
    source = columns(50)
    ref = yogadl.from_source(source)
    batch = ref.gather([3, 1])
    assert_same(batch["x"], source["x"][[3, 1]])
    batch["x"][:] = -1
    assert source["x"][3, 0, 0] == 3
    record = ref[7]
    record["x"][:] = -1
    assert source["x"][7, 0, 0] == 7
    assert isinstance(batch["r"], list)


def test_only_what_is_asked_for_is_read():
    items = Items(records(10_000))
    ref = yogadl.from_source(items)
    assert len(set(items.read)) <= 16
    items.read.clear()
    ref.gather([5, 9000])
    assert items.read == [5, 9000]
    items.read.clear()
    ref[100:200].select([3, 2]).fields("n").gather([0, 1])
    assert items.read == [103, 102]


def test_a_fingerprint_may_be_given_else_it_is_weak_and_of_a_sample():
    assert yogadl.from_source(records(5), fingerprint="mine").fingerprint == "mine"
    one = yogadl.from_source(records(500))
    assert one.fingerprint.startswith("weak-")
    assert yogadl.from_source(records(500)).fingerprint == one.fingerprint
    assert yogadl.from_source(Items(records(500))).fingerprint == one.fingerprint
    assert yogadl.from_source(records(501)).fingerprint != one.fingerprint
    assert yogadl.from_source([{"m": n} for n in range(500)]).fingerprint != one.fingerprint
    for number in (0, 499):  # the sample has both ends
        changed = records(500)
        changed[number] = changed[number - 1]
        assert yogadl.from_source(changed).fingerprint != one.fingerprint


ODD = {123: {"b": 1}, 124: {"a": 1.5, "x": np.zeros(3)}, 125: {"a": 1, "x": np.zeros(4)}}


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (123, "record 123: "),
        (124, "record 124: field 'a' has dtype float64"),
        (125, r"record 125: field 'x' has shape \(4,\), not \(3,\)"),
    ],
)
def test_without_a_cache_the_spec_is_that_of_a_sample_and_the_odd_one_is_named(number, says):
    data = [ODD.get(n, {"a": 1, "x": np.zeros(3)}) for n in range(1000)]
    ref = yogadl.from_source(Items(data))
    assert ref.gather([1, 2])["x"].shape == (2, 3)
    with pytest.raises(UnsupportedDataError, match=says):
        ref.gather([5, number])


def test_an_error_of_the_object_keeps_its_type_and_says_at_which_record():
    ref = yogadl.from_source(Items(records(1000), fails_at=123))
    with pytest.raises(OSError, match="no such file") as caught:
        ref.gather([5, 123])
    assert caught.value.__notes__ == ["while reading record 123 of the source"]


def fails_at_17(record):
    if record["id"] == 17:
        raise ValueError("the image is truncated")
    return record


def grows_at_17(record):
    return np.zeros(2 if record["id"] == 17 else 1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("forked_workers")
def test_an_error_of_a_build_names_the_file_that_the_source_lists(storage, workers):
    with pytest.raises(ValueError, match="the image is truncated") as caught:
        storage.submit(Listed(range(30), "images/", bad=17), "d", "1", workers=workers)
    assert "while reading record 17 of the source, images/17.png" in caught.value.__notes__


@pytest.mark.parametrize("function", [fails_at_17, grows_at_17])
def test_an_error_of_a_function_names_the_file_that_the_source_lists(function):
    ref = yogadl.from_source(Listed(range(30)))
    for stream in (ref.stream(shuffle=True).map(function), ref[5:].map(dict)[2:].map(function).stream()):
        with pytest.raises(StageError) as caught:
            list(stream.batch(4).prefetch(1))
        assert [note for note in caught.value.__notes__ if ".png" in note] == [
            f"the file of record {caught.value.record} is 17.png"
        ]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        *[(data, r"has no __len__ and __getitem__: build a cache .*storage\.submit")
          for data in (iter([1]), (n for n in range(3)), {1, 2}, "text", b"bytes", 3, None)],
        *[(data, "no records") for data in ([], np.empty((0, 2)), {"a": []})],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_has_no_random_access_or_no_records_is_refused_with_what_to_do(data, says):
    with pytest.raises(UnsupportedDataError, match=says):
        yogadl.from_source(data)


def test_the_spec_without_a_cache_is_that_of_the_cache(tmp_path):
    storage = yogadl.open_storage(tmp_path)
    data = [*records(10), *records(10)]
    data = [{**record, "words": np.array(["w"] * (1 + n % 2))} for n, record in enumerate(data)]
    storage.submit(data, "d", "1")
    assert yogadl.from_source(data).spec == storage.fetch("d", "1").spec


# Views.


@pytest.fixture(scope="module")
def ref():
    return yogadl.from_source(records(40), fingerprint="base")


def numbers(view):
    return [int(record["n"]) for record in view]


def test_a_mask_selects(ref):
    mask = np.arange(40) % 7 == 0
    assert numbers(ref.select(mask.tolist())) == [0, 7, 14, 21, 28, 35]
    with pytest.raises(ConfigurationError, match="a mask needs one boolean per record, 40"):
        ref.select(mask[:-1])


def test_a_selection_does_not_follow_the_array_it_was_made_from(ref):
    indices = np.array([1, 2, 3])
    view = ref.select(indices)
    indices[:] = 9
    assert numbers(view) == [1, 2, 3]


def test_fields_keep_their_names_order_and_structure(ref):
    view = ref.fields("t", "deep")
    assert view[3] == {"t": "t3", "deep": {"a": (3, -3)}}
    assert list(view[3]) == ["t", "deep"]
    assert [field.name for field in view.spec.fields] == ["t", "deep/a/0", "deep/a/1"]
    assert view.fields("deep")[3] == {"deep": {"a": (3, -3)}}
    batch = view.gather([3, 4])
    assert batch["deep"]["a"][1].tolist() == [-3, -4]


def test_fields_of_tuples_are_chosen_by_position():
    ref = yogadl.from_source([(n, f"t{n}", n * 0.5) for n in range(5)])
    assert ref.fields(2, 0)[3] == (1.5, 3)


@pytest.mark.parametrize("names", [("nope",), (), ("n", "n"), ("deep/a",)])
def test_fields_that_are_not_there_are_refused_with_those_that_are(ref, names):
    with pytest.raises(ConfigurationError):
        ref.fields(*names)


def test_the_hash_of_all_is_of_each_value_of_each_record():
    numbers, texts = [1, 2, 3], ["a", "b", "c"]

    def hash_of(changed=None):
        arrays = {"n": np.array(numbers), "text": list(texts)}
        if changed is not None:
            arrays[changed[0]][changed[1]] = 9 if changed[0] == "n" else "z"
        return yogadl.from_source(arrays)._records.hash_of_all(repr)

    found = [hash_of(), *map(hash_of, itertools.product(("n", "text"), range(3)))]
    assert len(set(found)) == len(found)
    assert hash_of() == found[0]


def test_a_view_has_a_fingerprint_of_its_own_but_for_fields(ref):
    views = [ref[1:], ref[:-1], ref[::2], ref[::-1], ref.select([0, 1]), ref.select([1, 0]), ref[0:2], ref]
    assert len({view.fingerprint for view in views}) == len(views)
    assert ref.fields("n").fingerprint == ref.fingerprint
    assert ref[1:].fields("n").fingerprint == ref[1:].fingerprint
    assert ref[1:30].fingerprint == ref[1:30:1].fingerprint == ref[-39:-10].fingerprint
    assert ref.select([3, 1]).fingerprint == ref.select(np.array([3, -39], np.int8)).fingerprint


def test_an_empty_view_has_batches_of_none(ref):
    for view in (ref[5:5], ref.select([]), ref.select(np.zeros(40, bool))):
        assert list(view) == view.__getitems__([]) == []
        assert view.gather([])["x"].shape == (0, 2, 3)


def test_a_view_can_be_built_into_a_cache(tmp_path, ref):
    storage = yogadl.open_storage(tmp_path)
    storage.submit(ref[30:5:-3].fields("n", "r"), "d", "1")
    cached = storage.fetch("d", "1")
    assert numbers(cached) == list(range(30, 5, -3))
    storage.submit(cached.select([1, 0]), "d", "1")  # over itself
    assert numbers(storage.fetch("d", "1")) == [27, 30]
    assert numbers(cached) == list(range(30, 5, -3))


def test_a_view_knows_about_how_large_a_record_is(ref):
    exact = yogadl.from_source({"x": np.zeros((10, 100), np.float32), "n": np.arange(10)})
    assert exact.record_bytes == 408
    assert exact.fields("n").record_bytes == 8
    assert exact[2:].record_bytes == 408
    assert ref.record_bytes > 24


RAGGED = [np.arange(1, n + 1) for n in (3, 1, 2)]
SHARED = {
    "records": lambda arrays: [{"t": array} for array in arrays],
    "tuples": lambda arrays: [(array,) for array in arrays],
    "columns": lambda arrays: {"t": arrays},
    "object array": lambda arrays: {"t": np.array([*arrays, None], object)[:3]},
    "texts": lambda arrays: [{"t": np.array([str(n) for n in array], object)} for array in arrays],
}


@pytest.mark.parametrize("form", SHARED)
def test_what_is_read_is_never_the_sources_own_memory(form):
    def changed(record):
        for array in column_of(record):
            array[:] = "changed" if form == "texts" else 0
        return record

    def changed_at_random(record, rng):
        return changed(record)

    arrays = [array.copy() for array in RAGGED]
    leaf = yogadl.Leaf("str" if form == "texts" else "int64", (None,))
    spec = (leaf,) if form == "tuples" else {"t": leaf}
    ref = yogadl.from_source(SHARED[form](arrays), spec=spec, fingerprint="f")
    before = [[part.tolist() for part in column_of(ref[n])] for n in range(3)]
    batch = ref.gather([0, 2, 0])
    (column,) = column_of(batch)
    assert not np.shares_memory(column[0], column[2])
    plain = ref.stream()
    same = ref[1:].stream().map(tuple if form == "tuples" else dict)
    streams = plain, same, plain.map(changed), plain.random_map(changed_at_random)
    for each in (batch, *itertools.chain(*(stream.batch(3) for stream in streams))):
        for array in itertools.chain(*column_of(each)):
            array[:] = "changed" if form == "texts" else 0
    assert [[part.tolist() for part in column_of(ref[n])] for n in range(3)] == before
    assert [array.tolist() for array in arrays] == [array.tolist() for array in RAGGED]


def column_of(record):
    return list(record.values()) if isinstance(record, dict) else list(record)
