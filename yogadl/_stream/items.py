"""Read records and make items of them: single records, or batches cut out of large reads.

The cost of a batch beyond the copy is Python code. Therefore small records are gathered for many batches at
once, and the batches are slices: disjoint, C-contiguous views that no other code reads or writes. Large
records are gathered batch by batch, because fresh memory of many MB is faulted in page by page. If several
threads read, the smallest batches are copied out of the gathered memory, which is in the CPU's cache, and
others are gathered two at a time: a batch that is kept then keeps at most twice its bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from yogadl._core.frozen import frozen
from yogadl._core.protocols import Column, OnPlanned
from yogadl._stream.cut import Cut, Flags, Point, Rows
from yogadl._stream.run import Ahead, Run
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from yogadl._stream.block_ahead import BlockAhead, MixedBlockAhead
    from yogadl._views.stages import Stage

# The size of one read, unless a single batch is larger. Chosen by benchmarks/: larger reads don't help any
# more, and the gathered memory should still be in the CPU's cache when the batch is used.
MOST_BYTES = 1_500_000
ALONE_BYTES = 1_000_000  # a batch at least this large is read by itself
TOGETHER = 4  # the least number of smaller batches in a read, all of which a thread delivers at once
# Several threads read two batches at least this large together; if one is kept, both are. Smaller batches are
# copied out of larger reads.
PAIR_BYTES = 250_000
UNLOCKED_RECORDS = 512  # rows from which numpy releases the GIL while it gathers
UNLOCKED_BYTES = 4096  # the size of a row from which numpy releases the GIL for any number of rows
RECORDS_BYTES = 1_000_000
MOST_RECORDS = 1024

Finish = Callable[[Any, Flags], Any]


# The items of one read: their number, and an iterator that makes each of them quickly.
Read = tuple[int, Iterator[Any]]
# A read still to be made: the number of its items, and a function that reads them one by one in any thread.
Pending = tuple[int, Callable[[], Iterator[Any]]]
ItemStage = Callable[[Iterator[Any]], Iterator[Any]]  # a function of all items, such as a prefetch


@frozen
class Records:
    """Makes items that are single records of a run, with what `Batches` has: functions belong to the run."""

    collate: ClassVar[None] = None
    reduce: ClassVar[None] = None
    stages: ClassVar[tuple["Stage", ...]] = ()
    is_plain: ClassVar[bool] = True
    run: Run

    def counted_anew(self) -> "Records":
        """Return the same for another loader; see `Run.counted_anew`."""
        return replace(self, run=self.run.counted_anew())

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the records from `start` to the epoch `end`, read by read."""
        for count, read in self.pending(cut, start, end):
            yield count, read()

    def pending(self, cut: Cut, start: Point, end: int | None) -> Iterator[Pending]:
        """Yield the reads of these records; any thread may make them."""
        for rows, _ in reads_of_rows(self.run, cut, start, end, self.sizes(cut.size)):
            yield len(rows), partial(self._read, rows)

    def sizes(self, _: int) -> tuple[int, int]:
        """Return the number of records in the first read, and the most in a read; see `reads_of_rows`."""
        most = self.run.at_once(RECORDS_BYTES, MOST_RECORDS)
        return min(16, most), most

    def _read(self, rows: Rows) -> Iterator[Any]:
        return iter(self.run.spec.records(self.run.read(rows), len(rows)))

    def item(self, rows: Rows) -> Any:
        """Return the record of one row."""
        [record] = self.cut(self.run.read(rows), rows.padding, 1)
        return record

    def cut(self, columns: Sequence[Column], flags: Flags, _: int) -> Iterator[Any]:
        """Return the records of their columns, one by one."""
        return iter(self.run.spec.records(columns, len(flags)))


@frozen
class Batches:
    """Makes items that are batches of a run's records.

    Args:
        run: The run.
        collate: Called with a batch's list of records, instead of stacking them.
        padding_field: The name of a field to add: a bool for each record, true for padding.
        stages: The functions that each batch passes through.
        is_single: Whether a batch is one record as it is, which may be a batch made by `DataRef.bucketed`.

    Raises:
        ConfigurationError: if an argument makes no sense, or the record has no place for the field.
    """

    reduce: ClassVar[Any] = None  # a function that says how objects with memory are pickled by a worker
    run: Run
    collate: Callable[[list[Any]], Any] | None = None
    padding_field: str | None = None
    stages: tuple["Stage", ...] = ()
    is_single: bool = False

    def __post_init__(self) -> None:
        if self.is_single and self.collate is not None:
            raise ConfigurationError(
                "collate makes a batch of several records, and with n=None each record is a batch: pass the "
                "function to map"
            )
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

    def counted_anew(self) -> Self:
        """Return the same for another loader; see `Run.counted_anew`."""
        return replace(self, run=self.run.counted_anew())

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the batches from `start` to the epoch `end`, read by read."""
        finish, batch = self.finish(), cut.size
        for rows, flags in reads_of_rows(self.run, cut, start, end, self.sizes(batch)):
            columns = self._read_several(rows, batch)
            if columns is None:
                for item in self._one_by_one(rows, flags, batch, finish):
                    yield 1, iter([item])
                    del item
            elif self.is_plain:
                yield -(-len(rows) // batch), _cut(columns, flags, batch, finish)
            else:
                # The user's functions run in the thread that reads, and an error must come after the batches
                # before it. Therefore the batches are handed over one by one.
                for number, item in enumerate(_cut(columns, flags, batch, finish)):
                    yield 1, iter([self._call_stages(item, rows[number * batch : number * batch + 1])])
                    del item
            del columns

    def sizes(self, batch: int) -> tuple[int, int]:
        """Return the number of records in the first read, and the most in a read; see `reads_of_rows`."""
        alone = self.run.record_bytes * batch
        is_single = alone >= ALONE_BYTES or self.run.calls_functions
        return batch, batch if is_single else batch * max(TOGETHER, MOST_BYTES // alone)

    def pending(self, cut: Cut, start: Point, end: int | None) -> Iterator[Pending]:
        """Yield the reads of these batches; any thread may make them. At most two batches share memory."""
        finish, batch = self.finish(), cut.size
        together = self._in_threads(batch)
        for rows, flags in reads_of_rows(self.run, cut, start, end, (batch, batch * together)):
            # A short batch would keep the memory of up to two others.
            is_copied = together > 2 or len(rows) % batch > 0
            yield -(-len(rows) // batch), partial(self._read_batches, rows, flags, batch, finish, is_copied)

    def _in_threads(self, batch: int) -> int:
        """Return the number of batches that a thread reads at a time, if several threads read.

        A gather that holds the GIL stops the other threads, so it should be small.
        """
        size = self.run.record_bytes
        alone, unlocked = size * batch, 1 if size >= UNLOCKED_BYTES else -(-UNLOCKED_RECORDS // batch)
        if self.run.calls_functions or not self.is_plain or (alone >= ALONE_BYTES and unlocked == 1):
            return 1
        if alone >= PAIR_BYTES and unlocked <= 2:
            return 2
        return max(TOGETHER, unlocked, MOST_BYTES // alone)

    def _read_several(self, rows: Rows, batch: int) -> Sequence[Column] | None:
        """Read the rows of several batches, or None if there is only one, or they must be read one by one."""
        if len(rows) <= batch:  # a single batch is not cut, and must not be held here
            return None
        try:
            return self.run.read(rows)
        except Exception:  # noqa: BLE001  (the error is raised again, after the batches before it)
            return None

    def _one_by_one(self, rows: Rows, flags: Flags, batch: int, finish: Finish) -> Iterator[Any]:
        """Yield the batches of one read, each read by itself, and passed through the functions."""
        for first in range(0, len(rows), batch):
            batch_rows, padding = rows[first : first + batch], flags[first : first + batch]
            if self.padding_field is not None:
                padding = padding.copy()  # otherwise a batch that is kept would keep the flags of many
            yield self._call_stages(finish(self.run.read(batch_rows), padding), batch_rows[:1])

    def _read_batches(
        self, rows: Rows, flags: Flags, batch: int, finish: Finish, is_copied: bool
    ) -> Iterator[Any]:
        """Yield the batches of one read, in memory that at most two of them share."""
        columns = self._read_several(rows, batch)
        if columns is None:
            return self._one_by_one(rows, flags, batch, finish)
        if is_copied:
            return _cut(columns, flags, batch, lambda parts, padding: finish(_copies(parts), padding.copy()))
        return _cut(columns, flags.copy(), batch, finish)

    def then(self, function: Callable[..., Any], seed: int | None) -> "Batches":
        """Return these batches with one more function that each passes through."""
        return replace(self, stages=self.run.then(self.stages, function, seed))

    @property
    def is_plain(self) -> bool:
        """Whether the items are made of their columns without a function of the user's."""
        return self.collate is None and not self.stages

    def item(self, rows: Rows) -> Any:
        """Return the batch of some rows."""
        return self._call_stages(self.finish()(self.run.read(rows), rows.padding), rows[:1])

    def cut(self, columns: Sequence[Column], flags: Flags, size: int) -> Iterator[Any]:
        """Return the batches of the columns of several, one after another."""
        return _cut(columns, flags, size, self.finish())

    def _call_stages(self, batch: Any, first: Rows) -> Any:
        """Return the functions' result for the batch that begins with this row."""
        return passed(self.stages, batch, first, "the batch that begins with record", self.run)

    def finish(self) -> Finish:
        """Return the function that makes a batch of its columns and padding flags."""
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
                batch = assemble(self.values(columns))
                [batch[name]] = self.values([flags])
                return batch

        else:

            def finish(columns: Any, flags: Flags) -> Any:
                return assemble(self.values(columns))

        return finish

    def values(self, columns: Sequence[Any]) -> Sequence[Any]:
        """Return what a batch has of each column: the column, or the value of its only record."""
        return [column[0] for column in columns] if self.is_single else columns


def passed(stages: "tuple[Stage, ...]", item: Any, first: Rows, what: str, run: Run) -> Any:
    """Return the functions' result for the item that begins with this row."""
    for stage in stages:
        [item] = stage.call([item], run.numbers(first), first.pieces, run.counters.add, what)
    return item


def reads_of_rows(
    run: Run,
    cut: Cut,
    start: Point,
    end: int | None,
    sizes: tuple[int, int],
    on_planned: OnPlanned | None = None,
    blocks: "BlockAhead | MixedBlockAhead | None" = None,
) -> Iterator[tuple[Rows, Flags]]:
    """Yield the rows of each read and their padding flags, and announce the rows that follow.

    The first read has the first size of `sizes`; each next one is twice as large, up to the second size.
    """
    size, most = sizes
    for rows in run.chunks(cut, start, end):
        ahead = Ahead(run, rows, on_planned, blocks)
        padding = rows.padding  # all at once, since small arrays between large ones fragment the memory
        first, total = 0, len(rows)
        while first < total:
            last = min(total, first + size)
            yield ahead.of(first, last), padding[first:last]
            first, size = last, min(2 * size, most)


def _copies(columns: Sequence[Column]) -> list[Column]:
    return [column.copy() if isinstance(column, np.ndarray) else column for column in columns]


def _cut(columns: Sequence[Column], flags: Flags, size: int, finish: Finish) -> Iterator[Any]:
    """Cut the columns of one read into batches."""
    pieces = [_slices(column, size) for column in columns]
    for *parts, padding in zip(*pieces, _slices(flags, size), strict=True):
        yield finish(parts, padding)


def _slices(column: Column, size: int) -> Iterator[Any]:
    """Cut a column into pieces of `size` rows and a shorter last one."""
    rows = len(column)
    full = rows - rows % size
    if isinstance(column, np.ndarray):  # iterating over it makes the views in C
        yield from column[:full].reshape(full // size, size, *column.shape[1:])
    else:
        yield from (column[first : first + size] for first in range(0, full, size))
    if full < rows:
        yield column[full:]
