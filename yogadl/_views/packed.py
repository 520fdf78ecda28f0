"""Pack several whole records into each row of one length, anew in each epoch.

Which pieces a row has is known from its number and the epoch's draw alone: see `yogadl._order.packs`. The
index of a row has both, ``draw * rows + number``; `DrawnOrder` makes such indices. The plan is kept beside
the cache whose records, or views of them, are packed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import bool_argument, int_argument
from yogadl._core.frozen import frozen
from yogadl._core.protocols import (
    Column,
    Document,
    Indices,
    Memory,
    RandomAccess,
)
from yogadl._core.spec import JSON, DictNode, Leaf, Spec
from yogadl._order.lengths import offsets_of, ramps
from yogadl._order.packs import PackPlan, Pieces
from yogadl._views.lengths import PACKED, PlannedRecords, check_leaf, checked_pad, number_of
from yogadl._views.views import Needs, SameValues, hash_of
from yogadl.errors import ConfigurationError, UnsupportedDataError

_PREPARED: Final = 4  # stretches of rows whose pieces are held; some 16,384 rows each
_MOST_POSITION: Final = 2**31
# `stream.plan` knows the length of each record of up to so many; of more, it takes averages.
_MOST_PLANNED_LENGTHS: Final = 2**26


@frozen
class PackFields:
    """The fields that rows of packed records have besides the packed fields, by their names; ``None``: none.

    Args:
        segments: The number of each token's record in its row: 1, 2, ...; 0 for padding.
        positions: Each token's position in its record.
        cu_seqlens: The ends of the records in a row, after a 0, as the kernels of attention over varying
            lengths take them. The last end is repeated up to `max_segments`.
        max_segments: The size of that field, less 1; by default the most records that a row has.
        mask: A field that is false at the last token of each record, whose next token is not in the row, and
            for padding. If it is a packed field, that one becomes 0 there.

    Example:
        >>> import numpy as np, yogadl
        >>> texts = [{"tokens": np.full(n, n)} for n in (3, 1, 2, 4)]
        >>> ends = yogadl.PackFields(segments=None, positions=None, cu_seqlens="ends")
        >>> packed = yogadl.from_source(texts).packed(5, fields="tokens", extra=ends)
        >>> packed.at(epoch=0)[1]["ends"].tolist()
        [0, 1, 5]
    """

    segments: str | None = "segments"
    positions: str | None = "positions"
    cu_seqlens: str | None = None
    max_segments: int | None = None
    mask: str | None = None


class Packing(NamedTuple):
    """How records are packed, and what a row has: the arguments of `RecordsRef.packed`, not checked yet."""

    capacity: Any
    fields: Any
    long: Any
    shuffle_within: Any
    round_to: Any
    pad: Any
    values: Any
    extra: PackFields


class _PackRows:
    """The pieces of some rows, in order, and where they lie in the rows."""

    def __init__(self, pieces: Pieces, capacity: int) -> None:
        self.offsets, self.records, self.starts, self.stops = pieces
        self.count, self.capacity = len(self.offsets) - 1, capacity
        self.lengths = self.stops - self.starts
        self.ends = np.cumsum(self.lengths)  # in the values of all rows, joined
        self.row_ends = self.ends[self.offsets[1:] - 1]
        self.row_lengths = self.row_ends.copy()
        self.row_lengths[1:] -= self.row_ends[:-1]  # np.diff with prepend= takes a multiple of this
        self.short = np.flatnonzero(self.row_lengths < capacity)

    @cached_property
    def numbers(self) -> Indices:
        """The number of each piece in its row, from 1."""
        return ramps(np.ones(self.count, np.int64), np.diff(self.offsets))

    def fill(self, joined: NDArray[Any], pad: Any, memory: Memory | None) -> NDArray[Any]:
        """Return joined values as rows; short ones are padded."""
        shape = self.count, self.capacity, *joined.shape[1:]
        if not len(self.short) and memory is None:
            return joined.reshape(shape)
        rows = np.empty(shape, joined.dtype) if memory is None else memory.array(shape, joined.dtype)
        row = begin = 0
        for short in [*self.short.tolist(), self.count]:
            end = begin + (short - row) * self.capacity
            rows[row:short] = joined[begin:end].reshape(short - row, *shape[1:])
            if short < self.count:
                begin, length = int(self.row_ends[short]), int(self.row_lengths[short])
                rows[short, :length] = joined[end:begin]
                rows[short, length:] = pad
            row = short + 1
        return rows

    def _with_padding(self, of_pieces: Indices, of_padding: Any) -> Indices:
        """Return numbers of pieces, with one for the padding of each short row, as if that were a piece."""
        if not len(self.short):
            return of_pieces
        found = np.empty(len(of_pieces) + len(self.short), of_pieces.dtype)
        found[self._is_padding] = of_padding
        found[~self._is_padding] = of_pieces
        return found

    @cached_property
    def _is_padding(self) -> NDArray[np.bool_]:
        is_padding = np.zeros(len(self.lengths) + len(self.short), np.bool_)
        is_padding[self.offsets[self.short + 1] + np.arange(len(self.short))] = True
        return is_padding

    @cached_property
    def _padded_lengths(self) -> Indices:
        return self._with_padding(self.lengths, self.capacity - self.row_lengths[self.short])

    def segments(self, memory: Memory | None) -> NDArray[Any]:
        """Return for each value the number of its piece, from 1; 0 for padding."""
        numbers = self._with_padding(self.numbers.astype(np.int32), 0)
        return self._as_rows(np.repeat(numbers, self._padded_lengths), memory)

    def positions(self, memory: Memory | None) -> NDArray[Any]:
        """Return for each value its position in its record; 0 for padding."""
        if int(self.stops.max()) > _MOST_POSITION:
            raise UnsupportedDataError(
                f"record {self.records[self.stops.argmax()]} has more than 2**31 values, too many for "
                "positions of int32: pass positions=None"
            )
        lengths = self._padded_lengths
        begins = (np.cumsum(lengths) - lengths) % self.capacity
        # Arithmetic in 32 bits is exact here, since it is modulo 2**32.
        shifts = (self._with_padding(self.starts, 0) - begins).astype(np.int32)
        shifted = np.repeat(shifts, lengths).reshape(self.count, self.capacity)
        rows = shifted if memory is None else memory.array(shifted.shape, shifted.dtype)
        np.add(shifted, np.arange(self.capacity, dtype=np.int32), out=rows)
        for short, length in zip(self.short.tolist(), self.row_lengths[self.short].tolist(), strict=True):
            rows[short, length:] = 0
        return rows

    def _as_rows(self, values: NDArray[Any], memory: Memory | None) -> NDArray[Any]:
        values = values.reshape(self.count, self.capacity)
        if memory is None:
            return values
        rows = memory.array(values.shape, values.dtype)
        rows[:] = values
        return rows

    def mask(self, memory: Memory | None) -> NDArray[Any]:
        """Return whether each value has a next one in its piece."""
        has_next = np.ones(int(self.ends[-1]), np.bool_)
        has_next[self.ends - 1] = False
        return self.fill(has_next, False, memory)

    def cu_seqlens(self, most: int) -> NDArray[Any]:
        """Return for each row a 0 and the end of each of its pieces; the last end is repeated."""
        bounds = np.zeros((self.count, most + 1), np.int32)
        row = np.repeat(np.arange(self.count), np.diff(self.offsets))
        bounds[row, self.numbers] = self.ends - (self.row_ends - self.row_lengths)[row]
        np.maximum.accumulate(bounds, axis=1, out=bounds)
        return bounds


# Called with rows, the values that were read for them by field, and memory; returns a column.
_MakeColumn = Callable[[_PackRows, Mapping[int, Any], Memory | None], Column]


class _Output(NamedTuple):
    """A field of a row: what it is made of, and how."""

    name: Any
    leaf: Leaf
    number: int | None  # of the parent's field
    is_packed: bool
    make: _MakeColumn


class PackedRecords(PlannedRecords[PackPlan]):
    """Rows made of several whole records; see `RecordsRef.packed`.

    The plan is not pickled if it is kept beside a cache; it is opened again where it is needed.

    Args:
        parent: The records to pack.
        packing: How they are packed.
        workers: How many processes read the lengths, if these are not stored.

    Raises:
        ConfigurationError: if an argument makes no sense.
        UnsupportedDataError: if a record's fields differ in length.
    """

    def __init__(self, parent: RandomAccess, packing: Packing, workers: int = 0) -> None:
        self.parent = parent
        self.capacity = int_argument("capacity", packing.capacity, 1)
        self._shuffle_within = bool_argument("shuffle_within", packing.shuffle_within)
        self._packing = packing
        self._numbers = {
            name: number_of(parent.spec, name, PACKED) for name in _names("fields", packing.fields)
        }
        if not self._numbers:
            raise ConfigurationError('packed needs the fields to pack, such as fields=("tokens",)')
        for name, number in self._numbers.items():
            check_leaf(name, parent.spec.fields[number].leaf, self.capacity, PACKED)
        pads = self._checked_pads()
        self._prepared: list[tuple[Indices, Pieces]] = []
        self._arguments = self.capacity, packing.long, int_argument("round_to", packing.round_to, 1)
        self._take_plan(["packs-1", list(self._numbers), *self._arguments], self._numbers.values(), workers)
        self._packs, found = self.plan.packs, self.plan.max_segments
        self.max_segments = found
        if packing.extra.max_segments is not None:
            self.max_segments = int_argument("max_segments", packing.extra.max_segments, 1)
            if self.max_segments < found:
                raise ConfigurationError(
                    f"max_segments is {self.max_segments}, but a row has up to {found} documents: pass that "
                    "or more, or leave out the shortest records by filter"
                )
        self.parents_a_record = self.plan.pieces_per_epoch / max(1, self._packs)
        outputs = self._make_outputs(pads)
        names = [output.name for output in outputs]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"a row needs a name of its own for each field, not {names}")
        self.spec = Spec(DictNode(tuple(names), tuple(output.leaf for output in outputs)))
        self.record_bytes = max(1, sum(leaf.row_bytes for _, leaf, *_ in outputs if leaf.is_fixed))
        described_pads = {str(name): pad.tobytes().hex() for name, pad in pads.items()}
        what = [names, described_pads, packing.extra.mask, self._shuffle_within, self.max_segments]
        self._parts = "packed", *self._arguments, what, self._digest
        self._identify()

    def __len__(self) -> int:
        return self._packs

    @property
    def padding(self) -> float:
        """The share of the rows' values that are padding."""
        return self.plan.padding

    @property
    def shown(self) -> str:
        """What the rows are, in words."""
        plan = self.plan
        long = f", {plan.cut} long records cut" * bool(plan.cut)
        long += f", {plan.dropped} long records dropped" * bool(plan.dropped)
        kept = plan.records - plan.dropped
        return f"rows of {plan.capacity}, {kept} records, {plan.padding:.2%} padding{long}"

    def documents_of(self, indices: Indices) -> list[list[Document]]:
        """Return the pieces of rows."""
        pieces = self.pieces(indices)
        found = list(map(Document, *(column.tolist() for column in pieces[1:])))
        return [found[begin:end] for begin, end in pairwise(pieces.offsets.tolist())]

    def _open_plan(self, content: Any) -> tuple[PackPlan, bool]:
        plan = PackPlan.from_buffer(content)
        capacity, long, round_to = self._arguments
        settings = plan.records, plan.capacity, plan.long, plan.round_to
        return plan, settings == (len(self.parent), capacity, long, min(round_to, capacity))

    def _make_plan(self, lengths: Indices) -> PackPlan:
        capacity, long, round_to = self._arguments
        return PackPlan.make(lengths, capacity, long=long, round_to=round_to)

    def _checked_pads(self) -> dict[Any, NDArray[Any]]:
        given = {} if self._packing.pad is None else self._packing.pad
        if not isinstance(given, Mapping) or not given.keys() <= self._numbers.keys():
            raise ConfigurationError(
                f"pad is a dict of values by field, such as {{{next(iter(self._numbers))!r}: 0}}, not "
                f"{given!r:.100}"
            )
        mask = self._packing.extra.mask
        if mask in given:
            raise ConfigurationError(
                f"pad has {mask!r}, which is the mask: its padding is 0, as no loss counts it"
            )
        pads = {}
        for name, number in self._numbers.items():
            dtype = self.parent.spec.fields[number].leaf.numpy_dtype
            pads[name] = checked_pad(given[name], dtype) if name in given else np.zeros((), dtype)
        return pads

    @cached_property
    def _outputs(self) -> list[_Output]:
        return self._make_outputs(self._checked_pads())

    def _make_outputs(self, pads: Mapping[Any, NDArray[Any]]) -> list[_Output]:
        """Return the fields of a row."""
        packing, fields = self._packing, self.parent.spec.fields
        mask = packing.extra.mask
        outputs: list[_Output] = []
        for name, number in self._numbers.items():
            leaf = fields[number].leaf
            assert leaf.shape is not None
            row = Leaf(leaf.dtype, (self.capacity, *leaf.shape[1:]))
            make = partial(_packed_column, number, pads[name], name == mask)
            outputs.append(_Output(name, row, number, True, make))
        one_a_value: list[tuple[Any, str, str, Callable[[_PackRows, Memory | None], NDArray[Any]]]] = [
            (packing.extra.segments, "segments", "int32", _PackRows.segments),
            (packing.extra.positions, "positions", "int32", _PackRows.positions),
        ]
        if mask not in self._numbers:
            one_a_value.append((mask, "mask", "bool", _PackRows.mask))
        for name, argument, dtype, make_rows in one_a_value:
            if is_name(argument, name):
                leaf = Leaf(dtype, (self.capacity,))
                outputs.append(_Output(name, leaf, None, False, partial(_made_column, make_rows)))
        if is_name("cu_seqlens", packing.extra.cu_seqlens):
            leaf = Leaf("int32", (self.max_segments + 1,))
            make = partial(_bounds_column, self.max_segments)
            outputs.append(_Output(packing.extra.cu_seqlens, leaf, None, False, make))
        for name in _names("values", packing.values):
            number = number_of(self.parent.spec, name, PACKED)
            leaf = fields[number].leaf
            if leaf.dtype == JSON:  # a row's value is the list of its documents' values
                outputs.append(_Output(name, leaf, number, False, partial(_trees_column, number)))
                continue
            if not leaf.is_fixed:
                raise ConfigurationError(
                    f"values={name!r} is {leaf}: a row has one array of its documents' values, so they must "
                    "be numbers of one shape, or json values"
                )
            assert leaf.shape is not None
            many = Leaf(leaf.dtype, (None, *leaf.shape))
            outputs.append(_Output(name, many, number, False, partial(_values_column, number)))
        return outputs

    def prepare(self, indices: Indices) -> None:
        """Find the pieces of many rows, which are read a few at a time; at once takes a tenth of the time."""
        indices = np.unique(indices)
        if not any(np.array_equal(indices, known) for known, _ in self._prepared):
            self._prepared = [*self._prepared[1 - _PREPARED :], (indices, self._find_pieces(indices))]

    def pieces(self, indices: Indices) -> Pieces:
        """Return the pieces of rows, in the order of their indices, which have the draws."""
        for known, pieces in reversed(self._prepared):
            places = np.searchsorted(known, indices)
            if not len(indices) or places.max() == len(known) or (known[places] != indices).any():
                continue
            firsts = pieces.offsets[places]
            counts = pieces.offsets[places + 1] - firsts
            chosen = ramps(firsts, counts)
            return Pieces(offsets_of(counts), *(column[chosen] for column in pieces[1:]))
        return self._find_pieces(indices)

    def _find_pieces(self, indices: Indices) -> Pieces:
        draws, packs = np.divmod(indices, self._packs)
        plan, shuffle = self.plan, self._shuffle_within
        if not len(draws) or (draws == draws[0]).all():
            return plan.pieces(packs, int(draws[0]) if len(draws) else 0, 0, shuffle_within=shuffle)
        chosen, found = [], []
        for draw in np.unique(draws).tolist():
            chosen.append(np.flatnonzero(draws == draw))
            found.append(plan.pieces(packs[chosen[-1]], draw, 0, shuffle_within=shuffle))
        rows = np.concatenate(chosen)
        counts = np.concatenate([np.diff(pieces.offsets) for pieces in found])
        order = np.argsort(np.repeat(rows, counts), kind="stable")
        in_order = np.empty_like(counts)
        in_order[rows] = counts
        columns = [np.concatenate(column)[order] for column in list(zip(*found, strict=True))[1:]]
        return Pieces(offsets_of(in_order), *columns)

    def lower(self, indices: Indices, fields: Sequence[int] | None) -> tuple[_PackRows, Needs]:
        """Return the rows' pieces."""
        rows = _PackRows(self.pieces(indices), self.capacity)
        needed = [(each.number, each.is_packed) for each in self._chosen(fields) if each.number is not None]
        cut, whole = ([number for number, is_cut in needed if is_cut is kind] for kind in (True, False))
        # A piece shorter than a row is the end of its record.
        are_last = rows.lengths < self.capacity
        return rows, Needs(rows.records, whole, cut, rows.starts, rows.stops, are_last)

    def make(
        self, rows: _PackRows, found: Mapping[int, Any], fields: Sequence[int] | None, memory: Memory | None
    ) -> Sequence[Column]:
        """Return the fields of rows."""
        return [output.make(rows, found, memory) for output in self._chosen(fields)]

    def _chosen(self, fields: Sequence[int] | None) -> list[_Output]:
        return self._outputs if fields is None else [self._outputs[number] for number in fields]

    def record_lengths(self) -> Indices | None:
        """Return the length of each record, as planned; ``None`` if they are too many."""
        plan = self.plan
        return plan.record_lengths() if plan.records <= _MOST_PLANNED_LENGTHS else None


class EpochRecords(SameValues):
    """The records of one epoch, whose indices are plain numbers."""

    def __init__(self, parent: RandomAccess, draw: int) -> None:
        super().__init__(parent)
        self._first = draw * len(parent)
        self._draw = draw
        self.fingerprint = hash_of("epoch", parent.fingerprint, draw)

    def __len__(self) -> int:
        return len(self.parent)

    def over(self, parent: RandomAccess) -> "EpochRecords":
        """Return the same view of other drawn records."""
        return EpochRecords(parent, self._draw)

    def in_parent(self, indices: Indices) -> Indices:
        """Return the parent's indices of these records."""
        return indices + self._first

    def documents_of(self, indices: Indices) -> list[list[Document]]:
        """Return the records that rows or batches are made of."""
        return self.parent.documents_of(self.in_parent(indices))


def _packed_column(
    number: int,
    pad: NDArray[Any],
    is_mask: bool,
    rows: _PackRows,
    found: Mapping[int, Any],
    memory: Memory | None,
) -> Column:
    joined = found[number]
    if is_mask:
        joined[rows.ends - 1] = 0
    return rows.fill(joined, pad, memory)


def _made_column(
    make: Callable[[_PackRows, Memory | None], NDArray[Any]],
    rows: _PackRows,
    _: Mapping[int, Any],
    memory: Memory | None,
) -> Column:
    return make(rows, memory)


def _bounds_column(most: int, rows: _PackRows, _: Mapping[int, Any], __: Memory | None) -> Column:
    return rows.cu_seqlens(most)


def _values_column(number: int, rows: _PackRows, found: Mapping[int, Any], _: Memory | None) -> Column:
    offsets, values = rows.offsets.tolist(), found[number]
    return [values[begin:end].copy() for begin, end in pairwise(offsets)]


def _trees_column(number: int, rows: _PackRows, found: Mapping[int, Any], _: Memory | None) -> Column:
    return [found[number][begin:end] for begin, end in pairwise(rows.offsets.tolist())]


def _names(argument: str, given: Any) -> list[Any]:
    names = list(given) if isinstance(given, tuple | list) else [given]
    if not all(isinstance(name, str | int) for name in names) or len(set(names)) < len(names):
        raise ConfigurationError(f"{argument} are names of fields, each once, not {given!r:.100}")
    return names


def is_name(argument: str, name: Any) -> bool:
    """Return whether a field of a row is wanted under this name."""
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigurationError(f"{argument} is the name of a field of a row, or None, not {name!r:.100}")
    return name is not None
