"""Run functions of the fault tests in processes of their own, and say how each ended."""

import functools
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
from typing import Any

# As pyproject.toml has it for pytest itself.
WARNINGS = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")
_MAIN = """
import importlib, pickle, sys
with open(sys.argv[1], "rb") as file:
    module, name, args, result = pickle.load(file)
value = getattr(importlib.import_module(module), name)(*args)
with open(result, "wb") as file:
    pickle.dump(value, file)
"""


def start_child(function: Callable[..., Any], *args: Any, prefix: Sequence[str] = ()) -> "Child":
    """Start `function(*args)`, a module's own, in a fresh interpreter, where warnings are errors."""
    return Child(function, args, prefix)


def in_child(
    function: Callable[..., Any], *args: Any, prefix: Sequence[str] = (), timeout_s: float = 100
) -> Any:
    """Return what `function(*args)` returns in a fresh interpreter; its failure is the test's."""
    return start_child(function, *args, prefix=prefix).result(timeout_s)


class Child:
    """A fresh interpreter that runs one function."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], prefix: Sequence[str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="yogadl-child-"))
        self._folder.chmod(0o777)  # a child may become somebody else
        self._result = self._folder / "result"
        task = self._folder / "task"
        task.write_bytes(pickle.dumps((function.__module__, function.__name__, args, str(self._result))))
        self._errors = (self._folder / "stderr").open("w+b")
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *WARNINGS, "-X", "faulthandler", "-c", _MAIN, str(task)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=self._errors,
            stderr=self._errors,
        )

    def result(self, timeout_s: float = 100) -> Any:
        """Wait for the end and return what the function returned."""
        try:
            code, errors = self._wait(timeout_s)
            assert code == 0, f"the child ended with {code}:\n{errors}"
            return pickle.loads(self._result.read_bytes())
        finally:
            shutil.rmtree(self._folder)

    def _wait(self, timeout_s: float = 100) -> tuple[int, str]:
        """Wait for the end and return exit code (negative: the signal) and what was written."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = -1000
        self._errors.seek(0)
        errors = self._errors.read().decode(errors="replace")
        self._errors.close()
        return code, errors


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


def wait(pid: int, timeout_s: float = 60) -> int:
    """Wait for a forked process and return its exit code; negative is the signal that ended it."""
    for _ in until(timeout_s, f"process {pid} to end", lambda: os.kill(pid, signal.SIGKILL)):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
    raise AssertionError("unreachable")


def in_fork(function: Callable[..., Any], *args: Any, timeout_s: float = 60) -> Any:
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
    """Yield again and again, every millisecond, until the deadline; then fail."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        yield
        time.sleep(0.001)
    give_up()
    raise AssertionError(f"waited {timeout_s} s for {what}")


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
