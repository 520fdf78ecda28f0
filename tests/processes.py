"""Run functions of the tests in processes of their own, which may be killed, and say how each ended."""

import contextlib
import functools
import importlib.util
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

# As pyproject.toml has it for pytest itself.
WARNINGS = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")
_OPTIONS = (*WARNINGS, "-X", "faulthandler")
_MAIN = "import sys, processes; processes.main(sys.argv[1])"
_MOUNTING_MAIN = f"import ctypes; assert ctypes.CDLL(None).unshare(0x20000) == 0  # CLONE_NEWNS\n{_MAIN}"


# What tests import, for the process of which others are forked; what is not installed is left out.
LOADED = [
    "pytest", "numpy", "psutil", "hypothesis", "processes", "cloudpickle", "yogadl.storage",
    "yogadl.storage._builds.building", "yogadl.storage._builds.executors", "yogadl._format.writer",
    "yogadl._views.chosen", "yogadl.testing",
]  # fmt: skip


@functools.cache
def _loaded() -> tuple[str, ...]:
    return tuple(name for name in LOADED if importlib.util.find_spec(name.partition(".")[0]))


def in_child(
    function: Callable[..., Any], *args: Any, prefix: Sequence[str] = (), timeout_s: float = 240
) -> Any:
    """Return what `function(*args)` returns in a process of its own; its failure is the test's."""
    with Process(function, *args, prefix=prefix) as process:
        return process.result(timeout_s)


class Process:
    """A process that runs `function(*args)`, a module's own, where warnings are errors.

    At the end of its block it is gone. It is no child of this one, but forked of one that has imported what
    tests import, and done nothing else. By the command of `mounting` it has a mount table of its own.
    """

    def __init__(self, function: Callable[..., Any], *args: Any, prefix: Sequence[str] = ()) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="yogadl-process-"))
        self._folder.chmod(0o777)  # it may become somebody else
        self._output, self._result = self._folder / "output", self._folder / "result"
        task = self._folder / "task"
        paths = [*filter(None, sys.path)]
        given = pickle.dumps((function.__module__, function.__name__, args, str(self._result)))
        task.write_bytes(pickle.dumps((paths, given)))
        from warm import warm

        server = warm(*_loaded(), options=_OPTIONS, prefix=tuple(prefix))
        main = _MOUNTING_MAIN if prefix else _MAIN
        self._process = server.start(main, task, output=self._output, errors=self._output)
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def result(self, timeout_s: float = 240) -> Any:
        """Wait for the end and return what the function returned; its failure is the test's."""
        try:
            code: object = self._process.wait(timeout_s)
        except AssertionError:
            code = f"nothing within {timeout_s} s"
        try:
            assert code == 0, f"the process ended with {code}:\n{self._output.read_text(errors='replace')}"
            return pickle.loads(self._result.read_bytes())
        finally:
            self.kill()

    def check(self) -> None:
        """Fail if it has failed."""
        if self._process.poll() not in (None, 0):
            self.result()

    def kill(self) -> None:
        """End it by SIGKILL, if it has not ended, and forget what it wrote."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # not its workers
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def main(task: str) -> None:
    """Run what the parent wrote down."""
    paths, given = pickle.loads(Path(task).read_bytes())
    sys.path[:0] = [path for path in paths if path not in sys.path]
    module, name, args, result = pickle.loads(given)
    value = getattr(importlib.import_module(module), name)(*args)
    Path(result).write_bytes(pickle.dumps(value))


@contextlib.contextmanager
def processes(function: Callable[..., Any], tasks: list[tuple[Any, ...]]) -> Iterator[list[Process]]:
    """Run a function with each of several arguments, all at once."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Process(function, *task)) for task in tasks]


def fork(function: Callable[..., Any], *args: Any) -> int:
    """Fork a process that runs `function(*args)` and ends with 0, or 1 if it raised; return its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        function(*args)
        code = 0
    except BaseException:  # noqa: BLE001  (whatever it is, this process ends here)
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def wait(pid: int, timeout_s: float = 200) -> int:
    """Wait for a forked process and return its exit code; negative is the signal that ended it."""
    for _ in until(timeout_s, f"process {pid} to end", lambda: os.kill(pid, signal.SIGKILL)):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
    raise AssertionError("unreachable")


def in_fork(function: Callable[..., Any], *args: Any, timeout_s: float = 200) -> Any:
    """Return what `function(*args)` returns in a forked process; its failure is ours. The value is JSON."""
    reading, writing = os.pipe()

    def run() -> None:
        value = json.dumps(function(*args)).encode()
        with open(writing, "wb") as file:
            file.write(value)

    pid = fork(run)
    os.close(writing)
    with open(reading, "rb") as file:
        code = wait(pid, timeout_s)
        assert code == 0, f"the forked process ended with {code}"
        return json.loads(file.read())


def until(timeout_s: float, what: str, give_up: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Yield again and again, every millisecond at first, until the deadline; then fail."""
    begun = now = time.monotonic()
    while now < begun + timeout_s:
        yield
        time.sleep(0.001 + min(0.02, (now - begun) / 50))
        now = time.monotonic()
    give_up()
    raise AssertionError(f"waited {timeout_s} s for {what}")


def wait_until(is_so: Callable[[], Any], what: str, timeout_s: float = 120) -> None:
    """Wait until something is so, and fail if that takes too long."""
    for _ in until(timeout_s, what):
        if is_so():
            return


@functools.cache
def mounting() -> tuple[str, ...] | None:
    """Return the command that gives a child a mount table of its own, if this user may have one."""
    if shutil.which("unshare") is None:
        return None
    for options in (("--mount",), ("--user", "--map-root-user", "--mount")):
        prefix = ("unshare", *options)
        probe = subprocess.run(
            [*prefix, "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"], capture_output=True
        )
        if probe.returncode == 0:
            return prefix
    return None


def children() -> set[int]:
    """Return the ids of all processes below this one: those that start workers, and the workers."""
    import psutil  # the environment `bare` has none

    return {child.pid for child in psutil.Process().children(recursive=True)}
