"""Functions over records and batches: their results depend on record, seed, epoch and position alone."""

import operator
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import _random
from memory_source import MemorySource, open_stream, record_ids, stream_of

import yogadl
from yogadl import RecordsRef
from yogadl.errors import ConfigurationError, StageError, YogaError

# Of seed, stage and epoch; at the positions 0, 1 and 10 ** 9.
GOLDEN = [
    [1918640787, 210749970, 2141037362],
    [2539803884, 3702793184, 5478771],
    [1162134289, 3032108053, 3931764349],
]


def double(record):
    return {"id": record["id"] * 2, "name": record["name"] + "!"}


def noisy(record, rng):
    return {"id": record["id"], "noise": rng.random(3)}


def noise_of(batches):
    return {
        int(n): tuple(noise)
        for batch in batches
        for n, noise in zip(batch["id"], batch["noise"], strict=True)
    }


class FailsAt:
    """Passes records on, but for one."""

    def __init__(self, *records):
        self.records = records

    def __call__(self, record, *_):
        if int(record["id"]) in self.records:
            raise LookupError(f"no label for {int(record['id'])}")
        return record


def until_error(batches):
    """Return the ids before the error of a function, and the error."""
    seen = []
    try:
        for batch in batches:
            seen += batch["id"].tolist()
    except StageError as error:
        return seen, error
    pytest.fail("no error")


# One function after another


def test_records_and_batches_are_what_the_function_returns():
    stream = stream_of(10).map(double)
    assert [(int(r["id"]), r["name"]) for r in stream] == [(2 * n, f"r{n}!") for n in range(10)]
    [first, second] = stream.batch(6)
    assert first["id"].tolist() == [0, 2, 4, 6, 8, 10]
    assert second["name"] == ["r6!", "r7!", "r8!", "r9!"]
    assert list(first) == ["id", "name"]


def test_functions_are_called_one_after_another():
    stream = stream_of(4).map(double).map(double).map(operator.itemgetter("name"))
    assert list(stream) == ["r0!!", "r1!!", "r2!!", "r3!!"]


def test_order_shard_cursor_and_indices_are_those_of_the_stream():
    plain = stream_of(50, shuffle=True, shuffle_seed=3, shard_rank=1, num_shards=3)
    stream = plain.map(double)
    assert [n // 2 for n in record_ids(stream)] == plain.indices().tolist() == stream.indices().tolist()
    iterator, other = iter(stream.batch(4)), iter(plain.batch(4))
    for _ in range(3):
        next(iterator), next(other)
        assert iterator.state_dict() == other.state_dict()
    again = stream_of(50, shuffle=True, shuffle_seed=3, cursor=iterator.state_dict())
    assert len(again.map(double)) == len(again)


def test_the_record_is_the_functions_own_to_change():
    def change(record):
        record["pair"] += 1
        record["more"] = 1
        return record

    source = MemorySource(4)
    stream = open_stream(source).map(change)
    assert [batch["pair"].tolist() for batch in stream.batch(2)] == [[[1, 1], [2, 0]], [[3, -1], [4, -2]]]
    assert [batch["pair"].tolist() for batch in stream.batch(2)] == [[[1, 1], [2, 0]], [[3, -1], [4, -2]]]


def test_each_record_is_mapped_once_a_time_it_is_delivered_and_the_first_once_more():
    seen = []
    stream = stream_of(20).map(lambda record: seen.append(int(record["id"])) or record)
    list(stream.batch(6))
    assert seen == [0, *range(20)]
    list(stream)
    assert seen == [0, *range(20), *range(20)]


def test_a_stream_of_no_records_is_empty_if_its_spec_is_known():
    empty = RecordsRef(MemorySource(3))[:0]
    with pytest.raises(ConfigurationError, match="there is no record, so what map\\(double\\) returns"):
        list(empty.stream().map(double).batch(2))
    assert list(empty.stream().map(double, spec=empty.spec).batch(2)) == []


def test_what_has_no_stored_form_is_a_list_in_the_batch():
    class Image:
        def __init__(self, number):
            self.number = number

    stream = stream_of(5).map(lambda record: {"image": Image(int(record["id"])), "label": 1})
    [batch] = stream.batch(5)
    assert [image.number for image in batch["image"]] == [0, 1, 2, 3, 4]
    assert batch["label"].tolist() == [1] * 5
    [numbers] = stream.batch(5, collate=lambda records: [record["image"].number for record in records])
    assert numbers == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("result", "batch"),
    [
        (lambda n: n, np.arange(3)),
        (float, np.arange(3.0)),
        (lambda n: f"text {n}", ["text 0", "text 1", "text 2"]),
        (lambda n: np.full((2, 2), n, np.uint8), np.arange(3, dtype=np.uint8).repeat(4).reshape(3, 2, 2)),
        (lambda n: (n, n > 1), (np.arange(3), np.array([False, False, True]))),
    ],
    ids=["int", "float", "text", "array", "tuple"],
)
def test_results_of_any_kind_make_batches(result, batch):
    [found] = stream_of(3).map(lambda record: result(int(record["id"]))).batch(3)
    np.testing.assert_equal(found, batch)


def test_the_padding_field_comes_after_the_functions():
    stream = stream_of(5, shard_rank=1, num_shards=2, pad_shard_remainder=True).map(double)
    flags = [batch["pad"] for batch in stream.batch(2, padding_field="pad")]
    assert [each.tolist() for each in flags] == [[False, False], [True]]
    assert flags[0].dtype == np.bool_


# Shapes


def test_a_result_that_is_not_like_the_first_is_an_error_that_names_it():
    def longer(record):
        return {"x": np.zeros(3 if record["id"] < 7 else 4)}

    batches = iter(stream_of(10).map(longer).batch(2))
    assert [next(batches)["x"].shape for _ in range(3)] == [(2, 3)] * 3
    with pytest.raises(StageError, match=r"for record 7 that is not like the first.*'x'.*spec=") as error:
        next(batches)
    assert (error.value.stage, error.value.record) == (0, 7)


@pytest.mark.parametrize(
    ("result", "declared"),
    [({"y": 1}, None), ({"x": 1, "y": 1}, None), (1, None), ({"x": "text"}, "json"), ({"x": 1.5}, "float64")],
)
def test_a_result_of_another_structure_or_dtype_is_one_too(result, declared):
    stream = stream_of(10).map(lambda record: {"x": 1} if record["id"] != 4 else result)
    with pytest.raises(StageError, match="record 4 that is not like the first") as caught:
        list(stream.batch(5))
    assert ("spec=" in str(caught.value)) == (declared is not None)
    assert declared is None or f"spec={{'x': yogadl.Leaf(\"{declared}\")}}" in str(caught.value)


@pytest.mark.parametrize(
    ("shapes", "declared"),
    [
        (((2, 3), (4, 3)), {"x": yogadl.Leaf("uint8", (None, 3))}),
        (((2, 3), (4, 5)), {"x": yogadl.Leaf("uint8", (None, None))}),
        (((2,), (2, 2)), {"x": yogadl.Leaf("uint8", None)}),
    ],
)
@pytest.mark.parametrize("call", ["map", "random_map"])
def test_a_shape_that_varies_is_answered_with_the_declaration_to_write(shapes, declared, call):
    def padded(record, *_):
        return {"n": record["id"], "x": np.zeros(shapes[record["id"] % 2], np.uint8)}

    before = getattr(stream_of(10), "map" if call == "random_map" else "random_map")(
        lambda record, *_: record
    )
    with pytest.raises(StageError) as caught:
        list(getattr(before, call)(padded).batch(5))
    text = str(caught.value)
    assert (
        f"field 'x' has shape {shapes[1]}, not {shapes[0]}. If the shape varies, write {call}(..., spec="
        in text
    )
    written = text.partition("(..., spec=")[2].removesuffix(")")
    assert eval(written, {"yogadl": yogadl}) == declared
    batches = getattr(stream_of(10), call)(padded, spec=declared).batch(5)
    assert [value.shape for batch in batches for value in batch["x"]] == list(shapes) * 5


def test_shapes_that_vary_are_declared():
    def tokens(record):
        return {"tokens": np.arange(1 + int(record["id"]))}

    stream = stream_of(4).map(tokens, spec={"tokens": yogadl.Leaf("int64", (None,))})
    [batch] = stream.batch(4)
    assert [len(value) for value in batch["tokens"]] == [1, 2, 3, 4]


def varying():
    return yogadl.from_source([{"x": np.arange(1 + n % 3), "n": n} for n in range(9)])


def lengths_of(loader):
    return [len(x) for batch in loader for x in batch["x"]]


LENGTHS = [1 + n % 3 for n in range(9)]


def in_place(record):
    record["y"] = record["n"] + 1
    return record


@pytest.mark.parametrize("function", [lambda record: {**record, "y": 1}, in_place, lambda r: {"x": r["x"]}])
def test_an_array_that_is_passed_through_keeps_that_its_shape_varies(function):
    assert lengths_of(varying().map(function).stream().batch(4)) == LENGTHS
    assert lengths_of(varying().stream().map(function).map(function).batch(4)) == LENGTHS
    assert lengths_of(varying().map(function).stream().random_map(lambda r, rng: r).batch(4)) == LENGTHS


def test_an_array_that_is_passed_through_keeps_its_shape_under_another_name():
    assert varying().map(lambda record: {"z": record["x"]}).spec.fields[0].leaf == yogadl.Leaf(
        "int64", (None,)
    )


def test_an_array_that_is_passed_through_keeps_what_an_earlier_function_declared():
    declared = {"x": yogadl.Leaf("int64", (None,))}
    made = varying().map(lambda record: {"x": record["x"] + 1}, spec=declared)
    assert lengths_of(made.map(lambda record: {**record, "y": 1}).stream().batch(4)) == LENGTHS


def test_an_array_that_a_function_makes_is_of_one_shape_under_the_same_name_too():
    def cut(record):
        record["x"] = np.resize(record["x"], 2)
        return record

    [batch] = varying().map(cut).stream().batch(9)
    assert batch["x"].shape == (9, 2)
    with pytest.raises(StageError, match=r"spec=\{'x': yogadl.Leaf\(\"int64\", \(None,\)\)\}"):
        list(varying().map(lambda record: {"x": record["x"] + 1}).stream().batch(4))


def test_a_declared_shape_counts_more_than_that_of_an_array_that_is_passed_through():
    def cut(record):  # the first record as it is
        return record if len(record["x"]) == 1 else {**record, "x": record["x"][:1]}

    [batch] = varying().map(cut, spec={"x": yogadl.Leaf("int64", (1,))}).stream().batch(9)
    assert batch["x"].shape == (9, 1)


def test_with_a_spec_the_function_is_not_called_to_find_out():
    source = MemorySource(4)
    stream = open_stream(source).map(FailsAt(0), spec=source.spec)
    assert stream.spec == source.spec
    with pytest.raises(StageError):
        next(iter(stream))


# Errors


def test_of_single_records_all_before_the_error_are_delivered():
    records = iter(stream_of(100).map(double).map(FailsAt(2 * 77)))
    assert [int(next(records)["id"]) for _ in range(77)] == list(range(0, 154, 2))
    with pytest.raises(StageError, match="record 77") as error:
        next(records)
    assert error.value.stage == 1


def test_the_error_names_the_record_of_the_data_not_the_position():
    stream = stream_of(100, shuffle=True, shuffle_seed=1).map(FailsAt(*range(1, 100)))
    with pytest.raises(StageError) as error:
        list(stream.batch(10))
    assert error.value.record == next(int(n) for n in stream.indices() if n)


def test_what_is_no_error_of_the_function_passes():
    def interrupted(record):
        if record["id"] == 3:
            raise KeyboardInterrupt
        return record

    batches = iter(stream_of(8).map(interrupted).batch(2))
    next(batches)
    with pytest.raises(KeyboardInterrupt):
        next(batches)


def test_the_error_pickles():
    error = pickle.loads(pickle.dumps(StageError("text", 2, 17)))
    assert (str(error), error.stage, error.record) == ("text", 2, 17)


@pytest.mark.parametrize("make", [RecordsRef.map, lambda ref, fn: ref.stream().map(fn)])
@pytest.mark.parametrize("function", [None, 1, "double", {"id": double}])
def test_what_is_no_function_is_refused(make, function):
    with pytest.raises(ConfigurationError, match="map takes a function of one argument, not"):
        make(RecordsRef(MemorySource(3)), function)
    with pytest.raises(ConfigurationError, match="random_map takes a function of two"):
        stream_of(3).random_map(function)
    with pytest.raises(ConfigurationError, match="map takes a function of one argument, not"):
        stream_of(3).batch(2).map(function)


# Random


def test_the_generator_depends_on_seed_epoch_position_and_stage_alone():
    options = {"shuffle": True, "shuffle_seed": 5}
    whole = noise_of(stream_of(60, **options).random_map(noisy).batch(7))
    assert len(set(whole.values())) == 60
    for ranks in (2, 3, 7):
        found = {}
        for rank in range(ranks):
            stream = stream_of(60, **options, shard_rank=rank, num_shards=ranks).random_map(noisy)
            found |= noise_of(stream.batch(rank + 1).prefetch(2))
            assert {int(r["id"]): tuple(r["noise"]) for r in stream.at(0)}.items() <= whole.items()
        assert found == whole
    stream = stream_of(60, **options).random_map(noisy)
    batches = iter(stream.batch(7, epochs=2))
    seen = [next(batches) for _ in range(4)]
    rest = iter(stream_of(60, **options, cursor=batches.state_dict()).random_map(noisy).batch(11, epochs=2))
    later = list(rest)
    assert noise_of(seen) | noise_of(later[:3]) == whole
    second = noise_of(later[3:])
    assert second == noise_of(stream.batch(9).at(1))
    assert not set(second.values()) & set(whole.values())


def test_the_order_stays_what_it_was_if_only_the_augmentation_has_another_seed():
    stream = stream_of(30, shuffle=True, shuffle_seed=5)
    first, second = (noise_of(stream.random_map(noisy, seed=seed).batch(7)) for seed in (1, 2))
    assert list(first) == list(second) == stream.indices(0).tolist()
    assert not set(first.values()) & set(second.values())
    assert noise_of(stream.random_map(noisy, seed=5).batch(7)) == noise_of(stream.random_map(noisy).batch(7))


def test_without_a_shuffle_the_seed_counts_too():
    first, second = (noise_of(stream_of(9, shuffle_seed=n).random_map(noisy).batch(9)) for n in (1, 2))
    assert list(first) == list(second) == list(range(9))
    assert not set(first.values()) & set(second.values())
    assert stream_of(9, shuffle_seed=1).batch(2).state_dict() == stream_of(9).batch(2).state_dict()


def test_stages_have_generators_of_their_own():
    def more(record, rng):
        return {"id": record["id"], "noise": record["noise"], "more": rng.random(3)}

    [batch] = stream_of(5).random_map(noisy).random_map(more).batch(5)
    assert not set(batch["noise"].ravel()) & set(batch["more"].ravel())
    assert noise_of([batch]) == noise_of(stream_of(5).random_map(noisy).batch(5))


def test_a_frozen_order_has_new_noise_in_each_epoch():
    loader = stream_of(9, shuffle=True, skip_shuffle_at_epoch_end=True).random_map(noisy).batch(9)
    first, second = noise_of(loader), noise_of(loader)
    assert sorted(first) == list(range(9))
    assert list(first) == list(second)
    assert not set(first.values()) & set(second.values())


def test_the_generators_of_version_1_are_these():
    """Frozen: a job of today goes on with the same augmentation under any later release."""
    found = [
        [
            generator.integers(2**32)
            for generator in _random.generators(seed, stage, epoch, np.array([0, 1, 10**9]))
        ]
        for seed, stage, epoch in [(0, 0, 0), (-1, 2, 3), (2**70, 0, 1)]
    ]
    assert found == GOLDEN


def test_a_generator_is_as_any_of_numpys():
    [made] = _random.generators(1, 0, 0, np.array([5]))
    copy = pickle.loads(pickle.dumps(made))
    assert copy.random() == made.random()
    children = [child.random() for child in made.spawn(2)]
    [again] = _random.generators(1, 0, 0, np.array([5]))
    assert [child.random() for child in again.spawn(2)] == children
    assert len(set(children)) == 2


@settings(deadline=None, max_examples=30)
@given(st.integers(-(2**80), 2**80), st.integers(0, 9), st.integers(0, 2**40), st.integers(0, 2**50))
def test_neighbours_have_different_generators(seed, stage, epoch, position):
    near = [
        next(_random.generators(*place, np.array([at])))
        for place in [
            (seed, stage, epoch),
            (seed + 1, stage, epoch),
            (seed, stage + 1, epoch),
            (seed, stage, epoch + 1),
        ]
        for at in (position, position + 1)
    ]
    assert len({generator.integers(2**63) for generator in near}) == len(near)


# Batches


def test_functions_of_batches_see_them_whole_and_in_order():
    loader = stream_of(10).batch(4).map(lambda batch: batch["id"].tolist()).map(tuple)
    assert list(loader) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]
    assert len(loader) == 3
    assert list(loader.prefetch(2)) == list(
        stream_of(10).batch(4).prefetch(2).map(lambda b: b["id"].tolist()).map(tuple)
    )


def test_a_random_function_of_batches_depends_on_where_the_batch_begins():
    stream = stream_of(12, shuffle=True)
    drawn = list(stream.batch(4).random_map(lambda batch, rng: rng.random()))
    assert len(set(drawn)) == 3
    assert list(stream.batch(4).random_map(lambda batch, rng: rng.random()).prefetch(3)) == drawn
    again = stream.batch(4).random_map(lambda batch, rng: rng.random()).at(0, 8)
    assert list(again) == drawn[2:]
    assert next(iter(stream.batch(12).random_map(lambda batch, rng: rng.random()))) == drawn[0]


def test_an_error_in_a_function_of_batches_names_where_the_batch_begins():
    def fails(batch):
        if 25 in batch["id"]:
            raise ValueError("twenty-five")
        return batch

    batches = iter(stream_of(100).map(double).batch(5).map(lambda batch: batch).map(fails).prefetch(4))
    assert [next(batches)["id"][0] for _ in range(2)] == [0, 10]
    with pytest.raises(StageError) as error:
        list(iter(stream_of(100).batch(5).map(fails)))
    assert str(error.value).startswith("map(")
    assert "failed at the batch that begins with record 25: ValueError: twenty-five" in str(error.value)


def test_functions_of_records_and_of_batches_are_numbered_through():
    loader = stream_of(8).map(double).batch(2).map(FailsAt(0))
    with pytest.raises(StageError) as error:
        list(stream_of(8).map(double).batch(2).map(lambda batch: 1 / 0))
    assert error.value.stage == 1
    assert "map(double)" in repr(loader)
    assert "batch 2, epochs 1, map(FailsAt)" in repr(loader)


# Views


def test_a_mapped_reference_reads_as_any_other():
    ref = RecordsRef(MemorySource(20))
    view = ref.map(double)
    assert (len(view), view.fingerprint) == (20, ref.fingerprint)
    assert int(view[-1]["id"]) == 38
    assert view.gather([3, 1])["id"].tolist() == [6, 2]
    assert record_ids(view) == list(range(0, 40, 2))
    assert record_ids(view[4:8]) == [8, 10, 12, 14]
    assert record_ids(view.select([9, 0])) == [18, 0]
    assert view.fields("name").gather([2]) == {"name": ["r2!"]}
    assert view.map(lambda record: record["id"]).gather([5]).tolist() == [10]
    stream = view.stream(shuffle=True)
    assert [n // 2 for n in record_ids(stream)] == ref.stream(shuffle=True).indices().tolist()
    cursor = ref.stream(shuffle=True).cursor(5)
    assert len(list(view.stream(shuffle=True, cursor=cursor))) == 15


# Processes and threads


def test_streams_pickle_with_their_functions():
    stream = stream_of(20, shuffle=True).map(double).random_map(lambda_free)
    copy = pickle.loads(pickle.dumps(stream.batch(4)))
    np.testing.assert_equal(list(copy), list(stream.batch(4)))


def lambda_free(record, rng):
    return {"id": record["id"], "draw": rng.integers(100)}


def test_several_threads_iterate_each_their_own():
    stream = stream_of(300, shuffle=True).random_map(noisy)
    expected = noise_of(stream.batch(16).at(0))
    found = []

    def read():
        found.append(noise_of(stream.batch(16).at(0)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


# Elsewhere


def test_results_of_a_mapped_reference_are_built_and_exported(tmp_path):
    ref = stream_of(30).map(double)
    mapped = RecordsRef(ref.source).map(double)[5:]
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.submit(mapped, "doubled", "1")
    built = storage.fetch("doubled", "1")
    assert built.gather(range(25))["id"].tolist() == list(range(10, 60, 2))
    yogadl.storage.export(built.fields("id").map(double_id), tmp_path / "npy")
    assert np.load(tmp_path / "npy" / "id.npy").tolist() == list(range(20, 120, 4))


def double_id(record):
    return {"id": record["id"] * 2}


def test_results_that_have_no_stored_form_are_not_exported(tmp_path):
    ref = yogadl.from_source(np.arange(3)).map(lambda n: {"made": object()})
    with pytest.raises(YogaError, match="made"):
        yogadl.storage.export(ref, tmp_path / "npy")
    with pytest.raises(YogaError, match="made"):
        yogadl.open_storage(tmp_path / "caches").submit(ref, "objects", "1")


@pytest.mark.parametrize(
    "view",
    [
        lambda ref: ref,
        lambda ref: ref[0:],
        lambda ref: ref.select(range(20)),
        lambda ref: ref.fields("id"),
        lambda ref: ref[0:].fields("id").select(range(20)),
    ],
)
def test_where_a_view_of_mapped_records_fails_the_batches_before_come(view):
    stream, seen = view(RecordsRef(MemorySource(20)).map(FailsAt(13))).stream(), []
    with pytest.raises(StageError, match="record 13"):
        seen.extend(int(record["id"]) for record in stream)
    assert seen == list(range(13))
    for loader in (stream.batch(4), stream.batch(4).prefetch(3)):
        assert until_error(loader)[0] == list(range(12))


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (lambda record: record.update(x=1), "does it end without `return`"),
        (lambda record: iter([record]), "must return the record itself"),
    ],
)
def test_a_function_that_returns_no_record_is_an_error(function, hint):
    with pytest.raises(StageError, match=hint) as raised:
        next(iter(stream_of(3).map(function).batch(2)))
    assert (raised.value.stage, raised.value.record) == (0, 0)
