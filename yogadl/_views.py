"""Views of records: some of them, in an order of their own, some of their fields, or several' together."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._interfaces import Addresses, Column, Indices, Memory, RandomAccess, addresses_of, announce
from yogadl._spec import Spec
from yogadl.errors import ConfigurationError

_RADIX_SORTED: Final = 2**16  # numpy sorts 16 bits in a time that grows with their number alone


class SelectedRecords:
    """Some records of others, in an order of their own; any may come twice."""

    def __init__(self, parent: RandomAccess, indices: Indices) -> None:
        self.parent = parent
        self._indices = indices
        self.spec = parent.spec
        self.record_bytes = parent.record_bytes
        content = hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest()
        self.fingerprint = hash_of("select", parent.fingerprint, content)

    def __len__(self) -> int:
        return len(self._indices)

    def of_parent(self, indices: Indices, number: int) -> tuple[RandomAccess, Indices, int]:
        """Return whose records these are, which they are there, and which field this is there."""
        return self.parent, self._indices[indices], number

    def will_need(self, indices: Indices) -> None:
        """Say that these records will be read soon."""
        announce(self.parent, self._indices[indices])

    def addresses(self, indices: Indices, fields: Sequence[int]) -> Addresses | None:
        """Return where in memory these fields of the records begin, if they do."""
        return addresses_of(self.parent, self._indices[indices], fields)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records, in the order asked for."""
        return self.parent.columns(self._indices[indices], fields, memory)


class SlicedRecords:
    """Every so many records of others, from one to another."""

    def __init__(self, parent: RandomAccess, chosen: range) -> None:
        self.parent = parent
        self._range = chosen
        self.spec = parent.spec
        self.record_bytes = parent.record_bytes
        self.fingerprint = hash_of("slice", parent.fingerprint, chosen.start, chosen.step, len(chosen))

    def __len__(self) -> int:
        return len(self._range)

    def of_parent(self, indices: Indices, number: int) -> tuple[RandomAccess, Indices, int]:
        """Return whose records these are, which they are there, and which field this is there."""
        return self.parent, indices * self._range.step + self._range.start, number

    def will_need(self, indices: Indices) -> None:
        """Say that these records will be read soon."""
        announce(self.parent, indices * self._range.step + self._range.start)

    def addresses(self, indices: Indices, fields: Sequence[int]) -> Addresses | None:
        """Return where in memory these fields of the records begin, if they do."""
        return addresses_of(self.parent, indices * self._range.step + self._range.start, fields)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records, in the order asked for."""
        return self.parent.columns(indices * self._range.step + self._range.start, fields, memory)


class ProjectedRecords:
    """Some fields of other records; the fingerprint stays, since the same cursors mean the same records."""

    def __init__(self, parent: RandomAccess, spec: Spec, numbers: tuple[int, ...]) -> None:
        self.parent = parent
        self.numbers = numbers
        self.spec = spec
        self.fingerprint = parent.fingerprint
        parts = [field.leaf for field in parent.spec.fields]
        kept = [parts[number] for number in numbers]
        # Exact where all is fixed; a field of varying length may be most of the record, so else the whole.
        fixed = all(leaf.is_fixed for leaf in kept)
        self.record_bytes = max(1, sum(leaf.row_bytes for leaf in kept)) if fixed else parent.record_bytes

    def __len__(self) -> int:
        return len(self.parent)

    def of_parent(self, indices: Indices, number: int) -> tuple[RandomAccess, Indices, int]:
        """Return whose records these are, which they are there, and which field this is there."""
        return self.parent, indices, self.numbers[number]

    def will_need(self, indices: Indices) -> None:
        """Say that these records will be read soon."""
        announce(self.parent, indices)

    def addresses(self, indices: Indices, fields: Sequence[int]) -> Addresses | None:
        """Return where in memory these fields of the records begin, if they do."""
        return addresses_of(self.parent, indices, [self.numbers[number] for number in fields])

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records, in the order asked for."""
        numbers = self.numbers if fields is None else [self.numbers[number] for number in fields]
        return self.parent.columns(indices, numbers, memory)


# A parent that has some of the records of a batch, which of its own, and where in the batch they come.
_Share = tuple[RandomAccess, Indices, Indices]


class JoinedRecords:
    """The records of several, one after another; a batch reads each of them once.

    Args:
        parents: Whose records; those of a join count for themselves.

    Raises:
        ConfigurationError: if there are none, or their records are not alike.
    """

    def __init__(self, parents: Sequence[RandomAccess]) -> None:
        found: list[RandomAccess] = []
        for parent in parents:
            found += parent.parents if isinstance(parent, JoinedRecords) else [parent]
        if not found:
            raise ConfigurationError("there is nothing to join: pass at least one DataRef")
        self.parents: tuple[RandomAccess, ...] = tuple(found)
        self.spec = found[0].spec
        for number, parent in enumerate(found[1:], 2):
            _require_alike(self.spec, parent.spec, number)
        lengths = [len(parent) for parent in found]
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._starts = self._ends - np.array(lengths, np.int64)
        sizes = sum(parent.record_bytes * length for parent, length in zip(found, lengths, strict=True))
        self.record_bytes = max(1, sizes // max(1, len(self)))
        self.fingerprint = hash_of("concat", *((parent.fingerprint, len(parent)) for parent in found))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def will_need(self, indices: Indices) -> None:
        """Say that these records will be read soon."""
        for parent, own, _ in self._shares(indices):
            announce(parent, own)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records, in the order asked for."""
        shares = list(self._shares(indices))
        if len(shares) == 1:
            return shares[0][0].columns(shares[0][1], fields, memory)
        leaves = [field.leaf for field in self.spec.fields]
        numbers = range(len(leaves)) if fields is None else fields
        direct = self._gathered(shares, [number for number in numbers if leaves[number].is_fixed])
        rest = [number for number in numbers if number not in direct]
        joined = _joined(shares, rest, memory) if rest else []
        found = direct | dict(zip(rest, joined, strict=True))
        return [found[number] for number in numbers]

    def _gathered(self, shares: Sequence[_Share], fields: Sequence[int]) -> dict[int, NDArray[Any]]:
        """Gather fields of fixed size in one go, if all parents are mapped caches, or views of such.

        A second copy, from each parent's batch to the common one, takes as long as the gather itself
        (benchmarks/stages.py).
        """
        kept = []  # until it is read
        addresses = [np.empty(sum(len(rows) for _, _, rows in shares), np.int64) for _ in fields]
        for parent, own, rows in shares:
            found = addresses_of(parent, own, fields)
            if found is None:
                return {}
            kept.append(found[0])
            for all_of_field, its in zip(addresses, found[1], strict=True):
                all_of_field[rows] = its
        from yogadl._format.window import rows_at  # loaded by now, but not by all who have views

        columns: dict[int, NDArray[Any]] = {}
        for number, begin in zip(fields, addresses, strict=True):
            leaf = self.spec.fields[number].leaf
            read = rows_at(begin, leaf.row_bytes)
            if read is not None:
                columns[number] = read.view(leaf.numpy_dtype).reshape(len(begin), *(leaf.shape or ()))
        return columns

    def _shares(self, indices: Indices) -> Iterator[_Share]:
        """Yield the share of each parent that has some of these records."""
        numbers = np.searchsorted(self._ends, indices, side="right")
        if not len(numbers) or (numbers == numbers[0]).all():
            number = int(numbers[0]) if len(numbers) else 0
            yield self.parents[number], indices - self._starts[number], np.arange(len(indices))
            return
        if len(self.parents) <= _RADIX_SORTED:
            numbers = numbers.astype(np.uint16)
        rows = np.argsort(numbers, kind="stable")
        numbers, own = numbers[rows], indices[rows]
        ends = [*(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(rows)]
        first = 0
        for last in ends:
            number = int(numbers[first])
            yield self.parents[number], own[first:last] - self._starts[number], rows[first:last]
            first = last


def _joined(shares: Sequence[_Share], fields: Sequence[int], memory: Memory | None) -> list[Column]:
    """Read fields of each parent, and put what was read into place."""
    records = sum(len(rows) for _, _, rows in shares)
    found: list[Column] = []
    for parent, own, rows in shares:
        columns = parent.columns(own, fields)
        if not found:
            found = [_room_for(column, records, memory) for column in columns]
        for column, part in zip(found, columns, strict=True):
            if isinstance(column, list):
                for row, value in zip(rows.tolist(), part, strict=True):
                    column[row] = value
            elif column.nbytes:
                _items(column)[rows] = _items(part)
    return found


def _room_for(part: Column, records: int, memory: Memory | None) -> Column:
    """Return a column of so many records, to be filled with values as in `part`."""
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


def _require_alike(ours: Spec, theirs: Spec, number: int) -> None:
    """Refuse records that differ from those of the first.

    Raises:
        ConfigurationError: if they do; says which field, and how.
    """
    if ours == theirs:
        return
    first, other = ({field.name: field.leaf for field in spec.fields} for spec in (ours, theirs))
    for name in [*first, *other]:
        if first.get(name) != other.get(name):
            said = [f"is {found[name]}" if name in found else "is not there" for found in (first, other)]
            what = f"field {name!r}" if name else "the record"
            raise ConfigurationError(
                f"records of different kinds can't be joined: {what} {said[0]} in the first, and {said[1]} "
                f"in number {number}. Make them alike by fields(...) or map(...); a shape that varies in one "
                "alone is declared by map(..., spec=...) of the others"
            )
    raise ConfigurationError(
        f"records of different kinds can't be joined: the first are like {ours.to_json()}, those of number "
        f"{number} like {theirs.to_json()}. Make them alike by map(...)"
    )


def hash_of(*parts: Any) -> str:
    """Return what names a view, or other content: a hash of what it was made of."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
