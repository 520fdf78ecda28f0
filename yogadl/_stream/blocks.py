"""Compute rows that are requested in any order, a block of them at a time, and announce the next ones."""

from collections import OrderedDict
from typing import Final

from yogadl._core.process import ProcessLock
from yogadl._stream.ahead import Ahead
from yogadl._stream.rows import Rows, joined
from yogadl._stream.run import INDICES, Run
from yogadl._stream.shard import Point

_KEPT: Final = 4  # blocks of rows


class RowBlocks:
    """Computes the rows of a run, requested in any order, a block at a time.

    Safe to use from any number of threads and after a fork.

    Args:
        run: The run.
        size: The usual number of rows in a request.
        announces: Whether to announce the rows that follow each request. This requires that all rows are
            requested here, and none of them in other processes.
    """

    def __init__(self, run: Run, size: int, *, announces: bool = True) -> None:
        self._run = run
        self._announces = announces
        self._block = max(1, INDICES // size) * size
        # By (epoch, origin, block): the block's rows, and the object that announces them.
        self._kept: OrderedDict[tuple[int, int, int], tuple[Rows, Ahead]] = OrderedDict()
        self._lock = ProcessLock()

    def rows(self, epoch: int, origin: int, first: int, last: int) -> Rows:
        """Return rows `first` to `last - 1` of an epoch, counted from a position; at least one."""
        found = []
        while first < last:
            block, within = divmod(first, self._block)
            rows, ahead = self._rows(epoch, origin, block)
            end = min(within + last - first, self._block)
            if self._announces:
                ahead.of(within, end)
            found.append(rows[within:end])
            first += end - within
        return joined(found)

    def _rows(self, epoch: int, origin: int, block: int) -> tuple[Rows, Ahead]:
        key = (epoch, origin, block)
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                first = block * self._block
                last = min(first + self._block, self._run.shard.own(origin))
                rows = self._run.rows(Point(epoch, origin), first, last)
                ahead = Ahead(self._run, rows, is_shared=not self._announces)
                found = self._kept[key] = rows, ahead
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return found
