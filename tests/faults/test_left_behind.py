"""A daemon thread that still reads while the interpreter is on its way out ends without a word."""

import subprocess
import sys
import threading

import numpy as np
import pytest

import yogadl

# Registered before the library's own, it is called after them: the thread must have ended, and not just have
# been stopped by the end of all. Who waits for workers that are gone may be.
_PROGRAM = """
import atexit, sys, threading
thread = None
def see():
    thread.join(0 if way == "workers" else 60)
    if way != "workers" and thread.is_alive():
        print("it goes on")
atexit.register(see)
import yogadl
from yogadl.storage._remote import opener as _remote_opening
_remote_opening.AT_ONCE_BYTES = 0
location, way = sys.argv[1:]
options = {"mirror": None} if "://" in location else {}
ref = yogadl.open_storage(location, **options).fetch("set", "1")
loader = ref.stream(shuffle=True).batch(16)
loader = {"prefetch": lambda: loader.prefetch(2), "workers": lambda: loader.prefetch(2, workers=2)}.get(
    way, lambda: loader
)()
begun = threading.Event()
def read():
    while True:
        if way == "gather":
            ref.gather(range(0, len(ref), 7))
            begun.set()
        elif way == "one":
            for number in range(0, len(ref), 50):
                ref[number]
                begun.set()
        else:
            for batch in loader:
                begun.set()
if __name__ == "__main__":
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert begun.wait(60)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    columns = {"x": np.arange(20_000), "row": np.zeros((20_000, 1500), np.uint8)}
    yogadl.open_storage(folder).submit(columns, "set", "1", build=yogadl.BuildOptions(part_bytes=2**21))
    return folder


@pytest.mark.parametrize(
    ("place", "way"),
    [
        ("folder", "prefetch"),
        ("folder", "workers"),
        ("bucket", "batches"),
        ("bucket", "prefetch"),
        ("bucket", "workers"),
        ("bucket", "gather"),
        ("bucket", "one"),
    ],
)
def test_a_daemon_that_reads_ends_without_a_word(root, tmp_path, place, way):
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    location = root.as_uri() if place == "bucket" else str(root)
    command = [sys.executable, str(program), location, way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("daemon", [False, True])
def test_while_nothing_ends_an_error_is_who_reads(root, daemon):
    ref, errors = yogadl.open_storage(root).fetch("set", "1"), []

    def fail(record):
        raise ValueError("a user's")

    def read():
        try:
            next(iter(ref.stream().map(fail).batch(2)))
        except BaseException as error:  # noqa: BLE001  (which it is, is seen below)
            errors.append(error)

    thread = threading.Thread(target=read, daemon=daemon)
    thread.start()
    thread.join()
    assert "a user's" in str(errors)
    assert not isinstance(errors[0], SystemExit)
