"""Permute many ranges at a time, each of its own size and by a key of its own; and draw with replacement.

The first is the draw of packs and of batches by tokens, the second that of samples.
`docs/explanation/order.md` states them, frozen as version 1.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._order.keys import GOLDEN, MASK64, absorb_array, derive_key, mix_array
from yogadl._order.permutation import CHUNK, Integers

SAMPLED_TAG: Final = int.from_bytes(b"sampled-1", "big")
_WEIGHT_BITS: Final = 61  # of the sum of whole weights

EXACT_EACH: Final = 32  # ranges of up to this size are shuffled exactly
_ROUNDS: Final = 10


class PermutedRanges(NamedTuple):
    """The sizes of many ranges, each permuted by a key of its own, and their networks; see `make_ranges`."""

    sizes: Integers
    words: NDArray[np.uint64]  # each makes the key of its range
    left_bits: NDArray[np.uint64]
    rights: NDArray[np.uint64]


def make_ranges(sizes: Integers, words: NDArray[np.uint64]) -> PermutedRanges:
    """Choose the networks over ranges of these sizes, each from 1 to 2**62."""
    last = sizes - 1
    bits = np.frexp(last.astype(np.float64))[1].astype(np.int64)
    bits -= (last > 0) & (last >> np.maximum(bits - 1, 0) == 0)  # a float may have been rounded up
    left_bits = (bits + 1) // 2
    return PermutedRanges(
        sizes, words, left_bits.astype(np.uint64), (-(-sizes >> left_bits)).astype(np.uint64)
    )


def permute_each(
    numbers: Integers, which: NDArray[np.integer[Any]], ranges: PermutedRanges, state: int
) -> Integers:
    """Permute each number in its own range, by the key of this range.

    Ranges of up to `EXACT_EACH` are shuffled exactly, as by `permute`. The others have a network of
    the kind that `permute` has, but with a stronger hash, since its few constants would be alike in all
    ranges.

    Args:
        numbers: One-dimensional; each is in its range.
        which: The number of its range, for each number.
        ranges: The ranges.
        state: The key of a range is `absorb` of this state and the range's word.
    """
    images = np.empty(numbers.size, np.int64)
    for start in range(0, numbers.size, CHUNK):
        number, its = numbers[start : start + CHUNK], which[start : start + CHUNK]
        image = images[start : start + CHUNK]
        large = ranges.sizes.take(its) > EXACT_EACH
        if large.all():
            image[:] = _walk_each(number, its, ranges, state)
            continue
        chosen = np.flatnonzero(large)
        image[chosen] = _walk_each(number[chosen], its[chosen], ranges, state)
        chosen = np.flatnonzero(~large)
        image[chosen] = _shuffled_each(number[chosen], its[chosen], ranges, state)
    return images


def _shuffled_each(
    numbers: Integers, which: NDArray[np.integer[Any]], ranges: PermutedRanges, state: int
) -> Integers:
    """Do the same for ranges of up to `EXACT_EACH`: sort their words, each range in a row."""
    used, row = np.unique(which, return_inverse=True)
    sizes = ranges.sizes[used]
    steps = np.arange(1, int(sizes.max()) + 1, dtype=np.uint64)
    keys = absorb_array(state, ranges.words[used])
    words = keys[:, None] + steps * np.uint64(GOLDEN)
    mix_array(words)
    words[steps > sizes.astype(np.uint64)[:, None]] = np.uint64(MASK64)
    table = np.argsort(words, axis=1, kind="stable")
    images: Integers = table[row.reshape(-1), numbers]
    return images.astype(np.int64, copy=False)


def _walk_each(
    numbers: Integers, which: NDArray[np.integer[Any]], ranges: PermutedRanges, state: int
) -> Integers:
    """Do the same for larger ranges: send numbers through their networks until all lie inside."""
    images = _encipher_each(numbers, which, ranges, state)
    outside = np.flatnonzero(images >= ranges.sizes.take(which))
    while outside.size:
        its = which[outside]
        walked = _encipher_each(images[outside], its, ranges, state)
        images[outside] = walked
        outside = outside[walked >= ranges.sizes.take(its)]
    return images


def _encipher_each(
    numbers: Integers, which: NDArray[np.integer[Any]], ranges: PermutedRanges, state: int
) -> Integers:
    left_bits, rights = ranges.left_bits.take(which), ranges.rights.take(which)
    keys = absorb_array(state, ranges.words.take(which))
    image = numbers.astype(np.uint64)
    right = image >> left_bits
    left = image & ((np.uint64(1) << left_bits) - np.uint64(1))
    left_shift, half = np.uint64(64) - left_bits, np.uint64(32)
    hashed, spare = np.empty_like(image), np.empty_like(image)
    for number in range(_ROUNDS):
        # Output `number` * 2**32 + half of the generator SplitMix64 started at the key.
        np.add(left if number & 1 else right, np.uint64((number << 32) + 1), out=hashed)
        np.multiply(hashed, np.uint64(GOLDEN), out=hashed)
        np.add(hashed, keys, out=hashed)
        mix_array(hashed)
        if number & 1 == 0:
            np.right_shift(hashed, left_shift, out=hashed)
            np.bitwise_xor(left, hashed, out=left)
            continue
        np.right_shift(hashed, half, out=hashed)
        np.multiply(hashed, rights, out=hashed)
        np.right_shift(hashed, half, out=hashed)
        np.add(right, hashed, out=right)
        np.subtract(right, rights, out=spare)
        np.minimum(right, spare, out=right)
    np.left_shift(right, left_bits, out=right)
    np.bitwise_or(right, left, out=right)
    return right.view(np.int64)


def whole_weights(weights: NDArray[np.float64]) -> Integers:
    """Return weights as whole numbers, in proportion but for rounding, whose sum is less than 2**62.

    Args:
        weights: At least one; finite, none less than 0, and one larger.
    """
    exponent = int(np.frexp(weights.max())[1])
    bits = _WEIGHT_BITS - (len(weights) - 1).bit_length()
    whole = np.rint(np.ldexp(weights, bits - exponent)).astype(np.int64)
    return np.maximum(whole, weights > 0)


def sampled(draws: Integers, numbers: Integers, bounds: Integers) -> Integers:
    """Return for each number of a draw one of several stretches, each as often as it is long.

    Args:
        draws: The draw of each number.
        numbers: The numbers, which are independent of each other within one draw.
        bounds: The ends of the stretches, one after another from 0; the last is less than 2**62.
    """
    words = absorb_array(derive_key(SAMPLED_TAG), draws.astype(np.uint64))
    words += (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    mix_array(words)
    return np.searchsorted(bounds, _high_word(words, int(bounds[-1])).view(np.int64), "right")


def _high_word(words: NDArray[np.uint64], factor: int) -> NDArray[np.uint64]:
    """Return the upper 64 bits of the products of words and a factor."""
    half, low = np.uint64(32), np.uint64((1 << 32) - 1)
    factor_high, factor_low = np.uint64(factor >> 32), np.uint64(factor) & low
    high, rest = words >> half, words & low
    middle = high * factor_low + (rest * factor_low >> half)
    carry = (middle & low) + rest * factor_high
    product: NDArray[np.uint64] = high * factor_high + (middle >> half) + (carry >> half)
    return product
