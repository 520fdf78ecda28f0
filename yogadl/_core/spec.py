"""Describe the tree of a record and its leaves, and convert between records, fields and batches."""

import keyword
import math
import re
import unicodedata
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl.errors import (
    CacheFormatError,
    ConfigurationError,
    MissingDependencyError,
    UnsupportedDataError,
)

Shape = tuple[int | None, ...]

BYTES: Final = "bytes"
STR: Final = "str"
JSON: Final = "json"  # any tree of plain Python values, see `json_value`
OBJECT: Final = "object"  # pickled, and only with allow_pickle=True
_NOT_NUMERIC: Final = frozenset({BYTES, STR, JSON, OBJECT})

# numpy 1 allows 32 dimensions, and a batch has one more than its records.
MAX_DIMENSIONS: Final = 31
# The most elements of a value, not counting dimensions of size 0: numpy refuses larger batches.
_MAX_ELEMENTS: Final = 2**36

PYTHON_SCALARS: Final = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
# numpy's own numeric dtypes that are alike on every platform; other dtypes come from ml_dtypes by name.
NUMPY_DTYPES: Final = frozenset(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)) | {
    "bool",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
}
# Names come from manifests, too, and numpy does not only look them up: "datetime64[s/0]" ends the process.
# Therefore numpy gets only names that match these patterns.
_TIME_DTYPE: Final = re.compile(
    r"(datetime64|timedelta64)(\[([1-9][0-9]{0,9})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
)
_ML_DTYPE: Final = re.compile(r"bfloat16|float[468]_e[0-9]m[0-9][a-z0-9]{0,12}|u?int[24]")
_RAGGED_RANKS: Final = range(MAX_DIMENSIONS + 1)
_ROW_SPLITS: Final = ("int32", "int64")


@frozen
class Leaf:
    """The dtype and shape of one field, with ``None`` for each size that varies between records.

    Args:
        dtype: A numpy dtype or its name; or ``"bytes"``, ``"str"``, ``"json"`` (any tree of plain Python
            values), ``"object"`` (pickled).
        shape: One number per dimension, ``None`` where it varies; an unknown rank is ``None``.
        ragged_rank: The number of ragged dimensions, for a field that was a ragged tensor of TensorFlow.
        row_splits: The dtype of a ragged tensor's row splits.

    Attributes:
        is_numeric: Whether the values are numbers, laid out as numpy lays them out.
        is_fixed: Whether every record takes the same bytes, so that a batch of them is one array.
        numpy_dtype: The numpy dtype of a value; ``object`` for bytes, str and pickled leaves.

    Raises:
        ConfigurationError: if the dtype or the shape has a wrong type.
        CacheFormatError: if the dtype does not exist, or the shape is not allowed.

    Example:
        >>> import yogadl
        >>> yogadl.Leaf("uint8", (None, None, 3)).is_fixed
        False
    """

    dtype: str
    shape: Shape | None = ()
    ragged_rank: int | None = None
    row_splits: str | None = None
    is_numeric: bool = field(init=False, repr=False, compare=False)
    is_fixed: bool = field(init=False, repr=False, compare=False)
    numpy_dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        dtype: Any = self.dtype  # as the caller passed it
        shape: Any = self.shape
        if not isinstance(dtype, str):
            object.__setattr__(self, "dtype", _name_of_dtype(dtype))
        if not isinstance(shape, tuple | None):
            raise ConfigurationError(f"a shape is a tuple such as (None, 3), not {shape!r}")
        if self.shape is not None and any(size is not None and size < 0 for size in self.shape):
            raise CacheFormatError(f"a shape can't be negative: {self.shape}")
        if self.shape is not None and len(self.shape) > MAX_DIMENSIONS:
            raise CacheFormatError(f"a shape has {len(self.shape)} dimensions, more than {MAX_DIMENSIONS}")
        if self.shape is not None and is_too_large(self.shape):
            raise CacheFormatError(f"a shape has more than {_MAX_ELEMENTS} elements: {self.shape!r:.100}")
        if self.dtype == JSON and self.shape != ():
            raise CacheFormatError(f"a json value has no shape: {self.shape!r:.100}")
        is_numeric = self.dtype not in _NOT_NUMERIC
        is_fixed = is_numeric and self.shape is not None and None not in self.shape
        object.__setattr__(self, "is_numeric", is_numeric)
        object.__setattr__(self, "is_fixed", is_fixed)
        object.__setattr__(self, "numpy_dtype", dtype_named(self.dtype) if is_numeric else np.dtype(object))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("dtype", "shape", "ragged_rank", "row_splits")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    @property
    def row_bytes(self) -> int:
        """The bytes of one value of a fixed leaf."""
        assert self.is_fixed and self.shape is not None
        return self.numpy_dtype.itemsize * math.prod(size for size in self.shape if size is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the leaf as JSON."""
        document: dict[str, Any] = {
            "dtype": self.dtype,
            "shape": None if self.shape is None else list(self.shape),
        }
        if self.ragged_rank is not None:
            document["ragged_rank"] = self.ragged_rank
        if self.row_splits is not None:
            document["row_splits"] = self.row_splits
        return document

    @staticmethod
    def from_json(document: dict[str, Any]) -> "Leaf":
        """Return the leaf that a document of `to_json` describes.

        Raises:
            CacheFormatError: if the document describes no leaf.
        """
        try:
            shape, dtype = document["shape"], document["dtype"]
            if type(dtype) is not str:
                raise TypeError(dtype)
            leaf = Leaf(
                dtype,
                None if shape is None else tuple(shape),
                document.get("ragged_rank"),
                document.get("row_splits"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise CacheFormatError(f"not the description of a field: {document!r:.100}") from error
        if leaf.shape is not None and not all(size is None or type(size) is int for size in leaf.shape):
            raise CacheFormatError(f"not a shape: {leaf.shape!r:.100}")
        ragged = document.get("ragged_rank", 0), document.get("row_splits", "int64")
        if ragged[0] not in _RAGGED_RANKS or ragged[1] not in _ROW_SPLITS or type(ragged[0]) is not int:
            raise CacheFormatError(f"not the description of a ragged tensor: {ragged!r:.100}")
        return leaf


def _name_of_dtype(dtype: object) -> str:
    """Return the name of a dtype that is given as a numpy dtype or as a type: `np.uint8`, `int`, `str`.

    Raises:
        ConfigurationError: if it is neither.
    """
    if not isinstance(dtype, type | np.dtype):
        raise ConfigurationError(f'a dtype is one of numpy\'s or its name, such as "float32", not {dtype!r}')
    return np.dtype(dtype).name


def is_too_large(shape: Shape) -> bool:
    """Return whether numpy can't make batches of values of this shape, even of values without elements."""
    return math.prod(size or 1 for size in shape) > _MAX_ELEMENTS


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the numpy dtype with this name, from ml_dtypes if numpy has none.

    Raises:
        MissingDependencyError: if the dtype needs ml_dtypes, which is not installed.
        CacheFormatError: if the dtype does not exist.
    """
    if name in NUMPY_DTYPES:
        return np.dtype(name).newbyteorder("<")
    if _TIME_DTYPE.fullmatch(name):
        try:
            return np.dtype(name).newbyteorder("<")
        except TypeError as error:  # more than 2**31 units
            raise CacheFormatError(f"there is no dtype {name!r}") from error
    if not _ML_DTYPE.fullmatch(name):
        raise CacheFormatError(f"there is no dtype {name!r:.100}")
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingDependencyError(f"dtype {name!r} needs ml_dtypes: pip install ml_dtypes") from error
    try:
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    except AttributeError as error:
        raise CacheFormatError(f"there is no dtype {name!r} in this version of ml_dtypes") from error
    return dtype


class BadValueError(Exception):
    """A value of a column can't be stored; the caller's error adds the field and the record."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(position, problem)
        self.position = position
        self.problem = problem


class BadShapeError(BadValueError):
    """A value of a column has a shape that its leaf does not admit."""

    def __init__(self, position: int, shape: tuple[int, ...]) -> None:
        super().__init__(position, f"has shape {shape}")
        self.shape = shape


def is_array_like(value: Any) -> bool:
    """Return whether numpy makes an array of a value: of numpy's own, and of any library's tensor."""
    return isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__")


def leaf_of(value: object, allow_pickle: bool = False) -> Leaf:
    """Return the dtype and the shape of a value, as a leaf.

    Raises:
        BadValueError: if the value can't be stored.
    """
    python_dtype = PYTHON_SCALARS.get(type(value))
    if python_dtype is not None:
        return Leaf(python_dtype)
    if isinstance(value, np.str_ | str):
        return Leaf(STR)
    if isinstance(value, bytes | bytearray | memoryview):
        return Leaf(BYTES)
    if is_masked(value):
        raise BadValueError(0, _MASKED_PROBLEM)
    if not is_array_like(value):
        if allow_pickle:
            return Leaf(OBJECT)
        raise BadValueError(0, _unsupported_problem(value))
    try:
        array = np.asarray(value)
    except Exception as error:
        problem = f"can't be made an array: {type(error).__name__}: {error}"
        raise BadValueError(0, problem) from error
    return _leaf_of_array(array, allow_pickle)


def leaf_at(name: str, record: int, value: object, allow_pickle: bool = False) -> Leaf:
    """Return the leaf of a value, as `leaf_of` does; the error names the field and the record."""
    try:
        return leaf_of(value, allow_pickle)
    except BadValueError as error:
        raise refuse(name, record, error.problem) from error.__cause__


def _leaf_of_array(array: NDArray[Any], allow_pickle: bool) -> Leaf:
    if array.ndim > MAX_DIMENSIONS:
        raise BadValueError(0, f"has {array.ndim} dimensions, more than {MAX_DIMENSIONS}; reshape it")
    if is_too_large(array.shape):
        raise BadValueError(0, f"has the shape {array.shape}, too large for numpy to make batches of")
    if array.dtype.kind in "UT":
        return Leaf(STR, array.shape)
    if array.dtype.kind == "S":
        return Leaf(BYTES, array.shape)
    if array.dtype.kind == "O":
        return _leaf_of_objects(array, allow_pickle)
    try:
        dtype_named(array.dtype.name)
    except CacheFormatError:
        raise BadValueError(0, f"has dtype {array.dtype}, which has no stored form") from None
    return Leaf(array.dtype.name, array.shape)


def _leaf_of_objects(array: NDArray[Any], allow_pickle: bool) -> Leaf:
    kinds = set(map(type, array.ravel().tolist()))
    for base, dtype in ((bytes, BYTES), (str, STR)):
        if kinds and all(issubclass(kind, base) for kind in kinds):
            return Leaf(dtype, array.shape)
    if allow_pickle:
        return Leaf(OBJECT)
    names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
    raise BadValueError(
        0, f"is an object array (of {names}); make it an array of numbers, bytes or str, {PICKLE_HINT}"
    )


PICKLE_HINT: Final = "or store it pickled with RecordOptions(allow_pickle=True)"
_MASKED_PROBLEM: Final = (
    "is a masked array, whose mask would be lost; store filled() and the mask as two fields"
)


def is_masked(value: object) -> bool:
    """Return whether `value` is a masked array, whose mask is silently lost in a conversion to an array."""
    return type(value).__module__.startswith("numpy.ma")


def _unsupported_problem(value: object) -> str:
    if value is None:
        return f"is None; leave the field out or put a value in its place, {PICKLE_HINT}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if "parse" in kind.lower():  # scipy.sparse, tf.SparseTensor, torch sparse
        return f"is sparse ({kind}); store its indices and values as fields of their own, or make it dense"
    if kind.startswith("PIL."):
        return (
            f"is a {kind}; store the bytes of its file, and decode them in ref.map: give ImageFolder "
            "loader=read_bytes, where read_bytes = lambda path: pathlib.Path(path).read_bytes(); or make it "
            f"an array by numpy.asarray, {PICKLE_HINT}"
        )
    return f"is a {kind}; make it an array, a number, bytes or str, {PICKLE_HINT}"


def refuse(name: str, record: int, problem: str) -> UnsupportedDataError:
    """Return the error for a value that can't be stored; it names the field and the record."""
    field = f"field {name!r}" if name else "the record itself"
    return UnsupportedDataError(f"record {record}: {field} {problem}")


MAX_FIELDS = 4096
MAX_DEPTH = 64
# The most characters of all fields' names together. A field's name repeats the keys of all nodes above it, so
# the names could take far more memory than the manifest.
_MAX_NAME_CHARACTERS = 2**24


@frozen
class DictNode:
    """A dict: its keys in order, and a node for each."""

    keys: tuple[str | int, ...]
    children: tuple["Node", ...]
    kind: ClassVar[str] = "dict"

    def build(self, parts: Iterable[Any]) -> Any:
        """Return the dict whose values are `parts`."""
        return dict(zip(self.keys, parts, strict=False))


@frozen
class SequenceNode:
    """A list or a tuple, a node for each item."""

    kind: str
    children: tuple["Node", ...]

    @property
    def keys(self) -> tuple[int, ...]:
        """The positions of the items."""
        return tuple(range(len(self.children)))

    def build(self, parts: Iterable[Any]) -> Any:
        """Return the list or tuple of `parts`."""
        return list(parts) if self.kind == "list" else tuple(parts)


@frozen
class NamedTupleNode:
    """A namedtuple: its name, the names of its items, and a node for each."""

    name: str
    keys: tuple[str, ...]
    children: tuple["Node", ...]
    kind: ClassVar[str] = "namedtuple"

    def build(self, parts: Iterable[Any]) -> Any:
        """Return the namedtuple of `parts`."""
        return named_tuple(self.name, self.keys)._make(parts)


Node = Leaf | DictNode | SequenceNode | NamedTupleNode
Keys = tuple[Any, ...]  # keys of dicts, positions in other nodes, from the root down


@frozen
class Field:
    """One leaf with its name: the keys from the root, joined by slashes."""

    name: str
    leaf: Leaf


@lru_cache(maxsize=256)  # keyed by name and fields alone: every unpickling process makes the same class
def named_tuple(name: str, keys: tuple[str, ...]) -> Any:  # a class made at run time
    """Return a namedtuple class with this name and these fields, whose instances pickle."""
    base = namedtuple(name, keys, rename=True)  # type: ignore[misc]

    def reduce(self: Any) -> Any:
        return rebuild_named_tuple, (name, keys, tuple(self))

    return type(name, (base,), {"__slots__": (), "__reduce__": reduce, "__module__": __name__})


def rebuild_named_tuple(name: str, keys: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Unpickle a namedtuple whose class was made at run time."""
    return named_tuple(name, keys)._make(values)


# Pickles of users and published caches name this module, so the name must never change.
rebuild_named_tuple.__module__ = "yogadl._spec"


@frozen
class Spec:
    """The structure of a record with dtype and shape per leaf. Immutable and picklable."""

    tree: Node

    def __post_init__(self) -> None:
        if len(self.fields) > MAX_FIELDS:
            raise UnsupportedDataError(
                f"a record has {len(self.fields)} fields, more than {MAX_FIELDS}: "
                "make lists of numbers arrays (np.asarray), since every item of a list is a field"
            )

    def __getstate__(self) -> Any:
        return {"tree": self.tree}  # the generated functions don't pickle, and are generated again

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The leaves in tree order, each with its name."""
        found: list[Field] = []
        length = 0

        def visit(node: Node, path: str) -> None:
            nonlocal length
            length += len(path)
            if length > _MAX_NAME_CHARACTERS:
                raise UnsupportedDataError(
                    f"the names of a record's fields have more than {_MAX_NAME_CHARACTERS} characters "
                    "together: shorten the keys"
                )
            if isinstance(node, Leaf):
                found.append(Field(path, node))
                return
            for key, child in zip(node.keys, node.children, strict=True):
                visit(child, f"{path}/{key}" if path else str(key))

        visit(self.tree, "")
        return tuple(found)

    def keys(self) -> list[str | int] | None:
        """Return the keys of a record that is a dict, else None."""
        return list(self.tree.keys) if isinstance(self.tree, DictNode) else None

    @cached_property
    def assemble(self) -> Callable[[Sequence[Any]], Any]:
        """A function that puts one value per field, in order, into the record's tree."""
        if isinstance(self.tree, Leaf):
            return _first
        if all(isinstance(child, Leaf) for child in self.tree.children):
            return self.tree.build

        def build(node: Node, parts: Any) -> Any:
            if isinstance(node, Leaf):
                return next(parts)
            return node.build([build(child, parts) for child in node.children])

        return lambda parts: build(self.tree, iter(parts))

    def records(self, columns: Sequence[Any], count: int) -> list[Any]:
        """Split columns of `count` rows into records."""
        found: list[Any] = self._loops[0](count, *columns)
        return found

    def call(
        self,
        function: Callable[[Any], Any],
        columns: Sequence[Any],
        count: int,
        keep: Callable[[Any], object],
    ) -> None:
        """Call a function with each record in columns of `count` rows, and pass its results to `keep`.

        The list that `records` would return is not made, which saves time and memory.
        """
        self._loops[1](count, function, keep, *columns)

    @cached_property
    def _loops(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The loops of `records` and `call`, as code generated for this spec.

        For each record they take a third of the time of `assemble` (benchmarks/stages.py); generating takes
        0.3 ms.
        """
        names: dict[str, Any] = {}
        fields = [f"field{number}" for number in range(len(self.fields))]
        columns = [f"column{number}" for number in range(len(fields))]
        unused_fields = iter(fields)

        def constant(value: Any) -> str:
            # Keys and names may be any text, so the generated code contains none of them.
            name = f"constant{len(names)}"
            names[name] = value
            return name

        def expression_of(node: Node) -> str:
            """Return the code of an expression that makes this part of the record from its fields' values."""
            if isinstance(node, Leaf):
                return next(unused_fields)
            parts = [expression_of(child) for child in node.children]
            if isinstance(node, DictNode):
                pairs = zip(map(constant, node.keys), parts, strict=True)
                return f"{{{', '.join(f'{key}: {part}' for key, part in pairs)}}}"
            if node.kind == "list":
                return f"[{', '.join(parts)}]"
            items = f"({''.join(f'{part}, ' for part in parts)})"
            if isinstance(node, NamedTupleNode):
                return f"{constant(named_tuple(node.name, node.keys)._make)}({items})"
            return items

        record, arguments = expression_of(self.tree), "".join(f", {column}" for column in columns)
        loop = f"for {', '.join(fields)} in zip({', '.join(columns)}, strict=True)"
        if len(fields) <= 1:
            loop = "for field0 in column0" if fields else "for _ in range(count)"
        exec(
            f"def records(count{arguments}): return [{record} {loop}]\n"
            f"def call(count, function, keep{arguments}):\n {loop}: keep(function({record}))",
            names,
        )
        return names["records"], names["call"]

    def is_like(self, other: "Spec") -> bool:
        """Return whether another spec has the same structure and dtypes; shapes may differ."""
        ours, theirs = self.fields, other.fields
        if [field.leaf.dtype for field in ours] != [field.leaf.dtype for field in theirs]:
            return False
        return self.with_leaves(field.leaf for field in theirs) == other

    def with_leaves(self, leaves: Iterable[Leaf]) -> "Spec":
        """Return the same tree with other leaves, in order."""
        unused_leaves = iter(leaves)

        def rebuild(node: Node) -> Node:
            if isinstance(node, Leaf):
                return next(unused_leaves)
            return replace(node, children=tuple(map(rebuild, node.children)))

        return Spec(rebuild(self.tree))

    def project(self, names: Sequence[str | int]) -> tuple["Spec", tuple[int, ...]]:
        """Return the spec that keeps only the named top-level keys, and the numbers of their fields.

        Raises:
            ConfigurationError: if a name is not a key, or the record has no keys.
        """
        if isinstance(self.tree, Leaf):
            raise ConfigurationError("the record is a single value: it has no fields to choose from")
        keys = list(self.tree.keys)
        for name in names:
            if name not in keys:
                raise ConfigurationError(f"there is no field {name!r}; there are {keys}")
        if not names or len(set(names)) != len(names):
            raise ConfigurationError(f"choose at least one field, and each once: {list(names)}")
        positions = [keys.index(name) for name in names]
        starts = [0]
        for child in self.tree.children:
            starts.append(starts[-1] + len(Spec(child).fields))
        numbers = tuple(number for i in positions for number in range(starts[i], starts[i + 1]))
        return Spec(_select_children(self.tree, positions)), numbers

    def to_json(self) -> Any:
        """Return the tree as JSON."""
        return _node_to_json(self.tree)

    @staticmethod
    def from_json(document: Any) -> "Spec":
        """Return the spec that a document of `to_json` describes.

        Raises:
            CacheFormatError: if the document describes no spec.
        """
        return Spec(_node_from_json(document))


def _first(parts: Iterable[Any]) -> Any:
    return next(iter(parts))


def names_of_namedtuple(value: Any) -> tuple[str, ...] | None:
    """Return the names of a namedtuple's fields, or None for any other value."""
    is_named = isinstance(value, tuple) and hasattr(value, "_fields")  # any class of the user's
    return tuple(value._fields) if is_named else None


def remade(value: Any, items: Iterable[Any]) -> Any:
    """Return a list or tuple of other items, of the same kind as a value."""
    if names_of_namedtuple(value) is not None:
        return value._make(items)
    return list(items) if isinstance(value, list) else tuple(items)


def node_of(
    tree: object, leaf: Callable[[Any, str, Keys], Node], number: int = 0, *, has_lists: bool = False
) -> Node:
    """Return the node of a tree of dicts, tuples and namedtuples, and, with `has_lists`, of lists.

    Args:
        tree: The tree, such as a record.
        leaf: Returns the node of any other value, given its path and the keys and positions that lead to it.
        number: The record's number, for errors.
        has_lists: Whether a list is a node, too; else `leaf` gets it.

    Raises:
        UnsupportedDataError: if the tree is nested too deeply, or a key is neither str nor int.
    """

    def visit(value: object, path: str, keys: Keys) -> Node:
        def child(key: object, subscript: object, item: object) -> Node:
            return visit(item, f"{path}/{key}" if path else str(key), (*keys, subscript))

        if len(keys) > MAX_DEPTH:
            raise refuse(path, number, f"is nested more than {MAX_DEPTH} deep; make lists of numbers arrays")
        if isinstance(value, dict):
            check_keys(value, path, number)
            return DictNode(tuple(value), tuple(child(key, key, item) for key, item in value.items()))
        names = names_of_namedtuple(value)
        if names is not None:
            items: Any = value
            children = tuple(map(child, names, range(len(names)), items))
            return NamedTupleNode(type(value).__name__, names, children)
        if isinstance(value, tuple) or (has_lists and isinstance(value, list)):
            kind = "list" if isinstance(value, list) else "tuple"
            return SequenceNode(kind, tuple(child(i, i, item) for i, item in enumerate(value)))
        return leaf(value, path, keys)

    return visit(tree, "", ())


def check_keys(keys: Iterable[Any], path: str, number: int) -> None:
    """Refuse keys of a dict that the manifest can't store.

    Raises:
        UnsupportedDataError: if a key is neither str nor int.
    """
    for key in keys:
        if type(key) not in (str, int):
            raise refuse(path, number, f"has the dict key {key!r}; keys are str or int")


def _select_children(node: DictNode | SequenceNode | NamedTupleNode, positions: Sequence[int]) -> Node:
    """Return a node with only the children at these positions."""
    selected = replace(node, children=tuple(node.children[i] for i in positions))
    if isinstance(selected, SequenceNode):
        return selected  # the keys of a sequence are positions
    keys: Any = tuple(node.keys[i] for i in positions)
    return replace(selected, keys=keys)


def _node_to_json(node: Node) -> dict[str, Any]:
    if isinstance(node, Leaf):
        return {"leaf": node.to_json()}
    children = [_node_to_json(child) for child in node.children]
    if isinstance(node, DictNode):
        return {"dict": children, "keys": list(node.keys)}
    if isinstance(node, NamedTupleNode):
        return {"namedtuple": children, "keys": list(node.keys), "name": node.name}
    return {node.kind: children}


def _node_from_json(document: Any, depth: int = 0) -> Node:
    if depth > MAX_DEPTH:
        raise CacheFormatError(f"the description of a record is nested more than {MAX_DEPTH} deep")
    if not isinstance(document, dict):
        raise CacheFormatError(f"not the description of a record: {document!r:.100}")
    if "leaf" in document:
        return Leaf.from_json(document["leaf"])
    for kind in ("dict", "list", "tuple", "namedtuple"):
        items = document.get(kind)
        if isinstance(items, list):
            children = tuple(_node_from_json(item, depth + 1) for item in items)
            if kind in ("list", "tuple"):
                return SequenceNode(kind, children)
            keys = document.get("keys")
            if not isinstance(keys, list) or len(keys) != len(children):
                raise CacheFormatError(f"the keys of a {kind} don't match its items: {document!r:.100}")
            if kind == "dict":
                if not all(type(key) in (str, int) for key in keys) or len(set(keys)) < len(keys):
                    raise CacheFormatError(f"not the keys of a dict: {document!r:.100}")
                return DictNode(tuple(keys), children)
            name = document.get("name")
            are_names = all(isinstance(key, str) and key.isidentifier() for key in [name, *keys])
            # Python treats names that differ only in Unicode form (a ligature, for example) as the same.
            if (
                not are_names
                or keyword.iskeyword(str(name))
                or len({unicodedata.normalize("NFKC", key) for key in keys}) < len(keys)
            ):
                raise CacheFormatError(f"not the names of a namedtuple: {document!r:.100}")
            return NamedTupleNode(str(name), tuple(keys), children)
    raise CacheFormatError(f"a record of an unknown kind: {document!r:.100}")
