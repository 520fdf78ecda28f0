"""Make the calls of builds and filters in worker processes."""

import atexit
import concurrent.futures
import contextlib
import functools
import logging
import os
import pickle
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from yogadl._workers.messages import Failure
from yogadl._workers.server import Workers
from yogadl.errors import WorkerDiedError

_log = logging.getLogger("yogadl")

# A call is given up after this many workers died at it: the first death may have had an unrelated cause.
_MOST_DEATHS: Final = 3
# The longest time that a killed pool waits for each of its threads. A killed process ends sooner.
_END_S: Final = 10


@contextlib.contextmanager
def worker_pool(
    workers: int,
    payload: bytes,
    preload: Sequence[str],
    on_report: Callable[[Any], None] = lambda _: None,
) -> Iterator["CallPool"]:
    """Yield a pool of worker processes, which end with the context; an error kills them at once.

    The workers are not forked from this process, which may have threads, or a framework's locks held. A
    worker that dies is replaced, and its call is made again.

    Args:
        workers: The number of processes.
        payload: Pickled data for each worker. The first argument of each call is the data.
        preload: Modules that the workers share.
        on_report: Called, from other threads, with the values that calls pass to their second argument.
    """
    pool = CallPool(workers, payload, preload, on_report)
    atexit.register(pool.kill)  # a build in a daemon thread is not over when the interpreter ends
    try:
        yield pool
        pool.finish()
    finally:
        pool.kill()
        atexit.unregister(pool.kill)


class _WorkerCall(NamedTuple):
    """A call for a worker: a function and its arguments, pickled."""

    future: "concurrent.futures.Future[Any]"
    pickled: bytes


class CallPool:
    """Makes calls in worker processes; a thread of this process waits for each of them.

    An executor of Python's library fails as a whole when one of its processes dies, and does not report which
    call that process was making.
    """

    def __init__(
        self, workers: int, payload: bytes, preload: Sequence[str], on_report: Callable[[Any], None]
    ) -> None:
        self._payload = payload
        self._on_report = on_report
        self._calls: queue.SimpleQueue[_WorkerCall | None] = queue.SimpleQueue()
        self._processes = Workers(_answer_calls, "forkserver", preload)
        self._lock = threading.Lock()  # of the next two, and of requests to the server
        self._workers: dict[int, _CallWorker] = {}
        self._started = 0
        self._over = threading.Event()
        threads = [threading.Thread(target=self._make_calls, daemon=True) for _ in range(workers)]
        self._threads = [threading.Thread(target=self._watch_deaths, daemon=True), *threads]
        for thread in self._threads:
            thread.start()

    def call(self, function: Callable[..., Any], *args: Any) -> "concurrent.futures.Future[Any]":
        """Have a worker call an importable function with the payload, a function that reports, and `args`."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._calls.put(_WorkerCall(future, pickle.dumps((function, args))))
        return future

    def finish(self) -> None:
        """Make all calls, and let the workers end."""
        for _ in self._threads[1:]:
            self._calls.put(None)
        for thread in self._threads[1:]:
            thread.join()

    def kill(self) -> None:
        """End now, even if the workers are busy."""
        with self._lock:
            self._over.set()
            self._processes.end()
        with contextlib.suppress(queue.Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None:
                    call.future.cancel()
        for _ in self._threads[1:]:
            self._calls.put(None)
        for thread in self._threads:
            # The wait is limited: an interrupt may have left a future's lock held, for which the thread
            # waits.
            thread.join(_END_S)

    def _watch_deaths(self) -> None:
        """Tell each worker that has died how it died, until the server is gone."""
        number: int | None = 0
        while number is not None:
            number, how = self._processes.death()
            with self._lock:
                dead = [*self._workers] if number is None else [number]
                for worker in filter(None, map(self._workers.get, dead)):
                    worker.note_death(how)

    def _make_calls(self) -> None:
        """Make calls, one after the other, until no call is left."""
        worker: _CallWorker | None = None
        while (call := self._calls.get()) is not None:
            if self._over.is_set() or not call.future.set_running_or_notify_cancel():
                continue
            try:
                for deaths in range(1, _MOST_DEATHS + 1):
                    if worker is None:
                        worker = self._start_worker()
                    found = worker.make(call.pickled, self._on_report)
                    if not isinstance(found, _Death):
                        call.future.set_result(found)
                        break
                    self._end_worker(worker)
                    worker = None
                    if self._over.is_set() or deaths == _MOST_DEATHS:
                        raise WorkerDiedError(
                            f"{deaths} worker processes died during this call, the last one {found.how}"
                        )
                    _log.warning("yogadl: a worker process died %s; another one repeats its call", found.how)
            except BaseException as error:  # noqa: BLE001  (any error goes to the caller that waits)
                if not self._over.is_set():  # after `kill` no caller waits, and the lock may be held for ever
                    call.future.set_exception(error)
        if worker is not None:
            self._end_worker(worker)

    def _start_worker(self) -> "_CallWorker":
        with self._lock:
            self._started += 1
            try:
                connection = self._processes.start(self._started)
            except BrokenPipeError as error:
                raise WorkerDiedError("the process that starts the workers was killed") from error
            worker = _CallWorker(self._started, connection)
            self._workers[worker.number] = worker
        worker.send(self._payload)
        return worker

    def _end_worker(self, worker: "_CallWorker") -> None:
        worker.end()
        with self._lock:
            del self._workers[worker.number]


class _Death(NamedTuple):
    """The end of a worker, and how it ended."""

    how: str


class _Raised(NamedTuple):
    """The error that a call raised."""

    failure: Failure


class _RemoteError(Exception):
    """The traceback of an error in a worker, as the error's cause."""

    def __str__(self) -> str:
        return f"\nin a worker process:\n{self.args[0]}"


class _CallWorker:
    """A process that makes calls; one thread calls its methods, except `note_death`."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self._socket = connection
        self._connection = Connection(os.dup(connection.fileno()))
        self._how = ""
        self._is_dead = threading.Event()

    def note_death(self, how: str) -> None:
        """Note how the process died, and wake the thread that waits for it.

        A process that the worker has forked may hold the other end of the connection open.
        """
        self._how = how
        self._is_dead.set()
        with contextlib.suppress(OSError):  # closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, message: bytes) -> None:
        """Send a message; if the worker is dead, `make` returns how it died."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(message)

    def make(self, pickled: bytes, on_report: Callable[[Any], None]) -> Any:
        """Make a call, and return its result, or a `_Death` if the worker died.

        Raises:
            Exception: the exception that the call raised.
        """
        self.send(pickled)
        try:
            while True:
                found, is_report = pickle.loads(self._connection.recv_bytes())
                if not is_report:
                    break
                on_report(found)
        except (EOFError, OSError):
            self._is_dead.wait()
            return _Death(self._how)
        if isinstance(found, _Raised):
            raise found.failure.load()[0] from _RemoteError(found.failure.where)
        return found

    def end(self) -> None:
        """Let the worker end: it exits when its connection is closed."""
        with contextlib.suppress(OSError):  # dead already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._is_dead.wait()
        self._socket.close()
        self._connection.close()


# The rest runs in a worker.


def _answer_calls(connection: socket.socket, _: int) -> None:
    """Make the calls that arrive, until none is left or the sender is gone."""
    channel = Connection(connection.detach())

    def report(value: Any) -> None:
        channel.send_bytes(pickle.dumps((value, True)))

    with contextlib.suppress(EOFError, OSError):
        payload = channel.recv_bytes()
        load = functools.cache(lambda: pickle.loads(payload))
        while True:
            channel.send_bytes(_result_of(channel.recv_bytes(), load, report))


def _result_of(pickled: bytes, load: Callable[[], Any], report: Callable[[Any], None]) -> bytes:
    """Return the pickled result of a call, or the pickled error."""
    try:
        function, args = pickle.loads(pickled)
        return pickle.dumps((function(load(), report, *args), False))
    except BaseException as error:  # noqa: BLE001  (any error goes to the caller that waits)
        return pickle.dumps((_Raised(Failure.of(error)), False))
