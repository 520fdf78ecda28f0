"""Define the leaf of a record, its dtype and shape, and find the leaf of a Python value."""

import math
import re
from dataclasses import field
from typing import Any, Final

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
        shape: One number per dimension, ``None`` where it varies; ``None`` for an unknown rank.
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


PICKLE_HINT: Final = "or store it pickled with allow_pickle=True"
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
