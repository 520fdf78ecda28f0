"""Choose records: those that a function is true of, and the shares of exact sizes that a split makes.

It is worked out once which records a function is true of. The selection is stored under a hash of the cache's
fingerprint, of the functions and views that its records pass through before the predicate, and of the
predicate. It has no such name, and is not stored, if any of these can't be described with certainty.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import fraction_argument, int_argument
from yogadl._core.leaf import OBJECT
from yogadl._core.memory import require_memory
from yogadl._core.protocols import Column, Indices, RandomAccess, grown_versions
from yogadl._core.spec import Spec
from yogadl._order import derive_key
from yogadl._order.keys import apportion
from yogadl._order.permutation import permute
from yogadl._views.functions import MappedRecords
from yogadl._views.stages import name_of
from yogadl._views.views import ProjectedRecords, SelectedRecords, SlicedRecords
from yogadl._workers.messages import Failure
from yogadl.errors import ConfigurationError, StageError, WorkerDiedError

_log = logging.getLogger("yogadl")

Predicate = Callable[[Any], Any]

# The most bytes, and the most records, that are read at a time.
_READ_BYTES: Final = 2**20
_READ_RECORDS: Final = 2**14
_INDEX_BYTES: Final = 24  # the most memory that the indices need for each record
# The number of tasks for each worker, if there are enough records, and the most records of one task.
_TASKS: Final = 32
_TASK_RECORDS: Final = 2**16


def filtered(records: RandomAccess, function: Predicate, fields: Any, workers: Any) -> SelectedRecords:
    """Return the records that a function is true of, in their order; see `RecordsRef.filter`."""
    argument: object = function  # the caller may pass any object
    if not callable(argument):
        raise ConfigurationError(f"filter takes a function of one argument, a record, not {argument!r:.100}")
    workers = int_argument("workers", workers)
    require_memory("filter", len(records), _INDEX_BYTES)
    seen = records  # the records as the function sees them: perhaps with some of their fields only
    if fields is not None:
        names = tuple(fields) if isinstance(fields, tuple | list) else (fields,)
        seen = ProjectedRecords(records, *records.spec.project(names))
    stored = _find_stored_selection(seen, function)
    indices = None if stored is None else stored.cache.selection(stored.name, len(records))
    if indices is None:
        if workers:
            name = name_of(function)
            found: Iterable[Indices] = by_workers(
                f"filter({name})", name, (seen, function), _indices_in_worker, workers
            )
        else:
            found = _indices_where_true(seen, function, 0, len(seen))
        indices = np.concatenate([np.empty(0, np.int64), *found])
        if stored is not None:
            stored.cache.keep_selection(stored.name, len(records), indices)
    return SelectedRecords(records, indices)


class _StoredSelection(NamedTuple):
    """Where a selection is stored: the cache, and the selection's name in it."""

    cache: Any  # an object with `selection` and `keep_selection`
    name: str


def _find_stored_selection(records: RandomAccess, function: Predicate) -> _StoredSelection | None:
    """Return where a function's selection of these records is stored; None if it can't be stored.

    The name covers all views, since the fingerprint of mapped records does not cover the functions.
    """
    from yogadl._provenance.builder import sha256_of_function

    try:
        base, views = described(records)
        if not hasattr(base, "keep_selection"):
            return None
        text = json.dumps(["filter", base.fingerprint, views, sha256_of_function(function)])
    except ConfigurationError as error:
        _log.debug("yogadl: the selection of %s is kept only in memory: %s", name_of(function), error)
        return None
    return _StoredSelection(base, hashlib.sha256(text.encode()).hexdigest())


def described(records: RandomAccess) -> tuple[Any, list[Any]]:
    """Return the records below all views and functions of one record each, and these as JSON.

    Raises:
        ConfigurationError: if a function can't be described with certainty.
    """
    from yogadl._provenance.builder import sha256_of_function

    base: Any = records
    views: list[Any] = []
    while True:
        if isinstance(base, MappedRecords):
            functions = [sha256_of_function(stage.function) for stage in base.chain.stages]
            views.append(["map", functions, base.spec.to_json()])
            base = base.chain.source
        elif isinstance(base, ProjectedRecords):
            views.append(["fields", base.numbers, base.spec.to_json()])
            base = base.parent
        elif isinstance(base, SelectedRecords | SlicedRecords):
            views.append(["of", base.fingerprint])
            base = base.parent
        else:
            return base, views


def _indices_where_true(
    records: RandomAccess, function: Predicate, first: int, end: int, max_records: int = _READ_RECORDS
) -> Iterator[Indices]:
    """Yield the indices from `first` to `end` at which a function is true, some at a time.

    Raises:
        StageError: if a function raises, or returns no bool; the error names the first such record.
    """
    if first == end:
        return  # without records, `record_bytes` may be unknown
    count = max(1, min(max_records, _READ_BYTES // records.record_bytes))
    for start in range(first, end, count):
        indices = np.arange(start, min(start + count, end))
        try:
            columns = records.columns(indices)
        except StageError:
            if len(indices) == 1:
                raise
            # A function of `map` failed. The predicate may fail at an earlier record, so the records are read
            # one by one.
            yield from _indices_where_true(records, function, start, start + len(indices), 1)
            continue
        yield indices[_call_predicate(function, records.spec, columns, indices)]


def _call_predicate(
    function: Predicate, spec: Spec, columns: Sequence[Column], indices: Indices
) -> NDArray[np.bool_]:
    """Return whether the function is true, for each record."""
    results: list[Any] = []
    raised: Exception | None = None
    try:
        spec.call(function, columns, len(indices), results.append)
    except Exception as error:  # noqa: BLE001  (a user's function may raise anything)
        raised = error
    # True and False are single objects, in Python and in numpy: all addresses are compared at once.
    addresses = np.frombuffer(np.fromiter(results, object, len(results)).tobytes(), np.intp)
    is_true: NDArray[np.bool_] = (addresses == id(True)) | (addresses == id(np.True_))
    are_bools = is_true | (addresses == id(False)) | (addresses == id(np.False_))
    if not are_bools.all():
        number = int(are_bools.argmin())
        value = results[number]
        index = int(indices[number])
        hint = "does it end without `return`?" if value is None else "give bool(...) of that"
        raise StageError(
            f"filter({name_of(function)}) must return True or False, but for record {index} it returned "
            f"{value!r:.100}: {hint}",
            0,
            index,
        )
    if raised is not None:
        index = int(indices[len(results)])
        what = f"filter({name_of(function)}) failed at record {index}"
        raise StageError(f"{what}: {type(raised).__name__}: {raised}", 0, index) from raised
    return is_true


def by_workers(
    called: str,
    argument: str,
    payload: tuple[RandomAccess, Any],
    task: Callable[..., Any],
    workers: int,
) -> list[Any]:
    """Return what several processes return for one stretch of records after another.

    Args:
        called: What the user called, for messages.
        argument: What of it may not pickle, for messages.
        payload: The records, and what else the task needs.
        task: A function of a module, called with the payload, a function that reports, and a stretch's first
            index and its end. It returns a `Failure` in place of an error.
        workers: The number of processes.
    """
    from yogadl._workers.messages import pickled
    from yogadl._workers.processes import worker_pool

    pickled_payload = pickled(
        payload,
        f"{argument}, or what it reads,",
        stays_here=True,
        hint="Leave workers out, or open what does not pickle inside of the function",
    )
    records = len(payload[0])
    count = max(1, min(_TASK_RECORDS, records // (workers * _TASKS)))
    starts = range(0, records, count)
    found: list[Any] = []
    if starts:
        with worker_pool(min(workers, len(starts)), pickled_payload, [task.__module__]) as pool:
            tasks = [pool.call(task, start, min(start + count, records)) for start in starts]
            for call in tasks:  # in order, so that the error is that of the first failing record
                try:
                    result = call.result()
                except WorkerDiedError as error:
                    raise WorkerDiedError(f"{called}: {error}") from error
                if isinstance(result, Failure):
                    error_of_worker, cause = result.load()
                    if cause is not None:
                        name = called.partition("(")[0]
                        cause.add_note(f"in a worker process of {name}:\n{result.where}")
                    raise error_of_worker from cause
                found.append(result)
    return found


def _indices_in_worker(
    arguments: tuple[RandomAccess, Predicate], _: Callable[[Any], None], first: int, end: int
) -> Indices | Failure:
    """Return the indices from `first` to `end` at which the function is true; runs in a worker."""
    records, function = arguments
    try:
        return np.concatenate(list(_indices_where_true(records, function, first, end)))
    except StageError as error:
        return Failure.of(error)


SPLIT_TAG: Final = int.from_bytes(b"split-1", "big")
# Shares cover all records if their sum differs from 1 by at most this: the floats of 1/3, 1/3 and 1/3 add up
# to slightly less.
_ROUNDING: Final = Fraction(1, 10**9)
# The most records and bytes that are read at a time to find the values to split by.
_CHUNK_RECORDS: Final = 65_536
_CHUNK_BYTES: Final = 2**24
# The most memory that a split needs for each record.
_PLAIN_BYTES: Final = 40
_STRATIFIED_BYTES: Final = 96
_MOST_STRATIFIED: Final = 2**31  # records; the square of a larger number could overflow int64


def split(
    records: RandomAccess, shares: Sequence[Any], seed: int, by: str | int | None, grows: bool | None = None
) -> list[Indices]:
    """Return the indices of the records of each share; the arguments are those of `RecordsRef.split`.

    `docs/explanation/order.md` states the arithmetic, frozen as version 1.

    Raises:
        ConfigurationError: if an argument makes no sense.
    """
    parts = _exact_shares(shares)
    if grows is None:
        _refuse_growth(records, shares, seed, by)
    require_memory("split", len(records), _PLAIN_BYTES if by is None else _STRATIFIED_BYTES)
    values = None if by is None else _values(records, by)
    if not grows:
        return _divide(np.arange(len(records)), parts, derive_key(SPLIT_TAG, seed), values)
    shares_of_versions = [
        _divide(indices, parts, derive_key(SPLIT_TAG, seed, *first), values)
        for first, indices in _additions(records)
    ]
    return [np.concatenate(share) for share in zip(*shares_of_versions, strict=True)]


def _divide(indices: Indices, parts: Sequence[Fraction], key: int, values: Indices | None) -> list[Indices]:
    """Shuffle records and divide them among the shares; if values are given, each value in proportion."""
    counts = apportion(len(indices), parts)
    shuffled = indices[permute(np.arange(len(indices)), len(indices), key)]
    if values is None:
        return [share.copy() for share in np.split(shuffled, np.cumsum(counts[:-1]))]
    grouped = _grouped_places(values[shuffled])
    return [shuffled[np.sort(places)] for places in _divide_evenly(grouped, counts)]


def _refuse_growth(records: RandomAccess, shares: Sequence[Any], seed: int, by: str | int | None) -> None:
    """Refuse to split records of a version that continues others, unless `grows` was given.

    Raises:
        ConfigurationError: if the records are those of such a version.
    """
    versions = grown_versions(records)
    if not versions:
        return
    grown = versions[0]
    options = [*map(repr, shares), f"seed={seed}", *([] if by is None else [f"by={by!r}"])]
    call = f"ref.split({', '.join(options)}, grows="
    raise ConfigurationError(
        f"{grown.id!r} version {grown.version!r} continues version {grown.earlier[-1].version!r}: if all its "
        f"records are divided anew, some move from one share of that version to another. Write {call}True) "
        f"for shares that begin with those of earlier versions, or {call}False) to divide all anew"
    )


def _additions(records: RandomAccess) -> Iterator[tuple[tuple[int, ...], Indices]]:
    """Yield the records that each version added, in order, with the index of the version's first record.

    The oldest version has no such index, so that its records are divided as if there were no later version.

    Raises:
        ConfigurationError: if the records belong to several datasets, or each is made of several records.
    """
    base: Any = records
    indices = np.arange(len(records))
    while True:
        if isinstance(base, MappedRecords):  # each record is made of one record of the parent
            base = base.parent
        elif hasattr(base, "of_parent"):
            base, indices, _ = base.of_parent(indices, 0)
        else:
            break
    if hasattr(base, "parent"):
        raise ConfigurationError(
            "chunks have records of several versions in them, so grows=True can't divide them: split the "
            "records first, and call chunks of each share"
        )
    if hasattr(base, "parents"):
        raise ConfigurationError(
            "grows=True divides the records of one dataset, and these are of several: split each, and call "
            "concat of their shares"
        )
    lineage = getattr(base, "lineage", None)
    starts = [] if lineage is None else [earlier.records for earlier in lineage.earlier]
    version = np.searchsorted(np.array(starts, np.int64), indices, "right")
    for number, first in enumerate([0, *starts]):
        added = np.flatnonzero(version == number)
        if len(added) or not number:
            yield (first,) if number else (), added


def _divide_evenly(places: Indices, counts: Sequence[int]) -> list[Indices]:
    """Divide an ordered list of places among shares, so that each share gets its part of any neighbours.

    Places are divided between two halves of the shares, then within each half. If they were dealt out to one
    share after another, the last share would have the errors of all others.
    """
    if len(counts) == 1:
        return [places]
    half = len(counts) // 2
    quota = np.arange(len(places) + 1) * sum(counts[:half]) // max(1, len(places))
    is_first = quota[1:] > quota[:-1]  # whether a place belongs to the first half of the shares
    return [
        *_divide_evenly(places[is_first], counts[:half]),
        *_divide_evenly(places[~is_first], counts[half:]),
    ]


def _exact_shares(shares: Sequence[Any]) -> list[Fraction]:
    """Return the shares as exact numbers that add up to 1; the rest, if any, is one more share."""
    parts = [fraction_argument("a share of split", share) for share in shares]
    rest = Fraction(1) - sum(parts)
    if not parts or rest < -_ROUNDING:
        problem = f"these add up to {float(1 - rest):g}" if parts else "none is given"
        raise ConfigurationError(
            f"split takes shares that add up to at most 1, and {problem}: try ref.split(0.8)"
        )
    return [*parts, rest] if rest > _ROUNDING else parts


def _grouped_places(groups: Indices) -> Indices:
    """Return the positions in `groups`, those of each group together; groups are in order of appearance."""
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.argsort(rank[group], kind="stable")


def _values(records: RandomAccess, by: str | int) -> Indices:
    """Return a number for each record, equal for equal values of the field; records are read once, in chunks.

    Raises:
        ConfigurationError: if the field does not exist, or its values can't be compared.
    """
    spec, numbers = records.spec.project([by])
    leaf = spec.fields[0].leaf
    if len(numbers) != 1 or leaf.shape != () or leaf.dtype == OBJECT:
        kind = f"{len(numbers)} fields" if len(numbers) != 1 else f"{leaf.dtype} of shape {leaf.shape}"
        raise ConfigurationError(
            f"by={by!r} is {kind}: split by a field that is one number, date, str or bytes a record"
        )
    if len(records) > _MOST_STRATIFIED:
        raise ConfigurationError(
            f"{len(records)} records are too many to split by a field, of at most {_MOST_STRATIFIED}: split "
            "them without by="
        )
    size = max(1, min(_CHUNK_RECORDS, _CHUNK_BYTES // max(1, records.record_bytes)))
    chunks = (np.arange(first, min(first + size, len(records))) for first in range(0, len(records), size))
    if not leaf.is_numeric:
        number_of_value: dict[Any, int] = {}
        value_numbers = np.empty(len(records), np.int64)
        for chunk in chunks:
            [column] = records.columns(chunk, numbers)
            value_numbers[chunk] = [
                number_of_value.setdefault(value, len(number_of_value)) for value in column
            ]
        return value_numbers
    # All values of ml_dtypes' types (bfloat16, int4, ...) are exact in float32, which numpy can compare.
    dtype = leaf.numpy_dtype if leaf.numpy_dtype.kind in "biufcmM" else np.dtype(np.float32)
    values = np.empty(len(records), dtype)
    for chunk in chunks:
        [values[chunk]] = records.columns(chunk, numbers)
    return np.unique(values, return_inverse=True)[1]
