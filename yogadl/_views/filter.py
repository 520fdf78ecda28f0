"""Work out once which records a function is true of, and find a selection that was stored before.

A selection is stored under a hash of the cache's fingerprint, of the functions and views that its records
pass through before the predicate, and of the predicate. A selection has no such name, and is not stored, if
any of these can't be described with certainty.
"""

import functools
import hashlib
import json
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import whole
from yogadl._core.memory import require_memory
from yogadl._core.protocols import Column, Indices, RandomAccess
from yogadl._core.spec import Spec
from yogadl._views.functions import MappedRecords, name_of
from yogadl._views.views import ProjectedRecords, SelectedRecords, SlicedRecords
from yogadl._workers.messages import Failure
from yogadl.errors import ConfigurationError, StageError, WorkerDiedError

_log = logging.getLogger("yogadl")

Predicate = Callable[[Any], Any]

# How many bytes, and how many records at most, are read at a time.
_READ_BYTES: Final = 2**20
_READ_RECORDS: Final = 2**14
_INDEX_BYTES: Final = 24  # the most memory that the indices need for each record
# Tasks a worker, if there are enough records, and the most records of one task.
_TASKS: Final = 32
_TASK_RECORDS: Final = 2**16


def filtered(records: RandomAccess, function: Predicate, fields: Any, workers: Any) -> SelectedRecords:
    """Return the records that a function is true of, in their order; see `RecordsRef.filter`."""
    given: object = function  # from the user: may be any object, as may fields and workers
    if not callable(given):
        raise ConfigurationError(f"filter takes a function of one argument, a record, not {given!r:.100}")
    workers = whole("workers", workers)
    require_memory("filter", len(records), _INDEX_BYTES)
    seen = records
    if fields is not None:
        names = tuple(fields) if isinstance(fields, tuple | list) else (fields,)
        seen = ProjectedRecords(records, *records.spec.project(names))
    place = _place(seen, function)
    indices = None if place is None else place.cache.selection(place.name, len(records))
    if indices is None:
        pieces = _by_workers(seen, function, workers) if workers else _true(seen, function, 0, len(seen))
        indices = np.concatenate([np.empty(0, np.int64), *pieces])
        if place is not None:
            place.cache.keep_selection(place.name, len(records), indices)
    return SelectedRecords(records, indices)


class _Place(NamedTuple):
    """The records that a selection is stored with, and the selection's name."""

    cache: Any  # records that have `selection` and `keep_selection`
    name: str


def _place(records: RandomAccess, function: Predicate) -> _Place | None:
    """Return the place where a function's selection of these records is stored, or None if there is none."""
    from yogadl._provenance.builder import sha256_of_function

    below: Any = records
    passed: list[Any] = []  # between the cache and these records; fingerprints may not cover it
    try:
        while True:
            if isinstance(below, MappedRecords):
                functions = [sha256_of_function(stage.function) for stage in below.chain.stages]
                passed.append(["map", functions, below.spec.to_json()])
                below = below.chain.source
            elif isinstance(below, ProjectedRecords):
                passed.append(["fields", below.numbers, below.spec.to_json()])
                below = below.parent
            elif isinstance(below, SelectedRecords | SlicedRecords):
                passed.append(["of", below.fingerprint])
                below = below.parent
            else:
                break
        if not hasattr(below, "keep_selection"):
            return None
        described = ["filter", below.fingerprint, passed, sha256_of_function(function)]
    except ConfigurationError as error:
        _log.debug("yogadl: the selection of %s is kept only in memory: %s", name_of(function), error)
        return None
    return _Place(below, hashlib.sha256(json.dumps(described).encode()).hexdigest())


def _true(
    records: RandomAccess, function: Predicate, first: int, end: int, most: int = _READ_RECORDS
) -> Iterator[Indices]:
    """Yield the indices from `first` to `end` at which a function is true, some at a time.

    Raises:
        StageError: if a function raises, or returns no bool; the error names the first such record.
    """
    if first == end:
        return  # without any record, the size may be unknown
    count = max(1, min(most, _READ_BYTES // records.record_bytes))
    for start in range(first, end, count):
        indices = np.arange(start, min(start + count, end))
        try:
            columns = records.columns(indices)
        except StageError:
            if len(indices) == 1:
                raise
            # A function of `map` failed. The predicate may fail at an earlier record, so they are tried one
            # by one.
            yield from _true(records, function, start, start + len(indices), 1)
            continue
        yield indices[_called(function, records.spec, columns, indices)]


def _called(
    function: Predicate, spec: Spec, columns: Sequence[Column], indices: Indices
) -> NDArray[np.bool_]:
    """Return whether the function is true, for each record."""
    made: list[Any] = []
    raised: Exception | None = None
    try:
        spec.call(function, columns, len(indices), made.append)
    except Exception as error:  # noqa: BLE001  (a user's function may raise anything)
        raised = error
    # True and False are single objects, in Python and in numpy: all addresses are compared at once.
    places = np.frombuffer(np.fromiter(made, object, len(made)).tobytes(), np.intp)
    is_true: NDArray[np.bool_] = (places == id(True)) | (places == id(np.True_))
    are_bools = is_true | (places == id(False)) | (places == id(np.False_))
    if not are_bools.all():
        number = int(are_bools.argmin())
        value = made[number]
        index = int(indices[number])
        hint = "does it end without `return`?" if value is None else "give bool(...) of that"
        raise StageError(
            f"filter({name_of(function)}) must return True or False, but for record {index} it returned "
            f"{value!r:.100}: {hint}",
            0,
            index,
        )
    if raised is not None:
        index = int(indices[len(made)])
        what = f"filter({name_of(function)}) failed at record {index}"
        raise StageError(f"{what}: {type(raised).__name__}: {raised}", 0, index) from raised
    return is_true


def _by_workers(records: RandomAccess, function: Predicate, workers: int) -> list[Indices]:
    """Return the indices at which the function is true, computed by several processes."""
    from yogadl._workers.messages import pickled
    from yogadl._workers.processes import worker_pool

    given = pickled(
        (records, function),
        f"{name_of(function)}, or what it reads,",
        stays_here=True,
        hint="Leave workers out, or open what does not pickle inside of the function",
    )
    count = max(1, min(_TASK_RECORDS, len(records) // (workers * _TASKS)))
    starts = range(0, len(records), count)
    found: list[Indices] = []
    if starts:
        with worker_pool(min(workers, len(starts)), given) as pool:
            # `map` of an executor cancels the remaining tasks at an error, which breaks this pool.
            tasks = [pool.submit(_examined, start, min(start + count, len(records))) for start in starts]
            for task in tasks:  # in order, so that the error is that of the first failing record
                try:
                    piece = task.result()
                except WorkerDiedError as error:
                    raise WorkerDiedError(f"filter({name_of(function)}): {error}") from error
                if isinstance(piece, Failure):
                    failed, cause = piece.load()
                    if cause is not None:
                        cause.add_note(f"in a worker process of filter:\n{piece.where}")
                    raise failed from cause
                found.append(piece)
    return found


def _examined(first: int, end: int) -> Indices | Failure:
    """Return the indices from `first` to `end` at which the function is true; runs in a worker."""
    records, function = _given()
    try:
        return np.concatenate(list(_true(records, function, first, end)))
    except StageError as error:
        return Failure.of(error)


@functools.cache  # this process is a worker and has one function only
def _given() -> Any:
    from yogadl._workers.processes import given_to_worker

    return pickle.loads(given_to_worker())
