"""Choose records: those that a function is true of, and the shares of exact sizes that a split makes.

It is worked out once which records a function is true of. The selection is stored under a hash of the cache's
fingerprint, of the functions and views that its records pass through before the predicate, and of the
predicate. It has no such name, and is not stored, if any of these can't be described with certainty.
"""

import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from yogadl._core.arguments import fraction_argument, int_argument
from yogadl._core.leaf import OBJECT, Leaf
from yogadl._core.memory import require_memory
from yogadl._core.protocols import Indices, RandomAccess, grown_versions
from yogadl._order import derive_key
from yogadl._order.keys import absorb_array, apportion, bounds_reached
from yogadl._order.permutation import permute
from yogadl._views.functions import MappedRecords, file_of
from yogadl._views.stages import name_of
from yogadl._views.views import ProjectedRecords, SelectedRecords
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


def filtered(
    records: RandomAccess, function: Predicate, fields: Any, workers: Any, on_error: Any = "raise"
) -> SelectedRecords:
    """Return the records that a function is true of, in their order; see `RecordsRef.filter`."""
    return _chosen(
        "filter", records, seen_fields("filter", records, function, fields), function, workers, on_error
    )


def passing(records: RandomAccess, function: Callable[..., Any], workers: Any) -> SelectedRecords:
    """Return the records for which a function does not raise; see `RecordsRef.map`."""
    return _chosen("map", records, records, function, workers, "skip")


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
    stored = _find_stored_selection(seen, choice)
    indices = None if stored is None else stored.cache.selection(stored.name, len(records))
    if indices is None:
        if workers:
            name = name_of(function)
            found = by_workers(str(choice), name, (seen, choice), _choose_in_worker, workers)
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


class _StoredSelection(NamedTuple):
    """Where a selection is stored: the cache, and the selection's name in it."""

    cache: Any  # an object with `selection` and `keep_selection`
    name: str


def _find_stored_selection(records: RandomAccess, choice: _Choice) -> _StoredSelection | None:
    """Return where a function's selection of these records is stored; None if it can't be stored.

    The name covers all views, since the fingerprint of mapped records does not cover the functions.
    """
    try:
        base, views = described(records)
        if not hasattr(base, "keep_selection"):
            return None
        what = f"{choice.called}-skip" if choice.is_skipping else choice.called
        text = json.dumps([what, base.fingerprint, views, hash_of_function(choice.function)])
    except ConfigurationError as error:
        _log.debug("yogadl: the selection of %s is kept only in memory: %s", choice, error)
        return None
    return _StoredSelection(base, hashlib.sha256(text.encode()).hexdigest())


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
        elif hasattr(base, "of_parent"):
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
                index, reason = int(indices[done]), f"{type(error).__name__}: {error}"
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


def _choose_in_worker(
    arguments: tuple[RandomAccess, _Choice], _: Callable[[Any], None], first: int, end: int
) -> _Chosen | Failure:
    """Return the indices from `first` to `end` that a function chooses; runs in a worker."""
    records, choice = arguments
    try:
        return _choose(records, choice, first, end)
    except StageError as error:
        return Failure.of(error)


SPLIT_TAG: Final = int.from_bytes(b"split-1", "big")
KEYED_TAG: Final = int.from_bytes(b"split-key-1", "big")
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
    records: RandomAccess,
    shares: Sequence[Any],
    seed: int,
    by: str | int | None,
    grows: bool | None = None,
    key: str | int | None = None,
) -> list[Indices]:
    """Return the indices of the records of each share; the arguments are those of `RecordsRef.split`.

    `docs/explanation/order.md` states the arithmetic, frozen as version 1.

    Raises:
        ConfigurationError: if an argument makes no sense.
    """
    parts = _exact_shares(shares)
    if key is not None:
        if by is not None or grows is not None:
            raise ConfigurationError(
                "split takes key=, by which a record's share never changes, without by= and grows="
            )
        require_memory("split", len(records), _PLAIN_BYTES)
        return _divide_by_key(_words(records, key), parts, derive_key(KEYED_TAG, seed))
    if grows is None:
        _refuse_growth(records, shares, seed, by)
    require_memory("split", len(records), _PLAIN_BYTES if by is None else _STRATIFIED_BYTES)
    values = None if by is None else numbers_of_values(records, by)
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


def _divide_by_key(words: NDArray[np.uint64], parts: Sequence[Fraction], state: int) -> list[Indices]:
    """Give each record to the share that the hash of its word chooses."""
    sums = itertools.accumulate(parts[:-1])
    bounds = np.array([min(int(part * 2**64), 2**64 - 1) for part in sums], np.uint64)
    share = bounds_reached(absorb_array(state, words), bounds)
    return [np.flatnonzero(share == number) for number in range(len(parts))]


def _words(records: RandomAccess, key: str | int) -> NDArray[np.uint64]:
    """Return a word for each record, equal for equal values of the field; with "file", for the same file.

    Raises:
        ConfigurationError: if there is no such field or it can't be hashed.
    """
    keys = getattr(records.spec.tree, "keys", ())
    if key == "file" and key not in keys:
        files = (file_of(records, index) for index in range(len(records)))
        return np.fromiter(map(_word_of_file, files), np.uint64, len(records))
    leaf, chunks = read_field(records, key, "key")
    if not leaf.is_numeric:
        found = [_word_of(value) for _, column in chunks for value in column]
        return np.array(found, np.uint64)
    if leaf.numpy_dtype.kind not in "biumM":
        raise ConfigurationError(
            f"key={key!r} is {leaf.dtype}: a split by key takes integers, dates, str or bytes"
        )
    words = np.empty(len(records), np.uint64)
    for chunk, column in chunks:
        words[chunk] = column.astype(np.int64 if column.dtype.kind != "u" else np.uint64).view(np.uint64)
    return words


def _word_of_file(path: str | None) -> int:
    if path is None:
        raise ConfigurationError(
            'key="file" needs records that have a field "file", or a source that lists the file of each '
            "record: pass a field that tells the file"
        )
    return _word_of(path)


def _word_of(value: str | bytes) -> int:
    return xxh3_64_intdigest(value.encode() if isinstance(value, str) else value)


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


def numbers_of_values(records: RandomAccess, by: str | int) -> Indices:
    """Return a number for each record, equal for equal values of the field; records are read once, in chunks.

    Raises:
        ConfigurationError: if the field does not exist, or its values can't be compared.
    """
    if len(records) > _MOST_STRATIFIED:
        raise ConfigurationError(
            f"{len(records)} records are too many to split by a field, of at most {_MOST_STRATIFIED}: split "
            "them without by="
        )
    leaf, chunks = read_field(records, by, "by")
    if not leaf.is_numeric:
        number_of_value: dict[Any, int] = {}
        value_numbers = np.empty(len(records), np.int64)
        for chunk, column in chunks:
            value_numbers[chunk] = [
                number_of_value.setdefault(value, len(number_of_value)) for value in column
            ]
        return value_numbers
    # All values of ml_dtypes' types (bfloat16, int4, ...) are exact in float32, which numpy can compare.
    dtype = leaf.numpy_dtype if leaf.numpy_dtype.kind in "biufcmM" else np.dtype(np.float32)
    values = np.empty(len(records), dtype)
    for chunk, column in chunks:
        values[chunk] = column
    return np.unique(values, return_inverse=True)[1]


def read_field(
    records: RandomAccess, name: str | int, argument: str
) -> tuple[Leaf, Iterator[tuple[Indices, Any]]]:
    """Return what a field of one value a record is, and its values, some at a time with their indices.

    Raises:
        ConfigurationError: if there is no such field; the error names the argument.
    """
    spec, numbers = records.spec.project([name])
    leaf = spec.fields[0].leaf
    if len(numbers) != 1 or leaf.shape != () or leaf.dtype == OBJECT:
        kind = f"{len(numbers)} fields" if len(numbers) != 1 else f"{leaf.dtype} of shape {leaf.shape}"
        raise ConfigurationError(
            f"{argument}={name!r} is {kind}: name a field that is one number, date, str or bytes a record"
        )
    size = max(1, min(_CHUNK_RECORDS, _CHUNK_BYTES // max(1, records.record_bytes)))
    chunks = (np.arange(first, min(first + size, len(records))) for first in range(0, len(records), size))
    return leaf, ((chunk, records.columns(chunk, numbers)[0]) for chunk in chunks)
