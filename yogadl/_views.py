"""Views of records: a selection in an order of its own, a slice, or some of the fields."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from yogadl._core.protocols import Column, Indices, Memory, Planned, RandomAccess, announce
from yogadl._core.spec import Spec


class SelectedRecords:
    """Some records of another source, in any order; any record may come twice."""

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
        """Return the parent, and the indices and the field's number there."""
        return self.parent, self._indices[indices], number

    def will_need(
        self, indices: Indices, fields: Sequence[int] | None = None, planned: Planned | None = None
    ) -> int:
        """Announce that these records will be read soon; see `announce`."""
        return announce(self.parent, self._indices[indices], fields, planned)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records in the order of `indices`."""
        return self.parent.columns(self._indices[indices], fields, memory)


class SlicedRecords:
    """A slice of other records: every n-th one between two indices."""

    def __init__(self, parent: RandomAccess, chosen: range) -> None:
        self.parent = parent
        self._range = chosen
        self.spec = parent.spec
        self.record_bytes = parent.record_bytes
        self.fingerprint = hash_of("slice", parent.fingerprint, chosen.start, chosen.step, len(chosen))

    def __len__(self) -> int:
        return len(self._range)

    def of_parent(self, indices: Indices, number: int) -> tuple[RandomAccess, Indices, int]:
        """Return the parent, and the indices and the field's number there."""
        return self.parent, indices * self._range.step + self._range.start, number

    def will_need(
        self, indices: Indices, fields: Sequence[int] | None = None, planned: Planned | None = None
    ) -> int:
        """Announce that these records will be read soon; see `announce`."""
        return announce(self.parent, indices * self._range.step + self._range.start, fields, planned)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records in the order of `indices`."""
        return self.parent.columns(indices * self._range.step + self._range.start, fields, memory)


class ProjectedRecords:
    """Some fields of other records; the fingerprint stays, since cursors mean the same records."""

    def __init__(self, parent: RandomAccess, spec: Spec, numbers: tuple[int, ...]) -> None:
        self.parent = parent
        self.numbers = numbers
        self.spec = spec
        self.fingerprint = parent.fingerprint
        parts = [field.leaf for field in parent.spec.fields]
        kept = [parts[number] for number in numbers]
        # The size is exact if all kept fields are fixed. A field that varies may be most of the record, so
        # otherwise the size is that of the whole record.
        fixed = all(leaf.is_fixed for leaf in kept)
        self.record_bytes = max(1, sum(leaf.row_bytes for leaf in kept)) if fixed else parent.record_bytes

    def __len__(self) -> int:
        return len(self.parent)

    def of_parent(self, indices: Indices, number: int) -> tuple[RandomAccess, Indices, int]:
        """Return the parent, and the indices and the field's number there."""
        return self.parent, indices, self.numbers[number]

    def will_need(
        self, indices: Indices, fields: Sequence[int] | None = None, planned: Planned | None = None
    ) -> int:
        """Announce that these records will be read soon; see `announce`."""
        numbers = self.numbers if fields is None else [self.numbers[number] for number in fields]
        return announce(self.parent, indices, numbers, planned)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records in the order of `indices`."""
        numbers = self.numbers if fields is None else [self.numbers[number] for number in fields]
        return self.parent.columns(indices, numbers, memory)


def origin_of(records: Any, indices: Indices, number: int) -> tuple[Any, Indices, int]:
    """Return the records below all views, and the indices and the field's number there."""
    while hasattr(records, "of_parent"):
        records, indices, number = records.of_parent(indices, number)
    return records, indices, number


def hash_of(*parts: Any) -> str:
    """Return the hash of the parts, as the name of a view or of other content."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
