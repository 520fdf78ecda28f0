"""Write a builder's heartbeat from a child process; see `Heartbeat`.

A heartbeat is a small object that is overwritten again and again, so that other machines see that the
builder is alive. A thread would not suffice: a source in C may hold the interpreter's lock for hours. When
the builder dies, the child process notices it and writes that the lease has ended.
"""

import contextlib
import errno
import json
import logging
import os
import pickle
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from yogadl._core.frozen import parse_json
from yogadl._core.key import DatasetKey
from yogadl._core.printable import printable
from yogadl.errors import LeaseError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.backend import Lease
from yogadl.storage._files.bucket_root import BucketRoot

_log = logging.getLogger("yogadl")

# The number of heartbeats due within one time to live, so that one or two may fail.
HEARTBEATS_PER_TTL: Final = 6
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_MAX_JITTER: Final = 1.3
_LOG_AFTER_S: Final = 2.0
_LOG_EVERY_S: Final = 60.0
# The limit for reading a lease's object, which is small; other programs could put a large one in its place.
_MAX_BODY_BYTES: Final = 2**20


@dataclass(frozen=True)
class LeaseState:
    """The state of the newest lease of a version, as a list of its objects shows it.

    Args:
        term: Its number; 0 if there is none.
        heartbeat: A text that changes with each heartbeat.
        has_ended: Whether its builder has finished or failed.
        has_waiter: Whether a waiting process has written a mark that it waits for its turn.
    """

    term: int = 0
    heartbeat: str = ""
    has_ended: bool = True
    has_waiter: bool = field(default=False, compare=False)


class SilenceTimer:
    """Measure for how long a lease has not changed, as it does with each heartbeat.

    The time is that of this process's own monotonic clock: the clocks of machines may be hours apart.
    """

    def __init__(self) -> None:
        self._last_state = LeaseState()
        self._since = 0.0

    def silence_s(self, state: LeaseState, requested_s: float, answered: float) -> float:
        """Return for how long, at least, nothing has changed.

        Args:
            state: The newest state.
            requested_s: The time of its request; this process may have been stopped since.
            answered: The time when it arrived.
        """
        if state != self._last_state:
            self._last_state, self._since = state, answered
        return max(0.0, requested_s - self._since)


class LeaseWaiter:
    """One caller's wait for a builder, or for a process that prunes.

    Args:
        root: The root of the leases.
        policy: How long to wait.
        key: The version that is built, or the dataset that is pruned.
        takes_turns: Whether the caller will build even if another process has built the version during the
            wait; two callers that will take turns.
    """

    def __init__(
        self,
        root: BucketRoot,
        policy: Lease,
        key: DatasetKey | _names.WholeDataset,
        *,
        takes_turns: bool = False,
    ) -> None:
        self._root = root
        self._policy = policy
        self._key = key
        self._verb, self._participle = verbs(key)
        self._silence = SilenceTimer()
        self._started = time.monotonic()
        self._log_at_s = _LOG_AFTER_S
        self._pause_s = _FIRST_PAUSE_S
        self._paused_for_term = 0
        self._takes_turns = takes_turns
        self._last_turn: int | None = None  # the term of this process, if other processes wait for their turn
        self._yield_until_s: float | None = None
        self._holder: tuple[int, dict[str, Any]] = 0, {}  # a term, and the content of its lease

    def is_dead(self, state: LeaseState, requested_s: float) -> bool:
        """Return whether the builder has had no heartbeat for too long; log it if so."""
        silence_s = self._silence.silence_s(state, requested_s, time.monotonic())
        if silence_s < self._ttl_s(state):
            return False
        _log.warning(
            "yogadl: %s, which was to %s %s, has sent no heartbeat for %.0f s: taking over",
            self._describe(state), self._verb, self._key, silence_s,
        )  # fmt: skip
        return True

    def log_failure(self, state: LeaseState) -> None:
        """Log why a builder failed, if this call has waited for it."""
        if state.term and self._holder[0] == state.term:
            failed = read_body(self._root, _names.lease(self._key, state.term) + _names.END_SUFFIX).get(
                "failed"
            )
            if failed:
                _log.warning(
                    "yogadl: %s was not %s by %s: %s; trying here",
                    self._key,
                    self._participle,
                    self._describe(state),
                    printable(str(failed)),
                )
            self._holder = 0, {}

    def yields_turn(self, state: LeaseState, requested_s: float) -> bool:
        """Return whether this process has just built, and waiting processes may not have noticed yet.

        Without this, a process that builds repeatedly would always be the first to notice, and starve the
        others.

        Args:
            state: The newest state; its builder has ended.
            requested_s: The time of its request.
        """
        if not self._takes_turns:
            return False
        now = time.monotonic()
        if self._yield_until_s is None:
            self._yield_until_s = self._next_pause_s(state) + 2 * (now - requested_s)
            self._last_turn = state.term
        return state.term == self._last_turn and now - self._started < self._yield_until_s

    def _next_pause_s(self, state: LeaseState) -> float:
        """Return how long processes that wait for this one sleep at most; 0 if none waits."""
        if not state.has_waiter:
            return 0.0
        holder = self._body(state)
        started = holder.get("started")
        if (holder.get("host"), holder.get("pid")) != (socket.gethostname(), os.getpid()):
            return 0.0
        turn_s = max(0.0, time.time() - started) if isinstance(started, int | float) else 0.0
        # Pauses grow by half each time, so the last one is half of the sum of all.
        return min(self._longest_pause_s, _FIRST_PAUSE_S + turn_s / 2) * _MAX_JITTER + _FIRST_PAUSE_S

    def pause(self, state: LeaseState) -> None:
        """Sleep a little; log from time to time which builder this waits for.

        Raises:
            LeaseError: if the time to wait is over.
        """
        self._yield_until_s = 0.0
        if state.term != self._paused_for_term:  # a new builder may be done soon, too
            self._paused_for_term, self._pause_s = state.term, _FIRST_PAUSE_S
            self._put_wait_mark(state)
        waited_s = time.monotonic() - self._started
        wait_s = self._policy.wait_s
        if wait_s is not None and waited_s >= wait_s:
            raise LeaseError(
                f"{self._key} is still being {self._participle} after waiting {waited_s:.0f} s: "
                f"{self._describe(state)}. "
                "Wait longer, Lease(wait_s=...), or end that process: its lease ends with it, or "
                f"{self._ttl_s(state):.0f} s after its last heartbeat. If neither helps, delete "
                f"{self._root.where(_names.leases(self._key))}/"
            )
        if waited_s >= self._log_at_s:
            _log.warning(
                "yogadl: waiting for %s, %s by %s, until %.0f s after its last heartbeat%s%s",
                self._key, self._participle, self._describe(state), self._ttl_s(state),
                "" if wait_s is None else f", {wait_s:.0f} s at most (wait_s)",
                note_if_this_process(self._body(state)),
            )  # fmt: skip
            self._log_at_s = waited_s + _LOG_EVERY_S
        self.sleep(None if wait_s is None else wait_s - waited_s)

    def sleep(self, at_most_s: float | None = None) -> None:
        """Sleep for a short time, longer at each call; at random, so that callers do not act in step."""
        pause_s = self._pause_s * random.uniform(2 - _MAX_JITTER, _MAX_JITTER)
        self._pause_s = min(self._pause_s * 1.5, self._longest_pause_s)
        time.sleep(pause_s if at_most_s is None else min(pause_s, at_most_s))

    @property
    def _longest_pause_s(self) -> float:
        return min(_LONGEST_PAUSE_S, self._policy.ttl_s / HEARTBEATS_PER_TTL)

    def _put_wait_mark(self, state: LeaseState) -> None:
        if self._takes_turns and not state.has_waiter:
            with contextlib.suppress(StorageError):  # without the mark this process may wait longer
                self._root.write(_names.lease(self._key, state.term) + _names.WAIT_SUFFIX, b"{}")

    def _ttl_s(self, state: LeaseState) -> float:
        return max(self._policy.ttl_s, ttl_of(self._body(state)))

    def _body(self, state: LeaseState) -> dict[str, Any]:
        if self._holder[0] != state.term or not self._holder[1]:
            name = _names.lease(self._key, state.term)
            self._holder = state.term, read_body(self._root, name)
        return self._holder[1]

    def _describe(self, state: LeaseState) -> str:
        holder = self._body(state)
        try:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["started"]))
            who = f"process {holder['pid']} on {holder['host']} (since {since} by its clock"
        except (KeyError, TypeError, ValueError, OverflowError):
            return "another process"
        heartbeat = read_body(self._root, _names.lease(self._key, state.term) + _names.HEARTBEAT_SUFFIX)
        progress = heartbeat.get("progress")
        if isinstance(progress, dict) and isinstance(progress.get("records"), int):
            of = f" of {progress['total']}" if isinstance(progress.get("total"), int) else ""
            who += f", {progress['records']}{of} records so far"
        return printable(f"{who})")


def verbs(key: DatasetKey | _names.WholeDataset) -> tuple[str, str]:
    """Return the verb for the work of a lease's holder, and its participle."""
    return ("prune", "pruned") if isinstance(key, _names.WholeDataset) else ("build", "built")


def note_if_this_process(holder: dict[str, Any]) -> str:
    """Return an addition to a message about a builder if the builder is this very process, else "".

    A thread may wait for another thread's build. But a thread that a builder starts and joins would wait for
    ever. The two can't be distinguished: before Python 3.14, nothing records which thread started a thread.
    """
    if (holder.get("pid"), holder.get("host")) != (os.getpid(), socket.gethostname()):
        return ""
    return (
        ": this very process. If the builder has started the thread that waits here, and waits for that "
        "thread, this never ends: interrupt it, and read the data there without the cache"
    )


def read_body(root: BucketRoot, name: str) -> dict[str, Any]:
    """Return the document in a lease's object; an empty one if it does not exist or is no JSON object."""
    try:
        document = parse_json(root.read(name, _MAX_BODY_BYTES) or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def ttl_of(holder: dict[str, Any]) -> float:
    """Return the time to live that a lease's body gives; 0 if it gives none."""
    ttl_s = holder.get("ttl_s")
    return float(min(ttl_s, 2**62)) if isinstance(ttl_s, int | float) and ttl_s == ttl_s else 0.0


_PARENT_POLL_S: Final = 0.5
_REPORT_EVERY_S: Final = 1.0
# yogadl and the SDK are imported only after this time, so that short builds cost little.
_FIRST_HEARTBEAT_S: Final = 2.0
# Until the parent's path is set, imports come from Python itself and not from the current folder.
_PYTHON: Final = (sys.executable, "-P")
_START: Final = """\
import pickle, select, sys
pipe = sys.stdin.buffer
path, first_s = pickle.load(pipe)
task = pipe.read(int.from_bytes(pipe.read(8), "little"))
select.select([pipe], [], [], first_s)
sys.path[:] = path
from yogadl.storage._leases.heartbeat import main
main(pipe, task)
"""
# The program forks and its first process exits at once, so the parent need not wait for it.
_START_TO_END: Final = """\
import os, pickle, sys
path, task = pickle.load(sys.stdin.buffer)
if os.fork():
    os._exit(0)
sys.path[:] = path
from yogadl.storage._leases.heartbeat import retry_ending
retry_ending(task)
"""
_END_RETRY_INTERVAL_S: Final = 1.0
_STOPPED_STATES: Final = ("T", "t")
# The signals that a cluster's or a system's manager sends to every process of a job at once.
_JOB_SIGNALS: Final = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip


@dataclass(frozen=True)
class HeartbeatTask:
    """The task of a heartbeat process.

    Args:
        root: The root of the lease.
        lease_name: The lease; nothing is written if it belongs to another process.
        heartbeat_name: The object that is overwritten.
        end_name: The object that is written once the parent has died.
        token: The lease's token, which marks its objects.
        interval_s: The time between two writes.
    """

    root: BucketRoot
    lease_name: str
    heartbeat_name: str
    end_name: str
    token: str
    interval_s: float


class Heartbeat:
    """This process's heartbeat, written by a child process until `stop` is called or this process dies.

    No heartbeat is written while this process is stopped (SIGSTOP, a debugger). Useless after a fork.
    """

    def __init__(self, task: HeartbeatTask) -> None:
        self._task = task
        self._pid = os.getpid()
        self._reported = time.monotonic()
        self._lock = threading.Lock()  # a thread may still report progress when another one calls `stop`
        self._is_over = False
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        # The task is sent through a pipe: it may hold credentials that other users must not see.
        command = [*_PYTHON, "-c", _START]
        with _signals_blocked():
            try:
                process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, bufsize=0)
            except OSError as error:
                raise StorageError(
                    error.errno or errno.EAGAIN,
                    f"can't start {sys.executable} to send heartbeats to other builders: {error.strerror}; "
                    "check the limits on processes and memory (ulimit -a)",
                ) from error
            # If this object is dropped, as by an interrupt, the heartbeat must end with it. At the exit of
            # this process it must go on: the thread that builds dies then, and the heartbeat reports that.
            weakref.finalize(self, _kill, process, self._pid).atexit = False
        assert process.stdin is not None
        start = pickle.dumps((sys.path, min(_FIRST_HEARTBEAT_S, self._task.interval_s)))
        task = pickle.dumps((self._pid, self._task))
        with suppress(BrokenPipeError):
            process.stdin.write(start + len(task).to_bytes(8, "little") + task)
        os.set_blocking(process.stdin.fileno(), False)
        return process

    def report(self, records: int, total: int | None, size_bytes: int) -> None:
        """Pass on the progress of the build; never waits, and skips calls that come too often."""
        now = time.monotonic()
        if now - self._reported < _REPORT_EVERY_S or os.getpid() != self._pid:
            return
        line = json.dumps({"records": records, "total": total, "bytes": size_bytes}) + "\n"
        with self._lock:
            if self._is_over:
                return
            self._reported = now
            if self._process.poll() is not None:
                _kill(self._process, self._pid)
                self._process = self._start()
            assert self._process.stdin is not None
            with suppress(BlockingIOError, BrokenPipeError):
                self._process.stdin.write(line.encode())

    def stop(self) -> None:
        """End the child process; a write in flight may still arrive. A later `report` starts no other one."""
        if os.getpid() == self._pid:  # else the lock may be held for ever
            with self._lock:
                self._is_over = True
                _kill(self._process, self._pid)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Make processes started in this block survive signals to all processes of a job.

    These processes tell other machines that this process is dead, so they must not die with it. The signals
    are blocked, a state that a child inherits from its first moment on. This process gets them at the end of
    the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _JOB_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill(process: "subprocess.Popen[bytes]", parent: int) -> None:
    if os.getpid() != parent:
        return  # in a forked child
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def main(pipe: Any, pickled: bytes) -> None:  # a buffered binary stream has no class common to all Pythons
    """Write the heartbeat of the parent process until the parent dies; then write the end of its lease.

    Args:
        pipe: The pipe from the parent, which sends its progress.
        pickled: The parent's process id, and its `HeartbeatTask`.
    """
    parent, task = pickle.loads(pickled)
    watch = _ParentWatch(pipe, parent)
    count, progress, is_ours = 0, b"{}", False
    while watch.is_parent_alive():
        is_ours = is_ours or _is_ours(task)
        if is_ours and not _is_stopped(parent):
            count += 1
            heartbeat = {"token": task.token, "count": count, "progress": json.loads(progress)}
            content = json.dumps(heartbeat).encode()
            _put_or_report(partial(task.root.write, task.heartbeat_name, content))
        progress = watch.wait(task.interval_s) or progress
    if is_ours or _is_ours(task):
        ending = {"token": task.token, "failed": "its process has died"}
        # Only if absent: the parent may have ended the lease itself right before it died.
        _put_or_report(lambda: task.root.write_if_absent(task.end_name, json.dumps(ending).encode()))


def _is_ours(task: HeartbeatTask) -> bool:
    try:
        return bool(read_body(task.root, task.lease_name).get("token") == task.token)
    except StorageError:
        return False  # read again before the next write


def end_in_background(task: HeartbeatTask, ending: bytes, retry_s: float, *, may_appear: bool) -> None:
    """Start a process that writes the end of a lease as soon as it can; it outlives this one.

    Args:
        task: The lease, with the names of its objects.
        ending: The content to write.
        retry_s: How long to try.
        may_appear: Whether the lease may still appear, because its put failed but may take effect later.
    """
    start = pickle.dumps((sys.path, pickle.dumps((task, ending, retry_s, may_appear))))
    command = [*_PYTHON, "-c", _START_TO_END]
    silent = subprocess.DEVNULL  # with our output inherited, its reader would wait for both processes to end
    with suppress(OSError, subprocess.SubprocessError), _signals_blocked():
        subprocess.run(
            command, input=start, stdout=silent, stderr=silent, start_new_session=True, check=False
        )


def retry_ending(pickled: bytes) -> None:
    """Write the end of a lease, with retries, unless the lease has become another process's."""
    task, ending, retry_s, may_appear = pickle.loads(pickled)
    deadline = time.monotonic() + retry_s
    while time.monotonic() < deadline:
        with suppress(StorageError):
            token = read_body(task.root, task.lease_name).get("token")
            if token == task.token:
                task.root.write(task.end_name, ending)
            if token is not None or not may_appear:
                return
        time.sleep(_END_RETRY_INTERVAL_S)


class _ParentWatch:
    """Read the parent's reports, and detect its death."""

    def __init__(self, pipe: Any, parent: int) -> None:
        self._pipe = pipe
        self._parent = parent
        self._is_open = True
        self._incomplete_line = b""

    def is_parent_alive(self) -> bool:
        """Return whether the parent is alive: a process gets another parent when its own dies."""
        return os.getppid() == self._parent

    def wait(self, timeout_s: float) -> bytes | None:
        """Wait until the time is over or the parent dies; return the last line that it sent."""
        deadline, last = time.monotonic() + timeout_s, None
        while self.is_parent_alive() and (left_s := deadline - time.monotonic()) > 0:
            if not self._is_open:
                time.sleep(min(left_s, _PARENT_POLL_S))
                continue
            readable, _, _ = select.select([self._pipe], [], [], min(left_s, _PARENT_POLL_S))
            if readable:
                report = self._pipe.read1()
                self._is_open = bool(report)
                *lines, self._incomplete_line = (self._incomplete_line + report).split(b"\n")
                last = lines[-1] if lines else last
        return last


def _is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode() in _STOPPED_STATES
    except OSError:
        pass  # macOS, or a hidden /proc
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(
            ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, timeout=10, check=False
        )
        return found.stdout.strip()[:1] in _STOPPED_STATES
    return False


def _put_or_report(put: Callable[[], object]) -> None:
    try:
        put()
    except StorageError as error:
        # The next write may succeed; if none does, another builder takes over, and the parent detects that.
        sys.stderr.write(f"yogadl: can't send a heartbeat to other builders: {error}\n")
