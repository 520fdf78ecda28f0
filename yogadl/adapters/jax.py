"""Hand streams to JAX, as trees of arrays that are on its devices already.

The names of this module need JAX. docs/howto/jax.md covers the supported fields, many hosts and checkpoints.
"""

import contextlib
import copy
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from yogadl.adapters import _checks

_checks.require("jax", "make_jax_iterator needs JAX: pip install 'yogadl[jax]'")

import jax
import jax.experimental
import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import users_level
from yogadl._core.protocols import Column, Stream
from yogadl._core.spec import DictNode, Field, Leaf, Node, Spec
from yogadl._dataref import takes_a_stream
from yogadl._stream import (
    Ahead,
    Batches,
    Cut,
    Finish,
    Flags,
    Loader,
    Make,
    Pending,
    Point,
    Read,
    Recipe,
    RecordStream,
    Rows,
    Run,
    StreamIterator,
    as_stream,
)
from yogadl.adapters._checks import ahead_of, cut_of, warn_if_unsharded, with_padding
from yogadl.errors import ConfigurationError, UnsupportedDataError

__all__ = ["make_jax_iterator", "shards"]

# The share of the records that each process of a job reads, and a check of it.


def shards() -> dict[str, int]:
    """Return the arguments of `DataRef.stream` that give each process of the job its own share.

    Use them only without a sharding; with a sharding, all processes read the whole stream.

    Example:
        >>> import yogadl
        >>> from yogadl.adapters import jax as yogadl_jax
        >>> yogadl_jax.shards()
        {'shard_rank': 0, 'num_shards': 1}
        >>> stream = yogadl.from_source(range(10)).stream(**yogadl_jax.shards(), drop_shard_remainder=True)
    """
    return {"shard_rank": jax.process_index(), "num_shards": jax.process_count()}


def check_share(stream: RecordStream, sharding_processes: int | None) -> None:
    """Check that the stream's shard fits the sharding.

    Warn if all processes read all records without need.

    Args:
        stream: The stream.
        sharding_processes: The number of processes whose devices hold a batch; ``None``: there is no
            sharding.

    Raises:
        ConfigurationError: if the stream is a shard, but all processes need the whole stream.
    """
    shard, processes = stream.shard, jax.process_count()
    if shard.ranks > 1 and sharding_processes == processes:
        raise ConfigurationError(
            "with a sharding each process selects its own rows of the job's batches, but the stream is shard "
            f"{shard.rank} of {shard.ranks} already: open it without shard_rank and num_shards"
        )
    if (sharding_processes or 1) < processes:
        remedy = "open it with **yogadl.adapters.jax.shards(), or pass a sharding over all devices"
        warn_if_unsharded(stream, processes, remedy)


# Compute the layout of batches on a job's devices and the rows of this process, and check the dtypes.


# A jax.Array, a Sharding, a tree of Shardings: JAX is not installed where the types are checked.
Array = Any
Sharding = Any
ShardingTree = Any


@dataclass(frozen=True)
class GlobalField:
    """One field of the global batches, and the numbers of its rows that devices of this process hold."""

    shape: tuple[int, ...]
    sharding: Sharding
    rows: tuple[int, ...]

    def processes(self) -> set[int]:
        """Return the indices of the processes whose devices hold the field."""
        return {device.process_index for device in self.sharding.device_set}

    def put(self, column: NDArray[Any]) -> Array:
        """Return the global array, made from the rows that this process holds."""

        def piece(index: tuple[slice, ...]) -> NDArray[Any]:
            start, stop, _ = index[0].indices(self.shape[0])
            first = bisect_left(self.rows, start)
            return column[(slice(first, first + stop - start), *index[1:])]

        return jax.make_array_from_callback(self.shape, self.sharding, piece)


def lay_out(spec: Spec, sharding: ShardingTree, size: int) -> list[GlobalField]:
    """Return the layout of each field of a batch of `size` records under the shardings."""
    fields = []
    for field, field_sharding in zip(spec.fields, _shardings(spec.tree, sharding, ""), strict=True):
        shape = (size, *(length for length in field.leaf.shape or () if length is not None))
        try:
            pieces = field_sharding.addressable_devices_indices_map(shape).values()
        except (ValueError, IndexError) as error:  # IndexError: too many dimensions
            raise ConfigurationError(
                f"in a batch field {field.name!r} has the shape {shape}, which can't be divided by "
                f"{field_sharding}: choose another batch_size, or pass a sharding for each field "
                "({name: sharding, ...})"
            ) from error
        if not pieces:
            raise ConfigurationError(
                f"process {jax.process_index()} has none of the devices of {field_sharding}: make the "
                "iterator only in processes that have some"
            )
        rows = {row for piece in pieces for row in range(*piece[0].indices(size))}
        fields.append(GlobalField(shape, field_sharding, tuple(sorted(rows))))
    return fields


def _shardings(node: Node, sharding_tree: ShardingTree, path: str) -> list[Sharding]:
    """Return the sharding of each field below `node`, in order."""
    if isinstance(sharding_tree, jax.sharding.Sharding):
        return [sharding_tree] * (1 if isinstance(node, Leaf) else len(Spec(node).fields))
    is_tree = isinstance(sharding_tree, Mapping | list | tuple) and not isinstance(
        sharding_tree, jax.sharding.PartitionSpec
    )
    if isinstance(node, Leaf) or not is_tree:
        where = f"for field {path!r} " if path else ""
        raise ConfigurationError(
            f"the sharding {where}must be one such as NamedSharding(mesh, PartitionSpec(...)), not "
            f"{sharding_tree!r}"
        )
    keys = list(node.keys) if isinstance(node, DictNode) else list(range(len(node.children)))
    of_keys = sharding_tree if isinstance(sharding_tree, Mapping) else dict(enumerate(sharding_tree))
    if set(of_keys) != set(keys):
        raise ConfigurationError(
            f"pass a sharding for each of {keys}, or one for all; the tree has shardings for {list(of_keys)}"
        )
    return [
        sharding
        for key, child in zip(keys, node.children, strict=True)
        for sharding in _shardings(child, of_keys[key], f"{path}/{key}" if path else str(key))
    ]


def check_fields(fields: Sequence[Field], *, is_single: bool) -> None:
    """Refuse fields that can't become JAX arrays, and warn of fields whose dtype JAX would make narrower."""
    narrowed = []
    for field in fields:
        dtype = _dtype_on_device(field, is_single)
        if dtype != field.leaf.numpy_dtype:
            narrowed.append(f"{field.name!r} ({field.leaf.dtype} to {dtype})")
    if narrowed:
        warnings.warn(
            f"JAX makes these fields narrower, and cuts off what does not fit: {', '.join(narrowed)}. Allow "
            'wide types by jax.config.update("jax_enable_x64", True), or store narrow ones',
            UserWarning,
            stacklevel=users_level(),
        )


def _dtype_on_device(field: Field, is_single: bool) -> Any:  # a numpy dtype
    """Return the dtype that a field has on a device."""
    leaf = field.leaf
    if not (leaf.is_fixed or (is_single and leaf.is_numeric)):
        what = f"holds {leaf.dtype}" if not leaf.is_numeric else "holds arrays of varying shape"
        raise UnsupportedDataError(
            f"field {field.name!r} {what}, which can't be put onto a device: choose the other fields by "
            "ref.fields(...), or store it as arrays of numbers of one shape"
        )
    try:
        return jax.device_put(np.zeros((), leaf.numpy_dtype)).dtype
    except (TypeError, RuntimeError) as error:
        remedy = "view it as int64 before it is cached, or " if leaf.dtype[:4] in ("date", "time") else ""
        raise UnsupportedDataError(
            f"field {field.name!r} has dtype {leaf.dtype}, for which JAX has no arrays: {remedy}choose the "
            "other fields by ref.fields(...)"
        ) from error


# Read the batches of a run, and put them onto the devices.


Scope = Callable[[], contextlib.AbstractContextManager[None]]


def settings_of_this_thread() -> Scope:
    """Return a function whose context applies this thread's settings of JAX in another thread.

    JAX keeps them for each thread: the default device, and whether 64-bit types are allowed.
    """
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    is_x64, device = jax.config.jax_enable_x64, jax.config.jax_default_device

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        if jax.config.jax_enable_x64 == is_x64 and jax.config.jax_default_device == device:
            yield  # the usual case, without the cost of setting them
        else:
            with enable_x64(is_x64), jax.default_device(device):
                yield

    return scope


class ColumnBatches(Batches):
    """Items made of a batch's columns and of the flags that mark its padding."""

    def finish(self) -> Finish:
        return lambda columns, flags: (self.values(columns), *self.values([flags]))


@dataclass(frozen=True)
class OnOneDevice:
    """Batches on the default device."""

    batches: ColumnBatches
    spec: Spec  # with a last field that marks padding, if `batches` has one
    is_ahead: bool  # whether a thread reads ahead; the thread then also puts the batches onto the device
    scope: Scope

    @property
    def run(self) -> Run:
        """The run whose records are read."""
        return self.batches.run

    def counted_anew(self) -> "OnOneDevice":
        """Return the same for another loader; see `Run.counted_anew`."""
        return replace(self, batches=self.batches.counted_anew())

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the batches from `start` to the epoch `end`, read by read."""
        for count, items in self.batches.reads(cut, start, end):
            placed = (self._put(columns, flags) for columns, flags in items)
            yield count, iter(list(placed)) if self.is_ahead else placed

    def pending(self, cut: Cut, start: Point, end: int | None) -> Iterator[Pending]:
        """Yield the reads of these batches. Any thread may call a read, which puts them onto the device."""
        for count, read in self.batches.pending(cut, start, end):
            yield count, partial(self._placed, read)

    def _placed(self, read: Callable[[], Iterator[tuple[Sequence[Column], Flags]]]) -> Iterator[Any]:
        return (self._put(columns, flags) for columns, flags in read())

    def _put(self, columns: Sequence[Any], flags: Any) -> Any:  # a tree like the record's
        with self.scope():
            has_padding = self.batches.padding_field is not None
            placed = jax.device_put([*columns, flags] if has_padding else list(columns))
        return self.spec.assemble(placed)


class OnManyDevices:
    """Batches over many devices, made of the rows that devices of this process hold."""

    def __init__(
        self, batches: ColumnBatches, spec: Spec, fields: Sequence[GlobalField], scope: Scope
    ) -> None:
        has_padding = batches.padding_field is not None
        self.run = batches.run
        self._assemble = spec.assemble
        self._fields = fields
        self._padding = fields[-1] if has_padding else None
        self._scope = scope
        self._rows = np.unique([row for field in fields for row in field.rows])
        # Fields of which this process holds the same rows, mostly all fields, are read together.
        together: dict[tuple[int, ...], list[int]] = {}
        for number, field in enumerate(fields[:-1] if has_padding else fields):
            # With functions, all fields of all rows are read together: a record passes through them once.
            rows = tuple(self._rows.tolist()) if self.run.calls_functions else field.rows
            together.setdefault(rows, []).append(number)
        self._fields_by_rows = [(np.array(rows), numbers) for rows, numbers in together.items()]

    def counted_anew(self) -> "OnManyDevices":
        """Return the same for another loader; see `Run.counted_anew`."""
        other = copy.copy(self)
        other.run = self.run.counted_anew()
        return other

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the batches from `start` to the epoch `end`, one by one; the cut drops short batches."""
        for count, read in self.pending(cut, start, end):
            yield count, read()

    def pending(self, cut: Cut, start: Point, end: int | None) -> Iterator[Pending]:
        """Yield the reads of these batches, one read for each batch; any thread may call a read."""
        run = self.run
        for rows in run.chunks(cut, start, end):
            own = rows.indices.reshape(-1, cut.size)[:, self._rows].ravel()
            ahead = Ahead(run, Rows(own, rows.pieces if len(own) == len(rows) else (), rows.records))
            for number, first in enumerate(range(0, len(rows), cut.size)):
                batch = rows[first : first + cut.size]
                batch.held = ahead.of(number * len(self._rows), (number + 1) * len(self._rows)).held
                yield 1, partial(self._batches, batch)

    def _batches(self, rows: Rows) -> Iterator[Any]:
        """Yield the one batch of these rows."""
        columns: list[Any] = [None] * len(self._fields)
        for chosen, numbers in self._fields_by_rows:
            for number, column in zip(numbers, self.run.read(rows.take(chosen), numbers), strict=True):
                if self.run.calls_functions:
                    column = column[np.searchsorted(chosen, self._fields[number].rows)]
                columns[number] = column
        if self._padding is not None:
            columns[-1] = rows.padding[np.array(self._padding.rows)]
        # A user's guard against accidental transfers must not stop this intended transfer.
        with self._scope(), jax.transfer_guard_host_to_device("allow"):
            placed = [field.put(column) for field, column in zip(self._fields, columns, strict=True)]
            return iter([self._assemble(placed)])


# Hand a stream to JAX: an iterator over batches on its devices.


@takes_a_stream
def make_jax_iterator(
    stream: Stream,
    batch_size: int | None = None,
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
        batch_size: The number of records in a batch; ``None``: the stream's items as they are, records or
            the batches of `DataRef.bucketed`. With a sharding,
            the number in the whole global batch, which is needed.
        sharding: The layout of each batch on the devices; the batch is the first dimension. One sharding
            for all fields, or a tree of shardings such as ``{"image": ..., "label": ...}``. Without a
            sharding, batches are put onto the default device.
        drop_remainder: Leave out an epoch's last batch if it is short; with a sharding, such a batch is
            always left out.
        epochs: The number of epochs to read; ``None``: without end.
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
    depth, threads = ahead_of(prefetch, threads)
    is_single = batch_size is None
    if is_single and sharding is not None:
        raise ConfigurationError(
            "batch_size=None takes each record as it is, and a sharding divides batches of one shape: leave "
            "out the sharding, and open the stream with **yogadl.adapters.jax.shards(); or pass batch_size"
        )
    drop = drop_remainder or sharding is not None
    cut = cut_of(batch_size, drop, epochs, skip_finished_epoch=skip_finished_epoch)
    run, size = stream.run, cut.size
    if not is_single:
        run.require_batch(size)
    rows = run.shard.own(0)
    if sharding is not None and 0 < rows < size:
        raise ConfigurationError(
            f"an epoch has {rows} records and a batch {size}: with a sharding a short batch is left out, so "
            'no batch remains. Make smaller batches, or fill them up: docs/howto/jax.md, "Evaluating"'
        )
    batches = ColumnBatches(run, padding_field=padding_field, is_single=is_single)
    spec = with_padding(run.spec, padding_field)
    check_fields(spec.fields, is_single=is_single)
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
    return iter(Loader(stream, recipe))
