"""Reading ahead: the same batches and cursors, in a thread that ends when it should."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from memory_source import MemorySource, batch_ids, open_stream, stream_of

TIMEOUT_S = 30


SOME = pytest.mark.parametrize("threads", [1, 2, 4])


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "yogadl-prefetch"]


@pytest.fixture(autouse=True)
def no_reader_is_left():
    yield
    for thread in readers():
        thread.join(TIMEOUT_S)
    assert readers() == []


class GatedSource(MemorySource):
    """A source that reads only when let to, one read at a time."""

    def __init__(self, count, record_bytes=10_000_000):  # as large as that, batch by batch
        super().__init__(count, record_bytes=record_bytes)
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def columns(self, indices, fields=None, memory=None):
        self.entered.release()
        assert self.gate.acquire(timeout=TIMEOUT_S)
        return super().columns(indices)


@SOME
def test_prefetches_stack(threads):
    loader = stream_of(9).batch(2)
    for stacked in (
        loader.prefetch(2, threads=threads).prefetch(1),
        loader.prefetch(2).prefetch(1, threads=threads),
        loader.prefetch(2, threads=2).prefetch(1, threads=threads),
    ):
        assert batch_ids(stacked) == batch_ids(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]


@SOME
def test_the_threads_start_at_the_first_next(threads):
    batches = iter(stream_of(9).batch(2, epochs=None).prefetch(2, threads=threads))
    assert readers() == []
    next(batches)
    assert len(readers()) == threads
    batches.close()


def test_threads_that_can_not_be_started_leave_none_behind(monkeypatch):
    start = threading.Thread.start

    def one_alone(thread):
        if readers():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", one_alone)
    batches = iter(stream_of(9).batch(2, epochs=None).prefetch(2, threads=2))
    with pytest.raises(RuntimeError, match="can't start"):
        next(batches)
    for thread in readers():
        thread.join(TIMEOUT_S)
    assert readers() == []
    monkeypatch.undo()
    assert next(batches)["id"].tolist() == [0, 1]
    batches.close()


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize(("record_bytes", "size", "together"), [(10_000_000, 5, 1), (300_000, 1, 2)])
def test_of_many_threads_each_reads_one_piece_more_and_no_more(threads, record_bytes, size, together):
    source = GatedSource(1000, record_bytes=record_bytes)
    batches = iter(open_stream(source).batch(size).prefetch(3, threads=threads))
    for _ in range(100):
        source.gate.release()
    for _ in range(10):  # until the reads are as large as they become
        next(batches)
    most = max(3 + threads - 1, together * threads + 1) + together - 1
    for number in range(10, 20):
        while source.entered.acquire(timeout=0.02):
            pass
        assert number * size < len(source.read) <= (number + most + together) * size
        next(batches)
    batches.close()


def test_no_more_is_read_than_was_asked_for():
    source = GatedSource(100)
    batches = iter(open_stream(source).batch(5).prefetch(3))
    for _ in range(20):
        source.gate.release()
    next(batches)
    for _ in range(4):  # one delivered, three kept ready
        assert source.entered.acquire(timeout=TIMEOUT_S)
    assert not source.entered.acquire(timeout=0.05)
    assert len(source.read) == 20
    batches.close()


def test_beside_a_read_of_several_small_batches_another_is_ready_and_no_more():
    source = GatedSource(1000, record_bytes=100_000)
    batches = iter(open_stream(source).batch(8).prefetch(2))
    for _ in range(20):
        source.gate.release()
    next(batches)
    for reads, so_far in ((3, 1 + 2 + 4), (1, 1 + 2 + 4 + 4)):
        for _ in range(reads):
            assert source.entered.acquire(timeout=TIMEOUT_S)
        assert not source.entered.acquire(timeout=0.05)
        assert len(source.read) == 8 * so_far
        next(batches)
    batches.close()


@SOME
def test_loading_a_cursor_starts_again_there(threads):
    stream = stream_of(20)
    batches = iter(stream.batch(5).prefetch(3, threads=threads))
    next(batches)
    batches.load_state_dict(stream.cursor(13))
    assert batch_ids(batches) == [[13, 14, 15, 16, 17], [18, 19]]
    assert batches.state_dict()["epoch"] == 1


@SOME
def test_an_error_is_let_go_of_without_the_collector(threads):
    class FireError(Exception):
        pass

    def fails(batch):
        raise FireError

    batches = iter(stream_of(20).batch(4, collate=fails).prefetch(2, threads=threads))
    gc.disable()
    try:
        try:
            next(batches)
        except FireError as error:
            held = weakref.ref(error)
        for reader in readers():
            reader.join(TIMEOUT_S)
        assert held() is None
    finally:
        gc.enable()


@SOME
@pytest.mark.parametrize("ending", ["close", "drop"])
def test_the_threads_end_when_the_iterator_does(ending, threads):
    batches = iter(stream_of(1000).batch(1, epochs=None).prefetch(2, threads=threads))
    next(batches)
    found = readers()
    if ending == "close":
        batches.close()
    del batches
    for reader in found:
        reader.join(TIMEOUT_S)
    assert [reader.is_alive() for reader in found] == [False] * threads


@SOME
def test_a_dropped_iterator_needs_no_collector(threads):
    gc.disable()
    try:
        loader = stream_of(1000).batch(1, epochs=None).prefetch(2, threads=threads)
        for _ in loader:
            break
        for reader in readers():
            reader.join(TIMEOUT_S)
        assert readers() == []
        assert loader.state_dict()["position"] == 1
    finally:
        gc.enable()


def test_a_thread_that_is_reading_ends_after_it():
    source = GatedSource(100)
    batches = iter(open_stream(source).batch(5).prefetch(2))
    source.gate.release()
    next(batches)
    for _ in range(2):
        assert source.entered.acquire(timeout=TIMEOUT_S)
    (reader,) = readers()
    batches.close()  # does not wait for the read
    assert reader.is_alive()
    source.gate.release()
    reader.join(TIMEOUT_S)
    assert len(source.read) == 10


@SOME
def test_side_by_side(threads):
    loader = stream_of(10, shuffle=True).batch(3).prefetch(2, threads=threads)
    first, second = iter(loader), iter(loader)
    pairs = list(zip(first, second, strict=True))
    assert batch_ids(pair[0] for pair in pairs) != batch_ids(pair[1] for pair in pairs)
    assert sorted(np.concatenate([pair[1]["id"] for pair in pairs])) == list(range(10))


def ended(program):
    """Run a program, and return how it ended."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@SOME
def test_what_is_asked_for_at_the_interpreters_exit_does_not_hang(threads):
    program = f"""
import atexit
from memory_source import stream_of

@atexit.register
def late():
    try:
        while True:
            next(batches)
    except RuntimeError as error:
        print(error)

batches = iter(stream_of(10).batch(2, epochs=None).prefetch(2, threads={threads}))
next(batches)
"""
    done = ended(program)
    assert (done.returncode, done.stderr) == (0, "")
    assert "is shutting down" in done.stdout


@SOME
@pytest.mark.parametrize("ends", ["batches.close()", "del batches", "pass"])
def test_a_function_that_is_being_called_is_waited_for_at_exit(ends, threads):
    """In C++, such as PyTorch's, the interpreter's end would else be a crash."""
    script = f"""
import threading, time, yogadl
inside = threading.Event()

def slow(record):
    if record == 1:
        inside.set()
        time.sleep(1)
        print("left", flush=True)
    return record

batches = iter(yogadl.from_source([0, 1, 2]).stream().map(slow).batch(1).prefetch(1, threads={threads}))
next(batches)
inside.wait()
{ends}
print("ends", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["ends", "left"], "")


@pytest.mark.parametrize("ahead", [{}, {"threads": 1}, {"threads": 2}])
def test_an_iterator_that_several_threads_use_is_an_error_at_worst_and_never_a_crash(ahead):
    loader = open_stream(MemorySource(400, record_bytes=1_000_000)).batch(4)
    loader = loader.prefetch(3, **ahead) if ahead else loader
    errors = []

    def use(batches):
        try:
            for _ in batches:
                pass
        except ValueError as error:
            errors.append(str(error))

    for _ in range(20):
        batches = iter(loader)
        users = [threading.Thread(target=use, args=(batches,)) for _ in range(3)]
        for user in users:
            user.start()
        for user in users:
            user.join(TIMEOUT_S)
        batches.close()
    assert set(errors) <= {"generator already executing"}
