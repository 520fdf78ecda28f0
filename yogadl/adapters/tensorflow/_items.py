"""Make a dataset of the numbered batches of a stream: each iteration is an epoch; with checkpoints."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from yogadl._core.memory import BatchMemory, settle_allocator
from yogadl._stream import NumberedBatches
from yogadl.adapters.tensorflow._components import Component
from yogadl.adapters.tensorflow._gather import FOREIGN, EpochTokens, Gather
from yogadl.adapters.tensorflow._specs import Dataset, Tensor
from yogadl.adapters.tensorflow._state import EpochCount
from yogadl.adapters.tensorflow._tensors import without_autograph


def items_of(
    numbered: NumberedBatches, components: list[Component], kind: str, ahead: int, build: Callable[..., Any]
) -> tuple[Dataset, EpochCount]:
    """Return a dataset of all items of an epoch, which reads the next epoch at each iteration; and its count.

    Args:
        numbered: The items, as batches of the stream.
        components: The components of an item.
        kind: "records" or "batches": the form of the elements, since the checkpoints of the two differ.
        ahead: The number of items to read ahead.
        build: A function that makes an element of the tensors of all components.
    """
    seed = _seed(numbered, [component.name for component in components], kind)
    begun, full = numbered.stream.start.epoch, numbered.count(numbered.stream.start.epoch + 1)
    identity = int.from_bytes(seed[16:24], "little") >> 1
    random = _random(seed)
    epochs = EpochTokens(lambda count: _tokens(seed, count), begun)
    memory = BatchMemory()
    settle_allocator()  # strings are copied in TensorFlow's threads, and freed in the consumer's
    gather = Gather(numbered, epochs, memory)
    names = [name for component in components for name in component.dtypes]
    dtypes = [tf.int64, *map(tf.dtypes.as_dtype, names)]

    def read(made: Any, pair: Any, item: Any) -> list[Any]:
        with gather.calls:
            columns, padding = gather.read(int(made), _joined(*pair.tolist()), int(item))
            arrays = (array for component in components for array in component.pack(columns, padding))
            return [np.int64(identity), *map(memory.aligned, arrays)]

    def check(state: Tensor, whose: Tensor, *tensors: Tensor) -> Any:
        # tf.debugging is not used: with it the start of each iterator takes 5 ms longer.
        is_own = tf.equal(whose, np.int64(identity))
        assertion = tf.raw_ops.Assert(condition=is_own, data=[f"CursorError: {FOREIGN}"])
        with tf.control_dependencies([assertion]):
            return state, build(*map(tf.identity, tensors))

    items = _read(_numbers(_random(seed), random), read, dtypes).prefetch(ahead)
    items = items.scan(tf.constant(0), without_autograph(lambda state, element: check(state, *element)))
    if numbered.count(begun) == full:
        items = items.apply(tf.data.experimental.assert_cardinality(full))
    return items, EpochCount(identity, random, epochs)


def _numbers(made: Dataset, begun: Dataset) -> Dataset:
    """Return an endless dataset of (number of the iterator, numbers of the epoch, number of the item).

    The numbers of an epoch are drawn when an iterator is first read, not when it is made: tf.data makes
    iterators that it never reads, at the end of a `repeat` and when a checkpoint is restored. The inner
    function is called once an epoch, because a call for every item would take 0.1 ms each time.

    Args:
        made: The dataset from which numbers of iterators are drawn.
        begun: The dataset from which numbers of epochs are drawn.
    """

    def of_epoch(number: Tensor, pair: Tensor) -> Dataset:
        constants = tf.data.Dataset.from_tensors((number, pair)).repeat()
        items = tf.data.Dataset.range(np.iinfo(np.int64).max)
        return tf.data.Dataset.zip((constants, items))

    # tf.data begins a concatenated dataset only after the first one, which is empty, has ended.
    pairs = tf.data.Dataset.range(0).concatenate(begun).batch(2)
    return tf.data.Dataset.zip((made, pairs)).flat_map(without_autograph(of_epoch))


def _read(numbers: Dataset, read: Callable[..., Any], dtypes: list[Any]) -> Dataset:
    """Return a dataset of the results of `read`, until `read` raises StopIteration.

    A checkpoint contains the epoch only while the random dataset's iterator is held. Most stages drop their
    input when it ends, though the last items may still wait in a buffer. The stage below does not, so this
    stage has to end the epoch. `Dataset.map` can't do this: for that stage the exception is a failure.
    """
    # Two calls at a time: TensorFlow processes one item while the other is gathered (benchmarks/tf_data.py).
    function = tf.function(
        lambda *numbers: tf.numpy_function(read, numbers, dtypes, stateful=False),
        input_signature=tf.nest.flatten(numbers.element_spec),
        autograph=False,
    ).get_concrete_function()
    variant = tf.raw_ops.ParallelMapDatasetV2(
        input_dataset=tf.data.experimental.to_variant(numbers),
        other_arguments=[],
        num_parallel_calls=tf.constant(2, tf.int64),
        f=function,
        output_types=dtypes,
        output_shapes=[tf.TensorShape(None)] * len(dtypes),
        deterministic="true",
        preserve_cardinality=False,
    )
    items = tf.data.experimental.from_variant(variant, tuple(tf.TensorSpec(None, kind) for kind in dtypes))
    items._yogadl_function = function  # must live as long as the dataset that calls it
    return items


def _seed(numbered: NumberedBatches, names: list[str], kind: str) -> bytes:
    """Return a hash of all that determines the items; an iterator's checkpoint must have the same hash."""
    stream = numbered.stream
    shard, begun = stream.shard, stream.start.epoch
    described = [stream.cursor(0), shard.rank, shard.ranks, shard.remainder, numbered.size]
    described += [numbered.count(begun), numbered.count(begun + 1), kind, stream.spec.to_json(), names]
    return hashlib.sha256(json.dumps(described).encode()).digest()


def _random(seed: bytes) -> Dataset:
    """Return an endless dataset of numbers, different at each iteration, in a fixed sequence of iterations.

    `Dataset.random` is not used, because it depends on `tf.random.set_seed`: with another seed a checkpoint
    would find other numbers.
    """
    numbers = [int.from_bytes(seed[i : i + 8], "little") >> 2 for i in (0, 8)]
    variant = tf.raw_ops.RandomDatasetV2(
        seed=tf.constant(numbers[0] + 1, tf.int64),
        seed2=tf.constant(numbers[1] + 1, tf.int64),
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        output_types=[tf.int64],
        output_shapes=[[]],
        rerandomize_each_iteration=True,
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.int64))


def _tokens(seed: bytes, count: int) -> list[int]:
    """Return the tokens of the first `count` iterations over the random dataset."""
    found = _random(seed).batch(2).take(1).repeat(count).batch(count)
    return [_joined(*pair) for pair in next(iter(found)).numpy().tolist()]


def _joined(high: int, low: int) -> int:
    """Return a token of both numbers: one, of 32 bits, would repeat within some ten thousand epochs."""
    return high << 32 | low
