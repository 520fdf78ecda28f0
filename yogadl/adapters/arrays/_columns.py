"""Turn Arrow arrays into columns for a cache, from Arrow's buffers, without a Python object per value."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from yogadl._core.columns import check_size
from yogadl._core.leaf import BadValueError, Leaf, Shape, refuse
from yogadl._core.spec import Spec
from yogadl._format.columns import ENTRY_DTYPE, HeapValues, as_bytes, decoded
from yogadl.adapters.arrays._types import NULL, Values, below, is_list, is_text, unnested

# The types of column that `CacheWriter.write` accepts.
Stored = NDArray[Any] | HeapValues

# Chunks are joined up to this size, since many small ones take longer; Arrow's offsets may have only 31 bits.
_JOINED_BYTES: Final = 2**30


def stored_columns(
    names: Sequence[Any] | None, columns: Sequence[Values], numbers: Sequence[int]
) -> list[Stored]:
    """Return one or more rows as stored columns, one for each field of `spec_of`.

    Raises:
        UnsupportedDataError: if a value is null or too large; names the record by its number in `numbers`.
    """
    found: list[Stored] = []
    for name, column in zip([""] if names is None else map(str, names), columns, strict=True):
        pieces, first = [], 0
        for array in _chunks(column):
            if len(array):
                pieces.append(_stored(name, array, numbers[first : first + len(array)]))
                first += len(array)
        found += map(_joined, zip(*pieces, strict=True))
    return found


def value_lists(spec: Spec, columns: Sequence[Stored]) -> list[NDArray[Any] | list[Any]]:
    """Return stored columns as records have them: as lists of values if the values vary in length."""
    return [
        column if isinstance(column, np.ndarray) else list(_values_of(field.leaf, column))
        for field, column in zip(spec.fields, columns, strict=True)
    ]


def bytes_of(columns: Sequence[Stored]) -> int:
    """Return the size of columns in bytes."""
    return sum(
        column.nbytes if isinstance(column, np.ndarray) else column.data.nbytes + 16 * len(column)
        for column in columns
    )


def _chunks(column: Values) -> Sequence[Values]:
    if not isinstance(column, pa.ChunkedArray):
        return [column]
    if column.num_chunks > 1 and column.nbytes < _JOINED_BYTES:
        return [column.combine_chunks()]
    chunks: Sequence[Values] = column.chunks
    return chunks


def _stored(path: str, array: Values, numbers: Sequence[int]) -> list[Stored]:
    """Return the stored columns of a non-empty array: one, or one for each field of a struct."""
    if isinstance(array, np.ndarray):
        return [array.astype(array.dtype.newbyteorder("<"), copy=False)]
    array = _plain(array)
    position = _first_null(array)
    if position is not None:
        raise refuse(path, numbers[position], NULL)
    if pa.types.is_struct(array.type):
        found: list[Stored] = []
        for i in range(array.type.num_fields):
            # `field` ignores the nulls of the struct itself, but the struct has none.
            found += _stored(below(path, array.type.field(i).name), array.field(i), numbers)
        return found
    return [_stored_leaf(path, array, numbers)]


def _stored_leaf(path: str, array: Any, numbers: Sequence[int]) -> Stored:
    count = len(array)
    shape, _ = unnested(path, array.type)
    array, counts = _opened(path, array, shape, numbers)
    inner = math.prod(size for size in shape if size is not None)
    if is_text(array.type):
        data, lengths = _text(array)
        if shape:
            data, lengths = _encoded(
                data, lengths, np.full(count, inner) if counts is None else counts * inner
            )
    else:
        values = array.to_numpy(zero_copy_only=False)
        if counts is None:
            fixed: NDArray[Any] = values.reshape(count, *(size or 0 for size in shape))
            return fixed
        data, lengths = as_bytes(values), counts * (inner * values.dtype.itemsize)
    longest = int(np.argmax(lengths))
    try:
        check_size(longest, int(lengths[longest]))
    except BadValueError as error:
        raise refuse(path, numbers[longest], error.problem) from None
    shapes = np.tile(np.array([len(shape), *(size or 0 for size in shape)], np.int64), (count, 1))
    if counts is not None:
        shapes[:, 1] = counts
    return HeapValues(data, lengths, shapes, is_text(array.type))


def _opened(
    path: str, array: Any, shape: Shape, numbers: Sequence[int]
) -> tuple[Any, NDArray[np.int64] | None]:
    """Return the innermost values of lists, and the length of each outermost list if the lengths vary."""
    counts = None
    declared = None
    if isinstance(array.type, pa.BaseExtensionType):
        declared, array = shape, array.storage
    levels: list[Any] = []  # for each dimension the size of all its lists, or the end of each list

    def record_of(position: int) -> int:
        for level in reversed(levels):
            position = (
                position // level if isinstance(level, int) else int(level.searchsorted(position, "right"))
            )
        return numbers[position]

    while is_list(array.type):
        if pa.types.is_fixed_size_list(array.type):
            levels.append(array.type.list_size)
        else:
            lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
            size = None if declared is None else declared[len(levels)]
            if size is None:
                counts = lengths
                levels.append(np.cumsum(lengths))
            else:
                wrong = np.flatnonzero(lengths != size)
                if len(wrong):
                    problem = (
                        f"has {lengths[wrong[0]]} items in a dimension of its shape {shape} that takes {size}"
                    )
                    raise refuse(path, record_of(int(wrong[0])), problem)
                levels.append(size)
        array = _plain(array.flatten())  # `flatten` leaves out null lists, but there are none
        position = _first_null(array)
        if position is not None:
            raise refuse(path, record_of(position), f"has an item that {NULL}")
    return array, counts


def _first_null(array: Any) -> int | None:
    if not array.null_count:
        return None
    return int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))


def _plain(array: Any) -> Any:
    """Return an array without dictionary or run-end encoding."""
    while True:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        else:
            return array


def _text(array: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of all values, back to back, and the length of each value."""
    types, count = pa.types, len(array)
    if types.is_string_view(array.type) or types.is_binary_view(array.type):
        array = array.cast(pa.large_string() if types.is_string_view(array.type) else pa.large_binary())
    if count == 0:
        return np.empty(0, np.uint8), np.empty(0, np.int64)
    if types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        rows = _buffer(array.buffers()[1], np.uint8)
        return rows[array.offset * width :][: count * width], np.full(count, width, np.int64)
    is_large = types.is_large_string(array.type) or types.is_large_binary(array.type)
    offsets = _buffer(array.buffers()[1], np.int64 if is_large else np.int32)[array.offset :][: count + 1]
    data = _buffer(array.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    return data, np.diff(offsets).astype(np.int64)


def _buffer(buffer: Any, dtype: Any) -> NDArray[Any]:
    return np.empty(0, dtype) if buffer is None else np.frombuffer(buffer, dtype)


def _encoded(
    data: NDArray[np.uint8], lengths: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Put the lengths of a record's texts, in 32 bits, before its texts, as `_format.columns` stores them.

    Args:
        data: All texts, back to back.
        lengths: The bytes of each text.
        counts: The number of texts of each record.
    """
    text_ends = np.concatenate([[0], np.cumsum(lengths)])
    record_ends = np.concatenate([[0], np.cumsum(counts)])
    heads, texts = ENTRY_DTYPE.itemsize * counts, np.diff(text_ends[record_ends])
    # True for the bytes of lengths: the first `heads` of each record. Lengths and texts keep their order.
    runs = np.stack([heads, texts], axis=1).reshape(-1)
    is_head = np.repeat(np.tile([True, False], len(counts)), runs)
    joined = np.empty(len(is_head), np.uint8)
    joined[is_head] = lengths.astype(ENTRY_DTYPE).view(np.uint8)
    joined[~is_head] = data
    return joined, heads + texts


def _joined(pieces: tuple[Stored, ...]) -> Stored:
    if len(pieces) == 1:
        return pieces[0]
    heaps = [piece for piece in pieces if isinstance(piece, HeapValues)]
    if not heaps:
        return np.concatenate([piece for piece in pieces if isinstance(piece, np.ndarray)])
    return HeapValues(
        np.concatenate([heap.data for heap in heaps]),
        np.concatenate([heap.lengths for heap in heaps]),
        np.concatenate([heap.shapes for heap in heaps]),
        heaps[0].is_text,
    )


def _values_of(leaf: Leaf, column: HeapValues) -> Iterator[Any]:
    ends = np.cumsum(column.lengths)
    starts = (ends - column.lengths).tolist()
    for start, end, (rank, *sizes) in zip(starts, ends.tolist(), column.shapes.tolist(), strict=True):
        data = column.data[start:end]
        if leaf.is_numeric:
            yield data.copy().view(leaf.numpy_dtype).reshape(sizes[:rank])
        else:
            yield decoded(leaf, data.tobytes(), tuple(sizes[:rank]))
