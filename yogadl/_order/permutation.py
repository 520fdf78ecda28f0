"""Permute ``range(n)`` by a key, at any positions, forwards and backwards.

Up to `EXACT_LIMIT` the permutation is an exact shuffle kept as a table. Beyond that it is a keyed Feistel
network with cycle walking, which needs no memory. `docs/explanation/order.md` states both, frozen as version
1.

The hot code here is flat and works in place on arrays that fit into the second-level cache;
`benchmarks/order.py` justifies it.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._order.keys import GOLDEN, mix_array, splitmix64_output

Integers = NDArray[np.int64]
Words = NDArray[np.unsignedinteger[Any]]  # uint32 or uint64: the arithmetic is the same

EXACT_LIMIT = 32768
ROUNDS = 6
CHUNK = 16384  # positions computed at a time: chosen for speed, not part of the order
_NARROW_LIMIT = 1 << 31
_LANDINGS_LIMIT = 8192


class Network(NamedTuple):
    """The parameters of the Feistel network over ``range(n)``, except its key.

    A number is split into `right` (from 0 to `rights` - 1) and the `left_bits` lowest bits, so that the
    network's own domain, ``rights << left_bits``, is barely larger than n.
    """

    n: int
    dtype: type[np.unsignedinteger[Any]]
    word_bits: int
    left_bits: int
    rights: int

    @property
    def size(self) -> int:
        """The size of the network's domain: n or a little more."""
        return self.rights << self.left_bits


class Schedule(NamedTuple):
    """The key of a network, spread over its rounds."""

    multipliers: tuple[np.unsignedinteger[Any], ...]
    addends: tuple[np.unsignedinteger[Any], ...]


def permute(positions: Integers, n: int, key: int) -> Integers:
    """Return the images of one-dimensional positions in ``range(n)``, as a new array."""
    if n <= EXACT_LIMIT:
        return _shuffled(n, key).take(positions)
    return _walk_in_chunks(positions, n, key, inverse=False)


def unpermute(images: Integers, n: int, key: int) -> Integers:
    """Return the positions whose images these are: the inverse of `permute`."""
    if n <= EXACT_LIMIT:
        return _unshuffled(n, key).take(images)
    return _walk_in_chunks(images, n, key, inverse=True)


# Both tables are cached by (n, key), for a few epochs of a few datasets: at most 256 KiB each. Both are
# read-only and depend on nothing else, so threads and forked processes may share them.
@functools.lru_cache(maxsize=8)
def _shuffled(n: int, key: int) -> Integers:
    """Return the table of a permutation: the image of each position."""
    words = np.arange(1, n + 1, dtype=np.uint64)
    np.multiply(words, np.uint64(GOLDEN), out=words)
    np.add(words, np.uint64(key), out=words)
    mix_array(words)  # a bijection, so there are no ties and any sort gives the same order
    table = np.argsort(words).astype(np.int64, copy=False)
    table.flags.writeable = False
    return table


@functools.lru_cache(maxsize=8)
def _unshuffled(n: int, key: int) -> Integers:
    """Return the table of the inverse: the position of each image."""
    table = np.empty(n, np.int64)
    table[_shuffled(n, key)] = np.arange(n, dtype=np.int64)
    table.flags.writeable = False
    return table


@functools.lru_cache(maxsize=64)
def make_network(n: int) -> Network:
    """Choose the network over ``range(n)``, for n >= 2."""
    dtype: type[np.unsignedinteger[Any]] = np.uint32 if n <= _NARROW_LIMIT else np.uint64
    left_bits = ((n - 1).bit_length() + 1) // 2
    return Network(n, dtype, 32 if n <= _NARROW_LIMIT else 64, left_bits, -(-n >> left_bits))


@functools.lru_cache(maxsize=64)
def make_schedule(network: Network, key: int) -> Schedule:
    """Spread a key over the rounds of a network."""
    surplus = 64 - network.word_bits
    words = [splitmix64_output(key, number) >> surplus for number in range(2 * ROUNDS)]
    return Schedule(
        tuple(network.dtype(word | 1) for word in words[0::2]),
        tuple(network.dtype(word) for word in words[1::2]),
    )


def _walk_in_chunks(numbers: Integers, n: int, key: int, inverse: bool) -> Integers:
    network = make_network(n)
    schedule = make_schedule(network, key)
    images = np.empty(numbers.size, np.int64)
    scratch = np.empty((4, min(CHUNK, numbers.size)), network.dtype)
    for start in range(0, numbers.size, CHUNK):
        chunk = numbers[start : start + CHUNK]
        image = images[start : start + CHUNK]
        if _encipher(network, schedule, chunk, image, scratch, inverse) < n:
            continue
        outside = np.flatnonzero(image >= n)
        if network.size - n <= _LANDINGS_LIMIT:
            image[outside] = _landings(network, key, inverse).take(image[outside] - n)
        else:
            _walk(network, schedule, image, outside, inverse)
    return images


# Cached by (network, key, inverse), at most 64 KiB each, read-only. Without the table, a few numbers of each
# chunk would pass through the network once more, which costs 2 ns an index at n = 1e6.
@functools.lru_cache(maxsize=16)
def _landings(network: Network, key: int, inverse: bool) -> Integers:
    """Return for each number outside ``range(n)`` the first number inside that its walk reaches, if any.

    A walk sends a number through the network again and again.

    Some walks stay outside for ever, in a cycle. No number inside leads to such a cycle, so the entries of
    these walks are never used, but the loop must end for them, too. Therefore each turn of the loop doubles
    the length of all walks: after k turns an entry is 2**k steps further, or is a number inside.
    """
    landings = np.arange(network.n, network.size, dtype=np.int64)
    scratch = np.empty((4, landings.size), network.dtype)
    _encipher(network, make_schedule(network, key), landings, landings, scratch, inverse)
    for _ in range(landings.size.bit_length()):
        outside = np.flatnonzero(landings >= network.n)
        landings[outside] = landings[landings[outside] - network.n]
    landings.flags.writeable = False
    return landings


def _walk(
    network: Network, schedule: Schedule, image: Integers, outside: NDArray[np.intp], inverse: bool
) -> None:
    """Encipher the images that lie outside ``range(n)`` again, in place, until all lie inside.

    This ends, because each is the image of a number inside, to which its cycle returns.
    """
    while outside.size:
        walking = image[outside]
        scratch = np.empty((4, walking.size), network.dtype)
        _encipher(network, schedule, walking, walking, scratch, inverse)
        image[outside] = walking
        outside = outside[walking >= network.n]


def permute_keyed(
    numbers: Integers, network: Network, schedule: Schedule, keys: tuple[Words, Words], inverse: bool
) -> Integers:
    """Permute each number by keys of its own: even rounds use its first key, odd rounds its second.

    Args:
        numbers: One-dimensional, in ``range(network.n)``; few enough for the processor's cache.
        network: The network over their range.
        schedule: The constants that make the rounds differ, the same for all numbers.
        keys: Two arrays as long as `numbers`, of the network's dtype.
        inverse: Whether to go from images to numbers.
    """
    image = np.empty(numbers.size, np.int64)
    scratch = np.empty((4, numbers.size), network.dtype)
    if _encipher(network, _spread(schedule, keys), numbers, image, scratch, inverse) < network.n:
        return image
    outside = np.flatnonzero(image >= network.n)
    while outside.size:
        walking = image[outside]
        own_schedule = _spread(schedule, (keys[0][outside], keys[1][outside]))
        _encipher(network, own_schedule, walking, walking, scratch, inverse)
        image[outside] = walking
        outside = outside[walking >= network.n]
    return image


def _spread(schedule: Schedule, keys: tuple[Words, Words]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Make the addends of each number from its keys.

    Three rounds use the same key. Each multiplies it by an odd factor of its own, since rounds with equal
    addends would make a visible pattern.
    """
    odd = (addend | type(addend)(1) for addend in schedule.addends)
    return schedule.multipliers, [keys[number & 1] * factor for number, factor in enumerate(odd)]


def _encipher(
    network: Network,
    schedule: tuple[Sequence[Any], Sequence[Any]],  # scalars, or arrays as long as the numbers
    numbers: Integers,
    images: Integers,
    scratch: Words,
    inverse: bool,
) -> int:
    """Send numbers through the network once, write their images to `images`, and return the largest one."""
    left, right, hashed, spare = scratch[:, : numbers.size]
    word = network.dtype
    left_bits, half_bits = word(network.left_bits), word(network.word_bits // 2)
    left_shift, rights = word(network.word_bits - network.left_bits), word(network.rights)
    multipliers, addends = schedule
    np.copyto(left, numbers, casting="unsafe")
    np.right_shift(left, left_bits, out=right)
    np.bitwise_and(left, word((1 << network.left_bits) - 1), out=left)
    for number in range(ROUNDS - 1, -1, -1) if inverse else range(ROUNDS):
        np.multiply(left if number & 1 else right, multipliers[number], out=hashed)
        np.add(hashed, addends[number], out=hashed)
        np.multiply(hashed, hashed, out=hashed)
        if number & 1 == 0:
            np.right_shift(hashed, left_shift, out=hashed)
            np.bitwise_xor(left, hashed, out=left)
            continue
        # The upper half of the hash, scaled to 0 .. rights - 1 without a division.
        np.right_shift(hashed, half_bits, out=hashed)
        np.multiply(hashed, rights, out=hashed)
        np.right_shift(hashed, half_bits, out=hashed)
        # Add or subtract modulo `rights`. Of the result and the result corrected by the modulus, the wrong
        # one is out of range or wraps around to a huge number, so the smaller one is right.
        if inverse:
            np.subtract(right, hashed, out=right)
            np.add(right, rights, out=spare)
        else:
            np.add(right, hashed, out=right)
            np.subtract(right, rights, out=spare)
        np.minimum(right, spare, out=right)
    np.left_shift(right, left_bits, out=right)
    np.bitwise_or(right, left, out=right)
    np.copyto(images, right, casting="unsafe")
    return int(right.max())
