"""Find the features of records that are each a tf.train.Example, a message of protobuf.

The messages, as far as they are read here: Example {1: Features}, Features {1: a map of entries}, an entry
{1: key, 2: Feature}, Feature {1: BytesList, 2: FloatList or 3: Int64List}, and each list {1: its values}.
"""

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from yogadl._core.columns import MAX_LEAF_BYTES
from yogadl._core.protocols import Column, Int64s
from yogadl._core.spec import BYTES, STR, Leaf
from yogadl._foreign.fields import Missing, missing_line
from yogadl._foreign.file_reader import Batch, FileReader, Places
from yogadl.errors import ConfigurationError

# The bytes that begin a field of a message: its number, then how its value is written.
_FIELD_1, _FIELD_2, _FIELD_3 = 0x0A, 0x12, 0x1A  # a length and as many bytes
_VARINT_1: Final = 0x08
_FLOAT_1: Final = 0x0D
_KINDS: Final = {_FIELD_1: "bytes_list", _FIELD_2: "float_list", _FIELD_3: "int64_list"}
_LIST_OF_DTYPE: Final = {BYTES: _FIELD_1, STR: _FIELD_1, "float32": _FIELD_2, "int64": _FIELD_3}
_SMALL_BYTES: Final = 16  # values of fixed shape up to this size are not gathered from the file
_FEW_BYTES: Final = 64  # so many bytes of integers are decoded faster without numpy
# Records up to this size are copied, since Python reads bytes faster than the items of a memoryview.
_COPIED_BYTES: Final = 2**14

Data = bytes | memoryview
# The list of a feature in a record: the byte that says its kind, and where its content begins and ends.
_Span = tuple[int, int, int]


def leaf_of_feature(name: object, feature: object) -> Leaf:
    """Return the leaf of a feature that a user has described.

    Raises:
        ConfigurationError: if its values could not be found or told apart.
    """
    leaf = feature if isinstance(feature, Leaf) else None
    if isinstance(feature, str):
        leaf = Leaf(feature)
    if isinstance(feature, tuple) and len(feature) == 2:
        leaf = Leaf(*feature)
    if leaf is None or not isinstance(name, str):
        raise ConfigurationError(
            f'a feature is described as {{"name": "int64"}} or {{"name": ("float32", (128,))}}, '
            f"not {name!r}: {feature!r}"
        )
    if leaf.dtype not in _LIST_OF_DTYPE:
        raise ConfigurationError(
            f'feature {name!r} has dtype {leaf.dtype!r}; an Example holds "bytes", "str", "int64" and '
            '"float32": name one of these, and convert it in map'
        )
    if not leaf.is_numeric and leaf.shape != ():
        raise ConfigurationError(
            f"feature {name!r} has several values of {leaf.dtype}, which do not lie together in the file: "
            "leave features out, which gives whole records, and parse them in map; or submit the records"
        )
    sizes = leaf.shape or ()
    if leaf.shape is None or sizes.count(None) > 1 or (None in sizes and 0 in sizes) or leaf.ragged_rank:
        raise ConfigurationError(
            f"the shape of feature {name!r} can't be told from its number of values: at most one size may be "
            f"None, not {leaf.shape}"
        )
    return leaf


class ExampleReader:
    """Finds the features of the records of one file.

    Args:
        reader: The file.
        features: The leaf of each feature.
        missing: What comes in the place of a feature that a record lacks, or has without values.
    """

    def __init__(self, reader: FileReader, features: Mapping[str, Leaf], missing: Missing) -> None:
        self._reader = reader
        self._features = features
        self._fills = [missing.fill(name, leaf) for name, leaf in features.items()]
        self._numbers = {name.encode(errors="surrogatepass"): k for k, name in enumerate(features)}

    def batch(self, positions: Int64s, lengths: Int64s, first: int) -> Batch:
        """Return the features of some records, the first of which has this number.

        Raises:
            UnsupportedDataError: if a record is no Example, or lacks a feature.
        """
        reader = self._reader
        features = list(zip(self._features.values(), self._fills, strict=True))
        gatherers = [_gatherer(leaf, fill) for leaf, fill in features]
        empty = [None if fill is None else (_LIST_OF_DTYPE[leaf.dtype], 0, 0) for leaf, fill in features]
        named = list(zip(self._features, gatherers, empty, strict=True))
        for position, length in zip(positions.tolist(), lengths.tolist(), strict=True):
            data: Data = reader.read(position, length)
            if length <= _COPIED_BYTES:
                data = bytes(data)
            spans: list[_Span | None] = [None] * len(gatherers)
            name = None
            try:
                _find(data, self._numbers, spans)
                for (name, gatherer, none), span in zip(named, spans, strict=True):  # noqa: B007  (for the error)
                    gatherer.add(data, position, span or none)
            except (_ExampleError, IndexError) as error:
                number = first + int(np.searchsorted(positions, position))
                problem = "it ends too early" if isinstance(error, IndexError) else str(error)
                if isinstance(error, _LackError) and name is not None:
                    leaf = self._features[name]
                    line = missing_line(name, leaf)
                    what = "a number in its place, " if leaf.is_numeric and leaf.is_fixed else ""
                    problem += f", or {what}{line}" if line else ""
                what = "the record is no tf.train.Example" if name is None else f"feature {name!r}"
                reader.refuse(position, f"record {number}: {what}: {problem}")
        return tuple(gatherer.values(reader) for gatherer in gatherers)

    def unseen(self, names: Collection[str], positions: Int64s, lengths: Int64s) -> list[str]:
        """Return the features of these names that none of some records has; damage is found later."""
        left = dict.fromkeys(names)
        spans: list[_Span | None] = [None] * len(self._features)
        for position, length in zip(positions.tolist(), lengths.tolist(), strict=True):
            with contextlib.suppress(_ExampleError, IndexError):
                _find(self._reader.read(position, length), self._numbers, spans)
            for name, span in zip(self._features, spans, strict=True):
                if span is not None:
                    left.pop(name, None)
            if not left:
                break
        return list(left)


class _ExampleError(Exception):
    """What is wrong with a record; the caller adds which one it is."""


class _LackError(_ExampleError):
    """A record lacks a feature."""


def _find(data: Data, numbers: Mapping[bytes, int], spans: list[_Span | None]) -> None:
    """Put the span of each wanted feature into `spans`; of entries with the same key, the last one counts.

    Raises:
        _ExampleError: if the data is no Example.
        IndexError: if it ends too early.
    """
    for tag, here, end in _fields(data, 0, len(data)):
        if tag != _FIELD_1:
            continue
        while here < end:
            if data[here] != _FIELD_1:
                here = _skip(data, here, end)[2]
                continue
            size, begin = data[here + 1], here + 2
            if size > 127:
                size, begin = _varint(data, here + 1)
            here = begin + size
            if here > end:
                raise _ExampleError("an entry reaches behind the end")
            key, span = _entry(data, begin, here)
            number = numbers.get(key)
            if number is not None:
                spans[number] = span


def _entry(data: Data, begin: int, end: int) -> tuple[bytes, _Span | None]:
    """Return the key of an entry and the span of its list, None if it has none.

    Nearly all entries are a short key and a Feature of one list; others take twice the time.
    """
    value = begin + 2 + data[begin + 1] if begin < end else end
    if value + 4 <= end and data[begin] == _FIELD_1 and data[begin + 1] < 128 and data[value] == _FIELD_2:
        size, start = data[value + 1], value + 2
        if size > 127:
            size, start = _varint(data, value + 1)
        if start + size == end and size > 1:
            kind, size, content = data[start], data[start + 1], start + 2
            if size > 127:
                size, content = _varint(data, start + 1)
            if content + size == end and kind in _KINDS:
                return bytes(data[begin + 2 : value]), (kind, content, end)
    return _entry_in_pieces(data, begin, end)


def _entry_in_pieces(data: Data, begin: int, end: int) -> tuple[bytes, _Span | None]:
    key, features, lists = b"", list[tuple[int, int]](), list[_Span]()
    for tag, start, stop in _fields(data, begin, end):
        if tag == _FIELD_1:
            key = bytes(data[start:stop])
        elif tag == _FIELD_2:
            features.append((start, stop))
    for start, stop in features:
        lists += [span for span in _fields(data, start, stop) if span[0] in _KINDS]
    if len(features) > 1 or len(lists) > 1:
        raise _ExampleError(f"the value of {key!r:.60} is written in several pieces: write the records anew")
    return key, lists[0] if lists else None


def _fields(data: Data, begin: int, end: int) -> Iterator[_Span]:
    """Yield the fields of a message: the tag, and where the value begins and ends.

    Raises:
        _ExampleError: if it is not a message.
    """
    while begin < end:
        tag, start, begin = _skip(data, begin, end)
        yield tag, start, begin


def _skip(data: Data, begin: int, end: int) -> _Span:
    tag, start = _varint(data, begin)
    kind = tag & 7
    if kind == 2:
        size, start = _varint(data, start)
        stop = start + size
    elif kind == 0:
        stop = _varint(data, start)[1]
    elif kind in (1, 5):
        stop = start + (8 if kind == 1 else 4)
    else:
        raise _ExampleError("it has a group, or is no message of protobuf")
    if stop > end or tag < 8:
        raise _ExampleError("it is no message of protobuf")
    return tag, start, stop


def _varint(data: Data, begin: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while shift < 70:
        byte = data[begin]
        begin += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, begin
        shift += 7
    raise _ExampleError("a number has more than ten bytes")


class _Gatherer(Protocol):
    """Gathers one feature of the records of a batch."""

    def add(self, data: Data, position: int, span: _Span | None) -> None:
        """Add the feature of a record that lies at `position` in the file."""

    def values(self, reader: FileReader) -> Places | Column:
        """Return the feature of all records."""


def _gatherer(leaf: Leaf, fill: Any) -> _Gatherer:
    if not leaf.is_numeric:
        return _BytesGatherer(fill is not None)
    if leaf.dtype == "float32" and not (leaf.is_fixed and leaf.row_bytes <= _SMALL_BYTES):
        return _FloatsGatherer(leaf)
    return _NumbersGatherer(leaf, fill if leaf.shape == () else None)


def _content(span: _Span | None, dtype: str) -> tuple[int, int]:
    if span is None:
        raise _LackError("the record has no such feature: give features without it")
    if span[0] != _LIST_OF_DTYPE[dtype]:
        raise _ExampleError(f"it is a {_KINDS[span[0]]}, not the {_KINDS[_LIST_OF_DTYPE[dtype]]} of {dtype}")
    return span[1], span[2]


def _packed(data: Data, begin: int, end: int) -> int:
    """Return where the only value of a list begins that fills it, or -1."""
    if begin == end or data[begin] != _FIELD_1:
        return -1
    size, start = data[begin + 1], begin + 2
    if size > 127:
        size, start = _varint(data, begin + 1)
    return start if start + size == end else -1


class _BytesGatherer:
    def __init__(self, is_lenient: bool) -> None:
        self._is_lenient = is_lenient
        self._positions: list[int] = []
        self._lengths: list[int] = []

    def add(self, data: Data, position: int, span: _Span | None) -> None:
        begin, end = _content(span, BYTES)
        start = _packed(data, begin, end)
        if self._is_lenient and begin == end:
            start = end
        elif start < 0:
            count = sum(tag == _FIELD_1 for tag, _, _ in _fields(data, begin, end))
            raise _ExampleError(f"it has {count} values, not one: give features without it")
        self._positions.append(position + start)
        self._lengths.append(end - start)

    def values(self, reader: FileReader) -> Places | Column:
        return Places(np.array(self._positions, np.int64), np.array(self._lengths, np.int64))


class _FloatsGatherer:
    """Gathers floats where they lie, unless one of the lists does not lie in one piece."""

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf
        self._positions: list[int] = []
        self._counts: list[int] = []
        self._decoded: dict[int, NDArray[Any]] = {}

    def add(self, data: Data, position: int, span: _Span | None) -> None:
        begin, end = _content(span, "float32")
        start = _packed(data, begin, end) if begin < end else end
        count = (end - start) // 4
        if start < 0 or (end - start) % 4:
            values = _decode(data, begin, end, self._leaf.dtype)
            self._decoded[len(self._positions)] = values
            count, start = len(values), begin
        _shape(self._leaf, count)
        self._positions.append(position + start)
        self._counts.append(count)

    def values(self, reader: FileReader) -> Places | Column:
        if not self._decoded:
            counts = np.array(self._counts, np.int64)
            return Places(np.array(self._positions, np.int64), counts * 4, self._shapes(counts))
        rows = []
        for k, (position, count) in enumerate(zip(self._positions, self._counts, strict=True)):
            values = self._decoded.get(k)
            if values is None:
                values = reader.array(position, "<f4", count)
            rows.append(values.reshape(_shape(self._leaf, count)))
        return np.stack(rows) if self._leaf.is_fixed else rows

    def _shapes(self, counts: Int64s) -> Int64s:
        sizes = self._leaf.shape or ()
        others = math.prod(size for size in sizes if size is not None)
        shapes = np.empty((len(counts), 1 + len(sizes)), np.int64)
        shapes[:, 0] = len(sizes)
        for axis, size in enumerate(sizes):
            shapes[:, 1 + axis] = counts // others if size is None else size
        return shapes


class _NumbersGatherer:
    """Gathers numbers that are decoded: integers, and floats of small fixed shapes."""

    def __init__(self, leaf: Leaf, fill: Any) -> None:
        self._leaf = leaf
        self._fill = fill
        self._is_scalar = leaf.shape == ()
        self._is_label = self._is_scalar and leaf.dtype == "int64"
        self._rows: list[Any] = []

    def add(self, data: Data, position: int, span: _Span | None) -> None:
        begin, end = _content(span, self._leaf.dtype)
        # A scalar of one byte, which most labels are.
        if (
            self._is_label
            and end - begin == 3
            and data[begin : begin + 2] == b"\x0a\1"
            and data[begin + 2] < 128
        ):
            self._rows.append(data[begin + 2])
            return
        values = _decode(data, begin, end, self._leaf.dtype)
        if not len(values) and self._fill is not None:
            self._rows.append(self._fill)
            return
        shape = _shape(self._leaf, len(values))
        self._rows.append(values[0] if self._is_scalar else values.reshape(shape))

    def values(self, reader: FileReader) -> Places | Column:
        if self._leaf.is_fixed:
            return np.array(self._rows, self._leaf.dtype).reshape(-1, *self._leaf.shape or ())
        return self._rows


def _shape(leaf: Leaf, count: int) -> tuple[int, ...]:
    """Return the shape of so many values.

    Raises:
        _ExampleError: if the leaf has another number of values.
    """
    sizes = leaf.shape or ()
    others = math.prod(size for size in sizes if size is not None)
    if count % others if None in sizes else count != others:
        raise _ExampleError(f"it has {count} values, which is no array of shape {leaf.shape}")
    if count * leaf.numpy_dtype.itemsize > MAX_LEAF_BYTES:
        raise _ExampleError(f"it has {count} values, which are more than {MAX_LEAF_BYTES} bytes")
    return tuple(count // others if size is None else size for size in sizes)


def _decode(data: Data, begin: int, end: int, dtype: str) -> NDArray[Any]:
    """Return the numbers of a list, whether or not they lie in one piece."""
    found = []
    for tag, start, stop in _fields(data, begin, end):
        if dtype == "float32" and tag in (_FIELD_1, _FLOAT_1):
            if (stop - start) % 4:
                raise _ExampleError("its floats are cut")
            found.append(np.frombuffer(data[start:stop], "<f4"))
        elif dtype == "int64" and tag in (_FIELD_1, _VARINT_1):
            found.append(_integers(data, start, stop))
    return np.concatenate(found) if found else np.zeros(0, dtype)


def _integers(data: Data, begin: int, end: int) -> NDArray[np.int64]:
    """Return the integers of a packed list."""
    if end - begin <= _FEW_BYTES:
        values = []
        while begin < end:
            value, begin = _varint(data, begin)
            values.append(value & 2**64 - 1)
        if begin > end:
            raise _ExampleError("an integer is cut")
        return np.array(values, np.uint64).view(np.int64)
    content = np.frombuffer(data[begin:end], np.uint8)
    is_last = content < 128
    if not is_last[-1]:
        raise _ExampleError("an integer is cut")
    if np.count_nonzero(is_last) * 8 > MAX_LEAF_BYTES:
        raise _ExampleError(f"its integers are more than {MAX_LEAF_BYTES} bytes")
    stops = np.flatnonzero(is_last) + 1
    starts = np.concatenate((np.zeros(1, np.int64), stops[:-1]))
    sizes = stops - starts
    if sizes.max() > 10:
        raise _ExampleError("a number has more than ten bytes")
    decoded = np.zeros(len(starts), np.uint64)
    for k in range(int(sizes.max())):
        reaching = np.flatnonzero(sizes > k)
        bits = (content[starts[reaching] + k] & np.uint8(127)).astype(np.uint64)
        decoded[reaching] |= bits << np.uint64(7 * k)
    return decoded.view(np.int64)
