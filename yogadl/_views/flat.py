"""Make several records of each: the pieces of records, counted once."""

import copy
import operator
from collections.abc import Callable, Mapping, Sequence, Sized
from functools import partial
from time import perf_counter
from typing import Any, Final

import numpy as np

from yogadl._core.arguments import int_argument
from yogadl._core.frozen import frozen
from yogadl._core.memory import require_memory
from yogadl._core.printable import error_text
from yogadl._core.protocols import Indices, RandomAccess
from yogadl._order.keys import RECORDS_LIMIT
from yogadl._order.lengths import KeptPlan, kept, offsets_of, total, word_for
from yogadl._views.chosen import KeptAt, by_workers, find_stored, results_of, seen_fields
from yogadl._views.functions import Chain, MappedRecords
from yogadl._views.stages import Places, Replace, ReportDuration, Slots, Stage, ignore_duration, name_of
from yogadl._views.views import ComposedRecords, SameValues, hash_of, hash_of_numbers
from yogadl.errors import CacheFormatError, ConfigurationError, StageError

_MAGIC: Final = b"pieces1\n"
_COUNT_BYTES: Final = 40  # the most memory that counting needs for each record

_Function = Callable[[Any], Any]
_Functions = tuple[_Function, _Function | None]  # one that makes pieces, and one that counts them


class RepeatedRecords(SameValues, ComposedRecords):
    """Each record as many times as it has pieces, one after the other.

    Args:
        parent: The records.
        offsets: The index of the first piece of each record, and the number of all pieces.
    """

    def __init__(self, parent: RandomAccess, offsets: Indices) -> None:
        super().__init__(parent)
        self.offsets = offsets
        self.composition = hash_of_numbers(offsets)
        self.fingerprint = hash_of("flat", parent.fingerprint, self.composition)

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def over(self, parent: RandomAccess) -> "RepeatedRecords":
        """Return the same view of the first records alone, which `parent` has."""
        return RepeatedRecords(parent, self.offsets[: len(parent) + 1])

    def in_parent(self, indices: Indices) -> Indices:
        """Return the records that pieces belong to."""
        return np.searchsorted(self.offsets, indices, "right") - 1

    def records(self, indices: Indices) -> list[Any]:
        """Return the record of each piece, read once for all its pieces."""
        unique, which = np.unique(self.in_parent(indices), return_inverse=True)
        found = self.spec.records(self.parent.columns(unique), len(unique))
        return [found[place] for place in which.reshape(-1).tolist()]


@frozen
class _FlatStage(Stage):
    """The function of `flat_map`, called once for all pieces of a record that are read together."""

    source: Any = None  # the RepeatedRecords that it takes

    def __str__(self) -> str:
        return f"flat_map({name_of(self.function)})"

    def call(
        self,
        records: Sequence[Any],
        indices: Indices,
        places: Places,
        report_duration: ReportDuration = ignore_duration,
        what: str = "record",
        *,
        slots: Slots | None = None,
        replace: Replace | None = None,
    ) -> list[Any]:
        """Return the pieces of these indices; see `Stage.call`."""
        start_s = perf_counter()
        found: list[Any] = [None] * len(records)
        parents = self.source.in_parent(indices)
        pieces = (indices - self.source.offsets[parents]).tolist()
        order = np.argsort(parents, kind="stable")
        ends = np.flatnonzero(np.diff(parents[order], append=-1)) + 1
        for of_record in np.split(order, ends[:-1]) if len(order) else []:
            index, parent = int(indices[of_record[0]]), int(parents[of_record[0]])
            made = self._pieces(records[of_record[0]], index, parent)
            for place in of_record.tolist():
                found[place] = copy.deepcopy(made[pieces[place]])  # pieces may share memory
        report_duration(self.title, perf_counter() - start_s)
        return found

    def _pieces(self, record: Any, index: int, parent: int) -> Sequence[Any]:
        """Return all pieces of a record, of which `index` is one."""
        wanted = int(self.source.offsets[parent + 1] - self.source.offsets[parent])
        try:
            made = _checked(self.function(record))
        except Exception as error:
            what = f"{self} failed at record {parent}, of which record {index} of the result is a piece"
            raise StageError(f"{what}: {error_text(error)}", self.number, index) from error
        if len(made) != wanted:
            raise StageError(
                f"{self} returned {len(made)} records for record {parent}, and {wanted} were counted: return "
                f"as many each time (record {index} of the result is one of them)",
                self.number,
                index,
            )
        return made


def flat_mapped(
    records: RandomAccess, function: _Function, fields: Any, count: Any, workers: Any, spec: Any
) -> MappedRecords:
    """Return the pieces that a function makes of each record; see `RecordsRef.flat_map`."""
    seen = seen_fields("flat_map", records, function, fields)
    if count is not None and not callable(count):
        raise ConfigurationError(f"count is a function of one argument, a record, not {count!r:.100}")
    require_memory("flat_map", len(records), _COUNT_BYTES)
    counts = _find_counts(seen, (function, count), int_argument("workers", workers))
    source = RepeatedRecords(seen, offsets_of(counts))
    return MappedRecords(Chain(source, (_FlatStage(function, 0, source=source),), spec))


def _find_counts(records: RandomAccess, functions: _Functions, workers: int) -> Indices:
    """Return how many pieces each record has: as kept beside the cache, or counted now."""
    names = " or ".join(name_of(each) for each in functions if each is not None)
    stored = find_stored(records, ["flat-1"], functions, f"what {names} counted")
    counts = None if stored is None else _kept_counts(stored, len(records))
    if counts is None:
        if workers:
            called = f"flat_map({name_of(functions[0])})"
            found = by_workers(called, names, records, functions, _count, workers)
        else:
            found = [_count(records, functions, 0, len(records))]
        counts = np.concatenate([np.empty(0, np.int64), *found])
        if counts.sum(dtype=np.float64) > RECORDS_LIMIT:
            raise ConfigurationError("flat_map counted more than 2**62 records")
        if stored is not None:
            most = int(counts.max(initial=0))
            content = kept(_MAGIC, [len(counts), most], [counts.astype(word_for(most + 1))])
            stored.cache.keep_plan(stored.name, b"".join(content))
    return counts


def _kept_counts(stored: KeptAt, records: int) -> Indices | None:
    """Return the counts that are kept; None if there are none for so many records."""
    content = stored.cache.plan(stored.name)
    if content is None:
        return None
    try:
        plan = KeptPlan(content, _MAGIC)
        found, most = plan.integers([RECORDS_LIMIT, RECORDS_LIMIT])
        counts = plan.array(word_for(most + 1), found, lambda counts: int(counts.max()) <= most)
        plan.end()
        total(counts, "pieces")
    except CacheFormatError:
        return None
    return counts.astype(np.int64) if found == records else None


def _count(records: RandomAccess, functions: _Functions, first: int, end: int) -> Indices:
    """Return how many pieces the records from `first` to `end` have."""
    function, count = functions
    called = f"flat_map({name_of(function)})" if count is None else f"count of flat_map({name_of(count)})"
    counting = partial(_count_made, function) if count is None else partial(_count_said, count)
    parts = [results for _, results in results_of(called, counting, records, first, end)]
    return np.array([number for part in parts for number in part], np.int64)


def _count_made(function: _Function, record: Any) -> int:
    return len(_checked(function(record)))


def _count_said(count: _Function, record: Any) -> int:
    said = count(record)
    number = -1 if isinstance(said, bool | np.bool_) else operator.index(said)
    if not 0 <= number <= RECORDS_LIMIT:
        raise TypeError(f"it must return how many pieces there are, 0 or more, not {said!r:.100}")
    return number


def _checked(made: Any) -> Sequence[Any]:
    """Return what a function made, if that is several records."""
    is_sequence = isinstance(made, Sized) and hasattr(made, "__getitem__")  # any class of the user's
    if isinstance(made, str | bytes | Mapping) or not is_sequence:
        raise TypeError(
            f"it must return a list of records, or another sequence, not {made!r:.100} "
            f"({type(made).__name__})"
        )
    found: Sequence[Any] = made
    return found
