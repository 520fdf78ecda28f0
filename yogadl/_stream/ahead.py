"""Announce records before they are read, so that the kernel can fetch those not in memory."""

from typing import TYPE_CHECKING, Final

from yogadl._core.protocols import Planned, announce, will_read
from yogadl._stream.rows import Rows
from yogadl._stream.run import Run

if TYPE_CHECKING:
    from yogadl._stream.block_ahead import BlockAhead

AHEAD_BYTES: Final = 32_000_000
_STEPS: Final = 8  # announcements for AHEAD_BYTES: small batches then cost a comparison each


def expect(run: Run, rows: Rows) -> None:
    """Announce only these rows; other processes read the rows between them."""
    blocks = run.block_ahead
    announce(run.source, rows.indices if blocks is None else blocks.others(rows, is_shared=True))


class Ahead:
    """Announces the records that follow those read: a few at first, then up to `AHEAD_BYTES`.

    Safe to use from several threads: at worst a record is announced twice.

    Args:
        run: The run of the records.
        rows: The rows that follow each other; their positions in the order may be unknown.
        planned: Called instead of each cache's announcement.
        blocks: The planned blocks, used instead of the run's.
        is_shared: Whether other processes read rows between these.
    """

    def __init__(
        self,
        run: Run,
        rows: Rows,
        planned: Planned | None = None,
        blocks: "BlockAhead | None" = None,
        *,
        is_shared: bool = False,
    ) -> None:
        self._source = run.source
        self._rows = rows
        self._planned = planned
        self._announced = 0
        self._most = max(1, AHEAD_BYTES // run.record_bytes)
        self._is_shared = is_shared or any(
            isinstance(positions, range) and positions.step != run.shard.ranks for _, positions in rows.pieces
        )
        self._blocks = run.block_ahead if planned is None and rows.pieces else blocks
        if planned is None:
            held_bytes = None if self._blocks is None else self._blocks.held_bytes
            will_read(run.source, run.shard.own(0), held_bytes=held_bytes)
        if self._blocks is not None and self._blocks.is_of_use(is_shared=self._is_shared):
            self._most = min(self._most, self._blocks.most_rows)
        else:
            self._blocks = None

    def of(self, first: int, last: int) -> None:
        """Announce the records after `first` to `last - 1`, which are read next; these, too, if needed."""
        total, ahead = len(self._rows), min(last, self._most)
        if self._announced < min(total, last + ahead - ahead // _STEPS):
            start, end = max(first, self._announced), min(total, last + ahead)
            some, blocks = self._rows[start:end], self._blocks
            if blocks is not None and not blocks.goes_on(some, is_shared=self._is_shared):
                some = some[: max(0, last - start)]  # these are needed at once, and perhaps no others are
            self._announced = start + len(some)
            indices = some.indices if blocks is None else blocks.others(some, is_shared=self._is_shared)
            self._announced += announce(self._source, indices, planned=self._planned)
