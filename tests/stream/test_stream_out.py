"""Functions that fill a record of the batch: the same results as functions that return one, everywhere."""

import pickle

import numpy as np
import pytest

import yogadl
from yogadl import Leaf
from yogadl.errors import ConfigurationError, StageError

COUNT = 53
OUT = {"image": Leaf("float32", (4, 3)), "label": Leaf("int64"), "flags": Leaf("bool", (2,))}


def records(count=COUNT):
    return [
        {
            "pixels": np.arange(n % 5 + 1, dtype=np.float32),
            "label": n,
            "name": f"n{n}",
            "place": {"x": n * 2, "y": np.full(n % 3, n)},
        }
        for n in range(count)
    ]


SPEC = {"pixels": Leaf("float32", (None,)), "place": {"y": Leaf("int64", (None,))}}


@pytest.fixture(scope="module")
def ref(tmp_path_factory):
    storage = yogadl.open_storage(tmp_path_factory.mktemp("caches"))
    storage.submit(yogadl.from_source(records(), spec=SPEC), "set", "1")
    return storage.fetch("set", "1")


def returned(record):
    image = np.zeros((4, 3), np.float32)
    count = len(record["pixels"])
    image.ravel()[:count] = record["pixels"] + 1
    return {"image": image, "label": record["label"], "flags": np.array([count > 2, False])}


def filled(record, out):
    count = len(record["pixels"])
    out["image"].reshape(-1)[:count] = record["pixels"] + 1  # the rest stays zero
    out["label"][...] = record["label"]
    out["flags"][0] = count > 2


def returned_at_random(record, rng):
    return returned({**record, "pixels": record["pixels"] + rng.random(len(record["pixels"]))})


def filled_at_random(record, rng, out):
    filled({**record, "pixels": record["pixels"] + rng.random(len(record["pixels"]))}, out)


def same(found, wanted):
    found, wanted = list(found), list(wanted)
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert list(one) == list(other)
        for name in one:
            if isinstance(one[name], dict):
                same([one[name]], [other[name]])
            elif isinstance(one[name], list):
                for value, its in zip(one[name], other[name], strict=True):
                    np.testing.assert_array_equal(value, its)
            else:
                np.testing.assert_array_equal(one[name], other[name])
                assert np.asarray(one[name]).dtype == np.asarray(other[name]).dtype


PAIRS = {
    "map": lambda stream: (stream.map(returned), stream.map(filled, out=OUT)),
    "random": lambda stream: (
        stream.random_map(returned_at_random, seed=3),
        stream.random_map(filled_at_random, seed=3, out=OUT),
    ),
}
WAYS = {
    "none": {},
    "ahead": {"n": 2},
    "threads": {"n": 2, "threads": 2},
    "workers": {"n": 2, "workers": 2},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pair", PAIRS)
def test_batches_are_those_of_a_function_that_returns(ref, pair, way):
    for size, epochs in ((1, 1), (7, 3), (COUNT, 1), (64, 2)):
        plain, filling = PAIRS[pair](ref.stream(shuffle=True, shuffle_seed=2))
        loader = filling.batch(size, epochs=epochs)
        same(loader.prefetch(**WAYS[way]) if WAYS[way] else loader, plain.batch(size, epochs=epochs))


@pytest.mark.parametrize("way", WAYS)
def test_records_one_by_one_are_those_of_a_function_that_returns(ref, way):
    plain, filling = PAIRS["random"](ref.stream(shuffle=True))
    same(filling.prefetch(**WAYS[way]) if WAYS[way] else filling, plain)


@pytest.mark.parametrize("way", WAYS)
def test_fields_of_the_record_are_kept_by_name(ref, way):
    kept = ("name", "place", "pixels")
    out = {"image": OUT["image"], "label": OUT["label"], "flags": OUT["flags"]}
    filling = ref.stream(shuffle=True).map(filled, out=out, keep=kept)
    plain = ref.stream(shuffle=True).map(
        lambda record: {**returned(record), **{name: record[name] for name in kept}},
        spec={**SPEC},
    )
    loader = filling.batch(8)
    same(loader.prefetch(**WAYS[way]) if WAYS[way] else loader, plain.batch(8))
    assert list(filling.spec.keys()) == ["image", "label", "flags", *kept]


def test_functions_before_and_after_see_what_a_function_returned(ref):
    def halved(record):
        return {**record, "pixels": record["pixels"][::2]}

    def summed(record):
        return {"sum": record["image"].sum(), "label": record["label"], "name": record["name"]}

    spec = {"pixels": Leaf("float32", (None,))}
    before = ref.fields("pixels", "label", "name").stream(shuffle=True).map(halved, spec=spec)
    filling = before.map(filled, out=OUT, keep="name")
    plain = before.map(lambda record: {**returned(record), "name": record["name"]})
    same(filling.batch(8), plain.batch(8))
    same(filling.map(summed).batch(8), plain.map(summed).batch(8))
    same(filling.map(summed).batch(8).prefetch(2, workers=2), plain.map(summed).batch(8))
    again = filling.map(lambda record, out: filled({**record, "pixels": record["image"][0]}, out), out=OUT)
    twice = plain.map(lambda record: returned({**record, "pixels": record["image"][0]}))
    same(again.batch(8), twice.batch(8))


def test_a_record_may_be_one_array_or_a_tuple(ref):
    def fill(record, out):
        out[:] = record["label"]

    [batch] = ref.stream().map(fill, out=Leaf("int16", (2,))).batch(COUNT)
    assert batch.tolist() == [[n, n] for n in range(COUNT)]

    def fill_both(record, out):
        out[0][...], out[1][...] = record["label"], 1

    [batch] = ref.stream().map(fill_both, out=(Leaf("int64"), Leaf("uint8", (2,)))).batch(COUNT)
    assert batch[0].tolist() == list(range(COUNT))
    assert batch[1].tolist() == [[1, 1]] * COUNT


def test_the_structure_is_that_declared_and_no_function_is_called_for_it(ref):
    seen = []

    def fill(record, out):
        seen.append(int(record["label"]))

    stream = ref.stream().map(fill, out=OUT, keep="name")
    assert stream.spec.keys() == ["image", "label", "flags", "name"]
    assert not seen
    assert not next(iter(stream.batch(4)))["image"].any()
    assert seen == [0, 1, 2, 3]
    assert list(ref[:0].stream().map(fill, out=OUT).batch(4)) == []


def test_batches_are_read_again_and_resumed(ref):
    plain, filling = PAIRS["random"](ref.stream(shuffle=True, shuffle_seed=9))
    loader = filling.batch(8)
    same([loader.batch_at(3)], [plain.batch(8).batch_at(3)])
    batches = iter(loader)
    same([next(batches), next(batches)], [plain.batch(8).batch_at(0), plain.batch(8).batch_at(1)])
    for rank in range(2):
        options = {"shuffle": True, "shuffle_seed": 9, "shard_rank": rank, "num_shards": 2}
        pair = PAIRS["random"](ref.stream(**options, cursor=batches.state_dict()))
        same(pair[1].batch(5), pair[0].batch(5))
    same(pickle.loads(pickle.dumps(filling)), plain)


def test_a_function_that_fails_leaves_the_batches_before_it(ref):
    def fail(record, out):
        if record["label"] == 20:
            raise ValueError("no")
        out["label"][...] = record["label"]

    for options in WAYS.values():
        loader = ref.stream().map(fail, out=OUT).batch(8)
        batches = iter(loader.prefetch(**options) if options else loader)
        assert [next(batches)["label"][0] for _ in range(2)] == [0, 8]
        with pytest.raises(StageError, match=r"map\(.*fail\) failed at record 20: ValueError: no"):
            next(batches)


def test_a_function_that_returns_something_is_told(ref):
    with pytest.raises(StageError, match="record 0: with out=, it fills the record that it is given last"):
        next(iter(ref.stream().map(lambda record, out: record, out=OUT).batch(4)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"out": {"x": Leaf("float32", (None,))}}, "for field 'x': a function fills arrays of one shape"),
        ({"out": {"x": Leaf("str")}}, "for field 'x'"),
        ({"out": {"x": 3}}, "out= has 3 for field 'x'"),
        ({"out": Leaf("bytes")}, "a function fills arrays"),
        ({"out": {}}, "no fields"),
        ({"out": OUT, "spec": SPEC}, "leave out spec="),
        ({"keep": "name"}, "both be dicts"),
        ({"out": Leaf("int64"), "keep": "name"}, "both be dicts"),
        ({"out": OUT, "keep": "label"}, "keep= has 'label'"),
        ({"out": OUT, "keep": "nothing"}, "keep= has 'nothing'"),
        ({"out": OUT, "keep": ("name", "name")}, "each once"),
        ({"out": OUT, "on_error": "skip"}, "on_error must be"),
        ({"max_errors": 3}, "pass both"),
        ({"on_error": "substitute", "max_errors": -1}, "max_errors"),
        ({"on_error": "substitute", "max_errors": 1.5}, "max_errors"),
    ],
)
def test_options_that_make_no_sense_are_refused(ref, options, text):
    for name in ("map", "random_map"):
        with pytest.raises(ConfigurationError, match=text):
            getattr(ref.stream(), name)(filled, **options)


def nested(record, out):
    out["a"]["x"][...] = record["label"]
    out["b"][0][...] = 1


MISSES = {
    "another": (lambda record, out: out.update(image=np.ones((4, 3), np.float32)), "image"),
    "a_number": (lambda record, out: out.__setitem__("label", 3), "label"),
    "same_values": (lambda record, out: out.__setitem__("label", out["label"].copy()), "label"),
}


@pytest.mark.parametrize("miss", MISSES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("on_error", ["raise", "substitute"])
def test_an_array_that_is_put_in_place_of_the_batchs_is_an_error(ref, miss, way, on_error):
    function, name = MISSES[miss]
    loader = ref.stream().map(function, out=OUT, on_error=on_error).batch(4)
    with pytest.raises(StageError, match=rf'record 0: write into .*out\["{name}"\]\[\.\.\.\] = '):
        list(loader.prefetch(**WAYS[way]) if WAYS[way] else loader)


def test_one_record_of_many_that_is_filled_wrongly_is_named(ref):
    def one(record, out):
        filled(record, out)
        if record["label"] == 6:
            out["label"] = np.array(6)

    for stream in (ref.stream().map(one, out=OUT), ref.stream().map(one, out=OUT).map(dict)):
        with pytest.raises(StageError, match="for record 6: write into"):
            list(stream.batch(20))


@pytest.mark.parametrize(
    "change", [lambda out: out.__delitem__("label"), lambda out: out.update(more=1), lambda out: out.clear()]
)
def test_a_field_that_is_taken_out_or_added_is_an_error(ref, change):
    with pytest.raises(StageError, match="changed what out= has for record 0"):
        list(ref.stream().map(lambda record, out: change(out), out=OUT).batch(4))


def test_arrays_in_trees_are_looked_at_too(ref):
    out = {"a": {"x": Leaf("int64")}, "b": [Leaf("int64"), Leaf("int64", (2,))]}
    assert [int(one["a"]["x"]) for one in ref.stream().map(nested, out=out)] == list(range(COUNT))

    def in_dict(record, out):
        out["a"]["x"] = np.array(1)

    def in_list(record, out):
        out["b"][1] = np.zeros(2, np.int64)

    def whole(record, out):
        out["a"] = {"x": np.array(1)}

    for function, path in ((in_dict, 'out["a"]["x"]'), (whole, 'out["a"]["x"]'), (in_list, 'out["b"][1]')):
        with pytest.raises(StageError, match="write into") as caught:
            list(ref.stream().map(function, out=out).batch(4))
        assert f"{path}[...] = value" in str(caught.value)


def test_operators_that_write_into_the_array_are_no_error(ref):
    def added(record, out):
        out["image"] += 1
        out["label"] += record["label"]
        out["flags"] |= True

    batch = next(iter(ref.stream().map(added, out=OUT).batch(8)))
    assert batch["label"].tolist() == list(range(8))
    assert batch["image"].min() == 1
    assert batch["flags"].all()


def test_what_a_function_did_to_its_record_before_it_failed_is_forgotten(ref):
    def fails(record, out):
        if record["label"] == 3:
            del out["label"]
            raise ValueError("no")
        filled(record, out)

    labels = next(iter(ref.stream().map(fails, out=OUT, on_error="substitute").batch(COUNT)))["label"]
    assert 3 not in labels
    assert len(set(labels.tolist())) == COUNT - 1
