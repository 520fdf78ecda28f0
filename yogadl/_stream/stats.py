"""Say what an iterator delivered, what it waited for, and where reading spent the time: sums, no traces."""

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any, TypeVar

from yogadl._frozen import frozen
from yogadl._stream.run import Run

T = TypeVar("T")


@frozen
class Stats:
    """What a loader's newest iterator did so far.

    Attributes:
        batches: How many it delivered.
        records: How many records those have.
        bytes: About how many bytes, counted as they are in memory; exact where no field varies in length.
        seconds: From when the first batch was asked for until the iterator ended, or until now.
        waited_s: How much of that the consumer spent waiting in `next`.
        stages: The seconds that each stage took: ``read``, and each function by its number and name. Summed
            over threads and processes, so together they may be more than `seconds`.
        ranges: How many requests were made, here and by workers, for bytes that are not on this machine; by
            all that read the same `DataRef`.
        range_bytes: How many bytes came by them.
        ready: How many batches were ready when one was asked for, on average; ``None`` if nothing reads
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
        """Records delivered a second."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def mb_per_s(self) -> float:
        """Millions of bytes delivered a second."""
        return self.bytes / 1e6 / self.seconds if self.seconds else 0.0

    @property
    def waited_share(self) -> float:
        """Which share of the time the consumer waited. Near 0, reading keeps up; near 1, it does not."""
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
    """What one consumer waited for. It counts in its own thread; a pickled one begins anew.

    Attributes:
        waited_s: How long, in all.
    """

    __slots__ = ("_before", "_began", "_ended", "waited_s")

    def __init__(self) -> None:
        self._began: float | None = None  # when it asked for the first item
        self._ended: float | None = None  # when there were no more
        self.waited_s = 0.0
        self._before: Any = ({}, 0, 0, (0, 0))  # what the counters said then

    def __reduce__(self) -> Any:
        return Waits, ()

    def begin(self, run: Run) -> None:
        """Note the first time that an item was asked for."""
        self._ended = None
        if self._began is None:
            self._began = perf_counter()
            counters = run.counters
            self._before = counters.stages(), counters.asked, counters.ready, run.received()

    def end(self) -> None:
        """Note that there are no more."""
        self._ended = self._ended or perf_counter()

    def each(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items; the time that each takes is waited for."""
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
        """Return what was done since it began."""
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
