"""Run functions of the tests in processes of their own, as those of other machines."""

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# As pyproject.toml has it for pytest itself.
WARNINGS = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")
_MAIN = "import hosts; hosts.main()"


class Process:
    """A fresh interpreter that runs `function(*args)`, a module's own; at the end of its block it is gone."""

    def __init__(self, function: Callable[..., Any], *args: Any, prefix: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="yogadl-process-")
        self._output = Path(self._folder.name) / "output"
        self._result = Path(self._folder.name) / "result"
        task = pickle.dumps((function.__module__, function.__name__, args, str(self._result)))
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, *WARNINGS, "-c", _MAIN],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        with self._process.stdin as pipe:
            pipe.write(task)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        self.kill()
        self._folder.cleanup()

    def result(self, timeout_s: float = 240) -> Any:
        """Wait for the end and return what the function returned; its failure is ours."""
        try:
            code: object = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = f"nothing within {timeout_s} s"
            self.kill()
        assert code == 0, f"the process ended with {code}:\n{self._output.read_text(errors='replace')}"
        return pickle.loads(self._result.read_bytes())

    def check(self) -> None:
        """Fail if it has failed."""
        if self._process.poll() not in (None, 0):
            self.result()

    def kill(self) -> None:
        """End it by SIGKILL, if it has not ended."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def processes(function: Callable[..., Any], tasks: list[tuple[Any, ...]]) -> Iterator[list[Process]]:
    """Run a function with each of several arguments, all at once."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Process(function, *task)) for task in tasks]


def wait_until(is_so: Callable[[], Any], what: str, timeout_s: float = 120) -> None:
    """Wait until something is so, and fail if that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)


def main() -> None:
    """Run what the parent sent."""
    module, name, args, result = pickle.load(sys.stdin.buffer)
    value = getattr(importlib.import_module(module), name)(*args)
    Path(result).write_bytes(pickle.dumps(value))
