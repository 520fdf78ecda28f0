"""Choose records by a function: those that it is true of, or for which it does not raise.

It is worked out once which records a function is true of. The selection is stored under a hash of the cache's
fingerprint, of the functions and views that its records pass through before the predicate, and of the
predicate. It has no such name, and is not stored, if any of these can't be described with certainty.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import int_argument
from yogadl._core.memory import require_memory
from yogadl._core.printable import error_text
from yogadl._core.protocols import Indices, RandomAccess, Stored
from yogadl._views.functions import Chain, MappedRecords
from yogadl._views.stages import name_of
from yogadl._views.views import ProjectedRecords, SameValues, SelectedRecords
from yogadl._workers.messages import Failure
from yogadl.errors import ConfigurationError, StageError, UnsupportedDataError, WorkerDiedError

_log = logging.getLogger("yogadl")

Predicate = Callable[[Any], Any]

# The most bytes, and the most records, that are read at a time.
_READ_BYTES: Final = 2**20
_READ_RECORDS: Final = 2**14
_INDEX_BYTES: Final = 24  # the most memory that the indices need for each record
# The number of tasks for each worker, if there are enough records, and the most records of one task.
_TASKS: Final = 32
_TASK_RECORDS: Final = 2**16


def filtered(
    records: RandomAccess, function: Predicate, fields: Any, workers: Any, on_error: Any = "raise"
) -> SelectedRecords:
    """Return the records that a function is true of, in their order; see `RecordsRef.filter`."""
    return _chosen(
        "filter", records, seen_fields("filter", records, function, fields), function, workers, on_error
    )


def passing(records: RandomAccess, function: Callable[..., Any], workers: Any) -> SelectedRecords:
    """Return the records for which a function does not raise; see `RecordsRef.map`."""
    return _chosen("map", records, seen_fields("map", records, function, None), function, workers, "skip")


def mapped(
    records: RandomAccess,
    function: Callable[..., Any],
    spec: Any,
    on_error: Any = "raise",
    workers: int = 0,
) -> MappedRecords:
    """Return records passed through a function, after any functions that they already pass through."""
    if on_error == "skip":
        records = passing(records, function, workers)
    elif on_error != "raise":
        raise ConfigurationError(f'on_error must be "raise" or "skip", not {on_error!r:.100}')
    elif workers:
        raise ConfigurationError(
            'workers of map call the function with on_error="skip": pass both, or neither'
        )
    chain = records.chain if isinstance(records, MappedRecords) else Chain(records, ())
    return MappedRecords(chain.then(function, None, spec))


def seen_fields(
    called: str, records: RandomAccess, function: Callable[..., Any], fields: Any
) -> RandomAccess:
    """Return records as a function sees them: perhaps with some of their fields only.

    Raises:
        ConfigurationError: if it is no function, or there is no such field.
    """
    argument: object = function  # the caller may pass any object
    if not callable(argument):
        raise ConfigurationError(
            f"{called} takes a function of one argument, a record, not {argument!r:.100}"
        )
    if fields is None:
        return records
    names = tuple(fields) if isinstance(fields, tuple | list) else (fields,)
    return ProjectedRecords(records, *records.spec.project(names))


class _Choice(NamedTuple):
    """How records are chosen, by a function.

    Args:
        called: "filter": the records that it is true of. "map": those for which it does not raise.
        function: The function.
        is_skipping: Whether records for which it raises are left out.
    """

    called: str
    function: Callable[..., Any]
    is_skipping: bool

    def __str__(self) -> str:
        return f"{self.called}({name_of(self.function)})"


class _Chosen(NamedTuple):
    """The indices that were chosen, and the records that were left out since the function raised."""

    indices: Indices
    skipped: int = 0
    first: str = ""  # which record, and the error


def _chosen(
    called: str, records: RandomAccess, seen: RandomAccess, function: Predicate, workers: Any, on_error: Any
) -> SelectedRecords:
    if on_error not in ("raise", "skip"):
        raise ConfigurationError(f'on_error must be "raise" or "skip", not {on_error!r:.100}')
    choice = _Choice(called, function, on_error == "skip")
    workers = int_argument("workers", workers)
    require_memory(called, len(records), _INDEX_BYTES)
    what = f"{called}-skip" if choice.is_skipping else called
    shown = f"the selection of {name_of(function)}"
    stored = find_stored(seen, [what], [function], shown)
    indices = None if stored is None else stored.cache.selection(stored.name, len(records))
    if indices is None:
        if workers:
            name = name_of(function)
            found = by_workers(str(choice), name, seen, choice, _choose, workers)
        else:
            found = [_choose(seen, choice, 0, len(seen))]
        indices = np.concatenate([np.empty(0, np.int64), *(part.indices for part in found)])
        skipped = sum(part.skipped for part in found)
        if skipped:
            first = next(part.first for part in found if part.skipped)
            _log.warning("yogadl: %s left out %d of %d records: %s", choice, skipped, len(seen), first)
        if stored is not None:
            stored.cache.keep_selection(stored.name, len(records), indices)
    return SelectedRecords(records, indices)


class KeptAt(NamedTuple):
    """Where a selection or a plan is stored: the cache, and its name there."""

    cache: Stored
    name: str


def find_stored(
    records: RandomAccess,
    what: Sequence[Any],
    functions: Sequence[Callable[..., Any] | None],
    shown: str,
) -> KeptAt | None:
    """Return where that which functions made of these records is stored; None if it can't be stored.

    The name covers all views, since the fingerprint of mapped records does not cover the functions.

    Args:
        records: The records, as the functions see them.
        what: Which kind it is, and its arguments, as JSON.
        functions: The functions.
        shown: The same for messages.
    """
    try:
        base, views = described(records)
        if not isinstance(base, Stored):
            return None
        hashes = [None if each is None else hash_of_function(each) for each in functions]
    except ConfigurationError as error:
        _log.debug("yogadl: %s is kept only in memory: %s", shown, error)
        return None
    text = json.dumps([*what, base.fingerprint, views, *hashes])
    return KeptAt(base, hashlib.sha256(text.encode()).hexdigest())


def hash_of_function(function: Callable[..., Any]) -> str:
    """Return a hash of a function's code and values.

    Raises:
        ConfigurationError: if the function can't be described with certainty.
    """
    from yogadl._provenance.builder import sha256_of_function  # slow to import

    return sha256_of_function(function)


def described(records: RandomAccess) -> tuple[Any, list[Any]]:
    """Return the records below all views and functions of one record each, and these as JSON.

    Raises:
        ConfigurationError: if a function can't be described with certainty.
    """
    base: Any = records
    views: list[Any] = []
    while True:
        if isinstance(base, MappedRecords):
            functions = [hash_of_function(stage.function) for stage in base.chain.stages]
            views.append(["map", functions, base.spec.to_json()])
            base = base.chain.source
        elif isinstance(base, ProjectedRecords):
            views.append(["fields", base.numbers, base.spec.to_json()])
            base = base.parent
        elif isinstance(base, SameValues):
            views.append(["of", base.fingerprint])
            base = base.parent
        else:
            return base, views


def _choose(records: RandomAccess, choice: _Choice, first: int, end: int) -> _Chosen:
    """Return the indices from `first` to `end` that a function chooses.

    Raises:
        StageError: if a function raises, or returns no bool; the error names the first such record.
    """
    is_filter = choice.called == "filter"
    function = choice.function if is_filter else partial(_call, choice.function)
    skipped: list[tuple[int, str]] | None = [] if choice.is_skipping else None
    chosen = [
        indices[_are_true(choice, indices, results)] if is_filter else indices
        for indices, results in results_of(str(choice), function, records, first, end, skipped)
    ]
    indices = np.concatenate([np.empty(0, np.int64), *chosen])
    if not skipped:
        return _Chosen(indices)
    index, reason = skipped[0]
    return _Chosen(indices, len(skipped), f"the first is record {index}: {reason}")


def _call(function: Callable[..., Any], record: Any) -> None:
    """Call a function for its errors alone: the results of many records may be large."""
    function(record)


def results_of(
    called: str,
    function: Callable[[Any], Any],
    records: RandomAccess,
    first: int,
    end: int,
    skipped: list[tuple[int, str]] | None = None,
    *,
    max_records: int = _READ_RECORDS,
) -> Iterator[tuple[Indices, list[Any]]]:
    """Yield the indices from `first` to `end` and a function's results, some at a time.

    Args:
        called: What the user called, for messages.
        function: The function.
        records: The records.
        first: The first index.
        end: The index to end before.
        skipped: Gets the index of each record for which the function raises, and the reason. Without it, that
            is an error, raised after the results of the records before.
        max_records: The most records at a time.

    Raises:
        StageError: if the function raises; the error names the first such record.
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
            # A function of `map` failed. This function may fail at an earlier record, so the records are read
            # one by one.
            several = start, start + len(indices), skipped
            yield from results_of(called, function, records, *several, max_records=1)
            continue
        results: list[Any] = []
        good = np.ones(len(indices), np.bool_)
        done = 0  # how many records the function was called with
        while done < len(indices):
            rest = [column[done:] for column in columns] if done else columns
            before = len(results)
            try:
                records.spec.call(function, rest, len(indices) - done, results.append)
            except Exception as error:
                done += len(results) - before
                index, reason = int(indices[done]), error_text(error)
                if skipped is None:
                    yield indices[:done], results
                    raise StageError(f"{called} failed at record {index}: {reason}", 0, index) from error
                skipped.append((index, reason))
                good[done] = False
                done += 1
            else:
                done = len(indices)
        yield indices[good], results


def _are_true(choice: _Choice, indices: Indices, results: list[Any]) -> NDArray[np.bool_]:
    """Return whether each result of a predicate is true.

    Raises:
        StageError: if one is no bool; the error names the first such record.
    """
    if not results:
        return np.empty(0, np.bool_)
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
            f"{choice} must return True or False, but for record {index} it returned {value!r:.100}: {hint}",
            0,
            index,
        )
    return is_true


def by_workers(
    called: str,
    argument: str,
    records: RandomAccess,
    given: Any,
    task: Callable[..., Any],
    workers: int,
) -> list[Any]:
    """Return what several processes return for one stretch of records after another.

    Args:
        called: What the user called, for messages.
        argument: What of it may not pickle, for messages.
        records: The records.
        given: What else the task needs.
        task: A function of a module, called with the records, what is given, and a stretch's first index and
            its end.
        workers: The number of processes.
    """
    from yogadl._workers.messages import pickled
    from yogadl._workers.processes import worker_pool

    payload = pickled(
        (records, given, task),
        f"{argument}, or what it reads,",
        stays_here=True,
        hint="Leave workers out, or open what does not pickle inside of the function",
    )
    count = max(1, min(_TASK_RECORDS, len(records) // (workers * _TASKS)))
    starts = range(0, len(records), count)
    found: list[Any] = []
    if starts:
        with worker_pool(min(workers, len(starts)), payload, [__name__, task.__module__]) as pool:
            tasks = [pool.call(_call_task, start, min(start + count, len(records))) for start in starts]
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


def _call_task(
    payload: tuple[RandomAccess, Any, Callable[..., Any]], _: Callable[[Any], None], first: int, end: int
) -> Any:
    """Return what a task returns for a stretch of records, or its error as a `Failure`; runs in a worker."""
    records, given, task = payload
    try:
        return task(records, given, first, end)
    except (StageError, UnsupportedDataError) as error:
        return Failure.of(error)
