"""Objects that belong to one process or thread: locks, values, the operation that they work for."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar

# Of the monotonic clock, or None if the thread works for no operation.
_began_s: Final[ContextVar[float | None]] = ContextVar("yogadl_began_s", default=None)


@contextlib.contextmanager
def one_operation(began_s: float | None = None) -> Iterator[None]:
    """Let all requests that are made in this block, or function, share one patience.

    Once one of them was given up, the others are given up after a moment, until the store answers one of
    them. Without that, an operation that ends with an error would wait for the store again in each request
    of its cleaning up, and a batch for each of its ranges. The outermost block decides.

    Args:
        began_s: When the operation began, of the monotonic clock, or ``None`` for now.
    """
    outer = _began_s.get()
    token = _began_s.set(outer or began_s or time.monotonic())
    try:
        yield
    finally:
        _began_s.reset(token)


def operation_start_s() -> float:
    """Return when the operation began that this thread works for: now, if it works for none."""
    return _began_s.get() or time.monotonic()


Value = TypeVar("Value")


class ForkedError(Exception):
    """Raised in a forked process, which has none of the reader's threads."""


class ProcessLock:
    """A lock that is free in a forked child, even if another thread held it at the fork.

    An ordinary lock would stay held in the child for ever, since its holder does not exist there. The work
    that the lock guards must therefore be sound, or harmless to repeat, when left half-done. A context
    manager.
    """

    def __init__(self) -> None:
        # Keyed by process id; setdefault is atomic, so all threads of a new child use one lock.
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        self._locks.setdefault(os.getpid(), threading.Lock()).acquire()

    def __exit__(self, *_: object) -> None:
        self._locks[os.getpid()].release()


class PerProcess(Generic[Value]):
    """A value for each process, such as a client with its connections. Safe to use from several threads.

    Args:
        make: Makes the value; pickled with this object.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._values: dict[int, Value] = {}  # by process id
        self._lock = ProcessLock()

    def __call__(self) -> Value:
        """Return this process's value."""
        value = self._values.get(os.getpid())
        if value is not None:
            return value
        with self._lock:
            value = self._values.get(os.getpid())
            if value is None:
                # A parent's value stays in the dict: dropping it here could end the parent's connections.
                value = self._values[os.getpid()] = self._make()
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)


def end_daemon_at_exit() -> None:
    """End this thread silently, if it is a daemon and the interpreter is exiting.

    The objects that reading needs are gone by then, so reading raises arbitrary errors that are of no use to
    the user. Call this function where an error would reach a user's thread.

    Raises:
        SystemExit: ends the thread, and is not printed.
    """
    # The main thread counts as ended as soon as the interpreter begins to exit.
    if threading.current_thread().daemon and not threading.main_thread().is_alive():
        raise SystemExit from None
