"""Read records and make them items: records one by one, or batches cut out of large reads.

What a batch costs beyond the copy is Python, so small records are gathered for many batches at once and
handed out as slices: disjoint, C-contiguous views that nothing else reads or writes. Large ones are
gathered batch by batch, because fresh memory of many MB is faulted in page by page. Where several threads
read, the smallest batches are copied out of what was gathered, which is in the CPU's cache, and others are
gathered two at a time: one that is kept then keeps no more than twice its bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from yogadl._frozen import frozen
from yogadl._interfaces import Column, Planned
from yogadl._stream.ahead import Ahead
from yogadl._stream.cut import Cut
from yogadl._stream.rows import Flags, Rows
from yogadl._stream.run import Counters, Run
from yogadl._stream.shard import Point
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from yogadl._chain import Stage
    from yogadl._stream.block_ahead import BlockAhead

# Of one read, unless a single batch is larger. Chosen by benchmarks/: more no longer helps, and what
# is gathered here should still be in the CPU's cache when the batch is used.
MOST_BYTES = 1_500_000
ALONE_BYTES = 1_000_000  # a batch this large is read by itself
TOGETHER = 4  # and smaller ones so many at a time at least: a thread hands over reads, not batches
# Several threads read two batches as large as this together, and one that is kept keeps both; smaller ones
# are copied out of reads of more.
PAIR_BYTES = 250_000
UNLOCKED_RECORDS = 512  # so many are gathered without Python's lock, or fewer that are as large as this:
UNLOCKED_BYTES = 4096
RECORDS_BYTES = 1_000_000
MOST_RECORDS = 1024

Finish = Callable[[Any, Flags], Any]


# The items of one read: how many, and one after another. What is left to do for each is little.
Read = tuple[int, Iterator[Any]]
# A read that is still to be made: how many items, and what any thread may call to read them one by one.
Pending = tuple[int, Callable[[], Iterator[Any]]]


@frozen
class Records:
    """Make items that are single records of a run."""

    run: Run

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the records from `start` to the epoch `end`, read by read."""
        for count, read in self.pending(cut, start, end):
            yield count, read()

    def pending(self, cut: Cut, start: Point, end: int | None) -> Iterator[Pending]:
        """Yield the reads of these records, to be made in any thread."""
        for rows, _ in _parts(self.run, cut, start, end, self._sizes()):
            yield len(rows), partial(self._read, rows)

    def planned(
        self, cut: Cut, epoch: int, planned: Planned, blocks: "BlockAhead | None" = None
    ) -> Iterator[int]:
        """Yield how many records each read of an epoch has, and tell `planned` of each; reads nothing."""
        for rows, _ in _parts(self.run, cut, Point(epoch, 0), epoch + 1, self._sizes(), planned, blocks):
            yield len(rows)

    def _sizes(self) -> tuple[int, int]:
        most = self.run.at_once(RECORDS_BYTES, MOST_RECORDS)
        return min(16, most), most

    def _read(self, rows: Rows) -> Iterator[Any]:
        return iter(self.run.spec.records(self.run.read(rows), len(rows)))

    @property
    def is_plain(self) -> bool:
        """Whether they are made of their columns by no function of the user's."""
        return True

    @property
    def stages(self) -> tuple["Stage", ...]:
        """Functions that each item is passed through: those of records are of the run."""
        return ()

    def item(self, rows: Rows) -> Any:
        """Return the record of one row."""
        [record] = self.cut(self.run.read(rows), rows.padding, 1)
        return record

    def cut(self, columns: Sequence[Column], flags: Flags, _: int) -> Iterator[Any]:
        """Make records of their columns."""
        return iter(self.run.spec.records(columns, len(flags)))


@frozen
class Batches:
    """Make items that are batches of a run's records.

    Args:
        run: Whose records.
        collate: Called with a batch's list of records instead of stacking.
        padding_field: The name under which a bool per record says which are padding.
        stages: Functions that each batch is passed through.

    Raises:
        ConfigurationError: if one of them makes no sense, or the record has no place for the field.
    """

    run: Run
    collate: Callable[[list[Any]], Any] | None = None
    padding_field: str | None = None
    stages: tuple["Stage", ...] = ()

    def __post_init__(self) -> None:
        if self.collate is not None and not callable(self.collate):
            raise ConfigurationError(f"collate must be a function of a list of records, not {self.collate!r}")
        name = self.padding_field
        if name is None:
            return
        if not isinstance(name, str):
            raise ConfigurationError(f"padding_field must be the name of a field, not {name!r}")
        keys = self.run.spec.keys()
        if keys is None:
            raise ConfigurationError(
                f"padding_field={name!r} needs a place in the record: make the records dicts"
            )
        if name in keys:
            raise ConfigurationError(f"the record has a {name!r} already: choose another padding_field")

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the batches from `start` to the epoch `end`, read by read."""
        finish, batch = self.finish(), cut.size
        for rows, flags in _parts(self.run, cut, start, end, self._sizes(batch)):
            columns = self._several(rows, batch)
            if columns is None:
                for item in self._one_by_one(rows, flags, batch, finish):
                    yield 1, iter([item])
                    del item
            elif self.is_plain:
                yield -(-len(rows) // batch), _cut(columns, flags, batch, finish)
            else:
                # Functions of the user's run where the reading does, which may be another thread, and
                # an error comes after the batches before it: so one by one.
                for number, item in enumerate(_cut(columns, flags, batch, finish)):
                    yield 1, iter([self._passed(item, rows[number * batch : number * batch + 1])])
                    del item
            del columns

    def planned(
        self, cut: Cut, epoch: int, planned: Planned, blocks: "BlockAhead | None" = None
    ) -> Iterator[int]:
        """Yield how many records each read of an epoch has, and tell `planned` of each; reads nothing."""
        sizes = self._sizes(cut.size)
        for rows, _ in _parts(self.run, cut, Point(epoch, 0), epoch + 1, sizes, planned, blocks):
            yield len(rows)

    def _sizes(self, batch: int) -> tuple[int, int]:
        alone = self.run.record_bytes * batch
        is_single = alone >= ALONE_BYTES or self.run.calls_functions
        return batch, batch if is_single else batch * max(TOGETHER, MOST_BYTES // alone)

    def pending(self, cut: Cut, start: Point, end: int | None) -> Iterator[Pending]:
        """Yield the reads of these batches, to be made in any thread. No more than two share memory."""
        finish, batch = self.finish(), cut.size
        together = self._in_threads(batch)
        for rows, flags in _parts(self.run, cut, start, end, (batch, batch * together)):
            is_copied = together > 2 or len(rows) % batch > 0  # a short one would keep a whole one
            yield -(-len(rows) // batch), partial(self._owned, rows, flags, batch, finish, is_copied)

    def _in_threads(self, batch: int) -> int:
        """Return how many batches a thread reads at a time, where there are several threads.

        What holds Python's lock stops the others, so what is gathered with it held is to be little.
        """
        size = self.run.record_bytes
        alone, unlocked = size * batch, 1 if size >= UNLOCKED_BYTES else -(-UNLOCKED_RECORDS // batch)
        if self.run.calls_functions or not self.is_plain or (alone >= ALONE_BYTES and unlocked == 1):
            return 1
        if alone >= PAIR_BYTES and unlocked <= 2:
            return 2
        return max(TOGETHER, unlocked, MOST_BYTES // alone)

    def _several(self, rows: Rows, batch: int) -> Sequence[Column] | None:
        """Read rows of several batches; None: of one alone, or they must be read one by one."""
        if len(rows) <= batch:  # then nothing is to be cut, and nothing kept that the consumer lets go of
            return None
        try:
            return self.run.read(rows)
        except Exception:  # noqa: BLE001  (it comes again, after the batches before it)
            return None

    def _one_by_one(self, rows: Rows, flags: Flags, batch: int, finish: Finish) -> Iterator[Any]:
        for first in range(0, len(rows), batch):
            some, padding = rows[first : first + batch], flags[first : first + batch]
            if self.padding_field is not None:
                padding = padding.copy()  # or a batch that is kept would keep those of many
            yield self._passed(finish(self.run.read(some), padding), some[:1])

    def _owned(self, rows: Rows, flags: Flags, batch: int, finish: Finish, is_copied: bool) -> Iterator[Any]:
        """Yield the batches of one read, in memory that no more than two share."""
        columns = self._several(rows, batch)
        if columns is None:
            return self._one_by_one(rows, flags, batch, finish)
        if is_copied:
            return _cut(columns, flags, batch, lambda parts, padding: finish(_copies(parts), padding.copy()))
        return _cut(columns, flags.copy(), batch, finish)

    def then(self, function: Callable[..., Any], seed: int | None) -> "Batches":
        """Return the same with one more function that each batch is passed through."""
        return replace(self, stages=self.run.then(self.stages, function, seed))

    @property
    def is_plain(self) -> bool:
        """Whether they are made of their columns by no function of the user's."""
        return self.collate is None and not self.stages

    def item(self, rows: Rows) -> Any:
        """Return the batch of some rows."""
        return self._passed(self.finish()(self.run.read(rows), rows.padding), rows[:1])

    def cut(self, columns: Sequence[Column], flags: Flags, size: int) -> Iterator[Any]:
        """Make batches of the columns of several, one after another."""
        return _cut(columns, flags, size, self.finish())

    def _passed(self, batch: Any, first: Rows) -> Any:
        """Return what the functions make of the batch that begins with this row."""
        return passed(self.stages, batch, first, "the batch that begins with record", self.run.counters)

    def finish(self) -> Finish:
        """Return what makes a batch of its columns and padding flags."""
        spec, assemble = self.run.spec, self.run.spec.assemble
        collate, name = self.collate, self.padding_field
        if collate is not None:

            def finish(columns: Any, flags: Flags) -> Any:
                records = spec.records(columns, len(flags))
                if name is not None:
                    for record, is_padding in zip(records, flags, strict=True):
                        record[name] = is_padding
                return collate(records)

        elif name is not None:

            def finish(columns: Any, flags: Flags) -> Any:
                batch = assemble(columns)
                batch[name] = flags
                return batch

        else:

            def finish(columns: Any, flags: Flags) -> Any:
                return assemble(columns)

        return finish


def passed(stages: "tuple[Stage, ...]", item: Any, first: Rows, what: str, counters: Counters) -> Any:
    """Return what functions make of the item that begins with this row."""
    for stage in stages:
        [item] = stage.call([item], first.indices, first.pieces, counters.add, what)
    return item


def _parts(
    run: Run,
    cut: Cut,
    start: Point,
    end: int | None,
    sizes: tuple[int, int],
    planned: Planned | None = None,
    blocks: "BlockAhead | None" = None,
) -> Iterator[tuple[Rows, Flags]]:
    """Yield the rows of each read and which of them are padding; those that come next are announced.

    The first read is of the first of `sizes`; each is twice as large as the one before, up to the second.
    """
    size, most = sizes
    for rows in run.chunks(cut, start, end):
        ahead = Ahead(run, rows, planned, blocks)
        padding = rows.padding  # of all at once: a small array between large ones breaks up the memory
        first, total = 0, len(rows)
        while first < total:
            last = min(total, first + size)
            ahead.of(first, last)
            yield rows[first:last], padding[first:last]
            first, size = last, min(2 * size, most)


def _copies(columns: Sequence[Column]) -> list[Column]:
    return [column.copy() if isinstance(column, np.ndarray) else column for column in columns]


def _cut(columns: Sequence[Column], flags: Flags, size: int, finish: Finish) -> Iterator[Any]:
    """Cut what one read gave into batches."""
    pieces = [_slices(column, size) for column in columns]
    for *parts, padding in zip(*pieces, _slices(flags, size), strict=True):
        yield finish(parts, padding)


def _slices(column: Column, size: int) -> Iterator[Any]:
    """Cut a column into pieces of `size` rows and a short last one."""
    rows = len(column)
    whole = rows - rows % size
    if isinstance(column, list):
        yield from (column[first : first + size] for first in range(0, whole, size))
    else:  # iterating over an array makes the views in C
        yield from column[:whole].reshape(whole // size, size, *column.shape[1:])
    if whole < rows:
        yield column[whole:]
