"""Tensors with values and counts around each size constant come back, out of tf.data and into it again."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from inside import _build_state as states
from inside import open_source
from sizes import (
    SCALED,
    around,
    arrangements,
    check_reads,
    constant,
    made_small,
    records_of,
    scaled,
    shuffled,
    value,
)

from yogadl.adapters import tensorflow as adapter

SMALLER = SCALED | {
    "adapters.tensorflow._loader._GATHERED_BYTES": 2**13,
    "adapters.tensorflow._loader._GATHERED_RECORDS": 30,
    "adapters.tensorflow._source._CHUNK_BYTES": 2**14,
    "adapters.tensorflow._source._CHUNK_RECORDS": 90,
}
OF_VALUES = [
    "_format.layout.HEAP_BLOCK_BYTES",
    "_core.memory._LEAST_BYTES",
    "adapters.tensorflow._loader._GATHERED_BYTES",
    "adapters.tensorflow._source._CHUNK_BYTES",
]
OF_RECORDS = [
    ("adapters.tensorflow._loader._GATHERED_RECORDS", "numbers"),
    ("adapters.tensorflow._loader._GATHERED_RECORDS", "ragged"),
    ("adapters.tensorflow._source._CHUNK_RECORDS", "numbers"),
    ("adapters.tensorflow._source._LARGE_RECORDS", "images"),
    ("adapters.tensorflow._source._VARYING_RECORDS", "ragged"),
]


small = made_small(SMALLER)


def pipeline(kind, records):
    if kind == "bytes":
        values = [record["value"] for record in records]
        return tf.data.Dataset.from_tensor_slices({"value": values, "number": np.arange(len(records))})
    spec = {"value": tf.TensorSpec([None], tf.uint8), "number": tf.TensorSpec([], tf.int64)}
    return tf.data.Dataset.from_generator(lambda: iter(records), output_signature=spec)


def check_dataset(ref, records):
    """Fail unless tf.data gives exactly these records, one by one and in batches."""
    stream, expected = shuffled(ref, records)
    found = list(adapter.make_tf_dataset(stream).as_numpy_iterator())
    assert len(found) == len(expected)
    for one, record in zip(found, expected, strict=True):
        for name, wanted in record.items():
            assert np.array_equal(one[name], wanted), name
    found = list(adapter.make_tf_dataset(stream, batch_size=3))
    for first, batch in zip(range(0, len(expected), 3), found, strict=True):
        for name, column in batch.items():
            wanted = [record[name] for record in expected[first : first + 3]]
            rows = column.to_list() if isinstance(column, tf.RaggedTensor) else list(column.numpy())
            assert all(np.array_equal(*pair) for pair in zip(rows, wanted, strict=True)), name


@pytest.mark.parametrize("kind", ["bytes", "array"])
@pytest.mark.parametrize("name", OF_VALUES)
def test_values_of_sizes_around_a_constant_come_back(storage, kind, name):
    sizes = list(itertools.chain.from_iterable(arrangements(around(constant(name))).values()))
    records = records_of(kind, sizes)
    storage.submit(pipeline(kind, records), "d", "1")
    ref = storage.fetch("d", "1")
    check_reads(ref, records)
    check_dataset(ref, records)


@pytest.mark.parametrize("name", OF_VALUES)
def test_rows_of_sizes_around_a_constant_come_back(storage, name):
    limit = constant(name)
    records = [
        {str(size): value("fixed", size, seed) for size in around(limit)} | {"text": b"abc"[: seed % 4]}
        for seed in range(11)
    ]
    columns = {name: [record[name] for record in records] for name in records[0]}
    storage.submit(tf.data.Dataset.from_tensor_slices(columns), "d", "1")
    ref = storage.fetch("d", "1")
    check_reads(ref, records)
    check_dataset(ref, records)


MAKE = {
    "numbers": lambda n: {"number": n},
    "ragged": lambda n: {"number": n, "some": tf.range(n % 3)},
    "images": lambda n: {"number": n, "some": tf.fill(tf.stack([n % 3, 2, n % 2]), n)},
}


@pytest.mark.parametrize(("name", "kind"), OF_RECORDS)
def test_counts_around_a_constant_come_back(storage, name, kind):
    for count in around(constant(name)):
        storage.submit(tf.data.Dataset.range(count).map(MAKE[kind]), "d", str(count))
        ref = storage.fetch("d", str(count))
        assert np.array_equal(ref.gather(range(count))["number"], np.arange(count))
        found = list(adapter.make_tf_dataset(ref.stream()).as_numpy_iterator())
        assert [item["number"] for item in found] == list(range(count))
        if kind != "numbers":
            assert [item["some"].shape for item in found] == [ref[n]["some"].shape for n in range(count)]


def noted(states_, record):
    """Note where an iterator stands that has given so many numbers."""
    iterator = iter(tf.data.Dataset.range(1000))
    for _ in range(record):
        next(iterator)
    states_.note(iterator, record)


def test_states_of_sizes_around_what_is_held_are_noted_and_found():
    size = len(states._serialized(iter(tf.data.Dataset.range(1000))))
    for limit in (*around(size), 2 * size, 5 * size):
        held = {
            "adapters.tensorflow._source._MOST_BYTES": limit,
            "adapters.tensorflow._source._NOTE_INTERVAL_FACTOR": 0,
        }
        with scaled(held | {"adapters.tensorflow._source._HELD_BYTES": 2 * limit}):
            kept = states.IteratorStates("00" * 32)
            for record in range(12):
                noted(kept, record)
            saved = kept.save(11)
            if limit < size:
                assert saved is None
                continue
            again = states.IteratorStates("00" * 32)
            again.load(saved)
            state = again.nearest(11)
            iterator = iter(tf.data.Dataset.range(1000))
            assert states.restore(iterator, state)
            assert int(next(iterator)) == state.record <= 11


def test_what_a_pipeline_declares_of_its_shapes_is_final():
    assert open_source(tf.data.Dataset.range(3)).has_final_spec
