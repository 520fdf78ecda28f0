"""A pipeline cached in one line, and the documented names of yogadl 0.1.4."""

import subprocess
import sys
import textwrap
import warnings

import pytest
import tensorflow as tf

import yogadl
from yogadl.adapters import tensorflow as adapter


@pytest.fixture
def storage(tmp_path):
    return yogadl.open_storage(tmp_path)


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
    with pytest.warns(UserWarning, match="graph"):
        squares(factor=2).apply(changed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = squares(factor=2).apply(changed)
    assert [int(x) for x in dataset] == [i * i for i in range(30)]


def test_the_same_graph_is_not_warned_of(storage):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            squares().apply(adapter.cache(storage, "squares", "1"))


def test_the_hash_of_the_graph_is_in_the_manifest(storage):
    squares().apply(adapter.cache(storage, "squares", "1"))
    arguments = storage.info("squares", "1").builder["arguments"]
    assert adapter._graph(squares()).sha256() in arguments["graph"]


def test_a_function_that_returns_a_pipeline_is_cacheable(storage):
    calls = []

    @storage.cacheable("squares", "1")
    def make():
        calls.append(1)
        return squares()

    for _ in range(2):
        assert [int(x) for x in make()] == [i * i for i in range(30)]
    assert len(calls) == 1


# The documented use of 0.1.4, in our own words: a walk through all of it, and a DataRef of one's own.

WALK = """
    import sys
    import tensorflow as tf
    import yogadl
    import yogadl.storage
    from yogadl import tensorflow as yogadl_tensorflow

    configurations = yogadl.storage.LFSConfigurations(storage_dir_path=sys.argv[1])
    storage = yogadl.storage.LFSStorage(configurations)
    storage.submit(tf.data.Dataset.range(10), "numbers", "0")
    numbers = storage.fetch("numbers", "0")
    assert isinstance(storage, yogadl.Storage) and isinstance(numbers, yogadl.DataRef)

    stream = numbers.stream(start_offset=0, shuffle=True, skip_shuffle_at_epoch_end=False, shuffle_seed=23,
                            shard_rank=0, num_shards=2, drop_shard_remainder=True)
    assert isinstance(stream, yogadl.Stream) and len(stream) == 5
    assert sorted(int(x) for x in stream.iterator_fn()) == sorted(stream.indices(0).tolist())
    dataset = yogadl_tensorflow.make_tf_dataset(stream)
    orders = [[int(x) for x in dataset] for _ in range(2)]
    assert len(orders[0]) == len(orders[1]) == 5 and orders[0] != orders[1], orders

    @storage.cacheable("decorated", "1")
    def make_records(count):
        return tf.data.Dataset.range(count)

    stream = make_records(7).stream()
    assert [int(x) for x in yogadl.tensorflow.make_tf_dataset(stream)] == list(range(7))
    print("walked")
    """

OWN_DATAREF = """
    import tensorflow as tf
    import yogadl
    import yogadl.tensorflow

    class Counting(yogadl.DataRef):
        def __init__(self, count):
            self.count = count

        def stream(self, start_offset=0, shuffle=False, skip_shuffle_at_epoch_end=False, shuffle_seed=None,
                   shard_rank=0, num_shards=1, drop_shard_remainder=False):
            def records():
                yield from range(start_offset + shard_rank, self.count, num_shards)

            return yogadl.Stream(iterator_fn=records, length=self.count // num_shards,
                                 output_types=tf.int64, output_shapes=tf.TensorShape([]))

        def __len__(self):
            return self.count

    stream = Counting(10).stream(shard_rank=1, num_shards=2)
    dataset = yogadl.tensorflow.make_tf_dataset(stream)
    assert [int(x) for x in dataset] == [1, 3, 5, 7, 9] == [int(x) for x in dataset]
    print("counted")
    """


@pytest.mark.parametrize(
    ("script", "word"), [(WALK, "walked"), (OWN_DATAREF, "counted")], ids=["walk", "own"]
)
def test_what_0_1_4_documented_runs_as_it_was(tmp_path, script, word):
    command = [sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert word in done.stdout


def test_importing_yogadl_does_not_load_tensorflow():
    code = "import sys, yogadl, yogadl.storage, yogadl.adapters; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
