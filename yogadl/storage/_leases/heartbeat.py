"""Give signs of life for a builder, from a process of its own; see `Heartbeat`.

A builder may be busy for hours without letting another thread run, as a source in C does that holds the
interpreter's lock. This process only watches that its parent lives and overwrites one small object.
"""

import errno
import json
import os
import pickle
import select
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from yogadl.errors import StorageError
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._leases.waiting import read_body

# So often the parent is looked at.
_PARENT_POLL_S: Final = 0.5
_REPORT_EVERY_S: Final = 1.0
# A build that is done before this costs next to nothing: only then all of us is loaded, and the SDK.
_FIRST_HEARTBEAT_S: Final = 2.0
# What is imported before the parent's path is known comes from Python itself, not from the current folder.
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
# It leaves its parent at once: nobody has to wait for it, nor to read what it says.
_START_TO_END: Final = """\
import os, pickle, sys
path, task = pickle.load(sys.stdin.buffer)
if os.fork():
    os._exit(0)
sys.path[:] = path
from yogadl.storage._leases.heartbeat import retry_ending
retry_ending(task)
"""
_END_AGAIN_EVERY_S: Final = 1.0
_STOPPED: Final = ("T", "t")


@dataclass(frozen=True)
class HeartbeatTask:
    """What a pulse has to do.

    Args:
        bucket: Where to write.
        lease_name: The lease, which another may turn out to have taken: then nothing is written.
        beat_name: The object that is overwritten.
        end_name: The object that is written once the parent has died.
        token: The lease's, which tells its objects from those of others.
        interval_s: How often a sign of life is due.
    """

    bucket: Bucket
    lease_name: str
    heartbeat_name: str
    end_name: str
    token: str
    interval_s: float


class Heartbeat:
    """Signs of life of this process, given by a child process until `stop` is called or this process dies.

    A process that is stopped (SIGSTOP, a debugger) gives none. Not for several threads at once; of no use
    after a fork.

    Args:
        task: What is written where.
    """

    def __init__(self, task: HeartbeatTask) -> None:
        self._task = task
        self._pid = os.getpid()
        self._reported = time.monotonic()
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        # Credentials may be among what is sent: they go through the pipe, where no other user sees them.
        command = [*_PYTHON, "-c", _START]
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, bufsize=0)
        except OSError as error:
            raise StorageError(
                error.errno or errno.EAGAIN,
                f"can't start {sys.executable}, to tell others that this build goes on: {error.strerror}",
            ) from error
        assert process.stdin is not None
        # Who is interrupted before it can say that it builds no more drops this, and is waited for no more.
        weakref.finalize(self, _end, process, self._pid)
        start = pickle.dumps((sys.path, min(_FIRST_HEARTBEAT_S, self._task.interval_s)))
        task = pickle.dumps((self._pid, self._task))
        with suppress(BrokenPipeError):
            process.stdin.write(start + len(task).to_bytes(8, "little") + task)
        os.set_blocking(process.stdin.fileno(), False)
        return process

    def report(self, records: int, total: int | None, size_bytes: int) -> None:
        """Say how far the build is; does not wait, and not every call counts."""
        now = time.monotonic()
        if now - self._reported < _REPORT_EVERY_S or os.getpid() != self._pid:
            return
        self._reported = now
        if self._process.poll() is not None:
            _end(self._process, self._pid)
            self._process = self._start()
        line = json.dumps({"records": records, "total": total, "bytes": size_bytes}) + "\n"
        assert self._process.stdin is not None
        with suppress(BlockingIOError, BrokenPipeError):
            self._process.stdin.write(line.encode())

    def stop(self) -> None:
        """End the child process; a sign of life that is on its way may still arrive."""
        _end(self._process, self._pid)


def _end(process: "subprocess.Popen[bytes]", parent: int) -> None:
    if os.getpid() != parent:
        return  # a fork of the parent has nothing to end
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def main(
    pipe: Any, pickled: bytes
) -> None:  # a buffered binary stream: no one class in all of Python's versions
    """Give signs of life for the process that sent its id and a task, until it is dead."""
    parent, task = pickle.loads(pickled)
    watch = _ParentWatch(pipe, parent)
    count, progress, is_ours = 0, b"{}", False
    while watch.lives():
        is_ours = is_ours or _is_ours(task)
        if is_ours and not _is_stopped(parent):
            count += 1
            heartbeat = {"token": task.token, "count": count, "progress": json.loads(progress)}
            _try_put(task.bucket, task.heartbeat_name, heartbeat)
        progress = watch.wait(task.interval_s) or progress
    if is_ours or _is_ours(task):
        _try_put(task.bucket, task.end_name, {"token": task.token, "failed": "its process has died"})


def _is_ours(task: HeartbeatTask) -> bool:
    try:
        return bool(read_body(task.bucket, task.lease_name).get("token") == task.token)
    except StorageError:
        return False  # it is asked again


def end_in_background(task: HeartbeatTask, ending: bytes, for_s: float, *, may_come: bool) -> None:
    """Start a process that writes that a lease is over as soon as that can be written; it outlives this one.

    Args:
        task: What is written where.
        ending: What is written.
        for_s: How long to try.
        may_come: Whether the lease may still appear: putting it failed, or so it was told.
    """
    start = pickle.dumps((sys.path, pickle.dumps((task, ending, for_s, may_come))))
    command = [*_PYTHON, "-c", _START_TO_END]
    silent = subprocess.DEVNULL  # who reads what this process prints would wait for the end of both
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            command, input=start, stdout=silent, stderr=silent, start_new_session=True, check=False
        )


def retry_ending(pickled: bytes) -> None:
    """Write that a lease is over, trying again and again, unless it is another's by then."""
    task, ending, for_s, may_come = pickle.loads(pickled)
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        with suppress(StorageError):
            token = read_body(task.bucket, task.lease_name).get("token")
            if token == task.token:
                task.bucket.put(task.end_name, ending)
            if token is not None or not may_come:
                return
        time.sleep(_END_AGAIN_EVERY_S)


class _ParentWatch:
    """Wait for what the parent says, and notice when it is gone."""

    def __init__(self, pipe: Any, parent: int) -> None:
        self._pipe = pipe
        self._parent = parent
        self._is_open = True
        self._rest = b""

    def lives(self) -> bool:
        """Return whether the parent is alive: who has lost its parent gets another one."""
        return os.getppid() == self._parent

    def wait(self, timeout_s: float) -> bytes | None:
        """Wait for so long, or less if the parent dies; return the last line that it sent."""
        deadline, last = time.monotonic() + timeout_s, None
        while self.lives() and (left_s := deadline - time.monotonic()) > 0:
            if not self._is_open:
                time.sleep(min(left_s, _PARENT_POLL_S))
                continue
            readable, _, _ = select.select([self._pipe], [], [], min(left_s, _PARENT_POLL_S))
            if readable:
                said = self._pipe.read1()
                self._is_open = bool(said)
                *lines, self._rest = (self._rest + said).split(b"\n")
                last = lines[-1] if lines else last
        return last


def _is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode() in _STOPPED
    except OSError:
        pass  # macOS, or a /proc that is hidden
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(
            ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, timeout=10, check=False
        )
        return found.stdout.strip()[:1] in _STOPPED
    return False


def _try_put(bucket: Bucket, name: str, document: dict[str, Any]) -> None:
    try:
        bucket.put(name, json.dumps(document).encode())
    except StorageError as error:
        # The next time it may succeed; if not, others take over, and the builder notices by itself.
        sys.stderr.write(f"yogadl: can't tell others that this build goes on: {error}\n")
