"""Divide records into shares of exact sizes or by a key, and draw samples of them with replacement."""

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from yogadl._core.arguments import fraction_argument, int_argument
from yogadl._core.json_value import comparable
from yogadl._core.memory import require_memory
from yogadl._core.protocols import Indices, Numbers, RandomAccess, grown_versions
from yogadl._core.spec import JSON, OBJECT, Leaf
from yogadl._order import derive_key
from yogadl._order.draw import sampled, whole_weights
from yogadl._order.keys import RECORDS_LIMIT, absorb_array, apportion, bounds_reached
from yogadl._order.permutation import permute
from yogadl._views.functions import MappedRecords
from yogadl._views.views import RenamedAlone, SameValues, View, hash_of, hash_of_numbers
from yogadl.errors import ConfigurationError

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
_WEIGHT_BYTES: Final = 40  # the most memory that weights need for each record


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
        _refuse_with_key(shares, seed, by, key, grows)
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


def _refuse_with_key(
    shares: Sequence[Any], seed: int, by: str | int | None, key: str | int, grows: bool | None
) -> None:
    """Refuse what contradicts a division by a key.

    Raises:
        ConfigurationError: if `by` or `grows` is given.
    """
    given = ", ".join([*map(repr, shares), f"seed={seed}"])
    if by is not None:
        raise ConfigurationError(
            "split takes key= or by=, not both: with key=, the hash of a record's key alone decides its "
            "share, so that no other record can change it, and by= counts the records of each value. Write "
            f"ref.split({given}, key={key!r}) if records of one key belong together: of each value of "
            f"{by!r} a share gets about its part, the nearer the more keys there are. Write "
            f"ref.split({given}, by={by!r}, grows=True) for exact parts, of which the records that are "
            "appended later change none"
        )
    if grows is not None:
        raise ConfigurationError(
            "split takes key= without grows=: the hash of a record's key alone decides its share, which no "
            f"later version changes. Write ref.split({given}, key={key!r})"
        )


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
    if key == "file" and key not in (records.spec.keys() or []):
        files = map(records.file_of, range(len(records)))
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
    undivided = _undivided(_one_of_each(records)[0])
    alike = "shares that begin with those of earlier versions"
    advice = f"Write {call}True) for {alike}" if undivided is None else f"For {alike}, {undivided[1]}"
    raise ConfigurationError(
        f"{grown.id!r} version {grown.version!r} continues version {grown.earlier[-1].version!r}: if all its "
        f"records are divided anew, some move from one share of that version to another. {advice}; or write "
        f"{call}False) to divide all anew"
    )


def _additions(records: RandomAccess) -> Iterator[tuple[tuple[int, ...], Indices]]:
    """Yield the records that each version added, in order, with the index of the version's first record.

    The oldest version has no such index, so that its records are divided as if there were no later version.

    Raises:
        ConfigurationError: if the records are not each one record of one dataset.
    """
    base, indices = _one_of_each(records)
    undivided = _undivided(base)
    if undivided is not None:
        raise ConfigurationError(": ".join(undivided))
    starts = [] if base.lineage is None else [earlier.records for earlier in base.lineage.earlier]
    version = np.searchsorted(np.array(starts, np.int64), indices, "right")
    for number, first in enumerate([0, *starts]):
        added = np.flatnonzero(version == number)
        if len(added) or not number:
            yield (first,) if number else (), added


def _one_of_each(records: RandomAccess) -> tuple[RandomAccess, Indices]:
    """Return the records below those views that take or make each of one record, and which one it is."""
    base = records
    indices = np.arange(len(records))
    while not base.is_drawn:
        if isinstance(base, MappedRecords):  # each record is made of one record of the parent
            base = base.parent
        elif isinstance(base, SameValues):
            indices, base = base.in_parent(indices), base.parent
        else:
            break
    return base, indices


def _undivided(base: RandomAccess) -> tuple[str, str] | None:
    """Return why records can't be divided by the versions of a dataset, and what to do; None if they can."""
    if base.is_drawn or isinstance(base, View):
        return (
            "samples, packed rows, batches, chunks and windows are of records of several versions, and "
            "grows=True can't divide them",
            "split the records first, and make them of each share",
        )
    if base.parents:
        return (
            "grows=True divides the records of one dataset, and these are of several",
            "split each, and call concat of their shares",
        )
    return None


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

    The values of a json field are texts that equal values have in common.

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
    columns = ((chunk, records.columns(chunk, numbers)[0]) for chunk in chunks)
    if leaf.dtype == JSON:
        return leaf, ((chunk, list(map(comparable, column))) for chunk, column in columns)
    return leaf, columns


class SampledRecords(RenamedAlone, SameValues):
    """Records drawn from others with replacement; see `RecordsRef.sampled`.

    An index is ``draw * len(self) + number``, and each draw has other records; see `yogadl._order`.

    Args:
        parent: The records to draw from.
        weights: How often each is drawn in proportion, or the name of a field that tells; None: all alike.
        by: The name of a field whose values are drawn equally often.
        records: How many are drawn in an epoch; as many as there are, if None.

    Raises:
        ConfigurationError: if an argument makes no sense.
    """

    is_drawn = True

    def __init__(self, parent: RandomAccess, weights: Any, by: str | int | None, records: Any) -> None:
        super().__init__(parent)
        if not len(parent):
            raise ConfigurationError("there are no records to sample from")
        self._records = int_argument("records", len(parent) if records is None else records, 1)
        if self._records > RECORDS_LIMIT:
            raise ConfigurationError(f"records is {records}, and an epoch has at most 2**62")
        if weights is not None and by is not None:
            raise ConfigurationError("sampled takes weights= or by=, not both")
        require_memory("sampled", len(parent), _WEIGHT_BYTES)
        if by is not None:
            numbers = numbers_of_values(parent, by)
            found = 1 / np.bincount(numbers)[numbers]
        else:
            found = np.ones(len(parent)) if weights is None else _checked_weights(parent, weights)
        self._bounds = np.cumsum(whole_weights(found))
        self._identify()

    def _identify(self) -> None:
        parts = self._records, hash_of_numbers(self._bounds)
        self.fingerprint = hash_of("sampled", self.parent.fingerprint, *parts)

    def __len__(self) -> int:
        return self._records

    def in_parent(self, indices: Indices) -> Indices:
        """Return the parent's indices of the records that are drawn."""
        return sampled(*np.divmod(indices, self._records), self._bounds)

    def user_numbers(self, indices: Indices) -> Numbers:
        """Return the numbers of the records that are drawn, by which users know them."""
        return Numbers(self.in_parent(indices))

    @property
    def numbered(self) -> RandomAccess:
        """The records that are drawn from."""
        return self.parent


def _checked_weights(records: RandomAccess, weights: Any) -> NDArray[np.float64]:
    """Return one weight for each record."""
    if isinstance(weights, str):
        leaf, chunks = read_field(records, weights, "weights")
        if not leaf.is_numeric or leaf.numpy_dtype.kind not in "biuf":
            raise ConfigurationError(f"weights={weights!r} is {leaf.dtype}: a weight is a number")
        found = np.empty(len(records))
        for chunk, column in chunks:
            found[chunk] = column
    else:
        given = np.asarray(weights)
        if given.dtype.kind not in "biuf":
            raise ConfigurationError(
                f"weights are one number for each record, or the name of a field, not {weights!r:.100}"
            )
        found = given.astype(np.float64)
        if found.shape != (len(records),):
            raise ConfigurationError(
                f"weights are one number for each of {len(records)} records, not of shape {found.shape}"
            )
    if not np.isfinite(found).all() or found.min() < 0 or not found.max() > 0:
        raise ConfigurationError("a weight is a finite number, 0 or more, and one of them is more than 0")
    return found
