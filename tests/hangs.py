"""End runs of pytest that hang where no test has a timeout: between tests, in a worker that is lost, at exit.

Without it a run that hangs says nothing, and is ended by whoever waits for it.
"""

import contextlib
import faulthandler
import os
import signal
import threading
import time
from pathlib import Path

import pytest

EXIT_S = 120  # what is registered for the exit has run by then, and threads have ended
SILENT_S = 900  # three times what a test may take
DUMP_S = 10
STDERR = 2  # while pytest captures nothing, as at its beginning and its end


def _children() -> list[int]:
    """Return the process ids of the workers; none where the system has no such list."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


class EndsAtExit:
    """Gives the process some time to exit, once pytest has nothing more to do."""

    def __init__(self, exit_s: float = EXIT_S):
        self._exit_s = exit_s

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        faulthandler.dump_traceback_later(self._exit_s, exit=True, file=STDERR)


class EndsInSilence:
    """Ends a run whose workers have said nothing for long, with what each of their threads does."""

    def __init__(self, silent_s: float = SILENT_S):
        self._silent_s = silent_s
        self._stderr = os.dup(STDERR)
        self._heard = time.monotonic()
        threading.Thread(target=self._watch, name="hangs", daemon=True).start()

    def pytest_runtest_logreport(self) -> None:
        self._heard = time.monotonic()

    def pytest_unconfigure(self) -> None:
        self._heard = float("inf")

    def _watch(self) -> None:
        while (left := self._heard + self._silent_s - time.monotonic()) > 0:
            time.sleep(min(left, self._silent_s))
        for worker in _children():
            os.kill(worker, signal.SIGABRT)  # which pytest lets faulthandler tell of
        time.sleep(DUMP_S)
        os.write(self._stderr, f"\nNo test has ended for {self._silent_s:.0f} s.\n".encode())
        faulthandler.dump_traceback(self._stderr)
        os._exit(1)
