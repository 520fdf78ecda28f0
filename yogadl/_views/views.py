"""Views of records: a selection, a slice, some of the fields, or the values of a field cut into chunks."""

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.protocols import (
    Announced,
    Column,
    Document,
    Earlier,
    Indices,
    Lineage,
    Memory,
    Numbers,
    OnPlanned,
    RandomAccess,
    Stored,
    Stretches,
    each_once,
    lineage_of,
    views_of,
)
from yogadl._core.spec import JSON, Leaf, Spec
from yogadl.errors import UnsupportedDataError

_TRIED_VERSIONS: Final = 10  # for an error about a cursor


class View(RandomAccess):
    """Records that are made of one parent's."""

    parent: RandomAccess

    @property
    def parents(self) -> Sequence[RandomAccess]:
        """The parent alone."""
        return (self.parent,)


class SameNumbers(View):
    """A view each of whose records is made of the parent's of the same number, and drawn as that is."""

    def __len__(self) -> int:
        return len(self.parent)

    def user_numbers(self, indices: Indices) -> Numbers:
        """Return the numbers of records by which users know them."""
        return self.parent.user_numbers(indices)

    @property
    def group_ends(self) -> Indices | None:
        """The record after the last one of each group of the parent."""
        return self.parent.group_ends

    @property
    def episode_ends(self) -> Indices | None:
        """The record after the last one of each episode of the parent."""
        return self.parent.episode_ends

    @property
    def is_drawn(self) -> bool:
        """Whether an index also has an epoch's draw."""
        return self.parent.is_drawn

    @property
    def steps(self) -> tuple[int, int]:
        """The number of steps that are shuffled as they are, and the records of each."""
        return self.parent.steps

    @property
    def numbered(self) -> RandomAccess:
        """The records that `user_numbers` counts."""
        return self.parent.numbered if self.is_drawn else self

    def prepare(self, indices: Indices) -> None:
        """Compute what many records are made of."""
        self.parent.prepare(indices)

    def documents_of(self, indices: Indices) -> list[list[Document]]:
        """Return the records that each is made of."""
        return self.parent.documents_of(indices)


class SameValues(View):
    """A view that has a parent's records as they are: under other numbers, or some of the fields.

    Args:
        parent: The other records.
    """

    spec: Spec
    fingerprint: str
    record_bytes: int

    def __init__(self, parent: RandomAccess) -> None:
        self.parent = parent
        self.spec = parent.spec
        self.record_bytes = parent.record_bytes

    def in_parent(self, indices: Indices) -> Indices:
        """Return the parent's indices of these records."""
        return indices

    def fields_in_parent(self, fields: Sequence[int] | None) -> Sequence[int] | None:
        """Return the parent's numbers of these fields; None means all fields."""
        return fields

    def file_of(self, index: int) -> str | None:
        """Return the path of the file that a record comes from, if the source lists it."""
        return self.parent.file_of(int(self.in_parent(np.array([index]))[0]))

    def will_need(
        self, indices: Indices, fields: Sequence[int] | None = None, on_planned: OnPlanned | None = None
    ) -> Announced:
        """Announce that these records will be read soon."""
        return self.parent.will_need(self.in_parent(indices), self.fields_in_parent(fields), on_planned)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records in the order of `indices`."""
        return self.parent.columns(self.in_parent(indices), self.fields_in_parent(fields), memory)


class RenamedAlone(View):
    """A view that depends on all records of its parent: of others there is none, but under another name.

    `_identify` sets the fingerprint, which is made of the parent's.
    """

    def _identify(self) -> None:
        raise NotImplementedError

    def over(self, parent: RandomAccess) -> Any:
        """Return the same view of the same records under another name, or else this object."""
        if len(parent) != len(self.parent):
            return self
        other = copy.copy(self)
        other.parent = parent
        other._identify()
        return other


class SelectedRecords(SameValues):
    """Some records of another source, in any order; any record may come twice."""

    def __init__(self, parent: RandomAccess, indices: Indices) -> None:
        super().__init__(parent)
        self._indices = indices
        self.fingerprint = hash_of("select", parent.fingerprint, hash_of_numbers(indices))

    def __len__(self) -> int:
        return len(self._indices)

    def over(self, parent: RandomAccess) -> "SelectedRecords":
        """Return the same view of the first records alone, which `parent` has."""
        return SelectedRecords(parent, self._indices[self._indices < len(parent)])

    def in_parent(self, indices: Indices) -> Indices:
        """Return the parent's indices of these records."""
        return self._indices[indices]


class SlicedRecords(SameValues):
    """A slice of other records: every n-th one between two indices.

    A slice that has the records of an earlier version has its fingerprint and lineage: its cursors are valid,
    and it is split as that version is.
    """

    def __init__(self, parent: RandomAccess, chosen: range) -> None:
        super().__init__(parent)
        self._range = chosen
        self._earlier = _earlier_version(parent, chosen)
        self.fingerprint = (
            hash_of("slice", parent.fingerprint, chosen.start, chosen.step, len(chosen))
            if self._earlier is None
            else self._earlier.fingerprint
        )

    def __len__(self) -> int:
        return len(self._range)

    @property
    def group_ends(self) -> Indices | None:
        """The record after the last one of each group, of a slice that leaves out none in between."""
        return self._ends_within(self.parent.group_ends)

    @property
    def episode_ends(self) -> Indices | None:
        """The record after the last one of each episode, of a slice that leaves out none in between."""
        return self._ends_within(self.parent.episode_ends)

    def _ends_within(self, ends: Indices | None) -> Indices | None:
        chosen = self._range
        if ends is None or chosen.step != 1 or not len(chosen):
            return None
        inside = ends[(ends > chosen.start) & (ends < chosen.stop)] - chosen.start
        return np.append(inside, len(chosen))

    def over(self, parent: RandomAccess) -> RandomAccess:
        """Return the same view of the first records alone, which `parent` has."""
        start, stop, step = self._range.start, self._range.stop, self._range.step
        count = len(parent)
        ends = (start, min(stop, count)) if step > 0 else (min(start, count - 1), stop)
        chosen = range(*ends, step)
        return parent if chosen == range(count) else SlicedRecords(parent, chosen)

    @property
    def lineage(self) -> Lineage | None:
        """The earlier version that has these records, if any, and the versions that it begins with."""
        later = None if self._earlier is None else lineage_of(self.parent)
        if later is None or self._earlier is None:
            return None
        older = later.earlier[: later.earlier.index(self._earlier)]
        return Lineage(later.id, self._earlier.version, earlier=older)

    def in_parent(self, indices: Indices) -> Indices:
        """Return the parent's indices of these records."""
        return indices * self._range.step + self._range.start


def _earlier_version(records: RandomAccess, chosen: range) -> Earlier | None:
    """Return the version that consists of these records of a later one; None if there is none."""
    lineage = lineage_of(records) if (chosen.start, chosen.step) == (0, 1) else None
    versions = () if lineage is None else lineage.earlier
    return next((earlier for earlier in versions if earlier.records == len(chosen)), None)


class ProjectedRecords(SameNumbers, SameValues):
    """Some fields of other records; the fingerprint is that of the parent, so that cursors stay valid."""

    def __init__(self, parent: RandomAccess, spec: Spec, numbers: tuple[int, ...]) -> None:
        self.parent = parent
        self.numbers = numbers
        self.spec = spec
        self.fingerprint = parent.fingerprint
        leaves = [parent.spec.fields[number].leaf for number in numbers]
        # The size is exact if all these fields are fixed. Otherwise it is that of the whole record, since a
        # field that varies may be most of it.
        are_fixed = all(leaf.is_fixed for leaf in leaves)
        self.record_bytes = (
            max(1, sum(leaf.row_bytes for leaf in leaves)) if are_fixed else parent.record_bytes
        )

    def over(self, parent: RandomAccess) -> "ProjectedRecords":
        """Return the same view of the first records alone, which `parent` has."""
        return ProjectedRecords(parent, self.spec, self.numbers)

    def fields_in_parent(self, fields: Sequence[int] | None) -> Sequence[int]:
        """Return the parent's numbers of these fields."""
        return self.numbers if fields is None else [self.numbers[number] for number in fields]


class ComposedRecords(RandomAccess):
    """Records that are no records of others: rows of several ones, or pieces of one.

    Attributes:
        composition: The hash of what each is made of: it is the same for other data of which all records have
            equal lengths.
    """

    composition: str


def composition_of(records: Any) -> str | None:
    """Return the hash of what the records are made of; None if each is one record of the data."""
    found = [view.composition for view in views_of(records) if isinstance(view, ComposedRecords)]
    return hash_of("rows", *found) if found else None


def earlier_views(records: Any, share: float) -> Iterator[tuple[Lineage, Earlier, RandomAccess]]:
    """Yield the same views of earlier versions, with the version read now and the earlier one.

    Of each version, `_TRIED_VERSIONS` earlier ones are tried, those first whose share of its records is the
    nearest to `share`.
    """
    for base in each_once(records):
        lineage = base.lineage
        versions = () if lineage is None else lineage.earlier
        for earlier in sorted(
            versions, key=lambda each: (abs(each.records - share * len(base)), -each.records)
        )[:_TRIED_VERSIONS]:
            assert lineage is not None
            yield lineage, earlier, _over(records, base, SlicedRecords(base, range(earlier.records)))


class _RenamedRecords(SameNumbers, SameValues):
    """Records under another of their fingerprints."""

    def __init__(self, records: RandomAccess, fingerprint: str) -> None:
        super().__init__(records)
        self.fingerprint = fingerprint

    @property
    def lineage(self) -> Lineage | None:
        """The version of the records."""
        return self.parent.lineage


def aliases_of(records: RandomAccess) -> Iterator[str]:
    """Yield the fingerprints that these records or views have under other fingerprints of a version."""
    for base in each_once(records):
        for alias in base.aliases:
            yield _over(records, base, _RenamedRecords(base, alias)).fingerprint


def _over(records: RandomAccess, base: RandomAccess, replacement: RandomAccess) -> RandomAccess:
    """Return the same view of other records in place of `base`."""
    if records is base:
        return replacement
    found: RandomAccess = records.over(*(_over(parent, base, replacement) for parent in records.parents))
    return found


def origin_of(records: RandomAccess, indices: Indices, number: int) -> tuple[RandomAccess, Indices, int]:
    """Return the records below the views that have them as they are, and the indices and the field there."""
    while isinstance(records, SameValues):
        indices, fields = records.in_parent(indices), records.fields_in_parent((number,))
        records, number = records.parent, number if fields is None else fields[0]
    return records, indices, number


def hash_of(*parts: Any) -> str:
    """Return the hash of the parts, as the name of a view or of other content."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def hash_of_numbers(numbers: Indices) -> str:
    """Return the hash of an array of integers, the same on every machine."""
    return hashlib.sha256(numbers.astype("<i8", copy=False).tobytes()).hexdigest()


def find_stored_values(
    records: RandomAccess, indices: Indices, number: int
) -> tuple[Stored, Indices, int] | None:
    """Return the cache that has the values, with the indices and the field's number there, or None."""
    base, indices, number = origin_of(records, indices, number)
    return (base, indices, number) if isinstance(base, Stored) else None


# Records that are made of pieces of others.


class Needs(NamedTuple):
    """What some records are made of: pieces of a parent's records, in order.

    Args:
        records: The parent's record of each piece.
        whole: The numbers of the fields whose values are needed whole.
        cut: The numbers of the fields of which only the pieces are needed.
        starts: Where a piece begins, along the first axis of the fields that are cut; empty if nothing is cut
            and hardly any record is needed twice, so that each is read as often as it is needed.
        stops: Where it ends.
        are_last: Whether the piece is known to be its record's end.
    """

    records: Indices
    whole: Sequence[int]
    cut: Sequence[int] = ()
    starts: Indices = np.empty(0, np.int64)
    stops: Indices = np.empty(0, np.int64)
    are_last: NDArray[np.bool_] = np.empty(0, np.bool_)


class MadeRecords(View, ComposedRecords):
    """Records that are made of pieces of the parent's; a subclass says of which, and makes them.

    The pieces alone are read, where a cache has the values in files, and else the records.
    """

    def lower(self, indices: Indices, fields: Sequence[int] | None) -> tuple[Any, Needs]:
        """Return what is needed of the parent, and what `make` takes besides; there is at least one index."""
        raise NotImplementedError

    def make(
        self, rows: Any, found: Mapping[int, Any], fields: Sequence[int] | None, memory: Memory | None
    ) -> Sequence[Column]:
        """Return columns, given the first result of `lower`, and what was read, by the parent's fields.

        Of a field that is cut that is one array of all pieces, end to end; of others a value for each piece,
        which pieces of one record may share.
        """
        raise NotImplementedError

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records in the order of `indices`."""
        if not len(indices):
            leaves = [field.leaf for field in self.spec.fields]
            return [
                empty_column(leaf) for leaf in (leaves if fields is None else [leaves[n] for n in fields])
            ]
        rows, needs = self.lower(indices, fields)
        return self.make(rows, self._read(needs), fields, memory)

    def _read(self, needs: Needs) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for number in needs.cut:
            stored = self._find_stored(needs.records, number)
            if stored is not None:
                found[number] = stored[0].stretches(*stored[1:], needs.starts, needs.stops)
        rest = [number for number in (*needs.cut, *needs.whole) if number not in found]
        if rest and not len(needs.starts):
            found.update(zip(rest, self.parent.columns(needs.records, rest), strict=True))
        elif rest:
            records, which = np.unique(needs.records, return_inverse=True)
            which = which.reshape(-1)
            for number, column in zip(rest, self.parent.columns(records, rest), strict=True):
                if number in needs.cut:
                    found[number] = self._join(needs, which, column, number)
                elif isinstance(column, np.ndarray):
                    found[number] = column[which]
                elif self.parent.spec.fields[number].leaf.dtype == JSON:
                    from yogadl._core.json_value import each_its_own  # other records do not need it

                    found[number] = each_its_own(column, which.tolist())
                else:
                    found[number] = [column[place] for place in which.tolist()]
        return found

    def _find_stored(self, records: Indices, number: int) -> tuple[Stored, Indices, int] | None:
        """Return the cache that has a field's values, if pieces of these can be read by themselves."""
        shape = self.parent.spec.fields[number].leaf.shape
        is_varying = shape is not None and shape[0] is None
        return find_stored_values(self.parent, records, number) if is_varying else None

    def record_lengths(self) -> Indices | None:
        """Return the length of each of the parent's records, if that is known without reading."""
        return None

    def stored_lengths(self, number: int) -> Indices | None:
        """Return the length of each value of a field in the cache, -1 where unknown; ``None`` of no value."""
        lengths = self.record_lengths()
        stored = None if lengths is None else self._find_stored(np.arange(len(lengths)), number)
        if lengths is None or stored is None or not len(lengths):
            return None
        found = np.full(len(stored[0]), -1)
        found[stored[1]] = lengths
        return found

    def _join(self, needs: Needs, which: Indices, column: Column, number: int) -> NDArray[Any]:
        """Return the pieces of whole values, end to end."""
        sizes = np.fromiter(map(len, column), np.int64, len(column))[which]
        are_other = (sizes < needs.stops) | ((sizes > needs.stops) & needs.are_last)
        if are_other.any():
            piece = int(are_other.argmax())
            or_more = "" if needs.are_last[piece] else " or more"
            raise UnsupportedDataError(
                f"record {needs.records[piece]} has {sizes[piece]} values in field "
                f"{self.parent.spec.fields[number].name!r}, but had {needs.stops[piece]}{or_more} when the "
                "rows were planned: a function of map must return the same each time"
            )
        bounds = zip(which.tolist(), needs.starts.tolist(), needs.stops.tolist(), strict=True)
        return np.concatenate([column[place][start:stop] for place, start, stop in bounds])

    def announced(self, rows: Any, needs: Needs) -> Indices:
        """Return the parent's records to announce where pieces can't be announced by themselves."""
        return needs.records

    def will_need(
        self, indices: Indices, fields: Sequence[int] | None = None, on_planned: OnPlanned | None = None
    ) -> Announced:
        """Announce that these records will be read soon."""
        if not len(indices):
            return Announced()
        rows, needs = self.lower(indices, fields)
        numbers, held = [*needs.cut, *needs.whole], tuple[object, ...]()
        for number in needs.cut:
            stored = self._find_stored(needs.records, number)
            if stored is None:
                continue
            if on_planned is not None:
                cache, indices_there, number_there = stored
                size = cache.item_bytes(number_there)
                bounds = needs.starts * size, needs.stops * size
                stretches = Stretches(*bounds, self, number, size)
                held += on_planned(cache, indices_there, (number_there,), stretches).held
                numbers.remove(number)
            elif found := stored[0].will_need_stretches(*stored[1:], needs.starts, needs.stops):
                numbers.remove(number)
                held += found.held
        if not numbers:
            return Announced(0, held)
        records = np.unique(self.announced(rows, needs) if on_planned is None else needs.records)
        of_parent = self.parent.will_need(records, numbers, on_planned)
        spared = of_parent.spared * len(indices) // max(1, len(records))
        return Announced(spared, held + of_parent.held)


def empty_column(leaf: Leaf) -> Column:
    """Return the column of no records."""
    return np.empty((0, *(size or 0 for size in leaf.shape or ())), leaf.numpy_dtype) if leaf.is_fixed else []
