"""Read a foreign file in windows, say where the values of its records lie, and cut these into blocks."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from yogadl._core.columns import MAX_LEAF_BYTES
from yogadl._core.frozen import frozen
from yogadl._core.json_value import decode_foreign
from yogadl._core.protocols import Column, Int64s
from yogadl._core.spec import JSON, STR, Leaf, Spec
from yogadl._format.columns import ForeignValues
from yogadl._format.files import ForeignFile
from yogadl.errors import UnsupportedDataError

# Windows that are kept: a value, and the bytes that are hashed, may reach from one window into the next.
_KEPT_WINDOWS: Final = 3


class FileReader:
    """Reads one foreign file, mostly forwards. For one thread.

    Args:
        file: The file.
        fetch: Returns the bytes of a range, given position and length, all of them.
        window_bytes: The bytes that are fetched at once.
        sibling: Opens another file beside this one by its name, such as an index; None if there is none.
        batch_bytes: The bytes of the file whose records may make one batch; those of a window if not given.
    """

    def __init__(
        self,
        file: ForeignFile,
        fetch: Callable[[int, int], bytes | memoryview],
        *,
        window_bytes: int = 4 * 2**20,
        sibling: "Callable[[str], FileReader | None]" = lambda name: None,
        batch_bytes: int | None = None,
    ) -> None:
        self.file = file
        self.size_bytes = file.size_bytes
        self.window_bytes = window_bytes
        self.batch_bytes = batch_bytes or window_bytes
        self.sibling = sibling
        self._fetch = fetch
        self._windows: dict[int, memoryview] = {}

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return os.path.basename(self.file.address)

    def read(self, position: int, length: int) -> memoryview:
        """Return these bytes, of which several windows may be joined.

        Raises:
            UnsupportedDataError: if the file ends before.
        """
        if not 0 <= position <= position + length <= self.size_bytes:
            self.refuse(
                position, f"{length} bytes are expected there, but the file ends at {self.size_bytes}"
            )
        first, last = position // self.window_bytes, (position + max(length, 1) - 1) // self.window_bytes
        if first == last:
            start = position - first * self.window_bytes
            return self._window(first)[start : start + length]
        if last - first > 1:
            return memoryview(self._fetch(position, length))
        start = position - first * self.window_bytes
        head = bytes(self._window(first)[start:])
        return memoryview(head + bytes(self._window(last)[: length - len(head)]))

    def tail(self, length: int) -> bytes:
        """Return the last bytes of the file, without a window; fewer if it is shorter."""
        length = min(length, self.size_bytes)
        return bytes(self._fetch(self.size_bytes - length, length))

    def array(self, position: int, dtype: str, count: int) -> NDArray[Any]:
        """Return this many numbers from a position on.

        Raises:
            UnsupportedDataError: if the file ends before.
        """
        kind = np.dtype(dtype)
        if count < 0:
            self.refuse(position, f"there can't be {count} numbers")
        return np.frombuffer(self.read(position, count * kind.itemsize), kind)

    def _window(self, number: int) -> memoryview:
        found = self._windows.get(number)
        if found is None:
            start = number * self.window_bytes
            content = self._fetch(start, min(self.window_bytes, self.size_bytes - start))
            found = self._windows[number] = memoryview(content)
            if len(self._windows) > _KEPT_WINDOWS:
                del self._windows[next(iter(self._windows))]
        return found

    def refuse(self, position: int, problem: str) -> NoReturn:
        """Raise the error of a file that is not of its format, or can't be read at random.

        Raises:
            UnsupportedDataError: always.
        """
        raise UnsupportedDataError(f"{self.file.address}, byte {position}: {problem}")


@frozen
class Places:
    """The values of a field in some consecutive records, which lie in the file.

    Args:
        positions: Where each begins in the file.
        lengths: The bytes of each.
        shapes: Of arrays, the rank and sizes of each, a row each; None for bytes and str.
    """

    positions: Int64s
    lengths: Int64s
    shapes: NDArray[np.int64] | None = None


# Some consecutive records of a file: of each field, in the order of the spec, the places of its values, or
# the values themselves if they are small.
Batch = Sequence[Places | Column]


# Calls a function with the readers of some files.
LookAt = Callable[[Callable[[FileReader], Any], Sequence[ForeignFile]], Iterator[Any]]


class Format(Protocol):
    """Finds the records in files of one format. Immutable and picklable.

    Attributes:
        suffixes: The ends of the names of its files, by which they are found in a folder.
        reads_all: Whether records are found only by reading all bytes, so that large windows are faster.
        index_name: The name of the list of files that a writer of this format leaves in a folder, if any.
        beside: The ends of the names of other files that belong to those of the format.
        spec: The structure of a record; only after `of_first_file`.
    """

    suffixes: ClassVar[tuple[str, ...]]
    reads_all: ClassVar[bool] = False
    index_name: ClassVar[str | None] = None
    beside: ClassVar[tuple[str, ...]] = ()

    @property
    def spec(self) -> Spec: ...

    def matches(self, name: str) -> bool:
        """Return whether a file of this name is one of the format's, when a folder is searched for them."""
        return name.endswith(self.suffixes)

    def listed_in(self, content: bytes) -> list[tuple[str, int | None]] | None:
        """Return the names of the files that an `index_name` lists, with their sizes if it says these.

        Returns:
            The names relative to its folder; ``None`` if it is another file of that name.

        Raises:
            UnsupportedDataError: if it is damaged, or its files can't be read.
        """
        return None

    def is_cache(self, name: str) -> bool:
        """Return whether a file beside the index is one that its writer computed of the others."""
        return False

    def check_together(self, addresses: Sequence[str]) -> None:
        """Refuse files that one pattern means, but that are no records of one version.

        Raises:
            ConfigurationError: if they are not.
        """
        return

    def of_first_file(self, reader: FileReader) -> "Format":
        """Return the format with the fields of all files, which the first one decides if the user did not."""

    def of_files(self, files: Sequence[ForeignFile], each: LookAt) -> "Format":
        """Return the format with the fields of all files.

        Args:
            files: The files, one at least.
            each: Calls a function with the reader of each of some files, of several at a time if that is
                faster, and yields the results in order.
        """
        found: Format = next(each(self.of_first_file, files[:1]))
        return found

    @property
    def decoded(self) -> Any:
        """The rows that are decoded from the records, if these are groups of rows: see `DecodedRows`."""
        return None

    def with_spec(self, spec: Spec) -> "Format | None":
        """Return what `of_first_file` has returned for a version with this spec; None if that is not known.

        Only a format whose first file takes long to look at knows it.
        """
        return None

    def batches(self, reader: FileReader) -> Iterator[Batch]:
        """Yield the records of a file in order, as many at a time as are known without reading further.

        A format whose records are found by reading forwards ends a batch where a record begins in another
        stretch of `batch_bytes` than the first of the batch. If the values are read, these are the bytes of
        a window: those of the batch are then still in memory.

        Raises:
            UnsupportedDataError: if the file is damaged, or has other fields.
        """


# Cut the records of a foreign file into blocks: stretches of it, which are read, hashed and checked once.

# The most bytes of a block that is not read, unless a single value is longer.
_UNREAD_BLOCK_BYTES: Final = 2**30
# The most records whose columns are given at once.
_MOST_RECORDS: Final = 2**20

# The records of batches that are joined, unless one batch has more.
_JOINED_RECORDS: Final = 2**16

Columns = list[Column | ForeignValues]


def joined(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Join the batches of a file to larger ones, for which its bytes need not be in memory any more."""
    held: list[Batch] = []
    count = 0
    for batch in batches:
        if held and (count >= _JOINED_RECORDS or _kinds(batch) != _kinds(held[0])):
            yield _joined(held)
            held, count = [], 0
        held.append(batch)
        count += _count_of(batch)
    if held:
        yield _joined(held)


def _count_of(batch: Batch) -> int:
    first: Any = batch[0]
    return len(first.lengths if isinstance(first, Places) else first)


def _kinds(batch: Batch) -> list[Any]:
    """Return what must be the same in batches that are joined."""
    return [
        (each.shapes is None or each.shapes.shape[1])
        if isinstance(each, Places)
        else isinstance(each, np.ndarray) and (each.dtype, each.shape[1:])
        for each in batch
    ]


def _joined(batches: Sequence[Batch]) -> Batch:
    return batches[0] if len(batches) == 1 else [_joined_field(field) for field in zip(*batches, strict=True)]


def _joined_field(pieces: Sequence[Any]) -> Places | Column:
    first = pieces[0]
    if isinstance(first, Places):
        names = ("positions", "lengths") if first.shapes is None else ("positions", "lengths", "shapes")
        return Places(*[np.concatenate([getattr(each, name) for each in pieces]) for name in names])
    if isinstance(first, np.ndarray):
        return np.concatenate(pieces)
    return [value for each in pieces for value in each]


def columns_of(batch: Batch, spec: Spec, reader: FileReader, *, is_read: bool) -> Iterator[Columns]:
    """Yield the columns of consecutive records, of each run of records whose values lie in one block.

    Args:
        batch: The records.
        spec: The structure of a record.
        reader: The file.
        is_read: Whether the values are read, to hash them. The blocks then lie in the windows of the file, so
            that each byte is fetched once.

    Raises:
        UnsupportedDataError: if values lie outside of the file, in another order than the records, or share
            bytes.
    """
    leaves = [field.leaf for field in spec.fields]
    places = {number: each for number, each in enumerate(batch) if isinstance(each, Places)}
    count = _count_of(batch)
    located = [_Located(reader, each) for each in places.values()]
    first = 0
    while first < count:
        end = min([count, first + _MOST_RECORDS, *(each.end_of_block(first, is_read) for each in located)])
        blocks = _blocks(reader, located, first, end, is_read=is_read)
        foreign = dict(zip(places, zip(located, blocks, strict=True), strict=True))
        own: Any = batch
        yield [
            _column(leaf, *foreign[number], first, end) if number in foreign else own[number][first:end]
            for number, leaf in enumerate(leaves)
        ]
        first = end


class _Located:
    """The values of one field in a batch, with the place of each checked.

    Attributes:
        ends: Where the values up to each one end.
        starts: Where the first value that has bytes begins, of those from each one on.
    """

    def __init__(self, reader: FileReader, places: Places) -> None:
        self.reader = reader
        self.positions = np.asarray(places.positions, np.int64)
        self.lengths = np.asarray(places.lengths, np.int64)
        self.shapes = np.zeros((len(self.lengths), 1), np.int64) if places.shapes is None else places.shapes
        full = np.flatnonzero(self.lengths)
        begin, size = self.positions[full], self.lengths[full]
        wrong = (begin < 0) | (size < 0) | (size > MAX_LEAF_BYTES) | (begin > reader.size_bytes - size)
        if wrong.any():
            number = int(np.argmax(wrong))
            reader.refuse(int(begin[number]), f"there can't be a value of {size[number]} bytes")
        wrong = begin[1:] < (begin + size)[:-1]
        if wrong.any():
            reader.refuse(
                int(begin[1:][wrong][0]),
                "a record lies before the one that it follows, or shares bytes with it: such files are not "
                "adopted; submit their records",
            )
        self.ends = np.zeros(len(self.lengths), np.int64)
        self.ends[full] = begin + size
        self.ends = np.maximum.accumulate(self.ends)
        following = np.searchsorted(full, np.arange(len(self.lengths)))
        self.starts = np.append(begin, reader.size_bytes)[following]

    def end_of_block(self, first: int, is_read: bool) -> int:
        """Return the number after the last record that a block from record `first` on can have."""
        start = int(self.starts[first])
        if is_read:  # the values in one window, or one value that reaches into the next window
            window_bytes = self.reader.window_bytes
            limit = (start // window_bytes + 1) * window_bytes
        else:
            limit = start + _UNREAD_BLOCK_BYTES
        return max(first + 1, int(np.searchsorted(self.ends, limit, side="right")))

    def stretch(self, first: int, end: int) -> tuple[int, int]:
        """Return where the values of these records begin and end; equal if they have no bytes."""
        start = int(self.starts[first])
        return start, max(start, int(self.ends[end - 1]))


def _blocks(
    reader: FileReader, located: Sequence[_Located], first: int, end: int, *, is_read: bool
) -> list[tuple[int, int, int, NDArray[np.uint8] | None]]:
    """Return the block of each field: position, length, checksum, bytes. Fields that interleave share one."""
    stretches = [each.stretch(first, end) for each in located]
    order = sorted(range(len(stretches)), key=stretches.__getitem__)
    found: list[Any] = [None] * len(stretches)
    members: list[int] = []
    start = stop = 0
    for number in [*order, -1]:
        if number >= 0 and members and stretches[number][0] < stop:
            stop = max(stop, stretches[number][1])
            members.append(number)
            continue
        if members:
            data = np.frombuffer(reader.read(start, stop - start), np.uint8) if is_read else None
            block = start, stop - start, 0 if data is None else xxh3_64_intdigest(data.data), data
            for member in members:
                found[member] = block
        if number >= 0:
            (start, stop), members = stretches[number], [number]
    return found


def _check_json(
    reader: FileReader, position: int, data: NDArray[np.uint8], starts: Int64s, lengths: Int64s
) -> None:
    content = bytes(data)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        try:
            decode_foreign(content[start : start + length])
        except ValueError as error:
            reader.refuse(position + start, f"the line there is no JSON, or has no exact form here: {error}")


def _check_texts(
    reader: FileReader, position: int, data: NDArray[np.uint8], starts: Int64s, lengths: Int64s
) -> None:
    content = bytes(data)
    if content.isascii():
        return
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        try:
            content[start : start + length].decode()
        except UnicodeDecodeError as error:
            reader.refuse(
                position + start,
                f"a text there is not UTF-8 ({error.reason}): write it anew, or, of a tf.train.Example, take "
                "the feature as bytes",
            )


def _column(
    leaf: Leaf, located: _Located, block: tuple[int, int, int, Any], first: int, end: int
) -> ForeignValues:
    position, length, checksum, data = block
    lengths = located.lengths[first:end]
    starts: Int64s = np.where(lengths > 0, located.positions[first:end] - position, 0)
    shapes = located.shapes[first:end]
    if leaf.dtype == STR and data is not None:
        _check_texts(located.reader, position, data, starts, lengths)
    if leaf.dtype == JSON and data is not None:
        _check_json(located.reader, position, data, starts, lengths)
    return ForeignValues(
        located.reader.file, position, length, checksum, data, starts, lengths, shapes, not leaf.is_numeric
    )
