"""Read the batches of a stream for tf.data, in any of its threads; tokens identify the epochs."""

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from yogadl._core.process import ProcessLock
from yogadl._core.protocols import Column, Memory
from yogadl._stream import Flags, NumberedBatches
from yogadl.errors import CursorError

_TOKENS: Final = 256
_MOST_EPOCHS: Final = 2**17
_EXIT_S: Final = 10.0
_QUIET_S: Final = 0.05
_BUSY_S: Final = 2.0

FOREIGN: Final = (
    "the iterator's checkpoint is of another dataset, order, shard, start or batch size: "
    "restore it into the dataset that it was saved from, or go on by stream.cursor(delivered=...)"
)
_FORGOTTEN: Final = (
    "the checkpoint that the iterator goes on from does not say which epoch is next: when it was "
    "saved, a zip, an interleave or the like had let go of the finished epoch. Go on by "
    "stream.cursor(delivered=...); and call repeat() on the dataset of make_tf_dataset before it is combined "
    "with others, then every checkpoint says it. (Without a checkpoint: read the iterators in the order in "
    "which they were made)"
)
# To restore a checkpoint the user makes one iterator, and tf.data replaces it by another.
_MADE_BEFORE_RESTORED: Final = 2


class EpochTokens:
    """Look up the epoch of a token: the n-th token of a fixed sequence is the n-th epoch. Thread-safe.

    Args:
        tokens: A function that returns the first so many tokens. The first token belongs to `EpochCount`, not
            to an epoch.
        first: The epoch of the second token.

    Attributes:
        is_counted: Whether checkpoints are known to contain the number of epochs that were begun.
    """

    def __init__(self, tokens: Callable[[int], list[int]], first: int) -> None:
        self._tokens = tokens
        self._first = first
        self._lock = ProcessLock()
        self._numbers: dict[int, int] = {}
        self._made_first = {token >> 32 for token in self._extend(_TOKENS)[:_MADE_BEFORE_RESTORED]}
        self.is_counted = False

    def _extend(self, count: int) -> list[int]:
        tokens = self._tokens(count)
        self._numbers = {token: self._first + number for number, token in enumerate(tokens[1:])}
        return tokens

    def number(self, token: int) -> int:
        """Return the epoch of a token, or raise a CursorError if the token is not of this sequence."""
        while token not in self._numbers:
            with self._lock:
                if token not in self._numbers and len(self._numbers) >= _MOST_EPOCHS:
                    raise CursorError(FOREIGN)
                if token not in self._numbers:
                    self._extend(8 * len(self._numbers))
        return self._numbers[token]

    def require_first(self, epoch: int, made: int) -> None:
        """Raise a CursorError if an iterator that is not among the first begins with the first epoch.

        `made` is the number of the iterator. This happens if a checkpoint was restored in which tf.data did
        not write the epoch's state.
        """
        if epoch == self._first and made not in self._made_first:
            raise CursorError(_FORGOTTEN)


class Gather:
    """Read the items of epochs identified by tokens, in any order, from any number of threads.

    Attributes:
        calls: A context that each call from tf.data enters for as long as it runs Python.
    """

    def __init__(self, numbered: NumberedBatches, epochs: EpochTokens, memory: Memory) -> None:
        self._numbered = numbered
        self._epochs = epochs
        self._memory = memory
        self.calls = Calls()

    def read(self, made: int, token: int, item: int) -> tuple[list[Column], Flags]:
        """Return the columns of an item of the token's epoch, and the flags that mark its padding.

        Raises:
            StopIteration: if the epoch has no such item.
            CursorError: if no epoch has this token.
        """
        epoch = self._epochs.number(token)
        if not self._epochs.is_counted:
            self._epochs.require_first(epoch, made)
        if item >= self._numbered.count(epoch):
            raise StopIteration
        try:
            return self._numbered.read(epoch, item, self._memory)
        except StopIteration as error:  # tf.data would take it for the end of the epoch
            raise RuntimeError("the source raised StopIteration while records were read") from error


class Calls:
    """Count the calls in flight, so that the interpreter's exit can wait for them.

    tf.data's threads read ahead for as long as an iterator lives. If one of them is in Python while the
    interpreter exits, the thread never returns, and TensorFlow waits for it for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._quiet_since = time.monotonic()
        self._is_closing = False
        finish = weakref.WeakMethod(self.finish)
        atexit.register(_finish, finish)

    def __enter__(self) -> None:
        with self._lock:
            if self._is_closing:
                self._quiet_since = time.monotonic()  # a refused call is in Python, too
                raise RuntimeError("the interpreter is shutting down")
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            self._quiet_since = time.monotonic()

    def finish(self) -> None:
        """Refuse new calls, and wait until the calls in flight have left Python."""
        with self._lock:
            self._is_closing = True
            if time.monotonic() - self._quiet_since < _BUSY_S:  # another call may be about to enter
                self._quiet_since = time.monotonic()
        limit = time.monotonic() + _EXIT_S
        while time.monotonic() < limit:
            with self._lock:
                if not self._count and time.monotonic() - self._quiet_since > _QUIET_S:
                    return
            time.sleep(0.005)


def _finish(method: Any) -> None:  # a weak reference to a method
    finish = method()
    if finish is not None:
        finish()
