"""Read the footers of Parquet files, and decode the columns of their row groups, with pyarrow."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from yogadl._core.advice import none_problem
from yogadl._core.columns import MAX_LEAF_BYTES
from yogadl._core.forms import Forms
from yogadl._core.frozen import frozen
from yogadl._core.json_value import encode
from yogadl._core.printable import masked
from yogadl._core.spec import JSON, DictNode, Leaf, Node, Spec
from yogadl._foreign.fields import Missing, MissingArgument, fill_of_json, fill_to_json
from yogadl._foreign.file_reader import FileReader, LookAt
from yogadl._foreign.parquet import FileGroups, columns_of
from yogadl._format.columns import HeapValues
from yogadl._format.files import REFRESH, ForeignFile
from yogadl._format.manifest import DecodedRows
from yogadl._sources.sources import NO_RECORDS
from yogadl.errors import (
    CacheFormatError,
    ConfigurationError,
    MissingDependencyError,
    UnsupportedDataError,
)

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from yogadl._foreign.arrow_columns import (
        StoredColumn,
        TableForm,
        fill_for,
        heap_values,
        is_bytes,
        is_list,
        is_nested,
        is_text,
        spec_of,
    )
except ImportError as error:
    raise MissingDependencyError(
        "Parquet files are read with pyarrow: pip install 'yogadl[parquet]'"
    ) from error

__all__ = ["Footer", "GroupDecoder", "groups_of_files", "heap_values", "parsed", "release_memory"]

# A file: PAR1, the chunks of columns, the footer (thrift), its length in four bytes, PAR1. A row group has
# one chunk for each column that is no struct, and several for each that is.
_MAGIC: Final = b"PAR1"
_ENCRYPTED: Final = b"PARE"
_END_BYTES: Final = 8
_TAIL_BYTES: Final = 2**16  # which most footers fit into
# Types of features of HF datasets that are stored as a struct of bytes and a path.
_MEDIA: Final = frozenset({"Image", "Audio", "Video", "Pdf"})


@frozen
class Footer:
    """The footer of a file.

    Args:
        size_bytes: Its size; it ends with the file.
        metadata: What it holds, as pyarrow has it.
        schema: The columns of the file.
        places: Of each column by name, the first of its chunks and the one after the last.
    """

    size_bytes: int
    metadata: Any
    schema: Any
    places: Mapping[str, tuple[int, int]]


def _footer_of(reader: FileReader) -> Footer:
    """Return the footer of a file.

    Raises:
        UnsupportedDataError: if it has none.
    """
    size_bytes = reader.size_bytes
    if size_bytes < len(_MAGIC) + _END_BYTES:
        reader.refuse(0, "the file is too short for one of Parquet: it was cut, or is another kind of file")
    tail = reader.tail(_TAIL_BYTES)
    if tail[-4:] == _ENCRYPTED:
        reader.refuse(size_bytes - 4, "the file is encrypted, which is not supported: write it anew")
    length = int.from_bytes(tail[-8:-4], "little") + _END_BYTES
    if tail[-4:] != _MAGIC or length > size_bytes - len(_MAGIC):
        reader.refuse(
            size_bytes - _END_BYTES,
            "the file has no footer of Parquet: it was cut, or is another kind of file",
        )
    if length > len(tail):
        tail = reader.tail(length)
    try:
        return parsed(tail[-length:])
    except (pa.ArrowException, OSError, ValueError, UnicodeDecodeError) as error:
        reader.refuse(size_bytes - length, f"the footer can't be read: {error}")


def release_memory() -> None:
    """Return memory of decoded groups, which are not held any more, to the system."""
    pa.default_memory_pool().release_unused()


def parsed(content: bytes) -> Footer:
    """Return the footer that these bytes are."""
    metadata = pq.ParquetFile(pa.BufferReader(_MAGIC + content)).metadata
    schema = metadata.schema.to_arrow_schema()
    return Footer(len(content), metadata, schema, _places_of(schema, metadata))


def _places_of(schema: Any, metadata: Any) -> dict[str, tuple[int, int]]:
    """Return for each column the numbers of its first chunk, and of the one after its last."""
    places, first = {}, 0
    for column in schema:
        end = first + sum(1 for _ in _elements(column.type))
        if column.name in places:
            raise ValueError(f"two columns are called {column.name!r}: write one under another name")
        places[column.name] = first, end
        first = end
    if first != metadata.num_columns:
        raise ValueError(f"it has {metadata.num_columns} columns of values, and the schema {first}")
    return places


def _range_of(group: Any, place: tuple[int, int]) -> tuple[int, int]:
    """Return where the bytes of a column's chunks begin in the file, and where they end."""
    start = end = -1
    for number in range(*place):
        chunk = group.column(number)
        first, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
        if dictionary is not None and 0 < dictionary < first:
            first = dictionary
        last = first + chunk.total_compressed_size
        start, end = (first, last) if start < 0 else (min(start, first), max(end, last))
    return start, end


def groups_of_files(
    fields: Sequence[str] | None,
    missing: MissingArgument,
    json_names: Sequence[str],
    files: Sequence[ForeignFile],
    each: LookAt,
) -> tuple[DecodedRows, list[FileGroups]]:
    """Return the rows of files, and the groups of each; see `Parquet.of_files`."""
    footers: list[Footer] = list(each(_footer_of, files))
    filled = [pair for pair in zip(files, footers, strict=True) if pair[1].metadata.num_rows]
    if not filled:
        raise UnsupportedDataError(f"{NO_RECORDS}: {files[0].address} and all other files have no rows")
    columns = _Columns(fields, missing, json_names, filled)
    groups = [columns.groups_of(*pair) for pair in zip(files, footers, strict=True)]
    count = sum(int(found.rows.sum()) for found in groups)
    return DecodedRows(columns.spec, count, columns.form), groups


class _Columns:
    """The columns that are taken of files.

    Args:
        fields: The columns that are taken; all if None.
        said: What comes in the place of nulls.
        json_names: The columns that are json values.
        files: The files that have rows.

    Attributes:
        spec: The structure of a row.
        form: How groups are decoded, for `GroupDecoder`.
    """

    def __init__(
        self,
        fields: Sequence[str] | None,
        said: MissingArgument,
        json_names: Sequence[str],
        files: Sequence[tuple[ForeignFile, Footer]],
    ) -> None:
        self._origin: dict[str, tuple[str, Any]] = {}  # of each column, a file that has values, and the type
        distinct: list[tuple[str, Any, set[str]]] = []
        media: set[str] = set()
        for file, footer in files:
            if distinct and footer.schema.equals(distinct[-1][1], check_metadata=True):
                continue
            own = _media_of(footer.schema)
            media |= own
            distinct.append((file.address, footer.schema, own))
            for column in footer.schema:
                known = self._origin.get(column.name)
                if known is None or pa.types.is_null(known[1]):
                    self._origin[column.name] = file.address, _type_of(column, column.name in own)
        self._names = list(self._origin if fields is None else fields)
        for name in self._names:
            if name not in self._origin:
                known_names = ", ".join(self._origin)
                raise ConfigurationError(f"no file has the column {name!r}: there are {known_names}")
        for name in json_names:
            if name not in self._names:
                raise ConfigurationError(
                    f"json= names {name!r}, and the columns are {', '.join(self._names)}"
                )
        self._forms = Forms(tuple(json_names), {} if isinstance(said, str) else dict(said or {}))
        types = {name: self._origin[name][1] for name in self._names}
        self.spec = self._spec_of(files[0][0].address, types)
        leaves = {each.name: each.leaf for each in self.spec.fields}
        for name, node in zip(self._names, self._nodes, strict=True):
            if isinstance(node, Leaf) and node.dtype == JSON:
                _check_json(self._origin[name][0], name, types[name])
        fills = Missing(said)
        fills.check(leaves)
        is_blanket = isinstance(said, str)  # which leaves nulls in json values
        found = {
            name: fills.fill(name, leaf)
            for name, leaf in leaves.items()
            if leaf.dtype != JSON or not is_blanket
        }
        self._missing = {name: value for name, value in found.items() if value is not None}
        self._check_schemas(distinct)
        self.form: dict[str, Any] = {
            "format": "parquet",
            "media": sorted(media.intersection(self._names)),
            "missing": {name: fill_to_json(value) for name, value in self._missing.items()},
        }

    @property
    def _nodes(self) -> Sequence[Node]:
        assert isinstance(self.spec.tree, DictNode)
        return self.spec.tree.children

    def _spec_of(self, address: str, types: Mapping[str, Any]) -> Spec:
        """Return the structure of a row of columns of these types."""
        json_names = tuple(name for name in self._forms.json if name in types)
        missing = {
            name: value
            for name, value in self._forms.missing.items()
            if name in types or name.partition("/")[0] in types
        }
        try:
            empty = [_empty(each) for each in types.values()]
            return spec_of(list(types), empty, Forms(json_names, missing))
        except UnsupportedDataError as error:
            raise UnsupportedDataError(f"{masked(address)}: {_of_files(str(error))}") from error

    def _check_schemas(self, distinct: Sequence[tuple[str, Any, set[str]]]) -> None:
        """Refuse files that lack a column that nothing is said of, or have it in another form."""
        nodes = dict(zip(self._names, self._nodes, strict=True))
        for address, schema, media in distinct:
            types = {
                name: _type_of(schema.field(name), name in media)
                for name in self._names
                if name in schema.names
            }
            for name, node in nodes.items():
                is_null = name in types and pa.types.is_null(types[name])
                lacking = [each for each in _fields_of(name, node) if each not in self._missing]
                if (name not in types or is_null) and not lacking:
                    types.pop(name, None)
                elif name not in types:
                    fills = ", ".join(f"{each!r}: ..." for each in lacking)
                    raise UnsupportedDataError(
                        f"{masked(address)} lacks the column {name!r}, which {self._origin[name][0]} has: "
                        f"say what comes in its place, missing={{{fills}}}, or leave it out by fields="
                    )
            spec = self._spec_of(address, types) if types else Spec(DictNode((), ()))
            assert isinstance(spec.tree, DictNode)
            for name, node in zip(types, spec.tree.children, strict=True):
                if node != nodes[name]:
                    raise UnsupportedDataError(
                        f"{masked(address)} has {name!r} as {types[name]}, and {self._origin[name][0]} as "
                        f"{self._origin[name][1]}: cast it in one of them, or leave the column out by fields="
                    )

    def groups_of(self, file: ForeignFile, footer: Footer) -> FileGroups:
        """Return the groups of a file."""
        metadata, places = footer.metadata, [footer.places.get(name) for name in self._names]
        position = file.size_bytes - footer.size_bytes
        watched = [
            (name, place[0], footer.schema.field(name))
            for name, place in zip(self._names, places, strict=True)
            if place is not None and place[1] - place[0] == 1 and name not in self._missing
            and name not in self._forms.json and footer.schema.field(name).nullable
            and not is_nested(footer.schema.field(name).type)
        ]  # fmt: skip
        numbers, rows, sizes, starts, lengths = [], [], [], [], []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if not group.num_rows:
                continue
            if metadata.num_columns and group.column(0).file_path:
                raise UnsupportedDataError(
                    f"{file.address}: its values lie in other files, such as {group.column(0).file_path}: it "
                    "is a summary of these; adopt them by a pattern that leaves it out"
                )
            self._check_nulls(file, number, group, watched)
            ranges = [(0, 0) if place is None else _range_of(group, place) for place in places]
            for name, (start, end) in zip(self._names, ranges, strict=True):
                if not 0 <= start <= end <= position or end - start > MAX_LEAF_BYTES:
                    raise UnsupportedDataError(
                        f"{file.address}: row group {number}: column {name!r} can't lie in bytes {start} to "
                        f"{end}: the footer is damaged, or the column longer than {MAX_LEAF_BYTES} bytes"
                    )
            numbers.append(number)
            rows.append(group.num_rows)
            sizes.append(group.total_byte_size)
            starts.append([start for start, _ in ranges])
            lengths.append([end - start for start, end in ranges])
        shape = len(rows), len(self._names)
        one, each = [np.array(all_, np.int64) for all_ in (rows, sizes, numbers)], (starts, lengths)
        ranged = [np.array(all_, np.int64).reshape(shape) for all_ in each]
        return FileGroups(position, *one, *ranged)

    @staticmethod
    def _check_nulls(
        file: ForeignFile, number: int, group: Any, watched: Sequence[tuple[str, int, Any]]
    ) -> None:
        for name, place, column in watched:
            statistics = group.column(place).statistics
            if statistics is not None and statistics.has_null_count and statistics.null_count:
                problem = _of_files(f"field {name!r} {none_problem(name, fill_for(column.type))}")
                raise UnsupportedDataError(f"{file.address}: row group {number}: {problem}")


def _check_json(address: str, name: str, data_type: Any) -> None:
    """Refuse a column of json values in which some type has no form in JSON, before any value is read.

    Raises:
        UnsupportedDataError: if there is such a type.
    """
    for element in _elements(data_type):
        if (
            (is_text(element) and is_bytes(element))
            or pa.types.is_temporal(element)
            or pa.types.is_decimal(element)
        ):
            raise UnsupportedDataError(
                f"{masked(address)}: column {name!r} is {data_type}, a json value, and {element} has no "
                "form in JSON: leave it out by fields=, or write it as text, numbers, or a column of its own"
            )


def _elements(data_type: Any) -> Iterator[Any]:
    """Yield the types of the values that a type holds: a column has a chunk for each in a group."""
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    if pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type) or is_list(data_type):
        yield from _elements(data_type.value_type)
    elif pa.types.is_map(data_type):
        yield from _elements(data_type.key_type)
        yield from _elements(data_type.item_type)
    elif pa.types.is_struct(data_type):
        for number in range(data_type.num_fields):
            yield from _elements(data_type.field(number).type)
    else:
        yield data_type


def _of_files(problem: str) -> str:
    """Return an error of a value without the advice for values that are stored, with that for files."""
    problem = problem.partition("; or store it pickled")[0]
    if (
        "missing={" in problem and ": ...}; or the field as a json value" in problem
    ):  # a struct, which has no fill
        problem = problem.partition(" a value in its place,")[0] + problem.partition("; or")[2].replace(
            "the field ", "", 1
        )
    return f"{problem} (in files=yogadl.FileOptions)" if "json=" in problem else problem


def _type_of(column: Any, is_media: bool) -> Any:
    return column.type.field("bytes").type if is_media else column.type


def _empty(data_type: Any) -> Any:
    """Return an array of no values of a type."""
    if isinstance(data_type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(data_type, _empty(data_type.storage_type))
    return pa.array([], type=data_type)


def _fields_of(name: str, node: Node) -> list[str]:
    """Return the names of the fields of a column."""
    return [each.name for each in Spec(DictNode((name,), (node,))).fields]


def _media_of(schema: Any) -> set[str]:
    """Return the columns that HF datasets wrote as files with their bytes: images, audio and others."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        names = {name for name, feature in features.items() if feature.get("_type") in _MEDIA}
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()
    return {
        column.name
        for column in schema
        if column.name in names
        and pa.types.is_struct(column.type)
        and column.type.get_field_index("bytes") >= 0
    }


class _RangesOfFile:
    """A file of which some ranges are known, for pyarrow to read from."""

    closed = False
    mode = "rb"

    def __init__(self, pieces: Sequence[tuple[int, Any]], size_bytes: int) -> None:
        self._pieces = pieces
        self._size_bytes = size_bytes
        self._position = 0

    def seek(self, position: int, whence: int = 0) -> int:
        self._position = position + (0, self._position, self._size_bytes)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, length: int = -1) -> bytes:
        position = self._position
        for start, content in self._pieces:
            if start <= position < start + len(content):
                first = position - start
                found = content[first : first + length] if length >= 0 else content[first:]
                self._position += len(found)
                return bytes(found)
        return b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class GroupDecoder:
    """Decodes the columns of row groups. Thread-safe.

    Args:
        rows: The rows, as a manifest describes them.

    Attributes:
        columns: The names of the columns.

    Raises:
        CacheFormatError: if they are not described.
    """

    def __init__(self, rows: DecodedRows) -> None:
        self.columns = columns_of(rows.spec)
        form = rows.form
        missing, media = form.get("missing"), form.get("media")
        if form.get("format") != "parquet" or type(missing) is not dict or type(media) is not list:
            raise CacheFormatError(
                f"rows in the form {form!r:.200} are unknown to this library: upgrade yogadl"
            )
        self._media = frozenset(map(str, media))
        fields = {each.name for each in rows.spec.fields}
        try:
            self._missing = {name: fill_of_json(value) for name, value in missing.items()}
            if not fields >= missing.keys():
                raise KeyError(*missing.keys() - fields)
        except (KeyError, TypeError, ValueError) as error:
            raise CacheFormatError(
                f"rows are filled by {missing!r:.200}: {error!r}; adopt the files again"
            ) from error
        assert isinstance(rows.spec.tree, DictNode)
        self._specs = [
            Spec(DictNode((name,), (node,)))
            for name, node in zip(self.columns, rows.spec.tree.children, strict=True)
        ]

    def size_of(self, label: str, footer: Footer, number: int, columns: Sequence[int]) -> int:
        """Return the bytes of columns of a group, as the file has them before they are compressed.

        Raises:
            CacheFormatError: if the file has no such group.
        """
        try:
            group, places = footer.metadata.row_group(number), footer.places
            chosen = [places[name] for column in columns if (name := self.columns[column]) in places]
            return sum(
                group.column(chunk).total_uncompressed_size for place in chosen for chunk in range(*place)
            )
        except (pa.ArrowException, ValueError, IndexError) as error:
            raise CacheFormatError(f"{label}: row group {number}: {error}; {REFRESH}") from error

    def decode(
        self, label: str, footer: Footer, number: int, rows: int, chunks: Mapping[int, Any]
    ) -> dict[int, list[StoredColumn]]:
        """Return columns of a group, by their numbers: a stored column for each field of each.

        Args:
            label: A name of the file, for messages.
            footer: The file's footer.
            number: The number of the group there.
            rows: The number of its rows.
            chunks: The bytes of each column that is decoded; empty: the file lacks it.

        Raises:
            CacheFormatError: if the bytes are damaged.
            UnsupportedDataError: if there are nulls that nothing is said of.
        """
        present = {column: content for column, content in chunks.items() if len(content)}
        try:
            table = self._read(footer, number, rows, present) if present else None
        except (pa.ArrowException, OSError, ValueError, KeyError, IndexError) as error:
            raise CacheFormatError(
                f"{label}: row group {number} can't be decoded: {error}; {REFRESH}"
            ) from error
        found: dict[int, list[StoredColumn]] = {}
        for column in chunks:
            name, spec = self.columns[column], self._specs[column]
            values: Any = None if table is None or column not in present else table.column(name)
            if values is None or pa.types.is_null(values.type):
                pairs = [(each.leaf, self._missing.get(each.name)) for each in spec.fields]
                found[column] = [_constant(leaf, fill, rows) for leaf, fill in pairs]
                continue
            if name in self._media and pa.types.is_struct(values.type):
                values = pc.struct_field(values, ["bytes"])
            try:
                found[column] = TableForm((name,), spec, self._missing).stored([values], range(rows))
            except UnsupportedDataError as error:
                raise UnsupportedDataError(f"{label}: row group {number}: {_of_files(f'{error}')}") from error
        return found

    def _read(self, footer: Footer, number: int, rows: int, chunks: Mapping[int, Any]) -> Any:
        """Return the table of a group's columns, whose bytes these are."""
        places, group = footer.places, footer.metadata.row_group(number)
        pieces: list[tuple[int, Any]] = []
        indices: list[int] = []
        named = [(self.columns[column], content) for column, content in chunks.items()]
        for place, name, content in sorted((places[name], name, content) for name, content in named):
            start, end = _range_of(group, place)
            if end - start != len(content):
                raise ValueError(f"column {name!r} has {end - start} bytes, and had {len(content)}")
            pieces.append((start, content))
            indices += range(*place)
        size_bytes = max(start + len(content) for start, content in pieces) + _END_BYTES
        file = pa.PythonFile(_RangesOfFile(pieces, size_bytes), "r")
        opened = pq.ParquetFile(
            file, metadata=footer.metadata, pre_buffer=False, page_checksum_verification=True
        )
        table = opened.reader.read_row_group(number, column_indices=indices, use_threads=False)
        if not group.num_rows == table.num_rows == rows:
            raise ValueError(f"it has {table.num_rows} rows, and had {rows}")
        return table


def _constant(leaf: Leaf, value: Any, rows: int) -> StoredColumn:
    """Return a column of the value that comes in the place of one that a file lacks."""
    if leaf.is_fixed:
        return np.full((rows, *(size or 0 for size in leaf.shape or ())), value, leaf.numpy_dtype)
    text = encode(None) if leaf.dtype == JSON else b""
    rank = len(leaf.shape or ())
    shapes = np.zeros((rows, 1 + rank), np.int64)
    shapes[:, 0] = rank
    for axis, size in enumerate(leaf.shape or ()):
        shapes[:, 1 + axis] = size or 0
    return HeapValues(
        np.frombuffer(text * rows, np.uint8), np.full(rows, len(text), np.int64), shapes, not leaf.is_numeric
    )
