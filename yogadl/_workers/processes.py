"""Start processes that work for this one, and that end when it ends, for any reason."""

import concurrent.futures
import contextlib
import functools
import logging
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from yogadl._workers.messages import Failure
from yogadl.errors import ConfigurationError, WorkerDiedError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection  # not imported before its first use

_log = logging.getLogger("yogadl")

_WORKER: Final = "yogadl-worker"  # the name of the pool's processes
# The intervals at which the pool checks that a worker lives, and at which a worker checks that its parent
# lives: a worker without its parent must end, or its work would be done twice when the build continues.
_POLL_INTERVAL_S: Final = 0.5
_WATCH_EVERY_S: Final = 0.1
# The signals that a terminal, a cluster's manager or torchrun sends to all processes of a job at once.
# Workers ignore them: the process that started the workers decides what to do, may save first, and ends the
# workers.
SENT_TO_ALL: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
# A call is given up after this many workers died at it: the first death may have had an unrelated cause.
_MOST_DEATHS: Final = 3
# The exit code of a worker that imports a script which would start workers again, and the message for it.
_NO_GUARD: Final = 113
_GUARD: Final = (
    "a script that starts worker processes is imported by each of them: put what it does under "
    '`if __name__ == "__main__":`'
)
# The longest time that a killed pool waits for each of its threads. A killed process ends sooner.
_END_S: Final = 10


@contextlib.contextmanager
def worker_pool(
    workers: int, payload: bytes, on_report: Callable[[Any], None] = lambda _: None
) -> Iterator[concurrent.futures.Executor]:
    """Yield an executor of worker processes, which end with the context; an error kills them at once.

    The workers are spawned, not forked: this process may have threads, or a framework's locks held. A worker
    that dies is replaced, and its call is made again.

    Args:
        workers: The number of processes.
        payload: Pickled data for each worker; `given_to_worker` returns it there.
        on_report: Called, from other threads, with the values that the workers pass to `report`.
    """
    from multiprocessing.util import Finalize

    require_main()
    pool = _Pool(workers, payload, on_report)
    # A build in a daemon thread does not end before the interpreter, which waits for its children.
    at_exit = Finalize(None, pool.kill, exitpriority=0)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        pool.kill()
        raise
    finally:
        at_exit.cancel()


def require_main() -> None:
    """Refuse to start workers in a process that is still importing the script that started it.

    Raises:
        ConfigurationError: if this is such a process: a script that waits for its parent would wait for ever.
            A worker of this module exits instead, and the process that has started it raises this error.
    """
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        if process.name == _WORKER:
            os._exit(_NO_GUARD)
        raise ConfigurationError(_GUARD)


def refuse_starting_worker() -> None:
    """Refuse to wait for the parent in a starting worker, whose parent waits for it.

    Raises:
        ConfigurationError: if this is a worker that still imports the script that started it.
    """
    if multiprocessing.current_process().name == _WORKER:
        require_main()


def end_with(parent: int) -> None:
    """Let this process end when its parent does, whatever it is doing.

    The parent's id is compared, since a pipe may be held open by another child of the parent.
    """

    def watch() -> None:
        waiting = threading.Event()
        while os.getppid() == parent:
            waiting.wait(_WATCH_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, name="yogadl-watch", daemon=True).start()


def outlive_signals() -> None:
    """Let this process survive the signals that are sent to all processes of a job."""
    for number in SENT_TO_ALL:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_TO_ALL)


def outlive_signals_alone() -> None:
    """Let a worker, but no process that it starts, survive these signals: `terminate()` must work."""
    outlive_signals()
    ending = SENT_TO_ALL - {signal.SIGINT}
    for number in ending:
        signal.signal(number, lambda *_: None)  # executed programs inherit SIG_IGN, but no handler
        signal.siginterrupt(number, False)

    def end_at_signals() -> None:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)

    os.register_at_fork(
        before=functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK, ending),
        after_in_parent=functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, ending),
        after_in_child=end_at_signals,
    )


def how_it_ended(code: int) -> str:
    """Describe how a process ended, by its exit code; a negative code is a signal."""
    if code >= 0:
        return f"with exit code {code}"
    hint = ": is there enough memory?" if code == -signal.SIGKILL else ""
    return f"of {signal.Signals(-code).name}{hint}"


class _WorkerCall(NamedTuple):
    """A call for a worker: a function and its arguments, pickled."""

    future: "concurrent.futures.Future[Any]"
    pickled: bytes


class _Pool(concurrent.futures.Executor):
    """Makes calls in worker processes; a thread of this process waits for each of them.

    An executor of Python's library fails as a whole when one of its processes dies, and does not report which
    call that process was making.
    """

    def __init__(self, workers: int, payload: bytes, on_report: Callable[[Any], None]) -> None:
        self._payload = payload
        self._on_report = on_report
        self._calls: queue.SimpleQueue[_WorkerCall | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._workers: set[_Worker] = set()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> "concurrent.futures.Future[Any]":
        """Have a worker call an importable function; arguments and result are pickled."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._calls.put(_WorkerCall(future, pickle.dumps((function, args, kwargs))))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers after all calls are made."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def kill(self) -> None:
        """End now, even if the workers are busy."""
        with self._lock:
            self._over.set()
            for worker in self._workers:
                worker.kill()
        with contextlib.suppress(queue.Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None:
                    call.future.cancel()
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            # The wait is limited: an interrupt may have left a future's lock held, for which the thread
            # waits.
            thread.join(_END_S)

    def _serve(self) -> None:
        """Make calls, one after the other, until no call is left."""
        worker: _Worker | None = None
        while (call := self._calls.get()) is not None:
            if self._over.is_set() or not call.future.set_running_or_notify_cancel():
                continue
            try:
                for deaths in range(1, _MOST_DEATHS + 1):
                    worker = worker or self._start_worker()
                    found = worker.make(call.pickled, self._on_report)
                    if not isinstance(found, _Death):
                        call.future.set_result(found)
                        break
                    self._ended(worker)
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
            self._ended(worker)

    def _start_worker(self) -> "_Worker":
        worker = _Worker(self._payload)
        with self._lock:
            self._workers.add(worker)
            if self._over.is_set():
                worker.kill()
        return worker

    def _ended(self, worker: "_Worker") -> None:
        worker.end()
        with self._lock:
            self._workers.discard(worker)


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


class _Worker:
    """A process that makes calls; one thread calls its methods, except `kill`."""

    def __init__(self, payload: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        with theirs:
            self._process = context.Process(target=_work, args=(theirs, payload), name=_WORKER)
            self._process.start()

    def make(self, pickled: bytes, on_report: Callable[[Any], None]) -> Any:
        """Make a call, and return its result, or a `_Death` if the worker died.

        Raises:
            Exception: the exception that the call raised.
        """
        try:
            self._connection.send_bytes(pickled)
            while True:
                # A child forked by other code may hold the worker's end of the pipe open, too.
                while not self._connection.poll(_POLL_INTERVAL_S):
                    if not self._process.is_alive() and not self._connection.poll():
                        return self._death()
                found, is_report = pickle.loads(self._connection.recv_bytes())
                if not is_report:
                    break
                on_report(found)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return self._death()
        if isinstance(found, _Raised):
            raise found.failure.load()[0] from _RemoteError(found.failure.where)
        return found

    def _death(self) -> _Death:
        self._process.join()
        if self._process.exitcode == _NO_GUARD:
            raise ConfigurationError(_GUARD) from None
        return _Death(how_it_ended(self._process.exitcode or 0))

    def end(self) -> None:
        """End the worker; it exits when its connection is closed."""
        self._connection.close()
        self._process.join()

    def kill(self) -> None:
        """End the worker now."""
        self._process.kill()


# The rest runs in a worker. A worker process does nothing else, so these values stay for its whole life.


def given_to_worker() -> bytes:
    """Return the data that this worker was started with."""
    return _payload


def report(value: Any) -> None:
    """Send a value to the process that started this worker, during a call."""
    assert _connection is not None
    _connection.send_bytes(pickle.dumps((value, True)))


_payload = b""
_connection: "Connection | None" = None


def _work(connection: "Connection", payload: bytes) -> None:
    """Make the calls that arrive, until none is left or the sender is gone."""
    global _payload, _connection
    _payload, _connection = payload, connection
    outlive_signals_alone()
    parent = multiprocessing.parent_process()
    assert parent is not None and parent.pid is not None
    end_with(parent.pid)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            connection.send_bytes(_make_call(connection.recv_bytes()))


def _make_call(pickled: bytes) -> bytes:
    """Return the pickled result of a call, or the pickled error."""
    try:
        function, args, kwargs = pickle.loads(pickled)
        return pickle.dumps((function(*args, **kwargs), False))
    except BaseException as error:  # noqa: BLE001  (any error goes to the caller that waits)
        return pickle.dumps((_Raised(Failure.of(error)), False))
