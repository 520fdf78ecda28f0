"""Start processes that work for this one, by a process that does nothing else.

Between this process and its workers stands one more, the *server*: it starts them, sees them die, and ends
all of them when it is told to or when this process is gone, however that came about. It is small and has no
threads, so that forking it is safe and takes milliseconds; what it has imported, its workers share. Nothing
of it is a file that could be left behind. (The fork server of Python's library leaves its socket there when
its parent is killed, and each process of it imports the script that was started.)
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from yogadl._processes import SENT_TO_ALL, end_with, how_it_ended, outlive_signals, outlive_signals_alone

METHODS: Final = ("forkserver", "spawn", "fork")
# So often the server looks whether its parent lives, where the kernel can't tell it.
_LOOK_EVERY_MS: Final = 100
_MESSAGE: Final = struct.Struct("=ii")  # START and a number; KILL and a number; a number and how it ended
_START, _KILL, _END = 0, 1, 2
# A descriptor that is on its way may be closed by the kernel of macOS when its sender closes it.
KEEPS_DESCRIPTORS: Final = sys.platform == "darwin"
_DESCRIPTOR: Final = struct.Struct("=i")
_MOST_DESCRIPTORS: Final = 64
# Numbers, not members of an enumeration: their arithmetic takes its time, and Python 3.11 crashes when a
# handler of signals is called at the start of it.
_CLOSED_AT_EXEC: Final = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_CUT: Final = int(socket.MSG_CTRUNC)
_CODE: Final = "import sys; sys.path[:] = {path!r}; from yogadl._fork_server import main; main({given!r})"

Work = Callable[[socket.socket, int], object]


class Workers:
    """The worker processes of one owner, by number. They end when it does, or when this object is dropped.

    Not thread-safe. In a forked process it is of no use, and does no harm.

    Args:
        work: What each of them does: a function of its socket and its number; but for "fork", of a module.
        method: "forkserver": they are forked by a process that is started empty. "spawn": each is started
            empty. "fork": they begin with all that this process has now.
        preload: Modules that the server imports, which takes the time once.
        environment: More variables of the environment, for processes that are started empty.
    """

    def __init__(
        self,
        work: Work,
        method: str,
        preload: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.pid = os.getpid()
        self._kept: list[socket.socket] = []
        self.control, theirs = socket.socketpair()
        with theirs:
            # The server inherits that they are blocked, until it has seen to them.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, SENT_TO_ALL)
            try:
                if method == "fork":
                    server = self._fork(theirs, work)
                else:
                    server = _spawned(theirs, f"{work.__module__}:{work.__qualname__}", method, preload,
                                      environment or {})  # fmt: skip
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._end = weakref.finalize(self, _end, self.control, self._kept, server, self.pid)

    def _fork(self, theirs: socket.socket, work: Work) -> int:
        flush()
        server = os.fork()
        if not server:
            with contextlib.suppress(BaseException):
                self.control.close()
                _serve(theirs, self.pid, work)
            os._exit(1)
        return server

    def start(self, number: int) -> socket.socket:
        """Start a worker; return our end of its socket.

        Raises:
            OSError: if the server is gone.
        """
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self.control, [_MESSAGE.pack(_START, number)], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            if KEEPS_DESCRIPTORS:
                self._kept.append(theirs)
            else:
                theirs.close()
        return ours

    def kill(self, number: int) -> None:
        """End a worker now; it is told of as any that died."""
        with contextlib.suppress(OSError):
            self.control.sendall(_MESSAGE.pack(_KILL, number))

    def death(self) -> tuple[int | None, str]:
        """Wait for the next death; return who died and how.

        Call it when there is something to read from `control`. If the number is None, all of them did.
        """
        try:
            found = self.control.recv(_MESSAGE.size, socket.MSG_WAITALL)
        except OSError:
            found = b""
        if len(found) < _MESSAGE.size:
            return None, "with the process that started it"
        number, code = _MESSAGE.unpack(found)
        return number, how_it_ended(code)

    @property
    def has_ended(self) -> bool:
        """Whether they were ended by `end`, or at this interpreter's exit."""
        return not self._end.alive

    def end(self) -> None:
        """End all of them now; they are gone when this returns."""
        self._end()


def _end(control: socket.socket, kept: list[socket.socket], server: int, pid: int) -> None:
    for connection in kept:
        connection.close()
    with control:
        if os.getpid() != pid:
            return
        with contextlib.suppress(OSError):  # not by closing: somebody who was forked may hold it open
            control.sendall(_MESSAGE.pack(_END, 0))
        with contextlib.suppress(ChildProcessError):
            os.waitpid(server, 0)


def received(connection: socket.socket, size: int, flags: int = 0) -> tuple[bytes, list[int] | None]:
    """Receive some bytes, and the descriptors that came along, if any did; `socket.recv_fds` takes no flags.

    There are fewer of them than were sent if this process may open no more.
    """
    space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * _DESCRIPTOR.size)
    data, messages, state, _ = connection.recvmsg(size, space, flags | _CLOSED_AT_EXEC)
    if not (messages or state & _CUT):
        return data, None
    found: list[int] = []
    for level, kind, content in messages:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = len(content) - len(content) % _DESCRIPTOR.size
            found += [descriptor for (descriptor,) in _DESCRIPTOR.iter_unpack(content[:whole])]
    return data, found


def flush() -> None:
    """Write out what was printed: what is forked would print it again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()


def _spawned(
    theirs: socket.socket, work: str, method: str, preload: Sequence[str], environment: Mapping[str, str]
) -> int:
    """Start a server that is empty."""
    given = json.dumps([theirs.fileno(), os.getpid(), work, method, list(preload), None])
    process = subprocess.Popen(
        [*_interpreter(), _CODE.format(path=sys.path, given=given)],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        pass_fds=[theirs.fileno()],
    )
    process.returncode = 0  # we wait for it ourselves
    return process.pid


def _interpreter() -> list[str]:
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c"]  # type: ignore[attr-defined]


# In the server, and in its workers.


def main(given: str) -> None:
    """Be the server, or a worker, of a process that has started this one empty."""
    descriptor, parent, work, method, preload, number = json.loads(given)
    connection = socket.socket(fileno=descriptor)
    outlive_signals()
    module, _, name = work.partition(":")
    for needed in preload:
        # What is not there, or fails, does so where it is used.
        with contextlib.suppress(Exception):
            importlib.import_module(needed)
    function = getattr(importlib.import_module(module), name)
    if number is not None:
        _work(function, connection, number, parent)
    _serve(connection, parent, function, work if method == "spawn" else None)


def _serve(control: socket.socket, parent: int, work: Work, spawned: str | None = None) -> NoReturn:
    """Start workers, tell of their deaths, and end all of them at the end."""
    outlive_signals()
    os.set_blocking(control.fileno(), True)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(woken, select.POLLIN)
    wait_ms: int | None = _LOOK_EVERY_MS
    with contextlib.suppress(AttributeError, OSError):  # Linux alone has it, and not in every container
        poll.register(os.pidfd_open(parent), select.POLLIN)
        wait_ms = None
    workers: dict[int, int] = {}  # numbers by process id
    with contextlib.suppress(OSError):  # the owner is gone, or has closed its end
        while os.getppid() == parent:
            ready = [descriptor for descriptor, _ in poll.poll(wait_ms)]
            if woken in ready:
                os.read(woken, 4096)
            for pid, code in _ended(workers):
                control.sendall(_MESSAGE.pack(workers.pop(pid), code))
            if control.fileno() not in ready:
                continue
            found, descriptors = received(control, _MESSAGE.size)
            what, number = _MESSAGE.unpack(found) if found else (_END, 0)
            if what == _END:
                break
            if what == _START:
                assert descriptors is not None
                theirs, server = socket.socket(fileno=descriptors[0]), os.getpid()
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    control.close()
                    os.close(woken)
                    os.close(wakes)
                    _begin(work, theirs, number, server, spawned)
                theirs.close()
                workers[pid] = number
            else:
                for pid in [pid for pid, one in workers.items() if one == number]:
                    os.kill(pid, signal.SIGKILL)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    for pid in workers:
        os.waitpid(pid, 0)
    os._exit(0)


def _ended(workers: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return which workers have ended, and with which exit codes."""
    found = []
    for pid in workers:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            found.append((pid, os.waitstatus_to_exitcode(status)))
    return found


def _begin(work: Work, connection: socket.socket, number: int, server: int, spawned: str | None) -> NoReturn:
    """Be a worker, or start an empty one in this process."""
    if spawned is not None:
        connection.set_inheritable(True)
        given = json.dumps([connection.fileno(), server, spawned, "", [], number])
        os.execv(sys.executable, [*_interpreter(), _CODE.format(path=sys.path, given=given)])
    _work(work, connection, number, server)


def _work(work: Work, connection: socket.socket, number: int, server: int) -> NoReturn:
    code = 1
    try:
        outlive_signals_alone()
        end_with(server)
        with contextlib.suppress(AttributeError, ValueError, OSError):
            # It is killed at the end: what it prints is to be seen before that.
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        work(connection, number)
        code = 0
    except BaseException:  # noqa: BLE001  (whatever it is, this process ends here)
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)
