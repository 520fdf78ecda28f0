"""Read ahead in a thread: a bounded queue between the reader and the consumer."""

import atexit
import os
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from yogadl._frozen import frozen
from yogadl._memory import settle_allocator
from yogadl._stream.items import Read

_EXIT_TIMEOUT_S = 5.0
_NOTHING: Read = (0, iter(()))


class ForkedError(Exception):
    """Tell the consumer that it lives in a forked process, where the reader's thread does not."""


class _EndError(Exception):
    """Stand in the queue after the last item."""


@frozen
class Prefetch:
    """A stage that keeps `depth` items ready, or those of one read. Ordered, exact, picklable.

    The thread starts at the first `next`. It ends when the items do, when the consumer closes or drops
    its iterator, or at the interpreter's exit.
    """

    depth: int

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield `items`, read ahead one by one; an error of theirs comes after the items before it."""
        return self.of_reads((1, iter((item,))) for item in items)

    def of_reads(self, reads: Iterator[Read]) -> Iterator[Any]:
        """Yield the items of `reads`, with whole reads handed over.

        Small batches are read many at a time, and handing each over would cost more than reading it.
        """
        feed = _Feed(self.depth, reads)
        del reads  # the thread's alone: they end with it
        try:
            while True:
                yield from feed.take()
        except _EndError:
            return
        finally:
            feed.stop()


class _Feed:
    """A bounded queue that a thread of its own fills with `reads`. One consumer.

    The lock is re-entrant: the garbage collector may drop a consumer, and so call `stop`, inside the
    thread while it holds the lock.
    """

    def __init__(self, depth: int, reads: Iterator[Read]) -> None:
        self._depth = depth
        self._held = 0  # items in the queue
        self._most = depth  # from so many on, nothing is read
        self._ready: deque[tuple[Read, BaseException | None]] = deque()
        self._changed = threading.Condition(threading.RLock())
        self._is_stopped = False
        self._is_over = False
        self._pid = os.getpid()
        settle_allocator()
        self._thread = threading.Thread(target=self._fill, args=(reads,), name="yogadl-prefetch", daemon=True)
        # A daemon thread that is in the middle of a copy while the interpreter is taken down is asking
        # for a crash, so at exit it is waited for, also if nobody wants any more what it reads.
        atexit.register(self._exit)
        self._thread.start()

    def take(self) -> Iterator[Any]:
        """Return the items of the next read, waiting for it.

        Raises:
            _EndError: after the last read.
            ForkedError: if this is not the process that the thread was started in.
        """
        if os.getpid() != self._pid:
            raise ForkedError
        with self._changed:
            while not self._ready:
                if self._is_stopped:
                    raise RuntimeError("the interpreter is on its way out: nothing is read ahead any more")
                self._changed.wait()
            (count, items), error = self._ready.popleft()
            self._held -= count
            self._changed.notify()
        if error is None:
            return items
        try:
            raise error
        finally:
            del error  # or the traceback would hold itself

    def stop(self) -> None:
        """Tell the thread to end after what it is reading, and forget what it read."""
        if self._is_over:
            return  # by `_exit`: later, the modules that this needs are gone
        self._is_over = True
        if os.getpid() != self._pid:
            atexit.unregister(self._exit)
            return  # forked: there is no thread here, and the lock may be held for ever
        with self._changed:
            self._is_stopped = True
            self._ready.clear()
            self._changed.notify()

    def _exit(self) -> None:
        self.stop()
        if os.getpid() == self._pid:
            self._thread.join(_EXIT_TIMEOUT_S)

    def _fill(self, reads: Iterator[Read]) -> None:
        try:
            while self._has_room():
                self._put(next(reads), None)
        except StopIteration:
            self._put(_NOTHING, _EndError())
        except BaseException as error:  # noqa: BLE001  (the consumer raises it, whatever it is)
            self._put(_NOTHING, error)
        finally:
            atexit.unregister(self._exit)

    def _has_room(self) -> bool:
        """Wait for room in the queue; return False if stopped. Read only then: `depth` is a promise."""
        with self._changed:
            while self._held >= self._most and not self._is_stopped:
                self._changed.wait()
            return not self._is_stopped

    def _put(self, read: Read, error: BaseException | None) -> None:
        with self._changed:
            if not self._is_stopped:
                self._ready.append((read, error))
                self._held += read[0]
                # Beside a read of several items there is room for another: with one alone, the thread waits
                # for the consumer to wake up, and then the consumer for the thread (benchmarks/prefetch.py).
                self._most = max(self._depth, read[0] + 1) if read[0] > 1 else self._depth
                self._changed.notify()
