"""Make a dataset of the numbered batches of a stream: an epoch an iteration, with checkpoints."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from yogadl._memory import BatchMemory
from yogadl._stream import NumberedBatches
from yogadl.adapters._tensorflow.gather import FOREIGN, Epochs, Gather
from yogadl.adapters._tensorflow.parts import Part
from yogadl.adapters._tensorflow.specs import Dataset, Tensor
from yogadl.adapters._tensorflow.tensors import as_it_is


def items_of(
    numbered: NumberedBatches, parts: list[Part], kind: str, ahead: int, build: Callable[..., Any]
) -> Dataset:
    """Return a dataset of all items of an epoch, of the next one each time that it is iterated over.

    Which one that is a checkpoint knows only from a random dataset that is being read. So one is read beside
    the items, at the very end: what lies within has come to its end, and is forgotten, while the last items
    of the epoch still wait in some buffer. For the same reason nothing after this may read ahead.

    Args:
        numbered: The items, as batches of the stream.
        parts: What each consists of.
        kind: What is made of them, for their checkpoints are not the same.
        ahead: How many to read ahead.
        build: Makes an element of the tensors of all parts.
    """
    seed = _seed(numbered, [part.name for part in parts], kind)
    random = _random(seed)
    epochs = Epochs(lambda count: _tokens(seed, count), numbered.stream.start.epoch)
    memory = BatchMemory()
    gather = Gather(numbered, epochs, memory)
    dtypes = [tf.int64, *(tf.dtypes.as_dtype(name) for part in parts for name in part.dtypes)]
    mine = int.from_bytes(seed[16:24], "little") >> 1

    def read(pair: Any, item: Any) -> list[Any]:
        with gather.calls:
            columns, padding = gather.columns(_joined(*pair.tolist()), int(item))
            arrays = (array for part in parts for array in part.pack(columns, padding))
            return [np.int64(mine), *map(memory.aligned, arrays)]

    def call(pair: Tensor, item: Tensor) -> tuple[Tensor, ...]:
        return tuple(tf.numpy_function(read, (pair, item), dtypes, stateful=False))

    def check(state: Tensor, whose: Tensor, *tensors: Tensor) -> Any:
        # The operation itself: what tf.debugging makes of it takes each iterator 5 ms more to begin.
        assertion = tf.raw_ops.Assert(condition=tf.equal(whose, np.int64(mine)), data=[FOREIGN])
        with tf.control_dependencies([assertion]):
            return state, build(*map(tf.identity, tensors))

    begun = numbered.stream.start.epoch
    first, full = numbered.count(begun), numbered.count(begun + 1)
    items = _numbers(random, epochs.first_token, first, full)
    # Two at a time: TensorFlow works on one while the other is gathered (benchmarks/tf_data.py).
    items = items.map(as_it_is(call), num_parallel_calls=2, deterministic=True).prefetch(ahead)
    items = tf.data.Dataset.zip((items, random))
    items = items.scan(tf.constant(0), as_it_is(lambda state, element: check(state, *element[0])))
    return items.apply(tf.data.experimental.assert_cardinality(full)) if first == full else items


def _numbers(random: Dataset, first_token: int, first: int, full: int) -> Dataset:
    """Return a dataset of the epoch's first pair of random numbers with the number of each item.

    Its one function is called once an epoch: one that is called for every item takes 0.1 ms each time.

    Args:
        random: Where the numbers come from.
        first_token: Tells which epoch is the first.
        first: How many items that has.
        full: How many items any other has.
    """
    first_pair = tf.constant([first_token >> 32, first_token & 0xFFFFFFFF], tf.int64)

    def of_epoch(pair: Tensor) -> Dataset:
        count = tf.where(tf.reduce_all(pair == first_pair), np.int64(first), np.int64(full))
        pairs = tf.data.Dataset.from_tensors(pair).repeat()
        return tf.data.Dataset.zip((pairs, tf.data.Dataset.range(count)))

    return random.batch(2).take(1).flat_map(as_it_is(of_epoch))


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
    """Return the tokens of the first so many epochs."""
    random = _random(seed)
    found = tf.data.Dataset.zip((random.batch(2), random)).take(1).repeat(count).batch(count)
    return [_joined(*pair) for pair in next(iter(found))[0].numpy().tolist()]


def _joined(high: int, low: int) -> int:
    """Return a token: a number of 32 bits would come twice within some ten thousand epochs."""
    return high << 32 | low
