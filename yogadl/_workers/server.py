"""Start worker processes through a small process in between, the *server*.

The server starts the workers, notices their deaths, and ends all of them on request or when the owner process
is gone, for any reason. The server is small and has no threads, so that forking it is safe and takes
milliseconds; its workers share the modules that it has imported. It leaves no files behind. (The fork server
of Python's library leaves its socket behind when its parent is killed, and each of its processes imports the
script that was started.)
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

# The signals that a terminal, a cluster's manager or torchrun sends to all processes of a job at once.
# Workers ignore them: the process that started the workers decides what to do, may save first, and ends the
# workers.
SENT_TO_ALL: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
# How often a worker checks that its parent lives: work that an orphan does is done twice when the build
# continues.
_WATCH_EVERY_S: Final = 0.1
METHODS: Final = ("forkserver", "spawn", "fork")
# The interval at which the server checks that its parent lives, where the kernel can't notify it.
_POLL_INTERVAL_MS: Final = 100
# To the server: a command and a worker's number. From the server: a worker's number and its exit code.
_MESSAGE: Final = struct.Struct("=ii")
_START, _KILL, _END = 0, 1, 2
# The kernel of macOS may close a descriptor in transit when its sender closes it.
KEEPS_DESCRIPTORS: Final = sys.platform == "darwin"
_DESCRIPTOR: Final = struct.Struct("=i")
_MOST_DESCRIPTORS: Final = 64
# Numbers, not members of an enumeration: arithmetic on members is slow, and Python 3.11 crashes when a
# signal handler runs at the start of it.
_CLOSED_AT_EXEC: Final = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_TRUNCATED: Final = int(socket.MSG_CTRUNC)
_CODE: Final = (
    "import sys; sys.path[:] = {path!r}; from yogadl._workers.server import main; main({arguments!r})"
)

Work = Callable[[socket.socket, int], object]


class Workers:
    """The numbered worker processes of one owner, which end with the owner, or when this object is dropped.

    Not thread-safe. In a forked process this object can't be used, and does no harm.

    Args:
        work: The function that each worker calls with its socket and its number; unless the method is "fork",
            it must belong to a module.
        method: "forkserver": the workers are forked from a server that is started empty. "spawn": each worker
            is started empty. "fork": the workers begin with the whole state of this process.
        preload: Modules that a server imports from which workers are forked, so that this takes time once.
        environment: Additional environment variables for processes that are started empty.
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
            # The server inherits the blocked signals, until it has set its handlers.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, SENT_TO_ALL)
            try:
                if method == "fork":
                    server = self._fork(theirs, work)
                else:
                    server = _spawn_server(theirs, f"{work.__module__}:{work.__qualname__}", method, preload,
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
        """Start a worker and return this process's end of its socket.

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
        """End a worker now; `death` reports it like any other that died."""
        with contextlib.suppress(OSError):
            self.control.sendall(_MESSAGE.pack(_KILL, number))

    def death(self) -> tuple[int | None, str]:
        """Wait for the next death, and return the worker's number and how it died.

        Call this when `control` is readable. The number is None if all workers died.
        """
        try:
            message = self.control.recv(_MESSAGE.size, socket.MSG_WAITALL)
        except OSError:
            message = b""
        if len(message) < _MESSAGE.size:
            return None, "with the process that started it"
        number, code = _MESSAGE.unpack(message)
        return number, _how_it_ended(code)

    @property
    def has_ended(self) -> bool:
        """Whether the workers were ended by `end`, or at this interpreter's exit."""
        return not self._end.alive

    def end(self) -> None:
        """End all workers now; all processes are gone when this returns."""
        self._end()


def _end(control: socket.socket, kept: list[socket.socket], server: int, pid: int) -> None:
    for connection in kept:
        connection.close()
    with control:
        if os.getpid() != pid:
            return
        with contextlib.suppress(OSError):  # closing is not enough: a forked process may hold the socket open
            control.sendall(_MESSAGE.pack(_END, 0))
        with contextlib.suppress(ChildProcessError):
            os.waitpid(server, 0)


def _how_it_ended(code: int) -> str:
    """Describe how a process ended, by its exit code; a negative code is a signal."""
    if code >= 0:
        return f"with exit code {code}"
    hint = ": is there enough memory?" if code == -signal.SIGKILL else ""
    return f"of {signal.Signals(-code).name}{hint}"


def received(connection: socket.socket, size: int, flags: int = 0) -> tuple[bytes, list[int] | None]:
    """Receive some bytes, and any descriptors sent with them; `socket.recv_fds` takes no flags.

    Fewer descriptors arrive than were sent if this process may open no more.
    """
    space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * _DESCRIPTOR.size)
    data, messages, state, _ = connection.recvmsg(size, space, flags | _CLOSED_AT_EXEC)
    if not (messages or state & _TRUNCATED):
        return data, None
    descriptors: list[int] = []
    for level, kind, content in messages:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            used = len(content) - len(content) % _DESCRIPTOR.size
            descriptors += [descriptor for (descriptor,) in _DESCRIPTOR.iter_unpack(content[:used])]
    return data, descriptors


def flush() -> None:
    """Write out what was printed, so that a forked process does not print it again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()


def _spawn_server(
    theirs: socket.socket, work: str, method: str, preload: Sequence[str], environment: Mapping[str, str]
) -> int:
    """Start the server as an empty process."""
    needed = preload if method == "forkserver" else ()  # a worker that is started empty shares no modules
    arguments = json.dumps([theirs.fileno(), os.getpid(), work, method, list(needed), None])
    process = subprocess.Popen(
        [*_interpreter(), _CODE.format(path=sys.path, arguments=arguments)],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        pass_fds=[theirs.fileno()],
    )
    process.returncode = 0  # this module waits for the process itself
    return process.pid


def _interpreter() -> list[str]:
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c"]  # type: ignore[attr-defined]


# The rest runs in the server and in its workers.


def main(arguments: str) -> None:
    """Run the server, or a worker, in a process that was started empty."""
    descriptor, parent, work, method, preload, number = json.loads(arguments)
    connection = socket.socket(fileno=descriptor)
    _outlive_signals()
    module, _, name = work.partition(":")
    for module_name in preload:
        # A module that is missing or fails raises its error where it is used.
        with contextlib.suppress(Exception):
            importlib.import_module(module_name)
    function = getattr(importlib.import_module(module), name)
    if number is not None:
        _work(function, connection, number, parent)
    _serve(connection, parent, function, work if method == "spawn" else None)


def _serve(control: socket.socket, parent: int, work: Work, spawned: str | None = None) -> NoReturn:
    """Start workers, report their deaths, and end all of them when the owner is gone or requests it."""
    # Objects of the process that was forked are never destroyed here: this process would crash if it
    # destroyed objects of some frameworks. The pages of all that was imported also stay shared.
    gc.freeze()
    _outlive_signals()
    os.set_blocking(control.fileno(), True)
    wakeup_reader, wakeup_writer = os.pipe()
    os.set_blocking(wakeup_writer, False)
    os.set_blocking(wakeup_reader, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wakeup_reader, select.POLLIN)
    wait_ms: int | None = _POLL_INTERVAL_MS
    with contextlib.suppress(AttributeError, OSError):  # Linux only, and not in every container
        poll.register(os.pidfd_open(parent), select.POLLIN)
        wait_ms = None
    workers: dict[int, int] = {}  # numbers by process id
    with contextlib.suppress(OSError):  # the owner is gone, or has closed its end
        while os.getppid() == parent:
            ready = [descriptor for descriptor, _ in poll.poll(wait_ms)]
            if wakeup_reader in ready:
                os.read(wakeup_reader, 4096)
            for pid, code in _ended(workers):
                control.sendall(_MESSAGE.pack(workers.pop(pid), code))
            if control.fileno() not in ready:
                continue
            message, descriptors = received(control, _MESSAGE.size)
            command, number = _MESSAGE.unpack(message) if message else (_END, 0)
            if command == _END:
                break
            if command == _START:
                assert descriptors is not None
                theirs, server = socket.socket(fileno=descriptors[0]), os.getpid()
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    control.close()
                    os.close(wakeup_reader)
                    os.close(wakeup_writer)
                    _begin(work, theirs, number, server, spawned)
                theirs.close()
                workers[pid] = number
            else:
                for pid, running in workers.items():
                    if running == number:
                        os.kill(pid, signal.SIGKILL)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    for pid in workers:
        os.waitpid(pid, 0)
    os._exit(0)


def _ended(workers: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the workers that have ended, and their exit codes."""
    found = []
    for pid in workers:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            found.append((pid, os.waitstatus_to_exitcode(status)))
    return found


def _begin(work: Work, connection: socket.socket, number: int, server: int, spawned: str | None) -> NoReturn:
    """Run a worker in this process, or replace the process by an empty one that does."""
    if spawned is not None:
        connection.set_inheritable(True)
        arguments = json.dumps([connection.fileno(), server, spawned, "", [], number])
        os.execv(sys.executable, [*_interpreter(), _CODE.format(path=sys.path, arguments=arguments)])
    _work(work, connection, number, server)


def _work(work: Work, connection: socket.socket, number: int, server: int) -> NoReturn:
    code = 1
    try:
        _outlive_signals_alone()
        _end_with(server)
        with contextlib.suppress(AttributeError, ValueError, OSError):
            # The worker is killed at the end: its output must appear before that.
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        work(connection, number)
        code = 0
    except BaseException:  # noqa: BLE001  (this process ends here after any exception)
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def _end_with(parent: int) -> None:
    """Let this process end when its parent does, whatever it is doing.

    The parent's id is compared, since a pipe may be held open by another child of the parent.
    """

    def watch() -> None:
        waiting = threading.Event()
        while os.getppid() == parent:
            waiting.wait(_WATCH_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, name="yogadl-watch", daemon=True).start()


def _outlive_signals() -> None:
    """Let this process survive the signals that are sent to all processes of a job."""
    for number in SENT_TO_ALL:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_TO_ALL)


def _outlive_signals_alone() -> None:
    """Let a worker, but no process that it starts, survive these signals: `terminate()` must work."""
    _outlive_signals()
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
