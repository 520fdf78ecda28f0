"""Make calls in a separate thread, also while the interpreter ends."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any


class SerialExecutor(Executor):
    """Makes calls one after the other, in a daemon thread; if none can be started, in the caller's.

    The thread pools of Python's library accept no calls once the main thread has ended. A build in another
    thread would then fail, if Python waits for that thread, or print a traceback, if it does not.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_over = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Have the thread call a function; see `Executor.submit`."""
        if self._is_over:
            raise RuntimeError("no calls are made after shutdown")
        future: Future[Any] = Future()
        call = partial(call_into, future, partial(fn, *args, **kwargs))
        if self._thread is None:
            thread = threading.Thread(target=self._make, name="yogadl-serial", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread can be started: from Python 3.12 on, while the interpreter ends
                call()
                return future
            self._thread = thread
        self._calls.put(call)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after all calls are made."""
        self._is_over = True
        self._calls.put(None)
        if wait and self._thread is not None:
            self._thread.join()

    def _make(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # else the call's arguments would live until the next call


def call_into(future: "Future[Any]", function: Callable[[], Any]) -> None:
    """Call a function, unless its future was cancelled, and store the result or the error in the future."""
    if future.set_running_or_notify_cancel():
        try:
            found = function()
        except BaseException as error:  # noqa: BLE001  (any error goes to the caller that waits)
            future.set_exception(error)
            del future, function  # the error's traceback would hold the future, which holds the error
        else:
            future.set_result(found)
