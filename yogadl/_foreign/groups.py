"""Read rows of groups that are decoded whole: a group once, for all rows that are read from it soon."""

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import in_words
from yogadl._core.process import PerProcess
from yogadl._core.protocols import Announced, Int64s, Memory, Stretches
from yogadl._core.spec import Leaf, Spec
from yogadl._foreign.parquet import BACK, BYTES_OF_ROWS, FIRST_COLUMN, FOOTER, NUMBER, ROWS, fields_of_columns
from yogadl._foreign.parquet_columns import Footer, GroupDecoder, heap_values, parsed, release_memory
from yogadl._format.columns import HeapValues
from yogadl._format.files import REFRESH, HeldRows
from yogadl._format.manifest import DecodedRows
from yogadl._format.reader import Reader
from yogadl.errors import CacheFormatError, ConfigurationError, UnsupportedDataError, YogaError

# The decoded groups that a process keeps, of all that it reads from one version.
_HELD_BYTES: Final = 2**30
_SHARE_OF_MEMORY: Final = 4  # at most a fourth of the machine's
# The threads that decode groups before they are needed.
_MOST_THREADS: Final = 4
_MOST_WINDOW: Final = 64  # groups of a window that is advised
_FOOTERS: Final = 256  # that are kept parsed


class _Directory(NamedTuple):
    """What is known of all groups.

    Attributes:
        firsts: The first row of each group.
        ends: The row after the last one of each.
        sizes: The approximate size of each.
        numbers: The number of each in its file.
        first_of_file: The first group of its file.
    """

    firsts: Int64s
    ends: Int64s
    sizes: Int64s
    numbers: Int64s
    first_of_file: Int64s


class _HeldColumn:
    """A decoded field of a group, from which rows are gathered.

    Args:
        leaf: The field.
        stored: Its values.
    """

    def __init__(self, leaf: Leaf, stored: NDArray[Any] | HeapValues) -> None:
        self.leaf = leaf
        self.stored = stored
        self._ends = None if isinstance(stored, np.ndarray) else np.cumsum(stored.lengths)

    @property
    def size_bytes(self) -> int:
        stored = self.stored
        return int(stored.nbytes if isinstance(stored, np.ndarray) else stored.data.nbytes + 24 * len(stored))

    def rows(self, rows: Int64s) -> NDArray[Any]:
        """Return some rows of a field of a fixed shape."""
        assert isinstance(self.stored, np.ndarray)
        found: NDArray[Any] = self.stored[rows]
        return found

    def values(self, rows: Int64s) -> list[Any]:
        """Return the values of some rows, of a field that varies."""
        assert isinstance(self.stored, HeapValues) and self._ends is not None
        return heap_values(self.leaf, self.stored, self._ends, rows)

    def lengths(self, rows: Int64s) -> Int64s:
        """Return the lengths of values along their first axis."""
        stored = self.stored
        assert isinstance(stored, HeapValues)
        found: Int64s = stored.shapes[rows, 1]
        return found


class _HeldGroup:
    """The decoded columns of a group, by number; each is decoded by one thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.fields: dict[int, list[_HeldColumn]] = {}
        self.size_bytes = 0


class _HeldGroups:
    """What one process holds: decoded groups, those used last, and parsed footers."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.groups: OrderedDict[int, _HeldGroup] = OrderedDict()
        self.size_bytes = 0
        self.footers: OrderedDict[int, Footer] = OrderedDict()
        self.coming: set[int] = set()
        self.threads = ThreadPoolExecutor(
            min(_MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="yogadl-decode"
        )

    def is_holding(self, groups: Sequence[int], columns: set[int]) -> bool:
        """Return whether columns of all of these groups are held, or are being decoded."""
        with self.lock:
            return all(
                group in self.coming
                or ((held := self.groups.get(group)) is not None and columns <= held.fields.keys())
                for group in groups
            )


def _bytes_of(fields: Mapping[int, list[_HeldColumn]]) -> int:
    return sum(each.size_bytes for column in fields.values() for each in column)


class GroupReader:
    """Reads rows of groups that are decoded whole, as a `Reader` reads records. Safe to use from threads.

    Args:
        stored: Reads the groups: the bytes of their columns.
        rows: The rows.
    """

    def __init__(self, stored: Reader, rows: DecodedRows) -> None:
        self.stored = stored
        self.parts = stored.parts
        self.spec: Spec = rows.spec
        self._rows = rows
        self._decoder = GroupDecoder(rows)
        self._own = PerProcess(_HeldGroups)
        # Of each field of a row: its column, and its place among the fields of that.
        self._places: list[tuple[int, int]] = []
        for column, count in enumerate(fields_of_columns(rows.spec)):
            self._places += [(column, place) for place in range(count)]
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.held_bytes = min(_HELD_BYTES, memory_bytes // _SHARE_OF_MEMORY)

    @cached_property
    def directory(self) -> _Directory:
        """What is known of all groups.

        Raises:
            CacheFormatError: if that contradicts the manifest.
        """
        count = self.parts.table.records
        numbers = [ROWS, BYTES_OF_ROWS, NUMBER, BACK]
        columns = self.stored.columns(np.arange(count, dtype=np.int64), numbers)
        rows, sizes, numbers_in_file, back = (np.asarray(column, np.int64) for column in columns)
        places = np.arange(count, dtype=np.int64)
        is_sound = (
            bool((rows > 0).all() and (sizes >= 0).all() and (back >= 0).all() and (back <= places).all())
            and float(rows.sum(dtype=np.float64)) == self._rows.records
        )
        if not is_sound:
            raise CacheFormatError(
                "the groups of rows contradict the manifest: they were changed since; adopt the files again"
            )
        ends = np.cumsum(rows)
        return _Directory(ends - rows, ends, sizes, numbers_in_file, places - back)

    @property
    def group_ends(self) -> Int64s:
        """The row after the last one of each group."""
        return self.directory.ends

    @property
    def record_bytes(self) -> int:
        """The approximate size of a row."""
        sizes = self.directory.sizes
        return max(1, int(sizes.sum()) // max(1, self._rows.records))

    def columns(
        self, indices: Int64s, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> list[NDArray[Any] | list[Any]]:
        """Read rows `indices`, which lie in range: one column a field, or one for each of `fields`."""
        numbers = range(len(self._places)) if fields is None else fields
        leaves = [self.spec.fields[number].leaf for number in numbers]
        found: list[Any] = []
        for leaf in leaves:
            shape = (len(indices), *(size or 0 for size in leaf.shape or ()))
            if not leaf.is_fixed:
                found.append([None] * len(indices))
            elif memory is None:
                found.append(np.empty(shape, leaf.numpy_dtype))
            else:
                found.append(memory.array(shape, leaf.numpy_dtype))
        for places, rows, held in self._groups(indices, numbers):
            for column, one in zip(found, held, strict=True):
                if isinstance(column, np.ndarray):
                    column[places] = one.rows(rows)
                    continue
                try:
                    values = one.values(rows)
                except UnicodeDecodeError as error:
                    first = int(np.atleast_1d(np.arange(len(indices))[places])[0])
                    raise self._no_text(int(indices[first]), one, error) from error
                if isinstance(places, slice):
                    column[:] = values
                else:
                    for place, value in zip(places.tolist(), values, strict=True):
                        column[place] = value
        return found

    def _no_text(self, index: int, column: _HeldColumn, error: UnicodeDecodeError) -> UnsupportedDataError:
        """Return the error of a text that is none, of a group with this row."""
        group = int(np.searchsorted(self.directory.ends, index, side="right"))
        label = self._label(int(self.directory.first_of_file[group]))
        return UnsupportedDataError(
            f"{label}: row group {self.directory.numbers[group]}: a text of a column of {column.leaf} is not "
            f"UTF-8 ({error.reason}): write the file anew, with that column as binary or as UTF-8"
        )

    def _groups(
        self, indices: Int64s, fields: Sequence[int]
    ) -> Iterator[tuple[Any, Int64s, list[_HeldColumn]]]:
        """Yield for each group the places of its rows among these, their numbers there, and the fields."""
        if not len(indices):
            return
        directory = self.directory
        groups = np.searchsorted(directory.ends, indices, side="right")
        rows = indices - directory.firsts[groups]
        first = int(groups[0])
        if (groups == first).all():
            yield slice(None), rows, self._fields(first, fields)
            return
        order = np.argsort(groups, kind="stable")
        cuts = np.flatnonzero(np.diff(groups[order])) + 1
        for places in np.split(order, cuts):
            yield places, rows[places], self._fields(int(groups[places[0]]), fields)

    def _fields(self, group: int, fields: Sequence[int]) -> list[_HeldColumn]:
        places = [self._places[number] for number in fields]
        held = self._held(group, {column for column, _ in places})
        return [held[column][place] for column, place in places]

    def _held(self, group: int, columns: set[int]) -> Mapping[int, list[_HeldColumn]]:
        """Return decoded columns of a group, after those that were not are decoded."""
        own = self._own()
        with own.lock:
            held = own.groups.get(group)
            if held is None:
                held = own.groups[group] = _HeldGroup()
            own.groups.move_to_end(group)
        fields = held.fields
        if columns <= fields.keys():
            return fields
        with held.lock:
            missing = sorted(columns - held.fields.keys())
            if missing:
                fields = {**held.fields, **self._decode(own, group, missing)}
                if _bytes_of(fields) > self.held_bytes:  # others were read before
                    fields = {column: fields[column] for column in columns}
                self._require_room(group, sorted(fields), _bytes_of(fields))
                held.fields = fields
                self._make_room(own, group, held)
            return held.fields

    def _require_room(self, group: int, columns: Sequence[int], size_bytes: int) -> None:
        """Refuse to hold columns of a group that take more than all decoded groups may."""
        if size_bytes > self.held_bytes:
            directory, names = self.directory, [self._decoder.columns[column] for column in columns]
            raise ConfigurationError(
                f"{self._label(int(directory.first_of_file[group]))}: row group {directory.numbers[group]}: "
                f"the columns {', '.join(names):.200} take {in_words(size_bytes)}, and decoded groups may "
                f"take {in_words(self.held_bytes)} of this process's memory: read fewer columns (ref.fields) "
                "or write smaller row groups, or make a cache of the rows: storage.submit of "
                "arrays.parquet"
            )

    def _make_room(self, own: _HeldGroups, group: int, held: _HeldGroup) -> None:
        """Count the bytes that a group takes now; let go of groups that were used longest ago."""
        with own.lock:
            if own.groups.get(group) is not held:  # it was let go of meanwhile
                return
            size_bytes = _bytes_of(held.fields)
            own.size_bytes += size_bytes - held.size_bytes
            held.size_bytes = size_bytes
            is_less = False
            while own.size_bytes > self.held_bytes and len(own.groups) > 1:
                first = next(iter(own.groups))
                if first == group:
                    own.groups.move_to_end(first)
                    continue
                own.size_bytes -= own.groups.pop(first).size_bytes
                is_less = True
        if is_less:
            release_memory()

    def _decode(self, own: _HeldGroups, group: int, columns: Sequence[int]) -> dict[int, list[_HeldColumn]]:
        directory = self.directory
        first, number = int(directory.first_of_file[group]), int(directory.numbers[group])
        label, footer = self._label(first), self._footer(own, first)
        # The file's bytes, with dictionaries, may be a little more than the values.
        self._require_room(group, columns, self._decoder.size_of(label, footer, number, columns) // 2)
        content = self.stored.columns(
            np.array([group], np.int64), [FIRST_COLUMN + column for column in columns]
        )
        chunks = {column: values[0] for column, values in zip(columns, content, strict=True)}
        rows = int(directory.ends[group] - directory.firsts[group])
        decoded = self._decoder.decode(label, footer, number, rows, chunks)
        found: dict[int, list[_HeldColumn]] = {}
        for field, (column, place) in enumerate(self._places):
            if column in decoded:
                leaf, stored = self.spec.fields[field].leaf, decoded[column][place]
                self._check(label, group, leaf, stored, rows)
                found.setdefault(column, []).append(_HeldColumn(leaf, stored))
        return found

    @staticmethod
    def _check(label: str, group: int, leaf: Leaf, stored: Any, rows: int) -> None:
        is_array = isinstance(stored, np.ndarray)
        if len(stored) != rows or is_array != leaf.is_fixed or (is_array and stored.shape[1:] != leaf.shape):
            raise CacheFormatError(
                f"{label}: the values of group {group} are not those of {leaf}: it was changed; {REFRESH}"
            )

    def _footer(self, own: _HeldGroups, first: int) -> Footer:
        """Return the footer of a file, given its first group."""
        with own.lock:
            found = own.footers.get(first)
        if found is None:
            [[content]] = self.stored.columns(np.array([first], np.int64), [FOOTER])
            try:
                found = parsed(bytes(content))
            except Exception as error:  # whatever pyarrow raises for bytes of others
                raise CacheFormatError(
                    f"{self._label(first)}: its footer is damaged: {error}; restore the file"
                ) from error
            with own.lock:
                own.footers[first] = found
                while len(own.footers) > _FOOTERS:
                    own.footers.popitem(last=False)
        return found

    def _label(self, first: int) -> str:
        """Return the name of a file, given its first group."""
        entries = self.stored.foreign_entries(np.array([first], np.int64)).get(FOOTER)
        return "a file" if entries is None else self.parts.name(entries.files[0])

    def sizes_of(self, columns: Collection[int]) -> NDArray[Any]:
        """Return about how many bytes columns of each group take, by those of a group that is held."""
        own, directory = self._own(), self.directory
        with own.lock:
            held = reversed(own.groups.items())  # those used last first
            known = next(((g, each.fields) for g, each in held if each.fields.keys() >= set(columns)), None)
        if known is not None:
            group, fields = known
            size_bytes = _bytes_of({column: fields[column] for column in columns})
            found: NDArray[Any] = directory.sizes * (size_bytes / max(1, int(directory.sizes[group])))
            return found
        lengths = self._lengths
        return np.asarray(directory.sizes) * (
            float(lengths[list(columns)].sum()) / max(1, int(lengths.sum()))
        )

    @cached_property
    def _lengths(self) -> Int64s:
        """The bytes of each column of the first group, in its file."""
        return self.places(0, range(FIRST_COLUMN, FIRST_COLUMN + len(self._decoder.columns)))[2]

    def will_need(self, indices: Int64s, fields: Sequence[int] | None = None) -> Announced:
        """Announce that these rows will be read soon: threads begin to decode their groups."""
        if not len(indices):
            return Announced()
        own = self._own()
        groups = np.unique(np.searchsorted(self.directory.ends, indices, side="right")).tolist()
        numbers = range(len(self._places)) if fields is None else fields
        columns = {self._places[number][0] for number in numbers}
        if own.is_holding(groups, columns):
            return Announced()
        new: list[int] = []
        sizes = self.sizes_of(columns)
        with own.lock:
            # Groups that would push out each other are decoded when they are read.
            room_bytes = self.held_bytes // 2 - sum(sizes[list(own.coming)].tolist())
            for group in groups:
                held = own.groups.get(group)
                if group in own.coming or (held is not None and columns <= held.fields.keys()):
                    continue
                room_bytes -= sizes[group]
                if room_bytes < 0:
                    break
                new.append(group)
            own.coming.update(new)
        announced = None
        if new and self.parts.away is not None:
            wanted = sorted(FIRST_COLUMN + column for column in columns)
            announced = self.stored.will_need(np.array(new, np.int64), wanted)
        for group in new:
            own.threads.submit(self._decode_ahead, own, group, columns, announced)
        return Announced()

    def _decode_ahead(self, own: _HeldGroups, group: int, columns: set[int], announced: Any) -> None:
        """Decode a group before it is needed; `announced` keeps its bytes until then."""
        try:
            self._held(group, columns)
        except YogaError:
            pass  # reading the rows raises it
        finally:
            with own.lock:
                own.coming.discard(group)
            del announced

    def advised_window(self) -> int:
        """Return how many groups a window may have, so that those of two fit into what is held."""
        mean_bytes = max(1, int(self.directory.sizes.mean()))
        return max(1, min(_MOST_WINDOW, self.held_bytes // 4 // mean_bytes))

    def planner(self, planner: Any) -> "GroupPlanner":
        """Return the planner that counts this reader's requests, given one that counts those of ranges."""
        return GroupPlanner(self, planner)

    def places(self, group: int, fields: Sequence[int]) -> tuple[Int64s, Int64s, Int64s]:
        """Return the file, the position and the length of columns of a group; `fields` are those stored."""
        found = self.stored.foreign_entries(np.array([group], np.int64))
        entries = [found[number] for number in fields if number in found]
        files, positions, lengths = (
            np.array([getattr(each, name)[0] for each in entries], np.int64)
            for name in ("files", "positions", "lengths")
        )
        return files, positions, lengths

    def groups_of(self, indices: Int64s, fields: Sequence[int] | None) -> tuple[Int64s, Sequence[int]]:
        """Return the groups that rows lie in, and the fields that are read of them."""
        groups = np.unique(np.searchsorted(self.directory.ends, indices, side="right"))
        numbers = range(len(self._places)) if fields is None else fields
        return groups, sorted({FIRST_COLUMN + self._places[number][0] for number in numbers})

    def lengths(self, indices: Int64s, number: int) -> Int64s:
        """Return the lengths of a field's values along their first axis; decodes its column."""
        found = np.empty(len(indices), np.int64)
        for places, rows, [held] in self._groups(indices, [number]):
            found[places] = held.lengths(rows)
        return found

    def stretches(self, indices: Int64s, number: int, starts: Int64s, stops: Int64s) -> NDArray[Any]:
        """Return the items from `starts` to `stops` of each value of a field, back to back."""
        [values] = self.columns(indices, [number])
        bounds = zip(values, starts.tolist(), stops.tolist(), strict=True)
        pieces = [value[start:stop] for value, start, stop in bounds]
        leaf = self.spec.fields[number].leaf
        empty = np.empty((0, *(size or 0 for size in (leaf.shape or (0,))[1:])), leaf.numpy_dtype)
        return np.concatenate([empty, *pieces])

    def item_bytes(self, number: int) -> int:
        """Return the bytes of an element of a field's values, of which only the first axis varies."""
        leaf = self.spec.fields[number].leaf
        return leaf.numpy_dtype.itemsize * math.prod(size or 0 for size in (leaf.shape or ())[1:])

    def will_need_stretches(
        self, indices: Int64s, number: int, starts: Int64s, stops: Int64s
    ) -> Announced | None:
        """Announce a call of `stretches`."""
        return self.will_need(indices, [number])

    def mapped(self, records: int) -> None:
        """Return no memory: rows lie in none before they are decoded."""

    def blocks(self, number: int) -> None:
        """Return no blocks."""

    def hold(
        self,
        indices: Int64s,
        fields: Sequence[int] | None,
        stretches: Stretches | None,
        held: HeldRows,
        *,
        entries: bool,
    ) -> None:
        """Hold nothing: groups are held where they are decoded."""


class GroupPlanner:
    """Counts the requests for reading rows of groups, each of which is read again once it was let go of.

    Args:
        reader: Reads the rows.
        planner: Counts the requests for ranges.
    """

    def __init__(self, reader: GroupReader, planner: Any) -> None:
        self._reader = reader
        self._planner = planner
        self._held: OrderedDict[int, int] = OrderedDict()  # the size of each group
        self._held_bytes = 0
        self._seen: set[int] = set()
        self._repeated = 0
        self._sizes: NDArray[Any] | None = None

    def add(
        self,
        indices: Int64s,
        fields: Sequence[int] | None,
        stretches: Any = None,
        *,
        window: tuple[int, str] | None = None,
    ) -> Announced:
        """Count the requests for these rows; see `Planner.add`."""
        if not len(indices):
            return Announced()
        groups, numbers = self._reader.groups_of(indices, fields)
        if self._sizes is None:
            self._sizes = self._reader.sizes_of([number - FIRST_COLUMN for number in numbers])
        sizes = self._sizes
        new = []
        for group in groups.tolist():
            if group in self._held:
                self._held.move_to_end(group)
                continue
            new.append(group)
            self._held[group] = int(sizes[group])
            self._held_bytes += int(sizes[group])
            while self._held_bytes > self._reader.held_bytes and len(self._held) > 1:
                self._held_bytes -= self._held.popitem(last=False)[1]
        self._repeated += len(self._seen.intersection(new))
        self._seen.update(new)
        places = [self._reader.places(group, numbers) for group in new]
        if places:
            self._planner.add_ranges(*map(np.concatenate, zip(*places, strict=True)), numbers)
        return Announced()

    def add_lengths(self, indices: Int64s, fields: Sequence[int]) -> Announced:
        """Count the requests for the lengths of values of these rows, whose groups are decoded for them."""
        return self.add(indices, fields)

    def _share(self, share: float) -> float:
        """Return the share of an epoch's groups that was counted, given that of its rows."""
        return share if self._repeated else max(share, len(self._seen) / len(self._reader.directory.ends))

    def _epochs(self, epochs: int) -> int:
        """Return the epochs in which groups are read: the first one, if all can be held."""
        fits = self._sizes is not None and self._sizes.sum() <= self._reader.held_bytes
        return 1 if fits else epochs

    def by_range(self, share: float, epochs: int) -> tuple[int, int]:
        """Return requests and bytes of this many epochs, if a share of each epoch was counted."""
        found: tuple[int, int] = self._planner.by_range(self._share(share), self._epochs(epochs))
        return found

    def by_blocks(self, share: float, epochs: int) -> tuple[int, int]:
        """Return requests and bytes of this many epochs, if each group is read once an epoch."""
        found: tuple[int, int] = self._planner.by_blocks(self._share(share), self._epochs(epochs))
        return found

    def by_mirror(self) -> tuple[int, int, int]:
        """Return requests and bytes to download the files that are not here, and the size of all files."""
        found: tuple[int, int, int] = self._planner.by_mirror()
        return found

    def choice(self, records: int, held_bytes: int | None) -> tuple[str, str]:
        """Return the way in which a process reads this many rows, and the reason."""
        ends = self._reader.directory.ends
        groups = -(-records * len(ends) // max(1, int(ends[-1])))
        name, why = self._planner.choice(groups, held_bytes)
        if self._repeated:
            advised = self._reader.advised_window()
            why += (
                f"; groups of rows are decoded {1 + self._repeated / len(self._seen):.1f} times, and once "
                f'with shuffle=yogadl.Blocks("groups", window={advised}, lanes=NUMBER_OF_SHARDS)'
            )
        return name, why

    @property
    def prices(self) -> Any:
        """The prices of the store that the storage was opened with."""
        return self._planner.prices
