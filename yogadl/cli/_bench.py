"""Estimate, and measure, what reading a version takes."""

import argparse
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.protocols import Prices
from yogadl._dataref import RecordsRef
from yogadl._order import Blocks
from yogadl.cli._arguments import (
    BATCH,
    TAGGED,
    Answer,
    command,
    declared,
    fetch,
    key_of,
    number_of,
    open_version,
    typed,
)
from yogadl.cli._output import Bar, counted, size, table
from yogadl.storage._storage import CacheStorage

_PLANNED_BLOCK_BYTES: Final = 2**20
_WINDOW: Final = 16


@command(
    *TAGGED,
    *BATCH,
    *declared(
        """
        --shuffle {global,blocks,no}  the order: a global shuffle (the default), a shuffle of blocks of about
            1 MB, or none
        --shards N  how many processes share an epoch
        --epochs N  how many epochs are read (default: 1)
        --fields A,B  only these fields are read (default: all)
        --records-per-s N  how fast each process reads: adds how many requests it makes a second
        --price DOLLARS  the price of 1,000 requests (default: that of S3 or Google Cloud Storage)
        --price-per-gb DOLLARS  the price of a GB that leaves the store (default: 0, as in the store's own
            region)
        """,
        shuffle={"default": "global"},
        shards=typed(number_of("shards"), 1),
        epochs=typed(number_of("epochs"), 1),
        records_per_s=typed(number_of("records a second", float, 0.001)),
        price=typed(number_of("dollars", float, 0)),
        price_per_gb=typed(number_of("dollars", float, 0)),
    ),
)
def plan(arguments: argparse.Namespace) -> Answer:
    """Estimate what reading a version takes and costs, in advance.

    For a cache in a bucket the command compares two ways to read it: each record by range, or a download of
    all of it to this machine. For each way the plan shows the requests, the bytes, the disk space and the
    price for one process, and the plan names the way that yogadl takes. Only the manifest and the part table
    are read for this. The plan is that of this machine, with the parts that its mirror has now; fetching a
    version of which up to 64 MiB are missing downloads these at once.

    Example:
      yogadl plan squares 1 --shards 8 --records-per-s 20000 -s s3://bucket/caches
    """
    storage = open_version(arguments)
    ref = fetch(_to_plan(storage), arguments)
    if arguments.fields is not None:
        ref = ref.fields(*arguments.fields.split(","))
    blocks = Blocks(records=max(1, _PLANNED_BLOCK_BYTES // max(1, ref.record_bytes)), window=_WINDOW)
    orders: dict[str, bool | Blocks] = {"global": True, "blocks": blocks, "no": False}
    stream = ref.stream(shuffle=orders[arguments.shuffle], num_shards=arguments.shards)
    prices = None
    if (arguments.price, arguments.price_per_gb) != (None, None):
        prices = Prices(arguments.price or 0.0, arguments.price_per_gb or 0.0)
    found = stream.batch(arguments.batch).plan(
        epochs=arguments.epochs, records_per_s=arguments.records_per_s, prices=prices
    )
    share = f", of which a process reads one in {arguments.shards}" if arguments.shards > 1 else ""
    title = f"{arguments.id} {arguments.version}: {len(ref):,} records{share}."
    return Answer(key_of(storage, arguments) | asdict(found), [title, "", *str(found).splitlines()])


def _to_plan(storage: CacheStorage) -> CacheStorage:
    """Return the same storage, whose `fetch` downloads no part of a version."""
    backend = storage._backend
    catalogue = replace(backend.catalogue, opener=backend.catalogue.opener.to_plan())
    return CacheStorage(replace(backend, catalogue=catalogue))


_SECONDS: Final = 5.0
_SAMPLE_BYTES: Final = 256 * 2**20
_BLOCK_BYTES: Final = 512  # the unit of `ru_inblock` on Linux, whatever the disk's block size is
_COLD_SHARE: Final = 0.01
_SHOW_S: Final = 0.5
_TITLES: Final = {
    "shuffled": "shuffled",
    "shuffled_threads": "shuffled, {} threads",
    "shuffled_workers": "shuffled, {} workers",
    "in_order": "in order",
    "ram": "numpy in RAM, shuffled",
}
_AHEAD: Final = 2  # batches that are read ahead for each thread or worker

Column = NDArray[Any] | list[Any]


@dataclass(frozen=True)
class _Measured:
    """The records read in one way, the time that this took, and the bytes that came from the disk."""

    records: int
    elapsed_s: float
    disk_bytes: int | None

    @property
    def records_per_s(self) -> float:
        return self.records / self.elapsed_s


@dataclass(frozen=True)
class _LoadedRecords:
    """Some of the records, in RAM: one array for each field, or a list if the field's length varies."""

    columns: Sequence[Column]
    records: int

    @property
    def record_bytes(self) -> float:
        return sum(map(_size_of, self.columns)) / self.records

    def batches(self, batch: int) -> Iterator[list[Column]]:
        """Yield shuffled batches without end; every value in them is a copy, as in a cache's batch."""
        random = np.random.default_rng(0)
        while True:
            order = random.permutation(self.records)
            for first in range(0, self.records, batch):
                chosen = order[first : first + batch]
                yield [_gathered(column, chosen) for column in self.columns]


@command(
    *TAGGED,
    *BATCH,
    *declared(
        f"""
        --seconds SECONDS  how long each way is measured (default: {_SECONDS:g})
        --threads K  also measure shuffled reading by this many threads, each {_AHEAD} batches ahead
        --workers K  also measure shuffled reading by this many worker processes, each {_AHEAD} batches ahead
        --allow-pickle  read pickled fields, which can run any code of their author
        """,
        seconds=typed(number_of("seconds", float, 0.01), _SECONDS),
        threads=typed(number_of("threads")),
        workers=typed(number_of("workers")),
    ),
    has_bar=True,
)
def bench(arguments: argparse.Namespace) -> Answer:
    """Compare the speed of reading a version with numpy arrays in RAM.

    Three ways are measured, each for --seconds: batches of the cache, shuffled; batches of the cache, in
    order; and batches that numpy gathers from a sample of the same records in RAM. The column `from disk`
    shows how many bytes came from the disk because the machine's memory (the page cache) did not hold them.
    The first run on a large cache is therefore slower than the next one. A cache that is larger than the
    memory stays slow.

    Example:
      yogadl bench squares 1 --seconds 2 -s /data/caches
    """
    storage = open_version(arguments)
    ref = fetch(storage, arguments, allow_pickle=arguments.allow_pickle)
    batch, seconds = arguments.batch, arguments.seconds
    # Measure the cache before the sample is taken: taking the sample brings records into memory.
    measured_batches = _batches_to_measure(ref, batch, arguments.threads, arguments.workers)
    with Bar("measuring", (len(measured_batches) + 1) * seconds, "s") as bar:
        results = {}
        for name, batches in measured_batches.items():
            results[name] = _measure(batches, len(ref), batch, seconds, bar)
            batches.close()
        sample = _take_sample(ref)
        in_ram = _measure(sample.batches(batch), sample.records, batch, seconds, bar)
    from_cache = list(results.values())
    results["ram"] = in_ram
    document = {
        "records": len(ref),
        "record_bytes": sample.record_bytes,
        "batch": batch,
        "sample_records": sample.records,
        **{name: _to_json(measured, in_ram, sample.record_bytes) for name, measured in results.items()},
    }
    record = f"{size(sample.record_bytes)} each in memory"
    titles = {
        name: title.format(getattr(arguments, name.rpartition("_")[2], "")) for name, title in _TITLES.items()
    }
    rows = [_row(titles[name], measured, in_ram, sample.record_bytes) for name, measured in results.items()]
    rows[-1][-1] = ""
    held = size(sample.record_bytes * sample.records)
    lines: list[str | list[str]] = [
        f"{arguments.id} {arguments.version}: {counted(len(ref), 'record')}, {record}; batches of {batch}.",
        "",
        table(("", "records/s", "GB/s", "of RAM", "from disk"), rows, right=(1, 2, 3, 4)),
        "",
        f"For comparison, in RAM: {counted(sample.records, 'record')}, {held}.",
        _verdict(from_cache, sample.record_bytes),
    ]
    return Answer(key_of(storage, arguments) | document, lines)


def _batches_to_measure(
    ref: RecordsRef, batch: int, threads: int | None, workers: int | None
) -> dict[str, Any]:
    """Return an endless iterator over the cache's batches for each way of reading that is measured."""
    shuffled = ref.stream(shuffle=True).batch(batch, epochs=None)
    loaders = {"shuffled": shuffled}
    if threads is not None:
        loaders["shuffled_threads"] = shuffled.prefetch(_AHEAD * threads, threads=threads)
    if workers is not None:
        loaders["shuffled_workers"] = shuffled.prefetch(_AHEAD * workers, workers=workers)
    loaders["in_order"] = ref.stream().batch(batch, epochs=None)
    return {name: iter(loader) for name, loader in loaders.items()}


def _measure(batches: Iterator[Any], records: int, batch: int, seconds: float, bar: Bar) -> _Measured:
    """Measure the reading of batches for `seconds`; `records` is the number of records in an epoch.

    The first batch is not measured, because threads and processes start during it.
    """
    count, disk_before = 0, _read_blocks()
    next(batches)
    started = shown = time.perf_counter()
    until = started + seconds
    for _ in batches:
        count += 1
        now = time.perf_counter()
        if now >= until:
            break
        if now >= shown + _SHOW_S:  # redraw rarely, so that the drawing does not slow the measured loop
            bar.add(now - shown)
            shown = now
    bar.add(until - shown)
    disk_bytes = (_read_blocks() - disk_before) * _BLOCK_BYTES if sys.platform == "linux" else None
    return _Measured(
        _delivered(count + 1, records, batch) - _delivered(1, records, batch), now - started, disk_bytes
    )


def _delivered(batches: int, records: int, batch: int) -> int:
    """Return the number of records in the first `batches` batches; the last batch of an epoch is short."""
    epochs, rest = divmod(batches, -(-records // batch))
    return epochs * records + rest * batch


def _read_blocks() -> int:
    """Return the number of blocks that this process has read from the disk so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock


def _take_sample(ref: RecordsRef) -> _LoadedRecords:
    """Read the first records, at most `_SAMPLE_BYTES` of them."""
    count = min(len(ref), max(1, _SAMPLE_BYTES // ref.record_bytes))
    return _LoadedRecords(ref.columns(np.arange(count, dtype=np.int64)), count)


def _gathered(column: Column, chosen: NDArray[np.int64]) -> Column:
    if isinstance(column, np.ndarray):
        results: NDArray[Any] = column[chosen]
        return results
    return [_copied(column[number]) for number in chosen.tolist()]


def _copied(value: Any) -> Any:  # bytes, str or an array; any object in a pickled field
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, bytes):
        return bytes(memoryview(value))
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
    return value


def _size_of(column: Column) -> int:
    if isinstance(column, np.ndarray):
        return column.nbytes
    return sum(
        value.nbytes if isinstance(value, np.ndarray) else len(value)
        for value in column
        if isinstance(value, np.ndarray | bytes | str)  # the size of a pickled object is unknown
    )


def _row(title: str, measured: _Measured, in_ram: _Measured, record_bytes: float) -> list[str]:
    per_s = measured.records_per_s
    disk = "?" if measured.disk_bytes is None else size(measured.disk_bytes)
    share = f"{per_s / in_ram.records_per_s:.0%}"
    return [title, f"{per_s:,.0f}", f"{per_s * record_bytes / 1e9:.3g}", share, disk]


def _verdict(from_cache: Sequence[_Measured], record_bytes: float) -> str:
    disk_bytes = [measured.disk_bytes for measured in from_cache if measured.disk_bytes is not None]
    if not disk_bytes:
        return "This system does not report whether the records came from the disk or from memory."
    if sum(disk_bytes) < _COLD_SHARE * record_bytes * sum(measured.records for measured in from_cache):
        return "Warm: the cache was in memory. A first read from disk is slower."
    return "Partly cold: some records came from the disk. Run it again to see how many stay in memory."


def _to_json(measured: _Measured, in_ram: _Measured, record_bytes: float) -> dict[str, Any]:
    return {
        "records_per_s": measured.records_per_s,
        "bytes_per_s": measured.records_per_s * record_bytes,
        "share_of_ram": measured.records_per_s / in_ram.records_per_s,
        **asdict(measured),
    }
