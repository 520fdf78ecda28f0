"""Streams as Keras's datasets: the stream's batches by number, whatever Keras asks for."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import yogadl
from yogadl.adapters import keras as adapter
from yogadl.errors import CacheFormatError, ConfigurationError, CursorError, UnsupportedDataError

RECORDS = 103


class Watched:
    """Records that note which of them were read."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        self.read.append(index)
        return {"id": np.int64(index)}


def ref_of(records=RECORDS, fingerprint="ids"):
    data = {"id": np.arange(records), "x": np.arange(2.0 * records).reshape(records, 2)}
    return yogadl.from_source(data, fingerprint=fingerprint)


def stream_of(records=RECORDS, **options):
    return ref_of(records).stream(**{"shuffle": True, **options})


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def flat(batches):
    return [i for batch in batches for i in batch]


def first(dataset, count):
    return ids(dataset[number] for number in range(count))


@given(
    st.lists(st.integers(0, 40), max_size=30),
    st.integers(0, 50),
    st.integers(1, 12),
    st.booleans(),
    st.sampled_from([(0, 1), (1, 1), (3, 1), (2, 2)]),
)
def test_a_number_is_the_same_batch_whatever_was_asked_for_before(numbers, offset, size, drop, ahead):
    options = {"start_offset": offset, "num_shards": 2, "pad_shard_remainder": True}
    expected = iter(stream_of(53, **options).batch(size, drop, epochs=None))
    found = [next(expected)["id"].tolist() for _ in range(41)]
    made = {"drop_remainder": drop, "prefetch": ahead[0], "threads": ahead[1]}
    dataset = adapter.PyDataset(stream_of(53, **options), size, epochs=None, **made)
    assert dataset.num_batches is None
    for number in numbers:
        assert dataset[number]["id"].tolist() == found[number]


def test_many_threads_get_the_batches_they_ask_for():
    dataset = adapter.PyDataset(stream_of(), 10, epochs=None)
    numbers = [number for number in range(40) for _ in range(3)]
    with ThreadPoolExecutor(8) as pool:
        found = ids(pool.map(dataset.__getitem__, numbers))
    expected = ids(stream_of().batch(10, epochs=4))
    assert found == [expected[number] for number in numbers]


def test_batches_asked_for_in_order_are_read_once():
    source = Watched()
    dataset = adapter.PyDataset(yogadl.from_source(source).stream(shuffle=True), 10, epochs=None)
    source.read.clear()
    first(dataset, 11)
    assert len(source.read[:RECORDS]) == len(set(source.read[:RECORDS])) == RECORDS


def test_a_forked_process_reads_on():
    dataset = adapter.PyDataset(stream_of(), 10, epochs=None)
    expected = first(dataset, 4)
    child = os.fork()
    if not child:
        os._exit(0 if ids([dataset[4], dataset[0]]) == [first(dataset, 5)[4], expected[0]] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_it_pickles_without_what_was_read_ahead():
    dataset = adapter.PyDataset(stream_of(), 10, fields=("x", "id"), epochs=None)
    dataset[3]
    again = pickle.loads(pickle.dumps(dataset))
    for number in (3, 4, 0):
        np.testing.assert_array_equal(again[number][1], dataset[number][1])


# Cursors.


def test_the_cursor_is_that_of_a_loader_that_delivered_as_much():
    dataset = adapter.PyDataset(stream_of(start_offset=60), 10, epochs=None)
    batches = iter(stream_of(start_offset=60).batch(10, epochs=None))
    assert dataset.cursor(0) == batches.state_dict()
    for delivered in range(1, 30):
        next(batches)
        assert dataset.cursor(delivered) == batches.state_dict()


def test_loading_a_cursor_moves_batch_0():
    dataset = adapter.PyDataset(stream_of(), 10, epochs=None)
    expected = first(dataset, 30)
    dataset.load_state_dict(dataset.cursor(17))
    assert first(dataset, 13) == expected[17:]
    assert dataset.cursor(0) == adapter.PyDataset(stream_of(), 10, epochs=None).cursor(17)


def test_a_cursor_of_other_data_is_refused_unless_rebound():
    dataset = adapter.PyDataset(stream_of(), 10, epochs=None)
    other = ref_of(fingerprint="other").stream(shuffle=True).cursor(20)
    with pytest.raises(CursorError, match="other data"):
        dataset.load_state_dict(other)
    dataset.load_state_dict(other, rebind=True)
    assert first(dataset, 1) == [stream_of().indices()[20:30].tolist()]


# Datasets that end.


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_dataset_of_some_epochs_ends(epochs):
    dataset = adapter.PyDataset(stream_of(start_offset=60), 10, epochs=epochs)
    expected = ids(stream_of(start_offset=60).batch(10, epochs=epochs))
    assert dataset.num_batches == len(expected) == 5 + 11 * (epochs - 1)
    assert ids(dataset) == ids(dataset) == expected
    with pytest.raises(IndexError, match=f"no batch {len(expected)}"):
        dataset[len(expected)]
    with pytest.raises(ConfigurationError, match="can't be delivered"):
        dataset.cursor(len(expected) + 1)


def test_a_dataset_that_ends_refuses_to_be_shuffled():
    dataset = adapter.PyDataset(stream_of(), 10, epochs=1)
    first(dataset, 2)
    with pytest.raises(ConfigurationError, match=r"batch 7 was requested before batch 2.*steps_per_epoch"):
        dataset[7]


# What Keras gets.


def nested_stream():
    records = [{"a": {"b": np.float32(i), "c": np.ones(2)}, "y": i, "w": 0.5} for i in range(5)]
    return yogadl.from_source(records).stream()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (("y", "w"), lambda b: (b["y"], b["w"])),
        (["a", "y", "w"], lambda b: (b["a"], b["y"], b["w"])),
        ("y", lambda b: (b["y"],)),
        ((("y", "w"), "y"), lambda b: ((b["y"], b["w"]), b["y"])),
        (({"left": "y", "right": "w"}, "y"), lambda b: ({"left": b["y"], "right": b["w"]}, b["y"])),
        (lambda b: (b["y"] * 2, b["w"]), lambda b: (b["y"] * 2, b["w"])),
        (None, lambda b: b),
    ],
    ids=["pair", "list", "one", "several inputs", "named inputs", "function", "nothing"],
)
def test_fields_say_what_is_x_and_y(fields, expected):
    found = adapter.PyDataset(nested_stream(), 3, fields=fields, epochs=None)[0]
    wanted = expected(next(iter(nested_stream().batch(3))))
    assert keras.tree.is_nested(found)
    keras.tree.map_structure(np.testing.assert_array_equal, found, wanted)


def test_records_that_are_tuples_are_what_keras_takes():
    stream = yogadl.from_source((np.arange(8.0), np.arange(8), np.ones(8))).stream()
    x, y, w = adapter.PyDataset(stream, 4, epochs=None)[1]
    assert (x.tolist(), y.tolist(), w.tolist()) == ([4, 5, 6, 7], [4, 5, 6, 7], [1, 1, 1, 1])
    y, x = adapter.PyDataset(stream, 4, fields=(1, 0), epochs=None)[0]
    assert (x.dtype, y.dtype) == (np.float64, np.int64)


def test_padding_becomes_a_weight_of_zero():
    stream = stream_of(5, shard_rank=1, num_shards=2, pad_shard_remainder=True)
    dataset = adapter.PyDataset(
        stream,
        2,
        fields=lambda batch: (batch["x"], batch["id"], np.where(batch["is_padding"], 0.0, 1.0)),
        padding_field="is_padding",
        epochs=None,
    )
    assert [dataset[number][2].tolist() for number in range(4)] == [[1, 1], [0], [1, 1], [0]]


def test_records_of_four_items_must_be_chosen_from():
    stream = yogadl.from_source(tuple(np.arange(5) for _ in range(4))).stream()
    with pytest.raises(ConfigurationError, match=r"4 items.*fields=\(0, 2\)"):
        adapter.PyDataset(stream, 2, epochs=None)
    assert len(adapter.PyDataset(stream, 2, fields=(0, 2), epochs=None)[0]) == 2


@pytest.mark.parametrize(
    ("ref", "says", "of"),
    [
        (
            yogadl.from_source([{"x": "ab" * i, "label": i} for i in range(4)]),
            r"field 'x' varies in length.*a function",
            len,
        ),
        (
            yogadl.from_source([{"x": {"a": i}, "label": i} for i in range(4)], json="x"),
            r"field 'x' .*text or json.*a function",
            lambda tree: 2 * tree["a"],
        ),
    ],
    ids=["text", "json"],
)
def test_fields_of_varying_length_need_a_function(ref, says, of):
    for fields in (None, ("x", "label")):
        with pytest.raises(UnsupportedDataError, match=says):
            adapter.PyDataset(ref.stream(), 2, fields=fields, epochs=None)
    assert adapter.PyDataset(ref.stream(), 2, fields="label", epochs=None)[1][0].tolist() == [2, 3]
    made = adapter.PyDataset(
        ref.stream(), 2, fields=lambda b: (np.array(list(map(of, b["x"]))), b["label"]), epochs=None
    )
    assert made[1][0].tolist() == [4, 6]


# What is refused.


def checkpoint_of(dataset, name="run.keras"):
    return adapter.Checkpoint(name, dataset)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda made: made(fields=("x", "z")),
            r"fields has 'z', which the record does not have; it has \['id', 'x'\]",
        ),
        (lambda made: made(fields=("x", "id", "x", "id")), "has 4 items"),
        (lambda made: made(fields=()), "has 0 items"),
        (lambda made: made(fields=("x", None)), "fields has None: give a key"),
        (
            lambda _: adapter.PyDataset(
                yogadl.from_source(np.arange(5)).stream(), 2, fields="x", epochs=None
            ),
            "single value",
        ),
        (lambda made: made(prefetch=-1), "prefetch must be a whole number of at least 0, not -1"),
        (lambda made: made(threads=0), "threads must be a whole number of at least 1, not 0"),
        (lambda made: made(prefetch=0, threads=2), "threads=2 read ahead: pass prefetch=1 or more"),
        (lambda _: adapter.PyDataset(stream_of(num_shards=2), 10, epochs=None), "drop_shard_remainder"),
        (lambda _: checkpoint_of([]), r"PyDataset, not of a builtins.list: make one .*tf\.data"),
        (lambda made: checkpoint_of(made(epochs=1)), "has 11 batches: make it with epochs=None"),
        (lambda made: checkpoint_of(made(), "run"), r"must end in \.keras"),
    ],
)
def test_what_makes_no_sense_is_refused(call, words):
    def made(**options):
        return adapter.PyDataset(stream_of(), 10, **{"epochs": None, **options})

    with pytest.raises(ConfigurationError, match=words):
        call(made)


def test_the_number_of_epochs_must_be_said():
    with pytest.raises(TypeError, match="epochs"):
        adapter.PyDataset(stream_of(), 10)


def test_without_a_size_items_come_as_they_are():
    dataset = adapter.PyDataset(stream_of(), epochs=1)
    assert [int(dataset[number]["id"]) for number in range(3)] == stream_of().indices()[:3].tolist()


def test_uneven_shards_go_with_an_end():
    assert adapter.PyDataset(stream_of(num_shards=2), 10, epochs=1).num_batches == 6


def test_more_workers_of_keras_are_refused():
    dataset = adapter.PyDataset(stream_of(), 10, epochs=None)
    with pytest.raises(ConfigurationError, match="one worker"):
        dataset.workers = 4
    with pytest.raises(ConfigurationError, match="one worker"):
        dataset.use_multiprocessing = True
    assert (dataset.workers, dataset.use_multiprocessing) == (1, False)


# Checkpoints, as far as they need no training.


def test_a_checkpoint_that_was_never_saved_restores_nothing(tmp_path):
    checkpoint = adapter.Checkpoint(tmp_path / "run.keras", adapter.PyDataset(stream_of(), 10, epochs=None))
    assert checkpoint.restore() is None
    assert list(checkpoint.parts(epochs=3)) == [{"initial_epoch": 0, "epochs": 3, "steps_per_epoch": 11}]


def test_a_checkpoint_refuses_epochs_that_are_shorter_than_what_is_done(tmp_path):
    checkpoint = adapter.Checkpoint(tmp_path / "run.keras", adapter.PyDataset(stream_of(), 10, epochs=None))
    checkpoint.step = 7
    assert next(checkpoint.parts(3)) == {"initial_epoch": 0, "epochs": 1, "steps_per_epoch": 4}
    with pytest.raises(ConfigurationError, match="epoch 0 has 7 steps, but 7 are done already"):
        next(checkpoint.parts(3, steps_per_epoch=7))


@pytest.mark.parametrize("content", [b"not a zip", b""])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content):
    (tmp_path / "run.keras").write_bytes(content)
    checkpoint = adapter.Checkpoint(tmp_path / "run.keras", adapter.PyDataset(stream_of(), 10, epochs=None))
    with pytest.raises(CacheFormatError, match=r"run.keras is not a checkpoint"):
        checkpoint.restore()


def make_model(units=8, rate=0.01, **options):
    layers = keras.layers
    inputs = keras.Input([2])
    hidden = layers.Dropout(0.2)(layers.Dense(units, activation=options.pop("activation", "tanh"))(inputs))
    model = keras.Model(inputs, layers.Dense(1)(layers.concatenate([hidden, inputs])))
    optimizer = options.pop("optimizer", keras.optimizers.Adam)(rate)
    model.compile(optimizer, **{"loss": keras.losses.MeanSquaredError(), "metrics": ["mae"], **options})
    return model


def make_unbuilt():
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("adam", "mse", weighted_metrics=[keras.metrics.MeanAbsoluteError()])
    return model


def trained(tmp_path, make):
    """Return a new checkpoint on the path of one that was saved in training."""
    checkpoints = []
    for _ in range(2):
        dataset = adapter.PyDataset(stream_of(), 10, fields=("x", "id"), epochs=None)
        checkpoints.append(adapter.Checkpoint(tmp_path / "run.keras", dataset))
    model = checkpoints[0].restore(make)
    model.optimizer.learning_rate = 0.125  # as ReduceLROnPlateau does
    model.fit(
        checkpoints[0]._dataset, steps_per_epoch=2, callbacks=[checkpoints[0]], verbose=0, shuffle=False
    )
    return checkpoints[1]


ABOUT_ARRAYS = "ignore:__array__ implementation:DeprecationWarning"  # of how Keras makes them of its tensors


def make_mixed():
    keras.config.set_dtype_policy("mixed_bfloat16")
    return make_unbuilt()


@pytest.fixture
def policy():
    yield
    keras.config.set_dtype_policy("float32")


@pytest.mark.usefixtures("policy")
@pytest.mark.filterwarnings(ABOUT_ARRAYS)
@pytest.mark.parametrize("make", [make_model, make_unbuilt, make_mixed])
def test_a_model_that_is_made_as_before_is_restored(tmp_path, make):
    checkpoint = trained(tmp_path, make)
    keras.config.set_dtype_policy("float32")  # as a process begins
    model = checkpoint.restore(make)
    assert float(model.optimizer.learning_rate) == 0.125


@pytest.mark.filterwarnings(ABOUT_ARRAYS)
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"units": 9}, r"layers\[1\].units: 8 saved, 9 now"),
        ({"activation": "relu"}, r"layers\[1\].activation: 'tanh' saved, 'relu' now"),
        ({"optimizer": keras.optimizers.SGD}, "compile_config.optimizer: Adam saved, SGD now"),
        ({"loss": "mae"}, "compile_config.loss: MeanSquaredError saved, 'mae' now"),
        ({"metrics": ["mae", "mse"]}, r"compile_config.metrics: \['mae'\] saved, \['mae', 'mse'\] now"),
    ],
    ids=str,
)
def test_a_model_that_was_changed_since_is_not_silently_restored(tmp_path, changed, words):
    checkpoint = trained(tmp_path, make_model)
    before = checkpoint.cursor()
    with pytest.raises(ConfigurationError, match=rf"another model than make_model makes now: {words}.*Move"):
        checkpoint.restore(lambda: make_model(**changed))
    assert checkpoint.cursor() == before
    assert checkpoint.restore() is not None


def test_a_dataset_that_ends_tells_that_nothing_is_left_of_the_cursors_epoch(caplog):
    cursor = stream_of().cursor(RECORDS)
    assert adapter.PyDataset(stream_of(cursor=cursor), 10, epochs=None).steps_left > 0
    assert not caplog.records
    assert adapter.PyDataset(stream_of(cursor=cursor), 10, epochs=1).num_batches == 0
    (told,) = caplog.records
    assert "stream.cursor(0, epoch=1)" in told.message
