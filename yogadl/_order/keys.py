"""The arithmetic that orders share: checked integers, intervals, shares, and hashes of integers into keys."""

import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl.errors import ConfigurationError

RECORDS_LIMIT = 1 << 62


def check_records(records: int) -> None:
    """Raise ConfigurationError unless an order can have this many records."""
    if not 0 <= records <= RECORDS_LIMIT:
        raise ConfigurationError(f"An order can't have {records} records; it takes from 0 to 2**62.")


def check_count(name: str, count: int) -> int:
    """Return a count of at least 1 as a Python int, or raise ConfigurationError."""
    try:
        value = operator.index(count)
    except TypeError as error:
        raise ConfigurationError(f"{name} must be an integer, not {count!r}.") from error
    if not 1 <= value <= RECORDS_LIMIT:
        raise ConfigurationError(f"{name} must be from 1 to 2**62, not {value}.")
    return value


def check_within(numbers: NDArray[np.int64], records: int, noun: str) -> NDArray[np.int64]:
    """Return the numbers in one dimension, or raise IndexError if one is not in ``range(records)``."""
    flat = np.ascontiguousarray(numbers, dtype=np.int64).reshape(-1)
    # Negative numbers are huge if they are read as unsigned, so one maximum finds both errors (0.1 ns an
    # index).
    if flat.size and int(flat.view(np.uint64).max()) >= records:
        wrong = int(flat[(flat < 0) | (flat >= records)][0])
        raise IndexError(f"There is no {noun} {wrong} in an order of {records} records.")
    return flat


_MAX_COMPARED_BOUNDS: Final = 16


def bounds_reached(numbers: NDArray[Any], bounds: NDArray[Any]) -> NDArray[np.unsignedinteger[Any]]:
    """Return for each number how many of the ascending bounds it has reached.

    If there are few bounds, each number is compared with all of them: in a binary search, the processor would
    mispredict every other branch (benchmarks/stages.py).
    """
    if len(bounds) > _MAX_COMPARED_BOUNDS:
        return np.searchsorted(bounds, numbers, side="right").astype(np.uint64)
    reached = np.zeros(len(numbers), np.uint8)
    for bound in bounds:
        reached += numbers >= bound
    return reached


def apportion(total: int, weights: Sequence[int | Fraction]) -> list[int]:
    """Return whole numbers that add up to `total`, each differing from its exact share by less than 1.

    This is the method of largest remainders: each share is rounded down, and what remains of the total is
    given, one each, to the shares that lost the largest fractions; of equal fractions, the earlier comes
    first.
    """
    weight_sum = sum(weights)
    counts = [int(total * weight // weight_sum) for weight in weights]
    fractions = [total * weight % weight_sum for weight in weights]
    # Sorting keeps the order of equal elements, also with `reverse`.
    largest = sorted(range(len(weights)), key=fractions.__getitem__, reverse=True)
    for number in largest[: total - sum(counts)]:
        counts[number] += 1
    return counts


# Hash integers into 64-bit keys, so that neighbouring seeds and epochs never give the same order.
#
# The mixer `mix` is the finaliser of SplitMix64; it and `splitmix64_output` are stated in
# `docs/explanation/order.md`, frozen as version 1.


MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MULTIPLIER_2 = 0x94D049BB133111EB


def mix(word: int) -> int:
    """Scramble a 64-bit word; a bijection."""
    word = ((word ^ (word >> 30)) * MULTIPLIER_1) & MASK64
    word = ((word ^ (word >> 27)) * MULTIPLIER_2) & MASK64
    return word ^ (word >> 31)


def absorb(state: int, word: int) -> int:
    """Return the state of the hash after one more 64-bit word."""
    return mix(((state ^ word) + GOLDEN) & MASK64)


def splitmix64_output(key: int, number: int) -> int:
    """Return output `number` (from 0) of the generator SplitMix64 started at `key`."""
    return mix((key + (number + 1) * GOLDEN) & MASK64)


def derive_key(*integers: int) -> int:
    """Hash a sequence of integers of any size and sign into one 64-bit key.

    The first integer should be a tag for the use of the key, so that two uses never share keys. A longer
    sequence continues a shorter one: ``derive_key(a, b)`` is `absorb` of ``derive_key(a)`` and ``b``.

    Args:
        integers: Any integers; one from 0 to 2**64 - 1 is used unchanged, any other is hashed to a word
            first.

    Returns:
        An integer from 0 to 2**64 - 1, the same on every platform and in every release.
    """
    state = 0
    for integer in integers:
        state = absorb(state, _fold(operator.index(integer)))
    return state


def _fold(integer: int) -> int:
    """Return a 64-bit word for an integer of any size and sign."""
    if 0 <= integer <= MASK64:
        return integer
    state = absorb(GOLDEN, 1 if integer < 0 else 0)
    magnitude = abs(integer)
    while magnitude:
        state = absorb(state, magnitude & MASK64)
        magnitude >>= 64
    return state


def mix_array(words: NDArray[np.uint64]) -> None:
    """Apply `mix` to each word of an array, in place."""
    shifted = np.right_shift(words, np.uint64(30))
    np.bitwise_xor(words, shifted, out=words)
    np.multiply(words, np.uint64(MULTIPLIER_1), out=words)
    np.right_shift(words, np.uint64(27), out=shifted)
    np.bitwise_xor(words, shifted, out=words)
    np.multiply(words, np.uint64(MULTIPLIER_2), out=words)
    np.right_shift(words, np.uint64(31), out=shifted)
    np.bitwise_xor(words, shifted, out=words)


def absorb_array(state: NDArray[np.uint64] | int, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply `absorb` to an array of words, with one state for all or one state a word."""
    keys = np.bitwise_xor(words, np.uint64(state) if isinstance(state, int) else state)
    np.add(keys, np.uint64(GOLDEN), out=keys)
    mix_array(keys)
    return keys
