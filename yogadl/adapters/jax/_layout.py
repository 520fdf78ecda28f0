"""Compute the layout of batches on a job's devices and the rows of this process, and check the dtypes."""

import warnings
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import users_level
from yogadl._core.leaf import Leaf
from yogadl._core.spec import DictNode, Field, Node, Spec
from yogadl.errors import ConfigurationError, UnsupportedDataError

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
    found = []
    for field, chosen in zip(spec.fields, _shardings(spec.tree, sharding, ""), strict=True):
        shape = (size, *(length for length in field.leaf.shape or () if length is not None))
        try:
            pieces = chosen.addressable_devices_indices_map(shape).values()
        except (ValueError, IndexError) as error:  # IndexError: too many dimensions
            raise ConfigurationError(
                f"in a batch field {field.name!r} has the shape {shape}, which can't be divided by {chosen}: "
                "choose another batch_size, or pass a sharding for each field ({name: sharding, ...})"
            ) from error
        if not pieces:
            raise ConfigurationError(
                f"process {jax.process_index()} has none of the devices of {chosen}: make the iterator only "
                "in processes that have some"
            )
        rows = {row for piece in pieces for row in range(*piece[0].indices(size))}
        found.append(GlobalField(shape, chosen, tuple(sorted(rows))))
    return found


def _shardings(node: Node, given: ShardingTree, path: str) -> list[Sharding]:
    """Return the sharding of each field below `node`, in order."""
    if isinstance(given, jax.sharding.Sharding):
        return [given] * (1 if isinstance(node, Leaf) else len(Spec(node).fields))
    is_tree = isinstance(given, Mapping | list | tuple) and not isinstance(given, jax.sharding.PartitionSpec)
    if isinstance(node, Leaf) or not is_tree:
        where = f"for field {path!r} " if path else ""
        raise ConfigurationError(
            f"the sharding {where}must be one such as NamedSharding(mesh, PartitionSpec(...)), not {given!r}"
        )
    keys = list(node.keys) if isinstance(node, DictNode) else list(range(len(node.children)))
    of_keys = given if isinstance(given, Mapping) else dict(enumerate(given))
    if set(of_keys) != set(keys):
        raise ConfigurationError(
            f"give a sharding for each of {keys}, or one for all; there are some for {list(of_keys)}"
        )
    return [
        sharding
        for key, child in zip(keys, node.children, strict=True)
        for sharding in _shardings(child, of_keys[key], f"{path}/{key}" if path else str(key))
    ]


def check_fields(fields: Sequence[Field]) -> None:
    """Refuse fields of which JAX has no arrays, and warn of fields that JAX would make narrower."""
    narrowed = []
    for field in fields:
        dtype = _dtype_on_device(field)
        if dtype != field.leaf.numpy_dtype:
            narrowed.append(f"{field.name!r} ({field.leaf.dtype} to {dtype})")
    if narrowed:
        warnings.warn(
            f"JAX makes these fields narrower, and cuts off what does not fit: {', '.join(narrowed)}. Allow "
            'wide types by jax.config.update("jax_enable_x64", True), or store narrow ones',
            UserWarning,
            stacklevel=users_level(),
        )


def _dtype_on_device(field: Field) -> Any:  # a numpy dtype
    """Return the dtype that a field has on a device."""
    leaf = field.leaf
    if not leaf.is_fixed:
        what = f"holds {leaf.dtype}" if not leaf.is_numeric else "holds arrays of varying shape"
        raise UnsupportedDataError(
            f"field {field.name!r} {what}, which can't go on to a device: choose the other fields by "
            "ref.fields(...), or store it as arrays of numbers of one shape"
        )
    try:
        return jax.device_put(np.zeros((), leaf.numpy_dtype)).dtype
    except (TypeError, RuntimeError) as error:
        mend = "view it as int64 before it is cached, or " if leaf.dtype[:4] in ("date", "time") else ""
        raise UnsupportedDataError(
            f"field {field.name!r} has dtype {leaf.dtype}, of which JAX has no arrays: {mend}choose the "
            "other fields by ref.fields(...)"
        ) from error
