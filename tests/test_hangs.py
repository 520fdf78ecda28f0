"""A run of pytest that hangs where its timeouts do not reach ends, and says where."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import os
import time

import hangs


def pytest_configure(config):
    hangs.end_what_hangs(config, test_s=2, exit_s=EXIT_S, silent_s=SILENT_S)


def pytest_sessionfinish():
    if "PYTEST_XDIST_WORKER" in os.environ:
        time.sleep(FINISH_S)
"""
LEAVES_A_THREAD = """
import threading
import time


def test_that_leaves_a_thread():
    threading.Thread(target=time.sleep, args=(60,)).start()
"""
PASSES = """
def test_nothing():
    pass
"""
KEEPS_THE_LOCK = """
import ctypes


def test_that_keeps_the_lock():
    ctypes.PyDLL(None).sleep(60)


def test_other():
    pass
"""
LEAVES_A_FORK = """
import os
import time


def test_that_dies():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    os._exit(1)


def test_other():
    pass
"""
HANGS_BEYOND_PYTHON = """
import ctypes
import sys


def test_that_lets_a_library_wait_at_exit():
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    sys.kept = make(ctypes.c_void_p(1), None, ctypes.CDLL(None).pause)  # it is called where all modules end
"""
FAILS_AND_HANGS = HANGS_BEYOND_PYTHON + "    assert not 1"
FAILS_ONCE = """
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", range(COUNT))
def test_that_fails_once(number):
    marker = Path(__file__).with_name(str(number))
    if number != 0 and not marker.exists():
        marker.touch()
        assert not number
"""
SIDE_BY_SIDE = Path(__file__).with_name("side_by_side.py")
LONG_S = 50  # for what does not hang, on a machine that others use


def run_pytest(
    folder, tests, *options, program=("-m", "pytest", "-q"), exit_s=0.5, silent_s=LONG_S, finish_s=0
):
    settings = CONFTEST.replace("EXIT_S", str(exit_s))
    settings = settings.replace("SILENT_S", str(silent_s)).replace("FINISH_S", str(finish_s))
    (folder / "conftest.py").write_text(settings)
    (folder / "test_hanging.py").write_text(tests)
    said = folder / "stdout", folder / "stderr"  # no pipes, which a fork would keep open
    with said[0].open("w") as stdout, said[1].open("w") as stderr:
        code = subprocess.run(
            [sys.executable, *program, *options, str(folder)],
            # Not as a worker of this run.
            env={
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("PYTEST_", "YOGADL_TEST_"))
            }
            | {"PYTHONPATH": str(Path(__file__).parent)}
            | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"},  # others take long
            cwd=folder,
            stdout=stdout,
            stderr=stderr,
            timeout=150,
            check=False,
        ).returncode
    return code, *(path.read_text() for path in said)


def test_an_exit_that_waits_for_a_thread(tmp_path):
    code, stdout, stderr = run_pytest(tmp_path, LEAVES_A_THREAD)
    assert code == 1
    assert "1 passed" in stdout
    assert "in _shutdown" in stderr


def test_a_worker_that_does_not_end(tmp_path):
    code, stdout, stderr = run_pytest(tmp_path, LEAVES_A_THREAD, "-n", "1", silent_s=12, finish_s=200)
    assert code == 1
    assert stderr.count("No test has ended for 12 s. Begun and not ended: none.") == 2
    assert stderr.count("in pytest_sessionfinish") == 2
    assert "_pytest" not in stderr.split("Process ")[-1]
    assert "1 passed" not in stdout


def test_what_hangs_once_is_run_again(tmp_path):
    finish_s = "0 if 'YOGADL_TEST_AGAIN' in os.environ else 200"
    silent_s = f"{LONG_S} if 'YOGADL_TEST_AGAIN' in os.environ else 6"
    code, stdout, stderr = run_pytest(
        tmp_path, PASSES, "-n", "1", exit_s=LONG_S, silent_s=silent_s, finish_s=finish_s
    )
    assert code == 0, stderr
    assert "The run begins again, once." in stderr
    assert "1 passed" in stdout


def test_a_test_that_lets_no_other_thread_run(tmp_path):
    _, stdout, stderr = run_pytest(tmp_path, KEEPS_THE_LOCK, "-n", "2")
    assert "crashed while running 'test_hanging.py::test_that_keeps_the_lock'" in stdout
    assert "1 failed, 1 passed" in stdout
    assert "in test_that_keeps_the_lock" in stderr


def test_a_worker_that_dies_while_what_it_forked_lives(tmp_path):
    _, stdout, _ = run_pytest(tmp_path, LEAVES_A_FORK, "-n", "2")
    assert "crashed while running 'test_hanging.py::test_that_dies'" in stdout
    assert "1 failed, 1 passed" in stdout


@pytest.mark.parametrize(
    ("tests", "code"), [(HANGS_BEYOND_PYTHON, 0), (FAILS_AND_HANGS, 1), (LEAVES_A_THREAD, 1)]
)
def test_what_passed_and_hangs_beyond_python_has_passed(tmp_path, tests, code):
    done, stdout, _ = run_pytest(tmp_path, tests, program=[SIDE_BY_SIDE, "--color=no", "+"])
    assert done == code
    assert "Timeout (0:00:00.500000)!" in stdout


@pytest.mark.parametrize(("options", "count", "code"), [(["-n", "2"], 3, 0), ([], 5, 0), ([], 6, 1)])
def test_a_few_that_fail_are_tried_again_alone(tmp_path, options, count, code):
    tests = FAILS_ONCE.replace("COUNT", str(count))
    done, stdout, _ = run_pytest(tmp_path, tests, program=[SIDE_BY_SIDE, *options, "+"], exit_s=LONG_S)
    assert done == code
    assert f"{count - 1} failed, 1 passed" in stdout
    assert (f"{count - 1} passed" in stdout) == (code == 0)
    assert ("Failed beside others, passed alone:" in stdout) == (code == 0)


def test_what_fails_again_has_failed(tmp_path):
    done, stdout, _ = run_pytest(
        tmp_path, PASSES + "    assert False", program=[SIDE_BY_SIDE, "+"], exit_s=LONG_S
    )
    assert done == 1
    assert stdout.count("1 failed") == 2
