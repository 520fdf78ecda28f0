"""End runs of pytest that hang where its timeouts do not reach, and say where.

That is in a test that lets no other thread run, in a worker whose end nobody hears of, between tests, and at
exit. Without it such a run says nothing, and is ended by whoever waits for it.
"""

import contextlib
import faulthandler
import functools
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

TEST_S = 330  # some more than the timeout of a test in tox.ini
EXIT_S = 120  # what is registered for the exit has run by then, and threads have ended
SILENT_S = 600  # far more than what a test may take
DUMP_S = 5
STDOUT, STDERR = 1, 2  # while pytest captures nothing, as at its beginning and its end
TELL = signal.SIGUSR2
WORKER, FOLDER, AGAIN = "PYTEST_XDIST_WORKER", "YOGADL_TEST_HANGS", "YOGADL_TEST_AGAIN"
PYTESTS_OWN = re.compile(r"/(_pytest|pluggy|xdist|execnet|threading|pytest_timeout)[/.]")


def end_what_hangs(
    config: pytest.Config, test_s: float = TEST_S, exit_s: float = EXIT_S, silent_s: float = SILENT_S
) -> None:
    """Register what ends this process, a worker or what starts workers."""
    config.pluginmanager.register(EndsATest(test_s))
    config.pluginmanager.register(EndsAtExit(exit_s))
    if WORKER in os.environ:
        let_go_in_forks(config)
        faulthandler.register(TELL, (Path(os.environ[FOLDER]) / str(os.getpid())).open("w"))
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(EndsInSilence(silent_s))


class EndsATest:
    """Ends the process of a test that takes too long, also where it keeps the interpreter's lock."""

    def __init__(self, test_s: float):
        self._test_s = test_s
        self._stderr = os.dup(STDERR)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        faulthandler.dump_traceback_later(self._test_s, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


def let_go_in_forks(config: pytest.Config) -> None:
    """Let what a worker forks hold no end of the pipes to pytest, which would miss the worker's death."""
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":
            pipes = plugin.channel.gateway._io
            nothing = os.open(os.devnull, os.O_RDWR)
            for end in pipes.infile, pipes.outfile:
                os.register_at_fork(after_in_child=functools.partial(os.dup2, nothing, end.fileno(), False))


class EndsAtExit:
    """Gives the process some time to exit, once pytest has nothing more to do."""

    def __init__(self, exit_s: float):
        self._exit_s = exit_s

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        faulthandler.dump_traceback_later(self._exit_s, exit=True, file=STDERR)


class EndsInSilence:
    """Ends a run whose workers have said nothing for long, with what each of their threads does.

    What hangs in a test ends with that test, which fails. So it is pytest or a worker that hangs between
    tests, and the run begins again, once.
    """

    def __init__(self, silent_s: float):
        if AGAIN in os.environ:
            _kill_children()  # not before: pytest would end, once its workers are gone
        self._silent_s = silent_s
        self._stdout, self._stderr = os.dup(STDOUT), os.dup(STDERR)
        self._told = tempfile.TemporaryDirectory(prefix="yogadl-hangs-")
        os.environ[FOLDER] = self._told.name
        self._heard = time.monotonic()
        self._begun: set[str] = set()
        threading.Thread(target=self._watch, name="hangs", daemon=True).start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun.add(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._begun.discard(nodeid)

    def pytest_runtest_logreport(self) -> None:
        self._heard = time.monotonic()

    def pytest_unconfigure(self) -> None:
        self._heard = float("inf")
        self._told.cleanup()

    def _watch(self) -> None:
        while (left := self._heard + self._silent_s - time.monotonic()) > 0:
            time.sleep(min(left, self._silent_s))
        faulthandler.dump_traceback(self._stderr)
        self._tell_of_workers()
        begun = ", ".join(self._begun) or "none"
        self._say(f"No test has ended for {self._silent_s:g} s. Begun and not ended: {begun}.")
        self._told.cleanup()
        if AGAIN in os.environ:
            _kill_children()
            os._exit(1)
        self._say("The run begins again, once.")
        os.environ[AGAIN] = "1"
        os.dup2(self._stdout, STDOUT)
        os.dup2(self._stderr, STDERR)
        os.execv(sys.executable, sys.orig_argv)

    def _tell_of_workers(self) -> None:
        files = list(Path(self._told.name).iterdir())
        for file in files:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.name), TELL)
        sizes: list[int] = []
        for _ in range(DUMP_S):
            before, sizes = sizes, [file.stat().st_size for file in files]
            if sizes == before and all(sizes):  # all have said what they have to say
                break
            time.sleep(1)
        for file in files:
            lines = [line for line in file.read_text().splitlines() if not PYTESTS_OWN.search(line)]
            self._say(f"Process {file.name}:", *lines)

    def _say(self, *lines: str) -> None:
        os.write(self._stderr, "\n".join(["", *lines, ""]).encode())


def _kill_children() -> None:
    """Kill the workers and stores; none where the system has no list of them."""
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            for child in (task / "children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
