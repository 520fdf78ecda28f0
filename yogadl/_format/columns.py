"""Turn a column into its stored form, rows of one size or values with an entry each, and hash its records."""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.columns import Pickled, check_size, shape_of, widen
from yogadl._core.frozen import frozen
from yogadl._core.json_value import JsonText
from yogadl._core.spec import JSON, OBJECT, BadValueError, Leaf, Spec
from yogadl._format.fields import ENTRY_DTYPE, ENTRY_WORDS, MAX_UNKNOWN_RANK
from yogadl._format.files import ForeignFile

# Hash records so that the hashes of runs of records can be joined without reading the data again.
#
# The 64-bit hash of a record covers the shape and bytes of each field, however they are stored. The hash of a
# run of records is the polynomial of its records' hashes over the prime 2**61 - 1, which joins associatively.
# It protects against accidents, not against an adversary, for which there is the digest. The full definition
# is in docs/explanation/format.md.
#
# The code is flat and works in place on purpose: benchmarks/build.py (arrays to cache) is bound by this
# module.


PRIME: Final = 2**61 - 1
BASE: Final = 0x1B873593_1EDC6F41 % PRIME
SEED: Final = 0x9E3779B97F4A7C15
STEP: Final = 0xD6E8FEB86659FD93
FINISH: Final = 0xA0761D6478BD642F
# Longer values are hashed by one xxh3 call each; for shorter values, mixing words across records is faster.
MAX_MIXED_BYTES: Final = 512
_CHUNK: Final = 8192
_MASK64: Final = 2**64 - 1
_U = np.uint64

Hashes = NDArray[np.uint64]


@frozen
class RunHash:
    """The hash of a run of records: their number, and their polynomial."""

    records: int = 0
    value: int = 0

    def then(self, other: "RunHash") -> "RunHash":
        """Return the hash of these records followed by the others."""
        value = (self.value * pow(BASE, other.records, PRIME) + other.value) % PRIME
        return RunHash(self.records + other.records, value)


def fingerprint_of(spec: Spec, run: RunHash, *, is_weak: bool = False) -> str:
    """Return the fingerprint of a dataset: same records, order and spec give the same one.

    A weak one is made of the places of foreign values, which were not read.
    """
    document = {"version": 1, "records": run.records, "value": run.value, "spec": spec.to_json()}
    if is_weak:
        document["weak"] = True
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]


def step(state: int, word: int) -> int:
    """Mix one 64-bit word into a state."""
    state = ((state ^ word) * STEP) & _MASK64
    return state ^ (state >> 32)


def _step(state: Hashes, words: Any, scratch: Hashes) -> None:
    """Apply `step` to arrays, in place."""
    np.bitwise_xor(state, words, out=state)
    np.multiply(state, _U(STEP), out=state)
    np.right_shift(state, _U(32), out=scratch)
    np.bitwise_xor(state, scratch, out=state)


def shape_state(shape: Sequence[int]) -> int:
    """Return the initial state for the hash of a value of this shape."""
    state = step(SEED, len(shape))
    for size in shape:
        state = step(state, size)
    return state


def hash_rows(rows: NDArray[np.uint8], shape: tuple[int, ...]) -> Hashes:
    """Hash fixed-size values: `rows` is (records, bytes of one), C-contiguous."""
    count, size = rows.shape
    state = np.full(count, step(shape_state(shape), size), _U)
    scratch = np.empty(count, _U)
    if size > MAX_MIXED_BYTES:
        from xxhash import xxh3_64_intdigest

        bytes_, starts = rows.reshape(-1).data, range(0, size * count, size)
        _step(state, np.array([xxh3_64_intdigest(bytes_[n : n + size]) for n in starts], _U), scratch)
        return state
    if size in (1, 2, 4):
        rows = rows.view(f"<u{size}").astype("<u8").view(np.uint8)  # far faster than the padding below
    elif size % 8:
        padded = np.zeros((count, -(-size // 8) * 8), np.uint8)
        padded[:, :size] = rows
        rows = padded
    if size:
        for words in np.ascontiguousarray(rows.view("<u8").T):
            _step(state, words, scratch)
    return state


def hash_values(
    data: NDArray[np.uint8],
    lengths: NDArray[np.int64],
    shapes: NDArray[np.int64],
    starts: NDArray[np.int64] | None = None,
) -> Hashes:
    """Hash values of varying length; `shapes` has the rank and sizes of each value.

    Args:
        data: The bytes.
        lengths: The bytes of each value.
        shapes: Rank and sizes of each value, a row each.
        starts: Where each value begins in `data`, or None if they lie back to back.
    """
    from xxhash import xxh3_64_intdigest

    count = len(lengths)
    starts = np.cumsum(lengths) - lengths if starts is None else starts
    ends = starts + lengths
    state = _shape_states(shapes)
    scratch = np.empty(count, _U)
    _step(state, lengths.astype(_U), scratch)
    long_values = np.flatnonzero(lengths > MAX_MIXED_BYTES)
    if len(long_values):
        view = data.data
        where = zip(starts[long_values].tolist(), ends[long_values].tolist(), strict=True)
        digests = np.array([xxh3_64_intdigest(view[start:end]) for start, end in where], _U)
        long_state = state[long_values]
        _step(long_state, digests, scratch[: len(long_values)])
        state[long_values] = long_state
    # Shortest last, so that the values that still have a word left are a prefix.
    short_values = np.flatnonzero(lengths <= MAX_MIXED_BYTES)
    short_values = short_values[np.argsort(lengths[short_values], kind="stable")[::-1]]
    if len(short_values):
        state[short_values] = _mix_short_values(
            data, starts[short_values], lengths[short_values], state[short_values]
        )
    return state


def _shape_states(shapes: NDArray[np.int64]) -> Hashes:
    """Return the `shape_state` of each row: rank, then sizes."""
    ranks = shapes[:, 0]
    state = np.full(len(shapes), SEED, _U)
    scratch = np.empty(len(shapes), _U)
    _step(state, ranks.astype(_U), scratch)
    for axis in range(1, shapes.shape[1]):
        has_axis = np.flatnonzero(ranks >= axis)
        axis_state = state[has_axis]
        _step(axis_state, shapes[has_axis, axis].astype(_U), scratch[: len(has_axis)])
        state[has_axis] = axis_state
    return state


def _mix_short_values(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], state: Hashes
) -> Hashes:
    """Mix in the words of values that are ordered by decreasing length."""
    size_bytes = int(lengths.sum())
    if size_bytes < len(data) // 8:  # few bytes of many, as between the values of a foreign file
        before = np.cumsum(lengths) - lengths
        data = data[np.repeat(starts - before, lengths) + np.arange(size_bytes)]
        starts = before
    if len(data) < 8 or int((starts + lengths).max()) + 8 > len(data):
        data = np.concatenate([data, np.zeros(8, np.uint8)])  # the last word may reach past the end
    # In this view, the item at any byte position is the word that begins there.
    words_at = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    words = -(-lengths // 8)
    spare_bits = (words * 8 - lengths).astype(_U) * _U(8)
    scratch = np.empty(len(starts), _U)
    for word in range(int(words[0])):
        active = int(np.searchsorted(-words, -word, side="left"))
        mixed_in = words_at[starts[:active] + 8 * word]
        last = slice(int(np.searchsorted(-words, -(word + 1), side="left")), active)
        # The bits after the value's last byte belong to other values, so they are cleared.
        mixed_in[last] = (mixed_in[last] << spare_bits[last]) >> spare_bits[last]
        _step(state[:active], mixed_in, scratch[:active])
    return state


def hash_run(columns: Sequence[Hashes], count: int) -> RunHash:
    """Return the hash of a run of records from the hashes of their fields."""
    total = RunHash()
    for start in range(0, count, _CHUNK):
        chunk = [column[start : start + _CHUNK] for column in columns]
        total = total.then(_hash_chunk(chunk, min(_CHUNK, count - start)))
    return total


def _hash_chunk(columns: Sequence[Hashes], count: int) -> RunHash:
    state = np.full(count, SEED, _U)
    scratch = np.empty(count, _U)
    for column in columns:
        _step(state, column, scratch)
    np.multiply(state, _U(FINISH), out=state)
    np.right_shift(state, _U(29), out=scratch)
    np.bitwise_xor(state, scratch, out=state)
    np.remainder(state, _U(PRIME), out=state)
    # The products with the powers of BASE, in halves of 31 bits: 2**62 = 2 and 2**61 = 1 (mod PRIME).
    high_powers, low_powers = _powers()
    high_powers, low_powers = high_powers[_CHUNK - count :], low_powers[_CHUNK - count :]
    high = state >> _U(31)
    low = state & _U(2**31 - 1)
    middle = high * low_powers
    middle += low * high_powers
    high *= high_powers
    low *= low_powers
    total = 2 * _sum(high) + _sum(low) + _sum(middle >> _U(30)) + (_sum(middle & _U(2**30 - 1)) << 31)
    return RunHash(count, total % PRIME)


def _sum(values: Hashes) -> int:
    """Return the sum without overflow."""
    return int((values & _U(2**32 - 1)).sum()) + (int((values >> _U(32)).sum()) << 32)


@lru_cache(maxsize=1)  # two constant arrays of 64 KB
def _powers() -> tuple[Hashes, Hashes]:
    """Return the high and low halves of the powers of BASE, the largest exponent first."""
    power, powers = 1, []
    for _ in range(_CHUNK):
        powers.append(power)
        power = power * BASE % PRIME
    descending = np.array(powers[::-1], _U)
    return descending >> _U(31), descending & _U(2**31 - 1)


# The format stores each size of a shape that varies in 32 bits.
_SIZE_LIMIT: Final = 2**32


@frozen
class FixedRows:
    """A column whose values all have the same size: (records, bytes of one)."""

    rows: NDArray[np.uint8]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, records: slice) -> "FixedRows":
        return FixedRows(self.rows[records], self.shape)

    def copy(self) -> "FixedRows":
        """Return a column with memory of its own."""
        return FixedRows(self.rows.copy(), self.shape)

    def sizes(self) -> int:
        """Return the bytes of each value."""
        return int(self.rows.shape[1])

    @property
    def size_bytes(self) -> int:
        """The bytes of all values."""
        return self.rows.size

    def hashes(self) -> Hashes:
        """Return the hash of each value."""
        return hash_rows(self.rows, self.shape)


@frozen
class HeapValues:
    """A column of values as bytes, back to back.

    Args:
        data: The bytes of all values.
        lengths: The bytes of each value.
        shapes: (records, 1 + the largest rank): rank and sizes of each value, then zeros.
        is_text: Whether the values are bytes or str.
    """

    data: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    shapes: NDArray[np.int64]
    is_text: bool

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, records: slice) -> "HeapValues":
        start, stop, _ = records.indices(len(self))
        first = int(self.lengths[:start].sum())
        lengths = self.lengths[start:stop]
        data = self.data[first : first + int(lengths.sum())]
        return HeapValues(data, lengths, self.shapes[start:stop], self.is_text)

    def copy(self) -> "HeapValues":
        """Return a column with memory of its own."""
        return HeapValues(self.data.copy(), self.lengths.copy(), self.shapes.copy(), self.is_text)

    def sizes(self) -> NDArray[np.int64]:
        """Return the bytes of each value."""
        return self.lengths

    @property
    def size_bytes(self) -> int:
        """The bytes of all values."""
        return int(self.lengths.sum())

    def hashes(self) -> Hashes:
        """Return the hash of each value."""
        return hash_values(self.data, self.lengths, self.shapes)

    def elements(self) -> NDArray[np.int64]:
        """Return each value's elements along its first axis: 1 for a scalar, the length for bytes or str."""
        return _elements(self)


@frozen
class ForeignValues:
    """A column of values that lie in one block of a foreign file.

    Args:
        file: The file.
        position: Where the block begins in the file.
        length: The bytes of the block.
        checksum: The checksum of the block; 0 if it was not read.
        data: The bytes of the block, or no bytes if it was not read.
        starts: Where each value begins in the block.
        lengths: The bytes of each value.
        shapes: As of `HeapValues`.
        is_text: Whether the values are bytes or str.
    """

    file: ForeignFile
    position: int
    length: int
    checksum: int
    data: NDArray[np.uint8] | None
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    shapes: NDArray[np.int64]
    is_text: bool

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, records: slice) -> "ForeignValues":
        chosen = {name: getattr(self, name)[records] for name in ("starts", "lengths", "shapes")}
        return ForeignValues(**(vars(self) | chosen))

    def copy(self) -> "ForeignValues":
        """Return the column, whose memory nobody changes."""
        return self

    def sizes(self) -> int:
        """Return the bytes that each value takes in the part."""
        return ENTRY_DTYPE.itemsize * (
            ENTRY_WORDS + (self.shapes.shape[1] if self.shapes.shape[1] > 1 else 0)
        )

    @property
    def size_bytes(self) -> int:
        """The bytes that all values take in the part."""
        return self.sizes() * len(self)

    def hashes(self) -> Hashes:
        """Return the hash of each value, or of its place if it was not read."""
        if self.data is not None:
            return hash_values(self.data, self.lengths, self.shapes, self.starts)
        state = np.full(len(self), SEED, _U)
        scratch = np.empty(len(self), _U)
        words = np.frombuffer(bytes.fromhex(self.file.sha256), "<u8")
        for word in (*words, (self.starts + self.position).astype(_U), self.lengths.astype(_U)):
            _step(state, word, scratch)
        return state

    def elements(self) -> NDArray[np.int64]:
        """Return each value's elements along its first axis, as `HeapValues` does."""
        return _elements(self)


def _elements(column: "HeapValues | ForeignValues") -> NDArray[np.int64]:
    scalars = column.lengths if column.is_text else np.ones_like(column.lengths)
    if column.shapes.shape[1] == 1:
        return scalars
    return np.where(column.shapes[:, 0] > 0, column.shapes[:, 1], scalars)


StoredColumn = FixedRows | HeapValues | ForeignValues


def stored_column(leaf: Leaf, column: NDArray[Any] | list[Any] | StoredColumn) -> StoredColumn:
    """Return the stored form of a column that `column_of` made.

    Raises:
        BadValueError: if a value is too large.
    """
    if isinstance(column, FixedRows | HeapValues | ForeignValues):
        return column
    if isinstance(column, np.ndarray):
        count, shape = len(column), column.shape[1:]
        row_bytes = leaf.numpy_dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        check_size(0, row_bytes)
        return FixedRows(as_bytes(column).reshape(count, row_bytes), shape)
    if leaf.is_numeric:
        for position, array in enumerate(column):
            check_size(position, array.nbytes)
        values: list[Any] = [as_bytes(array).data for array in column]
    else:
        values = [_encode(leaf, value) for value in column]
        for position, value in enumerate(values):
            check_size(position, len(value))
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    shapes = shapes_of([shape_of(leaf, value) for value in column])
    return HeapValues(np.frombuffer(b"".join(values), np.uint8), lengths, shapes, not leaf.is_numeric)


def shapes_of(shapes: list[tuple[int, ...]]) -> NDArray[np.int64]:
    """Return shapes as rows of an array: the rank, the sizes, then zeros."""
    ranks = set(map(len, shapes))
    max_rank = max(ranks, default=0)
    rows = np.zeros((len(shapes), 1 + max_rank), np.int64)
    if len(ranks) == 1:
        rows[:, 0] = max_rank
        if max_rank:
            rows[:, 1:] = shapes
        return rows
    for row, shape in zip(rows, shapes, strict=True):
        row[0] = len(shape)
        row[1 : 1 + len(shape)] = shape
    return rows


def widen_by(leaf: Leaf, column: StoredColumn) -> Leaf:
    """Return the leaf that also admits the shapes of a column.

    Raises:
        BadValueError: if shapes vary, and an entry has no room for one of them.
    """
    if isinstance(column, FixedRows):
        shapes = np.array([[len(column.shape), *column.shape]])
        leaf = widen(leaf, column.shape)
    else:
        shapes = column.shapes
        for rank in np.unique(shapes[:, 0]).tolist():
            sizes = shapes[shapes[:, 0] == rank, 1 : 1 + rank]
            is_same = (sizes == sizes[0]).all(axis=0)
            shape = tuple(
                size if same else None for size, same in zip(sizes[0].tolist(), is_same, strict=True)
            )
            leaf = widen(leaf, shape)
    ranks = shapes[:, 0]
    if leaf.shape is None and ranks.max(initial=0) > MAX_UNKNOWN_RANK:
        raise BadValueError(
            int(np.argmax(ranks > MAX_UNKNOWN_RANK)),
            f"has {ranks.max()} dimensions; a field in which their number varies has at most "
            f"{MAX_UNKNOWN_RANK}",
        )
    # Only a value without elements can have so large a dimension: all others are refused for their size.
    if not leaf.is_fixed and shapes.max(initial=0) >= _SIZE_LIMIT:
        raise BadValueError(
            int(shapes.max(axis=1).argmax()),
            f"has a dimension of {shapes.max()}; a field whose shapes vary has only sizes below "
            f"{_SIZE_LIMIT}",
        )
    return leaf


def as_heap(column: StoredColumn) -> HeapValues:
    """Return a column of fixed rows as values of a heap."""
    if isinstance(column, HeapValues):
        return column
    assert isinstance(column, FixedRows), "foreign values have no codec"
    count, size = column.rows.shape
    shapes = np.tile(np.array([len(column.shape), *column.shape], np.int64), (count, 1))
    return HeapValues(column.rows.reshape(-1), np.full(count, size, np.int64), shapes, is_text=False)


def joined(columns: Sequence[StoredColumn]) -> StoredColumn:
    """Return one column of the values of several columns of a field."""
    fixed = [column for column in columns if isinstance(column, FixedRows)]
    if len(fixed) == len(columns) and len({column.shape for column in fixed}) == 1:
        return FixedRows(np.concatenate([column.rows for column in fixed]), fixed[0].shape)
    heaps = [as_heap(column) for column in columns]
    width = max(column.shapes.shape[1] for column in heaps)
    shapes = [np.pad(column.shapes, ((0, 0), (0, width - column.shapes.shape[1]))) for column in heaps]
    return HeapValues(
        np.concatenate([column.data for column in heaps]),
        np.concatenate([column.lengths for column in heaps]),
        np.concatenate(shapes),
        heaps[0].is_text,
    )


def as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of an array, flat, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _encode(leaf: Leaf, value: Any) -> bytes:
    """Return the stored bytes of bytes, str or an object; an array includes its items' lengths."""
    if leaf.dtype == OBJECT:
        return value.data if isinstance(value, Pickled) else Pickled(value).data
    if leaf.dtype == JSON:
        return value.data if type(value) is JsonText else JsonText(value).data
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    items = [_encode(leaf, item) for item in value.ravel().tolist()]
    return b"".join([np.fromiter(map(len, items), ENTRY_DTYPE, len(items)).tobytes(), *items])
