"""Convert columns to arrays that one call can return to tf.data, and arrays of tf.data to columns."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from yogadl._core.columns import check_size
from yogadl._core.leaf import BadValueError, Leaf
from yogadl._core.protocols import Column
from yogadl._format.columns import HeapValues, as_bytes, shapes_of
from yogadl._format.table import before
from yogadl.errors import UnsupportedDataError

Arrays = list[NDArray[Any]]


def encoded(values: Iterable[Any]) -> NDArray[Any]:
    """Return an array of objects, with str encoded as bytes."""
    items = [item if isinstance(item, bytes) else item.encode("utf-8", "surrogatepass") for item in values]
    found = np.empty(len(items), object)
    found[:] = items
    return found


def texts(column: Column) -> Arrays:
    """Pack a column of bytes or str, scalars or arrays of one shape."""
    first = column[0]
    if not isinstance(first, np.ndarray):
        return [encoded(column)]
    stacked = np.stack(list(column))
    return [encoded(stacked.ravel().tolist()).reshape(stacked.shape)]


def stacked(name: str, leaf: Leaf, column: Column) -> Arrays:
    """Pack a column of values that must have one shape, though the field has no known shape."""
    shapes = sorted({np.shape(value) for value in column})
    if len(shapes) > 1:
        raise UnsupportedDataError(
            f"the values of field {name!r} have no known rank, and differ within a batch ({shapes[0]} and "
            f"{shapes[-1]}), so it can't be made: leave out batch_size, or choose the other fields by "
            "ref.fields(...)"
        )
    if not leaf.is_numeric:
        return texts(column)
    return [np.stack([np.asarray(value, leaf.numpy_dtype) for value in column])]


def raws(leaf: Leaf, column: Column) -> Arrays:
    """Pack numbers of varying shape, a record a row: the bytes of each value, and its shape.

    If the rank is unknown, it precedes the shape.
    """
    values = [np.asarray(value, leaf.numpy_dtype) for value in column]
    data = encoded(value.tobytes() for value in values)
    if leaf.shape is not None:
        return [data, np.array([value.shape for value in values], np.int64).reshape(len(values), -1)]
    return [data, shapes_of([value.shape for value in values])]


def ragged_rank(leaf: Leaf) -> int:
    """Return the number of ragged dimensions in a batch of this leaf."""
    assert leaf.shape is not None
    return 1 + max(i for i, size in enumerate(leaf.shape) if size is None)


def rows(leaf: Leaf, column: Column) -> Arrays:
    """Pack varying values as one ragged tensor: flat values, then row splits from the outermost in."""
    assert leaf.shape is not None
    rank = ragged_rank(leaf)
    values = [np.asarray(value, leaf.numpy_dtype) for value in column]
    inner = leaf.shape[rank:]
    shapes = np.array([value.shape for value in values], np.int64).reshape(len(values), -1)
    if leaf.is_numeric:
        flat = np.concatenate([value.reshape(math.prod(value.shape[:rank]), *inner) for value in values])
    else:
        flat = encoded(np.concatenate([value.reshape(-1) for value in values]).tolist())
        flat = flat.reshape(int(sum(math.prod(value.shape[:rank]) for value in values)), *inner)
    found, counts = [flat], np.ones(len(values), np.int64)
    for level in range(rank):
        lengths = np.repeat(shapes[:, level], counts)
        found.append(before(lengths))
        counts = counts * shapes[:, level]
    return found


def nested_rows(name: str, columns: Sequence[Column]) -> Arrays:
    """Pack ragged values, given as flat values and row splits, as one ragged tensor of one more dimension."""
    flats, *splits = columns
    values = [np.asarray(value) for value in flats]
    if len({value.shape[1:] for value in values}) > 1:
        raise UnsupportedDataError(
            f"the ragged tensors of field {name!r} have inner dimensions that differ from record to record, "
            "so no batch can be made of them: leave out batch_size"
        )
    flat = np.concatenate(values)
    if flat.dtype == object:
        flat = encoded(flat.ravel().tolist()).reshape(flat.shape)
    found = [flat, before([len(value) - 1 for value in splits[0]])]
    for level in splits:
        found.append(before(np.concatenate([np.diff(value) for value in level])))
    return found


def fixed_column(leaf: Leaf, values: NDArray[Any]) -> Any:  # a column for `CacheWriter.write`
    """Return a batch of values of one shape as a column."""
    if leaf.is_numeric:
        return values
    return values.tolist() if values.ndim == 1 else list(values)


def varying_column(leaf: Leaf, flat: NDArray[Any], splits: NDArray[Any], shapes: NDArray[Any]) -> Any:
    """Return a batch of flat values of any shapes as a column.

    `splits` has the begin and the end of each record's values. `shapes`, an array of (records, 1 + the
    largest rank), has the rank and the sizes of each value, followed by zeros.
    """
    lengths = np.diff(splits).astype(np.int64)
    if leaf.is_numeric:
        sizes = lengths * leaf.numpy_dtype.itemsize
        if sizes.size:
            check_size(int(sizes.argmax()), int(sizes.max()))
        return HeapValues(as_bytes(flat), sizes, shapes, is_text=False)
    found = []
    for number, shape in enumerate(shapes.tolist()):
        if math.prod(shape[1 : 1 + shape[0]]) != lengths[number]:
            raise BadValueError(number, "has another number of elements than its shape says")
        values = flat[splits[number] : splits[number + 1]]
        found.append(values.reshape(shape[1 : 1 + shape[0]]) if shape[0] else values[0])
    return found
