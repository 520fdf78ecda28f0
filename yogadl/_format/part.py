"""Write one part, an immutable file of blocks with an index of their places, and check it when it is full."""

import contextlib
import ctypes
import errno
import hashlib
import mmap
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lmdb
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from yogadl._core.spec import Leaf
from yogadl._format.codec import RAW, ZSTD, Encoder
from yogadl._format.columns import FixedRows, ForeignValues, HeapValues, RunHash, StoredColumn, as_heap
from yogadl._format.fields import ENTRY_DTYPE, ENTRY_WORDS, entry_words
from yogadl._format.files import ForeignFile
from yogadl._format.layout import (
    HEAP_BLOCK_BYTES,
    PAGE_HEADER_BYTES,
    BlockKind,
    BlockRanges,
    FieldIndex,
    PartIndex,
    SealedPart,
    rows_per_block,
)
from yogadl._workers.serial import SerialExecutor
from yogadl.errors import StorageError

# An input/output error means a full disk if less than this is free.
_FULL_BYTES: Final = 64 * 2**20


@dataclass(frozen=True)
class InspectedFile:
    """A filled file: its size, its sha256, and the position and checksum of every block by key."""

    size_bytes: int
    sha256: str
    blocks: dict[bytes, tuple[int, int]]


def inspect_file(path: Path, lengths: dict[bytes, int]) -> InspectedFile:
    """Find and hash every block of a file through a plain mmap.

    Raises:
        StorageError: if the file is gone or does not hold these blocks.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
            SerialExecutor() as pool,
        ):
            digest = pool.submit(lambda: hashlib.sha256(view).hexdigest())
            blocks = _find_blocks(path, view, lengths)
            return InspectedFile(len(view), digest.result(), blocks)
    except StorageError:
        raise
    except (OSError, lmdb.Error) as error:
        raise disk_error(error, path) from error


def _find_blocks(path: Path, view: memoryview, lengths: dict[bytes, int]) -> dict[bytes, tuple[int, int]]:
    found: dict[bytes, tuple[int, int]] = {}
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=True) as database:
        page_bytes = database.stat()["psize"]
        with database.begin(buffers=True) as transaction:
            for key, length in lengths.items():
                value: Any = transaction.get(key)  # a buffer; a missing key fails just below
                address = np.frombuffer(value, np.uint8).ctypes.data
                # The header of the value's first page begins with that page's number.
                page = int.from_bytes(ctypes.string_at(address - PAGE_HEADER_BYTES, 8), "little")
                position = page * page_bytes + PAGE_HEADER_BYTES
                ends = slice(0, min(length, 64)), slice(max(0, length - 64), length)
                # The view is released here in any case: a view left in a traceback would keep the map from
                # closing.
                with view[position : position + length] as block:
                    # LMDB maps the same file, so the page number gives the same bytes; the ends are compared
                    # to be sure.
                    if any(bytes(value[end]) != bytes(block[end]) for end in ends):
                        raise StorageError(
                            f"{path}: a block is not where LMDB says it is; this is a bug, please report it"
                        )
                    found[key] = (position, xxh3_64_intdigest(block))
    return found


def disk_error(error: Exception, path: Path) -> StorageError:
    """Translate an error of LMDB or the file system; the result tells if the disk is full."""
    try:
        free_bytes = shutil.disk_usage(path.parent).free
    except OSError as folder_error:
        return StorageError(
            folder_error.errno or errno.EIO,
            f"writing failed: {error}; the folder can't be read either: check that its disk is still mounted",
            str(path),
        )
    # LMDB may report a full disk as an input/output error, so the free space is checked.
    number = error.errno if isinstance(error, OSError) else None
    is_full = number in (errno.ENOSPC, errno.EDQUOT) or free_bytes < _FULL_BYTES
    if is_full or isinstance(error, lmdb.DiskError):
        return StorageError(
            errno.ENOSPC,
            f"the disk is full ({free_bytes / 2**20:.0f} MiB free): make room and build again",
            str(path),
        )
    return StorageError(number or errno.EIO, f"writing failed: {error}", str(path))


def write_synced(path: Path, content: bytes) -> None:
    """Write a small file; its content is on the disk when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


_LARGE_ROW_BYTES: Final = 1024
# The bytes put between two commits, which stay in memory until the commit writes them out at once. The page
# cache keeps a large write in pages of 2 MiB if it can, which makes gathering 3 KB rows a tenth faster
# (benchmarks/gather.py). A small commit is written while its data is in the processor's cache, which makes
# building small rows a third faster (benchmarks/build.py).
LARGE_COMMIT_BYTES: Final = 32 * 2**20
SMALL_COMMIT_BYTES: Final = 4 * 2**20
# The room in the map for the data between two commits; the B-tree's own pages get as much again.
_MAP_ROOM_BYTES: Final = 64 * 2**20


class Database:
    """An LMDB file being filled, in transactions of bounded size."""

    def __init__(self, path: Path, commit_bytes: int) -> None:
        self._path = path
        self._commit_bytes = commit_bytes
        self._uncommitted_bytes = 0
        self._used_bytes = 0
        self._room_bytes = _MAP_ROOM_BYTES
        try:
            # No writemap: with it, a full disk raises SIGBUS instead of an error. No sync: seal syncs once.
            self._environment = lmdb.open(
                str(path),
                subdir=False,
                map_size=2 * _MAP_ROOM_BYTES,
                lock=False,
                sync=False,
                metasync=False,
                max_dbs=0,
            )
        except lmdb.Error as error:
            path.unlink(missing_ok=True)
            raise disk_error(error, path) from error
        self.page_bytes: int = self._environment.stat()["psize"]
        self._transaction = self._environment.begin(write=True)

    def put(self, key: bytes, value: Any) -> None:  # value: any contiguous buffer
        """Store a value on pages of its own."""
        size = len(value)
        # A value takes whole pages, with a header before it; a small value may take twice its size.
        pages_bytes = -(-(PAGE_HEADER_BYTES + size) // self.page_bytes) * self.page_bytes
        try:
            if self._uncommitted_bytes + size > self._commit_bytes or pages_bytes > self._room_bytes:
                self._commit(pages_bytes)
            if not self._transaction.put(key, value, overwrite=False):
                raise StorageError(
                    f"{self._path}: block {key!r} was put twice; this is a bug, please report it"
                )
        except lmdb.Error as error:
            raise disk_error(error, self._path) from error
        self._uncommitted_bytes += size
        self._used_bytes += pages_bytes
        self._room_bytes -= pages_bytes

    def _commit(self, next_bytes: int) -> None:
        self._transaction.commit()
        self._uncommitted_bytes = 0
        # The map may only grow between transactions, so it gets room for a transaction and one large value.
        self._room_bytes = _MAP_ROOM_BYTES + next_bytes
        self._environment.set_mapsize(self._used_bytes + self._room_bytes + _MAP_ROOM_BYTES)
        self._transaction = self._environment.begin(write=True)

    def close(self) -> None:
        try:
            self._transaction.commit()
            self._environment.close()
        except lmdb.Error as error:
            raise disk_error(error, self._path) from error

    def abandon(self) -> None:
        with contextlib.suppress(lmdb.Error):  # a transaction whose commit failed is already gone
            self._transaction.abort()
        self._environment.close()
        self._path.unlink(missing_ok=True)


class PartWriter:
    """Writes one part. Not thread-safe; for one writer in one process.

    Args:
        path: The file to create; it must not exist.
        leaves: The fields in order, as far as their shapes are known.
        shapes: For each field the shape of its values in this part, or ``None`` to store it as varying.
        block_records: The most rows of a block; a power of two.
        encoders: For each field that is stored as varying what compresses its values, or ``None``.
    """

    def __init__(
        self,
        path: Path,
        leaves: Sequence[Leaf],
        shapes: Sequence[tuple[int, ...] | None],
        block_records: int,
        encoders: Sequence[Encoder | None],
    ) -> None:
        self.path = path
        self.shapes = tuple(shapes)
        self.records = 0
        self.size_bytes = 0
        self._run = RunHash()
        self._is_weak = False
        self._foreign: dict[ForeignFile, int] = {}  # the foreign files so far, each with its number
        has_large_rows = any(
            shape is None or _row_bytes(leaf, shape) >= _LARGE_ROW_BYTES
            for leaf, shape in zip(leaves, shapes, strict=True)
        )
        self._database = Database(path, LARGE_COMMIT_BYTES if has_large_rows else SMALL_COMMIT_BYTES)
        self._fields = [
            _FieldWriter(self._database, self._foreign, number, leaf, shape, block_records, encoder)
            for number, (leaf, shape, encoder) in enumerate(zip(leaves, shapes, encoders, strict=True))
        ]

    @property
    def are_foreign(self) -> list[bool | None]:
        """Whether the values of each field lie in foreign files, or ``None`` if it has no values yet."""
        return [field.is_foreign for field in self._fields]

    def write(self, columns: Sequence[StoredColumn], count: int, hashed: Future[RunHash]) -> int:
        """Append `count` records whose columns fit the part's shapes; return their size in bytes."""
        size = 0
        for field, column in zip(self._fields, columns, strict=True):
            size += field.write(column, self.records)
            self._is_weak |= isinstance(column, ForeignValues) and column.data is None
        self.size_bytes += size
        self.records += count
        self._run = self._run.then(hashed.result())
        return size

    def close(self) -> None:
        """Write the remaining blocks; the part then takes no more records.

        Raises:
            StorageError: if the disk is full.
        """
        for field in self._fields:
            field.flush()
        self._database.close()

    def seal(self) -> SealedPart:
        """Check that a plain mmap finds every block, and return the sealed part.

        The file and its content are on the disk when this returns.

        Raises:
            StorageError: if the disk is full, or returns other data than was written.
        """
        lengths = {key: size for field in self._fields for key, size in field.block_lengths()}
        try:
            with self.path.open("rb") as part, SerialExecutor() as pool:
                synced = pool.submit(os.fsync, part.fileno())
                file = inspect_file(self.path, lengths)
                fields = tuple(field.index(file.blocks) for field in self._fields)
                index = PartIndex(file.size_bytes, self._run, fields, tuple(self._foreign), self._is_weak)
                content = index.to_file().to_bytes()
                write_synced(self.path.with_suffix(".idx"), content)
                synced.result()
        except StorageError:
            raise
        except OSError as error:
            raise disk_error(error, self.path) from error
        return SealedPart(file.sha256, hashlib.sha256(content).hexdigest(), index)

    def abandon(self) -> None:
        """Drop the unfinished file."""
        self._database.abandon()


class _BlockList:
    """The blocks of one field and kind that were put so far."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.lengths: list[int] = []
        self.checksums: list[int] = []


class _ForeignBlocks:
    """The blocks of foreign files that have the values of one field."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int, int]] = []  # the number of the file, position, length
        self.checksums: list[int] = []
        self.bytes = 0  # of the values

    def index(self) -> dict[str, Any]:
        """Return what the index of the field says of them."""
        files, positions, lengths = np.array(self.places, np.int64).reshape(-1, 3).T.copy()
        ranges = BlockRanges(positions, lengths, np.array(self.checksums, np.uint64))
        return {"heap": ranges, "heap_file": files, "raw_bytes": self.bytes}


class _FieldWriter:
    """Cuts one field's values into blocks."""

    def __init__(
        self,
        database: Database,
        foreign: dict[ForeignFile, int],
        number: int,
        leaf: Leaf,
        shape: tuple[int, ...] | None,
        block_records: int,
        encoder: Encoder | None,
    ) -> None:
        self._leaf = leaf
        self._shape = shape
        self._database = database
        self._number = number
        self._encoder = encoder
        self._raw_bytes = 0
        self._entry_words = ENTRY_WORDS + (encoder is not None)
        words = entry_words(leaf) - ENTRY_WORDS + self._entry_words
        self.row_bytes = 4 * words if shape is None else _row_bytes(leaf, shape)
        self._rows_per_block = rows_per_block(self.row_bytes, block_records)
        self._pending: list[NDArray[np.uint8]] = []
        self._pending_rows = 0
        self._heap: list[bytes | memoryview] = []
        self._heap_bytes = 0
        self._elements = 0
        self._heap_first_record: list[int] = []
        self._heap_first_element: list[int] = []
        self._blocks: dict[BlockKind, _BlockList] = {"rows": _BlockList(), "heap": _BlockList()}
        self._files = foreign
        self._foreign = _ForeignBlocks()
        self.is_foreign: bool | None = None  # whether the values so far lie in foreign files

    def write(self, column: StoredColumn, first_record: int) -> int:
        """Append a column; return its size in bytes."""
        self.is_foreign = isinstance(column, ForeignValues)
        if self._shape is not None:
            assert isinstance(column, FixedRows) and column.shape == self._shape
            first = column.shape[0] if column.shape else 1
            self._elements += first * len(column)
            self._write_rows(column.rows)
            return column.rows.size
        if isinstance(column, ForeignValues):
            size_bytes, entries = 0, self._note_places(column, first_record)
        else:
            values = as_heap(column)
            size_bytes, entries = values.size_bytes, self._write_values(values, first_record)
        self._write_rows(entries.view(np.uint8).reshape(len(column), self.row_bytes))
        return entries.nbytes + size_bytes

    def _note_places(self, column: ForeignValues, first_record: int) -> NDArray[np.uint32]:
        """Return the entries of values in a foreign file."""
        blocks, file = self._foreign, self._files.setdefault(column.file, len(self._files))
        place = file, column.position, column.length
        if not blocks.places or blocks.places[-1] != place:
            blocks.places.append(place)
            blocks.checksums.append(column.checksum)
            self._heap_first_record.append(first_record)
            self._heap_first_element.append(self._elements)
        blocks.bytes += int(column.lengths.sum())
        self._elements += int(column.elements().sum())
        entries = np.zeros((len(column), self.row_bytes // 4), ENTRY_DTYPE)
        entries[:, 0] = len(blocks.places) - 1
        entries[:, 1], entries[:, 2] = column.starts, column.lengths
        if entries.shape[1] > ENTRY_WORDS:
            entries[:, ENTRY_WORDS : ENTRY_WORDS + column.shapes.shape[1]] = column.shapes
        return entries

    def _write_rows(self, rows: NDArray[np.uint8]) -> None:
        if self.row_bytes == 0:
            return
        per_block, start = self._rows_per_block, 0
        while self._pending_rows + len(rows) - start >= per_block:
            end = start + per_block - self._pending_rows
            self._pending.append(rows[start:end])
            self._put_rows()
            start = end
        if start < len(rows):
            # A copy: the caller may reuse its array, and a view would keep the whole array alive.
            self._pending.append(rows[start:].copy())
            self._pending_rows += len(rows) - start

    def _put_rows(self) -> None:
        pieces, self._pending, self._pending_rows = self._pending, [], 0
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        self._put("rows", whole.reshape(-1).data)

    def _write_values(self, column: HeapValues, first_record: int) -> NDArray[np.uint32]:
        count = len(column)
        entries = np.zeros((count, self.row_bytes // 4), ENTRY_DTYPE)
        data, lengths, elements = column.data, column.lengths, column.elements()
        if self._encoder is not None:
            self._raw_bytes += int(lengths.sum())
            entries[:, ENTRY_WORDS] = lengths
            data, lengths = self._encoder.encode(data, lengths)
        ends = np.cumsum(lengths)
        start = 0
        while start < count:
            first = int(ends[start] - lengths[start])
            # A value larger than a block leaves no room beside it.
            room = max(0, HEAP_BLOCK_BYTES - self._heap_bytes)
            end = int(np.searchsorted(ends, first + room, side="right"))
            if end == start:
                if self._heap_bytes:
                    self._put_heap()
                    continue
                end = start + 1  # a value larger than a block gets a block of its own
            if not self._heap:
                self._heap_first_record.append(first_record + start)
                self._heap_first_element.append(self._elements)
            placed = slice(start, end)
            entries[placed, 0] = len(self._blocks["heap"].keys)
            entries[placed, 1] = ends[placed] - lengths[placed] - first + self._heap_bytes
            entries[placed, 2] = lengths[placed]
            self._heap.append(data[first : int(ends[end - 1])].data)
            self._heap_bytes += len(self._heap[-1])
            self._elements += int(elements[placed].sum())
            start = end
        # The remaining values are copied: the caller may reuse its array, and a view would keep it alive.
        self._heap = [bytes(piece) for piece in self._heap]
        first_word = self._entry_words
        if self.row_bytes > 4 * first_word:
            entries[:, first_word : first_word + column.shapes.shape[1]] = column.shapes
        return entries

    def _put_heap(self) -> None:
        values, self._heap, self._heap_bytes = self._heap, [], 0
        self._put("heap", values[0] if len(values) == 1 else b"".join(values))

    def _put(self, kind: BlockKind, value: bytes | memoryview) -> None:
        blocks = self._blocks[kind]
        key = f"{self._number:04d}.{kind}.{len(blocks.keys):08d}".encode()
        blocks.keys.append(key)
        blocks.lengths.append(len(value))
        blocks.checksums.append(xxh3_64_intdigest(value))
        if len(value) < self._database.page_bytes:
            value = bytes(value).ljust(self._database.page_bytes, b"\0")
        self._database.put(key, value)

    def flush(self) -> None:
        """Put the remaining rows and values as short blocks."""
        if self._pending:
            self._put_rows()
        if self._heap:
            self._put_heap()

    def block_lengths(self) -> list[tuple[bytes, int]]:
        """Return key and length of every block put."""
        return [
            pair for blocks in self._blocks.values() for pair in zip(blocks.keys, blocks.lengths, strict=True)
        ]

    def index(self, blocks_in_file: dict[bytes, tuple[int, int]]) -> FieldIndex:
        """Return the field's index, from the position and checksum of each block in the sealed file.

        Raises:
            StorageError: if the file does not hold the blocks that were put.
        """
        heap: dict[str, Any] = {
            "heap": self._block_ranges("heap", blocks_in_file),
            "raw_bytes": self._raw_bytes,
        }
        if self._foreign.places:
            heap = self._foreign.index()
        return FieldIndex(
            stored="varying" if self._shape is None else "fixed",
            shape=self._shape or (),
            row_bytes=self.row_bytes,
            rows_per_block=self._rows_per_block,
            elements=self._elements,
            rows=self._block_ranges("rows", blocks_in_file),
            **heap,
            heap_first_record=np.array(self._heap_first_record, np.int64),
            heap_first_element=np.array(self._heap_first_element, np.int64),
            codec=RAW if self._encoder is None else ZSTD,
            dictionary="" if self._encoder is None else self._encoder.dictionary_sha256,
        )

    def _block_ranges(self, kind: BlockKind, blocks_in_file: dict[bytes, tuple[int, int]]) -> BlockRanges:
        blocks = self._blocks[kind]
        positions = []
        for key, checksum in zip(blocks.keys, blocks.checksums, strict=True):
            position, checksum_in_file = blocks_in_file[key]
            if checksum_in_file != checksum:
                raise StorageError(
                    f"block {key.decode()} came back from the disk changed; check the disk, build again"
                )
            positions.append(position)
        return BlockRanges(
            np.array(positions, np.int64),
            np.array(blocks.lengths, np.int64),
            np.array(blocks.checksums, np.uint64),
        )


def _row_bytes(leaf: Leaf, shape: tuple[int, ...]) -> int:
    return leaf.numpy_dtype.itemsize * int(np.prod(shape, dtype=np.int64))
