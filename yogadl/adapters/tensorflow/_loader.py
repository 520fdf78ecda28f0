"""Hand a stream to tf.data, as a dataset of its batches whose checkpoints hold the cursor."""

import atexit
import functools
import hashlib
import inspect
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import tensorflow as tf

from yogadl._core.memory import BatchMemory, settle_allocator
from yogadl._core.process import ProcessLock
from yogadl._core.protocols import Column, Memory, Stream
from yogadl._core.spec import Node
from yogadl._dataref import takes_a_stream
from yogadl._stream import Flags, NumberedBatches, RecordStream, as_stream
from yogadl.adapters._checks import cut_of
from yogadl.adapters.tensorflow._components import Component, assembled, components_of_record, flat_specs
from yogadl.adapters.tensorflow._specs import Dataset, Tensor, TypeSpec, require_eager, without_autograph
from yogadl.errors import ConfigurationError, CursorError

# The size of one gather for single records (benchmarks/tf_data.py).
_GATHERED_BYTES: Final = 2**20
_GATHERED_RECORDS: Final = 1024


@takes_a_stream
def make_tf_dataset(
    stream: Stream,
    batch_size: int | None = None,
    drop_remainder: bool = False,
    *,
    padding_field: str | None = None,
    skip_finished_epoch: bool = False,
) -> Dataset:
    """Return a stream as a `tf.data.Dataset`, of records or of batches.

    Each iterator, and each repetition by ``repeat``, reads the stream's next epoch. An iterator can be saved
    with `tf.train.Checkpoint` and restored in a dataset that was made in the same way; it does not read the
    records before that position again. Records are gathered a batch at a time, without holding Python's GIL.

    Args:
        stream: The stream to read, of `DataRef.stream`; a user's own stream is read through `from_generator`.
        batch_size: The number of records in a batch; ``None``: the stream's items as they are, records or
            the batches of `DataRef.bucketed`. In batches,
            leaves of varying length become ragged.
        drop_remainder: Whether to leave out an epoch's last batch if it is short.
        padding_field: The name of a bool field to add; true for records that only repeat one to fill the
            shard.
        skip_finished_epoch: Start with the next epoch if nothing is left in the cursor's epoch; needed for
            ``repeat()`` without a number, which ends at an empty epoch.

    Raises:
        ConfigurationError: if an argument is invalid, the stream is a loader already, or TensorFlow
            does not execute eagerly.
        UnsupportedDataError: if tf.data has no tensors for a field; names the field.

    Example:
        >>> import numpy as np, yogadl
        >>> from yogadl.adapters import tensorflow as yogadl_tf
        >>> ref = yogadl.from_source({"x": np.arange(6), "y": np.ones((6, 2))})
        >>> dataset = yogadl_tf.make_tf_dataset(ref.stream(shuffle=True), batch_size=4)
        >>> [batch["x"].shape[0] for batch in dataset]
        [4, 2]
    """
    cut = cut_of(batch_size, drop_remainder, skip_finished_epoch=skip_finished_epoch)
    given: Any = stream  # checked below
    if isinstance(given, Stream) and not isinstance(given, RecordStream):
        return _from_generator(given, batch_size, drop_remainder, padding_field)
    stream = as_stream(given)
    require_eager("make_tf_dataset")
    is_batched = batch_size is not None
    if is_batched:
        stream.run.require_batch(cut.size)
    else:  # tf.data takes the records of a gather apart
        cut = replace(cut, size=stream.run.at_once(_GATHERED_BYTES, _GATHERED_RECORDS))
    components, tree = components_of_record(stream.spec, padding_field, is_batched=is_batched)
    numbered = NumberedBatches(stream, cut, padding_field=padding_field)
    numbered.numbering.warn_if_finished()
    make = _batches if is_batched else _records
    return make(numbered, components, tree)


def _from_generator(
    stream: Stream, batch_size: int | None, drop_remainder: bool, padding_field: str | None
) -> Dataset:
    if padding_field is not None:
        raise ConfigurationError(
            "padding_field needs a stream of DataRef.stream: a Stream of your own has no padding"
        )
    if stream.output_types is None:
        raise ConfigurationError(
            "a Stream of your own needs output_types (and output_shapes), the types of its items, as for "
            "tf.data.Dataset.from_generator"
        )
    dataset = tf.data.Dataset.from_generator(
        stream.iterator_fn, output_types=stream.output_types, output_shapes=stream.output_shapes
    )
    return dataset if batch_size is None else dataset.batch(batch_size, drop_remainder)


def _batches(numbered: NumberedBatches, components: list[Component], tree: Node) -> Dataset:
    static = numbered.size if numbered.numbering.cut.drop_remainder else None

    def build(*tensors: Tensor) -> Any:
        rest = iter(tensors)
        return assembled(tree, iter([component.batch(rest, static) for component in components]))

    batches, count = items_of(numbered, components, "batches", 2, build)
    return ResumableDataset(_with_sharding(batches, numbered.stream), count)


def _records(numbered: NumberedBatches, components: list[Component], tree: Node) -> Dataset:
    stream = numbered.stream

    def build(*tensors: Tensor) -> tuple[Tensor, ...]:
        rest = iter(tensors)
        return tuple(tensor for component in components for tensor in component.rows(rest))

    def decode(*tensors: Tensor) -> Any:
        rest = iter(tensors)
        return assembled(tree, iter([component.record(rest) for component in components]))

    if all(component.is_plain for component in components):
        items, count = items_of(numbered, components, "records", 1, lambda *tensors: decode(*build(*tensors)))
        records = items.unbatch()
    else:
        items, count = items_of(numbered, components, "records", 1, build)
        # `map` is not used: tf.data would make it parallel, and its threads would read into the next epoch.
        records = items.unbatch().scan(
            tf.constant(0), without_autograph(lambda state, *tensors: (state, decode(*_unpacked(tensors))))
        )
    if stream.run.start.position == 0:
        records = records.apply(tf.data.experimental.assert_cardinality(len(stream)))
    records = _with_sharding(records, stream)
    if not any(component.is_ragged_rank_0 for component in components):
        return ResumableDataset(records, count)
    # In a function a ragged tensor of ragged rank 0 is a plain tensor, so the spec is changed afterwards.
    specs = zip(components, flat_specs(tree, records.element_spec), strict=True)
    spec = assembled(tree, iter([component.spec_of(spec) for component, spec in specs]))
    ragged_records = tf.data.experimental.from_variant(tf.data.experimental.to_variant(records), spec)
    ragged_records._yogadl_origin = records  # keeps the functions alive that the dataset calls
    return ResumableDataset(ragged_records, count)


def _unpacked(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the components of an element, which arrive separately or as one tuple."""
    return tensors[0] if len(tensors) == 1 and isinstance(tensors[0], tuple) else tensors


def _with_sharding(dataset: Dataset, stream: RecordStream) -> Dataset:
    """Set how tf.distribute divides the dataset: not at all if the stream is a shard already."""
    policies = tf.data.experimental.AutoShardPolicy
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        policies.OFF if stream.shard.ranks > 1 else policies.DATA
    )
    return dataset.with_options(options)


# Read the batches of a stream for tf.data, in any of its threads.
#
# tf.data does not tell a dataset which epoch an iterator reads. Therefore each iterator draws two numbers
# from a random dataset with a fixed seed. Both are the token of the epoch: the n-th iterator gets the n-th
# token.


_TOKENS: Final = 256  # tokens that are computed at first
_MOST_EPOCHS: Final = 2**17  # a token that is not found among so many is of another dataset
# At the interpreter's exit: the longest wait for calls in flight; the time without calls after which there
# are none; and the time since the last call within which another one may be about to begin.
_EXIT_S: Final = 10.0
_QUIET_S: Final = 0.05
_BUSY_S: Final = 2.0

FOREIGN: Final = (
    "the iterator's checkpoint is of another dataset, order, shard, start or batch size: "
    "restore it into the dataset that it was saved from, or resume by stream.cursor(delivered=...)"
)
_EPOCH_MISSING: Final = (
    "the checkpoint that the iterator was restored from does not contain the next epoch: when it was "
    "saved, a zip, an interleave or the like had dropped the finished epoch. Resume by "
    "stream.cursor(delivered=...); and call repeat() on the dataset of make_tf_dataset before it is combined "
    "with others, then every checkpoint contains it. (Without a checkpoint: read the iterators in the order "
    "in which they were made)"
)
_STATEFUL: Final = (
    "tf.data can't save an iterator over stateful operations, such as random ones or a Keras layer that has "
    "variables ({0}). For random numbers that go on after a stop, use one of these: stateless operations, "
    "whose seed is the number of the element (enumerate() after repeat() counts them); random_map of the "
    "stream; or yogadl.adapters.keras.PyDataset with its Checkpoint, and random layers with seed= in the "
    "model. Without them, save stream.cursor(delivered=...) in place of the iterator: the records go on, "
    "with other random numbers"
)
# The number of iterators that may begin with the first epoch: to restore a checkpoint, the user makes one
# iterator, and tf.data replaces it by another.
_MADE_BEFORE_RESTORED: Final = 2


class EpochTokens:
    """Look up the epoch of a token: the n-th token of a fixed sequence is the n-th epoch. Thread-safe.

    Args:
        tokens: A function that returns a given number of tokens, from the first one on. The first token
            belongs to `EpochCount`, not to an epoch.
        first: The epoch of the second token.

    Attributes:
        is_counted: Whether checkpoints are known to contain the number of epochs that were begun.
    """

    def __init__(self, tokens: Callable[[int], list[int]], first: int) -> None:
        self._tokens = tokens
        self._first = first
        self._lock = ProcessLock()
        self._numbers: dict[int, int] = {}
        self._first_iterators = {token >> 32 for token in self._extend(_TOKENS)[:_MADE_BEFORE_RESTORED]}
        self.is_counted = False

    def _extend(self, count: int) -> list[int]:
        tokens = self._tokens(count)
        self._numbers = {token: self._first + number for number, token in enumerate(tokens[1:])}
        return tokens

    def number(self, token: int) -> int:
        """Return the epoch of a token, or raise a CursorError if the token is not of this sequence."""
        while token not in self._numbers:
            with self._lock:
                if token not in self._numbers and len(self._numbers) >= _MOST_EPOCHS:
                    raise CursorError(FOREIGN)
                if token not in self._numbers:
                    self._extend(8 * len(self._numbers))
        return self._numbers[token]

    def require_first(self, epoch: int, iterator_number: int) -> None:
        """Raise a CursorError if an iterator that is not among the first begins with the first epoch.

        This happens if a checkpoint was restored in which tf.data did not write the epoch's state.
        """
        if epoch == self._first and iterator_number not in self._first_iterators:
            raise CursorError(_EPOCH_MISSING)


class Gather:
    """Read the items of epochs identified by tokens, in any order, from any number of threads.

    Attributes:
        calls: A context that each call from tf.data enters for as long as it runs Python.
    """

    def __init__(self, numbered: NumberedBatches, epochs: EpochTokens, memory: Memory) -> None:
        self._numbered = numbered
        self._epochs = epochs
        self._memory = memory
        self.calls = Calls()

    def read(self, iterator_number: int, token: int, item: int) -> tuple[list[Column], Flags]:
        """Return the columns of an item of the token's epoch, and the flags that mark its padding.

        Raises:
            StopIteration: if the epoch has no such item.
            CursorError: if no epoch has this token.
        """
        epoch = self._epochs.number(token)
        if not self._epochs.is_counted:
            self._epochs.require_first(epoch, iterator_number)
        if item >= self._numbered.count(epoch):
            raise StopIteration
        try:
            return self._numbered.read(epoch, item, self._memory)
        except StopIteration as error:  # for tf.data, a StopIteration is the end of the epoch
            raise RuntimeError("the source raised StopIteration while records were read") from error


class Calls:
    """Count the calls in flight, so that the interpreter's exit can wait for them.

    tf.data's threads read ahead for as long as an iterator lives. If one of them is in Python while the
    interpreter exits, the thread never returns, and TensorFlow waits for the thread forever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._quiet_since = time.monotonic()
        self._is_closing = False
        finish = weakref.WeakMethod(self.finish)
        atexit.register(_finish_if_alive, finish)

    def __enter__(self) -> None:
        with self._lock:
            if self._is_closing:
                self._quiet_since = time.monotonic()  # a refused call is in Python, too
                raise RuntimeError("the interpreter is shutting down")
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            self._quiet_since = time.monotonic()

    def finish(self) -> None:
        """Refuse new calls, and wait until the calls in flight have left Python."""
        with self._lock:
            self._is_closing = True
            if time.monotonic() - self._quiet_since < _BUSY_S:  # another call may be about to enter
                self._quiet_since = time.monotonic()
        limit = time.monotonic() + _EXIT_S
        while time.monotonic() < limit:
            with self._lock:
                if not self._count and time.monotonic() - self._quiet_since > _QUIET_S:
                    return
            time.sleep(0.005)


def _finish_if_alive(method: Any) -> None:  # a weak reference to a method
    finish = method()
    if finish is not None:
        finish()


# Save the next epoch in checkpoints of tf.data, with any stages between `make_tf_dataset` and `repeat`.
#
# A checkpoint of tf.data contains the state of each iterator that is still held. Most stages drop their
# input's iterator when it ends: a batch after its last element, a shuffle that empties its buffer. The
# iterator's state, which contains the epoch, is then missing. Therefore the iterators of the dataset that
# `make_tf_dataset` returns, and of all datasets that its methods make of it, write the count of epochs in
# addition to tf.data's own state.


_IDENTITY_BYTES: Final = 8


class EpochCount:
    """The number of epochs of a dataset that were begun, as tf.data counts them.

    The object holds an iterator over the random dataset whose numbers identify epochs. The state of this
    iterator contains the number of other iterators that were made, and restoring the state sets that number
    for all.

    Args:
        identity: A number of 63 bits that identifies the epochs' dataset.
        random: The random dataset; this must be the first to iterate over it.
        epochs: The epochs that are counted.
    """

    def __init__(self, identity: int, random: Dataset, epochs: EpochTokens) -> None:
        self._identity = identity.to_bytes(_IDENTITY_BYTES, "little")
        self._iterator = iter(random)
        self._epochs = epochs

    def save(self) -> bytes:
        """Return the count for `restore`."""
        variants = self._iterator._serialize_to_tensors()["_STATE"]
        content: bytes = tf.io.serialize_tensor(variants).numpy()
        return self._identity + content

    def restore(self, saved: bytes) -> None:
        """Set the count that `save` returned, or raise a CursorError if it is of another dataset."""
        if saved[:_IDENTITY_BYTES] != self._identity:
            raise CursorError(FOREIGN)
        variants = tf.io.parse_tensor(saved[_IDENTITY_BYTES:], tf.variant)
        self._iterator._restore_from_tensors({"_STATE": variants})

    def mark_as_saved(self) -> None:
        """Note that checkpoints contain the count."""
        self._epochs.is_counted = True


class ResumableDataset(tf.data.Dataset):  # type: ignore[misc]  # TensorFlow has no annotations
    """A wrapper of a dataset whose iterators have the count of epochs in their checkpoints.

    The same holds for the iterators of datasets that its methods return.

    Args:
        dataset: The wrapped dataset.
        count: The count of its own epochs, in addition to those of its input datasets.
    """

    def __init__(self, dataset: Dataset, count: EpochCount | None = None) -> None:
        self._dataset = dataset
        self._yogadl_count = count
        super().__init__(dataset._variant_tensor)

    def _inputs(self) -> list[Dataset]:
        return [self._dataset]

    @property
    def element_spec(self) -> TypeSpec:
        """The structure of an element."""
        return self._dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator."""
        iterator: Iterator[Any] = super().__iter__()
        if tf.executing_eagerly():
            _write_counts(iterator, list(dict.fromkeys(_counts_of(self))))
        return iterator


def _counts_of(dataset: Dataset) -> Iterator[EpochCount]:
    """Yield the counts of a dataset and of all its inputs, in a fixed order."""
    count = getattr(dataset, "_yogadl_count", None)
    if count is not None:
        yield count
    for stage in dataset._inputs():
        yield from _counts_of(stage)


def _write_counts(iterator: Any, counts: list[EpochCount]) -> None:
    """Add the counts to an iterator's checkpoints."""
    save, restore = iterator._serialize_to_tensors, iterator._restore_from_tensors
    is_symbolic = iterator._dataset.options().experimental_symbolic_checkpoint
    for count in counts:
        count.mark_as_saved()

    def save_all() -> dict[str, Tensor]:
        if is_symbolic:
            raise ConfigurationError(
                "with the option experimental_symbolic_checkpoint tf.data saves an earlier state than the "
                "count of epochs, so the checkpoint would be wrong: leave the option out"
            )
        while True:  # until no epoch begins meanwhile in a thread of tf.data that reads ahead
            saved = [count.save() for count in counts]
            try:
                tensors = save()
            except tf.errors.FailedPreconditionError as error:
                if "stateful" not in error.message:
                    raise
                raise ConfigurationError(_STATEFUL.format(error.message)) from error
            if saved == [count.save() for count in counts]:
                return {**tensors, "_EPOCHS": tf.constant(saved)}

    def restore_all(tensors: dict[str, Tensor]) -> Any:
        saved = tensors["_EPOCHS"].numpy().tolist()
        if len(saved) != len(counts):
            raise CursorError(FOREIGN)
        for count, content in zip(counts, saved, strict=True):
            count.restore(content)
        return restore(tensors)

    def copy(object_map: dict[Any, Any]) -> None:  # for checkpoints that are written in a thread
        tensors = save_all()
        stand_in = object_map.setdefault(iterator, iter(tf.data.Dataset.range(0)))
        stand_in._serialize_to_tensors = lambda: tensors

    iterator._serialize_to_tensors = save_all
    iterator._restore_from_tensors = restore_all
    iterator._copy_trackable_to_cpu = copy


def _resumable(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that makes its result resumable if the result is a dataset."""

    @functools.wraps(method)
    def transform(self: ResumableDataset, *arguments: Any, **options: Any) -> Any:
        result = method(self, *arguments, **options)
        return ResumableDataset(result) if isinstance(result, tf.data.Dataset) else result

    return transform


for _name, _method in inspect.getmembers_static(tf.data.Dataset, inspect.isfunction):
    if not _name.startswith("_"):
        setattr(ResumableDataset, _name, _resumable(_method))


# Make a dataset of the numbered batches of a stream: each iteration is an epoch; with checkpoints.


def items_of(
    numbered: NumberedBatches, components: list[Component], kind: str, ahead: int, build: Callable[..., Any]
) -> tuple[Dataset, EpochCount]:
    """Return a dataset of the items of an epoch, the next epoch at each iteration; and its `EpochCount`.

    Args:
        numbered: The items, as batches of the stream.
        components: The components of an item.
        kind: "records" or "batches": the form of the elements, since the checkpoints of the two differ.
        ahead: The number of items to read ahead.
        build: A function that makes an element of the tensors of all components.
    """
    seed = _seed(numbered, [component.name for component in components], kind)
    first_epoch = numbered.stream.start.epoch
    identity = int.from_bytes(seed[16:24], "little") >> 1
    random = _random(seed)
    epochs = EpochTokens(lambda count: _tokens(seed, count), first_epoch)
    memory = BatchMemory()
    settle_allocator()  # strings are copied in TensorFlow's threads, and freed in the consumer's
    gather = Gather(numbered, epochs, memory)
    names = [name for component in components for name in component.dtypes]
    dtypes = [tf.int64, *map(tf.dtypes.as_dtype, names)]

    def read(iterator_number: Any, pair: Any, item: Any) -> list[Any]:
        with gather.calls:
            columns, padding = gather.read(int(iterator_number), _token_of(*pair.tolist()), int(item))
            arrays = (array for component in components for array in component.pack(columns, padding))
            return [np.int64(identity), *map(memory.aligned, arrays)]

    def check(state: Tensor, owner: Tensor, *tensors: Tensor) -> Any:
        # tf.debugging is not used: with it the start of each iterator takes 5 ms longer.
        is_own = tf.equal(owner, np.int64(identity))
        assertion = tf.raw_ops.Assert(condition=is_own, data=[f"CursorError: {FOREIGN}"])
        with tf.control_dependencies([assertion]):
            return state, build(*map(tf.identity, tensors))

    items = _read(_numbers(_random(seed), random), read, dtypes).prefetch(ahead)
    items = items.scan(tf.constant(0), without_autograph(lambda state, element: check(state, *element)))
    full = numbered.count(first_epoch + 1)
    if numbered.count(first_epoch) == full:
        items = items.apply(tf.data.experimental.assert_cardinality(full))
    return items, EpochCount(identity, random, epochs)


def _numbers(iterator_numbers: Dataset, epoch_numbers: Dataset) -> Dataset:
    """Return an endless dataset of (number of the iterator, two numbers of the epoch, number of the item).

    The numbers of an epoch are drawn when an iterator is first read, not when it is made: tf.data makes
    iterators that it never reads, at the end of a `repeat` and when a checkpoint is restored. The inner
    function is called once an epoch, because a call for every item would take 0.1 ms each time.

    Args:
        iterator_numbers: The dataset from which the number of an iterator is drawn.
        epoch_numbers: The dataset from which the numbers of an epoch are drawn.
    """

    def of_epoch(number: Tensor, pair: Tensor) -> Dataset:
        constants = tf.data.Dataset.from_tensors((number, pair)).repeat()
        items = tf.data.Dataset.range(np.iinfo(np.int64).max)
        return tf.data.Dataset.zip((constants, items))

    # tf.data begins a concatenated dataset only after the first one, which is empty, has ended.
    pairs = tf.data.Dataset.range(0).concatenate(epoch_numbers).batch(2)
    return tf.data.Dataset.zip((iterator_numbers, pairs)).flat_map(without_autograph(of_epoch))


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
    shard, epoch = stream.shard, stream.start.epoch
    described = [stream.cursor(0), shard.rank, shard.ranks, shard.remainder, numbered.size]
    described += [numbered.count(epoch), numbered.count(epoch + 1), kind, stream.spec.to_json(), names]
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
    pairs = _random(seed).batch(2).take(1).repeat(count).batch(count)
    return [_token_of(*pair) for pair in next(iter(pairs)).numpy().tolist()]


def _token_of(high: int, low: int) -> int:
    """Return the token of two numbers of 32 bits: one would repeat within some ten thousand epochs."""
    return high << 32 | low
