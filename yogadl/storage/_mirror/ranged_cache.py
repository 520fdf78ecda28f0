"""Read a bucket's cache of which this machine has not all: mapped parts, and the rest by range."""

import logging
import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from yogadl._format.manifest import Manifest
from yogadl._format.rows import PartRemovedError
from yogadl._format.table import PartTable
from yogadl._size import in_words
from yogadl.errors import StorageError
from yogadl.storage import _names
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._folder import FULL
from yogadl.storage._held import MOST_IN_MEMORY_BYTES, BlockStore, Holder
from yogadl.storage._mirror.block_files import BlockFiles
from yogadl.storage._mirror.filling import Filler, FillPolicy
from yogadl.storage._mirror.mirrored_cache import MirroredCache
from yogadl.storage._pins import Pins
from yogadl.storage._ranges import Ranges
from yogadl.storage._spending import Spending

if TYPE_CHECKING:
    from yogadl._format.checks import Checksums
    from yogadl.storage._checked_ranges import CheckedRanges

_log = logging.getLogger("yogadl")

Int64s = NDArray[np.int64]


class RangedCache:
    """The files of one cache, for a `Reader`: those that a mirror has, and those that are read by range.

    Safe to use from threads and after a fork; not picklable.

    Args:
        bucket: Where the cache is.
        manifest: The cache.
        table: Its part table.
        spending: Counts what is read by range.
        sums: What is read by range must hash to; ``None`` if it is not compared.
        mirrored: The mirror's files of it, and which parts are there; ``None`` without a mirror.
        policy: Whether to fill the mirror while a stream reads.

    Attributes:
        are_away: Which parts are not here. Some may arrive meanwhile.
        sums: What is read by range must hash to; ``None`` if it is not compared.
    """

    def __init__(
        self,
        bucket: Bucket,
        manifest: Manifest,
        table: PartTable,
        spending: Spending,
        sums: "Checksums | None" = None,
        mirrored: tuple[MirroredCache, NDArray[np.bool_]] | None = None,
        policy: FillPolicy | None = None,
    ) -> None:
        self.table = table
        self.sums = sums
        self._mirrored = None if mirrored is None else mirrored[0]
        self._policy = policy or FillPolicy("never")
        self.are_away: NDArray[np.bool_] = np.ones(len(table), bool) if mirrored is None else ~mirrored[1]
        sha256, dataset_id = table.sha256, manifest.key.id
        self._ranges = Ranges(
            bucket,
            lambda part: _names.part(dataset_id, sha256[part]),
            table.size_bytes,
            spending,
            # Where blocks are compared, it does not matter which object they are of.
            Pins(bucket, dataset_id, table, manifest.table_sha256) if sums is None else None,
        )
        self._reading = _comparing(self._ranges, sums)
        self._holder = Holder(self._ranges)
        self._stores: weakref.WeakValueDictionary[tuple[int, str], BlockStore] = weakref.WeakValueDictionary()
        self._filler = (
            None
            if self._mirrored is None
            else Filler(self._mirrored, self.are_away, self._ranges.condemn, self._policy.tell_full)
        )

    def __reduce__(self) -> Any:
        raise TypeError(
            "what is read by range in this process can't be pickled; fetch it again in the other process"
        )

    @property
    def away(self) -> "RangedCache":
        """What reads those parts that are not here."""
        return self

    def path(self, part: int) -> str:
        """Return the path of the file of a part that is here; one that was removed is downloaded again.

        Raises:
            PartRemovedError: if there is no room for it any more: then it is away.
        """
        assert self._mirrored is not None
        try:
            return self._mirrored.path(part)
        except StorageError as error:
            if error.errno not in FULL:
                raise
            self.are_away[part] = True
            raise PartRemovedError(*error.args) from error

    def will_read(self, records: int, *, held_bytes: int | None) -> None:
        """Say that a stream of this process is going to read so many records an epoch; see `AwayParts`."""
        share = records / max(1, self.table.records)
        is_filled = self._policy.fills(share) and self.choice(share, held_bytes=held_bytes)[0] != "blocks"
        if self._filler is not None and is_filled:
            self._filler.start()

    def choice(self, share: float, *, held_bytes: int | None) -> tuple[str, str]:
        """Return how a stream reads that reads this share of the records an epoch, and why."""
        limit_bytes = None if self._mirrored is None else self._mirrored.limit_bytes
        has_disk = self._mirrored is not None and self._policy.fill != "never"
        otherwise = "ranges"
        # What is compared comes in the format's blocks, and is kept as such.
        if held_bytes is not None and self.sums is None:
            has_room = has_disk and (limit_bytes is None or held_bytes <= limit_bytes)
            if not has_room and held_bytes > MOST_IN_MEMORY_BYTES:
                return "ranges", f"there is no room for two windows of blocks, {in_words(held_bytes)}"
            otherwise = "blocks"
        if self._mirrored is None:
            return otherwise, "mirror=None"
        is_filled = self._policy.fills(share)
        if is_filled and limit_bytes is not None and limit_bytes < self.table.total_bytes:
            room = in_words(limit_bytes)
            return otherwise, f"the mirror's limit is {room}: only the parts that are there are read from it"
        return "mirror" if is_filled else otherwise, self._policy.why(share)

    def block_store(self, key: str, share: float, held_bytes: int, *, is_shared: bool) -> BlockStore | None:
        """Return where a stream is to hold blocks; see `AwayParts`."""
        if self.choice(share, held_bytes=held_bytes)[0] != "blocks":
            return None
        found = self._stores.get((os.getpid(), key))
        if found is None:
            files = self._block_files(key, held_bytes)
            if files is None and (is_shared or held_bytes > MOST_IN_MEMORY_BYTES):
                return None
            found = self._stores[os.getpid(), key] = BlockStore(self._holder, files)
        return found

    def _block_files(self, key: str, held_bytes: int) -> BlockFiles | None:
        """Return where blocks are kept on disk; None if there is no room."""
        if self._mirrored is None or self._policy.fill == "never":
            return None
        try:
            return self._mirrored.block_files(key, held_bytes)
        except StorageError as error:
            _log.info("yogadl: blocks are not kept in the mirror: %s", error)
            return None

    def read(
        self, parts: Int64s, positions: Int64s, lengths: Int64s, *, keeps: bool, takes: bool = True
    ) -> Sequence[bytes | memoryview]:
        """Read ranges of parts; see `AwayParts`."""
        self._look()
        if keeps or self.sums is not None:
            return self._reading.read(parts, positions, lengths, keeps=keeps, takes=takes)
        return self._holder.read(parts, positions, lengths, takes=takes)

    def expect(self, parts: Int64s, positions: Int64s, lengths: Int64s, *, keeps: bool) -> None:
        """Begin to read ranges of parts; see `AwayParts`."""
        self._look()
        if self._filler is not None:
            self._filler.soon(parts)
        self._reading.expect(parts, positions, lengths, keeps=keeps)

    @property
    def received(self) -> tuple[int, int]:
        """How many requests this process made for ranges, and how many bytes came."""
        return self._ranges.requests, self._ranges.received_bytes

    def _look(self) -> None:
        """See now and then which parts other processes have brought here."""
        if self._filler is not None:
            self._filler.look()


def _comparing(ranges: Ranges, sums: "Checksums | None") -> "Ranges | CheckedRanges":
    """Return what reads ranges, and compares them if that is wanted."""
    if sums is None:
        return ranges
    from yogadl.storage._checked_ranges import CheckedRanges  # who does not compare needs none of it

    return CheckedRanges(ranges, sums)
