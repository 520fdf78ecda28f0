"""Values of exact sizes, of every kind, and records of them built and read in every way.

Whoever tests a size constant builds records just below, at, just above and several times that size, alone
and mixed with small ones, and lets `check_reads` compare what comes back.
"""

import importlib
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from inside import BatchMemory, columns_of, spec_of

# The writer: who imports a constant does so before it gets another value.
from inside import writer as _writer  # noqa: F401
from trees import assert_same

VARYING_KINDS = ("bytes", "str", "array")
SMALL = 3

# Constants of many kilobytes and more, made some 256 times smaller: tests of several times each are fast.
# All of them together, so that their proportions stay, as far as pages of 4 KiB allow it.
SCALED = {
    "_dataref._ITERATION_BYTES": 2**12,
    "_format.part.LARGE_COMMIT_BYTES": 2**17,
    "_format.part.SMALL_COMMIT_BYTES": 2**14,
    "_format.part._MAP_ROOM_BYTES": 2**18,
    "_format.layout.HEAP_BLOCK_BYTES": 2**12 - 16,
    "_format.layout._ROW_BLOCK_BYTES": 2**12,
    "_format.writer.PART_BYTES": 2**17 + 2**16,
    "_format.writer._FIRST_PART_BYTES": 2**16,
    "_format.writer._LEAST_ALIGNED_PART_BYTES": 2**12,
    "_format.writer._LEAST_BLOCK_BYTES": 2**8,
    "_core.memory._LEAST_BYTES": 2**12,
    "_core.columns.CHUNK_BYTES": 2**15,
    "_stream.run.AHEAD_BYTES": 125_000,
    "_stream.items.ALONE_BYTES": 3_906,
    "_stream.items.MOST_BYTES": 5_859,
    "_stream.items.PAIR_BYTES": 976,
    "_stream.items.RECORDS_BYTES": 3_907,
    "storage._builds.build._SAMPLED_BYTES": 2**12,
}


@contextmanager
def bounded(file_bytes: int = 2**30, processor_s: float = 10) -> Iterator[None]:
    """Let no file grow larger, and nothing run longer: a build that never ends fails, and fills no disk."""

    def fail(*_: object) -> None:
        raise TimeoutError(f"it took more than {processor_s} s of the processor")

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGVTALRM, fail)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, processor_s, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGVTALRM, handler)


def constant(name: str) -> int:
    """Return what a constant is now: a module of the library and a name in it, with a dot between."""
    module, _, name = name.rpartition(".")
    return getattr(importlib.import_module(f"yogadl.{module}"), name)


@contextmanager
def scaled(sizes: Mapping[str, int] = SCALED) -> Iterator[None]:
    """Give constants other values, also in the modules that imported them."""
    with pytest.MonkeyPatch.context() as patch:
        for dotted, size in sizes.items():
            before, name = constant(dotted), dotted.rpartition(".")[2]
            for module in [m for n, m in sys.modules.items() if n.partition(".")[0] == "yogadl"]:
                # The very number: another constant may have the same name and value.
                if vars(module).get(name) is before:
                    patch.setattr(module, name, size)
        yield


def made_small(sizes: Mapping[str, int]):
    """Return a fixture that gives constants these values in every test of the module that it is in."""

    @pytest.fixture(autouse=True)
    def small() -> Iterator[None]:
        with bounded(processor_s=60), scaled(sizes):
            yield

    return small


def around(limit: int) -> list[int]:
    """Return sizes just below a limit, at it, just above and several times as large."""
    return [limit - 1, limit, limit + 1, 3 * limit]


def value(kind: str, size_bytes: int, seed: int):
    """Return a value that takes exactly so many bytes, and differs from others of another seed."""
    content = np.random.default_rng(seed).integers(0, 256, size_bytes, np.uint8)
    if kind in ("array", "fixed"):
        return content
    if kind == "bytes":
        return content.tobytes()
    letters = (content % 26 + ord("a")).tobytes().decode()
    return "ü" + letters[2:] if size_bytes > 1 else letters


def arrangements(sizes: Sequence[int]) -> dict[str, list[int]]:
    """Return in which orders values of these sizes are stored, by themselves and among small ones."""
    return {
        "alone": [*sizes, *sizes[::-1]],
        "large ones first": [size for large in sizes for size in (large, SMALL, SMALL)],
        "small ones first": [size for large in sizes for size in (SMALL, 0, large)],
    }


def records_of(kind: str, sizes: Sequence[int]) -> list[dict[str, object]]:
    """Return records with a value of each size."""
    return [{"value": value(kind, size, seed), "number": seed} for seed, size in enumerate(sizes)]


def rows_of(sizes: Sequence[int], count: int = 4) -> list[dict[str, object]]:
    """Return records with a row of each of these sizes, before and after small values that vary."""
    return [
        {"before": "ab"[seed:]}
        | {str(size): value("fixed", size, seed) for size in sizes}
        | {"after": "abc"[: seed % 3]}
        for seed in range(count)
    ]


class Cut:
    """A source that gives records in chunks of chosen lengths, the last of them over and over."""

    can_start_anywhere = True

    def __init__(self, records: Sequence[object], lengths: Sequence[int]) -> None:
        self.spec = spec_of(records[0])
        self.length = len(records)
        self._records = records
        self._lengths = lengths

    def chunks(self, start: int = 0) -> Iterator[list[object]]:
        lengths = iter(self._lengths)
        while start < self.length:
            end = start + next(lengths, self._lengths[-1])
            yield columns_of(self.spec, self._records[start:end], start)
            start = end


def check_reads(ref, records: Sequence[dict[str, object]], batch: int = 3) -> None:
    """Fail unless a reference gives exactly these records, one by one, gathered, and in streams."""
    assert len(ref) == len(records)
    for number, record in enumerate(records):
        assert_same(ref[number], record)
    for found, record in zip(ref, records, strict=True):
        assert_same(found, record)
    backwards = np.arange(len(records))[::-1].copy()
    check_batch(ref.gather(backwards), records[::-1])
    check_batch(ref.spec.assemble(ref.columns(backwards, None, BatchMemory())), records[::-1])
    stream = ref.stream(shuffle=True, shuffle_seed=1)
    order = stream.indices().tolist()
    assert sorted(order) == list(range(len(records)))
    for found, number in zip(stream, order, strict=True):
        assert_same(found, records[number])
    for ahead in ({"n": 1}, {"n": 5}, {"n": 2, "threads": 2}):
        batches = list(stream.batch(batch).prefetch(**ahead))
        for first, found in zip(range(0, len(order), batch), batches, strict=True):
            check_batch(found, [records[number] for number in order[first : first + batch]])


def shuffled(ref, records: Sequence[dict[str, object]]):
    """Return a shuffled stream, and the records in the order in which it is to give them."""
    stream = ref.stream(shuffle=True, shuffle_seed=1)
    return stream, [records[number] for number in stream.indices().tolist()]


def check_batch(found, records: Sequence[dict[str, object]]) -> None:
    """Fail unless a batch has exactly these records."""
    assert list(found) == list(records[0])
    for name, column in found.items():
        for one, record in zip(column, records, strict=True):
            assert_same(one, record[name])
