"""Turn a column into its stored form: rows of one size, or values in a heap with an entry each."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.columns import Pickled, check_size, shape_of, widen
from yogadl._core.frozen import frozen
from yogadl._core.leaf import OBJECT, BadValueError, Leaf
from yogadl._format.entries import ENTRY_DTYPE, MAX_UNKNOWN_RANK
from yogadl._format.fingerprint import Hashes, hash_rows, hash_values

_SIZE_LIMIT: Final = 2**32


@frozen
class FixedRows:
    """A column whose values all have the same size: (records, bytes of one)."""

    rows: NDArray[np.uint8]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, records: slice) -> "FixedRows":
        return FixedRows(self.rows[records], self.shape)

    def sizes(self) -> int:
        """Return the bytes of each value."""
        return int(self.rows.shape[1])

    def hashes(self) -> Hashes:
        """Return the hash of each value."""
        return hash_rows(self.rows, self.shape)


@frozen
class HeapValues:
    """A column of values as bytes, back to back.

    Args:
        data: The bytes of all values.
        lengths: The bytes of each value.
        shapes: (records, 1 + the largest rank): rank and sizes of each value, then zeros.
        is_text: Whether the values are bytes or str.
    """

    data: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    shapes: NDArray[np.int64]
    is_text: bool

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, records: slice) -> "HeapValues":
        start, stop, _ = records.indices(len(self))
        first = int(self.lengths[:start].sum())
        lengths = self.lengths[start:stop]
        data = self.data[first : first + int(lengths.sum())]
        return HeapValues(data, lengths, self.shapes[start:stop], self.is_text)

    def sizes(self) -> NDArray[np.int64]:
        """Return the bytes of each value."""
        return self.lengths

    def hashes(self) -> Hashes:
        """Return the hash of each value."""
        return hash_values(self.data, self.lengths, self.shapes)

    def elements(self) -> NDArray[np.int64]:
        """Return each value's elements along its first axis: 1 for a scalar, the length for bytes or str."""
        scalars = self.lengths if self.is_text else np.ones_like(self.lengths)
        if self.shapes.shape[1] == 1:
            return scalars
        return np.where(self.shapes[:, 0] > 0, self.shapes[:, 1], scalars)


StoredColumn = FixedRows | HeapValues


def stored_column(leaf: Leaf, column: NDArray[Any] | list[Any] | StoredColumn) -> StoredColumn:
    """Return the stored form of a column that `column_of` made.

    Raises:
        BadValueError: if a value is too large.
    """
    if isinstance(column, FixedRows | HeapValues):
        return column
    if isinstance(column, np.ndarray):
        count, shape = len(column), column.shape[1:]
        row_bytes = leaf.numpy_dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        check_size(0, row_bytes)
        return FixedRows(as_bytes(column).reshape(count, row_bytes), shape)
    if leaf.is_numeric:
        for position, array in enumerate(column):
            check_size(position, array.nbytes)
        values: list[Any] = [as_bytes(array).data for array in column]
    else:
        values = [_encoded(leaf, value) for value in column]
        for position, value in enumerate(values):
            check_size(position, len(value))
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    shapes = shapes_of([shape_of(leaf, value) for value in column])
    return HeapValues(np.frombuffer(b"".join(values), np.uint8), lengths, shapes, not leaf.is_numeric)


def shapes_of(shapes: list[tuple[int, ...]]) -> NDArray[np.int64]:
    """Return shapes as rows of an array: the rank, the sizes, then zeros."""
    ranks = set(map(len, shapes))
    most = max(ranks, default=0)
    found = np.zeros((len(shapes), 1 + most), np.int64)
    if len(ranks) == 1:
        found[:, 0] = most
        if most:
            found[:, 1:] = shapes
        return found
    for row, shape in zip(found, shapes, strict=True):
        row[0] = len(shape)
        row[1 : 1 + len(shape)] = shape
    return found


def widen_by(leaf: Leaf, column: StoredColumn) -> Leaf:
    """Return the leaf that also admits the shapes of a column.

    Raises:
        BadValueError: if an entry has no room for a shape, now that shapes vary.
    """
    if isinstance(column, FixedRows):
        shapes = np.array([[len(column.shape), *column.shape]])
        leaf = widen(leaf, column.shape)
    else:
        shapes = column.shapes
        for rank in np.unique(shapes[:, 0]).tolist():
            sizes = shapes[shapes[:, 0] == rank, 1 : 1 + rank]
            same = (sizes == sizes[0]).all(axis=0)
            shape = tuple(
                size if alike else None for size, alike in zip(sizes[0].tolist(), same, strict=True)
            )
            leaf = widen(leaf, shape)
    ranks = shapes[:, 0]
    if leaf.shape is None and ranks.max(initial=0) > MAX_UNKNOWN_RANK:
        raise BadValueError(
            int(np.argmax(ranks > MAX_UNKNOWN_RANK)),
            f"has {ranks.max()} dimensions; where that varies, at most {MAX_UNKNOWN_RANK} are stored",
        )
    # A value with so large a dimension has no elements; otherwise it would have been refused for its size.
    if not leaf.is_fixed and shapes.max(initial=0) >= _SIZE_LIMIT:
        raise BadValueError(
            int(shapes.max(axis=1).argmax()),
            f"has a dimension of {shapes.max()}; where shapes vary, they are below {_SIZE_LIMIT}",
        )
    return leaf


def as_heap(column: StoredColumn) -> HeapValues:
    """Return a column of fixed rows as values of a heap."""
    if isinstance(column, HeapValues):
        return column
    count, size = column.rows.shape
    shapes = np.tile(np.array([len(column.shape), *column.shape], np.int64), (count, 1))
    return HeapValues(column.rows.reshape(-1), np.full(count, size, np.int64), shapes, is_text=False)


def as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of an array, flat, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _encoded(leaf: Leaf, value: Any) -> bytes:
    """Return the stored bytes of bytes, str or an object; an array includes its items' lengths."""
    if leaf.dtype == OBJECT:
        return value.data if isinstance(value, Pickled) else Pickled(value).data
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    items = [_encoded(leaf, item) for item in value.ravel().tolist()]
    return b"".join([np.fromiter(map(len, items), ENTRY_DTYPE, len(items)).tobytes(), *items])
