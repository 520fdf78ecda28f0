"""Exclude other threads of this process, even if the lock was held when the process was forked."""

import os
import threading


class ProcessLock:
    """A lock that is free in a forked child, even if another thread held it at the fork.

    An ordinary lock would stay held in the child for ever, since its holder does not exist there. The work
    that the lock guards must therefore be sound, or harmless to repeat, when left half-done. A context
    manager.
    """

    def __init__(self) -> None:
        # By process id; setdefault is atomic, so all threads of a new child use one lock.
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        self._locks.setdefault(os.getpid(), threading.Lock()).acquire()

    def __exit__(self, *_: object) -> None:
        self._locks[os.getpid()].release()
