"""Hand a stream to JAX: an iterator over batches on its devices."""

from typing import Any

from yogadl._core.arguments import whole
from yogadl._core.protocols import Stream
from yogadl._dataref import takes_a_stream
from yogadl._stream import Claims, Make, Recipe, StreamIterator, as_stream, begin
from yogadl.adapters._checks import ahead_of, cut_of
from yogadl.adapters._trees import with_padding
from yogadl.adapters.jax._batches import ColumnBatches, OnManyDevices, OnOneDevice, settings_of_this_thread
from yogadl.adapters.jax._layout import check_fields, lay_out
from yogadl.adapters.jax._shards import check_share
from yogadl.errors import ConfigurationError


@takes_a_stream
def make_jax_iterator(
    stream: Stream,
    batch_size: int,
    sharding: Any = None,
    *,
    drop_remainder: bool = False,
    epochs: int | None = 1,
    padding_field: str | None = None,
    prefetch: int = 2,
    threads: int = 1,
    skip_finished_epoch: bool = False,
) -> StreamIterator:
    """Return an iterator over batches of a stream, trees of `jax.Array`, read ahead of the training loop.

    A thread gathers the batches and puts them onto the devices. The iterator's `state_dict` is the cursor
    after the last delivered batch, and `load_state_dict` continues from a cursor. The thread ends when you
    call `close` or drop the iterator.

    With a sharding, the arrays are global. Each process gathers only the rows that its own devices hold;
    nothing moves between processes. All processes read the same stream, and have the same cursor.

    Args:
        stream: The stream to read, of `DataRef.stream`; with a sharding over the whole job, an unsharded
            stream.
        batch_size: The number of records in a batch; with a sharding, in the whole global batch.
        sharding: The layout of each batch on the devices; the batch is the first dimension. One sharding
            for all fields, or a tree of shardings such as ``{"image": ..., "label": ...}``. Without a
            sharding, batches are put onto the default device.
        drop_remainder: Leave out an epoch's last batch if it is short; with a sharding, such a batch is
            always left out.
        epochs: The number of epochs to read; None: without end.
        padding_field: The name of a bool field to add to each batch: true for records that are padding.
        prefetch: The number of batches to keep ready on the devices; 0: no batch, and no thread.
        threads: The number of threads that read batches and put them onto the devices; see `Loader.prefetch`.
        skip_finished_epoch: If no batch is left in the cursor's epoch, read the next epoch instead of
            yielding nothing; see docs/howto/cursors.md.

    Raises:
        ConfigurationError: if an argument is invalid, a batch can't be divided by the sharding, or
            there are too few records for a batch with a sharding.
        UnsupportedDataError: if a field can't go onto a device; names the field.

    Example:
        >>> import numpy as np, yogadl
        >>> from yogadl.adapters import jax as yogadl_jax
        >>> ref = yogadl.from_source({"x": np.arange(5, dtype=np.int32), "y": np.ones((5, 2), np.float32)})
        >>> batches = yogadl_jax.make_jax_iterator(ref.stream(), batch_size=2)
        >>> next(batches)["x"]
        Array([0, 1], dtype=int32)
        >>> batches.state_dict()["position"]
        2
    """
    stream = as_stream(stream)
    run, size = stream.run, whole("batch_size", batch_size, 1)
    rows = run.shard.own(0)
    if sharding is not None and 0 < rows < size:
        raise ConfigurationError(
            f"an epoch has {rows} records and a batch {size}: with a sharding a short batch is left out, and "
            'there is no other. Make smaller batches, or fill them up: docs/howto/jax.md, "Evaluating"'
        )
    depth, threads = ahead_of(prefetch, threads)
    drop = drop_remainder or sharding is not None
    cut = cut_of(size, drop, epochs, skip_finished_epoch=skip_finished_epoch)
    batches = ColumnBatches(run, padding_field=padding_field)
    spec = with_padding(run.spec, padding_field)
    check_fields(spec.fields)
    make: Make
    if sharding is None:
        check_share(stream, None)
        make = OnOneDevice(batches, spec, depth > 0, settings_of_this_thread())
    else:
        fields = lay_out(spec, sharding, size)
        check_share(stream, len({process for field in fields for process in field.processes()}))
        make = OnManyDevices(batches, spec, fields, settings_of_this_thread())
    recipe = Recipe(make, cut)
    if depth:
        recipe = recipe.ahead(depth, threads=threads)
    return begin(recipe, Claims(recipe))
