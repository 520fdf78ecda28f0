"""Read batches by number, and read ahead where they are asked for one after another."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from yogadl._arguments import whole
from yogadl._lock import ProcessLock
from yogadl._stream import Cut, RecordStream, StreamIterator, read_cursor
from yogadl.errors import ConfigurationError


class BatchReader:
    """Deliver the batches of a stream by number, counted from its start on, across epochs.

    Threads read ahead where batches are asked for one after another, so many in so many as `ahead` says. Any
    other number is read, too, and reading ahead goes on from there. Safe to use from several threads and
    after a fork; pickles if the stream does, without what it has read ahead.

    Attributes:
        stream: Whose records, from batch 0 on.
        numbering: Which batches there are.
        furthest: The greatest number that was asked for, -1 before that.
    """

    def __init__(
        self, stream: RecordStream, cut: Cut, padding_field: str | None, ahead: tuple[int, int]
    ) -> None:
        depth, threads = ahead
        self.stream = stream = stream.past_finished(replace(cut, epochs=1))
        loader = stream.batch(cut.size, cut.drop_remainder, cut.epochs, padding_field=padding_field)
        self.numbering = stream.run.numbering(cut)
        cut.warn_if_finished(stream.shard, cut.span(stream.run.start))
        self.furthest = -1
        self._options = cut, padding_field, ahead
        self._loader = loader.prefetch(depth, threads=threads) if depth else loader
        self._batches: StreamIterator | None = None
        self._next = 0  # what `_batches` delivers next
        self._lock = ProcessLock()

    def __reduce__(self) -> Any:
        return BatchReader, (self.stream, *self._options)

    def batch(self, number: int) -> Any:  # a tree like the record's
        """Read one batch, or raise an IndexError."""
        count = self.numbering.length
        if number < 0 or (count is not None and number >= count):
            raise IndexError(f"there is no batch {number}: there are {count}")
        with self._lock:
            if self._batches is None or number != self._next:
                place = self.cursor(number)  # which counts positions as `at` does
                self._batches = self._loader.at(place["epoch"], place["position"])
                self._next = number
            batch = next(self._batches)
            self._next = number + 1
            self.furthest = max(self.furthest, number)
        return batch

    def cursor(self, delivered: int) -> dict[str, Any]:
        """Return the cursor that stands where so many batches were delivered."""
        delivered, count = whole("delivered", delivered), self.numbering.length
        if count is not None and delivered > count:
            raise ConfigurationError(f"{delivered} batches can't be delivered: there are {count}")
        return self.numbering.cursor(self.numbering.reach(delivered))

    def at(self, state: Mapping[str, Any], rebind: bool = False) -> "BatchReader":
        """Return a reader of the same stream whose batch 0 is the one after the cursor."""
        run = self.stream.run
        start = read_cursor(run.identity(), state, rebind)
        return BatchReader(RecordStream(replace(run, start=start)), *self._options)
