"""Make a dataset of the numbered batches of a stream: an epoch an iteration, with checkpoints."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from yogadl._memory import BatchMemory
from yogadl._stream import NumberedBatches
from yogadl.adapters.tensorflow._gather import FOREIGN, Epochs, Gather
from yogadl.adapters.tensorflow._parts import Part
from yogadl.adapters.tensorflow._resumable import EpochCount
from yogadl.adapters.tensorflow._specs import Dataset, Tensor
from yogadl.adapters.tensorflow._tensors import as_it_is


def items_of(
    numbered: NumberedBatches, parts: list[Part], kind: str, ahead: int, build: Callable[..., Any]
) -> tuple[Dataset, EpochCount]:
    """Return a dataset of all items of an epoch, of the next one each time that it is read; and what counts.

    Args:
        numbered: The items, as batches of the stream.
        parts: What each consists of.
        kind: What is made of them, for their checkpoints are not the same.
        ahead: How many to read ahead.
        build: Makes an element of the tensors of all parts.
    """
    seed = _seed(numbered, [part.name for part in parts], kind)
    begun, full = numbered.stream.start.epoch, numbered.count(numbered.stream.start.epoch + 1)
    mine = int.from_bytes(seed[16:24], "little") >> 1
    random = _random(seed)
    epochs = Epochs(lambda count: _tokens(seed, count), begun)
    memory = BatchMemory()
    gather = Gather(numbered, epochs, memory)
    dtypes = [tf.int64, *(tf.dtypes.as_dtype(name) for part in parts for name in part.dtypes)]

    def read(made: Any, pair: Any, item: Any) -> list[Any]:
        with gather.calls:
            columns, padding = gather.read(int(made), _joined(*pair.tolist()), int(item))
            arrays = (array for part in parts for array in part.pack(columns, padding))
            return [np.int64(mine), *map(memory.aligned, arrays)]

    def check(state: Tensor, whose: Tensor, *tensors: Tensor) -> Any:
        # The operation itself: what tf.debugging makes of it takes each iterator 5 ms more to begin.
        is_mine = tf.equal(whose, np.int64(mine))
        assertion = tf.raw_ops.Assert(condition=is_mine, data=[f"CursorError: {FOREIGN}"])
        with tf.control_dependencies([assertion]):
            return state, build(*map(tf.identity, tensors))

    items = _read(_numbers(_random(seed), random), read, dtypes).prefetch(ahead)
    items = items.scan(tf.constant(0), as_it_is(lambda state, element: check(state, *element)))
    if numbered.count(begun) == full:
        items = items.apply(tf.data.experimental.assert_cardinality(full))
    return items, EpochCount(mine, random, epochs)


def _numbers(made: Dataset, begun: Dataset) -> Dataset:
    """Return an endless dataset of (number of the iterator, numbers of the epoch, number of the item).

    It asks for the numbers of an epoch when it is read first, not when an iterator is made: tf.data makes
    iterators that it never reads, at the end of a `repeat` and where a checkpoint is restored. Its one
    function is called once an epoch: one that is called for every item takes 0.1 ms each time.

    Args:
        made: Where the numbers of iterators come from.
        begun: And those of epochs.
    """

    def of_epoch(number: Tensor, pair: Tensor) -> Dataset:
        constants = tf.data.Dataset.from_tensors((number, pair)).repeat()
        items = tf.data.Dataset.range(np.iinfo(np.int64).max)
        return tf.data.Dataset.zip((constants, items))

    # What is concatenated is begun when the first, which is empty, has ended.
    pairs = tf.data.Dataset.range(0).concatenate(begun).batch(2)
    return tf.data.Dataset.zip((made, pairs)).flat_map(as_it_is(of_epoch))


def _read(numbers: Dataset, read: Callable[..., Any], dtypes: list[Any]) -> Dataset:
    """Return a dataset of what is read, until `read` raises StopIteration.

    Which epoch it is tf.data writes down only while the random dataset is held. Most stages let go of their
    input when it ends; this one does not, so this one has to end the epoch, whose last items may still wait
    in some buffer. `Dataset.map` can't: it takes the exception for a failure.
    """
    # Two at a time: TensorFlow works on one while the other is gathered (benchmarks/tf_data.py).
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
    items._yogadl_function = function  # as long as it is called
    return items


def _seed(numbered: NumberedBatches, names: list[str], kind: str) -> bytes:
    """Return a hash of all that decides what an item is: what an iterator's checkpoint must match."""
    stream = numbered.stream
    shard, begun = stream.shard, stream.start.epoch
    described = [stream.cursor(0), shard.rank, shard.ranks, shard.remainder, numbered.size]
    described += [numbered.count(begun), numbered.count(begun + 1), kind, stream.spec.to_json(), names]
    return hashlib.sha256(json.dumps(described).encode()).digest()


def _random(seed: bytes) -> Dataset:
    """Return an endless dataset of numbers, others at each iteration: a fixed sequence of iterations.

    `Dataset.random` would mix in what `tf.random.set_seed` was given, so that a checkpoint met others.
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
    """Return the tokens of the first so many iterations over the random dataset."""
    found = _random(seed).batch(2).take(1).repeat(count).batch(count)
    return [_joined(*pair) for pair in next(iter(found)).numpy().tolist()]


def _joined(high: int, low: int) -> int:
    """Return a token: a number of 32 bits would come twice within some ten thousand epochs."""
    return high << 32 | low
