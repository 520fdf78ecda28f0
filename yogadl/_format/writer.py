"""Write columns into sealed parts: immutable LMDB files, each with an index of where its blocks lie."""

import contextlib
import ctypes
import errno
import hashlib
import mmap
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lmdb
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from yogadl._format.columns import (
    ENTRY_DTYPE,
    ENTRY_WORDS,
    FixedRows,
    HeapValues,
    StoredColumn,
    as_heap,
    entry_words,
    stored_column,
)
from yogadl._format.fingerprint import RunHash, hash_run
from yogadl._format.layout import (
    BLOCK_BYTES,
    PAGE_HEADER_BYTES,
    BlockKind,
    Blocks,
    FieldIndex,
    PartIndex,
    SealedPart,
)
from yogadl._leaf import BadValueError, Leaf, refuse
from yogadl._spec import Spec
from yogadl.errors import ConfigurationError, StorageError

# What is put between two commits stays in memory, so commit every so often.
_COMMIT_BYTES: Final = 32 * 2**20
# Room in the map for the B-tree's own pages, a few bytes a block.
_MAP_SLACK_BYTES: Final = 64 * 2**20
# With less than this free, an input/output error means a full disk.
_FULL_BYTES: Final = 2 * _COMMIT_BYTES


@dataclass
class _BlockList:
    """The blocks put so far of one field and kind."""

    keys: list[bytes]
    lengths: list[int]
    checksums: list[int]

    @staticmethod
    def empty() -> "_BlockList":
        return _BlockList([], [], [])


class PartWriter:
    """Write one part. Not thread-safe; one writer, one process.

    Args:
        path: The file to make; it must not exist.
        leaves: The fields in order, already widened as far as is known.
        shapes: For each field the shape of its values in this part, or ``None`` to store it as varying.
    """

    def __init__(self, path: Path, leaves: Sequence[Leaf], shapes: Sequence[tuple[int, ...] | None]) -> None:
        self.path = path
        self.shapes = tuple(shapes)
        self.records = 0
        self.size_bytes = 0
        self._run = RunHash()
        self._database = _Database(path)
        self._fields = [
            _FieldWriter(self._database, number, leaf, shape)
            for number, (leaf, shape) in enumerate(zip(leaves, shapes, strict=True))
        ]

    def write(self, columns: Sequence[StoredColumn], count: int, hashed: Future[RunHash]) -> int:
        """Append `count` records whose columns fit the part's shapes; return the bytes they take."""
        size = 0
        for field, column in zip(self._fields, columns, strict=True):
            size += field.write(column, self.records)
        self.size_bytes += size
        self.records += count
        self._run = self._run.then(hashed.result())
        return size

    def seal(self) -> SealedPart:
        """Finish the file, check that a plain mmap finds every block, and return its names.

        The file and its content are on the disk when this returns.

        Raises:
            StorageError: if the disk is full or does not give back what was written.
        """
        for field in self._fields:
            field.flush()
        self._database.close()
        try:
            with self.path.open("rb") as file, ThreadPoolExecutor(1) as pool:
                synced = pool.submit(os.fsync, file.fileno())
                sealed = self._inspect(file.fileno())
                synced.result()
        except OSError as error:
            raise disk_error(error, self.path) from error
        return sealed

    def abandon(self) -> None:
        """Drop the unfinished file."""
        self._database.abandon()

    def _inspect(self, descriptor: int) -> SealedPart:
        size = os.fstat(descriptor).st_size
        with (
            mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
            ThreadPoolExecutor(1) as pool,
        ):
            digest = pool.submit(lambda: hashlib.sha256(view).hexdigest())
            lengths = {key: size for field in self._fields for key, size in field.block_lengths()}
            found = _find_blocks(self.path, view, lengths)
            fields = tuple(field.index(found) for field in self._fields)
            sha256 = digest.result()
        index = PartIndex(size, self._run, fields)
        content = index.to_file().to_bytes()
        write_synced(self.path.with_suffix(".idx"), content)
        return SealedPart(sha256, hashlib.sha256(content).hexdigest(), index)


def _find_blocks(path: Path, view: memoryview, lengths: dict[bytes, int]) -> dict[bytes, tuple[int, int]]:
    """Return position and checksum of every block in the file, each compared with what LMDB returns."""
    found: dict[bytes, tuple[int, int]] = {}
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=True) as database:
        page_bytes = database.stat()["psize"]
        with database.begin(buffers=True) as transaction:
            for key, length in lengths.items():
                value: Any = transaction.get(key)  # a buffer; a key that is missing fails just below
                address = np.frombuffer(value, np.uint8).ctypes.data
                # The header of the value's first page begins with that page's number.
                page = int.from_bytes(ctypes.string_at(address - PAGE_HEADER_BYTES, 8), "little")
                position = page * page_bytes + PAGE_HEADER_BYTES
                checksum = xxh3_64_intdigest(value[:length])
                if xxh3_64_intdigest(view[position : position + length]) != checksum:
                    raise StorageError(
                        f"{path}: a block is not where LMDB says it is; this is a bug, please report it"
                    )
                found[key] = (position, checksum)
    return found


class _Database:
    """An LMDB file being filled, in transactions of bounded size."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._uncommitted_bytes = 0
        self._size_bytes = _MAP_SLACK_BYTES
        try:
            # No writemap: on a full disk it ends in SIGBUS instead of an error. No sync: seal does it once.
            self._environment = lmdb.open(
                str(path),
                subdir=False,
                map_size=self._size_bytes,
                lock=False,
                sync=False,
                metasync=False,
                max_dbs=0,
            )
        except lmdb.Error as error:
            raise disk_error(error, path) from error
        self.page_bytes: int = self._environment.stat()["psize"]
        self._transaction = self._environment.begin(write=True)

    def put(self, key: bytes, value: Any) -> None:  # value: any contiguous buffer
        """Store a value; it gets pages of its own."""
        size = len(value)
        try:
            if self._uncommitted_bytes + size > _COMMIT_BYTES:
                self._commit(size)
            if not self._transaction.put(key, value, overwrite=False):
                raise StorageError(
                    f"{self._path}: block {key!r} was put twice; this is a bug, please report it"
                )
        except lmdb.Error as error:
            raise disk_error(error, self._path) from error
        self._uncommitted_bytes += size
        self._size_bytes += size + self.page_bytes

    def _commit(self, next_bytes: int) -> None:
        self._transaction.commit()
        self._uncommitted_bytes = 0
        # The map may only grow between transactions; ask for a transaction's worth and one large value.
        self._environment.set_mapsize(self._size_bytes + _MAP_SLACK_BYTES + 2 * next_bytes)
        self._transaction = self._environment.begin(write=True)

    def close(self) -> None:
        try:
            self._transaction.commit()
            self._environment.close()
        except lmdb.Error as error:
            raise disk_error(error, self._path) from error

    def abandon(self) -> None:
        with contextlib.suppress(lmdb.Error):  # a transaction whose commit failed is gone already
            self._transaction.abort()
        self._environment.close()
        self._path.unlink(missing_ok=True)


class _FieldWriter:
    """Cut one field's values into blocks."""

    def __init__(self, database: _Database, number: int, leaf: Leaf, shape: tuple[int, ...] | None) -> None:
        self._leaf = leaf
        self._shape = shape
        self._database = database
        self._number = number
        self.row_bytes = 4 * entry_words(leaf) if shape is None else _bytes_of(leaf, shape)
        self._rows_per_block = max(1, BLOCK_BYTES // max(1, self.row_bytes))
        self._pending: list[NDArray[np.uint8]] = []
        self._pending_rows = 0
        self._heap: list[bytes] = []
        self._heap_bytes = 0
        self._elements = 0
        self._heap_first_record: list[int] = []
        self._heap_first_element: list[int] = []
        self._blocks: dict[BlockKind, _BlockList] = {"rows": _BlockList.empty(), "heap": _BlockList.empty()}

    def write(self, column: StoredColumn, first_record: int) -> int:
        """Append a column; return how many bytes it takes."""
        if self._shape is not None:
            assert isinstance(column, FixedRows) and column.shape == self._shape
            first = column.shape[0] if column.shape else 1
            self._elements += first * len(column)
            self._write_rows(column.rows)
            return column.rows.size
        values = as_heap(column)
        entries = self._write_values(values, first_record)
        self._write_rows(entries.view(np.uint8).reshape(len(values), self.row_bytes))
        return entries.nbytes + int(values.sizes().sum())

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
            # A copy: the caller may reuse its array, and a view would keep all of it alive.
            self._pending.append(rows[start:].copy())
            self._pending_rows += len(rows) - start

    def _put_rows(self) -> None:
        pieces, self._pending, self._pending_rows = self._pending, [], 0
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        self._put("rows", whole.reshape(-1).data)

    def _write_values(self, column: HeapValues, first_record: int) -> NDArray[np.uint32]:
        entries = np.zeros((len(column), self.row_bytes // 4), ENTRY_DTYPE)
        elements = column.elements().tolist()
        block = len(self._blocks["heap"].keys)
        placed = []
        for number, value in enumerate(column.values):
            size = len(value)
            if self._heap and self._heap_bytes + size > BLOCK_BYTES:
                self._put_heap()
                block += 1
            if not self._heap:
                self._heap_first_record.append(first_record + number)
                self._heap_first_element.append(self._elements)
            placed.append((block, self._heap_bytes, size))
            # Bytes, since a view would keep alive, or follow, an array that is the caller's to reuse.
            self._heap.append(bytes(value))
            self._heap_bytes += size
            self._elements += elements[number]
        if placed:
            entries[:, :ENTRY_WORDS] = placed
            self._write_shapes(entries, column.shapes)
        return entries

    def _write_shapes(self, entries: NDArray[np.uint32], shapes: list[tuple[int, ...]]) -> None:
        if entries.shape[1] == ENTRY_WORDS:
            return
        entries[:, ENTRY_WORDS] = [len(shape) for shape in shapes]
        if self._leaf.shape is not None:
            entries[:, ENTRY_WORDS + 1 :] = shapes
            return
        for entry, shape in zip(entries, shapes, strict=True):
            entry[ENTRY_WORDS + 1 : ENTRY_WORDS + 1 + len(shape)] = shape

    def _put_heap(self) -> None:
        values, self._heap, self._heap_bytes = self._heap, [], 0
        self._put("heap", b"".join(values))

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
        """Put what is left as short blocks."""
        if self._pending:
            self._put_rows()
        if self._heap:
            self._put_heap()

    def block_lengths(self) -> list[tuple[bytes, int]]:
        """Return key and length of every block put."""
        return [
            pair for blocks in self._blocks.values() for pair in zip(blocks.keys, blocks.lengths, strict=True)
        ]

    def index(self, found: dict[bytes, tuple[int, int]]) -> FieldIndex:
        """Return how the field lies, from the positions found in the sealed file.

        Raises:
            StorageError: if the file does not hold what was put.
        """
        return FieldIndex(
            stored="varying" if self._shape is None else "fixed",
            shape=self._shape or (),
            row_bytes=self.row_bytes,
            rows_per_block=self._rows_per_block,
            elements=self._elements,
            rows=self._found_blocks("rows", found),
            heap=self._found_blocks("heap", found),
            heap_first_record=np.array(self._heap_first_record, np.int64),
            heap_first_element=np.array(self._heap_first_element, np.int64),
        )

    def _found_blocks(self, kind: BlockKind, found: dict[bytes, tuple[int, int]]) -> Blocks:
        blocks = self._blocks[kind]
        positions = []
        for key, checksum in zip(blocks.keys, blocks.checksums, strict=True):
            position, found_checksum = found[key]
            if found_checksum != checksum:
                raise StorageError(
                    f"block {key.decode()} came back from the disk changed; check the disk, build again"
                )
            positions.append(position)
        return Blocks(
            np.array(positions, np.int64),
            np.array(blocks.lengths, np.int64),
            np.array(blocks.checksums, np.uint64),
        )


def _bytes_of(leaf: Leaf, shape: tuple[int, ...]) -> int:
    return leaf.numpy_dtype.itemsize * int(np.prod(shape, dtype=np.int64))


class CacheWriter:
    """Write columns of any source into one part after another, widening the spec as shapes turn out to vary.

    Not thread-safe. Records are hashed on a second thread while LMDB copies.

    Args:
        folder: Where unfinished parts are made; on the file system of the finished ones.
        spec: What is known of the records; widened by `write`.
        part_bytes: A part is sealed before it would hold more than this.
        on_sealed: Called with the path of each sealed part, whose ``.idx`` lies beside it.
        first_record: How many records of this source are sealed already.
    """

    def __init__(
        self,
        folder: Path,
        spec: Spec,
        *,
        part_bytes: int,
        on_sealed: Callable[[Path, SealedPart], None],
        first_record: int = 0,
    ) -> None:
        if part_bytes < 1:
            raise ConfigurationError(f"part_bytes must be positive, not {part_bytes}")
        self.spec = spec
        self.records = first_record
        self.size_bytes = 0
        self._folder = folder
        self._part_bytes = part_bytes
        self._on_sealed = on_sealed
        self._part: PartWriter | None = None
        self._sealed = 0
        self._hasher = ThreadPoolExecutor(1)

    def write(self, columns: Sequence[NDArray[Any] | list[Any]]) -> None:
        """Append records, one column a field as `column_of` makes them.

        Raises:
            UnsupportedDataError: if a value can't be stored; names field and record.
            StorageError: if the disk fails or is full.
        """
        stored = []
        leaves = []
        for field, column in zip(self.spec.fields, columns, strict=True):
            try:
                stored.append(stored_column(field.leaf, column))
            except BadValueError as error:
                raise refuse(field.name, self.records + error.position, error.problem) from None
            leaves.append(_widened(field.leaf, stored[-1]))
        if leaves != [field.leaf for field in self.spec.fields]:
            self._widen(leaves)
        self._write_stored(stored, len(stored[0]) if stored else 0)

    def _widen(self, leaves: list[Leaf]) -> None:
        # A part in progress keeps its spec: how a field is stored is decided part by part.
        self._seal_part()
        self.spec = self.spec.with_leaves(leaves)

    def _write_stored(self, columns: list[StoredColumn], count: int) -> None:
        start = 0
        while start < count:
            rest = [column[start:] for column in columns]
            part = self._part or self._open_part(rest)
            if any(
                shape is not None and not (isinstance(column, FixedRows) and column.shape == shape)
                for shape, column in zip(part.shapes, rest, strict=True)
            ):
                self._seal_part()
                continue
            fitting = self._fitting(rest, count - start)
            if fitting == 0:
                self._seal_part()
                continue
            piece = [column[:fitting] for column in rest]
            hashed = self._hasher.submit(_hash_columns, piece, fitting)
            self.size_bytes += part.write(piece, fitting, hashed)
            self.records += fitting
            start += fitting

    def _fitting(self, columns: list[StoredColumn], count: int) -> int:
        """Return how many of these records the part in progress still takes; at least one if it is empty."""
        assert self._part is not None
        sizes: Any = sum(column.sizes() for column in columns)
        room = self._part_bytes - self._part.size_bytes
        if isinstance(sizes, np.ndarray):
            fitting = int(np.searchsorted(np.cumsum(sizes), room, side="right"))
        else:
            fitting = count if sizes == 0 else room // sizes
        return min(count, max(fitting, 1 if self._part.records == 0 else 0))

    def _open_part(self, columns: list[StoredColumn]) -> PartWriter:
        leaves = [field.leaf for field in self.spec.fields]
        shapes = [
            column.shape if leaf.is_fixed and isinstance(column, FixedRows) else None
            for leaf, column in zip(leaves, columns, strict=True)
        ]
        self._part = PartWriter(self._folder / f"part-{self._sealed:06d}.mdb", leaves, shapes)
        return self._part

    def _seal_part(self) -> None:
        if self._part is None:
            return
        part, self._part = self._part, None
        if part.records == 0:
            part.abandon()
            return
        sealed = part.seal()
        self._sealed += 1
        self._on_sealed(part.path, sealed)

    def finish(self) -> None:
        """Seal the last part."""
        self._seal_part()
        self._hasher.shutdown()

    def abandon(self) -> None:
        """Drop the part in progress; sealed parts stay."""
        if self._part is not None:
            self._part.abandon()
            self._part = None
        self._hasher.shutdown()


def _hash_columns(columns: Sequence[StoredColumn], count: int) -> RunHash:
    return hash_run([column.hashes() for column in columns], count)


def _widened(leaf: Leaf, column: StoredColumn) -> Leaf:
    if isinstance(column, FixedRows):
        return leaf.widened(column.shape)
    for shape in set(column.shapes):
        leaf = leaf.widened(shape)
    return leaf


def write_synced(path: Path, content: bytes) -> None:
    """Write a small file so that its content is on the disk when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def disk_error(error: Exception, path: Path) -> StorageError:
    """Translate an error of LMDB or the file system, saying so when the disk is full."""
    free_bytes = shutil.disk_usage(path.parent).free
    # LMDB reports a full disk as an input/output error, so look.
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or free_bytes < _FULL_BYTES:
        return StorageError(
            errno.ENOSPC,
            f"the disk is full ({free_bytes / 2**20:.0f} MiB free): make room and build again",
            str(path),
        )
    return StorageError(getattr(error, "errno", None) or errno.EIO, f"writing failed: {error}", str(path))
