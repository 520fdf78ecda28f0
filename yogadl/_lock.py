"""Lock out the other threads of this process, whatever was held in the process that it was forked from."""

import os
import threading


class ProcessLock:
    """A lock that is free in a forked child, even if another thread held it at the fork.

    An ordinary lock would stay held there for ever, since its holder does not exist in the child. What it
    guards must therefore be sound, or harmless to repeat, when left half-done. A context manager.
    """

    def __init__(self) -> None:
        # By process id. setdefault is atomic, so that all threads of a new child agree on one lock.
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        self._locks.setdefault(os.getpid(), threading.Lock()).acquire()

    def __exit__(self, *_: object) -> None:
        self._locks[os.getpid()].release()
