"""Read records and make them items: records one by one, or batches cut out of large reads.

What a batch costs beyond the copy is Python, so small records are gathered for many batches at once and
handed out as slices: disjoint, C-contiguous views that nothing else reads or writes. Large ones are
gathered batch by batch, because fresh memory of many MB is faulted in page by page.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from yogadl._frozen import frozen
from yogadl._interfaces import Column
from yogadl._stream.ahead import Ahead
from yogadl._stream.cut import Cut
from yogadl._stream.rows import Flags, Rows
from yogadl._stream.run import Run
from yogadl._stream.shard import Point
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from yogadl._chain import Stage

# Of one read, unless a single batch is larger. Chosen by benchmarks/: more no longer helps, and what
# is gathered here should still be in the CPU's cache when the batch is used.
MOST_BYTES = 1_500_000
ALONE_BYTES = 1_000_000  # a batch this large is read by itself
TOGETHER = 4  # and smaller ones so many at a time at least: a thread hands over reads, not batches
RECORDS_BYTES = 1_000_000
MOST_RECORDS = 1024

Finish = Callable[[Any, Flags], Any]


# The items of one read: how many, and one after another. What is left to do for each is little.
Read = tuple[int, Iterator[Any]]


@frozen
class Records:
    """Make items that are single records of a run."""

    run: Run

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the records from `start` to the epoch `end`, read by read."""
        run = self.run
        spec, read = run.spec, run.read
        most = run.at_once(RECORDS_BYTES, MOST_RECORDS)
        size = min(16, most)
        for rows in run.chunks(cut, start, end):
            ahead = Ahead(run, rows.indices)
            first = 0
            while first < len(rows):
                part = rows[first : first + size]
                ahead.of(first, first + len(part))
                yield len(part), iter(spec.records(read(part), len(part)))
                first, size = first + size, min(2 * size, most)


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
        run = self.run
        finish, read = self.finish(), run.read
        batch = cut.size
        alone = run.record_bytes * batch
        is_alone = alone >= ALONE_BYTES or run.calls_functions
        most = batch * (1 if is_alone else max(TOGETHER, MOST_BYTES // alone))
        size = batch
        for rows in run.chunks(cut, start, end):
            ahead = Ahead(run, rows.indices)
            padding = rows.padding  # of all at once: a small array between large ones breaks up the memory
            first, total = 0, len(rows)
            while first < total:
                last = min(total, first + size)
                ahead.of(first, last)
                part = rows[first:last]
                columns, flags = read(part), padding[first:last]
                if last - first <= batch:  # nothing to cut, and nothing kept that the consumer lets go of
                    yield 1, iter([self._passed(finish(columns, flags), part[:1])])
                elif self.collate is None and not self.stages:
                    yield -(-(last - first) // batch), _cut(columns, flags, batch, finish)
                else:
                    # Functions of the user's run where the reading does, which may be another thread, and
                    # an error comes after the batches before it: so one by one.
                    for number, item in enumerate(_cut(columns, flags, batch, finish)):
                        yield 1, iter([self._passed(item, part[number * batch : number * batch + 1])])
                        del item
                del columns
                first, size = last, min(2 * size, most)

    def _passed(self, batch: Any, first: Rows) -> Any:
        """Return what the functions make of the batch that begins with this row."""
        for stage in self.stages:
            [batch] = stage.call([batch], first.indices, first.pieces, "the batch that begins with record")
        return batch

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
