"""Find out from the schema of Arrow which columns there are, and which buffers the values of each have."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from yogadl._core.columns import MAX_LEAF_BYTES
from yogadl._core.frozen import frozen
from yogadl._core.spec import BYTES, MAX_DEPTH, MAX_FIELDS, STR, DictNode, Leaf
from yogadl._foreign.file_reader import FileReader
from yogadl._foreign.flatbuffer import Table
from yogadl.errors import ConfigurationError

# The numbers of the types, their buffers, and their names: format/Schema.fbs of Arrow.
_TYPES: Final = {
    1: (0, "null"),
    2: (2, "int"),
    3: (2, "floating point"),
    4: (3, "binary"),
    5: (3, "string"),
    6: (2, "bool"),
    7: (2, "decimal"),
    8: (2, "date"),
    9: (2, "time"),
    10: (2, "timestamp"),
    11: (2, "interval"),
    12: (2, "list"),
    13: (1, "struct"),
    14: (1, "union"),
    15: (2, "fixed_size_binary"),
    16: (1, "fixed_size_list"),
    17: (2, "map"),
    18: (2, "duration"),
    19: (3, "large_binary"),
    20: (3, "large_string"),
    21: (2, "large_list"),
    22: (0, "run-end encoded"),
    23: (2, "binary_view"),
    24: (2, "string_view"),
    25: (3, "list_view"),
    26: (3, "large_list_view"),
}
_WAYS_OUT: Final = {
    "binary_view": "cast it to large_binary",
    "string_view": "cast it to large_string",
    "decimal": "cast it to float64 or string",
    "time": "cast it to an integer",
    "interval": "cast it to a duration",
}
_UNION: Final = 14
_VIEWS: Final = (23, 24)
_V4: Final = 3
_MAX_NESTED: Final = 2**16
_MAX_NAME_CHARACTERS: Final = 2**24
_MAX_METADATA: Final = 64  # entries of a column that are looked at
_FLOATS: Final = {0: "float16", 1: "float32", 2: "float64"}
_UNITS: Final = {0: "s", 1: "ms", 2: "us", 3: "ns"}
_MILLISECONDS: Final = 1


@frozen
class ColumnLayout:
    """How the values of a column lie in the buffers of a record batch.

    Args:
        leaf: The dtype and shape of a value.
        offsets: The dtype of the offsets of values that vary in size, else "".
        item: The dtype of a number as it is stored, "bit", or "" for bytes.
        size_bytes: The bytes of a value of fixed size.
    """

    leaf: Leaf
    offsets: str = ""
    item: str = ""
    size_bytes: int = 0


@frozen
class ArrowColumn:
    """A column, or a field of a struct.

    Args:
        name: Its name.
        layout: How its values lie; None of a struct, and if there is a problem.
        problem: Why it can't be read, and what to do; None if it can.
        node: The number of its first node in a record batch.
        nodes: The number of its nodes: its own, and those of what is nested in it.
        buffer: The number of its first buffer, without those of `views`.
        buffers: The number of its buffers, without those of views in it.
        views: How many nodes before it have a number of buffers that varies.
        children: The fields of a struct.
    """

    name: str
    layout: ColumnLayout | None
    problem: str | None
    node: int
    nodes: int
    buffer: int
    buffers: int
    views: int
    children: "tuple[ArrowColumn, ...]" = ()

    def leaves(self, structs: "tuple[ArrowColumn, ...]" = ()) -> "Iterator[tuple[ArrowColumn, ...]]":
        """Yield each column of values in this one, after the structs that it lies in, the outermost first."""
        if not self.children:
            yield (*structs, self)
        for child in self.children:
            yield from child.leaves((*structs, self))

    @property
    def tree(self) -> Leaf | DictNode:
        """The node of the column's values."""
        if self.children:
            return DictNode(tuple(c.name for c in self.children), tuple(c.tree for c in self.children))
        assert self.layout is not None, "a column with a problem has no values"
        return self.layout.leaf


@frozen
class ArrowSchema:
    """The columns of a file, and of each record batch the number of nodes, of buffers and of views."""

    columns: tuple[ArrowColumn, ...]
    nodes: int
    buffers: int
    views: int


class _UnreadableError(Exception):
    """A column can't be read; the text says why."""


def schema_of(reader: FileReader, position: int, schema: Table, version: int) -> ArrowSchema:
    """Return all columns of a schema.

    Args:
        reader: The file, which errors name.
        position: Where the message with the schema lies.
        schema: The schema.
        version: The version of the metadata.

    Raises:
        UnsupportedDataError: if the schema is damaged, or of a big-endian machine.
    """
    try:
        if schema.integer(0, "h"):
            reader.refuse(position, "the numbers are big-endian: write the file anew on another machine")
        fields = schema.tables(1)
        if len(fields) > MAX_FIELDS:
            raise ValueError(f"there are {len(fields)} columns, more than {MAX_FIELDS}")
        nested_left = _MAX_NESTED
        for field in fields:
            nested_left -= _counts_of(field, version, nested_left)[0]
        walk = _SchemaWalk(version)
        columns = walk.columns(fields)
    except ValueError as error:
        reader.refuse(position, f"the schema is damaged: {error}")
    return ArrowSchema(columns, walk.node, walk.buffer, walk.views)


class _SchemaWalk:
    """Finds the columns of a schema in the order in which their nodes and buffers lie in a record batch.

    The number of fields and how deep they are nested were checked before.
    """

    def __init__(self, version: int) -> None:
        self.node = self.buffer = self.views = 0
        self._version = version
        self._characters = 0

    def columns(self, fields: Sequence[Table]) -> tuple[ArrowColumn, ...]:
        """Return the columns of a table, or the fields of a struct."""
        found = [self._column(field) for field in fields]
        counts = Counter(column.name for column in found)
        return tuple(
            column
            if counts[column.name] == 1
            else replace(column, problem=column.problem or "has a name that another column has: rename it")
            for column in found
        )

    def _column(self, field: Table) -> ArrowColumn:
        node, buffer, views = self.node, self.buffer, self.views
        name = field.text(0)
        self._characters += len(name)
        if self._characters > _MAX_NAME_CHARACTERS:  # one name may be referred to by many fields
            raise ValueError(f"the names of the columns have more than {_MAX_NAME_CHARACTERS} characters")
        layout: ColumnLayout | None = None
        problem: str | None = None
        children: tuple[ArrowColumn, ...] = ()
        try:
            if _kind_of(field) == "struct":
                fields = field.tables(5)
                if not fields:
                    raise _UnreadableError("is a struct without fields")
                self.node += 1
                self.buffer += 1
                children = self.columns(fields)
            else:
                layout = _layout_of(field)
        except _UnreadableError as error:
            problem = str(error)
        if not children:
            counts = _counts_of(field, self._version, _MAX_NESTED)
            self.node += counts[0]
            self.buffer += counts[1]
            self.views += counts[2]
        return ArrowColumn(
            name, layout, problem, node, self.node - node, buffer, self.buffer - buffer, views, children
        )


def chosen_of(
    columns: Sequence[ArrowColumn], fields: Sequence[str], file_name: str
) -> tuple[ArrowColumn, ...]:
    """Return the columns with these names, and of structs the fields that are named.

    Args:
        columns: The columns of a file.
        fields: The names; a field of a struct follows the names of the structs and slashes.
        file_name: The file, which errors name.

    Raises:
        ConfigurationError: if there is no such column, or several have the name, or a struct is named beside
            a field in it.
    """
    paths = []
    for name in fields:
        found = list(_paths_to(columns, name))
        if not found:
            struct = next((c for c in columns if c.children and name.startswith(f"{c.name}/")), None)
            there = [c.name for c in columns] if struct is None else [c.name for c in struct.children]
            where = file_name if struct is None else f"{struct.name!r:.200} of {file_name}"
            raise ConfigurationError(
                f"there is no column {name!r:.200} in {where}; there are {there!r:.1000}"
            )
        if len(found) > 1:
            raise ConfigurationError(
                f"{name!r:.200} is the name of several columns in {file_name}: rename them"
            )
        paths.append(found[0])
    return _merged(columns, paths)


def _paths_to(columns: Sequence[ArrowColumn], name: str) -> Iterator[tuple[int, ...]]:
    """Yield the numbers that lead to each column of this name, from the outermost struct on."""
    for number, column in enumerate(columns):
        if column.name == name:
            yield (number,)
        elif name.startswith(f"{column.name}/"):
            if column.problem:  # which the caller names
                yield (number,)
            else:
                for path in _paths_to(column.children, name[len(column.name) + 1 :]):
                    yield (number, *path)


def _merged(columns: Sequence[ArrowColumn], paths: Sequence[tuple[int, ...]]) -> tuple[ArrowColumn, ...]:
    groups: dict[int, list[tuple[int, ...]]] = {}
    for path in paths:
        groups.setdefault(path[0], []).append(path[1:])
    found = []
    for number, rests in groups.items():
        column = columns[number]
        if () not in rests:
            column = replace(column, children=_merged(column.children, rests))
        elif len(rests) > 1:
            raise ConfigurationError(
                f"column {column.name!r:.200} is named whole and by a field in it: give one of them"
            )
        found.append(column)
    return tuple(found)


def _counts_of(field: Table, version: int, most: int) -> tuple[int, int, int]:
    """Return the numbers of the nodes, the buffers, and the views of a field and all that is nested in it.

    Raises:
        ValueError: if more than this many fields are nested, or too deep.
    """
    nodes = buffers = views = depth = 0
    level = [field]
    while level:
        depth += 1
        nodes += len(level)
        if nodes > most or depth > MAX_DEPTH:
            raise ValueError("too many fields are nested")
        following: list[Table] = []
        for inner in level:
            if inner.table(4) is not None:  # a dictionary: only the indices lie in a record batch
                buffers += 2
                continue
            kind = inner.integer(2, "B")
            if kind not in _TYPES:
                raise ValueError(f"type {kind} is unknown")
            buffers += _TYPES[kind][0]
            if kind == _UNION:
                parameters = inner.table(3)
                buffers += (parameters is not None and parameters.integer(0, "h") == 1) + (version == _V4)
            views += kind in _VIEWS
            children = inner.tables(5)
            if len(children) + len(following) > most:
                raise ValueError("too many fields are nested")
            following += children
        level = following
    return nodes, buffers, views


def _layout_of(field: Table) -> ColumnLayout:
    """Return how the values of a column lie.

    Raises:
        _UnreadableError: if they can't be read.
        ValueError: if the schema is damaged.
    """
    kind = _kind_of(field)
    parameters, children = field.table(3), field.tables(5)
    if kind in ("binary", "string", "large_binary", "large_string"):
        offsets = "<i8" if kind.startswith("large") else "<i4"
        return ColumnLayout(Leaf(STR if kind.endswith("string") else BYTES), offsets)
    if kind == "bool":
        return ColumnLayout(Leaf("bool"), item="bit")
    if kind == "fixed_size_binary":
        size = 0 if parameters is None else parameters.integer(0, "i")
        return ColumnLayout(Leaf(BYTES), size_bytes=_sized(size, 1))
    if kind in ("list", "large_list", "fixed_size_list"):
        if len(children) != 1:
            raise ValueError("a list has one type of items")
        dtype, item = _number_of(children[0], _kind_of(children[0]), f"is a {kind} of ")
        if np.dtype(dtype).itemsize != int(item[2:]):
            raise _UnreadableError("is a list of 32-bit dates: cast them to timestamps")
        if kind != "fixed_size_list":
            return ColumnLayout(Leaf(dtype, (None,)), "<i8" if kind == "large_list" else "<i4", item)
        size, item_bytes = 0 if parameters is None else parameters.integer(0, "i"), int(item[2:])
        return ColumnLayout(
            Leaf(dtype, (size,)) if _sized(size, item_bytes) else Leaf(dtype), "", item, size * item_bytes
        )
    dtype, item = _number_of(field, kind, "is of type ")
    return ColumnLayout(Leaf(dtype), "", item, int(item[2:]))


def _sized(size: int, item_bytes: int) -> int:
    if not 0 < size * item_bytes <= MAX_LEAF_BYTES:
        raise _UnreadableError(f"has values of {size * item_bytes} bytes")
    return size


def _kind_of(field: Table) -> str:
    for pair in field.tables(6)[:_MAX_METADATA]:
        if pair.text(0) == "ARROW:extension:name":
            raise _UnreadableError(
                f"is of the extension type {pair.text(1)!r:.100}: cast it to its storage type"
            )
    if field.table(4) is not None:
        raise _UnreadableError("is dictionary-encoded: cast it to the type of its values")
    return _TYPES[field.integer(2, "B")][1]


def _number_of(field: Table, kind: str, problem: str) -> tuple[str, str]:
    """Return the dtype of numbers, and the dtype as they are stored.

    Raises:
        _UnreadableError: if they are no numbers.
    """
    parameters = field.table(3)
    if parameters is None:
        raise ValueError(f"a column of type {kind} has no parameters")
    if kind == "int":
        bits, is_signed = parameters.integer(0, "i"), parameters.integer(1, "B")
        if bits in (8, 16, 32, 64):
            return f"{'int' if is_signed else 'uint'}{bits}", f"<{'i' if is_signed else 'u'}{bits // 8}"
    if kind == "floating point":
        dtype = _FLOATS.get(parameters.integer(0, "h"))
        if dtype is not None:
            return dtype, f"<f{int(dtype[5:]) // 8}"
    unit = parameters.integer(0, "h", 0 if kind == "timestamp" else _MILLISECONDS)
    if kind in ("timestamp", "duration") and unit in _UNITS:
        # With a time zone, too, the numbers are UTC.
        return f"{'datetime64' if kind == 'timestamp' else 'timedelta64'}[{_UNITS[unit]}]", "<i8"
    if kind == "date":
        return ("datetime64[ms]", "<i8") if unit == _MILLISECONDS else ("datetime64[D]", "<i4")
    remedy = _WAYS_OUT.get(kind, "convert it to numbers, strings or lists of numbers")
    raise _UnreadableError(f"{problem}{kind}, which is not read: {remedy}")
