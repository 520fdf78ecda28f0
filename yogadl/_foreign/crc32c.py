"""CRC-32C of many values at once: by google_crc32c where it is installed, else by numpy."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL: Final = 0x82F63B78  # with the bits in reverse order
_ONES: Final = 0xFFFFFFFF
_MASK_DELTA: Final = 0xA282EAD8
# The bytes of a row: all rows are summed side by side, one numpy call a step of two bytes.
_ROW_BYTES: Final = 256
# The bytes that are summed at once, so that the memory is bounded and stays in the processor's cache.
_BLOCK_BYTES: Final = 2 * 2**20

UInt32s = NDArray[np.uint32]


def masked(crcs: UInt32s) -> UInt32s:
    """Return CRCs as TFRecord files store them."""
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(_MASK_DELTA)


def crc32c_of_each(values: Sequence[bytes | memoryview]) -> UInt32s:
    """Return the CRC of each value."""
    library = _library()
    if library is not None:
        return np.fromiter((library(0, _plain(value)) for value in values), np.uint32, len(values))
    return crc32c_by_numpy(values)


def extend(crc: int, value: bytes | memoryview) -> int:
    """Return the CRC of some bytes and a value after them, given that of the bytes; of no bytes it is 0."""
    library = _library()
    return library(crc, _plain(value)) if library is not None else int(crc32c_by_numpy([value], crc)[0])


def crc32c_of_rows(rows: NDArray[np.uint8]) -> UInt32s:
    """Return the CRC of each row of an array, whose rows have an even number of bytes."""
    return ~_pass(rows, np.full(len(rows), _ONES, np.uint32))


@cache
def _library() -> Callable[[int, Any], int] | None:
    try:
        import google_crc32c
    except ImportError:
        return None
    extend: Callable[[int, Any], int] = google_crc32c.extend
    # Without its C library it is Python, a hundred times slower than numpy.
    return extend if google_crc32c.implementation == "c" else None


def _plain(value: bytes | memoryview) -> Any:
    """Return a value as google_crc32c takes it, which is no memoryview; large ones are not copied."""
    if isinstance(value, bytes):
        return value
    return bytes(value) if len(value) < 2048 else np.frombuffer(value, np.uint8)


def crc32c_by_numpy(values: Sequence[bytes | memoryview], crc: int = 0) -> UInt32s:
    """Return the CRC of each value after bytes whose CRC is given."""
    found = np.empty(len(values), np.uint32)
    group: list[bytes | memoryview] = []
    size = 0
    for number, value in enumerate(values):
        group.append(value)
        size += len(value) + _ROW_BYTES
        if size < _BLOCK_BYTES and number + 1 < len(values):
            continue
        if len(group) > 1 or size < 2 * _BLOCK_BYTES:
            found[number + 1 - len(group) : number + 1] = _sum_group(group, crc)
        else:
            last = crc
            for begin in range(0, len(value), _BLOCK_BYTES):
                last = int(_sum_group([value[begin : begin + _BLOCK_BYTES]], last)[0])
            found[number] = last
        group, size = [], 0
    return found


def _sum_group(values: Sequence[bytes | memoryview], crc: int) -> UInt32s:
    """Return the CRC of each value after bytes whose CRC is given.

    The values are laid in rows. Zeros lie before a value: they don't change a state of zero. The four bytes
    before it bring about the state in which it begins. What the rows after a row do to its sum is a linear
    operation, so the sums of a value's rows are shifted by it, and added (by xor).
    """
    seed = _bytes_that_make(crc ^ _ONES)
    counts = np.array([-(-(len(value) + 4) // _ROW_BYTES) for value in values])
    ends = counts.cumsum()
    rows = np.zeros((int(ends[-1]), _ROW_BYTES), np.uint8)
    flat = rows.reshape(-1).data
    for value, end in zip(values, (ends * _ROW_BYTES).tolist(), strict=True):
        begin = end - len(value)
        flat[begin - 4 : begin] = seed
        flat[begin:end] = value
    sums = _pass(rows, np.zeros(len(rows), np.uint32))
    following = np.repeat(ends, counts) - 1 - np.arange(len(rows))
    for power in range(int(following.max()).bit_length()):
        shifted = np.flatnonzero(following >> power & 1)
        parts = sums[shifted].view(np.uint8).reshape(-1, 4)
        first, second, third, fourth = (
            table.take(parts[:, k], mode="clip") for k, table in enumerate(_shift(power))
        )
        sums[shifted] = first ^ second ^ third ^ fourth
    return ~np.bitwise_xor.reduceat(sums, ends - counts)


def _pass(rows: NDArray[np.uint8], state: UInt32s) -> UInt32s:
    """Return the states after each row, given those before."""
    table = _tables()[1]
    for words in np.ascontiguousarray(rows.view(np.uint16).T):
        low = state.view(np.uint16)[::2] ^ words
        state >>= np.uint32(16)
        state ^= table.take(low, mode="clip")  # which is faster than to raise, and nothing is clipped
    return state


@cache
def _tables() -> tuple[UInt32s, UInt32s]:
    """Return the state after a byte of zero, given the state's low byte, and the same for two bytes."""
    one = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        one = (one >> np.uint32(1)) ^ (one & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    two = np.arange(2**16, dtype=np.uint32)
    for _ in range(2):
        two = (two >> np.uint32(8)) ^ one[two & np.uint32(255)]
    return one, two


@cache
def _shift(power: int) -> UInt32s:
    """Return what 2**power rows of zeros make of a state: of each of its bytes a table."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if power == 0:
        columns = _pass(np.zeros((32, _ROW_BYTES), np.uint8), bits.copy())
    else:
        half = _shift(power - 1)
        columns = bits
        for _ in range(2):
            parts = columns.view(np.uint8).reshape(-1, 4)
            columns = np.bitwise_xor.reduce([half[k][parts[:, k]] for k in range(4)])
    tables = np.zeros((4, 256), np.uint32)
    values = np.arange(256)
    for bit in range(32):
        tables[bit // 8] ^= np.where(values >> bit % 8 & 1, columns[bit], np.uint32(0))
    return tables


def _bytes_that_make(state: int) -> bytes:
    """Return the four bytes after which a state of zero is this one."""
    one = _tables()[0]
    indices = np.argsort(one >> np.uint32(24))  # the byte that has led to a state is known by its first byte
    for _ in range(4):
        index = int(indices[state >> 24])
        state = (state ^ int(one[index])) << 8 | index
    return state.to_bytes(4, "little")
