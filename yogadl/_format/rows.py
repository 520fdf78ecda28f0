"""Find and read the rows of a batch: from mapped parts, by pread, or from a store by range."""

import ctypes
import errno
import itertools
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.memory import load_libc, map_memory
from yogadl._core.process import ProcessLock
from yogadl._core.protocols import Int64s
from yogadl._format.codec import Decoders
from yogadl._format.files import (
    FileId,
    HeldRows,
    OpenFile,
    PartFiles,
    most_open_files,
    read_at,
    unreadable,
)
from yogadl._format.table import PartTable
from yogadl.errors import CacheFormatError, StorageError

# Map all parts of a cache into one range of memory, so that one numpy gather reads from any of them.
#
# Each part has a slot in a reserved range of addresses and is mapped there at its first use. libc's mmap is
# called through ctypes, because Python's mmap can't place a mapping, and holds a descriptor for each. With
# 5,000 parts neither is acceptable.


_PROT_NONE: Final = 0
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x40 if sys.platform == "darwin" else 0x4000
# Typed views need aligned slots, and 64 KiB is the largest page of any supported system. The page cache keeps
# large files in pages of 2 MiB if it can, and maps them as such only at multiples of 2 MiB; this saves a
# tenth of the time of gathering 3 KB rows.
_SLOT_ALIGNMENT: Final = 1 << 16
_HUGE_PAGE_BYTES: Final = 1 << 21
# Up to this many parts are all mapped at the first read, which takes a millisecond or two.
_FEW_PARTS: Final = 256
# numpy holds the GIL while it gathers fewer than 500 items. Rows at least this large are gathered as rows of
# bytes, for which numpy releases the GIL: two threads gather twice as fast, and a thread does not wait while
# another one reads from the disk.
_GIL_FREE_ROW_BYTES: Final = 4096
_VIEWED_BYTES: Final = 2**62  # numpy refuses larger views; overlapping rows count separately
# The largest window. If a sum of sizes wrapped, parts would be mapped outside of the window, over other
# memory of the process.
_MOST_BYTES: Final = 2**47


class AddressRange:
    """Reserves one range of addresses and maps parts into it.

    Threads may gather from mapped parts while others are mapped. Nothing is unmapped before the window itself
    is freed, so code that gathers must hold a reference to the window. Survives fork; never pickled.

    Args:
        sizes: The size of each part.
        open_file: Opens the file of a part, after a check of its size, and returns the descriptor.
        are_away: For each part, whether it has no file here yet and must not be mapped, or None if all have
            files.

    Raises:
        CacheFormatError: if the sizes are negative, or larger together than any address space.
        StorageError: if the addresses can't be reserved (``ulimit -v``).
    """

    def __init__(
        self,
        sizes: NDArray[np.int64],
        open_file: Callable[[FileId], int],
        are_away: NDArray[np.bool_] | None = None,
    ) -> None:
        self._sizes = sizes
        self._open_file = open_file
        self._are_away = are_away
        self._lock = ProcessLock()
        # Small parts are packed: a slot of 2 MiB would cost each of them a page of page table.
        is_large = len(sizes) > 0 and int(sizes.mean()) >= _HUGE_PAGE_BYTES
        alignment = _HUGE_PAGE_BYTES if is_large else _SLOT_ALIGNMENT
        slots = -(-sizes // alignment) * alignment
        # The sum is a float, which can't wrap, and is exact for all possible sizes.
        is_possible = sizes.min(initial=0) >= 0 and float(slots.sum(dtype=np.float64)) < _MOST_BYTES
        if not is_possible or slots.min(initial=0) < 0:
            raise CacheFormatError("the parts of a cache can't have these sizes; build the dataset again")
        self.offset: NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(slots)])
        self.is_mapped: NDArray[np.bool_] = np.zeros(len(sizes), bool)
        self.all_mapped = len(sizes) == 0
        self._length = max(int(self.offset[-1]), _SLOT_ALIGNMENT)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANON | _MAP_NORESERVE
        reserved = _mmap(None, self._length + alignment, _PROT_NONE, flags, -1)
        self._base = -(-reserved // alignment) * alignment
        # Not at exit: a daemon thread may still be gathering then, and the process is about to end anyway.
        weakref.finalize(self, load_libc().munmap, reserved, self._length + alignment).atexit = False
        # Any: numpy accepts every buffer, but its types don't.
        memory: Any = (ctypes.c_ubyte * self._length).from_address(self._base)
        self._memory = memory
        self.address = self._base  # the address of position 0
        self.bytes: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        self.bytes.flags.writeable = False
        self._views: dict[int, tuple[Any, int]] = {}

    def rows(self, row_bytes: int) -> tuple[Any, int]:
        """Return a view of rows and its step: an index times the step is a position in the window."""
        found = self._views.get(row_bytes)
        if found is None:
            found = self._views[row_bytes] = view_rows(self._memory, row_bytes)
        return found

    def pieces(self, step: int, phase: int) -> NDArray[Any]:
        """Return the window as a contiguous array of items of `step` bytes, the first at `phase`."""
        count = (self._length - phase) // step
        view: NDArray[Any] = np.ndarray((count,), f"V{step}", self._memory, phase)
        view.flags.writeable = False
        return view

    def map_few(self) -> bool:
        """Map all parts if they are few and all on this machine; return whether all are mapped now."""
        is_all_here = self._are_away is None or not self._are_away.any()
        if len(self.is_mapped) <= _FEW_PARTS and is_all_here:
            self.map(np.arange(len(self.is_mapped)))
        return self.all_mapped

    def will_need(self, starts: Int64s, ends: Int64s) -> None:
        """Have the kernel read these stretches of the window, given in order, in the background."""
        starts = starts // mmap.PAGESIZE * mmap.PAGESIZE
        advise, base = load_libc().madvise, self._base
        start, end = int(starts[0]), int(ends[0])
        for next_start, next_end in zip(starts[1:].tolist(), ends[1:].tolist(), strict=True):
            if next_start > end:
                advise(base + start, end - start, mmap.MADV_WILLNEED)
                start = next_start
            end = next_end
        advise(base + start, end - start, mmap.MADV_WILLNEED)

    def map(self, parts: NDArray[np.int64]) -> None:
        """Map the parts that are not mapped yet.

        Raises:
            CacheFormatError: if a file is missing or has another size.
        """
        for part in sorted(set(parts[~self.is_mapped[parts]].tolist())):
            with self._lock:
                if not self.is_mapped[part]:
                    self._map(part)
                    self.is_mapped[part] = True
        with self._lock:
            self.all_mapped = bool(self.is_mapped.all())

    def _map(self, part: int) -> None:
        start, size_bytes = int(self.offset[part]), int(self._sizes[part])
        if not 0 <= start < start + size_bytes <= int(self.offset[part + 1]) <= self._length:
            raise CacheFormatError(f"part {part} lies outside of its slot; build the dataset again")
        descriptor = self._open_file(FileId(part))
        try:
            flags = mmap.MAP_SHARED | _MAP_FIXED
            _mmap(self._base + start, size_bytes, mmap.PROT_READ, flags, descriptor)
        finally:
            os.close(descriptor)


def view_rows(memory: Any, row_bytes: int) -> tuple[Any, int]:
    """Return a view of ctypes' bytes and its step: an index times the step is the start of a row."""
    step, size_bytes = row_step(row_bytes), len(memory)
    if step > 1 or row_bytes == 1:
        view: Any = np.ndarray((size_bytes // step,), f"<u{step}", memory)
    elif row_bytes * size_bytes > _VIEWED_BYTES:
        return _RowCopier(np.frombuffer(memory, np.uint8), row_bytes), 1
    else:
        count = max(size_bytes - row_bytes + 1, 0)
        if row_bytes < _GIL_FREE_ROW_BYTES:
            view = np.ndarray((count,), f"V{row_bytes}", memory, strides=(1,))
        else:
            view = np.ndarray((count, row_bytes), np.uint8, memory, strides=(1, 1))
    view.flags.writeable = False
    return view, step


def row_step(row_bytes: int) -> int:
    """Return the number of bytes that one step of the index stands for, in the view of such rows.

    Rows of 1, 2, 4 and 8 bytes are aligned, and a typed view gathers them twice as fast as bytes. Views of
    other rows have a stride of one byte, so that the index is the position (benchmarks/gather.py).
    """
    return row_bytes if row_bytes in (1, 2, 4, 8) else 1


class _RowCopier:
    """Gathers rows of many megabytes from terabytes, for which numpy can't make a view."""

    def __init__(self, memory: NDArray[np.uint8], row_bytes: int) -> None:
        self._memory = memory
        self._row_bytes = row_bytes

    def __getitem__(self, where: Int64s) -> NDArray[np.uint8]:
        rows = np.empty((len(where), self._row_bytes), np.uint8)
        for row, start in zip(rows, where.tolist(), strict=True):
            row[:] = self._memory[start : start + self._row_bytes]
        return rows


_MAPPING_REMEDY: Final = (
    "; raise the limit on virtual memory (ulimit -v unlimited), or, if the open caches have very many parts, "
    "the limit on mappings (sysctl vm.max_map_count); or read without mapping: open_storage(..., "
    "mapped=False)"
)


def _mmap(address: int | None, length: int, protection: int, flags: int, descriptor: int) -> int:
    try:
        return map_memory(address, length, protection, flags, descriptor)
    except OSError as error:
        hint = _MAPPING_REMEDY if error.errno == errno.ENOMEM else ""
        raise StorageError(
            error.errno, f"can't map {length} bytes of cache: {error.strerror}{hint}"
        ) from error


# Each mapping counts against a limit of the kernel, 65,530 by default; parts beyond this are read by pread.
MAX_MAPPED_PARTS: Final = 32_768
# Each page touched costs 8 bytes of page table in every process: 32 GiB touched cost 64 MiB. A large cache
# gets a new window after this many pages, and the old window's page tables go with it.
_REMAP_AFTER_PAGES: Final = 4 * 2**20
PAGE_BYTES: Final = 4096
_REMAP_CACHE_BYTES: Final = 16 * 2**30


# Ranges of a field with rows up to this size are read as whole pages, which are kept, if all such fields of
# the cache together take no more than KEPT_BYTES: otherwise each record would cost a request for its label.
# A heap whose values have this size on average is read in the same way.
KEPT_ROW_BYTES: Final = 1024
KEPT_BYTES: Final = 64 * 2**20
# Values that are read, not mapped, and lie so close together are read by one call: the bytes between them
# take less time than a call. Larger ones are read alone, since those read together are copied once more.
# Values read together lie in one stretch of this size, so that they take little memory.
_READ_GAP_BYTES: Final = 4096
_JOINED_VALUE_BYTES: Final = 16 * 1024
_STRETCH_BYTES: Final = 2**20


class KeptFields(NamedTuple):
    """The fields whose rows, and those whose heaps, are read by range in pages that are kept."""

    rows: frozenset[int] = frozenset()
    heaps: frozenset[int] = frozenset()


class Parts:
    """The parts of one cache, which find the part of each record. Safe for threads, and after a fork.

    The arguments are those of `Reader`.
    """

    def __init__(self, table: PartTable, files: PartFiles, *, maps: bool) -> None:
        self.table = table
        self.sizes = table.files.sizes
        self.mapped = min(table.files.mappable, MAX_MAPPED_PARTS) if maps else 0
        self.are_all_mappable = self.mapped == table.files.mappable
        self._files = files
        self._addressed = table.files.are_addressed
        # When the inode of each local foreign file was changed last, as this reader saw it first. It finds a
        # file that was given its old time of change.
        self._ctime_ns: dict[FileId, int] = {}
        self._held_open: dict[FileId, OpenFile] = {}
        self._lock = ProcessLock()
        self._most_open = most_open_files()
        self.away = files.away
        self.kept = KeptFields() if self.away is None else _kept_fields(table)
        self.window = self._new_window()
        counts = np.diff(table.first_record)
        # If all parts but the last have one size, the part of a record is found by a division.
        is_even = len(counts) > 0 and bool((counts[:-1] == counts[0]).all() and counts[-1] <= counts[0])
        self._part_records = int(counts[0]) if is_even else 0
        self.remap_after_pages = _REMAP_AFTER_PAGES if int(self.sizes.sum()) > _REMAP_CACHE_BYTES else 0
        self._touched_pages = 0

    @cached_property
    def decoders(self) -> Decoders:
        """The decoders of compressed values."""
        return Decoders(self.table.dictionaries, self._files.dictionary)

    def rows(self, indices: Int64s, held: HeldRows | None = None) -> "StoredRows":
        """Return the rows of one batch, which are read through the current window."""
        return StoredRows(self, self.window, indices, held)

    def locate(self, indices: Int64s) -> tuple[Int64s, Int64s]:
        """Return the part of each record, and its row in the part."""
        first = self.table.first_record
        if self._part_records:
            parts = indices // self._part_records
        else:
            parts = np.searchsorted(first, indices, side="right") - 1
        return parts, indices - first[parts]

    def are_away(self, parts: Int64s) -> NDArray[np.bool_] | None:
        """Return whether each of these parts is away from this machine, or ``None`` if no part is."""
        if self.away is None:
            return None
        found: NDArray[np.bool_] = self.away.are_away[parts]
        return found if found.any() else None

    def read(
        self,
        parts: Int64s,
        positions: Int64s,
        lengths: Int64s,
        *,
        keeps_pages: bool = False,
        held: HeldRows | None = None,
        is_joined: bool = False,
    ) -> Sequence[bytes | memoryview]:
        """Read from the parts' files without mapping them; each file is opened once.

        With `is_joined`, only the bytes of all ranges end to end are wanted, in any number of pieces.
        """
        away = self.are_away(parts)
        if away is not None and self.away is not None:
            if away.all():
                return self.away.read(
                    parts, positions, lengths, keeps_pages=keeps_pages, held=held, is_joined=is_joined
                )
            merged: list[bytes | memoryview] = [b""] * len(parts)
            for chosen in (np.flatnonzero(away), np.flatnonzero(~away)):
                where = parts[chosen], positions[chosen], lengths[chosen]
                content = self.read(*where, keeps_pages=keeps_pages, held=held)
                for number, value in zip(chosen.tolist(), content, strict=True):
                    merged[number] = value
            return merged
        return self._read_here(parts, positions, lengths)

    def _read_here(self, parts: Int64s, positions: Int64s, lengths: Int64s) -> list[bytes]:
        """Read from files of this machine: values that lie close together by one call."""
        if not len(parts):
            return []
        order = np.lexsort((positions, parts))
        files, starts, sizes = parts[order], positions[order], lengths[order]
        is_other = files[1:] != files[:-1]
        cuts = [0, *(np.flatnonzero(is_other) + 1).tolist(), len(files)]
        owners = files[cuts[:-1]].tolist()
        if int(sizes.min()) > _JOINED_VALUE_BYTES:
            pieces = self._read_files(owners, cuts, starts.tolist(), sizes.tolist())
        else:
            ends, is_small, stretches = starts + sizes, sizes <= _JOINED_VALUE_BYTES, starts // _STRETCH_BYTES
            follows = is_small[1:] & is_small[:-1] & (stretches[1:] == stretches[:-1]) & ~is_other
            follows &= starts[1:] <= ends[:-1] + _READ_GAP_BYTES
            firsts = np.concatenate([[0], np.flatnonzero(~follows) + 1])
            begins = starts[firsts]
            wanted = (np.maximum.reduceat(ends, firsts) - begins).tolist()
            cuts = np.searchsorted(firsts, cuts).tolist()
            pieces = self._read_files(owners, cuts, begins.tolist(), wanted)
            if len(firsts) < len(files):
                counts = np.diff(firsts, append=len(files))
                origins = np.repeat(begins, counts)
                whole = itertools.chain.from_iterable(map(itertools.repeat, pieces, counts.tolist()))
                cut = zip(whole, (starts - origins).tolist(), (ends - origins).tolist(), strict=True)
                pieces = [piece[start:end] for piece, start, end in cut]
        found = [b""] * len(pieces)
        for number, value in zip(order.tolist(), pieces, strict=True):
            found[number] = value
        return found

    def _read_files(
        self, files: list[FileId], cuts: list[int], starts: list[int], lengths: list[int]
    ) -> list[bytes]:
        """Read ranges of files; the ranges of a file lie between two of the cuts."""
        pieces: list[bytes] = []
        for file, (first, end) in zip(files, itertools.pairwise(cuts), strict=True):
            pieces += self._read_file(file, starts[first:end], lengths[first:end])
        return pieces

    def _read_file(self, file: FileId, starts: list[int], lengths: list[int]) -> list[bytes]:
        """Read these ranges of one file."""
        opened = self.open(file)
        try:
            pieces = list(map(os.pread, itertools.repeat(opened.descriptor), lengths, starts))
            if sum(map(len, pieces)) != sum(lengths):  # one call reads at most 2 GiB
                for number, length in enumerate(lengths):
                    if len(pieces[number]) != length:
                        pieces[number] = read_at(opened.descriptor, starts[number], length)
            is_same = opened.is_same  # asked after the read, so that no change goes unnoticed
        except OSError as error:
            raise unreadable(error, opened.path) from error
        if not is_same:
            self._held_open.pop(file, None)
            raise opened.problem()
        if sum(map(len, pieces)) != sum(lengths):  # no piece is longer than was asked for
            raise CacheFormatError(
                f"{self.name(file)} ended early: it was truncated; build the dataset again, or restore the "
                "file"
            )
        return pieces

    def open(self, file: FileId) -> OpenFile:
        """Return a file, opened; some into which anybody may write are held open."""
        found = self._held_open.get(file)
        if found is not None:
            return found
        try:
            opened = self._open_file(file)
        except StorageError as error:
            if error.errno != errno.EMFILE or not self._held_open:
                raise
            self._held_open.clear()
            opened = self._open_file(file)
        if opened.is_watched:
            if self._ctime_ns.setdefault(file, opened.ctime_ns) != opened.ctime_ns:
                raise opened.problem()
            with self._lock:
                while len(self._held_open) >= self._most_open:
                    del self._held_open[next(iter(self._held_open))]
                self._held_open[file] = opened
        return opened

    def _open_file(self, file: FileId) -> OpenFile:
        path, found = self._files.path(file), self.table.files[file]
        return OpenFile(found.open(path), path, found)

    def announce(
        self, parts: Int64s, positions: Int64s, lengths: Int64s, held: HeldRows, *, keeps_pages: bool
    ) -> None:
        """Begin to read the ranges of parts that are not on this machine."""
        away = self.are_away(parts)
        if away is not None and self.away is not None:
            self.away.announce(parts[away], positions[away], lengths[away], held, keeps_pages=keeps_pages)

    def name(self, file: FileId) -> str:
        """Return a name of a file for messages."""
        return self.table.files[file].label

    def are_records_away(self, parts: Int64s) -> NDArray[np.bool_] | None:
        """Return whether records of these parts may need bytes that are away, or ``None`` if none may."""
        if self.away is not None and self.away.are_away[self._addressed].any():
            return np.ones(len(parts), bool)
        return self.are_away(parts)

    def count_read_bytes(self, size_bytes: int) -> None:
        """Count bytes that are read from mapped parts; after many of a large cache, replace the window."""
        self._touched_pages += size_bytes // PAGE_BYTES
        if self._touched_pages > self.remap_after_pages > 0:
            self._touched_pages = 0
            self.window = self._new_window()  # code that gathers from the old window still holds it

    def _new_window(self) -> AddressRange:
        are_away = None if self.away is None else self.away.are_away
        if are_away is not None:
            are_away = are_away[: self.mapped]
        return AddressRange(
            self.sizes[: self.mapped], partial(_open_mapped, self.table, self._files), are_away
        )


def _open_mapped(table: PartTable, files: PartFiles, file: FileId) -> int:
    return table.files[file].open(files.path(file))


def _kept_fields(table: PartTable) -> KeptFields:
    """Return the fields that are read by range in pages that are kept."""
    records, sizes = np.diff(table.first_record), []
    for number, field in enumerate(table.fields):
        # A field whose shape was found to vary late has rows in some parts and small entries in the others.
        is_small = field.row_bytes <= KEPT_ROW_BYTES
        if is_small.any():
            sizes.append((int((records * field.row_bytes)[is_small].sum()), False, number))
        heap_bytes = int(field.heap_bytes().sum())
        has_small = 0 < heap_bytes <= KEPT_ROW_BYTES * int(records[field.varying].sum())
        if has_small and not field.are_foreign.any():
            sizes.append((heap_bytes, True, number))
    sizes.sort()
    ends = itertools.accumulate(size_bytes for size_bytes, _, _ in sizes)
    kept = [each for each, end in zip(sizes, ends, strict=True) if end <= KEPT_BYTES]
    rows, heaps = ([number for _, of_heap, number in kept if of_heap is one] for one in (False, True))
    return KeptFields(frozenset(rows), frozenset(heaps))


class StoredRows:
    """The rows of one batch; the part of each row is found at the first use.

    Args:
        parts: The parts of the cache.
        window: The mapped parts; the reference keeps the window alive until the batch is gathered.
        indices: The indices of the records.
        held: Keeps the announced bytes, if these rows are announced: also their entries, which point to the
            values that are announced.
        waiting: The ranges of foreign files that are going to be announced together.
    """

    def __init__(
        self,
        parts: Parts,
        window: AddressRange,
        indices: Int64s,
        held: HeldRows | None = None,
        waiting: list[tuple[Int64s, Int64s, Int64s]] | None = None,
    ) -> None:
        self.parts = parts
        self.window = window
        self.indices = indices
        self._waiting: list[tuple[Int64s, Int64s, Int64s]] = [] if waiting is None else waiting
        self._held = held
        self._located: tuple[Int64s, Int64s] | None = None

    def located(self) -> tuple[Int64s, Int64s]:
        """Return the part of each row and its number there, after mapping these parts if possible."""
        if self._located is None:
            self._located = self.parts.locate(self.indices)
            self._map(self._located[0])
        return self._located

    def _map(self, files: Int64s) -> None:
        """Map those of these files that can be mapped."""
        if not self.window.all_mapped:
            files = files[files < self.parts.mapped]
            away = self.parts.are_away(files)
            self.window.map(files if away is None else files[~away])

    def subset(self, chosen: NDArray[np.intp]) -> "StoredRows":
        """Return some of these rows."""
        return StoredRows(self.parts, self.window, self.indices[chosen], self._held, self._waiting)

    def gather(self, positions: Int64s, row_bytes: int, *, keeps_pages: bool = False) -> NDArray[Any]:
        """Return the rows at these positions of their parts' files, back to back in a new array."""
        parts, _ = self.located()
        view, step = self.window.rows(row_bytes)
        is_mapped = self._are_mapped(parts)
        if is_mapped.all():
            found: NDArray[Any] = view[(positions + self.window.offset[parts]) // step]
            return found
        out = np.empty(len(positions), f"V{row_bytes}")
        here = np.flatnonzero(is_mapped)
        if len(here):
            found = view[(positions[here] + self.window.offset[parts[here]]) // step]
            out[here] = found.reshape(-1).view(out.dtype)
        away = np.flatnonzero(~is_mapped)
        lengths, keeps_pages = np.full(len(away), row_bytes), keeps_pages and row_bytes <= KEPT_ROW_BYTES
        where = parts[away], positions[away], lengths
        content = self.parts.read(*where, keeps_pages=keeps_pages, held=self._held, is_joined=True)
        out[away] = np.frombuffer(b"".join(content), out.dtype)
        return out

    def announce(
        self, positions: Int64s, lengths: Int64s, *, keeps_pages: bool = False, files: Int64s | None = None
    ) -> None:
        """Begin to read these ranges of the rows' parts, or of `files`, if they are not on this machine."""
        parts = self.parts.locate(self.indices)[0] if files is None else files
        if files is not None and self.parts.table.files.are_interleaved and not keeps_pages:
            self._waiting.append((parts, positions, lengths))  # fields of a record lie side by side
            return
        self._announce(parts, positions, lengths, keeps_pages=keeps_pages)

    def announce_waiting(self) -> None:
        """Begin to read what was announced of foreign files, those of all fields together."""
        if self._waiting:
            parts, positions, lengths = map(np.concatenate, zip(*self._waiting, strict=True))
            self._waiting.clear()
            self._announce(parts, positions, lengths, keeps_pages=False)

    def _announce(self, parts: Int64s, positions: Int64s, lengths: Int64s, *, keeps_pages: bool) -> None:
        assert self._held is not None
        self.parts.announce(parts, positions, lengths, self._held, keeps_pages=keeps_pages)

    def block(self, part: int, position: int, length: int) -> bytes | memoryview:
        """Return bytes of a part's or a foreign file; without a copy if it is mapped."""
        one = np.array([part])
        self._map(one)
        if self._are_mapped(one)[0]:
            start = int(self.window.offset[part]) + position
            return self.window.bytes[start : start + length].data
        return self.parts.read(one, np.array([position]), np.array([length]))[0]

    def joined(self, parts: Int64s, positions: Int64s, lengths: Int64s) -> bytearray:
        """Return the bytes at these positions of parts' or foreign files, back to back."""
        return bytearray().join(self.content(parts, positions, lengths, is_joined=True))

    def content(
        self,
        parts: Int64s,
        positions: Int64s,
        lengths: Int64s,
        *,
        keeps_pages: bool = False,
        is_joined: bool = False,
    ) -> Iterable[Any]:
        """Return the bytes at these positions of parts' or foreign files, a buffer each.

        With `is_joined`, only the bytes of all ranges end to end are wanted, in any number of buffers.
        Bytes of mapped files are valid only as long as the window.
        """
        self._map(parts)
        is_mapped = self._are_mapped(parts)
        if not is_mapped.all():
            return self.parts.read(parts, positions, lengths, keeps_pages=keeps_pages, is_joined=is_joined)
        starts = positions + self.window.offset[parts]
        memory, ends = self.window.bytes.data, (starts + lengths).tolist()
        # One after another: views of many short values would keep Python's garbage collector busy.
        return (memory[start:end] for start, end in zip(starts.tolist(), ends, strict=True))

    def _are_mapped(self, parts: Int64s) -> NDArray[np.bool_]:
        """Return whether each of these parts, which some of these rows lie in, is mapped."""
        found: NDArray[np.bool_] = parts < self.parts.mapped
        if self.parts.away is not None and not self.window.all_mapped:
            found[found] = self.window.is_mapped[parts[found]]
        return found
