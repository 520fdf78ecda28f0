"""Plan batches of records of like length or of one value, and find the records of a batch in an epoch.

Of lengths, a class is the records whose lengths lie between two limits. Its batches have as many records as
the budget of values allows if each is as long as the class's longest. The records that fill no batch go to
the next class, of longer ones, so an epoch has one short batch, of the longest class. There is one more
for each class of records so long that what is left over would fill more than two of its batches. A record
over the budget is a batch alone.

Of values, a class is the records of one value, of which none goes to another: the last batch of each is
short.

A pool is the records that the batches of a class are drawn from: the rest of the class before, then its own.
It is permuted anew in each epoch, by a key of its own. The number of batches and of records in each is
constant, each record comes once in an epoch, and any batch can be computed without the others.

The classes are part of the order: the same lengths and arguments make the same ones for ever.
`benchmarks/packing.py` measures it.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._order.draw import make_ranges, permute_each
from yogadl._order.keys import RECORDS_LIMIT, check_count, check_within, derive_key
from yogadl._order.lengths import (
    LENGTH_LIMIT,
    KeptPlan,
    chunks_of,
    damaged,
    kept,
    offsets_of,
    ramps,
    sorted_by_kind,
    total,
    word_for,
)
from yogadl._order.permutation import Integers
from yogadl.errors import ConfigurationError

BUCKET_TAG: Final = int.from_bytes(b"bucket-1", "big")
MOST_CLASSES: Final = 1024
MOST_GROUPS: Final = 1 << 16  # so that the number of a value fits into 16 bits
PADDING: Final = 0.03
_MAGIC: Final = b"bucket1\n"
_GROUPS_MAGIC: Final = b"groups1\n"
_BINS: Final = 1 << 20  # of the histogram; longer lengths are rounded up to a multiple
_LIMITS: Final = 512  # as many limits are all tried
_BATCHES_OF_CLASS: Final = 4  # at least, on average: else hardly any two records could share a batch
_FEW_CLASSES: Final = 16  # are tried however few batches there are
_CARRIED_BATCHES: Final = 2  # what a class leaves over fills at most so many batches of the next one
_TRIED: Final = (4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128)


class Bucketed(NamedTuple):
    """Many batches: the records of batch i are at ``offsets[i]`` to ``offsets[i + 1]``."""

    offsets: Integers
    records: Integers
    longest: Integers  # of the class of each batch: no record of it is longer; 0 if no length counts


class _ClassLayout(NamedTuple):
    """The consequences of the classes: an entry for each, and one for the records over the budget."""

    batch_records: Integers
    larger: Integers  # how many of the batches have one record more
    pools: Integers
    carried: Integers  # records that come from the class before
    batches: Integers

    @property
    def drawn(self) -> Integers:
        """How many records the batches of each class have."""
        return self.first(np.arange(len(self.pools)), self.batches)

    def first(self, which: Integers, number: Integers) -> Integers:
        """Return the first member of a class's pool that is in a batch of this number, or in a later one."""
        first: Integers = number * self.batch_records[which] + np.minimum(number, self.larger[which])
        return np.minimum(first, self.pools[which])


class BatchPlan:
    """The batches of a dataset, and their records in any epoch. Immutable, so threads may share it.

    A subclass says which classes there are, and how its bytes begin. With `ranks`, the number of batches is a
    multiple of it, unless there are too few records. The first `steps_of_one_class` times `ranks` batches are
    steps of `ranks` batches of one class, one after the other.
    """

    magic: bytes

    def __init__(
        self,
        integers: list[int],
        arrays: list[NDArray[Any]],
        layout: _ClassLayout,
        members: Integers,
        ranks: int,
    ) -> None:
        self._integers, self._arrays = integers, arrays
        self._numbers, self.ranks = arrays[-1], ranks
        self.records = len(self._numbers)
        self._begins = offsets_of(members)
        self._layout = layout = _in_steps(layout, ranks)
        pools = np.maximum(layout.pools, 1)  # one that is empty has no batch
        self._ranges = make_ranges(pools, np.arange(len(pools), dtype=np.uint64))
        in_steps = layout.batches // ranks * ranks
        counts = np.concatenate([in_steps, layout.batches - in_steps])
        self._first_batches = offsets_of(counts)
        self._first_within = np.concatenate([np.zeros_like(in_steps), in_steps])
        self.batches_per_epoch = int(self._first_batches[-1])
        self.steps_of_one_class = int(in_steps.sum()) // ranks

    def to_bytes(self) -> bytes:
        """Return the plan as bytes, for `from_buffer`; about 4 a record."""
        return b"".join(kept(self.magic, self._integers, self._arrays))

    def write(self, file: BinaryIO) -> None:
        """Write the same bytes to a file, without a copy of them in memory."""
        for piece in kept(self.magic, self._integers, self._arrays):
            file.write(piece)

    def batches(self, numbers: NDArray[np.int64], seed: int, epoch: int) -> Bucketed:
        """Return the records of batches in an epoch, those of each batch in a random order.

        Args:
            numbers: The numbers of the batches, in any order, in one dimension.
            seed: Any integer.
            epoch: The epoch, from 0.

        Raises:
            IndexError: If there is no such batch.
            CacheFormatError: If the plan is damaged.
        """
        flat = check_within(numbers, self.batches_per_epoch, "batch")
        layout = self._layout
        segment = np.searchsorted(self._first_batches, flat, side="right") - 1
        within = flat - self._first_batches[segment] + self._first_within[segment]
        which = segment % len(layout.pools)
        first = layout.first(which, within)
        counts = layout.first(which, within + 1) - first
        places = self._draw(
            ramps(first, counts), np.repeat(which, counts), derive_key(BUCKET_TAG, seed, epoch)
        )
        records = self._numbers[places].astype(np.int64)
        if records.size and not 0 <= int(records.min()) <= int(records.max()) < self.records:
            raise damaged("it has records that the dataset has not")
        offsets = offsets_of(counts)
        return Bucketed(offsets, records, self._longest_of(which, places[offsets[:-1]]))

    def _longest_of(self, which: Integers, first_places: Integers) -> Integers:
        """Return the longest length of batches, given their classes and the place of the first record."""
        return np.zeros_like(which)

    def _draw(self, members: Integers, which: Integers, state: int) -> Integers:
        """Return the places of members of pools; one that the class before left is a member of its pool."""
        layout = self._layout
        places = np.empty(members.size, np.int64)
        open_ones = np.arange(members.size)
        while open_ones.size:
            drawn = permute_each(members, which, self._ranges, state) - layout.carried[which]
            own = drawn >= 0
            places[open_ones[own]] = drawn[own] + self._begins[which[own]]
            open_ones, which = open_ones[~own], which[~own] - 1
            # The last ones of a pool go to the next class, whose pool has them first.
            members = drawn[~own] + layout.pools[which]
        return places


class BucketPlan(BatchPlan):
    """The batches of records of like length.

    A plan is made by `make`, or opened from bytes by `from_buffer`; then its arrays are views of these bytes.
    `padded_tokens` are the values of all batches if each record is padded to the longest of its class.
    """

    magic = _MAGIC

    def __init__(self, integers: list[int], arrays: list[NDArray[Any]]) -> None:
        self.budget, self.max_records, ranks, _, self.tokens = integers[:5]
        self.longest, members, self._alone, _ = arrays
        layout = _lay_out(self.longest, members, len(self._alone), self.budget, self.max_records)
        super().__init__(integers, arrays, layout, np.append(members, len(self._alone)), ranks)
        self.padded_tokens = _padded(self.longest, self._layout) + int(self._alone.sum())

    @property
    def padding(self) -> float:
        """The padded values over the values, less 1, if each record is padded to its class's longest."""
        return self.padded_tokens / self.tokens - 1 if self.tokens else 0.0

    @classmethod
    def make(
        cls,
        lengths: NDArray[Any],
        tokens: int,
        *,
        max_records: int | None = None,
        long: Literal["alone", "raise"] = "alone",
        classes: int | None = None,
        ranks: int = 1,
    ) -> "BucketPlan":
        """Plan batches of at most `tokens` values, padding included.

        Args:
            lengths: The length of each record; any array of integers, which may be mapped.
            tokens: The budget of a batch.
            max_records: The most records of a batch.
            long: The action for a record over the budget: make it a batch alone, or raise an error.
            classes: The most classes; each is a shape. By default as few as pad at most 3 %, or if no
                number does, the one that pads least of those that leave a class some batches.
            ranks: How many batches make a step, which is of one class if possible; the number of batches is a
                multiple of it.

        Raises:
            ConfigurationError: If an argument can't be used, or `long="raise"` and a record is longer.
        """
        budget, ranks = check_count("tokens", tokens), check_count("ranks", ranks)
        most = RECORDS_LIMIT if max_records is None else check_count("max_records", max_records)
        if classes is not None and check_count("classes", classes) > MOST_CLASSES:
            raise ConfigurationError(f"classes must be at most {MOST_CLASSES}, not {classes}.")
        if long not in ("alone", "raise"):
            raise ConfigurationError(f'long must be "alone" or "raise", not {long!r}.')
        limits, counts, alone, values = _count(lengths, budget, long)
        longest, members = _choose(limits, counts, budget, most, classes)
        word = word_for(lengths.size)
        every = np.append(members, len(alone))
        numbers = sorted_by_kind(_classify(lengths, budget, longest), every, word)
        most = min(most, max(1, lengths.size))
        integers = [
            budget,
            most,
            ranks,
            lengths.size,
            values,
            len(longest),
            len(alone),
            np.dtype(word).itemsize,
        ]
        return cls(integers, [longest, members, alone, numbers])

    @classmethod
    def from_buffer(cls, buffer: Any) -> "BucketPlan":
        """Open a plan in bytes, or in a mapped file, of which it reads the classes alone.

        Raises:
            CacheFormatError: If the bytes are no such plan. Numbers of records are checked as they are used.
        """
        source = KeptPlan(buffer, _MAGIC)
        size = memoryview(buffer).nbytes
        limits = [RECORDS_LIMIT, RECORDS_LIMIT, RECORDS_LIMIT, size, 1 << 62, MOST_CLASSES, size, 8]
        integers = source.integers(limits)
        budget, most, ranks, records, _, classes, over, itemsize = integers
        if min(budget, most, ranks) < 1 or most > max(1, records) or itemsize not in (4, 8):
            raise damaged("its settings contradict each other")
        arrays = [
            source.array(
                np.int64, classes, lambda a: a[0] >= 0 and (a[1:] > a[:-1]).all() and a[-1] <= budget
            ),
            source.array(np.int64, classes, lambda a: a.min() > 0),
            source.array(np.int64, over, lambda a: a.min() > budget and a.max() <= LENGTH_LIMIT),
            source.array(np.dtype(f"u{itemsize}"), records),
        ]
        source.end()
        if total(arrays[1], "records") + over != records:
            raise damaged("its counts contradict each other")
        return cls(integers, arrays)

    def _longest_of(self, which: Integers, first_places: Integers) -> Integers:
        classes = len(self.longest)
        longest: Integers = np.append(self.longest, 0)[which]
        alone = np.flatnonzero(which == classes)
        longest[alone] = self._alone[first_places[alone] - self._begins[classes]]
        return longest


class GroupPlan(BatchPlan):
    """The batches of records of one value. A value is known by its number, from 0.

    A plan is made by `make`, or opened from bytes by `from_buffer`; then its arrays are views of these bytes.
    """

    magic = _GROUPS_MAGIC

    def __init__(self, integers: list[int], arrays: list[NDArray[Any]]) -> None:
        per_batch, members, _ = arrays
        self.groups = len(members)
        none = np.zeros_like(members)
        layout = _ClassLayout(per_batch, none, members, none, -(-members // per_batch))
        super().__init__(integers, arrays, layout, members, integers[0])

    @classmethod
    def make(cls, kinds: NDArray[Any], per_batch: list[int], ranks: int = 1) -> "GroupPlan":
        """Plan batches of the records of each value; the last one of each value is short.

        Args:
            kinds: The number of each record's value; each value has a record.
            per_batch: How many records of each value a batch has.
            ranks: How many batches make a step; see `BucketPlan.make`.
        """
        groups = len(per_batch)
        members = np.zeros(groups, np.int64)
        for _, chunk in chunks_of(kinds):
            members += np.bincount(chunk, minlength=groups)
        word = word_for(kinds.size)
        every = ((np.arange(start, start + chunk.size), chunk) for start, chunk in chunks_of(kinds))
        numbers = sorted_by_kind(every, members, word)
        most = np.minimum(np.array([min(each, kinds.size) for each in per_batch], np.int64), members)
        integers = [check_count("ranks", ranks), groups, kinds.size, np.dtype(word).itemsize]
        return cls(integers, [most, members, numbers])

    @classmethod
    def from_buffer(cls, buffer: Any) -> "GroupPlan":
        """Open a plan in bytes, or in a mapped file, of which it reads the sizes of the groups alone.

        Raises:
            CacheFormatError: If the bytes are no such plan. Numbers of records are checked as they are used.
        """
        source = KeptPlan(buffer, _GROUPS_MAGIC)
        size = memoryview(buffer).nbytes
        integers = source.integers([RECORDS_LIMIT, MOST_GROUPS, size, 8])
        ranks, groups, records, itemsize = integers
        if ranks < 1 or itemsize not in (4, 8):
            raise damaged("its settings contradict each other")
        arrays = [
            source.array(np.int64, groups, lambda a: a.min() > 0),
            source.array(np.int64, groups, lambda a: a.min() > 0),
            source.array(np.dtype(f"u{itemsize}"), records),
        ]
        source.end()
        if total(arrays[1], "records") != records or (arrays[0] > arrays[1]).any():
            raise damaged("its counts contradict each other")
        return cls(integers, arrays)


def _lay_out(longest: Integers, members: Integers, alone: int, budget: int, max_records: int) -> _ClassLayout:
    most = [min(budget // max(1, length), max_records) for length in longest.tolist()]
    pools, carried, batches = list[int](), list[int](), list[int]()
    left = 0
    for count, per_batch, after in zip(members.tolist(), most, [*most, 0][1:], strict=True):
        carried.append(left)
        pools.append(count + left)
        left = pools[-1] % per_batch
        if left > _CARRIED_BATCHES * after:  # as after the last class
            left = 0
        batches.append((pools[-1] - left + per_batch - 1) // per_batch)
    larger = [0] * (len(pools) + 1)
    columns = [*most, 1], larger, [*pools, alone], [*carried, 0], [*batches, alone]
    return _ClassLayout(*(np.array(column, np.int64) for column in columns))


def _in_steps(layout: _ClassLayout, ranks: int) -> _ClassLayout:
    """Return a layout whose number of batches is a multiple of `ranks`, unless there are too few records.

    The missing batches are added to one class, whose records are then divided into more batches.
    """
    missing = -int(layout.batches.sum()) % ranks
    drawn, batches = layout.drawn, layout.batches + missing
    enough = np.flatnonzero(drawn >= batches)
    if not missing or not enough.size:
        return layout
    which = enough[np.argmax(batches[enough])]
    found = _ClassLayout(*(column.copy() for column in layout))
    found.batches[which] = batches[which]
    found.batch_records[which], found.larger[which] = divmod(int(drawn[which]), int(batches[which]))
    return found


def _padded(longest: Integers, layout: _ClassLayout) -> int:
    """Return the values of all batches but those of one record over the budget, padded to their classes'."""
    drawn = layout.drawn[:-1]
    return sum(count * length for count, length in zip(drawn.tolist(), longest.tolist(), strict=True))


def _count(lengths: NDArray[Any], budget: int, long: str) -> tuple[Integers, Integers, Integers, int]:
    """Return limits of lengths and how many records lie below each; the lengths over the budget; the values.

    The lengths that occur are the limits, unless one is longer than the histogram has bins.
    """
    longest, values, alone = 0, 0, [np.empty(0, np.int64)]
    for start, chunk in chunks_of(lengths):
        over = np.flatnonzero(chunk > budget)
        if over.size and long == "raise":
            raise ConfigurationError(
                f"record {start + int(over[0])} has {int(chunk[over[0]])} values, more than the "
                f'{budget} of a batch; raise tokens, or pass long="alone".'
            )
        values += int(chunk.sum())
        alone.append(chunk[over])
        chunk[over] = 0
        longest = max(longest, int(chunk.max()))
    if values > RECORDS_LIMIT:
        raise ConfigurationError(f"the records have {values} values; a plan takes at most 2**62.")
    width = max(1, -(-longest // _BINS))
    counts = np.zeros(-(-longest // width) + 1, np.int64)
    for _, chunk in chunks_of(lengths):
        chunk = chunk[chunk <= budget]
        found = np.bincount(chunk if width == 1 else -(-chunk // width))
        counts[: found.size] += found
    bins = np.flatnonzero(counts)
    return np.minimum(bins * width, longest), counts[bins], np.concatenate(alone), values


def _classify(
    lengths: NDArray[Any], budget: int, longest: Integers
) -> Iterator[tuple[Integers, NDArray[np.intp]]]:
    """Yield the records' numbers and classes; one over the budget is in the class after the last."""
    for start, chunk in chunks_of(lengths):
        yield np.arange(start, start + chunk.size), np.searchsorted(longest, chunk)


def _choose(
    limits: Integers, counts: Integers, budget: int, max_records: int, classes: int | None
) -> tuple[Integers, Integers]:
    """Choose the classes: return the longest length of each, and how many records it has."""
    if not limits.size:
        return limits, counts
    ends = np.cumsum(counts)
    values = max(1, int((limits * counts).sum()))
    some = _some(limits, counts)
    limits, ends = limits[some], ends[some]
    if classes is None:
        batches = max(values // budget, int(ends[-1]) // max_records)
        most = min(len(limits), _TRIED[-1], max(_FEW_CLASSES, batches // _BATCHES_OF_CLASS))
        tried = [*(count for count in _TRIED if count < most), most]
    else:
        tried = [min(classes, len(limits))]
    best: tuple[float, Integers, Integers] | None = None
    for chosen in _partitions(limits, ends, tried):
        longest, members = limits[chosen], np.diff(ends[chosen], prepend=0)
        padded = _padded(longest, _lay_out(longest, members, 0, budget, max_records)) / values
        if best is None or padded < best[0]:
            best = padded, longest, members
        if padded <= 1 + PADDING:
            break
    assert best is not None
    return best[1], best[2]


def _some(limits: Integers, counts: Integers) -> NDArray[np.intp]:
    """Choose some of many limits: some divide the values equally, others have six binary digits of their own.

    All is integers, since floats are not rounded alike everywhere, and the classes are part of the order.
    """
    last = len(limits) - 1
    if last < _LIMITS:
        return np.arange(len(limits))
    values = np.cumsum(limits * counts)
    shares = [int(values[-1]) * share // (_LIMITS // 2) for share in range(1, _LIMITS // 2)]
    by_values = np.searchsorted(values, np.array(shares, np.int64))
    bits = np.frexp(limits.astype(np.float64))[1].astype(np.int64)
    digits = bits * 64 + (limits >> np.maximum(bits - 6, 0))
    by_digits = np.flatnonzero(np.diff(digits))
    return np.unique(np.concatenate([np.minimum(by_values, last), by_digits, [last]]))


def _partitions(limits: Integers, ends: Integers, wanted: list[int]) -> Iterator[Integers]:
    """Yield for each number of classes the limits that pad least; numbers ascend.

    The best classes up to a limit are the best up to an earlier one, and one class more.
    """
    size = len(limits)
    before = np.insert(ends, 0, 0)[:-1, None]
    added = limits.astype(np.float64) * (ends - before)  # [first limit, last limit]
    added[np.tri(size, k=-1, dtype=np.bool_)] = np.inf
    costs, steps = added[0], list[NDArray[np.intp]]()
    for count in range(1, wanted[-1] + 1):
        if count > 1:
            sums = added[1:] + costs[:-1, None]
            steps.append(np.argmin(sums, axis=0))
            costs = np.take_along_axis(sums, steps[-1][None], axis=0)[0]
        if count in wanted:
            chosen = [size - 1]
            for step in reversed(steps):
                chosen.append(int(step[chosen[-1]]))
            yield np.array(chosen[::-1], np.int64)
