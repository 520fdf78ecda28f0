"""Turn Arrow's types, arrays and batches into specs and columns for a cache.

A stored column is a numpy array, or `HeapValues` if the values vary in length; the cache's writer takes both.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from yogadl._core.advice import none_problem
from yogadl._core.columns import check_size
from yogadl._core.forms import EMPTY, Forms
from yogadl._core.json_value import decode, decode_foreign, encode
from yogadl._core.spec import (
    BYTES,
    JSON,
    STR,
    BadValueError,
    DictNode,
    Leaf,
    Node,
    Shape,
    Spec,
    check_keys,
    leaf_at,
    refuse,
)
from yogadl._format.columns import HeapValues, as_bytes
from yogadl._format.fields import ENTRY_DTYPE, decode_value
from yogadl.errors import ConfigurationError, UnsupportedDataError

# Arrow types that have a stored form, and the spec of records of such columns.


# pyarrow has no annotations, so `Any` stands for a pa.DataType or a pa.Array throughout.
# A column: a pa.Array, a pa.ChunkedArray, or a numpy array, which is stored as it is.
Values = Any

_NUMBERS: Final = {
    **{f"{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "bool": "bool",
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "date32[day]": "datetime64[D]",
    "date64[ms]": "datetime64[ms]",
}
_REMEDIES: Final = (
    (pa.types.is_decimal, "cast it to float64, or to string to keep every digit"),
    (pa.types.is_time, "cast it to an integer"),
    (pa.types.is_interval, "cast it to a duration"),
    (pa.types.is_union, "make a column of each kind"),
)


def spec_of(names: Sequence[Any] | None, columns: Sequence[Values], forms: Forms) -> Spec:
    """Return the spec of records that are a dict of these columns, or a single column's values.

    Args:
        names: The keys of the dict; ``None`` for a single column.
        columns: The columns, with the first rows, one or more.
        forms: What is said about the values of records.

    Raises:
        UnsupportedDataError: if a column can't be stored; names the column.
    """
    if names is None:
        return Spec(_node("", columns[0], forms))
    check_keys(names, "", 0)
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UnsupportedDataError(f"two columns are called {name!r}; rename one of them")
    nodes = [_node(str(name), column, forms) for name, column in zip(names, columns, strict=True)]
    spec = Spec(DictNode(tuple(names), tuple(nodes)))
    if not spec.fields:
        raise UnsupportedDataError(
            "the table has no columns, but records need at least one field: add a column"
        )
    forms.check_json(spec)
    forms.check_missing(map(str, names), by_column=True)
    return spec


def _node(path: str, column: Values, forms: Forms) -> Node:
    if isinstance(column, np.ndarray):
        return Leaf(JSON) if path in forms.json else leaf_at(path, 0, np.empty((), column.dtype))
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return _node_of_array(path, _without_encoding(array), forms)


def _node_of_array(path: str, array: Any, forms: Forms) -> Node:
    data_type = array.type
    if pa.types.is_null(data_type) and path in forms.missing and path not in forms.json:
        data_type = _of_nothing(1, forms.missing[path]).type
    if path in forms.json or is_tree(data_type) or _has_null_trees(path, array, forms.missing):
        return Leaf(JSON)
    if pa.types.is_struct(data_type):
        keys = [data_type.field(i).name for i in range(data_type.num_fields)]
        if len(set(keys)) < len(keys):
            raise UnsupportedDataError(f"the struct {path!r} has two fields of one name ({keys}); rename one")
        children = [
            _node_of_array(below(path, key), _without_encoding(array.field(i)), forms)
            for i, key in enumerate(keys)
        ]
        return DictNode(tuple(keys), tuple(children))
    return _leaf_of_type(path, data_type)


def is_tree(data_type: Any) -> bool:
    """Return whether values of a type are json values: lists of structs, maps, lists of varying lists."""
    if pa.types.is_map(data_type):
        return True
    if isinstance(data_type, pa.BaseExtensionType):
        return str(getattr(data_type, "extension_name", "")) == "arrow.json"
    inner, is_varying = data_type, False
    while is_list(inner):
        is_varying = not pa.types.is_fixed_size_list(inner) and inner is not data_type
        inner = _type_without_encoding(inner.value_type)
        if is_varying:
            return True
    return inner is not data_type and (pa.types.is_struct(inner) or pa.types.is_null(inner) or is_tree(inner))


def _has_null_trees(path: str, array: Any, missing: Mapping[str, Any]) -> bool:
    """Return whether the lists or structs of an array have nulls, or are null themselves, for good."""
    if pa.types.is_struct(array.type):
        fields = [array.type.field(i).name for i in range(array.type.num_fields)]
        is_filled = _fills(missing.get(path), fields)
        return bool(array.null_count and not is_filled) or any(
            array.field(i).null_count and below(path, name) not in missing for i, name in enumerate(fields)
        )
    if not is_list(array.type) or path in missing:
        return False
    while is_list(array.type):
        if array.null_count:
            return True
        array = _without_encoding(array.flatten())
    return bool(array.null_count)


def _fills(value: Any, keys: Sequence[str]) -> bool:
    """Return whether a value that comes in the place of nulls is a struct of these keys."""
    return isinstance(value, dict) and sorted(value) == sorted(keys)


def _leaf_of_type(path: str, data_type: Any) -> Leaf:
    shape, element = unnested(path, data_type)
    if is_text(element):
        return Leaf(BYTES if is_bytes(element) else STR, shape)
    if pa.types.is_null(element):
        raise refuse(path, 0, none_problem(path))
    dtype = _dtype(element)
    if dtype is None:
        remedy = next((remedy for holds, remedy in _REMEDIES if holds(element)), "cast it to another type")
        raise _unsupported(path, data_type, remedy)
    return Leaf(dtype, shape)


def _dtype(element: Any) -> str | None:
    # A time zone only changes how a time is shown: Arrow stores all times in UTC.
    if pa.types.is_timestamp(element):
        return f"datetime64[{element.unit}]"
    if pa.types.is_duration(element):
        return f"timedelta64[{element.unit}]"
    return _NUMBERS.get(str(element))


def unnested(path: str, data_type: Any) -> tuple[Shape, Any]:
    """Return the shape of a value, of which only the outermost dimension may vary, and the innermost type."""
    declared = None
    if isinstance(data_type, pa.BaseExtensionType):
        declared = _declared_shape(data_type)
        if declared is None:
            raise _unsupported(
                path, data_type, f"cast it to the type that it is kept as, {data_type.storage_type}"
            )
        data_type = data_type.storage_type
    element, sizes = data_type, []
    while is_list(element):
        sizes.append(element.list_size if pa.types.is_fixed_size_list(element) else None)
        element = _type_without_encoding(element.value_type)
    shape = tuple(sizes) if declared is None else declared
    if None in shape[1:]:
        raise _unsupported(
            path,
            data_type,
            "only the outermost dimension may vary; make the inner lists of a fixed size, or flatten them",
        )
    return shape, element


def _declared_shape(data_type: Any) -> Shape | None:
    """Return the shape of a tensor type of Arrow or of HF datasets; ``None`` for other extension types."""
    shape = getattr(data_type, "shape", None)
    order = getattr(data_type, "permutation", None)
    if not shape or (order is not None and list(order) != sorted(order)):
        return None
    return tuple(shape)


def _type_without_encoding(data_type: Any) -> Any:
    """Return a type without dictionary or run-end encoding."""
    while pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
        data_type = data_type.value_type
    return data_type


def is_list(data_type: Any) -> bool:
    """Return whether values are lists, of fixed or varying size."""
    types = pa.types
    return any(
        holds(data_type)
        for holds in (
            types.is_list, types.is_large_list, types.is_fixed_size_list,
            types.is_list_view, types.is_large_list_view,
        )
    )  # fmt: skip


def is_nested(data_type: Any) -> bool:
    """Return whether values are lists or structs."""
    data_type = _type_without_encoding(data_type)
    return is_list(data_type) or pa.types.is_struct(data_type)


def is_text(data_type: Any) -> bool:
    """Return whether values are bytes or str."""
    types = pa.types
    return any(
        holds(data_type)
        for holds in (
            types.is_string, types.is_large_string, types.is_string_view, types.is_fixed_size_binary,
            types.is_binary, types.is_large_binary, types.is_binary_view,
        )
    ) and not types.is_decimal(data_type)  # fmt: skip


def is_bytes(data_type: Any) -> bool:
    """Return whether a type of bytes or str is of bytes."""
    types = pa.types
    return not any(
        holds(data_type) for holds in (types.is_string, types.is_large_string, types.is_string_view)
    )


def below(path: str, name: str) -> str:
    """Return the path of a struct's field."""
    return f"{path}/{name}" if path else name


def _unsupported(path: str, data_type: Any, remedy: str) -> UnsupportedDataError:
    field = f"field {path!r}" if path else "the record itself"
    return UnsupportedDataError(f"{field} is {data_type} in Arrow, which has no stored form; {remedy}")


# Turn Arrow arrays into columns for a cache, from Arrow's buffers, without a Python object per value.


# The types of column that `CacheWriter.write` accepts.
StoredColumn = NDArray[Any] | HeapValues

# Chunks are joined up to this size, since many small ones take longer; Arrow's offsets may have only 31 bits.
_JOINED_BYTES: Final = 2**30


class TableForm:
    """The form of the records of a table.

    Args:
        names: The columns' names; ``None`` for a single column.
        spec: The structure of a record.
        missing: By the names of fields, what comes in the place of nulls.
    """

    def __init__(self, names: Sequence[Any] | None, spec: Spec, missing: Mapping[str, Any]) -> None:
        self._names, self._missing = names, missing
        self._trees = frozenset(field.name for field in spec.fields if field.leaf.dtype == JSON)

    def stored(self, columns: Sequence[Values], numbers: Sequence[int]) -> list[StoredColumn]:
        """Return one or more rows as stored columns, one for each field.

        Raises:
            UnsupportedDataError: if a value is null or too large; names the record by its number in
                `numbers`.
        """
        found: list[StoredColumn] = []
        names = [""] if self._names is None else map(str, self._names)
        for name, column in zip(names, columns, strict=True):
            pieces, first = [], 0
            for array in _chunks(column):
                if len(array):
                    pieces.append(self._stored_array(name, array, numbers[first : first + len(array)]))
                    first += len(array)
            found += map(_joined, zip(*pieces, strict=True))
        return found

    def _stored_array(self, path: str, array: Values, numbers: Sequence[int]) -> list[StoredColumn]:
        """Return the stored columns of a non-empty array: one, or one for each field of a struct."""
        if path in self._trees:
            return [_stored_trees(path, array, numbers, self._missing.get(path))]
        if isinstance(array, np.ndarray):
            return [array.astype(array.dtype.newbyteorder("<"), copy=False)]
        array = _without_encoding(array)
        if array.null_count and path in self._missing:
            array = _filled(path, array, self._missing[path])
        position = _first_null(array)
        if position is not None:
            raise refuse(path, numbers[position], none_problem(path, fill_for(array.type)))
        if pa.types.is_struct(array.type):
            found: list[StoredColumn] = []
            for i in range(array.type.num_fields):
                # `field` ignores the nulls of the struct itself, but the struct has none.
                name = below(path, array.type.field(i).name)
                found += self._stored_array(name, array.field(i), numbers)
            return found
        return [_stored_leaf(path, array, numbers)]


def _stored_trees(path: str, array: Values, numbers: Sequence[int], fill: Any) -> HeapValues:
    """Return json values in their stored form, with a value in the place of nulls."""
    is_array = isinstance(array, np.ndarray)
    try:
        values = array.tolist() if is_array else array.to_pylist(maps_as_pydicts="strict")
    except KeyError as error:
        raise UnsupportedDataError(f"field {path!r} has a map with a key twice: {error}") from error
    read = None if is_array else _reader_of_texts(array.type)
    if fill is not None:
        fill = _empty_of(array) if fill == EMPTY else fill
        values = [fill if value is None else value for value in values]
    texts = []
    for number, value in zip(numbers, values, strict=True):
        try:
            texts.append(encode(value if read is None else read(value)))
            check_size(0, len(texts[-1]))
        except BadValueError as error:
            raise refuse(path, number, error.problem) from None
        except ValueError as error:
            raise refuse(path, number, f"is no JSON, though its type in Arrow says so: {error}") from error
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    data = np.frombuffer(b"".join(texts), np.uint8)
    return HeapValues(data, lengths, np.zeros((len(texts), 1), np.int64), is_text=True)


def _read_text(text: str | None) -> Any:
    return None if text is None else decode_foreign(text.encode())


def _reader_of_texts(data_type: Any) -> Callable[[Any], Any] | None:
    """Return a function that decodes the texts of a type for JSON in a value; ``None`` if there are none."""
    data_type = _type_without_encoding(data_type)
    if isinstance(data_type, pa.BaseExtensionType):
        return _read_text if is_tree(data_type) else None
    if pa.types.is_struct(data_type):
        fields = [data_type.field(number) for number in range(data_type.num_fields)]
        readers = {field.name: _reader_of_texts(field.type) for field in fields}
        found = {name: read for name, read in readers.items() if read is not None}
        if not found:
            return None
        return lambda value: (
            value and {name: found[name](item) if name in found else item for name, item in value.items()}
        )
    if pa.types.is_map(data_type):
        read = _reader_of_texts(data_type.item_type)
        if read is None:
            return None
        return lambda value: value and {key: read(item) for key, item in value.items()}
    of_items = _reader_of_texts(data_type.value_type) if is_list(data_type) else None
    return of_items and (lambda value: value and list(map(of_items, value)))


def _empty_of(array: Values) -> Any:
    """Return the empty value of an array's kind, as Python has it."""
    kinds: dict[type, Any] = {dict: {}, list: []}
    if isinstance(array, np.ndarray):
        first = next((value for value in array if value is not None), "")
        return kinds.get(type(first), "")
    return {} if pa.types.is_struct(array.type) else [] if is_list(array.type) else ""


def fill_for(data_type: Any) -> str:
    """Return Python code for what may come in the place of a null of this type."""
    if is_text(data_type) or is_list(data_type):
        return '"empty"'
    if pa.types.is_integer(data_type):
        return "0" if pa.types.is_unsigned_integer(data_type) else "-1"
    if pa.types.is_floating(data_type):
        return 'float("nan")'
    return "False" if pa.types.is_boolean(data_type) else "..."


def _filled(path: str, array: Any, value: Any) -> Any:
    """Return an array whose nulls are replaced by a value."""
    if pa.types.is_null(array.type):
        return _of_nothing(len(array), value)
    if value == EMPTY and is_list(array.type):
        value = []
    elif value == EMPTY:
        value = b"" if is_bytes(array.type) else ""
    try:
        is_time = isinstance(value, np.datetime64 | np.timedelta64)
        one = (
            pa.array(np.array([value])).cast(array.type)[0] if is_time else pa.scalar(value, type=array.type)
        )
        return pc.if_else(array.is_null(), one, array)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ConfigurationError(
            f"missing= has {value!r:.60} for field {path!r}, which is {array.type} in Arrow: {error}"
        ) from error


def _of_nothing(count: int, value: Any) -> Any:
    """Return an array of a value in the place of each null, where an array has no type."""
    value = "" if value == EMPTY else value
    return pa.array([value.item() if isinstance(value, np.generic) else value] * count)


def value_lists(spec: Spec, columns: Sequence[StoredColumn]) -> list[NDArray[Any] | list[Any]]:
    """Return stored columns in the form for reading: as lists of values if the values vary in length."""
    return [
        column
        if isinstance(column, np.ndarray)
        else heap_values(field.leaf, column, np.cumsum(column.lengths), np.arange(len(column)))
        for field, column in zip(spec.fields, columns, strict=True)
    ]


def bytes_of(columns: Sequence[StoredColumn]) -> int:
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


def _stored_leaf(path: str, array: Any, numbers: Sequence[int]) -> StoredColumn:
    count = len(array)
    shape, _ = unnested(path, array.type)
    array, counts = _innermost_values(path, array, shape, numbers)
    inner = math.prod(size for size in shape if size is not None)
    if is_text(array.type):
        data, lengths = _text(array)
        if shape:
            data, lengths = _with_text_lengths(
                data, lengths, np.full(count, inner) if counts is None else counts * inner
            )
    else:
        values = _numbers(array)
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


def _innermost_values(
    path: str, array: Any, shape: Shape, numbers: Sequence[int]
) -> tuple[Any, NDArray[np.int64] | None]:
    """Return the innermost values of lists, and the length of each outermost list if the lengths vary."""
    counts = None
    declared = None
    if isinstance(array.type, pa.BaseExtensionType):
        declared, array = shape, array.storage
    levels: list[
        Any
    ] = []  # for each dimension: the size of its lists, or the ends of lists that vary in size

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
            lengths = _numbers(pc.list_value_length(array)).astype(np.int64)
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
        array = _without_encoding(array.flatten())  # `flatten` leaves out null lists, but there are none
        position = _first_null(array)
        if position is not None:
            problem = f"has an item that is None: as a json value, json=({path!r},), it may"
            raise refuse(path, record_of(position), problem)
    return array, counts


def _first_null(array: Any) -> int | None:
    if not array.null_count:
        return None
    return int(np.argmax(_numbers(array.is_null())))


def _without_encoding(array: Any) -> Any:
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


def _numbers(array: Any) -> NDArray[Any]:
    """Return the values of an array of numbers without nulls; `to_numpy` would import pandas."""
    start, end = array.offset, array.offset + len(array)
    content, name = array.buffers()[1], _dtype(array.type)
    if name == "bool":
        bits = np.unpackbits(_buffer(content, np.uint8), bitorder="little")
        return bits[start:end].view(np.bool_)
    if pa.types.is_date32(array.type):
        return _buffer(content, np.int32)[start:end].astype(name)
    return _buffer(content, name)[start:end]


def _buffer(buffer: Any, dtype: Any) -> NDArray[Any]:
    return np.empty(0, dtype) if buffer is None else np.frombuffer(buffer, dtype)


def _with_text_lengths(
    data: NDArray[np.uint8], lengths: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Put the lengths of each record's texts, in 32 bits, before the texts, as `_format.columns` stores them.

    Return all the bytes, back to back, and the number of bytes of each record.

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


def _joined(pieces: tuple[StoredColumn, ...]) -> StoredColumn:
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


def heap_values(
    leaf: Leaf, column: HeapValues, ends: NDArray[np.int64], rows: NDArray[np.int64]
) -> list[Any]:
    """Return the values of some rows, given where each value of the column ends in its data."""
    stops = ends[rows]
    places = zip((stops - column.lengths[rows]).tolist(), stops.tolist(), strict=True)
    data = column.data.data
    if leaf.dtype == JSON:
        return [decode(data[start:end]) for start, end in places]
    if leaf.shape == () and leaf.dtype == BYTES:
        return [data[start:end].tobytes() for start, end in places]
    if leaf.shape == () and leaf.dtype == STR:
        return [str(data[start:end], "utf-8", "surrogatepass") for start, end in places]
    shaped = zip(places, column.shapes[rows].tolist(), strict=True)
    if leaf.is_numeric:
        return [
            column.data[start:end].copy().view(leaf.numpy_dtype).reshape(sizes[:rank])
            for (start, end), (rank, *sizes) in shaped
        ]
    return [
        decode_value(leaf, data[start:end].tobytes(), tuple(sizes[:rank]))
        for (start, end), (rank, *sizes) in shaped
    ]
