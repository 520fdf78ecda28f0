"""Note when the operation began that a thread works for: its requests share one patience."""

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

# Of the monotonic clock; None if the thread works for no operation.
_began_s: Final[ContextVar[float | None]] = ContextVar("yogadl_began_s", default=None)


@contextlib.contextmanager
def one_operation(began_s: float | None = None) -> Iterator[None]:
    """Let all requests that are made in this block, or function, share one patience.

    Once one of them was given up, the others are given up after a moment, until the store answers one of
    them. Without that, an operation that ends with an error would wait for the store again in each request
    of its cleaning up, and a batch for each of its ranges. The outermost block decides.

    Args:
        began_s: When the operation began, of the monotonic clock; ``None`` for now.
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
