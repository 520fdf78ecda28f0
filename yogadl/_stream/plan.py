"""Estimate what an epoch reads and costs, before it is read."""

from collections.abc import Sequence
from typing import Any, Final

from yogadl._core.arguments import above_zero, in_words, int_argument
from yogadl._core.frozen import frozen
from yogadl._core.protocols import Indices, Prices, Stored, Stretches, reads_of, views_of
from yogadl._stream.cut import Cut, Point
from yogadl._stream.items import Batches, Records, reads_of_rows
from yogadl._stream.run import INDICES_PER_CHUNK
from yogadl.errors import ConfigurationError

# In a longer epoch, about this many records are counted, and the rest is assumed to be alike.
COUNTED: Final = 131_072
_BLOCKS_FOOTNOTE: Final = "* An estimate: if an order of yogadl.Blocks read each block once."


@frozen
class ReadingCost:
    """The cost of one way to read.

    Attributes:
        name: "ranges": each record is read by range. "mirror": everything is fetched once to this machine.
            "blocks": whole blocks are read ahead; an estimate if the order is not of `yogadl.Blocks`.
        requests: The number of requests that get bytes from the store.
        bytes: The number of bytes received.
        disk_bytes: The space taken on this machine's disk.
        requests_per_s: The number of requests a second, at the given `records_per_s`. Fetching to a mirror
            does not slow down reading.
        price: The price that the store charges.
    """

    name: str
    requests: int
    bytes: int
    disk_bytes: int
    requests_per_s: float | None
    price: float


@frozen
class Plan:
    """An estimate of what a shard reads in whole epochs, made before reading.

    Attributes:
        records: The number of records of an epoch.
        bytes: The approximate number of bytes in memory; exact if no field varies in length.
        epochs: The number of epochs for which the ways are computed.
        ways: The cost of each way to read the caches; empty if there is no cache.
        chosen: The way that is taken: "ranges", "blocks" or "mirror"; "here" if nothing must be fetched.
        why: The reason for this way.
        of_blocks: Whether the order is of blocks.
        index_bytes: The number of bytes that each process holds in memory to find what views have, such as
            the episodes of windows.
    """

    records: int
    bytes: int
    epochs: int = 1
    ways: tuple[ReadingCost, ...] = ()
    chosen: str = ""
    why: str = ""
    of_blocks: bool = False
    index_bytes: int = 0

    def way(self, name: str) -> ReadingCost:
        """Return the cost of the way with a name.

        Raises:
            ConfigurationError: if the plan has no such way.
        """
        for way in self.ways:
            if way.name == name:
                return way
        known = ", ".join(way.name for way in self.ways)
        reason = f": only {known}" if known else f": {self.why}" * bool(self.why)
        raise ConfigurationError(f"the plan has no way called {name!r}{reason}")

    def __str__(self) -> str:
        epochs = f"{self.epochs:,} epoch{'s' * (self.epochs > 1)}"
        lines = [f"{epochs} of {self.records:,} records, {in_words(self.bytes)} in memory"]
        if self.index_bytes:
            lines[0] += f", besides an index of {in_words(self.index_bytes)}"
        if self.why:
            lines[0] += f": {self.chosen}, since {self.why}" if self.chosen else f": {self.why}"
        if self.ways and self.chosen != "here":
            header = ("", "requests", "requests/s", "bytes", "disk", "price")
            rows = [header, *(_row(way, is_estimate=not self.of_blocks) for way in self.ways)]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for name, *rest in rows:
                cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
                lines.append("  ".join([name.ljust(widths[0]), *cells]))
            if not self.of_blocks:
                lines.append(_BLOCKS_FOOTNOTE)
        return "\n".join(lines)


def _row(way: ReadingCost, *, is_estimate: bool) -> tuple[str, ...]:
    rate = "" if way.requests_per_s is None else f"{way.requests_per_s:,.0f}"
    disk = in_words(way.disk_bytes) if way.disk_bytes else ""
    price = "<$0.01" if 0 < way.price < 0.01 else f"${way.price:,.2f}"
    name = way.name + "*" * (is_estimate and way.name == "blocks")
    return name, f"{way.requests:,}", rate, in_words(way.bytes), disk, price


def plan(
    make: Batches | Records, cut: Cut, epochs: Any, records_per_s: Any, prices: Any
) -> Plan:  # epochs, records_per_s, prices: from the user, checked here
    """Return what this many epochs of a run's shard read, for items made and cut in the same way."""
    epochs = int_argument("epochs", epochs, 1)
    records_per_s = above_zero("records_per_s", records_per_s)
    if not isinstance(prices, Prices | None):
        raise ConfigurationError(f"prices must be yogadl.Prices(...), not {prices!r}")
    run = make.run
    records = run.shard.own(0)
    size_bytes = records * run.source.record_bytes
    views = list(views_of(run.source))
    caches = list(dict.fromkeys(view for view in views if isinstance(view, Stored)))
    index_bytes = sum(view.index_bytes for view in views)
    if not caches:
        why = "the records come from no storage, so the cost is unknown"
        return Plan(records, size_bytes, epochs, why=why, index_bytes=index_bytes)
    planners, share = _count_first_records(make, cut, caches, is_of_blocks=False)
    of_blocks, held_bytes = run.block_ahead is not None, run.block_ahead and run.block_ahead.held_bytes
    costs_of_ways: dict[str, list[tuple[Any, ...]]] = {
        "ranges": [(*planner.by_range(share, epochs), 0) for planner in planners],
        "mirror": [planner.by_mirror() for planner in planners],
        "blocks": [(*planner.by_blocks(share, epochs), 0) for planner in planners],
    }
    if of_blocks:
        blocks, share = _count_first_records(make, cut, caches, is_of_blocks=True)
        costs_of_ways["blocks"] = [(*planner.by_range(share, epochs), 0) for planner in blocks]
    seconds = None if records_per_s is None else max(1, records) * epochs / records_per_s
    ways = _ways(planners, costs_of_ways, seconds, prices)
    reads = dict(reads_of(run.source, records))
    choices = {
        planner.choice(reads[cache], held_bytes) for cache, planner in zip(caches, planners, strict=True)
    }
    names = [name for name in ("ranges", "blocks", "mirror", "here") if name in {name for name, _ in choices}]
    why = "; ".join(sorted({why for _, why in choices}))
    return Plan(records, size_bytes, epochs, ways, " and ".join(names), why, of_blocks, index_bytes)


def _count_first_records(
    make: Batches | Records, cut: Cut, caches: Sequence[Any], *, is_of_blocks: bool
) -> tuple[list[Any], float]:
    """Return a planner for each cache that has counted the epoch's first records, and the share of these."""
    planners: dict[Any, Any] = {cache: cache.planner() for cache in caches}

    def add(cache: Any, indices: Indices, fields: Sequence[int] | None, stretches: Stretches | None) -> Any:
        return planners[cache].add(indices, fields, stretches)

    def hold(
        window: tuple[int, str],
        cache: Any,
        indices: Indices,
        fields: Sequence[int] | None,
        stretches: Stretches | None,
    ) -> Any:
        return planners[cache].add(indices, fields, stretches, window=window)

    def add_lengths(cache: Any, indices: Indices, fields: Sequence[int] | None, _: Stretches | None) -> Any:
        return planners[cache].add_lengths(indices, fields)

    run = make.run
    for view in views_of(run.source):
        for indices, number in view.first_lengths():
            view.parents[0].will_need(indices, (number,), add_lengths)
    blocks = run.planned_blocks(hold) if is_of_blocks else None
    records, counted, together = run.shard.own(0), 0, max(1, INDICES_PER_CHUNK // cut.size) * cut.size
    epoch = run, Cut(cut.size, cut.drop_remainder), Point(0, 0), 1
    for rows, _ in reads_of_rows(*epoch, make.sizes(cut.size), add, blocks):
        counted += len(rows)
        # Stop where a chunk of rows from the order ends: nothing was announced beyond it.
        if counted >= COUNTED and not counted % together:
            covered = counted if blocks is None else blocks.records
            return list(planners.values()), min(1.0, covered / records)
    return list(planners.values()), 1.0


def _ways(
    planners: Sequence[Any],
    costs_of_ways: dict[str, list[tuple[Any, ...]]],
    seconds: float | None,
    prices: Prices | None,
) -> tuple[ReadingCost, ...]:
    ways = []
    for name, costs in costs_of_ways.items():
        requests, size_bytes, disk_bytes = (sum(column) for column in zip(*costs, strict=True))
        rate = None if seconds is None or name == "mirror" else requests / seconds
        price = sum(
            (prices or planner.prices).of(cost[0], cost[1])
            for planner, cost in zip(planners, costs, strict=True)
        )
        ways.append(ReadingCost(name, requests, size_bytes, disk_bytes, rate, price))
    return tuple(ways)
