"""A pipeline cached in one line, and the documented names of yogadl 0.1.4."""

import contextlib
import os
import re
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest
import tensorflow as tf
from inside import graph_of, set_constants
from programs import programs

import yogadl
from yogadl.adapters import tensorflow as adapter
from yogadl.errors import ConfigurationError


def squares(ran=None, factor=1):
    def gen():
        if ran is not None:
            ran.append(1)
        yield from range(30)

    dataset = tf.data.Dataset.from_generator(gen, output_signature=tf.TensorSpec([], tf.int64))
    return dataset.map(lambda x: x * x * factor)


def test_the_pipeline_before_runs_once(storage):
    ran = []
    for _ in range(2):
        dataset = squares(ran).apply(adapter.cache(storage, "squares", "1"))
        assert [int(x) for x in dataset] == [i * i for i in range(30)]
        assert [int(x) for x in dataset] == [i * i for i in range(30)]
    assert len(ran) == 1


def test_the_options_are_the_streams(storage):
    ref = None
    found = []
    for rank in range(2):
        options = {"shuffle": True, "shuffle_seed": 7, "shard_rank": rank, "num_shards": 2}
        dataset = squares().apply(adapter.cache(storage, "squares", "1", **options))
        ref = storage.fetch("squares", "1")
        ours = [int(x) for x in dataset.map(lambda x: x + 1)]
        assert ours == [int(ref[int(i)]) + 1 for i in ref.stream(**options).indices()]
        found += ours
    assert sorted(found) == [i * i + 1 for i in range(30)]


def test_another_graph_is_warned_of_once_and_served(storage):
    squares().apply(adapter.cache(storage, "squares", "1"))
    changed = adapter.cache(storage, "squares", "1")
    with pytest.warns(UserWarning, match="graph") as caught:
        squares(factor=2).apply(changed)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = squares(factor=2).apply(changed)
    assert [int(x) for x in dataset] == [i * i for i in range(30)]


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize(
    ("build", "has_graph"),
    [
        (lambda storage: squares().apply(adapter.cache(storage, "squares", "1")), True),
        (lambda storage: storage.submit(squares(), "squares", "1"), True),
        (lambda storage: storage.submit(np.arange(30) ** 2, "squares", "1"), False),
    ],
    ids=["cached", "submitted", "of arrays"],
)
def test_a_version_is_served_with_a_warning_if_it_has_another_graph(storage, build, has_graph, factor):
    build(storage)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = squares(factor=factor).apply(adapter.cache(storage, "squares", "1"))
    assert ["graph" in str(warning.message) for warning in caught] == [True] * (has_graph and factor == 2)
    assert [int(x) for x in dataset] == [i * i for i in range(30)]


def test_the_hash_of_the_graph_is_in_the_manifest(storage):
    squares().apply(adapter.cache(storage, "squares", "1"))
    sha256 = graph_of(squares()).sha256()
    assert storage.info("squares", "1").builder["graph"] == sha256
    storage.submit(squares(), "squares", "2")
    assert storage.info("squares", "2").builder["graph"] == sha256


def test_a_function_that_returns_a_pipeline_is_cacheable(storage):
    calls = []

    @storage.cacheable("squares", "1")
    def make():
        calls.append(1)
        return squares()

    for _ in range(2):
        assert [int(x) for x in make()] == [i * i for i in range(30)]
    assert len(calls) == 1


def cubes(factor=1):
    return tf.data.Dataset.range(30).map(lambda x: x * x * x * factor)


def test_with_auto_another_graph_is_another_version(storage, caplog):
    for factor in (1, 2, 1):
        with warnings.catch_warnings(), caplog.at_level("INFO", "yogadl"):
            warnings.simplefilter("error")
            dataset = cubes(factor).apply(adapter.cache(storage, "cubes", "auto"))
        assert [int(x) for x in dataset] == [i**3 * factor for i in range(30)]
    versions = storage.versions("cubes")
    assert len(versions) == 2
    assert all(re.fullmatch("auto-[0-9a-f]{16}", version) for version in versions)
    said = [message for message in caplog.messages if "it differs from" in message]
    assert len(said) == 1
    assert "argument 'graph'" in said[0]


AUTO = """
import sys
import keras
import tensorflow as tf
import yogadl
from yogadl.adapters import tensorflow as adapter
from yogadl.adapters.tensorflow._source import graph_of

storage = yogadl.open_storage(sys.argv[1])
layer = keras.layers.Dense(1, kernel_initializer="ones")
layer.build((1, 1))
for weight, word in [pair.split(",") for pair in sys.argv[2:]]:
    variable = tf.Variable([float(weight)])
    initial = tf.lookup.KeyValueTensorInitializer([0, 1], [5, int(word)])
    table = tf.lookup.StaticHashTable(initial, -1)
    def of(x):
        return layer(variable[tf.newaxis])[0], table.lookup(tf.cast(x, tf.int32))
    dataset = tf.data.Dataset.range(3).map(of).apply(adapter.cache(storage, "set", "auto"))
    assert [(float(x[0]), int(y)) for x, y in dataset][1] == (float(weight), int(word))
    calls = tf.data.Dataset.from_tensor_slices([1, 2]).interleave(lambda x: tf.data.Dataset.range(3))
    number = float(weight)
    calls = calls.map(lambda x: (tf.cast(x, tf.float32) * number, tf.numpy_function(abs, [x], tf.int64)))
    print(len(storage.versions("set")), graph_of(calls.shuffle(10)).sha256())
"""


def test_with_auto_version_and_hash_are_the_same_in_every_process_and_count_what_variables_hold(tmp_path):
    # The first in an interpreter of its own, which has another seed for Python's hashes.
    command = [sys.executable, "-c", AUTO, str(tmp_path), "2,7"]
    environment = os.environ | {"KERAS_BACKEND": "tensorflow"}
    fresh = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True, env=environment)
    count, sha256 = fresh.stdout.split()
    assert count == "1"
    # The names of functions, variables and tables have counters, and Keras's are random.
    ended = programs("tensorflow").run(AUTO, tmp_path, "3,7", "2,7", "2,8")
    assert ended.returncode == 0, ended.stderr
    counts, hashes = zip(*(line.split() for line in ended.stdout.splitlines()[-3:]), strict=True)
    assert counts == ("2", "2", "3")
    assert hashes[0] != sha256
    assert hashes[1:] == (sha256, sha256)


def a_table():
    table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, -2, -3)
    table.insert([1], [5])
    return tf.data.Dataset.range(3).map(table.lookup)


def a_queue():
    queue = tf.queue.FIFOQueue(3, [tf.int64], shapes=[[]])
    return tf.data.Dataset.range(3).map(lambda x: queue.dequeue())


def calling(function):
    return lambda: tf.data.Dataset.range(3).map(lambda x: function(abs, [x], tf.int64))


def choosing():
    choice = tf.data.Dataset.range(2).map(
        lambda x: tf.ensure_shape(tf.numpy_function(abs, [x], tf.int64), [])
    )
    return tf.data.Dataset.choose_from_datasets([cubes(1), cubes(2)], choice)


PYTHON, CONTENT = "calls Python", "content is not in its graph"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (squares, PYTHON), (calling(tf.numpy_function), PYTHON), (calling(tf.py_function), PYTHON),
        (choosing, PYTHON), (a_table, CONTENT), (a_queue, CONTENT),
    ],
    ids=["from_generator", "numpy_function", "py_function", "choice", "table", "queue"],
)  # fmt: skip
def test_with_auto_a_pipeline_that_its_graph_does_not_say_is_refused_before_the_build(storage, make, says):
    with pytest.raises(ConfigurationError, match=rf"{says}.*name the version yourself"):
        make().apply(adapter.cache(storage, "set", "auto"))
    assert storage.datasets() == []


def test_with_auto_a_pipeline_that_shuffles_and_caches_is_one_version(storage):
    for expected in (pytest.warns(UserWarning, match="shuffles"), contextlib.nullcontext()):
        with expected:
            tf.data.Dataset.range(9).cache().shuffle(9).apply(adapter.cache(storage, "set", "auto"))
    assert len(storage.versions("set")) == 1


def test_with_auto_a_pipeline_too_large_for_a_hash_is_refused(storage, monkeypatch):
    set_constants(monkeypatch, LARGE_GRAPH_BYTES=100)
    with pytest.raises(ConfigurationError, match=r"no graph.*name the version yourself"):
        tf.data.Dataset.from_tensor_slices(np.zeros(100)).apply(adapter.cache(storage, "set", "auto"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seed": 3}, "cache has no argument 'seed': did you mean shuffle_seed=?"),
        ({"shufle": True}, "cache has no argument 'shufle': did you mean shuffle="),
        ({"batch_size": 3}, "cache has no argument 'batch_size'"),
        ({"shuffle": "yes"}, "shuffle must be True, False or an order"),
        ({"shuffle_seed": 1.5}, "shuffle_seed must be a whole number"),
        ({"shard_rank": 2, "num_shards": 2}, "shard_rank is 2, but num_shards is 2"),
        ({"drop_shard_remainder": True, "pad_shard_remainder": True}, "exclude each other"),
        ({"start_offset": 3, "cursor": {}}, "start_offset and cursor"),
        ({"skip_finished_epoch": 1}, "skip_finished_epoch must be True or False"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused_before_the_build(storage, options, says):
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        adapter.cache(storage, "squares", "1", **options)


def test_options_may_ask_for_more_than_a_small_dataset_has(storage):
    options = {"shard_rank": 99, "num_shards": 100, "start_offset": 1000, "shuffle": yogadl.Blocks(10, 2)}
    assert list(squares().apply(adapter.cache(storage, "squares", "1", **options))) == []


def test_a_cursor_goes_on_where_it_was_taken(storage):
    squares().apply(adapter.cache(storage, "squares", "1"))
    cursor = storage.fetch("squares", "1").stream(shuffle=True).cursor(10)
    dataset = squares().apply(adapter.cache(storage, "squares", "1", shuffle=True, cursor=cursor))
    order = storage.fetch("squares", "1").stream(shuffle=True).indices()
    assert [int(x) for x in dataset] == [int(i) ** 2 for i in order[10:]]


def test_a_cursor_at_an_epochs_end_can_begin_the_next(storage):
    list(squares().apply(adapter.cache(storage, "squares", "1")))
    stream = storage.fetch("squares", "1").stream(shuffle=True)
    options = {"shuffle": True, "cursor": stream.cursor(len(stream)), "skip_finished_epoch": True}
    dataset = squares().apply(adapter.cache(storage, "squares", "1", **options)).repeat()
    assert [int(x) for x in dataset.take(9)] == [int(i) ** 2 for i in stream.indices(1)[:9]]


def test_a_folders_name_in_place_of_a_storage_is_refused():
    with pytest.raises(ConfigurationError, match=r"cache takes a storage, .* not 'some/folder'"):
        adapter.cache("some/folder", "squares", "1")


# The documented use of 0.1.4, in our own words: a walk through all of it, and a DataRef of one's own.

WALK = """
    import os
    import sys
    import tensorflow as tf
    import yogadl
    import yogadl.storage

    os.makedirs(sys.argv[1], exist_ok=True)
    configurations = yogadl.storage.LFSConfigurations(sys.argv[1])
    storage = yogadl.storage.LFSStorage(configurations)
    storage.submit(tf.data.Dataset.range(10), "numbers", "1.0")

    import yogadl.tensorflow

    numbers = storage.fetch("numbers", "1.0")
    assert isinstance(storage, yogadl.Storage) and isinstance(numbers, yogadl.DataRef) and len(numbers) == 10
    stream = numbers.stream(start_offset=5, shuffle=True, shuffle_seed=777)
    assert isinstance(stream, yogadl.Stream)
    records = yogadl.tensorflow.make_tf_dataset(stream)
    batches = [batch.numpy().tolist() for batch in records.repeat(3).batch(5)]
    assert [len(batch) for batch in batches] == [5] * 5, batches
    epochs = [batches[0], batches[1] + batches[2], batches[3] + batches[4]]
    assert sorted(epochs[1]) == sorted(epochs[2]) == list(range(10)) and epochs[1] != epochs[2], epochs
    assert epochs[0] == stream.indices(0).tolist()

    runs = []

    @storage.cacheable("numbers", "2.0")
    def make_records():
        runs.append(1)
        return tf.data.Dataset.range(10).map(lambda x: 2 * x)

    for _ in range(2):
        records = yogadl.tensorflow.make_tf_dataset(make_records().stream())
        found = [batch.numpy().tolist() for batch in records.repeat(3).batch(5)]
        assert found == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]] * 3, found
    assert len(runs) == 1
    print("walked")
    """

PLACES = """
    import sys
    import tensorflow as tf
    import yogadl
    import yogadl.storage
    from yogadl import tensorflow as yogadl_tensorflow

    storage = yogadl.storage.LFSStorage(yogadl.storage.LFSConfigurations(storage_dir_path=sys.argv[1]))
    storage.submit(tf.data.Dataset.range(10), "numbers", "0")
    stream = storage.fetch("numbers", "0").stream(0, True, False, 23, 1, 2, True)
    assert len(stream) == stream.length == 5
    assert sorted(int(x) for x in stream.iterator_fn()) == sorted(stream.indices(0).tolist())
    dataset = yogadl_tensorflow.make_tf_dataset(stream)
    orders = [[int(x) for x in dataset] for _ in range(2)]
    assert len(orders[0]) == len(orders[1]) == 5 and orders[0] != orders[1], orders
    print("placed")
    """

OWN_DATAREF = """
    import itertools
    import tensorflow as tf
    import yogadl
    import yogadl.tensorflow

    class Counting(yogadl.DataRef):
        def __init__(self):
            self.given = itertools.count(2**32 - 10)

        def __len__(self):
            return 10

        def stream(self, start_offset=0, shuffle=False, skip_shuffle_at_epoch_end=False, shuffle_seed=None,
                   shard_rank=0, num_shards=1, drop_shard_remainder=False) -> yogadl.Stream:
            is_first = True

            def iterator_fn():
                nonlocal is_first
                start = start_offset + shard_rank if is_first else shard_rank
                is_first = False
                for _ in range(start, len(self), num_shards):
                    yield next(self.given)

            return yogadl.Stream(iterator_fn, len(self), output_types=tf.uint32,
                                 output_shapes=tf.TensorShape([]))

    records = yogadl.tensorflow.make_tf_dataset(Counting().stream(start_offset=4))
    batches = [batch for batch in records.batch(5)]
    assert [batch.dtype for batch in batches] == [tf.uint32] * 2
    assert [len(batch) for batch in batches] == [5, 1]
    assert batches[0].numpy().tolist() == list(range(2**32 - 10, 2**32 - 5))
    print("counted")
    """


@pytest.mark.parametrize(
    ("script", "word"),
    [(WALK, "walked"), (PLACES, "placed"), (OWN_DATAREF, "counted")],
    ids=["walk", "places", "own"],
)
def test_what_0_1_4_documented_runs_as_it_was(tmp_path, script, word):
    strict = "import warnings; warnings.simplefilter('error', UserWarning)\n"
    done = programs("tensorflow").run(strict + textwrap.dedent(script), tmp_path)
    assert done.returncode == 0, done.stderr
    assert word in done.stdout
