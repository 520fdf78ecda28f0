"""Say where the rows of a batch lie, and read them: from mapped parts, by pread, or from a store by range."""

import itertools
import os
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from yogadl._format.table import PartTable
from yogadl._format.window import Window, open_part, read_at, unreadable
from yogadl.errors import CacheFormatError, StorageError

Int64s = NDArray[np.int64]

# Every mapping counts against a limit of the kernel's, 65,530 by default; parts beyond are read by pread.
MAX_MAPPED_PARTS: Final = 32_768
# Each page touched costs 8 bytes of page table in every process: 32 GiB touched are 64 MiB. A large cache
# gets a new window after this many pages, and the old one takes its page tables along.
_RENEW_PAGES: Final = 4 * 2**20
PAGE_BYTES: Final = 4096
_RENEW_CACHE_BYTES: Final = 16 * 2**30


# A field whose rows are no larger than this is read by range in pages that are kept, as long as all such
# fields of the cache together are no larger than that: else each record would cost a request for its label.
KEPT_ROW_BYTES: Final = 1024
KEPT_BYTES: Final = 64 * 2**20


class PartRemovedError(StorageError):
    """A part was removed from this machine, and there is no room for it any more: it is away from now on."""


class PartFiles(Protocol):
    """Know where the files of parts lie."""

    def path(self, part: int) -> str:
        """Return the path of the file of the part of that number."""

    @property
    def away(self) -> "AwayParts | None":
        """What reads those parts that are not on this machine; ``None`` if all are."""
        return None


class AwayParts(Protocol):
    """Read parts that are not on this machine, by ranges of their bytes.

    Attributes:
        are_away: Which parts. Some may arrive meanwhile; one that was removed may go.
    """

    are_away: NDArray[np.bool_]

    def read(
        self, parts: Int64s, positions: Int64s, lengths: Int64s, *, keeps: bool, takes: bool = True
    ) -> Sequence[bytes | memoryview]:
        """Read from those parts.

        `keeps` says whether what lies around is likely to be read, too; `takes` whether this is the read that
        was announced, or one before it, for which the same bytes are to be there as well.
        """

    def expect(self, parts: Int64s, positions: Int64s, lengths: Int64s, *, keeps: bool) -> None:
        """Begin to read what will soon be asked for."""

    def will_read(self, records: int, *, held_bytes: int | None) -> None:
        """Say that a stream of this process is going to read so many records an epoch; see `choice`."""

    def choice(self, share: float, *, held_bytes: int | None) -> tuple[str, str]:
        """Return how a stream reads that reads this share of the records an epoch, and why.

        `held_bytes` is what it takes to hold its blocks, if it is one of blocks.
        """

    def block_store(self, key: str, share: float, held_bytes: int, *, is_shared: bool) -> Any:
        """Return where a stream is to hold the blocks that it reads from; None where it needs not.

        Args:
            key: Says which stream, the same in all processes of this machine that read it.
            share: How much of the records it reads an epoch.
            held_bytes: How much room that takes.
            is_shared: Whether several processes read one shard.
        """

    @property
    def received(self) -> tuple[int, int]:
        """How many requests this process made for ranges, and how many bytes came."""


class Parts:
    """The parts of one cache, and in which of them each record lies. Safe for threads, and after a fork.

    Its arguments are those of `Reader`.
    """

    def __init__(self, table: PartTable, files: PartFiles, *, maps: bool) -> None:
        self.table = table
        self.mapped = min(len(table), MAX_MAPPED_PARTS) if maps else 0
        self.are_all_mappable = self.mapped == len(table)
        self._files = files
        self.away = files.away
        self.kept = frozenset[int]() if self.away is None else _kept_fields(table)
        self.window = self._new_window()
        counts = np.diff(table.first_record)
        # Parts of one size, but for the last: then finding the part of a record is a division.
        is_even = len(counts) > 0 and bool((counts[:-1] == counts[0]).all() and counts[-1] <= counts[0])
        self._part_records = int(counts[0]) if is_even else 0
        self.renew_after = _RENEW_PAGES if table.total_bytes > _RENEW_CACHE_BYTES else 0
        self._touched_pages = 0

    def rows(self, indices: Int64s, *, takes: bool = True) -> "StoredRows":
        """Return the rows of one batch, to be read as their parts are mapped now."""
        return StoredRows(self, self.window, indices, takes)

    def locate(self, indices: Int64s) -> tuple[Int64s, Int64s]:
        """Return the part of each record, and its row there."""
        first = self.table.first_record
        if self._part_records:
            parts = indices // self._part_records
        else:
            parts = np.searchsorted(first, indices, side="right") - 1
        return parts, indices - first[parts]

    def are_away(self, parts: Int64s) -> NDArray[np.bool_] | None:
        """Return which of these parts are not on this machine; ``None`` if all are."""
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
        keeps: bool = False,
        takes: bool = True,
    ) -> Sequence[bytes | memoryview]:
        """Read from parts' files without mapping them; each file is opened once."""
        away = self.are_away(parts)
        if away is not None and self.away is not None:
            if away.all():
                return self.away.read(parts, positions, lengths, keeps=keeps, takes=takes)
            both: list[bytes | memoryview] = [b""] * len(parts)
            for chosen in (np.flatnonzero(away), np.flatnonzero(~away)):
                where = parts[chosen], positions[chosen], lengths[chosen]
                content = self.read(*where, keeps=keeps, takes=takes)
                for number, value in zip(chosen.tolist(), content, strict=True):
                    both[number] = value
            return both
        found = [b""] * len(parts)
        by_part = np.argsort(parts, kind="stable").tolist()
        for part, numbers in itertools.groupby(by_part, lambda number: int(parts[number])):
            name, descriptor = self.table.sha256[part], self.open(part)
            try:
                for number in numbers:
                    length = int(lengths[number])
                    found[number] = read_at(descriptor, int(positions[number]), length)
                    if len(found[number]) != length:
                        raise CacheFormatError(f"part {name} ended early: it was truncated")
            except OSError as error:
                raise unreadable(error, self._files.path(part)) from error
            finally:
                os.close(descriptor)
        return found

    def expect(self, parts: Int64s, positions: Int64s, lengths: Int64s, *, keeps: bool = False) -> None:
        """Begin to read what of this is in parts that are not on this machine."""
        away = self.are_away(parts)
        if away is not None and self.away is not None:
            self.away.expect(parts[away], positions[away], lengths[away], keeps=keeps)

    def open(self, part: int) -> int:
        """Open a part's file; the caller closes the descriptor."""
        return open_part(self._files.path(part), int(self.table.size_bytes[part]))

    def touch(self, size_bytes: int) -> None:
        """Count bytes that are read from mapped parts; after many of a large cache, map them anew."""
        self._touched_pages += size_bytes // PAGE_BYTES
        if self._touched_pages > self.renew_after > 0:
            self._touched_pages = 0
            self.window = self._new_window()  # what gathers from the old one still holds it

    def _new_window(self) -> Window:
        are_away = None if self.away is None else self.away.are_away
        return Window(self.table.size_bytes[: self.mapped], self._files.path, are_away)


def _kept_fields(table: PartTable) -> frozenset[int]:
    """Return which fields are read by range in pages that are kept."""
    records, sizes = np.diff(table.first_record), []
    for number, field in enumerate(table.fields):
        # A field that was found late to vary has rows in some parts and small entries in the others.
        is_small = field.row_bytes <= KEPT_ROW_BYTES
        if is_small.any():
            sizes.append((int((records * field.row_bytes)[is_small].sum()), number))
    ends = itertools.accumulate(size_bytes for size_bytes, _ in sorted(sizes))
    return frozenset(
        number for (_, number), end in zip(sorted(sizes), ends, strict=True) if end <= KEPT_BYTES
    )


class HeldRows(Protocol):
    """Keep what was read of parts that are not on this machine."""

    def add(self, parts: Int64s, positions: Int64s, lengths: Int64s) -> None:
        """Begin to read these ranges, and keep them."""


class StoredRows:
    """The rows of one batch: which they are, and, once it is asked for, in which part each lies.

    Args:
        parts: The cache's.
        window: The mapped parts; held here, so that it stays until the batch is gathered.
        indices: Which records.
        takes: Whether they are read now; else they are only looked at, to announce what they point to.
        held: What keeps what is announced of them.
    """

    def __init__(
        self,
        parts: Parts,
        window: Window,
        indices: Int64s,
        takes: bool = True,
        held: HeldRows | None = None,
    ) -> None:
        self.parts = parts
        self.window = window
        self.indices = indices
        self._takes = takes
        self.held = held
        self._located: tuple[Int64s, Int64s] | None = None

    def located(self) -> tuple[Int64s, Int64s]:
        """Return the part of each row and its number there, with all those parts mapped that can be."""
        if self._located is None:
            self._located = self.parts.locate(self.indices)
            if not self.window.all_mapped:
                parts = self._located[0]
                parts = parts[parts < self.parts.mapped]
                away = self.parts.are_away(parts)
                self.window.map(parts if away is None else parts[~away])
        return self._located

    def some(self, chosen: NDArray[np.intp]) -> "StoredRows":
        """Return some of these rows."""
        return StoredRows(self.parts, self.window, self.indices[chosen], self._takes, self.held)

    def gather(self, positions: Int64s, row_bytes: int, *, keeps: bool = False) -> NDArray[Any]:
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
        lengths, keeps = np.full(len(away), row_bytes), keeps and row_bytes <= KEPT_ROW_BYTES
        where = parts[away], positions[away], lengths
        content = self.parts.read(*where, keeps=keeps, takes=self._takes)
        out[away] = np.frombuffer(b"".join(content), out.dtype)
        return out

    def expect(self, positions: Int64s, lengths: Int64s, *, keeps: bool = False) -> None:
        """Begin to read what of these rows, at these positions of their parts, is not on this machine."""
        keeps = keeps and int(lengths.max(initial=0)) <= KEPT_ROW_BYTES
        parts = self.parts.locate(self.indices)[0]
        away = None if self.held is None or keeps else self.parts.are_away(parts)
        if self.held is None or away is None:
            self.parts.expect(parts, positions, lengths, keeps=keeps)
        else:
            self.held.add(parts[away], positions[away], lengths[away])

    def block(self, part: int, position: int, length: int) -> bytes | memoryview:
        """Return bytes of a part that some of these rows lie in, where they are if that is mapped."""
        self.located()
        one = np.array([part])
        if self._are_mapped(one)[0]:
            start = int(self.window.offset[part]) + position
            return self.window.bytes[start : start + length].data
        return self.parts.read(one, np.array([position]), np.array([length]))[0]

    def joined(self, parts: Int64s, positions: Int64s, lengths: Int64s) -> bytearray:
        """Return the bytes at these positions of parts that some of these rows lie in, back to back."""
        self.located()
        if not self._are_mapped(parts).all():
            return bytearray().join(self.parts.read(parts, positions, lengths))
        starts = positions + self.window.offset[parts]
        memory, ends = self.window.bytes.data, (starts + lengths).tolist()
        return bytearray().join([memory[start:end] for start, end in zip(starts.tolist(), ends, strict=True)])

    def values(self, positions: Int64s, lengths: Int64s) -> list[bytes]:
        """Return the bytes at these positions of their parts' files."""
        parts, _ = self.located()
        if not self._are_mapped(parts).all():
            content = self.parts.read(parts, positions, lengths)
            return [value if isinstance(value, bytes) else bytes(value) for value in content]
        starts = positions + self.window.offset[parts]
        memory = self.window.bytes
        ends = (starts + lengths).tolist()
        return [memory[start:end].tobytes() for start, end in zip(starts.tolist(), ends, strict=True)]

    def _are_mapped(self, parts: Int64s) -> NDArray[np.bool_]:
        """Return which of these parts, that some of these rows lie in, are mapped."""
        found: NDArray[np.bool_] = parts < self.parts.mapped
        if self.parts.away is not None and not self.window.all_mapped:
            found[found] = self.window.is_mapped[parts[found]]
        return found
