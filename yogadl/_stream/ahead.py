"""Announce records before they are read, so that the kernel can fetch those that are not in memory."""

from typing import Final

from yogadl._interfaces import Indices, Planned, announce, will_read
from yogadl._stream.run import Run

AHEAD_BYTES: Final = 32_000_000
_STEPS: Final = 8  # in which so much is announced: small batches then cost a comparison each


def expect(run: Run, indices: Indices) -> None:
    """Announce just these records."""
    announce(run.source, indices)


class Ahead:
    """Announce what comes after the records that are read: at first a few, then up to `AHEAD_BYTES` of them.

    `indices` are all those that come one after another; `planned` is told in place of caches. Safe to use
    from several threads: at worst a record is announced twice.
    """

    def __init__(self, run: Run, indices: Indices, planned: Planned | None = None) -> None:
        self._source = run.source
        self._indices = indices
        self._planned = planned
        self._announced = 0
        self._most = max(1, AHEAD_BYTES // run.record_bytes)
        if planned is None:
            will_read(run.source, run.shard.own(0))

    def of(self, first: int, last: int) -> None:
        """Announce what comes after records `first` to `last - 1`, about to be read, and those if need be."""
        total, ahead = len(self._indices), min(last, self._most)
        if self._announced < min(total, last + ahead - ahead // _STEPS):
            start, self._announced = max(first, self._announced), min(total, last + ahead)
            some = self._indices[start : self._announced]
            self._announced += announce(self._source, some, planned=self._planned)
