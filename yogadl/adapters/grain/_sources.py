"""Give Grain records and batches by number: its random-access data sources.

All of them are safe to use from any number of threads and after a fork, and pickle if what they read does.
"""

import operator
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from yogadl._dataref import RecordsRef, as_ref
from yogadl._interfaces import RandomAccess
from yogadl._stream import INDICES, Ahead, NumberedBatches, Numbering, Point, RecordStream, Rows
from yogadl.adapters.grain._numbering import length_of

# Of one read ahead: Grain takes some 20 us a record, and so much is still in the CPU's cache when it is used.
_AHEAD_BYTES: Final = 1_000_000
_MOST_AHEAD: Final = 1024
_LEAST_AHEAD: Final = 16


def described(kind: str, source: RandomAccess) -> str:
    """Return what Grain's checkpoints know a data source by: the content's hash, everywhere the same."""
    return f"yogadl.{kind}(records={len(source)}, fingerprint={source.fingerprint!r})"


class DataSource:
    """Read the records of a `DataRef` by their index: a `grain.sources.RandomAccessDataSource`.

    For every sampler and every `grain.MapDataset.source`. What a record is read with, its batch or its
    neighbours in the order, is not known here: `make_dataloader` and `map_dataset` are faster.

    Args:
        ref: Where the records are.

    Raises:
        ConfigurationError: if `ref` has no random access.

    Example:
        >>> import grain, numpy as np, yogadl
        >>> from yogadl.adapters import grain as yogadl_grain
        >>> ref = yogadl.from_source({"x": np.arange(5)})
        >>> source = yogadl_grain.DataSource(ref)
        >>> list(grain.MapDataset.source(source).map(lambda record: int(record["x"])))
        [0, 1, 2, 3, 4]
    """

    def __init__(self, ref: RecordsRef) -> None:
        self._ref = as_ref(ref)
        self._name = described("DataSource", ref)

    def __len__(self) -> int:
        return len(self._ref)

    def __getitem__(self, index: Any) -> Any:
        return self._ref.__getitems__([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Any]:
        """Read many at once, where Grain asks so."""
        return self._ref.__getitems__(indices)

    def __repr__(self) -> str:
        return self._name


class _Planned(NamedTuple):
    """Items that are read one after another: their numbers, their rows, and what announces those."""

    numbers: range
    rows: Rows
    ahead: Ahead


class _Reading(threading.local):
    """What one thread read last, what it holds ready, and what it is to read next."""

    def __init__(self) -> None:
        self.last = -1
        self.step = 0
        self.count = 0
        self.ready: dict[int, Any] = {}
        self.planned: _Planned | None = None


class Records:
    """Read the records of a stream by number.

    Whoever asks for every w-th record, whatever w, finds the next ones ready, read at once; each thread reads
    for itself. A record that was handed out is its receiver's own: asked for again, it is read again.
    """

    def __init__(self, stream: RecordStream, numbering: Numbering, padding_field: str | None) -> None:
        self._stream = stream
        self._numbering = numbering
        self._run = stream.run
        self._padding_field = padding_field
        self._most = max(1, min(_MOST_AHEAD, _AHEAD_BYTES // stream.run.record_bytes))
        self._reading = _Reading()

    def __reduce__(self) -> Any:
        return Records, (self._stream, self._numbering, self._padding_field)

    def __len__(self) -> int:
        return length_of(self._numbering)

    def __repr__(self) -> str:
        return described("Records", self._run.source)

    def __getitem__(self, number: Any) -> Any:  # benchmarks/grain_loader.py: once a record
        reading = self._reading
        step = number - reading.last
        is_steady = step == reading.step and step > 0
        reading.last, reading.step = number, step
        if number in reading.ready:
            return reading.ready.pop(number)
        reading.count = min(self._most, max(_LEAST_AHEAD, 2 * reading.count)) if is_steady else 1
        reading.ready = self._read(operator.index(number), reading.count, max(1, step))
        return reading.ready.pop(number)

    def _read(self, number: int, count: int, step: int) -> dict[int, Any]:
        """Read so many records, every `step`-th of an epoch; of several, the next ones are announced."""
        planned = self._reading.planned
        if planned is None or number not in planned.numbers or step != planned.numbers.step:
            planned = self._reading.planned = self._plan(number, INDICES if count > 1 else 1, step)
        first = planned.numbers.index(number)
        last = min(len(planned.rows), first + count)
        if count > 1:
            planned.ahead.of(first, last)
        rows, run = planned.rows[first:last], self._run
        records = run.spec.records(run.read(rows), len(rows))
        if self._padding_field is not None:
            for record, is_padding in zip(records, rows.padding, strict=True):
                record[self._padding_field] = is_padding
        return dict(zip(planned.numbers[first:last], records, strict=True))

    def _plan(self, number: int, count: int, step: int) -> _Planned:
        """Return every `step`-th of so many rows of an epoch."""
        epoch, row = self._numbering.locate(number)
        run = self._run
        point = Point(epoch, run.origin(epoch))
        rows = run.rows(point, row, min(row + count, run.shard.own(point.position)))[::step]
        return _Planned(range(number, number + len(rows) * step, step), rows, Ahead(run, rows.indices))


class Batches:
    """Read the batches of a stream by number."""

    def __init__(self, batches: NumberedBatches, numbering: Numbering) -> None:
        self._batches = batches
        self._numbering = numbering

    def __len__(self) -> int:
        return length_of(self._numbering)

    def __repr__(self) -> str:
        return described("Batches", self._batches.stream.source)

    def __getitem__(self, number: Any) -> Any:
        return self._batches.batch(*self._numbering.locate(number))


class Dealt:
    """Read items by number, and ``None`` at the number behind the last: what an empty place holds.

    A worker whose last turn is short, or does not come, must see its items end; but Grain gives all of them
    as many places.
    """

    def __init__(self, source: Records | Batches) -> None:
        self._source = source
        self._empty = len(source)

    def __len__(self) -> int:
        return self._empty + 1

    def __repr__(self) -> str:
        return repr(self._source)

    def __getitem__(self, number: Any) -> Any:
        return None if number == self._empty else self._source[number]
