"""Start programs as forks of a process that has loaded their packages, so that a framework is imported once.

What is forked has imported packages and done nothing else: it has no threads and no devices. A program gets a
session, arguments, variables, a folder and files of its own, runs as `__main__`, and ends much as an
interpreter does. Where the fresh interpreter is the point of a test, start one instead.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from processes import until

TIMEOUT_S = 240


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


class Program:
    """A program that was started; what can be asked is what `subprocess.Popen` is asked."""

    def __init__(self, pid: int, code: Path, output: Path, errors: Path) -> None:
        self.pid = pid
        self._code = code
        self._output, self._errors = output, errors

    def poll(self) -> int | None:
        """Return its exit code, or ``None`` while it runs."""
        try:
            return int(self._code.read_text())
        except FileNotFoundError:
            return None

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Wait for its end and return its exit code; after too long it is killed, which is a failure."""
        for _ in until(timeout_s, f"program {self.pid} to end", self.kill):
            code = self.poll()
            if code is not None:
                return code
        raise AssertionError("unreachable")

    def send(self, number: int) -> None:
        """Send a signal to it and to all that it has started, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL to it and to all that it has started, if it has not ended."""
        self.send(signal.SIGKILL)

    def ended(self, timeout_s: float = TIMEOUT_S) -> Ended:
        """Wait for its end; return it and what was written."""
        code = self.wait(timeout_s)
        texts = (path.read_text(errors="replace") for path in (self._output, self._errors))
        return Ended(code, *texts)

    def answer(self, timeout_s: float = TIMEOUT_S) -> Any:
        """Wait for its end, which must be a good one; return the JSON of its last line."""
        ended = self.ended(timeout_s)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1])


class Warm:
    """A process that has imported some modules, and forks programs on request."""

    def __init__(
        self,
        modules: Sequence[str],
        options: Sequence[str],
        variables: dict[str, str],
        prefix: Sequence[str] = (),
    ) -> None:
        self._variables = variables
        self._folder = tempfile.TemporaryDirectory(prefix="yogadl-warm-", ignore_cleanup_errors=True)
        self._count = 0
        self._process = subprocess.Popen(
            [*prefix, sys.executable, *options, __file__, *modules],
            env=os.environ | variables | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)

    def start(
        self,
        program: str | Path,
        *arguments: object,
        variables: dict[str, str] | None = None,
        folder: Path | None = None,
        output: Path | None = None,
        errors: Path | None = None,
    ) -> Program:
        """Start a program: a file, or its text."""
        self._count += 1
        here = Path(self._folder.name)
        output = output or here / f"{self._count}.out"
        errors = errors or here / f"{self._count}.err"
        request = {
            "program": str(program) if isinstance(program, Path) else None,
            "text": None if isinstance(program, Path) else textwrap.dedent(program),
            "arguments": [str(argument) for argument in arguments],
            "variables": {**os.environ, **self._variables, **(variables or {})},
            "folder": str(folder or Path.cwd()),
            "output": str(output),
            "errors": str(errors),
            "code": str(here / f"{self._count}.code"),  # by number: ids of processes are used again
        }
        for path in (output, errors):
            path.write_bytes(b"")  # not what an earlier program wrote
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"the process that imports ended with {self._process.wait()}"
        started = Program(int(line), Path(request["code"]), output, errors)
        for _ in until(TIMEOUT_S, f"program {started.pid} to have a group of its own, for signals"):
            if started.poll() is not None or _leads(started.pid):
                break
        return started

    def run(self, program: str | Path, *arguments: object, **options: Any) -> Ended:
        """Run a program to its end."""
        return self.start(program, *arguments, **options).ended()

    def close(self) -> None:
        """End it; programs that still run go on."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()


@functools.cache
def _warm(
    pid: int,
    modules: tuple[str, ...],
    options: tuple[str, ...],
    variables: tuple[tuple[str, str], ...],
    prefix: tuple[str, ...],
) -> Warm:
    return Warm(modules, options, dict(variables), prefix)


def warm(
    *modules: str, options: tuple[str, ...] = (), prefix: tuple[str, ...] = (), **variables: str
) -> Warm:
    """Return this process's own server for these modules, which it imports with these variables.

    Args:
        modules: What it imports.
        options: Those of its interpreter.
        prefix: A command in front of its interpreter.
        variables: Of the environment, for it and its programs.
    """
    return _warm(os.getpid(), modules, options, tuple(sorted(variables.items())), prefix)


def _leads(pid: int) -> bool:
    """Return whether a process leads a group of its own."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def main(*modules: str) -> None:
    """Import, and fork a program for each line of stdin; write down how each ended."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for module in modules:
        importlib.import_module(module)
    reading, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    text = b""
    codes: dict[int, Path] = {}
    while True:
        ready, _, _ = select.select([0, reading], [], [])
        if reading in ready:
            os.read(reading, 4096)
            reap(codes)
        if 0 in ready:
            read = os.read(0, 2**16)
            if not read:
                return
            *lines, text = (text + read).split(b"\n")
            for line in lines:
                request = json.loads(line)
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for descriptor in (reading, waking, answers.fileno()):
                        os.close(descriptor)
                    become(request)
                codes[pid] = Path(request["code"])
                print(pid, file=answers)


def reap(codes: dict[int, Path]) -> None:
    """Write down how programs ended that have ended; `codes` are the files, by process id."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        code = codes.pop(pid)
        new = code.with_suffix(".new")
        new.write_text(str(os.waitstatus_to_exitcode(status)))
        new.rename(code)


def become(request: dict[str, Any]) -> NoReturn:
    """Run a program in this process, a fork, and end as an interpreter does."""
    code = 1
    try:
        os.setsid()
        for number, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND),
            (2, request["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND),
        ):
            opened = os.open(path, flags, 0o666)
            os.dup2(opened, number)
            os.close(opened)
        os.environ.clear()
        os.environ.update(request["variables"])
        os.chdir(request["folder"])
        code = execute(request)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  (whatever it is, this process ends here)
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def execute(request: dict[str, Any]) -> int:
    """Run the program as `__main__`."""
    main = types.ModuleType("__main__")
    path, text = request["program"], request["text"]
    if path:
        main.__file__ = path
        sys.path[0] = str(Path(path).parent)
        text = Path(path).read_text("utf-8")
    sys.argv = [path or "-c", *request["arguments"]]
    sys.modules["__main__"] = main
    exec(compile(text, path or "<string>", "exec"), main.__dict__)
    return 0


if __name__ == "__main__":
    main(*sys.argv[1:])
