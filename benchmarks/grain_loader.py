"""Compare Grain's DataLoader over a cache with Grain over ArrayRecord files, and whole batches with the core.

Run ``python benchmarks/grain_loader.py``; needs Grain. (Not called grain.py: a script's own folder is the
first place where it looks for imports.) It justifies reading ahead in `yogadl.adapters.grain._items`.
"""

from collections.abc import Iterable
from typing import Any

import _sets
import grain
import numpy as np
from _measure import Settings, at_least, check_equal, clear, drain, interleave, main, rate, ratios, say
from _sets import Columns
from array_record.python.array_record_module import ArrayRecordWriter

import yogadl
from yogadl.adapters import grain as adapter

RECORDS = 60_000
FEW = 6_000  # for Grain's default ReadOptions, with which it takes its time
FILE_RECORDS = 2_000
BATCH = 256
NAME = "{uint8[32,32,3], int64} x 60 k"
IMAGE_BYTES = 32 * 32 * 3
NO_THREADS = grain.ReadOptions(0, 0)


class Decode(grain.transforms.Map):
    """Make a record of its bytes."""

    def map(self, element: bytes) -> Columns:
        """Return views into them."""
        image = np.frombuffer(element, np.uint8, IMAGE_BYTES).reshape(32, 32, 3)
        return {"image": image, "id": np.frombuffer(element, np.int64, 1, IMAGE_BYTES)[0]}


def measure(settings: Settings) -> None:
    """Measure shuffled epochs through Grain, record by record and in whole batches."""
    records = settings.scaled(RECORDS)
    columns = _sets.small_images(records)
    root = settings.path("cache")
    storage = yogadl.open_storage(root)
    storage.submit(columns, "set", "1")
    ref = storage.fetch("set", "1")
    paths = write_array_records(settings, columns, FILE_RECORDS)
    stream = ref.stream(shuffle=True, shuffle_seed=1)
    record_by_record(settings, stream, write_array_records(settings, columns, records), columns, NO_THREADS)
    record_by_record(settings, stream, paths, columns, NO_THREADS)
    few = ref[: settings.scaled(FEW)].stream(shuffle=True, shuffle_seed=1)
    record_by_record(settings, few, paths, columns, grain.ReadOptions())
    whole_batches(settings, stream, columns)
    clear(root)


def write_array_records(settings: Settings, columns: Columns, file_records: int) -> list[str]:
    """Write every record as its bytes, so that each can be read alone.

    How long a read takes grows with the records of its file.
    """
    paths = []
    for first in range(0, len(columns["id"]), file_records):
        paths.append(str(settings.path(f"{file_records}-{first:08d}.array_record")))
        writer = ArrayRecordWriter(paths[-1], "group_size:1,uncompressed")
        ours = slice(first, first + file_records)
        for image, number in zip(columns["image"][ours], columns["id"][ours], strict=True):
            writer.write(image.tobytes() + number.tobytes())
        writer.close()
    return paths


def check(batches: Iterable[Any], columns: Columns, wanted: Any) -> None:
    """Compare a first few batches."""
    for number, batch in zip(range(5), batches, strict=False):
        chosen = wanted[number * BATCH : (number + 1) * BATCH]
        check_equal(batch, _sets.take(columns, chosen), "Grain")


def record_by_record(
    settings: Settings, stream: Any, paths: list[str], columns: Columns, threads: grain.ReadOptions
) -> None:
    """Print the row of `make_dataloader` against ArrayRecord, with the same ReadOptions."""
    records = len(stream)
    say(f"record by record, {threads}")
    batch = grain.transforms.Batch(BATCH)
    ours = adapter.make_dataloader(stream, [batch], read_options=threads)
    theirs = grain.DataLoader(
        data_source=grain.sources.ArrayRecordDataSource(paths),
        sampler=grain.samplers.IndexSampler(records, shuffle=True, seed=1, num_epochs=1),
        operations=[Decode(), batch],
        read_options=threads,
    )
    check(ours, columns, stream.indices())
    works = {"ours": lambda: drain(ours), "Grain": lambda: drain(theirs)}
    times = interleave(works, settings.rounds, uncounted=1)
    settings.row(
        f"Grain record by record, ReadOptions({threads.num_threads}, {threads.prefetch_buffer_size}), "
        f"Batch({BATCH}), shuffled, {NAME}, against ArrayRecord in files of {-(-RECORDS // len(paths)):,}",
        at_least(3) if threads == NO_THREADS else None,  # its own threads take the time, whatever they read
        ratios(times["Grain"], times["ours"]),
        f"{rate(records, times['ours'])}; ArrayRecord {rate(records, times['Grain'])}",
        " x",
    )


def whole_batches(settings: Settings, stream: Any, columns: Columns) -> None:
    """Print the row of whole batches against the core, and what the Dataset API makes of them."""
    records = len(stream)
    loader = adapter.make_dataloader(stream, batch_size=BATCH)
    dataset = adapter.map_dataset(stream, BATCH).to_iter_dataset(NO_THREADS)
    core = stream.batch(BATCH)
    for batches in (loader, dataset):
        check(batches, columns, stream.indices())
    works = {
        "core": lambda: drain(core.at(epoch=0)),
        "DataLoader": lambda: drain(loader),
        "MapDataset": lambda: drain(dataset),
    }
    times = interleave(works, settings.rounds)
    for name in ("DataLoader", "MapDataset"):
        settings.row(
            f"Grain's {name} fed with whole batches of {BATCH}, shuffled, {NAME}, against the core",
            at_least(0.5),
            ratios(times["core"], times[name]),
            f"{rate(records, times[name])}; core {rate(records, times['core'])}",
        )


if __name__ == "__main__":
    main(__file__, measure)
