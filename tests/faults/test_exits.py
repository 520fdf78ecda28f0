"""Nothing is printed at the interpreter's exit, whatever is still alive, and wherever it is held."""

import itertools
import subprocess
import sys
import textwrap

import pytest
from exits import PLACES, check_quiet
from soak import few_or_many

import yogadl

PROGRAM = """
    kind, place, folder = sys.argv[1:]
    storage = yogadl.open_storage(folder)
    storage.submit({"id": np.arange(1000)}, "ids", "1")
    ref = storage.fetch("ids", "1")
    stream = ref.stream(shuffle=True)
    loader = {
        "plain": lambda: stream.batch(8),
        "thread": lambda: stream.batch(8).prefetch(2),
        "threads": lambda: stream.batch(8).prefetch(2, threads=2),
        "threads and stages": lambda: stream.batch(8).prefetch(2).map(dict).prefetch(2),
        "workers": lambda: stream.batch(8).prefetch(2, workers=2),
        "forked workers": lambda: stream.batch(8).prefetch(2, workers=2, start_method="fork"),
        "workers and a thread": lambda: stream.batch(8).prefetch(2, workers=2).prefetch(2),
        "records": lambda: stream.prefetch(2),
        "filter": lambda: ref.filter(lambda record: record["id"] % 2 == 0).stream().batch(8).prefetch(2),
    }[kind]()
    batches = iter(loader)
    next(batches)
    held = [storage, ref, stream, loader, batches]
"""
KINDS = [
    "plain", "thread", "threads", "threads and stages", "workers", "forked workers", "workers and a thread",
    "records", "filter",
]  # fmt: skip


OPTIONS = [], ["-X", "dev"]  # as users run Python, and with all its warnings
EXITS = few_or_many(  # each kind in two of the places, or in each place with each of the options
    [(kind, PLACES[(row + turn) % 3], OPTIONS[turn]) for row, kind in enumerate(KINDS) for turn in range(2)],
    [*itertools.product(KINDS, PLACES, OPTIONS)],
)


@pytest.mark.parametrize(("kind", "place", "options"), EXITS)
def test_nothing_is_printed_at_exit(kind, place, options, tmp_path):
    check_quiet(PROGRAM, kind, place, tmp_path / "caches", options=options)


# Builds that are still at work, in daemon threads: others are waited for.
BUILDS = """
    import threading

    class Endless:
        def __len__(self):
            return 10**9

        def __getitem__(self, index):
            return index

    def endless():
        for number in range(10**9):
            if number == 1000:
                begun.set()
            yield number

    kind, shared, folder = sys.argv[1:]
    place = "module"
    begun = threading.Event()
    storage = yogadl.open_storage(folder, shared=shared == "shared")
    build = storage.begin("data", "tasks", partitions=3)
    build_options = yogadl.BuildOptions(part_bytes=2**20, progress=lambda *_: begun.set())
    options = {"workers": 2, "build": build_options}
    work = {
        "submit": lambda: storage.submit(endless, "data", "1"),
        "workers": lambda: storage.submit(Endless(), "data", "1", **options),
        "cacheable": storage.cacheable("data", "1")(endless),
        "write": lambda: build.write(1, endless()),
    }[kind]
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert begun.wait(60)
    held = [storage, build, work, thread]
"""


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        ("submit", "shared"),
        ("submit", "local"),
        ("workers", "shared"),
        ("workers", "local"),
        ("cacheable", "local"),
        ("write", "shared"),
    ],
)
def test_nor_is_it_beside_a_build_and_that_ends(kind, shared, tmp_path):
    check_quiet(BUILDS, kind, shared, tmp_path / "caches", options=["-X", "dev"], timeout_s=120)


WAITED_FOR = """
    import sys, threading
    import yogadl

    def build():
        assert ended.wait(60)
        records = ({"n": number} for number in range(100_000))
        storage.submit(records, "data", "1", build=yogadl.BuildOptions(part_bytes=2**17))

    storage = yogadl.open_storage(sys.argv[1], shared=sys.argv[2] == "shared")
    ended = threading.Event()
    threading.Thread(target=build).start()
    threading._register_atexit(ended.set)  # the main thread is over, and Python waits for the other
"""


@pytest.mark.parametrize("shared", ["shared", "local"])
def test_a_build_in_a_thread_that_python_waits_for_comes_to_its_end(shared, tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(WAITED_FOR), str(tmp_path / "caches"), shared]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(yogadl.open_storage(tmp_path / "caches").fetch("data", "1")) == 100_000
