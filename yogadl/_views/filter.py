"""Work out once which records a function is true of, and find a selection that was stored before.

A selection is stored under a hash of the cache's fingerprint, of the functions and views that its records
pass through before the predicate, and of the predicate. A selection has no such name, and is not stored, if
any of these can't be described with certainty.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import int_argument
from yogadl._core.memory import require_memory
from yogadl._core.protocols import Column, Indices, RandomAccess
from yogadl._core.spec import Spec
from yogadl._views.functions import MappedRecords, name_of
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
            found: Iterable[Indices] = _indices_by_workers(seen, function, workers)
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

    base: Any = records
    views: list[Any] = []  # the views between the cache and these records, as JSON
    try:
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
                break
        if not hasattr(base, "keep_selection"):
            return None
        described = ["filter", base.fingerprint, views, sha256_of_function(function)]
    except ConfigurationError as error:
        _log.debug("yogadl: the selection of %s is kept only in memory: %s", name_of(function), error)
        return None
    return _StoredSelection(base, hashlib.sha256(json.dumps(described).encode()).hexdigest())


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


def _indices_by_workers(records: RandomAccess, function: Predicate, workers: int) -> list[Indices]:
    """Return the indices at which the function is true, computed by several processes."""
    from yogadl._workers.messages import pickled
    from yogadl._workers.processes import worker_pool

    pickled_arguments = pickled(
        (records, function),
        f"{name_of(function)}, or what it reads,",
        stays_here=True,
        hint="Leave workers out, or open what does not pickle inside of the function",
    )
    count = max(1, min(_TASK_RECORDS, len(records) // (workers * _TASKS)))
    starts = range(0, len(records), count)
    found: list[Indices] = []
    if starts:
        with worker_pool(min(workers, len(starts)), pickled_arguments, [__name__]) as pool:
            tasks = [
                pool.call(_indices_in_worker, start, min(start + count, len(records))) for start in starts
            ]
            for task in tasks:  # in order, so that the error is that of the first failing record
                try:
                    result = task.result()
                except WorkerDiedError as error:
                    raise WorkerDiedError(f"filter({name_of(function)}): {error}") from error
                if isinstance(result, Failure):
                    error_of_worker, cause = result.load()
                    if cause is not None:
                        cause.add_note(f"in a worker process of filter:\n{result.where}")
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
