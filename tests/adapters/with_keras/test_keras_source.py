"""Keras's datasets as sources: their batches are taken apart into records."""

import itertools
from collections import namedtuple
from importlib.util import find_spec

import keras
import numpy as np
import pytest

import yogadl
from yogadl.errors import UnsupportedDataError

Pair = namedtuple("Pair", ["left", "right"])


class Batches(keras.utils.PyDataset):
    """A dataset of given batches, which notes what Keras's protocol calls."""

    def __init__(self, batches, count=...):
        super().__init__()
        self.batches = batches
        self.count = len(batches) if count is ... else count
        self.calls = []

    @property
    def num_batches(self):
        return self.count

    def __getitem__(self, index):
        self.calls.append(index)
        return self.batches[index]

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")


def pairs(*sizes):
    bounds = itertools.pairwise(np.cumsum([0, *sizes]))
    return [(np.arange(2 * a, 2 * b, dtype=np.float32).reshape(-1, 2), np.arange(a, b)) for a, b in bounds]


def test_batches_become_records(cached):
    dataset = Batches(pairs(4, 4, 3))
    ref = cached(dataset)
    assert len(ref) == 11
    assert dataset.calls == ["begin", 0, 1, 2, "end"]
    for number in range(11):
        x, y = ref[number]
        assert (x.tolist(), x.dtype, y) == ([2 * number, 2 * number + 1], np.float32, number)


@pytest.mark.parametrize(
    ("batch", "record"),
    [
        (np.arange(3), 1),
        ((np.arange(3),), (1,)),
        ([np.arange(3), np.zeros(3)], (1, 0.0)),
        ({"a": np.arange(3), "b": [np.ones(3), np.zeros(3)]}, {"a": 1, "b": [1.0, 0.0]}),
        (((np.arange(3), np.ones(3)), np.zeros(3), np.full(3, 0.5)), ((1, 1.0), 0.0, 0.5)),
        (Pair(np.arange(3), np.ones(3)), Pair(1, 1.0)),
        ({"text": np.array(["a", "b", "c"])}, {"text": "b"}),
    ],
    ids=["array", "x alone", "list", "dict", "inputs, y and weight", "namedtuple", "text"],
)
def test_the_tree_of_a_batch_is_that_of_the_records(cached, batch, record):
    ref = cached(Batches([batch, batch]))
    assert len(ref) == 6
    assert ref[1] == record
    assert type(ref[1]) is type(record) or isinstance(record, int | Pair)


class Length(keras.utils.PyDataset):
    """One whose length alone says how many batches there are."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return np.full(3, index)


def test_a_length_is_enough_and_does_not_make_batches_records(cached):
    assert [int(record) for record in cached(Length())] == [0, 0, 0, 1, 1, 1]
    with pytest.raises(UnsupportedDataError, match=r"storage\.submit"):
        yogadl.from_source(Length())


def test_batches_of_any_length_are_taken_even_none(cached):
    assert [int(y) for _, y in cached(Batches(pairs(0, 3, 0, 1, 5)))] == list(range(9))


def test_arrays_that_are_filled_again_and_again_are_copied(cached):
    class Filling(Batches):
        def __getitem__(self, index):
            self.batches[0][:] = index
            return self.batches[0]

    ref = cached(Filling([np.zeros(1000)], 50))
    assert [float(ref[number]) for number in (0, 999, 1000, 49_999)] == [0, 0, 1, 49]


def test_shapes_may_differ_between_batches(cached):
    ref = cached(Batches([np.ones((2, 3)), np.ones((1, 5))]))
    assert [record.shape for record in ref] == [(3,), (3,), (5,)]


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow")
@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
@pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX")
def test_tensors_of_all_backends_are_taken(cached):
    import jax.numpy as jnp
    import tensorflow as tf
    import torch

    batch = {"tf": tf.range(3), "torch": torch.ones(3, 2, requires_grad=True), "jax": jnp.zeros(3, jnp.int8)}
    record = cached(Batches([batch]))[2]
    assert (record["tf"], record["torch"].tolist(), record["jax"].dtype) == (2, [1, 1], np.int8)


@pytest.mark.skipif(find_spec("tf_keras") is None, reason="needs Keras 2 (tf_keras)")
def test_a_sequence_of_keras_2_is_taken(cached):
    import tf_keras

    class Squares(tf_keras.utils.Sequence):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return np.arange(2 * index, 2 * index + 2), np.full(2, index)

    assert [(int(x), int(y)) for x, y in cached(Squares())] == [
        (0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2),
    ]  # fmt: skip


def test_a_stream_as_a_dataset_is_a_source_again(cached):
    from yogadl.adapters import keras as adapter

    ref = yogadl.from_source({"x": np.arange(10.0), "y": np.arange(10)})
    again = cached(adapter.PyDataset(ref.stream(shuffle=True), 4, fields=("x", "y"), epochs=1))
    assert [int(y) for _, y in again] == ref.stream(shuffle=True).indices().tolist()


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([(np.arange(3), np.arange(2))], r"arrays of batch 0 are of different lengths: {'0': 3, '1': 2}"),
        ([np.arange(3), np.float32(1)], r"batch 1 is .*not an array with a row per record"),
        ([(np.arange(3), None)], r"'1' of batch 0 is None"),
        ([{"a": np.arange(2)}, {"b": np.arange(2)}], r"record 2.*keys \['a'\]"),
        ([np.arange(2), np.array([0.5, 1.5])], "record 2"),
        ([], "no records"),
        ([np.arange(0)], "no records"),
        (Batches(pairs(3), None), "has no end"),
    ],
    ids=["lengths", "scalar", "None", "keys", "dtype", "nothing", "empty", "endless"],
)
def test_what_is_no_batch_is_refused(cached, batches, message):
    with pytest.raises(UnsupportedDataError, match=message):
        cached(batches if isinstance(batches, Batches) else Batches(batches))


def test_an_error_of_the_dataset_says_at_which_batch(cached):
    with pytest.raises(IndexError) as caught:
        cached(Batches(pairs(3, 3), 5))
    assert "while reading batch 2 of the Batches" in caught.value.__notes__
