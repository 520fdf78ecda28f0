"""Report what an iterator delivered, how long the consumer waited, and the time of each stage: sums only."""

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any, TypeVar

from yogadl._core.frozen import frozen
from yogadl._stream.run import Run

T = TypeVar("T")


@frozen
class Stats:
    """Statistics of a loader's newest iterator so far.

    Attributes:
        batches: The number of batches delivered.
        records: The number of records in these batches.
        bytes: The approximate number of bytes in memory; exact if no field varies in length.
        seconds: The time from the request for the first batch until the iterator ended, or until now.
        waited_s: The part of this time that the consumer waited in `next`.
        stages: The seconds of each stage: ``read``, and each function by its number and name. They are summed
            over threads and processes, so together they may be more than `seconds`.
        ranges: The number of requests, here and by workers, for bytes that are not on this machine; by all
            readers of the same `DataRef`.
        range_bytes: The number of bytes received by them.
        ready: The average number of batches that were ready when one was requested; ``None`` without reading
            ahead.
    """

    batches: int
    records: int
    bytes: int
    seconds: float
    waited_s: float
    stages: Mapping[str, float]
    ready: float | None
    ranges: int = 0
    range_bytes: int = 0

    @property
    def records_per_s(self) -> float:
        """The number of records delivered a second."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def mb_per_s(self) -> float:
        """The number of bytes delivered a second, in millions."""
        return self.bytes / 1e6 / self.seconds if self.seconds else 0.0

    @property
    def waited_share(self) -> float:
        """The share of the time that the consumer waited. Near 0, reading keeps up; near 1, it does not."""
        return self.waited_s / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        found = [
            f"{self.records:,} records in {self.seconds:.3g} s: {self.records_per_s:,.0f} records/s, "
            f"{self.mb_per_s:,.0f} MB/s",
            f"waited {self.waited_share:.0%}",
        ]
        if self.ready is not None:
            found.append(f"{self.ready:.1f} batches ready")
        if self.ranges:
            found.append(f"{self.ranges:,} ranges, {self.range_bytes / 1e6:,.0f} MB by range")
        if self.stages:
            found.append(", ".join(f"{stage} {seconds:.3g} s" for stage, seconds in self.stages.items()))
        return "; ".join(found)


class Waits:
    """The waiting time of one consumer, counted in its own thread; a pickled copy begins anew.

    Attributes:
        waited_s: The total time.
    """

    __slots__ = ("_before", "_began", "_ended", "waited_s")

    def __init__(self) -> None:
        self._began: float | None = None  # when the first item was requested
        self._ended: float | None = None  # when the items ended
        self.waited_s = 0.0
        self._before: Any = ({}, 0, 0, (0, 0))  # the counters at that time

    def __reduce__(self) -> Any:
        return Waits, ()

    def begin(self, run: Run) -> None:
        """Note the time of the first request for an item."""
        self._ended = None
        if self._began is None:
            self._began = perf_counter()
            counters = run.counters
            self._before = counters.stages(), counters.asked, counters.ready, run.received()

    def end(self) -> None:
        """Note that the items have ended."""
        self._ended = self._ended or perf_counter()

    def each(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items, and count the time of each as waited."""
        while True:
            asked = perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.waited_s += perf_counter() - asked
            yield item
            del item

    def stats(self, run: Run, items: int, records: int, size_bytes: int) -> Stats:
        """Return the statistics since the beginning."""
        counters = run.counters
        stages, asked, ready, (requests, received_bytes) = self._before
        took = {stage: seconds - stages.get(stage, 0.0) for stage, seconds in counters.stages().items()}
        asked = counters.asked - asked
        requests_now, received_now = run.received()
        return Stats(
            batches=items,
            records=records,
            bytes=size_bytes,
            seconds=0.0 if self._began is None else (self._ended or perf_counter()) - self._began,
            waited_s=self.waited_s,
            stages={stage: seconds for stage, seconds in took.items() if seconds},
            ready=(counters.ready - ready) / asked if asked else None,
            ranges=0 if self._began is None else requests_now - requests,
            range_bytes=0 if self._began is None else received_now - received_bytes,
        )
