"""Find the samples in the shards of MosaicML Streaming (MDS)."""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.columns import MAX_LEAF_BYTES
from yogadl._core.frozen import frozen, parse_json
from yogadl._core.protocols import Column, Int64s
from yogadl._core.spec import BYTES, MAX_DIMENSIONS, MAX_FIELDS, STR, DictNode, Leaf, Spec
from yogadl._foreign.fields import check_fields
from yogadl._foreign.file_reader import Batch, FileReader, Format, Places
from yogadl.errors import CacheFormatError, ConfigurationError, UnsupportedDataError

# A shard: the count of samples (uint32), where each begins and the last ends (uint32), the configuration
# (JSON), the samples. A sample: the sizes of its columns of varying size (uint32), then all columns.
_MAX_CONFIG_BYTES: Final = 2**20
_BATCH_RECORDS: Final = 2**16
_SMALL_BYTES: Final = 16  # arrays up to this size are stored as they are

_NUMBERS: Final = frozenset(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)) | {
    "float16", "float32", "float64",
}  # fmt: skip
_BYTES_ENCODINGS: Final = frozenset(
    ("bytes", "jpeg", "png", "jpegarray", "jpeg_array", "list[jpeg]", "list[png]", "pkl")
)
# Numbers of any length are the text of their digits.
_STR_ENCODINGS: Final = frozenset(("str", "json", "str_int", "str_float", "str_decimal"))
_SHAPE: Final = re.compile(r"[1-9][0-9]{0,18}(,[1-9][0-9]{0,18})*")


@frozen
class _Column:
    """A column of a shard: its name, and its values. `leaf` is None if they can't be read."""

    name: str
    encoding: str
    leaf: Leaf | None

    @property
    def size_bytes(self) -> int | None:
        """The bytes of each value; None if they vary."""
        return self.leaf.row_bytes if self.leaf is not None and self.leaf.is_fixed else None


@frozen
class MDS(Format):
    """The `.mds` shards of MosaicML Streaming, not compressed: a record is a dict of the columns.

    Images and other encoded columns are the bytes as they lie in the shard, `json` is its text, and
    `pkl` the bytes of the pickle, which is not loaded. Numbers that are stored as text are `str`.

    Args:
        fields: The columns that are taken; all if None.
        known: The structure of a record, which the first file decides.
    """

    fields: tuple[str, ...] | None = None
    known: Spec | None = None
    suffixes: ClassVar[tuple[str, ...]] = (".mds",)
    index_name: ClassVar[str] = "index.json"
    beside: ClassVar[tuple[str, ...]] = ("index.json",)

    def __post_init__(self) -> None:
        check_fields(self.fields)

    @property
    def spec(self) -> Spec:
        """A dict of the columns."""
        assert self.known is not None, "of_first_file comes first"
        return self.known

    def listed_in(self, content: bytes) -> list[tuple[str, int | None]]:
        """Return the shards that an `index.json` names: see `shards_of`."""
        return [*shards_of(content)]

    def of_first_file(self, reader: FileReader) -> "MDS":
        """Return the format with the columns of the first file.

        Raises:
            UnsupportedDataError: if the file is no shard, or has a column that can't be read.
            ConfigurationError: if it has not all of the fields.
        """
        shard = _MDSShard(reader)
        leaves: dict[str | int, Leaf] = {}
        for column in shard.chosen(self.fields):
            leaf = column.leaf
            assert leaf is not None
            if leaf.is_numeric and leaf.shape is None and shard.count:
                leaf = Leaf(leaf.dtype, (None,) * shard.first_rank(column))
            leaves[column.name] = leaf
        return MDS(self.fields, Spec(DictNode(tuple(leaves), tuple(leaves.values()))))

    def batches(self, reader: FileReader) -> Iterator[Batch]:
        """Yield the samples that begin in a window, then those of the next.

        Raises:
            UnsupportedDataError: if the file is damaged, or has other columns than the first.
        """
        shard = _MDSShard(reader)
        assert isinstance(self.spec.tree, DictNode)
        names, leaves = self.spec.tree.keys, self.spec.tree.children
        by_name = {column.name: column for column in shard.columns}
        more = sorted(by_name.keys() - set(names)) if self.fields is None else []
        if more:
            reader.refuse(
                shard.config_position,
                f"column {more[0]!r:.200} is not in the first file: name the columns that all have (fields=)",
            )
        for name, leaf in zip(names, leaves, strict=True):
            found = by_name[name].leaf if name in by_name else None
            assert isinstance(leaf, Leaf)
            is_alike = found is not None and (found.dtype, found.is_fixed) == (leaf.dtype, leaf.is_fixed)
            if not is_alike or (leaf.is_fixed and found != leaf):
                reader.refuse(
                    shard.config_position, f"column {name!r:.200} is {found}, in the first file {leaf}"
                )
        for begins, ends in shard.samples():
            starts, sizes = shard.values_of(begins, ends)
            yield [
                _values(reader, leaf, starts[name], sizes[name])  # type: ignore[arg-type, index]
                for name, leaf in zip(names, leaves, strict=True)
            ]


class _MDSShard:
    """The head of a shard: the count of its samples, and its columns."""

    def __init__(self, reader: FileReader) -> None:
        self._reader = reader
        if reader.size_bytes < 8:
            reader.refuse(0, "this is no shard of MDS, which has 8 bytes and more")
        self.count = int(reader.array(0, "<u4", 1)[0])
        self.config_position = 4 * (self.count + 2)
        if self.config_position > reader.size_bytes:
            reader.refuse(0, f"a shard of {self.count} samples is longer: it is cut, or no shard of MDS")
        self.begin = int(reader.array(4, "<u4", 1)[0])
        length = self.begin - self.config_position
        if not 0 < length <= min(_MAX_CONFIG_BYTES, reader.size_bytes - self.config_position):
            reader.refuse(4, f"the configuration can't have {length} bytes: this is no shard of MDS")
        try:
            config = _parsed(bytes(reader.read(self.config_position, length)))
            names, encodings, sizes = (config[f"column_{part}"] for part in ("names", "encodings", "sizes"))
            kind = config["format"], config["version"]
            lists = [names, encodings, sizes]
            if not all(type(part) is list and len(part) == len(names) for part in lists) or not names:
                raise ValueError("no lists of columns")
            if not all(type(text) is str for text in names + encodings) or len(set(names)) != len(names):
                raise ValueError("no names of columns")
            if len(names) > MAX_FIELDS:
                raise ValueError("too many columns")
        except (ValueError, KeyError, TypeError):
            reader.refuse(self.config_position, "the configuration of the shard is damaged")
        if kind != ("mds", 2):
            reader.refuse(self.config_position, f"format {kind!r:.100} is not read, only version 2 of mds")
        self.columns = [_Column(*pair, _leaf_of(pair[1])) for pair in zip(names, encodings, strict=True)]
        self._sizes: list[int | None] = []
        for column, size in zip(self.columns, sizes, strict=True):
            expected = column.size_bytes
            if size is not None and (type(size) is not int or not 0 < size <= MAX_LEAF_BYTES):
                reader.refuse(
                    self.config_position, f"column {column.name!r:.200} can't have {size!r:.50} bytes"
                )
            if column.leaf is not None and size != expected:
                reader.refuse(
                    self.config_position,
                    f"column {column.name!r:.200} ({column.encoding}) has {expected} bytes, not {size}",
                )
            self._sizes.append(size)
        self._varying_bytes = 4 * self._sizes.count(None)
        self._least_bytes = self._varying_bytes + sum(size or 0 for size in self._sizes)

    def chosen(self, fields: tuple[str, ...] | None) -> list[_Column]:
        """Return the columns with these names, all if None.

        Raises:
            ConfigurationError: if there is no such column.
            UnsupportedDataError: if a column can't be read.
        """
        names = [column.name for column in self.columns]
        for name in fields or ():
            if name not in names:
                raise ConfigurationError(
                    f"there is no column {name!r} in {self._reader.name}; there are {names}"
                )
        columns = [column for column in self.columns if fields is None or column.name in fields]
        for column in columns:
            if column.leaf is None:
                self._reader.refuse(
                    self.config_position,
                    f"column {column.name!r:.200} has the encoding {column.encoding!r:.100}, which is not "
                    "read: leave it out (fields=), or write it as jpeg, png, bytes, or ndarray with a dtype",
                )
        return columns if fields is None else sorted(columns, key=lambda column: fields.index(column.name))

    def samples(self) -> Iterator[tuple[Int64s, Int64s]]:
        """Yield where the samples begin and end, those of `batch_bytes` at a time."""
        end = self.begin
        for first in range(0, self.count, _BATCH_RECORDS):
            count = min(_BATCH_RECORDS, self.count - first)
            bounds = self._reader.array(4 * (first + 1), "<u4", count + 1).astype(np.int64)
            is_last = first + count == self.count
            if bounds[0] != end or (np.diff(bounds) < self._least_bytes).any():
                self._reader.refuse(
                    4 * (first + 1), "the samples do not follow each other: the shard is damaged"
                )
            end = int(bounds[-1])
            if end > self._reader.size_bytes or (is_last and end != self._reader.size_bytes):
                self._reader.refuse(
                    4 * (first + 1),
                    f"the samples end at {end}, but the file at {self._reader.size_bytes}: it is damaged",
                )
            stretches = bounds[:-1] // self._reader.batch_bytes
            cuts = [0, *(np.flatnonzero(np.diff(stretches)) + 1).tolist(), count]
            for cut, following in pairwise(cuts):
                yield bounds[cut:following], bounds[cut + 1 : following + 1]
        if not self.count and self.begin != self._reader.size_bytes:
            self._reader.refuse(4, "bytes follow a shard without samples: it is damaged")

    def values_of(self, begins: Int64s, ends: Int64s) -> tuple[dict[str, Int64s], dict[str, Int64s]]:
        """Return where the values of each column begin in some samples, and their sizes."""
        heads = gather(self._reader, begins, self._varying_bytes).view("<u4").astype(np.int64)
        position, varying = begins + self._varying_bytes, 0
        starts, sizes = {}, {}
        for column, size in zip(self.columns, self._sizes, strict=True):
            if size is None:
                lengths = heads[:, varying]
                varying += 1
            else:
                lengths = np.full(len(begins), size, np.int64)
            starts[column.name], sizes[column.name] = position, lengths
            position = position + lengths
        # Of at most 2**20 columns with 2**32 bytes each: no sum overflows.
        wrong = np.flatnonzero(position != ends)
        if len(wrong):
            self._reader.refuse(int(begins[wrong[0]]), "the columns of a sample do not add up to its size")
        for name, lengths in sizes.items():
            if lengths.max() > MAX_LEAF_BYTES:
                self._reader.refuse(
                    int(begins[0]), f"a value of {name!r:.200} has over {MAX_LEAF_BYTES:,} bytes"
                )
        return starts, sizes

    def first_rank(self, column: _Column) -> int:
        """Return the rank of an array in the first sample."""
        begins, ends = next(self.samples())
        starts, sizes = self.values_of(begins[:1], ends[:1])
        if sizes[column.name][0] < 1:
            self._reader.refuse(int(starts[column.name][0]), "an array has no head: the shard is damaged")
        return min(self._reader.read(int(starts[column.name][0]), 1)[0] >> 2, MAX_DIMENSIONS)


@lru_cache(maxsize=4)
def _parsed(config: bytes) -> Any:
    """Return a configuration, which is the same in all shards of a dataset. Nobody changes it."""
    return parse_json(config)


@lru_cache(maxsize=256)
def _leaf_of(encoding: str) -> Leaf | None:
    """Return the leaf of an encoding; None if its values can't be read."""
    if encoding in _BYTES_ENCODINGS:
        return Leaf(BYTES)
    if encoding in _STR_ENCODINGS:
        return Leaf(STR)
    if encoding == "int" or encoding in _NUMBERS:
        return Leaf("int64" if encoding == "int" else encoding)
    name, *parameters = encoding.split(":")
    if name != "ndarray" or not 1 <= len(parameters) <= 2 or parameters[0] not in _NUMBERS:
        return None  # among them arrays whose dtype is told by each value
    if len(parameters) == 1:
        return Leaf(parameters[0], None)
    if len(parameters[1]) > 20 * MAX_DIMENSIONS or not _SHAPE.fullmatch(parameters[1]):
        return None
    try:
        return Leaf(parameters[0], tuple(map(int, parameters[1].split(","))))
    except CacheFormatError:
        return None


def _values(reader: FileReader, leaf: Leaf, starts: Int64s, sizes: Int64s) -> Places | Column:
    if not leaf.is_numeric:
        return Places(starts, sizes)
    if not leaf.is_fixed:
        return _arrays(reader, leaf, starts, sizes)
    shape = [size for size in leaf.shape or () if size is not None]
    if leaf.row_bytes <= _SMALL_BYTES:
        rows = gather(reader, starts, leaf.row_bytes)
        return rows.view(leaf.numpy_dtype).reshape((len(starts), *shape))
    return Places(starts, sizes, np.tile(np.array([len(shape), *shape], np.int64), (len(starts), 1)))


def _arrays(reader: FileReader, leaf: Leaf, starts: Int64s, sizes: Int64s) -> Places:
    """Return the places of arrays of a dtype that begin with their shape: rank and width, then the sizes."""
    if sizes.min() < 1:
        reader.refuse(int(starts[np.argmin(sizes)]), "an array has no head: the shard is damaged")
    first = gather(reader, starts, 1)[:, 0].astype(np.int64)
    ranks, widths = first >> 2, first & 3
    rank = int(ranks[0]) if leaf.shape is None else len(leaf.shape)
    if (ranks != rank).any() or rank > MAX_DIMENSIONS:
        reader.refuse(
            int(starts[np.argmax(ranks != rank)]),
            f"an array has another rank than the first one, {rank}: leave the column out (fields=), or "
            "write all its arrays with one rank",
        )
    heads = 1 + (rank << widths)
    if (sizes < heads).any():
        reader.refuse(int(starts[0]), "an array is shorter than its shape: the shard is damaged")
    shapes = np.empty((len(starts), 1 + rank), np.int64)
    shapes[:, 0] = rank
    for code in range(4):
        chosen = widths == code
        if chosen.any():
            kind = np.dtype(f"<u{1 << code}")
            # A size of 2**63 and more becomes negative, which is refused below.
            rows = gather(reader, starts[chosen] + 1, rank << code).view(kind).reshape(-1, rank)
            shapes[chosen, 1:] = rows.astype(np.int64)
    # In float64, since a product could overflow; it is exact up to 2**53, and a value is less than 2**32.
    with np.errstate(over="ignore"):
        values = shapes[:, 1:].astype(np.float64).prod(axis=1) * leaf.numpy_dtype.itemsize
    wrong = (values != sizes - heads) | (shapes[:, 1:] < 1).any(axis=1)
    if wrong.any():
        reader.refuse(
            int(starts[np.argmax(wrong)]), "an array's shape and bytes differ: the shard is damaged"
        )
    return Places(starts + heads, sizes - heads, shapes)


def gather(reader: FileReader, positions: Int64s, size: int) -> NDArray[np.uint8]:
    """Return the bytes at ascending positions, this many each: a row each."""
    rows = np.empty((len(positions), size), np.uint8)
    if not size:
        return rows
    window, steps = reader.window_bytes, np.arange(size)
    windows = positions // window
    distinct = np.unique(windows).tolist()
    if 2 * len(distinct) > len(positions):
        for k, position in enumerate(positions.tolist()):
            rows[k] = np.frombuffer(reader.read(position, size), np.uint8)
        return rows
    for number in distinct:
        first, after = np.searchsorted(windows, [number, number + 1])
        start = number * window
        block = np.frombuffer(reader.read(start, min(window, reader.size_bytes - start)), np.uint8)
        inside = first + int(np.searchsorted(positions[first:after], start + len(block) - size, side="right"))
        rows[first:inside] = block[(positions[first:inside] - start)[:, None] + steps]
        for k in range(inside, after):
            rows[k] = np.frombuffer(reader.read(int(positions[k]), size), np.uint8)
    return rows


def shards_of(content: bytes) -> list[tuple[str, int]]:
    """Return the shards of a dataset's `index.json`: the name relative to its folder, and the bytes of each.

    Raises:
        UnsupportedDataError: if it is no such index, or its shards are compressed or of another format.
    """
    found = []
    try:
        document = parse_json(content)
        if document["version"] != 2:
            raise ValueError(f"version {document['version']!r:.50} is not 2")
        for shard in document["shards"]:
            if shard["format"] != "mds":
                raise UnsupportedDataError(
                    f"{MDS.index_name}: the format of the shards is {shard['format']!r:.50}, and only mds "
                    "is read: write them anew with streaming.MDSWriter"
                )
            if shard["compression"] is not None or shard["zip_data"] is not None:
                raise UnsupportedDataError(
                    f"{MDS.index_name}: the shards are compressed ({shard['compression']!r:.50}), and can be "
                    "read only from their front: write them anew with streaming.MDSWriter(compression=None)"
                )
            name, size = shard["raw_data"]["basename"], shard["raw_data"]["bytes"]
            if type(name) is not str or type(size) is not int or size < 0:
                raise ValueError(f"{name!r:.100} of {size!r:.50} bytes is no file")
            parts = name.split("/")
            if not name or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
                raise UnsupportedDataError(f"{MDS.index_name}: the file {name!r:.200} is not in its folder")
            found.append((name, size))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UnsupportedDataError):
            raise
        raise UnsupportedDataError(f"{MDS.index_name}: this is no index of MDS: {error}") from error
    return found
