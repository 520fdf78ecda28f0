"""Run jobs in daemon threads, which end with their executor and delay the exit by seconds at most."""

import atexit
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final

from yogadl._workers.lane import call_into

_EXIT_TIMEOUT_S: Final = 5.0

# A job for a thread, and the call that replaces it if the threads have ended.
_Job = tuple[Callable[[], None], Callable[[], object]]


class DaemonThreads(Executor):
    """Run jobs in the order of their submission, urgent ones first, in a bounded number of threads.

    The threads end with this object. The threads are daemons, since they may wait for a store for minutes. At
    exit the process waits for them a little, since ending the interpreter under a request that has just been
    answered may crash it. A forked process does not wait, since it has none of the threads.

    Args:
        most: The largest number of threads.
        name: The name of the threads.

    Attributes:
        ended: Set once no further job is begun.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: deque[_Job] = deque()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()  # one for each job; False ends a thread
        self._threads: list[threading.Thread] = []
        self._pid = os.getpid()
        self.ended = threading.Event()
        self._end = partial(_end, self._jobs, self._tokens, self._threads, self.ended)
        weakref.finalize(self, self._end).atexit = False
        _living.add(self)

    def put(
        self, work: Callable[[], None], instead: Callable[[], object], *, is_urgent: bool = False
    ) -> None:
        """Let a thread call `work`, which must not raise; call `instead` if the threads have ended."""
        if self.ended.is_set():
            instead()
            return
        (self._jobs.appendleft if is_urgent else self._jobs.append)((work, instead))
        self._tokens.put(True)
        if len(self._threads) < self._most:
            work_off = partial(_work_off, self._jobs, self._tokens)
            thread = threading.Thread(target=work_off, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads
                if not self._threads:
                    raise
            else:
                self._threads.append(thread)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Let a thread call a function; see `Executor.submit`."""
        future: Future[Any] = Future()
        self.put(partial(call_into, future, partial(fn, *args, **kwargs)), partial(_give_up, future))
        return future

    def end(self, limit_s: float) -> None:
        """Begin no further job, and wait for those that run."""
        if os.getpid() == self._pid:
            self._end()
            for thread in self._threads:
                thread.join(max(0.0, limit_s - time.monotonic()))


_living: "weakref.WeakSet[DaemonThreads]" = weakref.WeakSet()


def _give_up(future: "Future[Any]") -> None:
    if future.cancel():
        future.set_running_or_notify_cancel()  # wakes those that wait for several futures


def _work_off(jobs: deque[_Job], tokens: "queue.SimpleQueue[bool]") -> None:
    while tokens.get():
        try:
            work = jobs.popleft()[0]
        except IndexError:  # `_end` took the job meanwhile
            continue
        work()
        del work


def _end(
    jobs: deque[_Job],
    tokens: "queue.SimpleQueue[bool]",
    threads: list[threading.Thread],
    ended: threading.Event,
) -> None:
    ended.set()
    while True:
        try:
            jobs.popleft()[1]()
        except IndexError:
            break
    for _ in threads:
        tokens.put(False)


@atexit.register
def _end_all() -> None:
    limit_s = time.monotonic() + _EXIT_TIMEOUT_S
    for threads in list(_living):
        threads.end(limit_s)
