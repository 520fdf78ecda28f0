"""Make a numpy generator for each position of an epoch, in a tenth of the time of numpy's own seeding.

The generator of a position is the same in every process.

How a generator's state is computed from seed, stage, epoch and position is version 1, which never changes;
`docs/explanation/order.md` specifies it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import NDArray

from yogadl._order.keys import GOLDEN, absorb, absorb_array, derive_key, mix_array

RANDOM_TAG = int.from_bytes(b"random-1", "big")
# Added to a position's key, one offset for each of the four words that seed PCG64.
_WORD_OFFSETS = np.arange(1, 5, dtype=np.uint64) * np.uint64(GOLDEN)


class _HashedWords(ISpawnableSeedSequence):
    """Seeds a bit generator with words that are hashes already, and are not hashed again."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words
        self._parent: SeedSequence | None = None

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[np.uint64]:
        assert (n_words, dtype) == (len(self._words), np.uint64)  # the only call of PCG64
        return self._words

    def spawn(self, n_children: int) -> Any:  # the children are numpy's own seed sequences
        if self._parent is None:
            self._parent = SeedSequence(self._words.tolist())
        return self._parent.spawn(n_children)


def generators(seed: int, stage: int, epoch: int, positions: NDArray[np.int64]) -> Iterator[Generator]:
    """Yield the generator for each position of an epoch.

    Args:
        seed: Any integer.
        stage: The number of the stream's function that the generators are for.
        epoch: The epoch.
        positions: The positions in the epoch, none negative.
    """
    state = absorb(derive_key(RANDOM_TAG, seed, stage), epoch)
    keys = absorb_array(state, positions.astype(np.uint64))
    words = keys[:, None] + _WORD_OFFSETS
    mix_array(words)
    bit_generator_class: Any = PCG64  # Any: PCG64's declared types leave out other seed sequences
    return (Generator(bit_generator_class(_HashedWords(row))) for row in words)
