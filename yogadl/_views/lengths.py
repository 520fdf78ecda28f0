"""Find the lengths of records, and make, keep and open the plans that are made of them."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_hexdigest

from yogadl._core.arguments import int_argument
from yogadl._core.memory import require_memory
from yogadl._core.process import ProcessLock
from yogadl._core.protocols import Indices, RandomAccess, Stored
from yogadl._core.spec import Leaf, Spec, is_too_large
from yogadl._views.chosen import by_workers, find_stored
from yogadl._views.views import MadeRecords, RenamedAlone, View, hash_of, origin_of
from yogadl.errors import CacheFormatError, ConfigurationError, UnsupportedDataError

Plan = TypeVar("Plan", bound=Any)

_log = logging.getLogger("yogadl")

_AT_ONCE: Final = 65_536  # records whose lengths are read at a time, if they are stored
_READ_BYTES: Final = 2**20  # of values that are read at a time, else
_READ_RECORDS: Final = 2**14
PLAN_BYTES: Final = 40  # the most memory that a plan and its making need for each record


PACKED: Final = "packed"
CHUNKED: Final = "cut into chunks"


def number_of(spec: Spec, name: str | int | None, done: str) -> int:
    """Return the number of a field whose values are packed, or cut into chunks; of None, that of the record.

    Raises:
        ConfigurationError: if there is no such field.
    """
    is_single = isinstance(spec.tree, Leaf)
    if done == PACKED and is_single:
        raise ConfigurationError(
            "rows are made of records that are dicts, and these are single values: make them dicts first, "
            'ref.map(lambda tokens: {"tokens": tokens}), or store them so'
        )
    names = [field.name for field in spec.fields]
    shown = "" if name is None else str(name)
    if is_single != (name is None) or names.count(shown) != 1:
        known = "None, since a record is a single value" if is_single else f"one of {names}"
        raise ConfigurationError(f"there is no field {name!r} that could be {done}: pass {known}")
    return names.index(shown)


def check_leaf(name: str | int | None, leaf: Leaf, size: int, done: str) -> None:
    """Refuse a field that has no tokens along its first axis, and rows of so many that numpy can't make them.

    Raises:
        ConfigurationError: if it has none.
    """
    what = "the record" if name is None else f"field {name!r}"
    if not leaf.is_numeric:
        raise ConfigurationError(
            f"{what} holds {leaf.dtype}, which is not {done}: store numbers, such as tokens, or "
            "np.frombuffer(data, np.uint8) for single bytes"
        )
    if not leaf.shape or None in leaf.shape[1:] or 0 in leaf.shape[1:]:
        hint = ". A field of one value a record is named in values=" * (done == PACKED)
        raise ConfigurationError(
            f"{what} has the shape {leaf.shape}; values are {done} along their first axis, and their other "
            f"sizes must all be known, and not 0{hint}"
        )
    if is_too_large((size, *leaf.shape[1:])):
        raise ConfigurationError(f"a size of {size} is too large: numpy can't make batches of such rows")


def checked_pad(pad: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a padding value as one of a field's dtype.

    Raises:
        ConfigurationError: if it is none.
    """
    try:
        with np.errstate(invalid="ignore"):
            value = np.array(pad).astype(dtype)
        fits = value.shape == () and bool(np.array_equal(value, pad, equal_nan=dtype.kind in "fc"))
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ConfigurationError(f"pad is {pad!r:.100}, which is no single value of {dtype}")
    return value


def lengths_of(records: RandomAccess, numbers: Sequence[int], workers: int) -> Indices:
    """Return the length of each record's fields along their first axis, the same for all of them.

    Lengths that are stored are read without the values; otherwise each record is read once.

    Raises:
        UnsupportedDataError: if the fields of a record differ in length.
    """
    require_memory("packed", len(records), PLAN_BYTES)
    rest, lengths = list[int](), None
    for number in numbers:
        found = stored_lengths(records, number)
        if found is None:
            rest.append(number)
        elif lengths is None:
            lengths, first = found, number
        else:
            _require_equal(records.spec, (first, lengths), (number, found), 0)
    if rest:
        if workers:
            read = by_workers("packed", "a function", records, rest, lengths_by_reading, workers)
            found = np.concatenate([np.empty(0, np.int64), *read])
        else:
            found = lengths_by_reading(records, rest, 0, len(records))
        if lengths is not None:
            _require_equal(records.spec, (first, lengths), (rest[0], found), 0)
        lengths = found
    assert lengths is not None
    return lengths


def stored_lengths(records: RandomAccess, number: int) -> Indices | None:
    """Return the lengths of a field, from the entries of its values; None if these are not stored."""
    base = origin_of(records, np.empty(0, np.int64), number)[0]
    if base.parents and not isinstance(base, View):  # references that are joined
        _, indices, its_number = origin_of(records, np.arange(len(records)), number)
        parts = [stored_lengths(parent, its_number) for parent in base.parents]
        known = [part for part in parts if part is not None]
        return np.concatenate(known)[indices] if len(known) == len(parts) else None
    if not isinstance(base, Stored):
        return None
    [length, *_] = records.spec.fields[number].leaf.shape or ()
    if length is not None:
        return np.full(len(records), length)
    lengths = np.empty(len(records), np.int64)
    for indices in reads_of_lengths(len(records)):
        _, at, its_number = origin_of(records, indices, number)
        lengths[indices] = base.lengths(at, its_number)
    return lengths


def reads_of_lengths(count: int) -> Iterator[Indices]:
    """Yield the indices of so many records, as many at a time as `stored_lengths` reads lengths of."""
    for start in range(0, count, _AT_ONCE):
        yield np.arange(start, min(start + _AT_ONCE, count))


def lengths_by_reading(records: RandomAccess, numbers: list[int], first: int, end: int) -> Indices:
    """Return the lengths of the records from `first` to `end`, each of which is read.

    Raises:
        UnsupportedDataError: if the fields of a record differ in length.
    """
    lengths = np.empty(end - first, np.int64)
    for indices in stretches_of(records, first, end):
        start = int(indices[0])
        columns = records.columns(indices, numbers)
        found = [np.fromiter(map(len, column), np.int64, len(indices)) for column in columns]
        for number, others in zip(numbers[1:], found[1:], strict=True):
            _require_equal(records.spec, (numbers[0], found[0]), (number, others), start)
        lengths[start - first : start - first + len(indices)] = found[0]
    return lengths


def stretches_of(records: RandomAccess, first: int, end: int) -> Iterator[Indices]:
    """Yield the indices from `first` to `end`, as many at a time as may be read at once."""
    if first < end:  # without records, `record_bytes` may be unknown
        count = max(1, min(_READ_RECORDS, _READ_BYTES // records.record_bytes))
        for start in range(first, end, count):
            yield np.arange(start, min(start + count, end))


def _require_equal(spec: Spec, ours: tuple[int, Indices], theirs: tuple[int, Indices], first: int) -> None:
    differ = np.flatnonzero(ours[1] != theirs[1])
    if len(differ):
        record = int(differ[0])
        names = [spec.fields[number].name for number, _ in (ours, theirs)]
        raise UnsupportedDataError(
            f"record {first + record} has {ours[1][record]} values in field {names[0]!r} and "
            f"{theirs[1][record]} in {names[1]!r}: fields that are packed together have equal lengths"
        )


class PlannedRecords(RenamedAlone, MadeRecords, Generic[Plan]):
    """Records that are made of others by a plan.

    The plan is not pickled if it is kept beside a cache; it is opened again where it is needed.

    Attributes:
        _parts: The kind of these records, and what besides the parent makes them what they are.
    """

    _parts: tuple[Any, ...]

    is_drawn = True
    steps = 0, 1
    parents_a_record = 1.0
    spec: Spec
    fingerprint: str
    record_bytes: int

    @property
    def padding(self) -> float:
        """The share of the values that are padding."""
        raise NotImplementedError

    @property
    def shown(self) -> str:
        """What the records are, in words."""
        raise NotImplementedError

    def _take_plan(
        self,
        what: Sequence[Any],
        numbers: Iterable[int],
        workers: Any,
        seen: RandomAccess | None = None,
        functions: Sequence[Callable[..., Any]] = (),
    ) -> None:
        """Find the plan of these fields' lengths, or make it; `what` says which plan it is.

        With `functions`, it is the plan of what these return for the records as they see them.
        """
        self._lock = ProcessLock()
        self._length_numbers = list(numbers)
        self._kept = find_stored(self.parent if seen is None else seen, what, functions, "a plan")
        self._plan: Plan | None
        self._plan, self._digest = self._find_plan(int_argument("workers", workers))

    def _identify(self) -> None:
        self.composition = hash_of(*self._parts)
        self.fingerprint = hash_of(self._parts[0], self.parent.fingerprint, *self._parts[1:])

    def _open_plan(self, content: Any) -> tuple[Plan, bool]:
        """Return a kept plan, and whether it is of these arguments; or raise CacheFormatError."""
        raise NotImplementedError

    def _make_plan(self, lengths: Indices) -> Plan:
        raise NotImplementedError

    def _make_plan_by(self, workers: int) -> Plan:
        """Read what the plan is made of, and make it."""
        return self._make_plan(lengths_of(self.parent, self._length_numbers, workers))

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in ("_lock", "_outputs")}
        return {**state, "_prepared": [], "_plan": self._plan if self._kept is None else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=ProcessLock())

    @property
    def plan(self) -> Plan:
        """The plan."""
        plan = self._plan
        if plan is None:
            with self._lock:
                if self._plan is None:
                    found, digest = self._find_plan(0)
                    if digest != self._digest:
                        raise CacheFormatError(
                            "the records have changed since this reference was made: call packed, bucketed "
                            "or grouped again"
                        )
                    self._plan = found
                plan = self._plan
        return plan

    def _find_plan(self, workers: int) -> tuple[Plan, str]:
        """Return the kept plan, or make it and keep it; and the hash of its bytes."""
        content: Any = None if self._kept is None else self._kept.cache.plan(self._kept.name)
        if content is not None:
            try:
                plan, fits = self._open_plan(content)
            except CacheFormatError as error:
                _log.info("yogadl: a plan is made again: %s", error)
            else:
                if fits:
                    return plan, xxh3_128_hexdigest(content)
        plan = self._make_plan_by(workers)
        content = plan.to_bytes()
        if self._kept is not None and not self._kept.cache.keep_plan(self._kept.name, content):
            self._kept = None
        return plan, xxh3_128_hexdigest(content)
