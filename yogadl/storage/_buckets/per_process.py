"""Keep what belongs to one process: made at first use, made anew after a fork, left out of a pickle."""

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from yogadl._lock import ProcessLock

Value = TypeVar("Value")


class PerProcess(Generic[Value]):
    """A value for each process, such as a client with its connections. Safe to use from several threads.

    Args:
        make: Makes the value; pickled with this.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._values: dict[int, Value] = {}  # by process id
        self._lock = ProcessLock()

    def __call__(self) -> Value:
        """Return this process's value."""
        found = self._values.get(os.getpid())
        if found is not None:
            return found
        with self._lock:
            found = self._values.get(os.getpid())
            if found is None:
                # A parent's value stays in place: to drop it here could end the parent's connections.
                found = self._values[os.getpid()] = self._make()
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)
