"""Find the rows of Arrow IPC files and streams, as Feather and HF datasets write them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.columns import MAX_LEAF_BYTES
from yogadl._core.frozen import frozen, parse_json
from yogadl._core.protocols import Column, Int64s
from yogadl._core.spec import MAX_FIELDS, DictNode, Spec
from yogadl._foreign.arrow_schema import ArrowColumn, ArrowSchema, chosen_of, schema_of
from yogadl._foreign.fields import Missing, MissingArgument, check_fields, missing_line
from yogadl._foreign.file_reader import Batch, FileReader, Format, Places
from yogadl._foreign.flatbuffer import Table
from yogadl.errors import ConfigurationError, UnsupportedDataError

# A stream: messages, each 0xFFFFFFFF, the size of its metadata (int32), the metadata (a flatbuffer), the
# body. A file: ARROW1 and two bytes, a stream, a footer that repeats the schema and has the places of the
# messages, the size of the footer (int32), ARROW1. The footer is not needed: the stream in it is read.
_MAGIC: Final = b"ARROW1"
_CONTINUED: Final = 0xFFFFFFFF
_MAX_METADATA_BYTES: Final = 2**24
_SCHEMA, _DICTIONARY, _RECORDS = 1, 2, 3
_V4: Final = 3
_SMALL_BYTES: Final = 16  # arrays up to this size are stored as they are
_BATCH_RECORDS: Final = 2**18
_BATCH_VALUES: Final = 2**22


class _Message(NamedTuple):
    position: int
    kind: int
    version: int
    header: Table
    body: int
    body_bytes: int

    @property
    def end(self) -> int:
        return self.body + self.body_bytes


class _Buffer(NamedTuple):
    position: int
    length: int


@frozen
class Arrow(Format):
    """Arrow IPC files and streams, not compressed: a record is a dict of the columns, a struct a dict in it.

    Args:
        fields: The columns that are taken; all if None. ``"image/bytes"`` is a field of a struct ``"image"``.
        missing: ``None``: nulls are refused; ``"empty"``: a null of bytes, str or a list is read as an
            empty one, and so is what lies in a struct that is null; or by the names of columns ``"empty"``
            or, for a number, the number in the place of nulls.
        known: The structure of a record, which the first file decides.
    """

    fields: tuple[str, ...] | None = None
    missing: MissingArgument = None
    known: Spec | None = None
    suffixes: ClassVar[tuple[str, ...]] = (".arrow", ".feather", ".ipc")
    index_name: ClassVar[str] = "state.json"  # of save_to_disk of Hugging Face datasets
    beside: ClassVar[tuple[str, ...]] = ("state.json", "dataset_info.json", "dataset_dict.json")

    def __post_init__(self) -> None:
        check_fields(self.fields)
        Missing(self.missing)

    @property
    def spec(self) -> Spec:
        """A dict of the columns."""
        assert self.known is not None, "of_first_file comes first"
        return self.known

    def listed_in(self, content: bytes) -> list[tuple[str, int | None]] | None:
        """Return the data files of a `state.json`, whose order is that of the rows.

        Raises:
            UnsupportedDataError: if it is no JSON, or names what is no file in its folder.
        """
        try:
            document = parse_json(content)
        except ValueError as error:
            raise UnsupportedDataError(
                f"{self.index_name} is damaged, which has the order of the files in its folder: restore it, "
                "or move it away and name the files by a pattern"
            ) from error
        if not isinstance(document, dict) or "_data_files" not in document:
            return None
        listed = document["_data_files"]
        names: list[tuple[str, int | None]] = []
        for each in listed if isinstance(listed, list) else [None]:
            name = each.get("filename") if isinstance(each, dict) else each
            if not isinstance(name, str) or not name.isprintable() or "/" in name or name in ("", ".", ".."):
                raise UnsupportedDataError(f"{self.index_name}: {name!r:.200} is no file in its folder")
            names.append((name, None))
        return names

    def is_cache(self, name: str) -> bool:
        """Return whether a file is a result of `map` or `filter`, which are kept beside the data."""
        return name.startswith("cache-")

    def of_first_file(self, reader: FileReader) -> "Arrow":
        """Return the format with the columns of the first file.

        Raises:
            UnsupportedDataError: if the file is not of Arrow, or has a column that can't be read.
            ConfigurationError: if it has not all of the fields.
        """
        message = _schema_of(reader)[0]
        schema = schema_of(reader, message.position, message.header, message.version)
        spec = _spec_of(self._chosen(reader, schema))
        Missing(self.missing).check({field.name: field.leaf for field in spec.fields})
        return replace(self, known=spec)

    def batches(self, reader: FileReader) -> Iterator[Batch]:
        """Yield the rows of the record batches.

        Raises:
            UnsupportedDataError: if the file is damaged or compressed, or has nulls, or other columns than
                the first.
        """
        first, end = _schema_of(reader)
        schema = schema_of(reader, first.position, first.header, first.version)
        try:
            chosen = self._chosen(reader, schema)
        except ConfigurationError as error:  # the fields are those of the first file
            reader.refuse(first.position, f"the first file has other columns: {error}")
        spec = _spec_of(chosen)
        if spec != self.spec:
            reader.refuse(first.position, f"the columns are {spec.tree}, in the first file {self.spec.tree}")
        leaves = [leaf for column in chosen for leaf in column.leaves()]
        position = first.end
        while position < end:
            message = _message_at(reader, position, end)
            if message is None:
                if position + 8 != end:
                    reader.refuse(position + 8, "bytes follow the end of the stream: write one stream a file")
                return
            if message.kind == _RECORDS:
                yield from _batches_of(reader, message, schema, leaves, Missing(self.missing))
            elif message.kind != _DICTIONARY:  # of a column that is not taken, or it would have been refused
                reader.refuse(position, f"a message of type {message.kind} is not read")
            position = message.end
        if end == reader.size_bytes:  # a file with a footer is whole
            reader.refuse(
                end,
                "the stream has no end: it is cut, or was not closed by its writer. If nothing is missing, "
                "append four bytes of 255 and four of 0",
            )

    def _chosen(self, reader: FileReader, schema: ArrowSchema) -> tuple[ArrowColumn, ...]:
        columns = schema.columns
        if self.fields is not None:
            columns = chosen_of(columns, self.fields, reader.name)
        count = 0
        for column in columns:
            for leaf in column.leaves():
                for number, each in enumerate(leaf, 1):
                    if each.problem:
                        name = _name_of(leaf[:number])
                        reader.refuse(0, f"column {name!r:.200} {each.problem}, or leave it out (fields=)")
                count += 1
                if count > MAX_FIELDS:
                    reader.refuse(0, f"there are more than {MAX_FIELDS} columns: choose some (fields=)")
        if not columns:
            reader.refuse(0, "there are no columns")
        return columns


def _spec_of(columns: Sequence[ArrowColumn]) -> Spec:
    return Spec(DictNode(tuple(c.name for c in columns), tuple(c.tree for c in columns)))


def _name_of(columns: Sequence[ArrowColumn]) -> str:
    return "/".join(column.name for column in columns)


def _schema_of(reader: FileReader) -> tuple[_Message, int]:
    """Return the first message, the schema, and where the messages end.

    Raises:
        UnsupportedDataError: if the file is not of Arrow, or cut.
    """
    head, begin, end = bytes(reader.read(0, min(8, reader.size_bytes))), 0, reader.size_bytes
    if head[:4] == b"FEA1":
        reader.refuse(
            0,
            "this is version 1 of Feather: write version 2, "
            'feather.write_feather(table, path, compression="uncompressed")',
        )
    if head.startswith(_MAGIC):
        begin, end = 8, reader.size_bytes - 10
        footer = int(reader.array(end, "<i4", 1)[0]) if end >= begin else 0
        if footer <= 0 or end - footer < begin or bytes(reader.read(end + 4, 6)) != _MAGIC:
            reader.refuse(0, "the file has no footer: it is cut, or was not closed by its writer")
        end -= footer
    message = _message_at(reader, begin, end)
    if message is None or message.kind != _SCHEMA:
        reader.refuse(begin, "a file of Arrow begins with its schema")
    return message, end


def _message_at(reader: FileReader, position: int, end: int) -> _Message | None:
    """Return the message at a position; None at the mark of the end.

    Raises:
        UnsupportedDataError: if there is none, or it is cut.
    """
    if end - position < 8:
        reader.refuse(position, "a message is cut")
    mark, length = reader.array(position, "<u4", 2).tolist()
    if mark != _CONTINUED:
        reader.refuse(
            position,
            "this is no message of Arrow; files of versions before 0.15 are not read: write them anew with "
            "pyarrow.ipc.new_file",
        )
    if not length:
        return None
    body = position + 8 + length
    if length > _MAX_METADATA_BYTES or body > end:
        reader.refuse(position, f"the metadata of a message can't have {length} bytes: the file is damaged")
    try:
        table = Table.root_of(bytes(reader.read(position + 8, length)))
        version, kind, header = table.integer(0, "h"), table.integer(1, "B"), table.table(2)
        body_bytes = table.integer(3, "q")
    except ValueError as error:
        reader.refuse(position, f"the metadata of a message is damaged: {error}")
    if version < _V4 or header is None or not 0 <= body_bytes <= end - body:
        reader.refuse(position, "a message is damaged, cut, or of a version of Arrow before 0.8")
    return _Message(position, kind, version, header, body, body_bytes)


class _RecordBatch(NamedTuple):
    position: int
    rows: int
    nodes: list[tuple[int, int]]  # of each, the number of values and that of nulls
    buffers: list[_Buffer]
    before: list[int]  # of each view and of the end, the buffers of the views before

    def nodes_of(self, column: ArrowColumn) -> list[tuple[int, int]]:
        return self.nodes[column.node : column.node + column.nodes]

    def buffers_of(self, column: ArrowColumn) -> list[_Buffer]:
        begin = column.buffer + self.before[column.views]
        return self.buffers[begin : begin + column.buffers]


def _batches_of(
    reader: FileReader,
    message: _Message,
    schema: ArrowSchema,
    leaves: Sequence[tuple[ArrowColumn, ...]],
    missing: Missing,
) -> Iterator[Batch]:
    try:
        header = message.header
        rows = header.integer(0, "q")
        if header.table(3) is not None:
            raise UnsupportedDataError(
                "the buffers are compressed, and can't be read at random: write them without compression, "
                'feather.write_feather(table, path, compression="uncompressed")'
            )
        nodes, pairs = header.structs(1), header.structs(2)
        counts = header.integers(4)
    except (ValueError, UnsupportedDataError) as error:
        reader.refuse(message.position, str(error))
    buffers = _buffers_of(reader, message, pairs)
    if any(count < 0 for count in counts):
        reader.refuse(message.position, "the counts of buffers are damaged")
    there = len(nodes), len(counts), len(buffers) - sum(counts)
    if there != (schema.nodes, schema.views, schema.buffers):
        reader.refuse(message.position, "the buffers of a record batch are not those of the columns")
    batch = _RecordBatch(message.position, rows, nodes, buffers, [0, *accumulate(counts)])
    readers = [_ColumnReader(reader, batch, leaf, missing) for leaf in leaves]
    at_once = min(_BATCH_RECORDS, max(8, _BATCH_VALUES // len(leaves) // 8 * 8))  # bits begin at bytes
    for begin in range(0, rows, at_once):
        count = min(at_once, rows - begin)
        yield [column.batch(begin, count) for column in readers]


def _buffers_of(reader: FileReader, message: _Message, pairs: list[tuple[int, int]]) -> list[_Buffer]:
    """Return where the buffers lie in the file, given their offsets in the body and their lengths.

    Raises:
        UnsupportedDataError: if one lies outside, or buffers share bytes, which could then stand for far more
            values than the file has.
    """
    buffers = []
    reached = message.body
    for offset, length in pairs:
        position = message.body + offset if length else reached
        if not (reached <= position and 0 <= length <= message.end - position):
            reader.refuse(message.position, "the buffers of a record batch overlap, or lie outside of it")
        buffers.append(_Buffer(position, length))
        reached = position + length
    return buffers


class _ColumnReader:
    """The values of a column in a record batch.

    Args:
        reader: The file.
        batch: The record batch.
        columns: The column after the structs that it lies in.
        missing: What comes in the place of nulls.
    """

    def __init__(
        self, reader: FileReader, batch: _RecordBatch, columns: tuple[ArrowColumn, ...], missing: Missing
    ) -> None:
        self._reader, self._name, self._position = reader, _name_of(columns), batch.position
        layout, rows = columns[-1].layout, batch.rows
        assert layout is not None, "columns with problems are refused before"
        self._layout = layout
        self._fill = missing.fill(self._name, layout.leaf)
        self._valid: list[_Buffer] = []  # a bit for each value: 0 of a null
        for number, column in enumerate(columns, 1):
            (values, nulls), *nested = batch.nodes_of(column)
            if rows < 0 or values != rows:
                self._refuse(f"has {values} values in a batch of {rows} rows: the file is damaged")
            is_struct = number < len(columns)
            if not is_struct and any(each for _, each in nested):
                self._refuse("has nulls in its lists: fill them, or leave the column out (fields=)")
            if nulls:
                self._check_nulls(nulls, rows, "lies in a struct that has" if is_struct else "has")
                self._valid.append(batch.buffers_of(column)[0])
        if any(buffer.length < -(-rows // 8) for buffer in self._valid):
            self._refuse("has too few bits that tell its nulls: the file is damaged")
        buffers = batch.buffers_of(columns[-1])
        self._data = buffers[-1]
        self._offsets = buffers[1]
        self._item_bytes = 1 if layout.item in ("", "bit") else np.dtype(layout.item).itemsize
        if layout.offsets:
            needed, there = (
                (rows + 1) * np.dtype(layout.offsets).itemsize if rows else 0,
                self._offsets.length,
            )
        elif layout.item == "bit":
            needed, there = -(-rows // 8), self._data.length
        else:
            needed, there = rows * layout.size_bytes, self._data.length
        if there < needed:
            self._refuse(f"has {there} bytes of {needed}: the file is damaged")

    def _refuse(self, problem: str) -> None:
        self._reader.refuse(self._position, f"column {self._name!r:.200} {problem}")

    def _check_nulls(self, nulls: int, rows: int, problem: str) -> None:
        leaf = self._layout.leaf
        if self._fill is None:
            line = missing_line(self._name, leaf)
            how = (
                "give a number in their place" if leaf.is_numeric and leaf.is_fixed else "read them as empty"
            )
            way = f" {how} ({line})," if line else ""
            self._refuse(f"{problem} nulls: fill them,{way} or leave the column out (fields=)")
        if not 0 <= nulls <= rows:
            self._refuse(f"{problem} {nulls} nulls in {rows} rows: the file is damaged")

    def batch(self, begin: int, count: int) -> Places | Column:
        layout, leaf = self._layout, self._layout.leaf
        if layout.offsets:
            return self._varying(begin, count)
        if layout.item == "bit":
            packed = self._reader.array(self._data.position + begin // 8, "u1", -(-count // 8))
            bits = np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)
            return self._filled(bits, begin)
        position = self._data.position + begin * layout.size_bytes
        shape = [size for size in leaf.shape or () if size is not None]
        if leaf.is_numeric and layout.size_bytes <= _SMALL_BYTES:
            items = count * (layout.size_bytes // self._item_bytes)
            numbers = self._reader.array(position, layout.item, items)
            found = numbers.astype(leaf.numpy_dtype, copy=False).reshape([count, *shape])
            return self._filled(found, begin)
        positions = position + layout.size_bytes * np.arange(count, dtype=np.int64)
        lengths = np.full(count, layout.size_bytes, np.int64)
        self._empty_nulls(lengths, begin)
        shapes = np.tile(np.array([len(shape), *shape], np.int64), (count, 1)) if leaf.is_numeric else None
        return Places(positions, lengths, shapes)

    def _filled(self, numbers: NDArray[Any], begin: int) -> NDArray[Any]:
        """Return numbers with the one that was given in the place of nulls, whose bytes may be any."""
        for are_valid in self._validity(begin, len(numbers)):
            numbers = np.where(are_valid, numbers, self._fill)
        return numbers

    def _validity(self, begin: int, count: int) -> Iterator[NDArray[np.bool_]]:
        for buffer in self._valid:
            packed = self._reader.array(buffer.position + begin // 8, "u1", -(-count // 8))
            yield np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)

    def _empty_nulls(self, lengths: Int64s, begin: int) -> None:
        """Set the lengths of nulls to 0; their bytes may be any."""
        for are_valid in self._validity(begin, len(lengths)):
            lengths *= are_valid

    def _varying(self, begin: int, count: int) -> Places:
        item_bytes, kind = self._item_bytes, self._layout.offsets
        position = self._offsets.position + begin * np.dtype(kind).itemsize
        offsets: Int64s = self._reader.array(position, kind, count + 1).astype(np.int64)
        counts = np.diff(offsets)
        # Ascending from 0 to the end of the buffer: no product overflows.
        if offsets[0] < 0 or (counts < 0).any() or offsets[-1] > self._data.length // item_bytes:
            self._refuse("has values outside of its buffer: the file is damaged")
        lengths = counts * item_bytes
        self._empty_nulls(lengths, begin)
        if lengths.max() > MAX_LEAF_BYTES:
            self._refuse(f"has a value of more than {MAX_LEAF_BYTES:,} bytes")
        shapes = None
        if self._layout.leaf.is_numeric:
            shapes = np.stack([np.ones(count, np.int64), lengths // item_bytes], axis=1)
        return Places(self._data.position + offsets[:-1] * item_bytes, lengths, shapes)
