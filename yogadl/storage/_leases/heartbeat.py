"""Write a builder's heartbeat from a child process; see `Heartbeat`.

A heartbeat is a small object that is overwritten again and again, so that other machines see that the
builder is alive. A thread would not suffice: a source in C may hold the interpreter's lock for hours. When
the builder dies, the child process notices it and writes that the lease has ended.
"""

import errno
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from yogadl.errors import StorageError
from yogadl.storage._files.bucket_root import BucketRoot
from yogadl.storage._leases.waiting import read_body

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

    No heartbeat is written while this process is stopped (SIGSTOP, a debugger). Not for several threads at
    once; useless after a fork.
    """

    def __init__(self, task: HeartbeatTask) -> None:
        self._task = task
        self._pid = os.getpid()
        self._reported = time.monotonic()
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
        self._reported = now
        if self._process.poll() is not None:
            _kill(self._process, self._pid)
            self._process = self._start()
        line = json.dumps({"records": records, "total": total, "bytes": size_bytes}) + "\n"
        assert self._process.stdin is not None
        with suppress(BlockingIOError, BrokenPipeError):
            self._process.stdin.write(line.encode())

    def stop(self) -> None:
        """End the child process; a write in flight may still arrive."""
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
