"""Downloads and uploads: whole, checked and durable, or not at all, whatever the store does meanwhile."""

import hashlib
import itertools
import os
import random
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from inside import Download, ReplacedError, download_all, receive, set_constants, upload

from yogadl.errors import CacheFormatError, StorageError
from yogadl.testing import MemoryBucket

SIZES = [0, 1, 4095, 4096, 4097, 65_536, 100_003]


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch):
    """Make ranges so small that small objects have many."""
    set_constants(monkeypatch, LEAST_RANGE_BYTES=4096, MOST_RANGE_BYTES=4096, WRITE_BYTES=4096)


def content(size_bytes):
    return random.Random(size_bytes).randbytes(size_bytes)


def wanted(folder, name, data, *, knows_size=True):
    size_bytes = len(data) if knows_size else None
    return Download(name, hashlib.sha256(data).hexdigest(), size_bytes, folder / "below" / name)


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def download(bucket, one, **more):
    download_all(bucket, [one], **more)


class Altered:
    """A bucket in which something happens at each get, before or after it is answered."""

    def __init__(self, bucket, on_get):
        self._bucket = bucket
        self._on_get = on_get
        self._lock = threading.Lock()
        self.gets = 0

    def __getattr__(self, name):
        return getattr(self._bucket, name)

    @contextmanager
    def get(self, name, start=0, stop=None, **more):
        with self._lock:
            self.gets += 1
            self._on_get(self.gets, name, start)
        with self._bucket.get(name, start, stop, **more) as body:
            yield body


@pytest.mark.parametrize("knows_size", [True, False])
@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_download_gives_the_same_bytes(tmp_path, size_bytes, knows_size):
    bucket, data = MemoryBucket(chunk_bytes=1000), content(size_bytes)
    bucket.put("object", data)
    one = wanted(tmp_path, "object", data, knows_size=knows_size)
    download(bucket, one)
    assert one.path.read_bytes() == data
    assert files_in(tmp_path) == ["below/object"]


def test_what_was_uploaded_comes_back_from_every_store(any_place, tmp_path):
    bucket = any_place.open()
    datas = {f"folder/object-{size}": content(size) for size in SIZES}
    for number, (name, data) in enumerate(datas.items()):
        path = tmp_path / str(number)
        path.write_bytes(data)
        upload(bucket, name, path)
    assert [found.name for found in bucket.list("folder/")] == sorted(datas)
    download_all(bucket, [wanted(tmp_path / "back", name, data) for name, data in datas.items()])
    for name, data in datas.items():
        assert (tmp_path / "back" / "below" / name).read_bytes() == data


@pytest.mark.parametrize("connections", [1, 2, 32])
def test_many_objects_come_over_few_or_many_connections(tmp_path, connections):
    bucket, datas = MemoryBucket(), {f"object-{number}": content(number * 997) for number in range(50)}
    for name, data in datas.items():
        bucket.put(name, data)
    download_all(
        bucket, [wanted(tmp_path, name, data) for name, data in datas.items()], connections=connections
    )
    assert {name: (tmp_path / "below" / name).read_bytes() for name in datas} == datas


def test_nothing_to_bring_is_no_error():
    said = []
    download_all(MemoryBucket(), [], progress=lambda done, total: said.append((done, total)))
    assert said[-1] == (0, 0)


def test_progress_only_grows_and_ends_with_all_of_it(tmp_path):
    bucket, datas = MemoryBucket(chunk_bytes=512), {f"object-{n}": content(20_000 + n) for n in range(5)}
    for name, data in datas.items():
        bucket.put(name, data)
    said = []
    threads = set()

    def progress(done, total):
        said.append((done, total))
        threads.add(threading.current_thread())

    download_all(bucket, [wanted(tmp_path, name, data) for name, data in datas.items()], progress=progress)
    total = sum(map(len, datas.values()))
    assert said[-1] == (total, total)
    assert said == sorted(said)
    assert threads == {threading.current_thread()}


def test_an_error_in_progress_is_the_callers_and_leaves_nothing(tmp_path):
    bucket, data = MemoryBucket(), content(50_000)
    bucket.put("object", data)

    def progress(done, total):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        download(bucket, wanted(tmp_path, "object", data), progress=progress)
    assert not [name for name in files_in(tmp_path) if name != "below/object"]


def test_a_missing_object_is_named(tmp_path):
    data = content(10_000)
    with pytest.raises(CacheFormatError, match="object is missing"):
        download(MemoryBucket(), wanted(tmp_path, "object", data))
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    ("size_bytes", "claimed_bytes"),
    [
        *((size_bytes, 10_000) for size_bytes in (0, 1, 9_999, 10_001, 20_000)),
        (10_000, 2**50),
        (10_000, 2**62),
    ],
)
def test_an_object_of_another_size_is_refused_before_anything_is_made_of_it(
    tmp_path, size_bytes, claimed_bytes
):
    bucket, sha256 = MemoryBucket(), hashlib.sha256(content(10_000)).hexdigest()
    bucket.put("object", content(size_bytes))
    with pytest.raises(CacheFormatError, match=f"object in .* has {size_bytes} bytes, not {claimed_bytes}"):
        download(bucket, Download("object", sha256, claimed_bytes, tmp_path / "object"))
    assert files_in(tmp_path) == []


def test_an_altered_object_is_refused_after_a_second_try(tmp_path):
    data = bytearray(content(10_000))
    one = wanted(tmp_path, "object", bytes(data))
    data[5_000] ^= 1
    memory = MemoryBucket()
    memory.put("object", bytes(data))
    bucket = Altered(memory, lambda number, name, start: None)
    with pytest.raises(CacheFormatError, match=r"object in .* has other bytes than its name says"):
        download(bucket, one)
    assert bucket.gets == 2 * 3
    assert files_in(tmp_path) == []


def test_bytes_that_were_altered_on_the_way_once_come_right_the_second_time(tmp_path):
    data = content(10_000)
    memory = MemoryBucket()

    def on_get(number, name, start):
        memory._objects["object"] = (memory._objects["object"][0], data if number > 3 else bytes(10_000))

    memory.put("object", data)
    one = wanted(tmp_path, "object", data)
    said = []
    download(Altered(memory, on_get), one, progress=lambda done, total: said.append(done))
    assert one.path.read_bytes() == data
    assert said[-1] == len(data)


@pytest.mark.parametrize(("moments", "is_other"), [({5}, True), ({3, 15}, False)], ids=["others", "its own"])
def test_an_object_replaced_between_two_ranges_is_never_mixed(tmp_path, moments, is_other):
    new, memory = content(40_000), MemoryBucket()
    memory.put("object", content(40_001)[:40_000] if is_other else new)

    def on_get(number, name, start):
        if number in moments:
            memory.put("object", new)

    one = wanted(tmp_path, "object", new)
    download(Altered(memory, on_get), one, progress=None)
    assert one.path.read_bytes() == new


def test_an_object_replaced_all_the_time_is_an_error_in_the_end(tmp_path):
    data, memory = content(40_000), MemoryBucket()
    memory.put("object", data)

    def on_get(number, name, start):
        memory.put("object", data)

    with pytest.raises(ReplacedError, match="was replaced"):
        download(Altered(memory, on_get), wanted(tmp_path, "object", data))
    assert files_in(tmp_path) == []


def test_the_first_failure_ends_all_and_keeps_what_is_finished(tmp_path):
    memory, datas = MemoryBucket(), {f"object-{number:03}": content(20_000 + number) for number in range(60)}
    for name, data in datas.items():
        memory.put(name, data)
    before = {*threading.enumerate()}
    failing = threading.Event()

    def on_get(number, name, start):
        if name == "object-010":
            failing.set()
            raise StorageError(13, "no credentials any more")
        if name > "object-010":
            time.sleep(0.1)

    @contextmanager
    def guard(one):
        if one.name > "object-010":  # not all of them before the failure is known
            assert failing.wait(60)
        yield lambda: None

    all_of_them = [wanted(tmp_path, name, data) for name, data in datas.items()]
    with pytest.raises(StorageError, match="no credentials any more"):
        download_all(Altered(memory, on_get), all_of_them, connections=4, guard=guard)
    names = files_in(tmp_path)
    assert all((tmp_path / name).read_bytes() == datas[Path(name).name] for name in names)
    assert "below/object-059" not in names
    assert not [one for one in {*threading.enumerate()} - before if one.name.startswith("yogadl-")]


def test_a_file_in_the_way_is_replaced_only_by_the_right_bytes(tmp_path):
    memory, data = MemoryBucket(), content(10_000)
    memory.put("object", bytes(10_000))
    one = wanted(tmp_path, "object", data)
    one.path.parent.mkdir()
    one.path.write_bytes(b"before")
    with pytest.raises(CacheFormatError):
        download(memory, one)
    assert one.path.read_bytes() == b"before"
    memory.put("object", data)
    download(memory, one)
    assert one.path.read_bytes() == data


def test_a_folder_that_may_not_be_written_is_one_error_of_the_storage(tmp_path):
    memory, data = MemoryBucket(), content(10_000)
    memory.put("object", data)
    (tmp_path / "below").write_bytes(b"a file where the folder should be")
    with pytest.raises(StorageError, match=r"can't write .*below"):
        download(memory, wanted(tmp_path, "object", data))


def test_memory_stays_small_however_large_the_object_is(tmp_path, monkeypatch):
    import tracemalloc

    monkeypatch.undo()  # with the ranges that users have
    data = os.urandom(2**20) * 96
    memory = MemoryBucket()
    memory.put("object", data)
    one = wanted(tmp_path, "object", data)
    tracemalloc.start()
    try:
        download(memory, one)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert one.path.stat().st_size == len(data)
    assert most_bytes < 56 * 2**20


def test_writes_that_the_system_cuts_short_are_gone_on_with(tmp_path, monkeypatch):
    write, counts = os.pwrite, []

    def cut_short(descriptor, data, position):
        counts.append(write(descriptor, data[:997], position))
        return counts[-1]

    monkeypatch.setattr(os, "pwrite", cut_short)
    monkeypatch.setattr(os, "pwritev", lambda to, chunks, at: cut_short(to, memoryview(b"".join(chunks)), at))
    memory, data = MemoryBucket(), content(10_000)
    memory.put("object", data)
    one = wanted(tmp_path, "object", data)
    download(memory, one)
    assert one.path.read_bytes() == data
    assert sum(counts) == len(data)
    assert max(counts) == 997


def test_a_store_that_loses_what_it_took_is_found_out(tmp_path):
    class Forgetful(MemoryBucket):
        def head(self, name):
            return None

    (tmp_path / "file").write_bytes(b"some")
    with pytest.raises(StorageError, match=r"has nothing under object right after 4 bytes were put there"):
        upload(Forgetful(), "object", tmp_path / "file")


def test_ranges_cover_an_object_once_in_order(monkeypatch):
    monkeypatch.undo()
    for size_bytes in [1, 8 * 2**20, 8 * 2**20 + 1, 10**9, 2**36 + 1]:
        spans = receive.ranges_of(size_bytes)
        assert spans[0][0] == 0
        assert spans[-1][1] == size_bytes
        assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(spans))
        assert all(start < stop for start, stop in spans)
