"""Read batches by number, and read ahead if the numbers follow each other."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from yogadl._core.arguments import whole
from yogadl._core.process import ProcessLock
from yogadl._stream import Cut, RecordStream, StreamIterator, read_cursor
from yogadl.errors import ConfigurationError


class BatchReader:
    """The batches of a stream by number, counted from the stream's start, across epochs.

    If batches are requested one after another, threads read ahead; `ahead` is the number of batches and the
    number of threads. Any other number can be requested, too, and reading ahead continues there. Safe to use
    from several threads and after a fork; picklable if the stream is, without the batches read ahead.

    Attributes:
        stream: The stream, which starts at batch 0.
        numbering: The numbering of the batches.
        furthest: The greatest number requested; -1 before the first request.
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
        self._next = 0  # the number of the batch that `_batches` delivers next
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
                place = self.cursor(number)  # `at` counts positions like a cursor
                self._batches = self._loader.at(place["epoch"], place["position"])
                self._next = number
            batch = next(self._batches)
            self._next = number + 1
            self.furthest = max(self.furthest, number)
        return batch

    def cursor(self, delivered: int) -> dict[str, Any]:
        """Return the cursor after so many delivered batches."""
        delivered, count = whole("delivered", delivered), self.numbering.length
        if count is not None and delivered > count:
            raise ConfigurationError(f"{delivered} batches can't be delivered: there are {count}")
        return self.numbering.cursor(self.numbering.reach(delivered))

    def at(self, state: Mapping[str, Any], rebind: bool = False) -> "BatchReader":
        """Return a reader of the same stream whose batch 0 is the first one after the cursor."""
        run = self.stream.run
        start = read_cursor(run.identity(), state, rebind)
        return BatchReader(RecordStream(replace(run, start=start)), *self._options)
