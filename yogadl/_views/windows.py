"""Make windows of time: each record with some of those before and after it in its episode."""

import copy
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from numbers import Real
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import fraction_argument, int_argument
from yogadl._core.frozen import frozen
from yogadl._core.memory import require_memory
from yogadl._core.process import ProcessLock
from yogadl._core.protocols import Announced, Column, Indices, Memory, OnPlanned, RandomAccess, Stored
from yogadl._core.spec import JSON, MAX_FIELDS, DictNode, Leaf, Node, SequenceNode, Spec, is_too_large
from yogadl._order.keys import RECORDS_LIMIT
from yogadl._order.lengths import KeptPlan, kept, offsets_of, ramps
from yogadl._views.chosen import KeptAt, find_stored
from yogadl._views.lengths import PLAN_BYTES, number_of, stretches_of
from yogadl._views.views import (
    ComposedRecords,
    ProjectedRecords,
    SameValues,
    View,
    empty_column,
    hash_of,
    hash_of_numbers,
    origin_of,
)
from yogadl.errors import CacheFormatError, ConfigurationError

_MAGIC: Final = b"windows1"

_Offsets = tuple[int, ...]
_ANCHOR: Final[_Offsets] = (0,)
# Pairs of an offset and the seconds that it is made of, each with a field that has it.
_Seconds = dict[tuple[int, float], Any]


class Windowing(NamedTuple):
    """The arguments of `RecordsRef.windows`, as the user passes them."""

    offsets: Any
    within: Any
    stride: Any = 1
    ends: Any = "repeat"
    masks: Any = True
    drop_first: Any = 0
    drop_last: Any = 0
    time: Any = None
    fps: Any = None
    tolerance_s: Any = 1e-4


class _FieldMade(NamedTuple):
    """What a field of windows is made of: the parent's field, its mask, or a single step of its values."""

    number: int
    is_mask: bool = False
    step: int | None = None


@frozen
class Episodes:
    """Which records are of one episode: the places of its records follow one another.

    Args:
        ends: The place after the last one of each episode, in the order in which the episodes begin.
        order: The record at each place; None if the records of each episode lie side by side, so that a place
            is the number of a record.
    """

    ends: Indices
    order: Indices | None = None

    @property
    def starts(self) -> Indices:
        """The place of the first record of each episode."""
        return np.concatenate([np.zeros(min(1, len(self.ends)), np.int64), self.ends[:-1]])

    def bounds(self, which: Indices) -> tuple[Indices, Indices]:
        """Return of these episodes the place of the first record, and that after the last one."""
        return np.where(which > 0, self.ends[which - 1], 0), self.ends[which]

    @property
    def digests(self) -> tuple[str, str | None]:
        """The hashes of the arrays."""
        return hash_of_numbers(self.ends), None if self.order is None else hash_of_numbers(self.order)

    def first(self, count: int) -> "Episodes":
        """Return the episodes of the first records alone."""
        if self.order is None:
            inside = self.ends[: np.searchsorted(self.ends, count)]
            return Episodes(np.append(inside, count) if count else inside)
        are_kept = self.order < count
        order = self.order[are_kept]
        ends = np.unique(offsets_of(are_kept.astype(np.int64))[self.ends])
        is_in_order = bool((order[1:] > order[:-1]).all())
        return Episodes(ends[ends > 0], None if is_in_order else order)

    def to_bytes(self) -> bytes:
        """Return the episodes as a kept plan."""
        arrays = [self.ends] if self.order is None else [self.ends, self.order]
        counts = int(self.ends[-1]) if len(self.ends) else 0, len(self.ends), len(arrays) - 1
        return b"".join(kept(_MAGIC, counts, arrays))

    @staticmethod
    def from_bytes(content: Any, records: int) -> "Episodes":
        """Return the episodes of so many records that a kept plan has.

        Raises:
            CacheFormatError: if it has none.
        """
        plan = KeptPlan(content, _MAGIC)
        found, count, has_order = plan.integers([RECORDS_LIMIT, RECORDS_LIMIT, 1])
        if found != records:
            raise CacheFormatError(f"the plan is of {found} records, not {records}")
        ends = plan.array(
            np.int64, count, lambda ends: ends[0] > 0 and (np.diff(ends) > 0).all() and ends[-1] == records
        )
        order = None
        if has_order:
            order = plan.array(np.int64, records, lambda order: order.min() >= 0 and order.max() < records)
        plan.end()
        return Episodes(ends, order)


class _Anchors(NamedTuple):
    """Places of records, one row each, with those of the first record of its episode and after the last."""

    places: Indices
    starts: Indices
    ends: Indices


class WindowedRecords(View, ComposedRecords):
    """Windows of records: of some fields a window has the values of several records, of others the anchor's.

    Which records are of one episode is worked out once and kept beside the cache. It takes 16 bytes for each
    episode in each process, and 8 for each record if the records of an episode do not lie side by side.

    Args:
        parent: The records.
        windowing: What the windows are; see `RecordsRef.windows`.

    Raises:
        ConfigurationError: if the arguments make no sense, or there are no windows.
    """

    spec: Spec
    fingerprint: str
    record_bytes: int

    def __init__(self, parent: RandomAccess, windowing: Windowing) -> None:
        self.parent = parent
        if windowing.ends not in ("repeat", "drop"):
            raise ConfigurationError(f'ends must be "repeat" or "drop", not {windowing.ends!r:.100}')
        self._drops = windowing.ends == "drop"
        fps, time, tolerance_s = _checked_clock(parent.spec, windowing)
        self._offsets, seconds = _checked_offsets(parent.spec, windowing.offsets, fps)
        named = _mask_names(parent.spec, self._offsets, windowing.masks, drops=self._drops)
        self.spec, self._sources = _windowed_spec(parent.spec, self._offsets, named)
        arguments = windowing.stride, windowing.drop_first, windowing.drop_last
        self._stride, self._drop_first, self._drop_last = (
            int_argument(name, argument, int(name == "stride"))
            for name, argument in zip(("stride", "drop_first", "drop_last"), arguments, strict=True)
        )
        fixed = [field.leaf.row_bytes for field in self.spec.fields if field.leaf.is_fixed]
        steps = [len(self._offsets.get(number, _ANCHOR)) for number in self._varying]
        self.record_bytes = max(1, sum(fixed) + max(steps, default=0) * parent.record_bytes)
        self._within = windowing.within
        self._lock = ProcessLock()
        self._kept: KeptAt | None = None
        self._found: tuple[Episodes, Indices] | None = None
        self._identify(self._find_episodes())
        if time is not None:
            self._check_times(time, seconds, tolerance_s)
        if len(parent) and not len(self):
            raise ConfigurationError(
                f"none of the {len(parent)} records has such a window: each is too near to an end of its "
                'episode. Write ends="repeat", smaller offsets, or a smaller drop_first or drop_last'
            )

    @property
    def _varying(self) -> list[int]:
        """The numbers of the parent's fields whose values are not stacked."""
        fields = self.parent.spec.fields
        return [number for number, field in enumerate(fields) if not field.leaf.is_fixed]

    def _identify(self, episodes: Episodes) -> None:
        """Name the windows of these episodes."""
        self._digests = episodes.digests
        self._found = episodes, self._count_windows(episodes)
        self._length = int(self._found[1][-1])
        offsets = sorted(self._offsets.items())
        names = [field.name for field in self.spec.fields]
        drops = self._stride, self._drops, self._drop_first, self._drop_last
        parts = names, offsets, drops, self._digests
        self.composition = hash_of("windows", *parts)
        self.fingerprint = hash_of("windows", self.parent.fingerprint, *parts)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None, "_found": self._found if self._kept is None else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=ProcessLock())

    def __len__(self) -> int:
        return self._length

    def over(self, parent: RandomAccess) -> "WindowedRecords":
        """Return the same view of the first records alone, which `parent` has."""
        other = copy.copy(self)
        other.parent = parent
        other._kept = None
        other._identify(self._plan[0].first(len(parent)))
        return other

    @property
    def parents_a_record(self) -> float:
        """The number of records that a window is made of."""
        return float(len({offset for offsets in self._offsets.values() for offset in offsets} | {0}))

    def file_of(self, index: int) -> str | None:
        """Return the path of the file that a window's anchor comes from, if the source lists it."""
        return self.parent.file_of(int(self._records(self._anchors(np.array([index])), _ANCHOR)[0, 0]))

    # Episodes.

    @property
    def _plan(self) -> tuple[Episodes, Indices]:
        """The episodes, and the number of the first window of each, and of all windows."""
        found = self._found
        if found is None:
            with self._lock:
                if self._found is None:
                    episodes = self._find_episodes()
                    if episodes.digests != self._digests:
                        raise CacheFormatError(
                            "the records have changed since this reference was made: call windows again"
                        )
                    self._found = episodes, self._count_windows(episodes)
                found = self._found
        return found

    @property
    def index_bytes(self) -> int:
        """The bytes of the index of episodes."""
        episodes, firsts = self._plan
        order_bytes = 0 if episodes.order is None else episodes.order.nbytes
        return episodes.ends.nbytes + firsts.nbytes + order_bytes

    def _find_episodes(self) -> Episodes:
        if self._within is None:
            count = len(self.parent)
            return Episodes(np.array([count] if count else [], np.int64))
        episodes, self._kept = find_episodes(self.parent, self._within, "windows")
        return episodes

    @property
    def episode_ends(self) -> Indices:
        """The window after the last one of each episode that has any."""
        return self._plan[1][1:][np.diff(self._plan[1]) > 0]

    def _bounds(self) -> tuple[int, int, int]:
        """Return how near to the beginning and to the end of an episode an anchor may be, and the stride.

        Numbers beyond all records say the same as the number of records, and need no large integers.
        """
        offsets = [offset for each in self._offsets.values() for offset in each] if self._drops else []
        before = max(self._drop_first, -min(offsets, default=0))
        after = max(self._drop_last, max(offsets, default=0))
        count = max(1, len(self.parent))
        stride = min(self._stride, count)
        first = -(-min(before, count) // stride) * stride
        return first, min(after, count), stride

    def _count_windows(self, episodes: Episodes) -> Indices:
        """Return the number of the first window of each episode, and of all windows."""
        first, last, stride = self._bounds()
        counts = -(-(episodes.ends - episodes.starts - last - first) // stride)
        return offsets_of(np.maximum(counts, 0))

    def _anchors(self, windows: Indices) -> _Anchors:
        """Return the places of the records around which windows lie."""
        episodes, firsts = self._plan
        first, _, stride = self._bounds()
        which = np.searchsorted(firsts, windows, "right") - 1
        starts, ends = episodes.bounds(which)
        places = starts + first + (windows - firsts[which]) * stride
        return _Anchors(places[:, None], starts[:, None], ends[:, None])

    def _steps(self, offsets: Sequence[int]) -> Indices:
        count = len(self.parent)
        return np.array([max(-count, min(offset, count)) for offset in offsets], np.int64)

    def _records(self, anchors: _Anchors, offsets: _Offsets) -> Indices:
        """Return the records of windows, a row each."""
        places = anchors.places + self._steps(offsets)
        if not self._drops:
            np.maximum(places, anchors.starts, out=places)
            np.minimum(places, anchors.ends - 1, out=places)
        order = self._plan[0].order
        return places if order is None else order[places]

    def _mask(self, anchors: _Anchors, offsets: _Offsets) -> NDArray[np.bool_]:
        """Return which records of windows are repeated, a row each."""
        places = anchors.places + self._steps(offsets)
        are_repeated: NDArray[np.bool_] = (places < anchors.starts) | (places >= anchors.ends)
        return are_repeated

    def _check_times(self, number: int, seconds: _Seconds, tolerance_s: float) -> None:
        """Compare the times of the records of all windows with the wanted ones; each time is read once.

        As many times are in memory as are read at once and lie within the offsets.

        Raises:
            ConfigurationError: if one differs by more than the tolerance.
        """
        episodes, count = self._plan[0], len(self.parent)
        seen = ProjectedRecords(self.parent, Spec(self.parent.spec.fields[number].leaf), (number,))
        far = max(abs(int(step)) for step in self._steps([rows for rows, _ in seconds]))
        times, begin = np.empty(0), 0
        for places in stretches_of(seen, 0, count):
            first = max(begin, int(places[0]) - far)
            [read] = seen.columns(places if episodes.order is None else episodes.order[places])
            times = np.concatenate([times[first - begin :], np.asarray(read, np.float64)])
            begin = first
            starts, ends = episodes.bounds(np.searchsorted(episodes.ends, places, "right"))
            for (rows, wanted_s), name in seconds.items():
                [step] = self._steps([rows])
                anchors = places - max(0, int(step))  # the anchor or its other record is the later one
                are_inside = (places - abs(step) >= starts) & self._are_anchors(anchors, starts, ends)
                anchors = anchors[are_inside]
                wanted = times[anchors - begin] + wanted_s
                found = times[anchors + step - begin]
                are_off = np.flatnonzero(~(np.abs(found - wanted) <= tolerance_s))
                if len(are_off):
                    pair = np.array([anchors[are_off[0]], anchors[are_off[0]] + step])
                    anchor, record = pair if episodes.order is None else episodes.order[pair]
                    raise ConfigurationError(
                        f"record {anchor}: {wanted_s:g} s from it, field {name!r} wants the time "
                        f"{wanted[are_off[0]]:.9g}, and record {record} there, {abs(step)} records "
                        f"{'before' if step < 0 else 'after'} it, has {found[are_off[0]]:.9g}: pass the fps= "
                        "of these records, multiples of 1 / fps as offsets, a larger tolerance_s than "
                        f"{tolerance_s:g}, or no time=, so that records are taken by their number alone"
                    )

    def _are_anchors(self, places: Indices, starts: Indices, ends: Indices) -> NDArray[np.bool_]:
        """Return at which places a window has its anchor."""
        first, last, stride = self._bounds()
        inside = places - starts - first
        are_anchors: NDArray[np.bool_] = (inside >= 0) & (inside % stride == 0) & (places < ends - last)
        return are_anchors

    # Reading.

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read windows in the order of `indices`."""
        numbers = range(len(self.spec.fields)) if fields is None else fields
        if not len(indices):
            return [empty_column(self.spec.fields[number].leaf) for number in numbers]
        anchors = self._anchors(indices)
        found = self._read(anchors, self._sets(numbers), memory)
        columns: list[Column] = []
        for number, is_mask, step in (self._sources[number] for number in numbers):
            column = self._mask(anchors, self._offsets[number]) if is_mask else found[number]
            columns.append(column if step is None else [values[step] for values in column])
        return columns

    def _sets(self, numbers: Iterable[int]) -> dict[_Offsets | None, list[int]]:
        """Return the parent's fields that these fields are made of, by their offsets; None: by none."""
        sets: dict[_Offsets | None, list[int]] = {}
        sources = [self._sources[number] for number in numbers]
        for number in dict.fromkeys(source.number for source in sources if not source.is_mask):
            sets.setdefault(self._offsets.get(number), []).append(number)
        return sets

    def _read(
        self, anchors: _Anchors, sets: Mapping[_Offsets | None, list[int]], memory: Memory | None
    ) -> dict[int, Column]:
        """Return the columns of the parent's fields, by their numbers."""
        rows = {offsets: self._records(anchors, offsets or _ANCHOR) for offsets in sets}
        if len(sets) > 1 and not _is_read_by_field(self.parent):
            records, which = _each_once(np.concatenate(list(rows.values()), axis=1))
            every = [number for its in sets.values() for number in its]
            read = dict(zip(every, self.parent.columns(records, every), strict=True))
            widths = np.cumsum([array.shape[1] for array in rows.values()])[:-1]
            shares = np.split(which, widths, axis=1)
            return {
                number: self._taken(number, read[number], share, memory)
                for its, share in zip(sets.values(), shares, strict=True)
                for number in its
            }
        found: dict[int, Column] = {}
        for offsets, its in sets.items():
            found.update(zip(its, self._read_set(rows[offsets], its, memory), strict=True))
        return found

    def _read_set(self, rows: Indices, numbers: list[int], memory: Memory | None) -> list[Column]:
        """Return the columns of fields that have the same offsets."""
        are_windows = numbers[0] in self._offsets
        if not are_windows:
            return list(self.parent.columns(rows.reshape(-1), numbers, memory))
        if self._is_mapped(numbers):
            columns = self.parent.columns(rows.reshape(-1), numbers, memory)
            arrays: list[Any] = list(columns)
            return [array.reshape(*rows.shape, *array.shape[1:]) for array in arrays]
        records, which = _each_once(rows)
        columns = self.parent.columns(records, numbers)
        return [
            self._taken(number, column, which, memory)
            for number, column in zip(numbers, columns, strict=True)
        ]

    def _is_mapped(self, numbers: list[int]) -> bool:
        """Return whether rows of these fields lie in this machine's memory, as they are and of one size."""
        for number in numbers:
            base, _, its_number = origin_of(self.parent, np.empty(0, np.int64), number)
            if not isinstance(base, Stored) or base.mapped(0) is None or base.blocks(its_number) is None:
                return False
        return True

    def _taken(self, number: int, column: Column, which: Indices, memory: Memory | None) -> Column:
        """Return values of windows, given the values of records and which ones each window has."""
        are_windows = number in self._offsets
        places = which if are_windows else which.reshape(-1)
        if isinstance(column, np.ndarray):
            shape = *places.shape, *column.shape[1:]
            out = np.empty(shape, column.dtype) if memory is None else memory.array(shape, column.dtype)
            # "clip" changes no index here. numpy's default mode, "raise", would gather into a temporary array
            return np.take(column, places, axis=0, out=out, mode="clip")
        values, seen = list[Any](), set[int]()
        for place in places.reshape(-1).tolist():
            values.append(copy.deepcopy(column[place]) if place in seen else column[place])
            seen.add(place)
        if not are_windows:
            return values
        width = which.shape[1]
        return [values[start : start + width] for start in range(0, len(values), width)]

    def will_need(
        self, indices: Indices, fields: Sequence[int] | None = None, on_planned: OnPlanned | None = None
    ) -> Announced:
        """Announce that these windows will be read soon."""
        sets = self._sets(range(len(self.spec.fields)) if fields is None else fields)
        if not len(indices) or not sets:
            return Announced()
        anchors = self._anchors(indices)
        spared, held = [], tuple[object, ...]()
        for given, numbers in sets.items():
            offsets = given or _ANCHOR
            if on_planned is None and self._is_mapped(numbers):
                # Of each window two records: the file holds the others between them.
                ends = tuple(dict.fromkeys((min(offsets), max(offsets))))
                records = self._records(anchors, ends).reshape(-1)
            else:
                records = np.unique(self._records(anchors, offsets))
            of_parent = self.parent.will_need(records, numbers, on_planned)
            spared.append(of_parent.spared * len(indices) // len(records))
            held += of_parent.held
        return Announced(min(spared), held)


def find_episodes(records: RandomAccess, within: str | int, what: str) -> tuple[Episodes, KeptAt | None]:
    """Return the episodes that a field numbers: as kept beside the cache, or worked out now, and keep them.

    Args:
        records: The records.
        within: The name of the field.
        what: What needs them, for an error.

    Returns:
        The episodes, and where they are kept, if they are.

    Raises:
        ConfigurationError: if there is no such field, or it can't number episodes.
    """
    number, count = number_of(records.spec, within, "an episode's number"), len(records)
    _check_within(within, records.spec.fields[number].leaf)
    require_memory(what, count, PLAN_BYTES)
    seen = ProjectedRecords(records, Spec(records.spec.fields[number].leaf), (number,))
    kept_at = find_stored(seen, ["windows-1"], [], "a plan of episodes")
    if kept_at is not None:
        content = kept_at.cache.plan(kept_at.name)
        try:
            if content is not None:
                return Episodes.from_bytes(content, count), kept_at
        except CacheFormatError:
            pass  # it is made again
    episodes = _episodes_by_reading(seen)
    if kept_at is not None and not kept_at.cache.keep_plan(kept_at.name, episodes.to_bytes()):
        kept_at = None
    return episodes, kept_at


def _each_once(rows: Indices) -> tuple[Indices, Indices]:
    """Return each record of an array once, and which of these each one of the array is."""
    records, which = np.unique(rows, return_inverse=True)
    return records, which.reshape(rows.shape)


def _is_read_by_field(records: RandomAccess) -> bool:
    """Return whether reading some fields reads no others: not so of functions and of sources of records."""
    while isinstance(records, SameValues):
        records = records.parent
    if isinstance(records, Stored):
        return True
    return not records.stages and bool(records.parents) and all(map(_is_read_by_field, records.parents))


def _episodes_by_reading(seen: RandomAccess) -> Episodes:
    """Return the episodes of records that have a single value, the number of their episode."""
    begins, parts, last = list[Indices](), list[Any](), None
    for indices in stretches_of(seen, 0, len(seen)):
        [column] = seen.columns(indices)
        values = np.fromiter(column, object, len(column)) if isinstance(column, list) else column
        if values.dtype.kind in "mM":
            values = values.view(np.int64)  # so that NaT is one value
        differs = np.empty(len(values), np.bool_)
        differs[0] = not parts or bool(values[0] != last)
        differs[1:] = values[1:] != values[:-1]
        last = values[-1]
        begins.append(indices[differs])
        parts.append(values[differs])
    if not parts:
        return Episodes(np.empty(0, np.int64))
    begin, value = np.concatenate(begins), np.concatenate(parts)
    if value.dtype == object:
        numbers: dict[Any, int] = {}
        episode = np.array([numbers.setdefault(each, len(numbers)) for each in value], np.int64)
    else:
        _, first, which = np.unique(value, return_index=True, return_inverse=True)
        episode = np.argsort(np.argsort(first))[which.reshape(-1)]
    ends = np.append(begin[1:], len(seen))
    if int(episode.max()) + 1 == len(episode):
        return Episodes(ends)
    by_episode = np.argsort(episode, kind="stable")
    counts = (ends - begin)[by_episode]
    is_last = np.diff(episode[by_episode], append=-1) != 0
    return Episodes(np.cumsum(counts)[is_last], ramps(begin[by_episode], counts))


def _checked_clock(spec: Spec, windowing: Windowing) -> tuple[float | None, int | None, float]:
    """Return how many records a second has, the number of the field of times, and the tolerance.

    Raises:
        ConfigurationError: if these make no sense.
    """
    tolerance_s = _above_zero("tolerance_s", windowing.tolerance_s)
    if windowing.fps is None:
        if windowing.time is not None:
            raise ConfigurationError(
                f"time={windowing.time!r:.100} needs fps=, the number of records a second, such as fps=30: "
                "offsets in seconds are found by it, and then compared with the times"
            )
        return None, None, tolerance_s
    fps = _above_zero("fps", windowing.fps)
    if windowing.time is None:
        return fps, None, tolerance_s
    number = number_of(spec, windowing.time, "a time")
    leaf = spec.fields[number].leaf
    if leaf.shape != () or not leaf.is_numeric or leaf.numpy_dtype.kind not in "iuf":
        raise ConfigurationError(
            f"time={windowing.time!r} is {leaf.dtype} of shape {leaf.shape}: name a field that is one number "
            "of seconds a record"
        )
    return fps, number, tolerance_s


def _above_zero(name: str, value: Any) -> float:
    fraction = fraction_argument(name, value)
    return float(fraction) if fraction < RECORDS_LIMIT else float(RECORDS_LIMIT)


def _checked_offsets(
    spec: Spec, offsets: Any, fps: float | None
) -> tuple[dict[int, _Offsets], _Seconds]:  # Any: the value is checked here
    """Return the offsets of each field, by its number; and the seconds that they are made of, if they are.

    Raises:
        ConfigurationError: if these are none, or the values of a field make no windows.
    """
    if not isinstance(offsets, Mapping) or not offsets:
        raise ConfigurationError(
            'offsets must be a dict of the offsets of each field, such as {"observation": [-1, 0], "action": '
            f"range(16)}}, not {offsets!r:.100}"
        )
    found: dict[int, _Offsets] = {}
    seconds: _Seconds = {}
    for name, given in offsets.items():
        number = number_of(spec, name, "put into windows")
        leaf = spec.fields[number].leaf
        if isinstance(given, Sized) and is_too_large((len(given), *(leaf.shape or ()))):
            raise ConfigurationError(f"{len(given)} offsets of field {name!r} are too many for numpy")
        if fps is None:
            found[number] = _offsets_of_field(name, given)
        else:
            wanted = _seconds_of_field(name, given)
            rows = (max(-RECORDS_LIMIT, min(each * fps, RECORDS_LIMIT)) for each in wanted)
            found[number] = tuple(map(round, rows))
            seconds |= dict.fromkeys(zip(found[number], wanted, strict=True), name)
        if leaf.dtype != JSON and not leaf.is_fixed and len(found[number]) > MAX_FIELDS:
            raise ConfigurationError(
                f"{len(found[number])} offsets of field {name!r} are too many: its values are not stacked, "
                f"and each one is a field of the window, of which there are at most {MAX_FIELDS}"
            )
    return found, seconds


def _offsets_of_field(name: Any, given: Any) -> _Offsets:
    try:
        found = tuple(int_argument("an offset", each, None) for each in given)
    except (TypeError, ConfigurationError):
        found = ()
    if not found or isinstance(given, str | bytes):
        raise ConfigurationError(
            f"the offsets of field {name!r} must be whole numbers, such as [-1, 0] or range(16), not "
            f"{given!r:.100}. For seconds, pass fps=, the number of records a second"
        )
    return found


def _seconds_of_field(name: Any, given: Any) -> tuple[float, ...]:
    listed = [] if isinstance(given, str | bytes) or not isinstance(given, Iterable) else [*given]
    are_numbers = all(isinstance(each, Real) and not isinstance(each, bool | np.bool_) for each in listed)
    try:
        found = tuple(float(each) for each in listed) if are_numbers else ()
    except OverflowError:
        found = ()
    if not found or not all(map(math.isfinite, found)):
        raise ConfigurationError(
            f"with fps=, the offsets of field {name!r} must be numbers of seconds, such as [-0.1, 0], not "
            f"{given!r:.100}"
        )
    return found


def _mask_names(spec: Spec, offsets: Iterable[int], masks: Any, *, drops: bool) -> dict[int, str]:
    """Return the name of the mask of each field, by the field's number.

    Raises:
        ConfigurationError: if `masks` is no such name, or there is nothing to mask.
    """
    if masks is None or masks is False or (drops and masks is True):
        return {}
    name = "{}_is_pad" if masks is True else masks
    if not isinstance(name, str) or "{}" not in name:
        raise ConfigurationError(
            f'masks must be a name with {{}} for that of a field, such as "{{}}_is_pad", or None for no '
            f"masks, not {masks!r:.100}"
        )
    if drops:
        raise ConfigurationError(
            f'masks={masks!r:.100} with ends="drop" makes no sense: no value of such a window is repeated. '
            'Leave out masks=, or write ends="repeat"'
        )
    return {number: name.replace("{}", spec.fields[number].name) for number in offsets}


def _windowed_spec(
    spec: Spec, offsets: Mapping[int, _Offsets], masks: Mapping[int, str]
) -> tuple[Spec, list[_FieldMade]]:
    """Return the spec of windows, and what each of its fields is made of.

    A mask lies beside its field, if its name begins as that of the field, and else in the record itself.
    """
    sources, rest, numbers = list[_FieldMade](), dict(masks), itertools.count()

    def with_masks(node: DictNode, path: str, of: Iterable[int]) -> DictNode:
        inside = f"{path}/" if path else ""
        beside = [number for number in of if number in rest and rest[number].startswith(inside)]
        keys = [rest.pop(number).removeprefix(inside) for number in beside]
        sources.extend(_FieldMade(number, is_mask=True) for number in beside)
        both = list(map(str, [*node.keys, *keys]))
        for key in keys:
            if both.count(key) > 1 or not key:
                raise ConfigurationError(
                    f"there is already a field {inside + key!r}, and a mask would have its name: pass "
                    'another one with masks=, such as masks="{}_repeated", or masks=None'
                )
        leaves = [Leaf("bool", (len(offsets[number]),)) for number in beside]
        return DictNode((*node.keys, *keys), (*node.children, *leaves))

    def rebuilt(node: Node, path: str) -> Node:
        if isinstance(node, Leaf):
            number = next(numbers)
            if number in offsets and node.dtype != JSON and not node.is_fixed:
                steps = range(len(offsets[number]))
                sources.extend(_FieldMade(number, step=step) for step in steps)
                return SequenceNode("list", tuple(node for _ in steps))
            sources.append(_FieldMade(number))
            if number not in offsets or node.dtype == JSON:
                return node
            return Leaf(node.dtype, (len(offsets[number]), *(node.shape or ())))
        children, own = list[Node](), list[int]()
        for key, child in zip(node.keys, node.children, strict=True):
            children.append(rebuilt(child, f"{path}/{key}" if path else str(key)))
            if isinstance(child, Leaf):
                own.append(sources[-1].number)
        made = replace(node, children=tuple(children))
        return with_masks(made, path, own if path else masks) if isinstance(made, DictNode) else made

    tree = rebuilt(spec.tree, "")
    if rest:
        raise ConfigurationError(
            "masks need records that are dicts: pass masks=None, or make them dicts first, "
            'ref.map(lambda record: {"value": record})'
        )
    return Spec(tree), sources


def _check_within(name: Any, leaf: Leaf) -> None:
    if leaf.shape != () or leaf.dtype in (JSON, "object") or leaf.numpy_dtype.kind not in "biumMO":
        raise ConfigurationError(
            f"within={name!r} is {leaf.dtype} of shape {leaf.shape}: name a field that is one integer, date, "
            "str or bytes a record"
        )
