"""Hand a stream to tf.data."""

from dataclasses import replace
from typing import Any, Final

import tensorflow as tf

from yogadl._core.protocols import Stream
from yogadl._core.spec import Node
from yogadl._dataref import takes_a_stream
from yogadl._stream import NumberedBatches, RecordStream, as_stream
from yogadl.adapters._checks import cut_of
from yogadl.adapters.tensorflow._components import Component, assembled, components_of_record, flat_specs
from yogadl.adapters.tensorflow._items import ResumableDataset, items_of
from yogadl.adapters.tensorflow._specs import Dataset, Tensor, require_eager, without_autograph
from yogadl.errors import ConfigurationError

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
    if not is_batched:  # tf.data takes the records of a gather apart
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
