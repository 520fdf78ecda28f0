"""Join the records of several references, one after another."""

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.protocols import (
    Announced,
    Column,
    Document,
    Indices,
    Memory,
    OnPlanned,
    RandomAccess,
    Stored,
)
from yogadl._core.spec import Spec
from yogadl._order.keys import bounds_reached
from yogadl._views.views import hash_of, origin_of
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from yogadl._format.fields import BlockPositions
    from yogadl._format.joined import JoinedFields

_MAX_RADIX_SORTED: Final = 2**16  # numpy sorts 16-bit integers in linear time

# The number of a parent, the indices of its requested records, and the positions of these in the batch.
_Share = tuple[int, Indices, Indices]


class JoinedRecords(RandomAccess):
    """The records of several parents, one after another; a batch reads each parent once.

    Args:
        parents: The records to join; the parents of a join are joined directly.

    Raises:
        ConfigurationError: if there are no parents, or their records are not alike.
    """

    spec: Spec
    fingerprint: str
    record_bytes: int
    parents: tuple[RandomAccess, ...] = ()
    is_drawn = False

    def __init__(self, parents: Sequence[RandomAccess]) -> None:
        found: list[RandomAccess] = []
        for parent in parents:
            found += parent.parents if isinstance(parent, JoinedRecords) else [parent]
        if not found:
            raise ConfigurationError("there is nothing to join: pass at least one DataRef")
        self.spec = found[0].spec
        for number, parent in enumerate(found[1:], 2):
            remedy = "Pass the same capacity and max_segments to all packed ones. " * parent.is_drawn
            _require_alike(self.spec, parent.spec, number, remedy)
        self.fingerprint = hash_of("concat", *((parent.fingerprint, len(parent)) for parent in found))
        self.parents = tuple(found)
        self._filled = list(filter(len, found)) or found[:1]
        self._bases = [origin_of(parent, np.empty(0, np.int64), 0)[0] for parent in self._filled]
        self._has_views = any(map(operator.is_not, self._bases, self._filled))
        lengths = np.array([len(parent) for parent in self._filled], np.int64)
        self._are_drawn = [parent.is_drawn for parent in self._filled]
        self.is_drawn = any(self._are_drawn)
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths
        size_bytes = sum(parent.record_bytes * len(parent) for parent in self._filled)
        self.record_bytes = max(1, size_bytes // max(1, len(self)))
        self._mapped: JoinedFields | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_mapped": None}  # the maps belong to this process

    def __len__(self) -> int:
        return int(self._ends[-1])

    def over(self, *parents: RandomAccess) -> "JoinedRecords":
        """Return the same view of the first records of the parents alone."""
        return JoinedRecords(parents)

    def will_need(
        self, indices: Indices, fields: Sequence[int] | None = None, on_planned: OnPlanned | None = None
    ) -> Announced:
        """Announce that these records will be read soon."""
        found = [
            self._filled[number].will_need(parent_indices, fields, on_planned)
            for number, parent_indices, _ in self._shares(indices)
        ]
        spared = min(announced.spared for announced in found)
        return Announced(spared, tuple(held for announced in found for held in announced.held))

    def file_of(self, index: int) -> str | None:
        """Return the path of the file that a record comes from, if its source lists it."""
        number = int(bounds_reached(np.array([index]), self._ends[:-1])[0])
        return self._filled[number].file_of(index - int(self._starts[number]))

    def prepare(self, indices: Indices) -> None:
        """Compute what many records are made of."""
        for number, parent_indices, _ in self._shares(indices):
            self._filled[number].prepare(parent_indices)

    def documents_of(self, indices: Indices) -> list[list[Document]]:
        """Return the records that rows of drawn parents are made of; other parents' rows have none."""
        if not self.is_drawn:
            return []
        found: list[list[Document]] = [[] for _ in indices]
        for number, parent_indices, batch_positions in self._shares(indices):
            documents = self._filled[number].documents_of(parent_indices)
            for position, of_row in zip(batch_positions.tolist(), documents, strict=False):
                found[position] = of_row
        return found

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records in the order of `indices`."""
        if len(self._filled) == 1:
            return self._filled[0].columns(indices, fields, memory)
        numbers = range(len(self.spec.fields)) if fields is None else fields
        mapped = self._find_mapped(len(indices))
        found: dict[int, Column] = {}
        if mapped is not None:
            direct = [number for number in numbers if number in mapped.fields]
            rows = self._joined_rows(mapped, indices) if direct else indices
            found.update((number, mapped.fields[number].gather(rows)) for number in direct)
        rest = [number for number in numbers if number not in found]
        if rest:
            found.update(zip(rest, self._read(indices, rest, memory), strict=True))
        return [found[number] for number in numbers]

    def _find_mapped(self, records: int) -> "JoinedFields | None":
        """Return fields that gather from all parents at once; None unless each is a mapped cache or its view.

        A copy from each parent's batch into the common one would take as long as the gather itself
        (benchmarks/stages.py).
        """
        windows = []
        share = -(-records // len(self._bases))
        for base in self._bases:
            window = base.mapped(share) if isinstance(base, Stored) else None
            if window is None:
                return None
            windows.append(window)
        mapped = self._mapped
        if mapped is None or any(map(operator.is_not, windows, mapped.windows)):
            from yogadl._format.joined import JoinedFields  # slow to import, and not always needed

            leaves = [field.leaf for field in self.spec.fields]
            blocks = [
                [_blocks_of(parent, number) for number in range(len(leaves))] for parent in self._filled
            ]
            mapped = JoinedFields(leaves, windows, [len(base) for base in self._bases], blocks)
            self._mapped = mapped
        return mapped

    def _joined_rows(self, mapped: "JoinedFields", indices: Indices) -> Indices:
        """Return the rows of these records, as the mapped fields count them."""
        if not self._has_views:
            shifts = mapped.begins - self._starts
            return indices + shifts.take(bounds_reached(indices, self._ends[:-1]))
        rows = np.empty(len(indices), np.int64)
        for number, parent_indices, batch_positions in self._shares(indices):
            rows[batch_positions] = (
                origin_of(self._filled[number], parent_indices, 0)[1] + mapped.begins[number]
            )
        return rows

    def _shares(self, indices: Indices) -> Iterator[_Share]:
        """Yield the share of each parent that holds some of these records."""
        if self.is_drawn:
            draws, indices = np.divmod(indices, len(self))
            for number, found, batch_positions in self._shares_of(indices):
                if self._are_drawn[number]:
                    found += draws[batch_positions] * len(self._filled[number])
                yield number, found, batch_positions
        else:
            yield from self._shares_of(indices)

    def _shares_of(self, indices: Indices) -> Iterator[_Share]:
        """Yield the same for indices without a draw."""
        numbers = bounds_reached(indices, self._ends[:-1])
        if not len(numbers) or (numbers == numbers[0]).all():
            number = int(numbers[0]) if len(numbers) else 0
            yield number, indices - self._starts[number], np.arange(len(indices))
            return
        if len(self._filled) <= _MAX_RADIX_SORTED:
            numbers = numbers.astype(np.uint16)
        batch_positions = np.argsort(numbers, kind="stable")
        numbers, parent_indices = numbers[batch_positions], indices[batch_positions]
        ends = [*(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(batch_positions)]
        first = 0
        for last in ends:
            number = int(numbers[first])
            yield number, parent_indices[first:last] - self._starts[number], batch_positions[first:last]
            first = last

    def _read(self, indices: Indices, fields: Sequence[int], memory: Memory | None) -> Sequence[Column]:
        """Read fields of each parent, and copy the values to their positions in the batch."""
        shares = list(self._shares(indices))
        if len(shares) == 1:
            return self._filled[shares[0][0]].columns(shares[0][1], fields, memory)
        found: list[Column] = []
        for number, parent_indices, batch_positions in shares:
            columns = self._filled[number].columns(parent_indices, fields)
            if not found:
                found = [_empty_column_like(column, len(indices), memory) for column in columns]
            for column, part in zip(found, columns, strict=True):
                if isinstance(column, list):
                    for position, value in zip(batch_positions.tolist(), part, strict=True):
                        column[position] = value
                elif column.nbytes:
                    _items(column)[batch_positions] = _items(part)
        return found


def _blocks_of(parent: RandomAccess, number: int) -> "BlockPositions | None":
    """Return the blocks of a field of a parent, which is a mapped cache or a view of one."""
    base, _, base_number = origin_of(parent, np.empty(0, np.int64), number)
    assert isinstance(base, Stored)
    blocks: BlockPositions | None = base.blocks(base_number)
    return blocks


def _empty_column_like(part: Column, records: int, memory: Memory | None) -> Column:
    """Return a column of `records` rows, to be filled with values like those in `part`."""
    if isinstance(part, list):
        return [None] * records
    shape = (records, *part.shape[1:])
    return np.empty(shape, part.dtype) if memory is None else memory.array(shape, part.dtype)


def _items(column: Any) -> NDArray[Any]:
    """Return a contiguous column as one item a row, which numpy copies the fastest (benchmarks/stages.py)."""
    if column.ndim > 1:
        column = column.reshape(-1).view(f"V{column.nbytes // len(column)}")
    found: NDArray[Any] = column
    return found


def _require_alike(ours: Spec, theirs: Spec, number: int, remedy: str) -> None:
    """Refuse records that differ from those of the first parent.

    Raises:
        ConfigurationError: if they differ; the error names the field and the difference.
    """
    if ours == theirs:
        return
    first, other = ({field.name: field.leaf for field in spec.fields} for spec in (ours, theirs))
    for name in [*first, *other]:
        if first.get(name) != other.get(name):
            leaves = [f"is {spec[name]}" if name in spec else "is not there" for spec in (first, other)]
            what = f"field {name!r}" if name else "the record"
            raise ConfigurationError(
                f"records of different kinds can't be joined: {what} {leaves[0]} in the first, and "
                f"{leaves[1]} in number {number}. {remedy}Make them alike with fields(...) or map(...); if a "
                "shape varies in only one of them, declare it for the others with map(..., spec=...)"
            )
    raise ConfigurationError(
        f"records of different kinds can't be joined: the first are like {ours.to_json()}, those of number "
        f"{number} like {theirs.to_json()}. Make them alike by map(...)"
    )
