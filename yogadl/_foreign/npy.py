"""Find the rows of the arrays in .npy files."""

import ast
import re
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from yogadl._core.columns import MAX_LEAF_BYTES
from yogadl._core.frozen import frozen
from yogadl._core.spec import MAX_DIMENSIONS, NUMPY_DTYPES, Leaf, Spec
from yogadl._foreign.file_reader import Batch, FileReader, Format, Places
from yogadl.errors import CacheFormatError

_MAGIC: Final = b"\x93NUMPY"
_MAX_HEADER_BYTES: Final = 2**16
# numpy itself is not asked for the dtype: some names end the process (yogadl._core.spec).
_DESCRIPTION: Final = re.compile(r"([<>|])(?:([biufc])([0-9]{1,2})|([mM])8(\[[0-9a-zA-Z]{1,12}\])?)")
_KINDS: Final = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_SMALL_BYTES: Final = 16  # rows up to this size are stored as they are
_BATCH_RECORDS: Final = 2**18


@frozen
class Npy(Format):
    """The `.npy` files of numpy: a record is a row of the array, along its first axis.

    Args:
        leaf: The dtype and shape of a row, which the first file decides.
    """

    leaf: Leaf | None = None
    suffixes: ClassVar[tuple[str, ...]] = (".npy",)

    @property
    def spec(self) -> Spec:
        """One leaf: a row."""
        assert self.leaf is not None, "of_first_file comes first"
        return Spec(self.leaf)

    def of_first_file(self, reader: FileReader) -> "Npy":
        """Return the format with the dtype and shape of the rows of the first file.

        Raises:
            UnsupportedDataError: if the file is none of numpy's, or its values have no stored form.
        """
        return Npy(_header_of(reader)[0])

    def batches(self, reader: FileReader) -> Iterator[Batch]:
        """Yield the rows.

        Raises:
            UnsupportedDataError: if the file is damaged, or has other rows than the first.
        """
        leaf, rows, start = _header_of(reader)
        if leaf != self.leaf:
            first = None if self.leaf is None else f"{self.leaf.dtype} of shape {self.leaf.shape}"
            reader.refuse(
                0, f"the rows are {leaf.dtype} of shape {leaf.shape}, those of the first file {first}"
            )
        row_bytes, shape = leaf.row_bytes, [size for size in leaf.shape or () if size is not None]
        is_small = row_bytes <= _SMALL_BYTES
        at_once = max(
            1, min(_BATCH_RECORDS, reader.window_bytes // row_bytes if is_small else _BATCH_RECORDS)
        )
        for begin in range(0, rows, at_once):
            count = min(at_once, rows - begin)
            position = start + begin * row_bytes
            if is_small:
                values = np.frombuffer(reader.read(position, count * row_bytes), leaf.numpy_dtype)
                yield (values.reshape([count, *shape]),)
            else:
                positions = position + row_bytes * np.arange(count, dtype=np.int64)
                shapes = np.tile(np.array([len(shape), *shape], np.int64), (count, 1))
                yield (Places(positions, np.full(count, row_bytes, np.int64), shapes),)


def _header_of(reader: FileReader) -> tuple[Leaf, int, int]:
    """Return the leaf of a row, the number of rows, and where they begin.

    Raises:
        UnsupportedDataError: if the file is none of numpy's, or its values have no stored form.
    """
    if reader.size_bytes < 10 or bytes(reader.read(0, 6)) != _MAGIC:
        reader.refuse(0, "this is no .npy file of numpy")
    version = tuple(reader.read(6, 2))
    if version not in ((1, 0), (2, 0), (3, 0)):
        reader.refuse(6, f"version {version} of the format is unknown")
    length_type = "<u2" if version == (1, 0) else "<u4"
    length = int(reader.array(8, length_type, 1)[0])
    if length > _MAX_HEADER_BYTES:
        reader.refuse(8, f"the header has {length} bytes, more than {_MAX_HEADER_BYTES}")
    start = 8 + np.dtype(length_type).itemsize
    content = reader.read(start, length)
    try:
        header = str(content, "utf-8" if version == (3, 0) else "latin-1")
        document = ast.literal_eval(header.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        document = None
    if not isinstance(document, dict) or set(document) != {"descr", "fortran_order", "shape"}:
        reader.refuse(start, "the header is no dict of descr, fortran_order and shape: the file is damaged")
    shape = document["shape"]
    if type(shape) is not tuple or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        reader.refuse(start, f"{shape!r:.100} is no shape: the file is damaged")
    if not 1 <= len(shape) <= MAX_DIMENSIONS + 1:
        reader.refuse(start, f"the array has {len(shape)} dimensions: reshape it to one row a record")
    if type(document["fortran_order"]) is not bool or (document["fortran_order"] and len(shape) > 1):
        reader.refuse(
            start,
            "the array is in the order of Fortran, by columns: write it by rows, "
            "np.save(path, np.ascontiguousarray(np.load(path)))",
        )
    leaf = _leaf_of(reader, start, document["descr"], shape[1:])
    start += length
    if leaf.row_bytes > MAX_LEAF_BYTES:
        reader.refuse(start, f"a row has {leaf.row_bytes:,} bytes, more than {MAX_LEAF_BYTES:,}")
    if not leaf.row_bytes and shape[0]:
        reader.refuse(
            start, f"the rows of an array of shape {shape!r:.100} have no bytes: leave the file out"
        )
    if start + shape[0] * leaf.row_bytes != reader.size_bytes:
        reader.refuse(
            start,
            f"an array of shape {shape!r:.100} and {leaf.dtype} has {shape[0] * leaf.row_bytes} bytes, but "
            f"{reader.size_bytes - start} follow the header: the file is cut or damaged",
        )
    return leaf, shape[0], start


def _leaf_of(reader: FileReader, position: int, description: object, shape: tuple[int, ...]) -> Leaf:
    """Return the leaf of a row.

    Raises:
        UnsupportedDataError: if its values have no stored form.
    """
    if isinstance(description, list):
        reader.refuse(position, "the array is structured: save each of its fields in a file of its own")
    parts = _DESCRIPTION.fullmatch(description) if isinstance(description, str) else None
    if parts is None:
        reader.refuse(
            position,
            f"values of dtype {description!r:.100} have no fixed form that is read here: save numbers, or "
            "load the array and submit its rows (objects are pickled, which is never read)",
        )
    order, kind, width, time, unit = parts.groups()
    if order == ">":
        reader.refuse(
            position,
            "the numbers are big-endian: write them anew, array = np.load(path) and "
            'np.save(path, array.astype(array.dtype.newbyteorder("<")))',
        )
    if time is not None:
        name = ("datetime64" if time == "M" else "timedelta64") + (unit or "")
    else:
        name = "bool" if kind == "b" and int(width) == 1 else f"{_KINDS[kind]}{8 * int(width)}"
    try:
        if time is None and name not in NUMPY_DTYPES:
            raise CacheFormatError(name)
        return Leaf(name, shape)
    except CacheFormatError as error:
        reader.refuse(
            position, f"rows of {description!r} and shape {shape!r:.100} have no stored form: {error}"
        )
