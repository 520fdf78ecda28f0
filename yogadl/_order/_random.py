"""Make numpy's generators for positions of an epoch: the same whoever asks, in a tenth of a seed's time.

How seed, stage, epoch and position become a generator's state is frozen as version 1, and stated in
`docs/explanation/order.md`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import NDArray

from yogadl._order._keys import GOLDEN, absorb, absorb_array, derive_key, mix_array

RANDOM_TAG = int.from_bytes(b"random-1", "big")
_WORDS = np.arange(1, 5, dtype=np.uint64) * np.uint64(GOLDEN)


class _State(ISpawnableSeedSequence):
    """Seed a bit generator with words that are random already, without hashing them."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words
        self._parent: SeedSequence | None = None

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[np.uint64]:
        assert (n_words, dtype) == (len(self._words), np.uint64)  # as PCG64 asks
        return self._words

    def spawn(self, n_children: int) -> Any:  # sequences of numpy's own
        if self._parent is None:
            self._parent = SeedSequence(self._words.tolist())
        return self._parent.spawn(n_children)


def generators(seed: int, stage: int, epoch: int, positions: NDArray[np.int64]) -> Iterator[Generator]:
    """Yield the generator for each position of an epoch.

    Args:
        seed: Any integer.
        stage: Which of a stream's functions it is for.
        epoch: The epoch.
        positions: The positions in it, none negative.
    """
    state = absorb(derive_key(RANDOM_TAG, seed, stage), epoch)
    keys = absorb_array(state, positions.astype(np.uint64))
    words = keys[:, None] + _WORDS
    mix_array(words)
    made: Any = PCG64  # which takes what it declares, and any other sequence of seeds
    return (Generator(made(_State(row))) for row in words)
