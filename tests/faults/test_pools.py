"""Pools of threads and of processes: whatever happens to a worker or to the caller, by the table of pools.py.

`tests/adapters/with_torch/test_torch_pools.py` does the same to the workers of a DataLoader.
"""

import functools
import os
import signal
import tempfile
import time

import deadly_functions as deadly
import numpy as np
import psutil
import pytest
from inside import Workers, processes
from pools import (
    COUNT,
    POSITIONS,
    RAISED,
    SCENARIOS,
    SIZE,
    TIMEOUT_S,
    are_gone,
    check_fork,
    check_scenario,
)
from processes import Process, children, fork, wait_until

import yogadl
from yogadl.errors import DatasetNotFoundError, StageError, WorkerDiedError

METHODS = ("fork", "forkserver", "spawn")


def read_ahead(stream, of_batches, **options):
    loader = stream.batch(SIZE, epochs=2)
    loader = loader.map(of_batches) if of_batches else loader
    return loader.prefetch(3, **options) if options else loader


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_threads_of_a_stream(tmp_path, threads, name, position):
    options = {"threads": threads} if threads else {}
    make = functools.partial(read_ahead, **options)
    check_scenario(make, tmp_path / "trap", name, position, of_batches=position == POSITIONS[1])


STREAMS = [  # each way to die by each method; all else forked, or by a server
    (name, position, METHODS[(row + column) % 3 if SCENARIOS[name].error is WorkerDiedError else column // 2])
    for row, name in enumerate(SCENARIOS)
    for column, position in enumerate(POSITIONS)
]


@pytest.mark.parametrize(("name", "position", "method"), STREAMS)
def test_workers_of_a_stream(tmp_path, name, position, method):
    if SCENARIOS[name].do is deadly.kill_the_server and method == "fork":
        method = "forkserver"  # else that is this process
    options = {"workers": 2, "start_method": method}
    if name == "is silent":
        options["timeout_s"] = TIMEOUT_S
    make = functools.partial(read_ahead, **options)
    of_batches = position == POSITIONS[1]
    check_scenario(make, tmp_path / "trap", name, position, pool="prefetch", of_batches=of_batches)


@pytest.mark.parametrize("method", METHODS[:2])
def test_a_forked_process_has_workers_of_its_own(tmp_path, method):
    check_fork(functools.partial(read_ahead, workers=2, start_method=method), tmp_path / "trap")


# Calls: of filters and builds. They end with an error, or have the whole result.


class Items:
    """A source with random access; a function is called with each record."""

    def __init__(self, function):
        self.function = function

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return self.function({"id": np.int64(index)})


def is_true(function, record):
    return bool(function(record))


def partition(function, first):
    return [function({"id": np.int64(index)}) for index in range(first, first + SIZE)]


def filtered(storage, function):
    ref = yogadl.from_source({"id": np.arange(COUNT)}, fingerprint="ids")
    return ref.filter(functools.partial(is_true, function), workers=2)


def built(storage, function):
    return storage.submit(Items(function), "data", "1", workers=2)


def built_in_partitions(storage, function):
    source = yogadl.partitioned.of(range(0, COUNT, SIZE), functools.partial(partition, function))
    return storage.submit(source, "data", "1", workers=2)


CALLS = {"filter": filtered, "build": built, "partitions": built_in_partitions}
DEATHS = ": 3 worker processes died during this call, the last one "
ENDINGS = {  # what happens; the errors of a filter and of builds, and their words
    "raises": (deadly.fail, StageError, LookupError, "no label"),
    "raises oddly": (deadly.fail_oddly, StageError, deadly.OddError, "7, 'odd'"),
    "raises stubbornly": (deadly.fail_stubbornly, StageError, RuntimeError, "StubbornError: stubborn"),
    "calls sys.exit": (deadly.call_exit, SystemExit, SystemExit, "^3$"),
    "is killed": (deadly.die, WorkerDiedError, WorkerDiedError, DEATHS + "of SIGKILL"),
    "leaves": (deadly.leave, WorkerDiedError, WorkerDiedError, DEATHS + "with exit code 7"),
    "is killed with who started it": (
        deadly.kill_the_server, WorkerDiedError, WorkerDiedError, "starts the workers was killed",
    ),
    "is killed once": (deadly.die_once, None, None, ""),
    "is killed once beside its child": (deadly.fork_and_die_once, None, None, ""),
    "is slow": (deadly.be_slow, None, None, ""),
    "prints, forks and starts threads": (deadly.talk, None, None, ""),
}  # fmt: skip
# By turns at each of the positions; a build reads the first record in this process.
CALLED = [
    (way, name, max(POSITIONS[(row + column) % 3], int(way == "build")))
    for column, way in enumerate(CALLS)
    for row, name in enumerate(ENDINGS)
]


@pytest.fixture
def forked(monkeypatch, request):
    """Let workers be forks of this process, but for those of two scenarios."""
    if request.node.callspec.params["name"] not in ("raises", "is killed with who started it"):
        monkeypatch.setattr(processes, "Workers", lambda work, _method, _preload: Workers(work, "fork"))


@pytest.mark.parametrize(("way", "name", "position"), CALLED)
@pytest.mark.usefixtures("forked")
def test_workers_of_a_call(storage, tmp_path, way, name, position):
    do, of_filter, of_build, words = ENDINGS[name]
    path, before = tmp_path / "trap", children()
    path.write_text(str(position))
    function = functools.partial(deadly.trap, path, do)
    error = of_filter if way == "filter" else of_build
    if error is not None:
        with pytest.raises(error, match=words) as caught:
            CALLS[way](storage, function)
        check_told(caught.value, way, position, name)
        with pytest.raises(DatasetNotFoundError):
            storage.fetch("data", "1")
        path.unlink()
    assert [int(record["id"]) for record in CALLS[way](storage, function)] == list(range(COUNT))
    child = path.with_suffix(".child")
    if child.exists():
        os.kill(int(child.read_text()), signal.SIGKILL)
    assert children() <= before
    assert storage.unfinished() == []


def check_told(error, way, position, name):
    """Check that an error says where it happened."""
    notes = "".join(getattr(error, "__notes__", []))
    place = {"filter": "filter(partial)", "build": f"partition {position} of {COUNT}"}.get(
        way, f"partition {position // SIZE} of {COUNT // SIZE}"
    )
    if name.startswith("raises"):
        assert place in str(error) + notes
        if way == "filter":
            assert error.record == position
            assert "in a worker process of filter" in error.__cause__.__notes__[0]
        elif way == "build":
            assert f"record {position} of the source" in notes
    elif "who started" not in name and name != "calls sys.exit":
        assert place in str(error)


# The caller ends.


def own(way, folder, method, waits):
    """Have workers that all stay in a function, and wait."""
    tempfile.tempdir = str(folder / "temporary")
    os.mkdir(tempfile.tempdir)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of a shell's background jobs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    first = 2 * SIZE if waits else 1  # a build reads the first record in this process
    function = functools.partial(deadly.block, folder / "at", first)
    if way != "stream":
        CALLS[way](yogadl.open_storage(folder / "caches"), function)
        return
    ref = yogadl.from_source({"id": np.arange(COUNT)})
    stream = ref.stream().map(function, spec=ref.spec)
    batches = iter(read_ahead(stream, None, workers=2, start_method=method))
    if waits:
        next(batches)
        if waits == "beside a child":
            (folder / "child").write_text(str(fork(time.sleep, 20)))
        time.sleep(1000)
    list(batches)


OWNERS = [
    ("stream", "forkserver", "", "KILL"),
    ("stream", "forkserver", "in the loop", "KILL"),
    ("stream", "forkserver", "beside a child", "KILL"),
    ("stream", "spawn", "in the loop", "KILL"),
    ("stream", "fork", "", "KILL"),
    ("stream", "fork", "beside a child", "KILL"),
    ("stream", "forkserver", "", "INT"),
    *[("stream", method, "", "TERM") for method in METHODS],
    *[(way, "forkserver", "", sent) for way in CALLS for sent in ("KILL", "INT", "TERM")],
]


@pytest.mark.parametrize(("way", "method", "waits", "sent"), OWNERS)
def test_nothing_is_left_of_a_caller_that_ends(tmp_path, way, method, waits, sent):
    (tmp_path / "at").mkdir()
    number = signal.Signals[f"SIG{sent}"]
    with Process(own, way, tmp_path, method, waits) as owner:
        one, child = psutil.Process(owner.pid), tmp_path / "child"
        # Who begins there, two workers, and the child; in the loop one worker has what it was asked for.
        most = 3 + (waits == "beside a child")
        wait_until(lambda: len(one.children(recursive=True)) == most, "all to begin")
        wait_until(lambda: len(os.listdir(tmp_path / "at")) >= (1 if waits else 2), "workers to be inside")
        pids = {each.pid for each in one.children(recursive=True)}
        if waits == "beside a child":
            wait_until(child.exists, "its number")
            pids.remove(int(child.read_text()))
        if sent == "KILL":
            os.kill(owner.pid, number)
        else:
            os.killpg(owner.pid, number)  # as a terminal and a cluster do
        wait_until(lambda: are_gone(pids), "all to end", 20)
        if sent != "KILL":
            with pytest.raises(
                AssertionError, match="ended with" + (" 1" if sent == "INT" else f" -{number:d}")
            ):
                owner.result(60)
    if sent != "TERM":
        assert os.listdir(tmp_path / "temporary") == []
    assert not list(tmp_path.rglob("*.selection"))
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.prune(unfinished=True)
    assert not list(tmp_path.glob("caches/data/parts/*"))
