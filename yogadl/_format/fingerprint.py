"""Hash records so that the hashes of runs of records can be joined without reading the data again.

The 64-bit hash of a record covers the shape and bytes of each field, however they are stored. The hash of a
run of records is the polynomial of its records' hashes over the prime 2**61 - 1, which joins associatively.
It protects against accidents, not against an adversary, for which there is the digest. The full definition is
in docs/explanation/format.md.

The code is flat and works in place on purpose: benchmarks/build.py (arrays to cache) is bound by this module.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl._core.spec import Spec

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


def fingerprint_of(spec: Spec, run: RunHash) -> str:
    """Return the fingerprint of a dataset: same records, order and spec give the same one."""
    document = {"version": 1, "records": run.records, "value": run.value, "spec": spec.to_json()}
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


def hash_values(data: NDArray[np.uint8], lengths: NDArray[np.int64], shapes: NDArray[np.int64]) -> Hashes:
    """Hash values of varying length that lie back to back; `shapes` has the rank and sizes of each value."""
    from xxhash import xxh3_64_intdigest

    count = len(lengths)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    state = _shape_states(shapes)
    scratch = np.empty(count, _U)
    _step(state, lengths.astype(_U), scratch)
    longs = np.flatnonzero(lengths > MAX_MIXED_BYTES)
    if len(longs):
        view = data.data
        where = zip(starts[longs].tolist(), ends[longs].tolist(), strict=True)
        digests = np.array([xxh3_64_intdigest(view[start:end]) for start, end in where], _U)
        part = state[longs]
        _step(part, digests, scratch[: len(longs)])
        state[longs] = part
    # Shortest last, so that the values that still have a word left are a prefix.
    shorts = np.flatnonzero(lengths <= MAX_MIXED_BYTES)
    shorts = shorts[np.argsort(lengths[shorts], kind="stable")[::-1]]
    if len(shorts):
        state[shorts] = _mixed(data, starts[shorts], lengths[shorts], state[shorts])
    return state


def _shape_states(shapes: NDArray[np.int64]) -> Hashes:
    """Return the `shape_state` of each row: rank, then sizes."""
    ranks = shapes[:, 0]
    state = np.full(len(shapes), SEED, _U)
    scratch = np.empty(len(shapes), _U)
    _step(state, ranks.astype(_U), scratch)
    for axis in range(1, shapes.shape[1]):
        deep = np.flatnonzero(ranks >= axis)
        part = state[deep]
        _step(part, shapes[deep, axis].astype(_U), scratch[: len(deep)])
        state[deep] = part
    return state


def _mixed(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], state: Hashes
) -> Hashes:
    """Mix in the words of values that are ordered by decreasing length."""
    if len(data) < 8 or int((starts + lengths).max()) + 8 > len(data):
        data = np.concatenate([data, np.zeros(8, np.uint8)])  # the last word may reach past the end
    # In this view, the item at any byte position is the word that begins there.
    words_at = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    words = -(-lengths // 8)
    spare_bits = (words * 8 - lengths).astype(_U) * _U(8)
    scratch = np.empty(len(starts), _U)
    for word in range(int(words[0])):
        active = int(np.searchsorted(-words, -word, side="left"))
        found = words_at[starts[:active] + 8 * word]
        last = slice(int(np.searchsorted(-words, -(word + 1), side="left")), active)
        # The bits after the value's last byte belong to other values, so they are cleared.
        found[last] = (found[last] << spare_bits[last]) >> spare_bits[last]
        _step(state[:active], found, scratch[:active])
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
    power, powers = 1, []
    for _ in range(_CHUNK):
        powers.append(power)
        power = power * BASE % PRIME
    every = np.array(powers[::-1], _U)
    return every >> _U(31), every & _U(2**31 - 1)
