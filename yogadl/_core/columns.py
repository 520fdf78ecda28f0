"""Turn records into columns, one array or list a field, with shapes that a caller may declare."""

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.advice import difference, fill_of, none_problem, of_continuing, of_function, of_storing
from yogadl._core.json_value import PLAIN_TYPES, JsonText, decode
from yogadl._core.spec import (
    BYTES,
    JSON,
    MAX_DIMENSIONS,
    NUMPY_DTYPES,
    OBJECT,
    PICKLE_HINT,
    PYTHON_SCALARS,
    STR,
    BadShapeError,
    BadValueError,
    DictNode,
    Leaf,
    NamedTupleNode,
    Node,
    SequenceNode,
    Shape,
    Spec,
    leaf_of,
    names_of_namedtuple,
    refuse,
    remade,
)
from yogadl.errors import ConfigurationError, UnsupportedDataError

# A function of a field's name, the structure that records before have there, and a value: advice, as text.
Advise = Callable[[str, Node, Any], str]

# One column per field: an array or a list made by `column_of`, or a stored column. The items are of type Any
# because this module can't import the classes of stored columns.
Columns = list[Any]

# The most bytes of one field of one record, which lie together inside one LMDB value. The format stores their
# size in 32 bits, and LMDB does the same with the size of its value.
MAX_LEAF_BYTES: Final = 2**31 - 2**20
# The size of a chunk: large enough to keep the work per chunk small, small enough for memory.
CHUNK_RECORDS: Final = 1024
CHUNK_BYTES: Final = 8 * 2**20
# A chunk is read in steps of this many records. After each step, the size of its last record is measured: if
# that is far larger than expected, the chunk ends early.
_UNSEEN_RECORDS: Final = 64


def with_record_number_in_errors(
    make_iterator: Callable[[], Iterator[Any]],
    first_record: int = 0,
    named: Callable[[int], str] = "record {} of the source".format,
) -> Iterator[Any]:
    """Yield a source's records; if the source raises an error, add a note with the record's number to it.

    Args:
        make_iterator: Returns the iterator over the records; an error that it raises gets the note, too.
        first_record: The number of the first record.
        named: Returns what the note calls the record with a number.
    """
    number = first_record
    try:
        # `number` is always the number of the next record, the one whose reading may fail.
        for number, record in enumerate(make_iterator(), first_record + 1):  # noqa: B007  (used in the note)
            yield record
    except Exception as error:
        error.add_note(f"while reading {named(number)}")
        raise


def chunks(
    spec: Spec,
    records: Iterator[Any],
    first_record: int,
    advise: Advise = of_storing,
    *,
    are_constant: bool = False,
) -> Iterator[Columns]:
    """Yield the columns of records, a chunk at a time; a record that may change is copied as it comes."""
    # Large records need small chunks: the first chunk has one record, and the size of each chunk sets the
    # next.
    count, first = 1, first_record
    if not are_constant:
        records = map(copier_of(spec.tree), records)
    while chunk := _next_records(spec, records, count):
        columns = columns_of(spec, chunk, first, advise)
        yield columns
        first += len(chunk)
        size = sum(size_of(column) for column in columns) // len(chunk)
        count = max(1, min(16 * count, CHUNK_RECORDS, CHUNK_BYTES // max(size, 1)))


class Pickled:
    """An object pickled at the time it was read, so that later changes don't reach it."""

    __slots__ = ("data",)

    def __init__(self, value: Any) -> None:
        import cloudpickle

        self.data: bytes = cloudpickle.dumps(value)

    def __len__(self) -> int:
        return len(self.data)


def as_pickled(value: Any) -> Pickled:
    """Return a value pickled, if it is not."""
    return value if type(value) is Pickled else Pickled(value)


def _as_text(value: Any) -> Any:
    """Return a json value as its text; any other value stays as it is, and is refused later."""
    if type(value) is JsonText:
        return value
    try:
        return JsonText(value)
    except BadValueError:
        return value


# How values of dtypes that may be any tree are copied: to be stored at once, or to be given to a user.
_COPIERS: Final[Mapping[str, Callable[[Any], Any]]] = {OBJECT: as_pickled, JSON: _as_text}
ITEM_COPIERS: Final[Mapping[str, Callable[[Any], Any]]] = {OBJECT: lambda value: value, JSON: _as_text}


def copier_of(
    node: Node, copiers_of_trees: Mapping[str, Callable[[Any], Any]] = _COPIERS
) -> Callable[[Any], Any]:
    """Return a function that copies those parts of a record that may change later.

    For example, a source may fill the same array again for each record.

    A record of another structure is returned unchanged, and refused later.

    Args:
        node: The structure of a record.
        copiers_of_trees: The functions that copy the values of dtypes that may be any tree.
    """
    if isinstance(node, Leaf):
        return copiers_of_trees.get(node.dtype, copy_if_mutable)
    copiers = [copier_of(child, copiers_of_trees) for child in node.children]
    if isinstance(node, DictNode):
        by_key = dict(zip(node.keys, copiers, strict=True))

        def copy_dict(record: Any) -> Any:
            if not isinstance(record, dict) or record.keys() != by_key.keys():
                return record
            return {key: by_key[key](value) for key, value in record.items()}

        return copy_dict

    def copy_sequence(record: Any) -> Any:
        if not isinstance(record, list | tuple) or len(record) != len(copiers):
            return record
        return remade(record, [copy_child(value) for copy_child, value in zip(copiers, record, strict=True)])

    return copy_sequence


# Types of values that can't be changed: most values are of these.
IMMUTABLE_TYPES: Final = frozenset(
    {*PYTHON_SCALARS, str, bytes, type(None), *(np.dtype(name).type for name in NUMPY_DTYPES)}
)


def copy_if_mutable(value: Any) -> Any:
    """Return a value that no other code can change."""
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return value
    if kind is np.ndarray:
        return value if value.nbytes > MAX_LEAF_BYTES else value.copy()  # a value this large will be refused
    if isinstance(value, np.generic):
        return value
    if kind is list:
        return list(map(copy_if_mutable, value)) if value and type(value[0]) is list else value.copy()
    if kind is memoryview:
        return bytes(value)
    try:
        return copy.deepcopy(value)  # a tensor, or another library's array
    except Exception:  # noqa: BLE001  (any type, which may raise anything: the value is checked later)
        return value


def _next_records(spec: Spec, records: Iterator[Any], count: int) -> list[Any]:
    """Return the next `count` records, or fewer if they are much larger in all than a chunk should be."""
    chunk: list[Any] = []
    while step := list(itertools.islice(records, min(_UNSEEN_RECORDS, count - len(chunk)))):
        chunk += step
        if len(chunk) == count:
            break
        try:
            last = columns_of(spec, step[-1:])
        except UnsupportedDataError:
            break  # storing the records raises an error that names the first one that does not fit
        if len(chunk) * sum(map(size_of, last)) > 2 * CHUNK_BYTES:
            break
    return chunk


def columns_of(
    spec: Spec, records: Sequence[Any], first_record: int = 0, advise: Advise = of_storing
) -> Columns:
    """Turn records into columns.

    Raises:
        UnsupportedDataError: if a record does not fit the spec; the error names the field and the record.
    """
    values = split(spec, records, first_record, advise)
    return [
        field_column(field, field_values, first_record, advise)
        for field, field_values in zip(spec.fields, values, strict=True)
    ]


def split(
    spec: Spec, records: Sequence[Any], first_record: int = 0, advise: Advise = of_storing
) -> list[list[Any]]:
    """Split records into one list of values a field, checking the structure of each.

    Args:
        spec: The structure that they should have.
        records: The records.
        first_record: The number of the first, for errors.
        advise: Returns what the error says to write.

    Raises:
        UnsupportedDataError: if a record has another structure; the error names the field and the record.
    """
    found: list[list[Any]] = []
    _split(spec.tree, records, found, "", first_record, advise)
    return found


def _split(
    node: Node, values: Sequence[Any], found: list[list[Any]], path: str, first: int, advise: Advise
) -> None:
    """Append to `found` a list of values for each leaf below `node`."""
    if isinstance(node, Leaf):
        found.append(values if isinstance(values, list) else list(values))
        return
    mismatch = _first_mismatch(node, values)
    if mismatch is not None:
        value = values[mismatch]
        raise refuse(path, first + mismatch, difference(path, node, value) + advise(path, node, value))
    for position, (key, child) in enumerate(zip(node.keys, node.children, strict=True)):
        subscript: Any = key if isinstance(node, DictNode) else position
        below = f"{path}/{key}" if path else str(key)
        _split(child, [value[subscript] for value in values], found, below, first, advise)


def _first_mismatch(node: DictNode | SequenceNode | NamedTupleNode, values: Sequence[Any]) -> int | None:
    if isinstance(node, DictNode):
        keys = dict.fromkeys(node.keys).keys()
        for i, value in enumerate(values):
            if not isinstance(value, dict) or value.keys() != keys:
                return i
        return None
    base = list if node.kind == "list" else tuple
    count = len(node.children)
    names = node.keys if isinstance(node, NamedTupleNode) else None
    for i, value in enumerate(values):
        if not isinstance(value, base) or len(value) != count or names_of_namedtuple(value) != names:
            return i
    return None


# Of a list: the dtype and shape of its array, with an empty dtype if that has no item; a shape of ``None`` if
# it is plain, but no array. A list of anything else has ``None``.
Content = tuple[str, tuple[int, ...] | None] | None
EMPTY_LIST: Final = ("", (0,))
_TREE: Final = ("", None)
PYTHON_TYPES: Final[Mapping[str, type]] = {"int64": int, "float64": float}
PYTHON_NUMBERS: Final = frozenset({int, float})
_MOST_INT64: Final = 2**63 - 1


def content_of(value: list[Any], depth: int = 1) -> Content:
    """Return what a list holds, which has `depth` lists above its items; see `Content`."""
    if depth > MAX_DIMENSIONS:
        return _TREE
    if not value:
        return EMPTY_LIST
    kinds = set(map(type, value))
    if kinds == {list}:
        inner = [content_of(item, depth + 1) for item in value]
        if None in inner:
            return None
        found = {item for item in inner if item is not None}
        shapes = {shape for _, shape in found}
        dtype = joined_dtype({dtype for dtype, _ in found if dtype})
        if len(shapes) > 1 or None in shapes or dtype is None:
            return _TREE
        return (dtype, (len(value), *(shapes.pop() or ())))
    if kinds <= PYTHON_NUMBERS:
        return dtype_of_numbers(kinds, value), (len(value),)
    if len(kinds) == 1:
        kind = kinds.pop()
        dtype = {bool: "bool", complex: "complex128", str: STR, np.str_: STR, bytes: BYTES}.get(kind)
        if dtype is None and issubclass(kind, np.generic) and kind is not np.void:
            dtype = BYTES if kind is np.bytes_ else value[0].dtype.name
        if dtype is not None:
            return dtype, (len(value),)
        return _TREE if kind in PLAIN_TYPES else None
    return _TREE if kinds <= PLAIN_TYPES else None


def dtype_of_numbers(kinds: set[type], values: Sequence[Any]) -> str:
    """Return the dtype that has all of these int and float."""
    if kinds != {int}:
        return "float64"
    return "uint64" if max(values) > _MOST_INT64 and min(values) >= 0 else "int64"


def joined_dtype(dtypes: set[str]) -> str | None:
    """Return the dtype of lists of all these dtypes, or ``None`` if there is none."""
    if len(dtypes) <= 1:
        return next(iter(dtypes), "")
    return "float64" if dtypes == {"int64", "float64"} else None


def field_column(
    field: Any, values: Sequence[Any], first_record: int, advise: Advise = of_storing
) -> NDArray[Any] | list[Any]:
    """Turn the values of one field into a column, as `column_of` does.

    Raises:
        UnsupportedDataError: if a value does not fit; the error names the field and the record, counted from
            `first_record`.
    """
    try:
        return column_of(field.leaf, values if isinstance(values, list) else list(values))
    except BadValueError as error:
        raise refuse_value(field, error, values, first_record + error.position, advise) from error.__cause__


def refuse_value(
    field: Any, error: BadValueError, values: Sequence[Any], record: int, advise: Advise = of_storing
) -> UnsupportedDataError:
    """Return the error for a value that does not fit; it says what to write."""
    value = values[error.position]
    if value is None and advise is not of_function:
        is_decided = advise is of_continuing
        problem = none_problem(field.name, fill_of(field.leaf), is_decided=is_decided)
    else:
        problem = "is None" if value is None else error.problem
        problem += advise(field.name, field.leaf, value)
    return refuse(field.name, record, problem)


def column_of(leaf: Leaf, values: Sequence[Any]) -> NDArray[Any] | list[Any]:
    """Turn the values of one field into a column: one array if all shapes agree, else a list.

    The array is new, writable and C-contiguous. A list holds bytes, str, or C-contiguous arrays of
    the leaf's dtype. `leaf` decides the dtype only; a value of another shape is no error.

    Raises:
        BadValueError: if a value is not of the leaf's dtype.
    """
    if not leaf.is_numeric:
        return _list_column(leaf, values)
    dtype = leaf.numpy_dtype
    kinds = set(map(type, values))
    if kinds == {np.ndarray}:
        arrays = values
    elif kinds <= _scalar_types(leaf.dtype, dtype):
        try:
            return np.array(values, dtype=dtype)
        except OverflowError:
            position = next(i for i, value in enumerate(values) if not -(2**63) <= value < 2**63)
            raise BadValueError(position, f"is {values[position]}, which does not fit into int64") from None
    elif kinds <= PYTHON_NUMBERS:
        return _exact(leaf, values, range(len(values)))
    else:
        arrays = [_to_array(leaf, i, value) for i, value in enumerate(values)]
    if {array.dtype for array in arrays} != {dtype}:
        arrays = [_to_array(leaf, i, value) for i, value in enumerate(arrays)]
    shapes = {array.shape for array in arrays}
    if max(map(math.prod, shapes), default=0) * dtype.itemsize > MAX_LEAF_BYTES:
        for position, array in enumerate(arrays):
            check_size(position, array.nbytes)  # before the values are copied or touched
    if len(shapes) != 1:
        return [np.ascontiguousarray(array).reshape(array.shape) for array in arrays]
    return _stack(arrays, dtype, shapes.pop())


def batch_column(leaf: Leaf, values: Sequence[Any]) -> NDArray[Any] | list[Any]:
    """Turn the values of one field into a batch's column: an array if the leaf is fixed, else a list.

    Raises:
        BadShapeError: if a value is not of the leaf's shape.
        BadValueError: if a value is not of the leaf's dtype.
    """
    if leaf.dtype == JSON:
        # Each is made anew: values of two records have no list or dict in common.
        return [decode(text.data) for text in _list_column(leaf, values)]
    column = column_of(leaf, values)
    if not len(column):
        shape = [size or 0 for size in leaf.shape or ()]
        return np.empty((0, *shape), leaf.numpy_dtype) if leaf.is_fixed else []
    _check_shapes(leaf, column)
    if leaf.is_fixed:
        return column
    if leaf.is_numeric and leaf.shape is None:
        return [value if value.ndim else value[()] for value in column]  # arrays of no dimension are scalars
    return list(column)


def _check_shapes(leaf: Leaf, column: NDArray[Any] | list[Any]) -> None:
    """Refuse values of a shape that the leaf does not admit.

    Raises:
        BadShapeError: if a value has another shape.
    """
    if leaf.shape is None:
        return
    if isinstance(column, np.ndarray):
        shapes = [column.shape[1:]]
    elif leaf.is_numeric:
        shapes = [array.shape for array in column]
    elif leaf.shape == () and np.ndarray not in set(map(type, column)):
        return  # every value is one str or bytes, which has no shape that could differ
    else:
        shapes = [shape_of(leaf, value) for value in column]
    fixed_sizes = [(axis, size) for axis, size in enumerate(leaf.shape) if size is not None]
    for shape in set(shapes):
        if len(shape) != len(leaf.shape) or any(shape[axis] != size for axis, size in fixed_sizes):
            raise BadShapeError(shapes.index(shape), shape)


def _stack(arrays: Sequence[NDArray[Any]], dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    # Joining the buffers is several times faster than np.stack on small arrays (benchmarks/build.py).
    # Custom dtypes and datetimes export no buffer. Arrays in another memory order would be joined in that
    # order.
    if dtype.name in NUMPY_DTYPES and all(array.flags.c_contiguous for array in arrays):
        joined = bytearray().join(arrays)  # type: ignore[arg-type]  # any contiguous buffer joins
        return np.frombuffer(joined, dtype).reshape(len(arrays), *shape)
    return np.ascontiguousarray(np.stack(arrays))  # np.stack keeps the memory order of its arguments


def _scalar_types(name: str, dtype: np.dtype[Any]) -> set[type]:
    if dtype.kind in "mM":
        return set()  # one Python type covers all units: numpy would convert, and round, silently
    types: set[type] = {dtype.type}
    for python_type, dtype_name in PYTHON_SCALARS.items():
        if dtype_name == name:
            types.add(python_type)
    return types


def _exact(leaf: Leaf, numbers: Sequence[Any], positions: Sequence[int]) -> NDArray[Any]:
    """Return an array of Python's numbers, which have no dtype of their own, if it has them exactly.

    An int may become a float, and a float no int.
    """
    dtype, kinds = leaf.numpy_dtype, set(map(type, numbers))
    if dtype.kind in ("iu" if kinds == {int} else "") + "f":
        with contextlib.suppress(OverflowError), np.errstate(over="ignore"):
            found = np.array(numbers, dtype=dtype)
            has_all = kinds == {PYTHON_TYPES.get(leaf.dtype)}
            if has_all or found.tolist() == numbers or all(map(_is_exact, found, numbers)):
                return found
    position, number = next(
        (position, number)
        for position, number in zip(positions, numbers, strict=True)
        if dtype.kind not in "iuf"
        or (dtype.kind in "iu" and type(number) is float)
        or not _is_exact(dtype.type, number)
    )
    if type(number) is int and dtype.kind in "iu":
        raise BadValueError(position, f"is {number}, which does not fit into {leaf.dtype}")
    given = PYTHON_SCALARS[type(number)]
    raise BadValueError(position, f"has dtype {given}, but the records before have {leaf.dtype}")


def _is_exact(make: Any, number: Any) -> bool:
    """Return whether a numpy scalar, or what a numpy type makes of a number, is that number."""
    try:
        with np.errstate(over="ignore"):
            found = make(number).item() if isinstance(make, type) else make.item()
    except OverflowError:
        return False
    return bool(found == number or (found != found and number != number))


def _flattened(
    leaf: Leaf, position: int, value: list[Any], what: str
) -> tuple[str, tuple[int, ...], list[Any]]:
    """Return the dtype of a list's items, its shape, and the items; the dtype is empty if there is none.

    Raises:
        BadValueError: if the list is no array.
    """
    dtype, shape = content_of(value) or ("", None)
    if shape is None:
        raise BadValueError(
            position,
            f"is a list whose items differ in kind or in shape, but the records before have {what} of "
            f"{leaf.dtype}",
        )
    flat: list[Any] = value
    for _ in shape[1:]:
        flat = list(itertools.chain.from_iterable(flat))
    if not dtype and leaf.shape is not None:
        shape = (*shape, *[size or 0 for size in leaf.shape[len(shape) :]])
    return dtype, shape, flat


def _list_to_array(leaf: Leaf, position: int, value: list[Any]) -> NDArray[Any]:
    """Return the array of a list of numbers, or of equally shaped lists of numbers."""
    dtype, shape, flat = _flattened(leaf, position, value, "arrays")
    if not dtype:
        return np.empty(shape, leaf.numpy_dtype)
    if type(flat[0]) in PYTHON_NUMBERS:
        return _exact(leaf, flat, [position] * len(flat)).reshape(shape)
    if dtype != leaf.dtype:
        raise BadValueError(position, f"has dtype {dtype}, but the records before have {leaf.dtype}")
    return np.array(flat, leaf.numpy_dtype).reshape(shape)


def _to_array(leaf: Leaf, position: int, value: object) -> NDArray[Any]:
    if type(value) is list:
        return _list_to_array(leaf, position, value)
    _leaf_of_at(leaf, position, value)
    return np.asarray(value).astype(leaf.numpy_dtype, copy=False)


def _leaf_of_at(leaf: Leaf, position: int, value: object) -> Leaf:
    """Return `leaf_of(value)`; the error names `position` if the value can't be stored with this leaf."""
    try:
        found = leaf_of(value)
    except BadValueError as error:
        if type(value) is dict:
            raise BadValueError(position, f"is a dict, but the records before have {leaf.dtype}") from None
        # The records before decided how this field is stored, so the hint to pickle does not apply.
        raise BadValueError(position, error.problem.replace(f", {PICKLE_HINT}", "")) from error.__cause__
    if found.dtype != leaf.dtype:
        raise BadValueError(position, f"has dtype {found.dtype}, but the records before have {leaf.dtype}")
    return found


def _list_column(leaf: Leaf, values: Sequence[Any]) -> list[Any]:
    if leaf.dtype == OBJECT:
        return list(values)
    if leaf.dtype == JSON:
        return [
            value if type(value) is JsonText else _at(position, JsonText, value)
            for position, value in enumerate(values)
        ]
    python_type = bytes if leaf.dtype == BYTES else str
    if leaf.shape == () and set(map(type, values)) == {python_type}:
        return list(values)
    return [_string_value(leaf, python_type, i, value) for i, value in enumerate(values)]


def _at(position: int, function: Callable[[Any], Any], value: Any) -> Any:
    """Return what a function makes of a value; its error names the position."""
    try:
        return function(value)
    except BadValueError as error:
        raise BadValueError(position, error.problem) from None


def _string_value(leaf: Leaf, python_type: type, position: int, value: object) -> Any:
    """Return one value of a bytes or str leaf: the scalar, or an object array of them."""
    if isinstance(value, np.ndarray) and value.dtype == object and not value.size:
        return value  # the items of an empty array have no type: the leaf's dtype holds
    if type(value) is list:
        return _list_to_strings(leaf, position, value)
    found = _leaf_of_at(leaf, position, value)
    if found.shape == ():
        scalar = value.item() if isinstance(value, np.ndarray | np.generic) else value
        # str() of an Enum's member is its name, so the plain str is taken another way.
        return str.__str__(scalar) if python_type is str else python_type(scalar)
    return np.asarray(value).astype(object)


def _list_to_strings(leaf: Leaf, position: int, value: list[Any]) -> NDArray[Any]:
    """Return the array of a list of str or bytes, or of equally shaped lists of these."""
    dtype, shape, flat = _flattened(leaf, position, value, "lists")
    if dtype not in ("", leaf.dtype):
        raise BadValueError(position, f"is a list of {dtype}, but the records before have {leaf.dtype}")
    found: NDArray[Any] = np.empty(math.prod(shape), object)
    if dtype:
        found[:] = flat
    return found.reshape(shape)


def widen(leaf: Leaf, shape: Shape | None) -> Leaf:
    """Return the leaf that also admits values of `shape`."""
    if leaf.shape is None or leaf.shape == shape:
        return leaf
    if shape is None or len(leaf.shape) != len(shape):
        return Leaf(leaf.dtype, None, leaf.ragged_rank, leaf.row_splits)
    merged = tuple(size if size == other else None for size, other in zip(leaf.shape, shape, strict=True))
    return Leaf(leaf.dtype, merged, leaf.ragged_rank, leaf.row_splits)


def shape_of(leaf: Leaf, value: Any) -> tuple[int, ...]:
    """Return the shape of one value of a list column."""
    return value.shape if isinstance(value, np.ndarray) and leaf.dtype not in (OBJECT, JSON) else ()


def shape_of_value(leaf: Leaf, value: Any) -> tuple[int, ...]:
    """Return the shape that one value of a record will have."""
    if leaf.dtype == JSON:
        return ()
    if type(value) is list:
        dtype, shape = content_of(value) or ("", None)
        if not dtype and shape is not None and leaf.shape is not None:
            return (*shape, *[size or 0 for size in leaf.shape[len(shape) :]])
        return shape or ()
    return np.shape(value) if leaf.is_numeric or isinstance(value, np.ndarray) else ()


def check_size(position: int, size_bytes: int) -> None:
    """Refuse a value that is larger than a stored value may be.

    Raises:
        BadValueError: if the value is too large.
    """
    if size_bytes > MAX_LEAF_BYTES:
        raise BadValueError(
            position,
            f"takes {size_bytes:,} bytes, more than the {MAX_LEAF_BYTES:,} (2 GiB less 1 MiB) that one value "
            "may; split it into several records",
        )


def size_of(column: NDArray[Any] | list[Any]) -> int:
    """Return the approximate size of a column in bytes."""
    if isinstance(column, np.ndarray):
        return column.nbytes
    return sum(
        value.nbytes if isinstance(value, np.ndarray) else len(value) if isinstance(value, Sized) else 64
        for value in column
    )


# Let a caller declare the shapes of fields that vary, which a sample of the records may not show.


def declare(sampled: Spec, declaration: Any) -> tuple[Spec, frozenset[int]]:
    """Return the spec with the caller's declarations, and the numbers of the fields that they cover.

    Args:
        sampled: The spec of the records in the sample.
        declaration: A `Spec`, or a tree like the record's whose leaves are `Leaf`s. A dict names keys of a
            dict, attributes of a namedtuple or positions of a list or tuple, and may leave some out. A field
            that is left out, or declared as ``None``, stays as it was sampled.

    Raises:
        ConfigurationError: if the declaration is anything else, or the sampled records don't fit it.
    """
    declared = list(
        _leaves(sampled.tree, declaration.tree if isinstance(declaration, Spec) else declaration, "")
    )
    leaves = [
        field.leaf if leaf is None else _apply_declaration(field.name, field.leaf, leaf)
        for field, leaf in zip(sampled.fields, declared, strict=True)
    ]
    numbers = frozenset(number for number, leaf in enumerate(declared) if leaf is not None)
    return sampled.with_leaves(leaves), numbers


def declaration_text(spec: Spec, field_numbers: Collection[int]) -> str:
    """Return Python code for a ``spec=`` argument that declares only the fields with these numbers."""
    fields = iter(range(len(spec.fields)))

    def text(node: Node) -> str:
        if isinstance(node, Leaf):
            return _leaf_text(node) if next(fields) in field_numbers else ""
        parts = [(key, text(child)) for key, child in zip(node.keys, node.children, strict=True)]
        inner = ", ".join(f"{key!r}: {part}" for key, part in parts if part)
        return f"{{{inner}}}" if inner else ""

    return text(spec.tree)


def _leaf_text(leaf: Leaf) -> str:
    shape = "" if leaf.shape == () else f", {leaf.shape}"
    return f'yogadl.Leaf("{leaf.dtype}"{shape})'


def _leaves(node: Node, declaration: Any, path: str) -> Iterator[Leaf | None]:
    """Yield the declared leaf of each field below `node`, in order, or None for a field without one."""
    if isinstance(node, Leaf):
        if not isinstance(declaration, Leaf | None):
            raise ConfigurationError(
                f"spec= must declare {_describe(path)} with a leaf, such as "
                f'yogadl.Leaf("float32", (None, 3)), '
                f"not with {declaration!r:.100}"
            )
        yield declaration
        return
    declared_by_key = _by_key(node, declaration, path)
    for key, child in zip(node.keys, node.children, strict=True):
        yield from _leaves(child, declared_by_key.get(key), f"{path}/{key}" if path else str(key))


def _by_key(node: DictNode | SequenceNode | NamedTupleNode, declaration: Any, path: str) -> Mapping[Any, Any]:
    """Return the declaration of each child, by its key."""
    if isinstance(declaration, DictNode | SequenceNode | NamedTupleNode):
        declaration = dict(zip(declaration.keys, declaration.children, strict=True))
    keys = list(node.keys)
    if declaration is None:
        return {}
    is_sequence = isinstance(declaration, list | tuple) and not isinstance(node, DictNode)
    if is_sequence and len(declaration) == len(keys):
        return dict(zip(keys, declaration, strict=True))
    if not isinstance(declaration, Mapping):
        raise ConfigurationError(
            f"spec= must declare {_describe(path)} with a dict of some of its keys, which are {keys}, "
            f"not with {declaration!r:.100}"
        )
    unknown = [key for key in declaration if key not in keys]
    if unknown:
        raise ConfigurationError(f"spec= names {unknown[0]!r} in {_describe(path)}, which has only {keys}")
    return declaration


def _apply_declaration(name: str, sampled: Leaf, declared: Leaf) -> Leaf:
    """Return the leaf with the declared shape; everything else stays as sampled."""
    if declared.dtype != sampled.dtype:
        raise ConfigurationError(
            f"spec= declares {_describe(name)} as {declared.dtype}, but the records sampled have "
            f"{sampled.dtype}"
        )
    wider = widen(declared, sampled.shape)
    if wider != declared:
        raise ConfigurationError(
            f"spec= declares {_describe(name)} with the shape {declared.shape}, but the records sampled have "
            f"{sampled.shape}: declare {_leaf_text(wider)}"
        )
    return replace(sampled, shape=declared.shape)


def _describe(path: str) -> str:
    return f"field {path!r}" if path else "the record"
