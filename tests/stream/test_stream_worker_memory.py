"""The memory of batches from worker processes: used again, given up, and no matter of descriptors."""

import contextlib
import errno
import importlib
import os
import re
import resource
from pathlib import Path

import numpy as np
import pytest
from inside import set_constants
from processes import children, in_child
from worker_functions import half_x

import yogadl
from yogadl.errors import StorageError

COUNT = 120
ROW = 6000  # of float64: each batch of 4 is far above what is copied


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    x = np.repeat(np.arange(COUNT, dtype=float), ROW).reshape(COUNT, ROW)
    yogadl.open_storage(folder).submit({"id": np.arange(COUNT), "x": x}, "set", "1")
    return folder


def loader_of(root, is_mapped=True, epochs=4, workers=2, **options):
    loader = yogadl.open_storage(root).fetch("set", "1").stream(shuffle=True).batch(4, epochs=epochs)
    return (loader.map(half_x) if is_mapped else loader).prefetch(4, workers=workers, **options)


def check(batch):
    assert np.array_equal(batch["x"], np.repeat(batch["id"], ROW).reshape(-1, ROW))
    assert np.array_equal(batch.get("half", batch["x"] / 2), batch["x"] / 2)
    assert all(array.flags.writeable for array in batch.values())


def mapped(pid="self"):
    """Return which segments a process maps."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return set(re.findall(r"(\d+) +/memfd:yogadl-batches", maps))


def shared_bytes(pids):
    """Return how much memory of segments these processes have between them."""
    found = {}
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps").read_text()
        for number, kilobytes in re.findall(r"(\d+) +/memfd:yogadl-batches.*?\nRss: +(\d+) kB", text, re.S):
            found[number] = max(found.get(number, 0), 1024 * int(kilobytes))
    return sum(found.values())


def family():
    return [os.getpid(), *children()]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def limit(count):
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def keep_all(root, is_mapped):
    limit(64)
    loader = loader_of(root, is_mapped, epochs=8)
    batches = iter(loader)
    kept = [next(batches)]
    before = descriptors()
    kept += batches
    after = descriptors()
    for batch in kept:
        check(batch)
    return len(kept), after - before, len(mapped())


@pytest.mark.parametrize("is_mapped", [False, True])
def test_kept_batches_hold_no_descriptors(root, is_mapped):
    count, descriptors, segments = in_child(keep_all, root, is_mapped)
    assert count == 240
    assert descriptors <= 0
    assert segments >= (480 if is_mapped else 240 / 5)  # none was copied, some were sent together


def open_all():
    """Open so many files that there can be none more."""
    found = []
    with contextlib.suppress(OSError):
        while True:
            found.append(os.open(os.devnull, os.O_RDONLY))
    return found


def read_without_descriptors(root, is_mapped, spare):
    limit(64)
    batches = iter(loader_of(root, is_mapped))
    kept = [next(batches)]
    held = open_all()
    for descriptor in held[:spare]:
        os.close(descriptor)
    kept += [next(batches) for _ in range(59)]
    os.close(held.pop())
    before = len(mapped())
    for descriptor in held[spare:]:
        os.close(descriptor)
    kept += batches
    for batch in kept:
        check(batch)
    assert descriptors() < 20
    return [batch["id"].tolist() for batch in kept], before


@pytest.mark.parametrize("spare", [0, 1])  # of which two are needed, where there are two arrays
@pytest.mark.parametrize("is_mapped", [False, True])
def test_batches_are_copied_where_the_process_may_open_no_more(root, is_mapped, spare):
    found, segments = in_child(read_without_descriptors, root, is_mapped, spare)
    assert found == [batch["id"].tolist() for batch in loader_of(root, is_mapped)]
    if is_mapped or not spare:
        assert segments < 59


def starving(batch):
    """Leave the worker no descriptor."""
    open_all()
    return half_x(batch)


def read_from_starved(root):
    limit(64)
    loader = yogadl.open_storage(root).fetch("set", "1").stream().batch(4).map(starving)
    kept = list(loader.prefetch(4, workers=2))
    for batch in kept:
        check(batch)
    return len(kept)


def test_batches_are_copied_where_a_worker_may_open_no_more(root):
    assert in_child(read_from_starved, root) == COUNT // 4


def start_without_descriptors(root):
    limit(64)
    importlib.import_module("yogadl._stream.workers")  # nor could what is not loaded yet
    importlib.import_module("cloudpickle")
    loader = loader_of(root)
    batches = iter(loader)
    held = open_all()
    with pytest.raises(StorageError, match=r"worker processes of prefetch: .*\(ulimit -n\)") as caught:
        next(batches)
    assert caught.value.errno == errno.EMFILE
    for descriptor in held:
        os.close(descriptor)
    return sum(1 for _ in batches)


def test_workers_that_cannot_be_started_are_an_error_and_next_tries_again(root):
    assert in_child(start_without_descriptors, root) == COUNT


def test_beyond_a_number_of_segments_batches_are_copied(root, monkeypatch):

    set_constants(monkeypatch, MOST_SEGMENTS=20)
    before = mapped()
    kept = list(loader_of(root))
    assert len(kept) == COUNT
    assert len(mapped() - before) < 20 + 20
    for batch in kept:
        check(batch)


def pass_on(batches, count):
    """Read so many batches, and return the segments that were ever mapped meanwhile."""
    seen = set()
    for _ in range(count):
        check(next(batches))
        seen |= mapped()
    return seen


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_segments_are_used_again(root, is_mapped, workers):
    batches = iter(loader_of(root, is_mapped, epochs=None, workers=workers))
    before = mapped()
    seen = pass_on(batches, 120) - before
    # For each array: those that are asked for, as many that are free, the one that is looked at.
    assert 0 < len(seen) <= (2 if is_mapped else 1) * workers * (2 * (4 + workers) + 3)


@pytest.mark.parametrize("is_mapped", [False, True])
def test_memory_of_batches_that_are_let_go_of_is_given_up(root, is_mapped):
    before, others = mapped(), set(family())
    batches = iter(loader_of(root, is_mapped, epochs=None))
    kept = [next(batches) for _ in range(240)]
    pids = {os.getpid(), *set(family()) - others}
    most, most_bytes = len(mapped() - before), shared_bytes(pids)
    assert most >= (480 if is_mapped else 240 / 5)
    kept.clear()
    for _ in range(100):  # as one worker may be slower than the other
        pass_on(batches, 20)
        if len(mapped() - before) <= most / 2:
            break
    assert len(mapped() - before) <= most / 2
    assert shared_bytes(pids) <= most_bytes / 2
