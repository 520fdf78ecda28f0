"""Write records as Arrow: one Parquet file, or one file of Arrow's own format.

Each field of a record is a column; nested dicts, tuples and lists are structs. docs/howto/export.md lists the
Arrow type of each dtype.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.json_value import encode
from yogadl._core.protocols import Column
from yogadl._core.spec import BYTES, JSON, STR, Field, Leaf, Spec, refuse
from yogadl.adapters._checks import RECORD_COLUMN
from yogadl.errors import MissingDependencyError, UnsupportedDataError

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise MissingDependencyError(
        "Parquet and Arrow files are written by pyarrow: pip install pyarrow"
    ) from error

# pyarrow has no annotations, so `Any` stands for its arrays, types and fields throughout.

# The offsets within one array of lists or strings have 31 bits.
_MAX_BYTES: Final = 2**30
_UNITS: Final = frozenset({"s", "ms", "us", "ns"})
# Arrow's extension type of JSON; pyarrow has it from version 19, and before that a json value is a string.
_HAS_JSON: Final = "json_" in vars(pa)


def schema_of(spec: Spec, metadata: dict[str, str] | None = None) -> Any:
    """Return the schema of records as a table: a column for each field of the record itself.

    Raises:
        UnsupportedDataError: if two fields would get the same column.
    """
    leaves = [_field_of(field.leaf) for field in spec.fields]
    return pa.schema(_columns_of(spec, iter(leaves)), metadata)


def with_texts(spec: Spec, columns: Sequence[Column]) -> Sequence[Column]:
    """Return the columns of records, with the texts of json values in their place."""
    return [
        list(map(encode, column)) if field.leaf.dtype == JSON else column
        for field, column in zip(spec.fields, columns, strict=True)
    ]


def record_batch(spec: Spec, schema: Any, columns: Sequence[Column], first_record: int) -> Any:
    """Return columns of `with_texts` in a schema; `first_record` is the number of the first one, for errors.

    Raises:
        UnsupportedDataError: if a text is no valid Unicode; names field and record.
    """
    leaves = [
        _array_of(field, column, first_record) for field, column in zip(spec.fields, columns, strict=True)
    ]
    tree = spec.tree
    arrays = leaves if isinstance(tree, Leaf) else _arrays_below(tree, iter(leaves), schema)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class ArrowWriter:
    """Write ``records.parquet`` or ``records.arrow``, a row group or record batch at a time.

    Args:
        folder: The folder of the file.
        format: "parquet", or "arrow": Arrow's own format.
        spec: The structure of a record.
        fingerprint: The data's fingerprint, kept in the file's metadata with the spec.
        metadata: The metadata of the version, kept there, too.

    Raises:
        UnsupportedDataError: if two fields would get the same column.
    """

    def __init__(
        self, folder: Path, format: str, spec: Spec, fingerprint: str, metadata: dict[str, Any]
    ) -> None:
        self._spec = spec
        described: dict[str, Any] = {"spec": spec.to_json(), "fingerprint": fingerprint}
        if metadata:
            described["metadata"] = metadata
        self._schema = schema_of(spec, {"yogadl": json.dumps(described)})
        open_file = pq.ParquetWriter if format == "parquet" else pa.ipc.new_file
        self._writer = open_file(folder / f"records.{format}", self._schema)

    def write(self, columns: Sequence[Column], first_record: int) -> None:
        """Append records; `first_record` is the number of the first one.

        Raises:
            UnsupportedDataError: if a text is no valid Unicode; names field and record.
        """
        self._write(with_texts(self._spec, columns), first_record)

    def _write(self, columns: Sequence[Column], first_record: int) -> None:
        count = len(columns[0])
        if count > 1 and any(_bytes_of(column) > _MAX_BYTES for column in columns):
            half = count // 2
            self._write([column[:half] for column in columns], first_record)
            self._write([column[half:] for column in columns], first_record + half)
            return
        self._writer.write_batch(record_batch(self._spec, self._schema, columns, first_record))

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


def _columns_of(spec: Spec, leaves: Iterator[Any]) -> list[Any]:
    """Return the columns of a table: a pa.field for each child of the record's root."""
    if isinstance(spec.tree, Leaf):
        return [next(leaves).with_name(RECORD_COLUMN)]
    return _fields_below(spec.tree, leaves, "")


def _fields_below(node: Any, leaves: Iterator[Any], path: str) -> list[Any]:  # any node but a leaf
    columns = []
    for key, child in zip(node.keys, node.children, strict=True):
        if isinstance(child, Leaf):
            columns.append(next(leaves).with_name(str(key)))
        elif fields := _fields_below(child, leaves, f"{path}/{key}"):  # Parquet has no empty struct
            columns.append(pa.field(str(key), pa.struct(fields), nullable=False))
    names = [field.name for field in columns]
    for name in names:
        if names.count(name) > 1:
            raise UnsupportedDataError(
                f"two fields of {path.lstrip('/') or 'the record'} would be the column {name!r}: rename one"
            )
    return columns


def _arrays_below(
    node: Any, leaves: Iterator[Any], fields: Iterable[Any]
) -> list[Any]:  # any node but a leaf
    known = {field.name: field for field in fields}
    arrays = []
    for key, child in zip(node.keys, node.children, strict=True):
        if isinstance(child, Leaf):
            arrays.append(next(leaves))
        elif str(key) in known:
            inner = list(known[str(key)].type)
            arrays.append(pa.StructArray.from_arrays(_arrays_below(child, leaves, inner), fields=inner))
    return arrays


def _field_of(leaf: Leaf) -> Any:
    """Return the pa.field of a leaf, without a name; its metadata has the dtype if Arrow has no such type."""
    value = _value_type(leaf)
    metadata = {} if _is_plain(leaf) else {"yogadl.dtype": leaf.dtype}
    if leaf.shape is None:
        data_type = pa.struct(
            [_item("shape", pa.list_(_item("item", pa.int64()))), _item("values", _list(value, None))]
        )
    else:
        data_type = value
        for size in reversed(leaf.shape):
            data_type = _list(data_type, size)
    # Only dates can be missing: NaT of numpy is null in Arrow.
    return pa.field(
        "",
        data_type,
        nullable=leaf.dtype.startswith(("datetime64", "timedelta64")),
        metadata=metadata or None,
    )


def _item(name: str, kind: Any) -> Any:
    return pa.field(name, kind, nullable=False)


def _list(kind: Any, size: int | None) -> Any:
    """Return the type of a dimension; for size 0 a plain list, as Parquet can't read a fixed-size one."""
    return pa.list_(kind, size) if size else pa.list_(kind)


def _unit_of(leaf: Leaf) -> str:
    return leaf.dtype.partition("[")[2].rstrip("]")


def _is_plain(leaf: Leaf) -> bool:
    """Return whether Arrow has a type for this dtype."""
    if leaf.dtype in (BYTES, STR):
        return True
    if leaf.dtype == JSON:
        return _HAS_JSON
    if leaf.dtype.startswith("datetime64"):
        return _unit_of(leaf) in _UNITS | {"D"}
    if leaf.dtype.startswith("timedelta64"):
        return _unit_of(leaf) in _UNITS
    return leaf.numpy_dtype.type.__module__ == "numpy" and leaf.numpy_dtype.kind in "biuf"


def _value_type(leaf: Leaf) -> Any:
    if leaf.dtype in (BYTES, STR):
        return pa.binary() if leaf.dtype == BYTES else pa.string()
    if leaf.dtype == JSON:
        return pa.json_(pa.string()) if _HAS_JSON else pa.string()
    if leaf.dtype.startswith("datetime64") and _unit_of(leaf) == "D":
        return pa.date32()
    dtype = leaf.numpy_dtype
    if _is_plain(leaf):
        return pa.from_numpy_dtype(dtype)
    if dtype.kind == "c":
        return pa.list_(pa.from_numpy_dtype(f"f{dtype.itemsize // 2}"), 2)
    # Times in units that Arrow lacks, such as hours, and the small floats of ml_dtypes are kept as bits.
    return pa.int64() if dtype.kind in "mM" else pa.from_numpy_dtype(f"u{dtype.itemsize}")


def _array_of(field: Field, column: Column, first_record: int) -> Any:
    """Return a column as an Arrow array."""
    leaf = field.leaf
    kind = _field_of(leaf).type
    if leaf.shape == () and not leaf.is_numeric:
        return _texts(field, column, range(first_record, first_record + len(column)))
    if isinstance(column, np.ndarray):
        shapes = np.tile(np.array(column.shape[1:], np.int64), (len(column), 1))
        return _nested(_values(leaf, column), shapes, kind)
    arrays = [np.asarray(value) for value in column]
    lengths = [array.size for array in arrays]
    if leaf.is_numeric:
        parts = [array.reshape(-1) for array in arrays]
        values = _values(leaf, np.concatenate(parts) if parts else np.empty(0, leaf.numpy_dtype))
    else:
        numbers = np.repeat(np.arange(first_record, first_record + len(arrays)), lengths)
        values = _texts(field, [text for array in arrays for text in array.reshape(-1).tolist()], numbers)
    if leaf.shape is not None:
        shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), len(leaf.shape))
        return _nested(values, shapes, kind)
    ranks = [array.ndim for array in arrays]
    sizes = pa.array([size for array in arrays for size in array.shape], pa.int64())
    inner = list(kind)
    children = [
        _lists(sizes, np.array(ranks, np.int64), inner[0].type),
        _lists(values, np.array(lengths, np.int64), inner[1].type),
    ]
    return pa.StructArray.from_arrays(children, fields=inner)


def _values(leaf: Leaf, array: NDArray[Any]) -> Any:
    """Return all numbers of a column, one after the other."""
    flat, kind = np.ascontiguousarray(array).reshape(-1), _value_type(leaf)
    if _is_plain(leaf):
        return pa.array(flat, kind)
    if flat.dtype.kind == "c":
        parts = flat.view(f"f{flat.dtype.itemsize // 2}")
        return pa.FixedSizeListArray.from_arrays(pa.array(parts), type=kind)
    return pa.array(flat.view(np.int64 if flat.dtype.kind in "mM" else f"u{flat.dtype.itemsize}"))


def _texts(field: Field, texts: Sequence[Any] | NDArray[Any], records: Sequence[int] | NDArray[Any]) -> Any:
    """Return texts or bytes; `records` has the number of the record of each."""
    kind = _value_type(field.leaf)
    if field.leaf.dtype == JSON:
        stored = pa.array(texts, pa.string())
        return pa.ExtensionArray.from_storage(kind, stored) if _HAS_JSON else stored
    try:
        return pa.array(list(texts), kind)
    except UnicodeEncodeError:
        for text, record in zip(texts, records, strict=True):
            if any("\ud800" <= character <= "\udfff" for character in text):
                problem = f"has half of a surrogate pair, which UTF-8 can't encode: {text!a:.60}"
                raise refuse(field.name, int(record), problem) from None
        raise


def _nested(values: Any, shapes: NDArray[np.int64], kind: Any) -> Any:
    """Return values as lists of lists, one level for each dimension."""
    kinds = []
    for _ in range(shapes.shape[1]):
        kinds.append(kind)
        kind = kind.value_type
    for axis in reversed(range(shapes.shape[1])):
        # The number of lists at this level in each record; all of a record's lists have the same length.
        outer = np.prod(shapes[:, :axis], axis=1, dtype=np.int64)
        values = _lists(values, np.repeat(shapes[:, axis], outer), kinds[axis])
    return values


def _lists(values: Any, lengths: NDArray[np.int64], kind: Any) -> Any:
    """Return values as lists of these lengths."""
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, type=kind)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind)


def _bytes_of(column: Column) -> int:
    if isinstance(column, np.ndarray):
        return column.nbytes
    # UTF-8 takes at most four bytes for each character.
    return sum(value.nbytes if hasattr(value, "nbytes") else 4 * len(value) for value in column)
