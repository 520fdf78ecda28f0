"""A run of pytest that hangs outside of a test ends, and says where."""

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = """
import os
import time

import hangs


def pytest_configure(config):
    config.pluginmanager.register(hangs.EndsAtExit(0.5))
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(hangs.EndsInSilence(2))


def pytest_sessionfinish():
    if "PYTEST_XDIST_WORKER" in os.environ:
        time.sleep(60)
"""
HANGS = """
import threading
import time


def test_that_leaves_a_thread():
    threading.Thread(target=time.sleep, args=(60,)).start()
"""


def run_pytest(folder, *options):
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_hanging.py").write_text(HANGS)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)],
        # Not as a worker of this run.
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_an_exit_that_waits_for_a_thread(tmp_path):
    done = run_pytest(tmp_path)
    assert done.returncode == 1
    assert "1 passed" in done.stdout
    assert "in _shutdown" in done.stderr


def test_a_worker_that_does_not_end(tmp_path):
    done = run_pytest(tmp_path, "-n", "1")
    assert done.returncode == 1
    assert "No test has ended for 2 s." in done.stderr
    assert "in pytest_sessionfinish" in done.stderr
