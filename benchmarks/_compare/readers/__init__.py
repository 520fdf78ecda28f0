"""What is compared: a module for each peer, which runs in the peer's own virtual environment.

Each class says in its docstring how the peer is configured, and why; that text is what `docs/peers.md` shows.
Only the peer's public API is used, as its own documentation tells a user to.
"""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from data import Data

SEED = 7


class Reader:
    """Reads one data set by one peer, in shuffled batches.

    A subclass imports its peer when its module is imported, never in a method: "first batch" counts imports.

    Args:
        data: The set: for its sizes and field names; the records come from what `build` made.
        folder: What `build` filled.
        workers: How many processes read ahead (threads, where the peer has only these); 0 for none.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        self.data = data
        self.folder = folder
        self.workers = workers

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        """Make the peer's own form of a set in an empty folder: this is timed, and its files are counted."""

    def epoch(self) -> Iterator[Any]:
        """Return the batches of the next epoch, in another order than the one before."""
        raise NotImplementedError

    def state(self) -> Any:
        """Return what a checkpoint would hold now, in the midst of an epoch; it is pickled.

        None, where the peer has no such thing: then `resume` reads what was read before, and throws it away.
        """
        return None

    def resume(self, state: Any, batches: int) -> Iterator[Any]:
        """Return the rest of the first epoch, in a new process, after so many batches of it."""
        return itertools.islice(self.epoch(), batches, None)

    @staticmethod
    def columns(batch: Any) -> Mapping[str, Any]:
        """Return a batch as a numpy array for each fixed field and a list of bytes for a varying one."""
        return {
            name: column if isinstance(column, list) else np.asarray(column) for name, column in batch.items()
        }

    @staticmethod
    def size(batch: Any) -> int:
        """Return how many records a batch has."""
        return len(next(iter(batch.values())))

    def close(self) -> None:
        """Stop workers, if something must be said to that end."""


class Stateful(Reader):
    """What readers by a loader with `state_dict` have in common; a subclass makes `_loader`."""

    _loader: Any

    def epoch(self) -> Iterator[Any]:
        return iter(self._loader)

    def state(self) -> Any:
        return self._loader.state_dict()

    def resume(self, state: Any, batches: int) -> Iterator[Any]:
        self._loader.load_state_dict(state)
        return self.epoch()

    def close(self) -> None:
        del self._loader
