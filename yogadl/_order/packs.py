"""Plan rows that are made of several whole records, and find the pieces of a row in an epoch.

A piece is a stretch (record, start, stop) of a record: all of it, unless the record is longer than a row and
cut. A class is all pieces of one length, or with `round_to` of like length. A recipe says of which classes a
number of rows is made: "1,500 and 548, 12 times". The plan is recipes alone, made from a histogram of
lengths; the piece of its class that fills a place of a row is drawn anew in each epoch. The number of rows is
constant, each piece comes once in an epoch, and any row can be computed without the others.

A kind is one length. The pieces have places, from 0: the longest first, those of one length in the order
of the data. Each kind, and each class too, is a stretch of places. The first places have the pieces of
`capacity` values that are cut off; there is no array of these.

The recipes are part of the order, as is the draw: the same lengths and arguments make the same ones for ever.
`benchmarks/packing.py` measures it, and justifies the flat code.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._order.draw import make_ranges, permute_each
from yogadl._order.keys import (
    GOLDEN,
    RECORDS_LIMIT,
    absorb_array,
    check_count,
    check_within,
    derive_key,
    mix_array,
)
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

PACK_TAG: Final = int.from_bytes(b"pack-1", "big")
WITHIN_TAG: Final = int.from_bytes(b"within-1", "big")
CAPACITY_LIMIT: Final = 1 << 24
_MAGIC: Final = b"packs-1\n"
_LONG: Final = ("cut", "drop", "raise")


class Pieces(NamedTuple):
    """The pieces of many rows, of row i at ``offsets[i]`` to ``offsets[i + 1]``."""

    offsets: Integers
    records: Integers
    starts: Integers
    stops: Integers


class _Counts(NamedTuple):
    """The results of one pass over the lengths."""

    lengths: Integers  # how many pieces there are of each length
    long_records: Integers  # with `long="cut"`
    cut_off: Integers  # pieces of `capacity` values of each of these
    empty: int
    dropped: int
    dropped_tokens: int


class PackPlan:
    """The rows of a dataset, and their pieces in any epoch. Immutable, so threads may share it.

    A plan is made by `make`, or opened from bytes by `from_buffer`; then its arrays are views of these bytes.
    `packs` is the number of rows, `tokens` that of the values that come in an epoch, all but those of the
    `dropped` records, and `max_segments` the most pieces of a row. `cut` records are longer than a row, and
    `empty` ones have no piece.
    """

    def __init__(self, integers: list[int], arrays: list[NDArray[Any]]) -> None:
        self._integers, self._arrays = integers, arrays
        self.capacity, self.round_to, long, self.records, self.empty, self.dropped = integers[:6]
        self.dropped_tokens = integers[6]
        self.long = _LONG[long]
        self._lengths, kind_counts, times, entries, kinds, self._per = arrays[:6]
        self._long_records, self._cut_ends, self._numbers = arrays[6:]
        self.cut = len(self._long_records)
        self._cut_off = int(self._cut_ends[-1]) if self.cut else 0
        self._first_packs = offsets_of(times)
        self._first_entries = offsets_of(entries)
        self._first_places = offsets_of(kind_counts)
        self.packs = int(self._first_packs[-1])
        self.tokens = sum(
            length * count for length, count in zip(self._lengths.tolist(), kind_counts.tolist(), strict=True)
        )
        self._lay_out_classes(kinds, times, entries)

    def _lay_out_classes(self, kinds: NDArray[Any], times: Integers, entries: Integers) -> None:
        """Compute the classes, and for each entry of a recipe the first of the class's pieces it takes."""
        sizes = rounded(self._lengths.astype(np.int64), self.round_to, self.capacity)
        first_kinds = np.flatnonzero(np.diff(sizes, prepend=-1))
        self._classes = kinds
        self._class_begins = self._first_places[first_kinds]
        members = np.diff(np.append(self._class_begins, self._first_places[-1]))
        self._ranges = make_ranges(members, sizes[first_kinds].astype(np.uint64))
        if bool(len(kinds)) != bool(len(members)) or int(kinds.max(initial=0)) >= max(1, len(members)):
            raise damaged("a recipe has a class that is not there")
        per = self._per.astype(np.int64)
        total(np.repeat(times, entries).astype(np.float64) * per, "pieces")
        taken = np.repeat(times, entries) * per
        order = np.argsort(kinds, kind="stable")
        ends = np.cumsum(taken[order])
        in_order = kinds[order]
        last = np.searchsorted(in_order, np.arange(len(members)), side="right") - 1
        if not np.array_equal(ends[last], np.cumsum(members)):
            raise damaged("its recipes do not take each piece once")
        self._first_taken = np.empty(len(kinds), np.int64)
        self._first_taken[order] = ends - taken[order] - self._class_begins[in_order]
        row_sizes = sizes[first_kinds][kinds]
        of_recipe = self._first_entries[:-1]
        if len(kinds) and (
            int(per.min()) < 1
            or bool((per > self.capacity // row_sizes).any())
            or int(np.add.reduceat(per * row_sizes, of_recipe).max()) > self.capacity
        ):
            raise damaged("a recipe does not fit into a row")
        self._pieces_of_recipe = np.add.reduceat(per, of_recipe) if len(kinds) else per
        self.max_segments = int(self._pieces_of_recipe.max(initial=0))

    @property
    def padding(self) -> float:
        """The share of the rows' values that are padding."""
        return 1 - self.tokens / (self.packs * self.capacity) if self.packs else 0.0

    @property
    def pieces_per_epoch(self) -> int:
        """The number of pieces in all rows."""
        return int(self._first_places[-1])

    @classmethod
    def make(
        cls,
        lengths: NDArray[Any],
        capacity: int,
        *,
        long: Literal["cut", "drop", "raise"] = "cut",
        round_to: int = 1,
    ) -> "PackPlan":
        """Plan rows of `capacity` values.

        Args:
            lengths: The length of each record; any array of integers, which may be mapped.
            capacity: The values of a row, at most 2**24.
            long: The action for a record that is longer: cut it, drop it, or raise an error.
            round_to: Pieces whose lengths are equal if rounded up to a multiple of this are one class. A
                piece takes the rounded length of its row, but never more than a row.

        Raises:
            ConfigurationError: If an argument can't be used, or `long="raise"` and a record is longer.
        """
        capacity, round_to = check_count("capacity", capacity), check_count("round_to", round_to)
        if capacity > CAPACITY_LIMIT:
            raise ConfigurationError(f"capacity must be at most 2**24, not {capacity}.")
        if long not in _LONG:
            raise ConfigurationError(f'long must be "cut", "drop" or "raise", not {long!r}.')
        found = _count(lengths, capacity, long)
        kind_lengths = np.flatnonzero(found.lengths)[::-1].copy()
        kind_counts = found.lengths[kind_lengths]
        times, entries, classes, per = _plan(kind_lengths, kind_counts, capacity, round_to)
        cut_ends = np.cumsum(found.cut_off)
        cut_off = int(cut_ends[-1]) if cut_ends.size else 0
        word = word_for(max(lengths.size + cut_ends.size, cut_off + 1))
        others = kind_counts.copy()
        if cut_off:
            others[0] -= cut_off
        kind_of = np.full(capacity + 1, -1, np.int32)
        kind_of[kind_lengths] = np.arange(len(kind_lengths))
        numbers = sorted_by_kind(_number(lengths, capacity, long, kind_of), others, word)
        integers = [
            capacity,
            min(round_to, capacity),
            _LONG.index(long),
            lengths.size,
            found.empty,
            found.dropped,
            found.dropped_tokens,
            len(kind_lengths),
            len(times),
            len(classes),
            len(cut_ends),
            len(numbers),
            np.dtype(word).itemsize,
        ]
        recipes: list[NDArray[Any]] = [
            kind_lengths.astype(np.uint32),
            kind_counts,
            times,
            entries,
            classes,
            per,
        ]
        return cls(integers, [*recipes, found.long_records.astype(word), cut_ends.astype(word), numbers])

    def to_bytes(self) -> bytes:
        """Return the plan as bytes, for `from_buffer`; about 4 a piece."""
        return b"".join(kept(_MAGIC, self._integers, self._arrays))

    def write(self, file: BinaryIO) -> None:
        """Write the same bytes to a file, without a copy of them in memory."""
        for piece in kept(_MAGIC, self._integers, self._arrays):
            file.write(piece)

    @classmethod
    def from_buffer(cls, buffer: Any) -> "PackPlan":
        """Open a plan in bytes, or in a mapped file, of which it reads the recipes alone.

        Raises:
            CacheFormatError: If the bytes are no such plan. Numbers of records are checked as they are used.
        """
        source = KeptPlan(buffer, _MAGIC)
        most = memoryview(buffer).nbytes
        limits = [
            CAPACITY_LIMIT,
            CAPACITY_LIMIT,
            len(_LONG) - 1,
            *[RECORDS_LIMIT] * 3,
            1 << 62,
            *[most] * 5,
            8,
        ]
        integers = source.integers(limits)
        capacity, round_to, long, records, empty, dropped = integers[:6]
        kinds, recipes, entries, cut, numbers, itemsize = integers[7:]
        if not 1 <= round_to <= capacity or itemsize not in (4, 8) or (cut and long):
            raise damaged("its settings contradict each other")
        word = np.dtype(f"u{itemsize}")
        arrays = [
            source.array(
                np.uint32, kinds, lambda a: a[0] <= capacity and a[-1] > 0 and (a[1:] < a[:-1]).all()
            ),
            source.array(np.int64, kinds, lambda a: a.min() > 0),
            source.array(np.int64, recipes, lambda a: a.min() > 0),
            source.array(np.int64, recipes, lambda a: a.min() > 0 and a.max() <= entries),
            source.array(np.uint32, entries),
            source.array(np.uint32, entries),
            source.array(word, cut),
            source.array(word, cut),
            source.array(word, numbers),
        ]
        source.end()
        lengths, counts, times, of_recipe = arrays[:4]
        pieces = total(counts, "pieces")
        total(times, "rows")
        cut_off = int(arrays[7][-1]) if cut else 0
        if total(of_recipe, "entries") != entries or numbers + cut_off != pieces or cut > records:
            raise damaged("its counts contradict each other")
        if cut and (int(lengths[0]) != capacity or int(counts[0]) < cut_off):
            raise damaged("it has no place for pieces that are cut off")
        if empty + dropped > records or numbers > records - empty - dropped:
            raise damaged("it has more pieces than records")
        return cls(integers, arrays)

    def pieces(
        self, packs: NDArray[np.int64], seed: int, epoch: int, *, shuffle_within: bool = False
    ) -> Pieces:
        """Return the pieces of rows in an epoch.

        Args:
            packs: The numbers of the rows, in any order, in one dimension.
            seed: Any integer.
            epoch: The epoch, from 0.
            shuffle_within: Whether the pieces of a row come in a random order; else the longest comes first.

        Raises:
            IndexError: If there is no such row.
            CacheFormatError: If the plan is damaged.
        """
        flat = check_within(packs, self.packs, "pack")
        recipe = np.searchsorted(self._first_packs, flat, side="right") - 1
        first = self._first_entries[recipe]
        counts = self._first_entries[recipe + 1] - first
        entry = ramps(first, counts)
        per = self._per[entry].astype(np.int64)
        turn: Integers = np.repeat(flat - self._first_packs[recipe], counts)
        member = ramps(self._first_taken[entry] + turn * per, per)
        which = np.repeat(self._classes[entry], per)
        places = permute_each(member, which, self._ranges, derive_key(PACK_TAG, seed, epoch))
        places += self._class_begins[which]
        offsets = offsets_of(self._pieces_of_recipe[recipe])
        kinds = which  # if each class is one length, as without `round_to`
        if len(self._class_begins) < len(self._lengths):
            kinds = np.searchsorted(self._first_places, places, side="right") - 1
        if shuffle_within:
            order = _order_within(flat, offsets, derive_key(WITHIN_TAG, seed, epoch))
            places, kinds = places[order], kinds[order]
        return Pieces(offsets, *self._at(places, self._lengths[kinds].astype(np.int64)))

    def record_lengths(self) -> Integers:
        """Return the length of each record; -1 of dropped ones, 0 of empty ones if none was dropped."""
        found = np.full(self.records, -1 if self.dropped else 0, np.int64)
        kind_counts = np.diff(self._first_places)
        lengths = np.repeat(self._lengths.astype(np.int64), kind_counts)
        records, _, stops = self._at(np.arange(len(lengths)), lengths)
        np.maximum.at(found, records, stops)
        return found

    def _at(self, places: Integers, lengths: Integers) -> tuple[Integers, Integers, Integers]:
        """Return the pieces at places, of these lengths: records, starts, stops."""
        if not self.cut:
            records = self._numbers[places].astype(np.int64)
            self._check(records, self.records)
            return records, np.zeros(places.size, np.int64), lengths
        starts, records = np.zeros(places.size, np.int64), np.empty(places.size, np.int64)
        is_cut_off = places < self._cut_off
        whole = np.flatnonzero(~is_cut_off)
        numbers = self._numbers[places[whole] - self._cut_off].astype(np.int64)
        self._check(numbers, self.records + self.cut)
        records[whole] = numbers
        rests = whole[numbers >= self.records]
        long = records[rests] - self.records
        records[rests] = self._long_records[long]
        starts[rests] = self._cut_counts(long) * self.capacity
        cut_off = np.flatnonzero(is_cut_off)
        long = np.searchsorted(self._cut_ends, places[cut_off].astype(self._cut_ends.dtype), side="right")
        self._check(long, self.cut)
        records[cut_off] = self._long_records[long]
        cut_counts = self._cut_counts(long)
        numbers = places[cut_off] - (self._cut_ends[long].astype(np.int64) - cut_counts)
        self._check(numbers, cut_counts)
        starts[cut_off] = numbers * self.capacity
        self._check(records, self.records)
        return records, starts, starts + lengths

    def _cut_counts(self, long: Integers) -> Integers:
        """Return how many pieces of `capacity` values are cut off each of these long records."""
        before = np.where(long > 0, self._cut_ends[np.maximum(long - 1, 0)], 0).astype(np.int64)
        counts = self._cut_ends[long].astype(np.int64) - before
        self._check(counts, LENGTH_LIMIT // self.capacity + 1)
        return counts

    @staticmethod
    def _check(numbers: Integers, limit: int | Integers) -> None:
        if numbers.size and (int(numbers.min()) < 0 or bool((numbers >= limit).any())):
            raise damaged("it has records that the dataset has not")


def rounded(lengths: Integers, round_to: int, capacity: int) -> Integers:
    """Return what pieces of these lengths take of a row."""
    return np.minimum(-(-lengths // round_to) * round_to, capacity)


def _order_within(packs: Integers, offsets: Integers, state: int) -> NDArray[np.intp]:
    """Return the pieces of rows, those of each row in a random order: sorted by their words."""
    counts = np.diff(offsets)
    words = ramps(np.ones_like(counts), counts).astype(np.uint64)
    np.multiply(words, np.uint64(GOLDEN), out=words)
    np.add(words, np.repeat(absorb_array(state, packs.astype(np.uint64)), counts), out=words)
    mix_array(words)
    # No two words of a row are equal, so any sort gives the same order within it. numpy sorts 16-bit integers
    # in linear time.
    rows = np.repeat(np.arange(len(packs), dtype=np.uint16 if len(packs) <= 1 << 16 else np.uint32), counts)
    order = np.argsort(words)
    return order[np.argsort(rows[order], kind="stable")]


def _count(lengths: NDArray[Any], capacity: int, long: str) -> _Counts:
    counts = np.zeros(capacity + 1, np.int64)
    long_records, cut_off = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    dropped = dropped_tokens = empty = tokens = 0
    for start, chunk in chunks_of(lengths):
        empty += chunk.size - int(np.count_nonzero(chunk))
        tokens += int(chunk.sum())
        longer = np.flatnonzero(chunk > capacity)
        if longer.size and long == "raise":
            raise ConfigurationError(
                f"record {start + int(longer[0])} has {int(chunk[longer[0]])} values, more than the "
                f'{capacity} of a row; pass long="cut" to cut such records, or long="drop" to leave them out.'
            )
        if long == "drop":
            dropped += longer.size
            dropped_tokens += int(chunk[longer].sum())
            chunk[longer] = 0
        elif longer.size:
            pieces, chunk[longer] = np.divmod(chunk[longer], capacity)
            long_records.append(longer + start)
            cut_off.append(pieces)
            counts[capacity] += int(pieces.sum())
        found = np.bincount(chunk)
        counts[: found.size] += found
    if tokens > RECORDS_LIMIT:
        raise ConfigurationError(f"the records have {tokens} values; a plan takes at most 2**62.")
    counts[0] = 0
    return _Counts(
        counts, np.concatenate(long_records), np.concatenate(cut_off), empty, dropped, dropped_tokens
    )


def _number(
    lengths: NDArray[Any], capacity: int, long: str, kind_of: NDArray[np.int32]
) -> Iterator[tuple[Integers, NDArray[np.int32]]]:
    """Yield the number of each record's last piece, and its kind.

    It is the record's number, or for the rest of a long one the number of records plus the number of the
    record among the long ones, so that one look finds both its record and its start.
    """
    first_long = lengths.size
    for start, chunk in chunks_of(lengths):
        numbers = np.arange(start, start + chunk.size)
        longer = np.flatnonzero(chunk > capacity)
        if long == "cut":
            numbers[longer] = np.arange(first_long, first_long + longer.size)
            first_long += longer.size
            chunk[longer] %= capacity
        else:
            chunk[longer] = 0
        kinds = kind_of[chunk]
        if not chunk.all():
            present = chunk > 0
            numbers, kinds = numbers[present], kinds[present]
        yield numbers, kinds


def _plan(
    kind_lengths: Integers, kind_counts: Integers, capacity: int, round_to: int
) -> tuple[Integers, Integers, NDArray[np.uint32], NDArray[np.uint32]]:
    """Combine lengths to rows: best fit, from the longest length down.

    A group is a number of rows that are alike so far. All pieces of a class are put in at a time: each row of
    the group with the least space takes as many as fit into it.

    Returns:
        For each recipe the number of its rows, and of its entries; for each entry its class, and how many
        pieces of it a row has.
    """
    sizes = rounded(kind_lengths, round_to, capacity)
    first_kinds = np.flatnonzero(np.diff(sizes, prepend=-1))
    counts = np.add.reduceat(kind_counts, first_kinds).tolist() if len(sizes) else []
    groups: dict[int, list[tuple[int, Any]]] = {}
    spaces = list[int]()  # the spaces of the groups, ascending
    done = list[tuple[int, Any]]()
    least = int(sizes[-1]) if len(sizes) else 0

    def put(space: int, times: int, recipe: Any) -> None:
        if space < least:
            done.append((times, recipe))
        elif space in groups:
            groups[space].append((times, recipe))
        else:
            groups[space] = [(times, recipe)]
            insort(spaces, space)

    for number, (size, count) in enumerate(zip(sizes[first_kinds].tolist(), counts, strict=True)):
        while count:
            at = bisect_left(spaces, size)
            if at == len(spaces):
                space, times, recipe = capacity, -(-count // (capacity // size)), None
            else:
                space = spaces[at]
                times, recipe = groups[space].pop()
                if not groups[space]:
                    del groups[space], spaces[at]
            fitting = space // size
            full = min(count // fitting, times)
            if full:
                put(space - fitting * size, full, (recipe, number, fitting))
                count -= full * fitting
                times -= full
            if count and times:  # the last row takes fewer than would fit
                put(space - count * size, 1, (recipe, number, count))
                count, times = 0, times - 1
            if times:
                put(space, times, recipe)
    for space in spaces:
        done += groups[space]
    return _listed(done)


def _listed(
    done: list[tuple[int, Any]],
) -> tuple[Integers, Integers, NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the recipes as arrays; each is a chain from its last entry to its first."""
    entries, classes, per = list[int](), list[int](), list[int]()
    for _, recipe in done:
        before = len(classes)
        while recipe is not None:
            recipe, number, fitting = recipe
            classes.append(number)
            per.append(fitting)
        classes[before:] = classes[: before - 1 if before else None : -1]
        per[before:] = per[: before - 1 if before else None : -1]
        entries.append(len(classes) - before)
    times = np.array([times for times, _ in done], np.int64)
    return times, np.array(entries, np.int64), np.array(classes, np.uint32), np.array(per, np.uint32)
