"""Start processes that do work for this one, and end when it ends, however that comes about."""

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

from yogadl._failure import Failure
from yogadl.errors import ConfigurationError, WorkerDiedError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection  # loaded when first needed

_log = logging.getLogger("yogadl")

_WORKER: Final = "yogadl-worker"  # what its processes are called
# So often that which has started a worker looks whether it lives, and the other way round: what a worker
# reads for nobody counts twice when the build is gone on with.
_LOOK_EVERY_S: Final = 0.5
_WATCH_EVERY_S: Final = 0.1
# What a terminal, a cluster's manager or torchrun sends to all processes of a job at once. What it means is
# decided by the one that starts workers: it may want to save first, and ends them.
SENT_TO_ALL: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
# A call at which so many workers died is given up: the first may have met with somebody else's accident.
_MOST_DEATHS: Final = 3
# The exit code of a worker that was about to start workers, and what that means.
_NO_GUARD: Final = 113
_GUARD: Final = (
    "a script that starts worker processes is imported by each of them: put what it does under "
    '`if __name__ == "__main__":`'
)
# So long a killed pool waits for each of its threads. A process that is killed ends sooner.
_END_S: Final = 10


@contextlib.contextmanager
def worker_pool(
    workers: int, given: bytes, on_report: Callable[[Any], None] = lambda _: None
) -> Iterator[concurrent.futures.Executor]:
    """Give an executor of so many processes, which are gone afterwards; at an error, at once.

    They are spawned, not forked: this process may have threads, or a framework's locks held. One that dies is
    replaced, and what it was at is done again.

    Args:
        workers: How many.
        given: What each of them needs, pickled; `given_to_worker` returns it there.
        on_report: Called, from other threads, with what the workers give to `report`.
    """
    from multiprocessing.util import Finalize

    require_main()
    pool = _Pool(workers, given, on_report)
    # A build in a daemon thread does not end before the interpreter does, which waits for its children.
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
    """Refuse to start workers in one that is still importing the script that started it.

    Raises:
        ConfigurationError: if so; where the script waits for its parent, it would wait for ever. A worker of
            ours ends, and the process that has started it raises this.
    """
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        if process.name == _WORKER:
            os._exit(_NO_GUARD)
        raise ConfigurationError(_GUARD)


def refuse_starting_worker() -> None:
    """Refuse what would wait for the process that waits for this one, a worker of ours that is starting.

    Raises:
        ConfigurationError: if this is one, and still imports the script that started it.
    """
    if multiprocessing.current_process().name == _WORKER:
        require_main()


def end_with(parent: int) -> None:
    """Let this process end when its parent does, whatever it is at.

    The parent's id is looked at, not a pipe: a child that the parent has forked may hold that open.
    """

    def watch() -> None:
        waiting = threading.Event()
        while os.getppid() == parent:
            waiting.wait(_WATCH_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, name="yogadl-watch", daemon=True).start()


def outlive_signals() -> None:
    """Let this process live through what is sent to all processes of a job."""
    for number in SENT_TO_ALL:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_TO_ALL)


def outlive_signals_alone() -> None:
    """Do so in a worker, but not in what a user's function starts there: `terminate()` must end that."""
    outlive_signals()
    ending = SENT_TO_ALL - {signal.SIGINT}
    for number in ending:
        signal.signal(number, lambda *_: None)  # what is executed does not inherit that
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
    """Say how a process ended, by its exit code; negative is the signal."""
    if code >= 0:
        return f"with exit code {code}"
    hint = ": is there enough memory?" if code == -signal.SIGKILL else ""
    return f"of {signal.Signals(-code).name}{hint}"


class _Call(NamedTuple):
    """Something that a worker is to do: a function and its arguments, pickled."""

    future: "concurrent.futures.Future[Any]"
    pickled: bytes


class _Pool(concurrent.futures.Executor):
    """Make calls in worker processes: each has a thread here that waits for it.

    The executors of Python's library fail as a whole when one of their processes dies, and do not tell which
    call it was at.
    """

    def __init__(self, workers: int, given: bytes, on_report: Callable[[Any], None]) -> None:
        self._given = given
        self._on_report = on_report
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._workers: set[_Worker] = set()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> "concurrent.futures.Future[Any]":
        """Have a function called that can be imported; arguments and result are pickled."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._calls.put(_Call(future, pickle.dumps((function, args, kwargs))))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End when all calls are made."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def kill(self) -> None:
        """End now, whatever the workers are at."""
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
            # Not for ever: an interrupt may have left a lock of a future held, which a thread then waits for.
            thread.join(_END_S)

    def _serve(self) -> None:
        """Make calls, one after the other, until there are no more."""
        worker: _Worker | None = None
        while (call := self._calls.get()) is not None:
            if self._over.is_set() or not call.future.set_running_or_notify_cancel():
                continue
            try:
                for deaths in range(1, _MOST_DEATHS + 1):
                    worker = worker or self._started()
                    found = worker.make(call.pickled, self._on_report)
                    if not isinstance(found, _Death):
                        call.future.set_result(found)
                        break
                    self._ended(worker)
                    worker = None
                    if self._over.is_set() or deaths == _MOST_DEATHS:
                        raise WorkerDiedError(f"a worker process died {deaths} times at it, last {found.how}")
                    _log.warning("yogadl: a worker process died %s; another goes on", found.how)
            except BaseException as error:  # noqa: BLE001  (whatever it is, who waits for it gets it)
                if not self._over.is_set():  # then nobody does, and its lock may be held for ever: see `kill`
                    call.future.set_exception(error)
        if worker is not None:
            self._ended(worker)

    def _started(self) -> "_Worker":
        worker = _Worker(self._given)
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
    """That a worker has ended, and how."""

    how: str


class _Raised(NamedTuple):
    """That a call raised, and what."""

    failure: Failure


class _RemoteError(Exception):
    """Show where in a worker an error was raised, as its cause."""

    def __str__(self) -> str:
        return f"\nin a worker process:\n{self.args[0]}"


class _Worker:
    """A process that makes calls. Its methods are called by one thread, but `kill`."""

    def __init__(self, given: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        with theirs:
            self._process = context.Process(target=_work, args=(theirs, given), name=_WORKER)
            self._process.start()

    def make(self, pickled: bytes, on_report: Callable[[Any], None]) -> Any:
        """Make a call; return what it returned, or that the worker died.

        Raises:
            Exception: whatever the call raised.
        """
        try:
            self._connection.send_bytes(pickled)
            while True:
                # A child that somebody has forked may hold its end of the pipe open, too.
                while not self._connection.poll(_LOOK_EVERY_S):
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
        """Let it end; it does so when nothing is to come any more."""
        self._connection.close()
        self._process.join()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()


# In a worker. It is a worker and nothing else, so these are the same for as long as it lives.


def given_to_worker() -> bytes:
    """Return what this worker was started with."""
    return _given


def report(value: Any) -> None:
    """Tell the process that started this worker something, while a call is made."""
    assert _connection is not None
    _connection.send_bytes(pickle.dumps((value, True)))


_given = b""
_connection: "Connection | None" = None


def _work(connection: "Connection", given: bytes) -> None:
    """Make the calls that come in, until there are no more, or whoever sends them is gone."""
    global _given, _connection
    _given, _connection = given, connection
    outlive_signals_alone()
    parent = multiprocessing.parent_process()
    assert parent is not None and parent.pid is not None
    end_with(parent.pid)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            connection.send_bytes(_made(connection.recv_bytes()))


def _made(pickled: bytes) -> bytes:
    """Return, pickled, what a call returns, or how it failed."""
    try:
        function, args, kwargs = pickle.loads(pickled)
        return pickle.dumps((function(*args, **kwargs), False))
    except BaseException as error:  # noqa: BLE001  (whoever waits for the call gets it)
        return pickle.dumps((_Raised(Failure.of(error)), False))
