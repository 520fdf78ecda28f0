"""Local files that others cut, write over or replace while they are read: errors, no signals."""

import contextlib
import os
import resource
import time

import numpy as np
import pytest
from adopted_files import write
from inside import set_constants
from processes import Process, in_child

import yogadl
from yogadl.errors import CacheFormatError, YogaError

RECORDS = 60
VALUE_BYTES = 100_000
RUN_S = 1.5


def value_of(number, size=VALUE_BYTES):
    return bytes([number]) * size


def write_tar(path, sizes):
    samples = [{"__key__": f"{n:04d}", "bin": value_of(n, size)} for n, size in enumerate(sizes)]
    return write(path, "webdataset", samples)


def adopt(root, *counts, size=50):
    """Adopt archives of so many values of one size, and return the storage."""
    for number, count in enumerate(counts):
        write_tar(root / f"in/{number:02d}.tar", [size] * count)
    storage = yogadl.open_storage(root / "caches")
    storage.adopt(root / "in", "d", "1", format="webdataset")
    return storage


def cut_for_a_while(path, stop):
    """Cut a file and let it be as it was, again and again; then tell others to stop."""
    status, content, shares = path.stat(), path.read_bytes(), np.random.default_rng(0)
    end = time.monotonic() + RUN_S
    while time.monotonic() < end:
        os.truncate(path, int(shares.random() * len(content)))
        with path.open("r+b") as file:
            file.write(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.sched_yield()
    stop.touch()


def read_until(root, stop, mapped):
    """Read shuffled batches, again and again, until told to stop; return how many were read and refused."""
    read = refused = 0
    while not stop.exists():
        ref = yogadl.open_storage(root, mapped=mapped).fetch("d", "1")
        try:
            for batch in ref.stream(shuffle=True, shuffle_seed=read).batch(7):
                for value in batch["bin"]:
                    assert value == value_of(value[0])
                read += 1
        except CacheFormatError:
            refused += 1
    return read, refused


@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_that_is_cut_at_any_moment_ends_no_reader_and_gives_no_other_bytes(tmp_path, mapped):
    adopt(tmp_path, RECORDS, size=VALUE_BYTES)
    with Process(read_until, tmp_path / "caches", tmp_path / "stop", mapped) as reader:
        cut_for_a_while(tmp_path / "in/00.tar", tmp_path / "stop")
        read, refused = reader.result()
    assert read + refused > 3


def adopt_until(path, root, stop):
    """Adopt a file, again and again, until told to stop; return how often it was adopted and refused."""
    storage, adopted, refused = yogadl.open_storage(root), 0, 0
    while not stop.exists():
        try:
            storage.adopt(path, "d", str(adopted), format="webdataset")
            adopted += 1
        except YogaError:  # a tar that was cut where its members are listed is not one
            refused += 1
    return adopted, refused


def test_a_large_file_that_is_cut_while_it_is_adopted_ends_no_process(tmp_path):
    path = write_tar(tmp_path / "in/a.tar", [VALUE_BYTES] * 90)
    assert path.stat().st_size > 8 * 2**20
    with Process(adopt_until, path, tmp_path / "caches", tmp_path / "stop") as adopting:
        cut_for_a_while(path, tmp_path / "stop")
        adopted, refused = adopting.result()
    assert adopted + refused > 3


# A file that has its old size and its old time of change.


def _write_over(path):
    status, content = path.stat(), path.read_bytes()
    with path.open("r+b") as file:
        file.write(content.replace(value_of(3, 50), value_of(4, 50)))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replace(path):
    status = path.stat()
    other = path.parent / "other"
    other.write_bytes(path.read_bytes().replace(value_of(3, 50), value_of(4, 50)))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)


FORGERIES = pytest.mark.parametrize("forge", [_write_over, _replace])


@pytest.fixture
def forged(tmp_path):
    return adopt(tmp_path, 9, 9), tmp_path / "in/00.tar"


@FORGERIES
@pytest.mark.parametrize("held", [1, 2])
def test_a_file_with_its_old_size_and_time_is_found_by_who_has_read_it(forged, forge, monkeypatch, held):
    set_constants(monkeypatch, MOST_OPEN_FILES=held)  # known also if it is not open any more
    storage, path = forged
    ref = storage.fetch("d", "1")
    assert ref[3]["bin"] == value_of(3, 50)
    assert ref[12]["bin"] == value_of(3, 50)
    forge(path)
    for _ in range(2):
        with pytest.raises(
            CacheFormatError, match=r"00\.tar was replaced, or was written .* storage\.verify"
        ):
            ref[3]
    assert ref[12]["bin"] == value_of(3, 50)


@FORGERIES
def test_a_file_with_its_old_size_and_time_is_found_by_others_only_if_they_compare_it(forged, forge):
    storage, path = forged
    forge(path)
    assert storage.fetch("d", "1")[3]["bin"] == value_of(4, 50)  # as the page on shards says
    with pytest.raises(CacheFormatError, match=r"00\.tar were changed"):
        storage.fetch("d", "1", check=True)[3]
    with pytest.raises(CacheFormatError, match=r"00\.tar were changed"):
        storage.verify("d", "1")


def test_a_file_whose_mode_was_changed_is_read_once_it_is_fetched_again(forged):
    storage, path = forged
    ref = storage.fetch("d", "1")
    assert ref[3]["bin"] == value_of(3, 50)
    path.chmod(0o400)
    with pytest.raises(CacheFormatError, match="only its owner, mode or links were changed"):
        ref[3]
    storage.verify("d", "1")  # as the error says
    assert storage.fetch("d", "1")[3]["bin"] == value_of(3, 50)


def test_a_removed_file_is_missing_also_if_it_is_still_open(forged):
    storage, path = forged
    ref = storage.fetch("d", "1")
    assert ref[3]["bin"] == value_of(3, 50)
    path.unlink()
    with pytest.raises(CacheFormatError, match=r"00\.tar is not the file .*No such file"):
        ref[3]


# What is read by one call.


def reads_of(monkeypatch, root, sizes, chosen):
    """Adopt values of these sizes, and read some of them; return the ranges that were read of the file."""
    path = write_tar(root / "a.tar", sizes)
    storage = yogadl.open_storage(root / "caches")
    storage.adopt(path, "d", "1", format="webdataset")
    ref, reads, pread = storage.fetch("d", "1").fields("bin"), [], os.pread

    def counting(descriptor, length, position):
        reads.append((position, length))
        return pread(descriptor, length, position)

    monkeypatch.setattr(os, "pread", counting)
    found = ref.gather(chosen)
    monkeypatch.setattr(os, "pread", pread)
    values = found["bin"] if isinstance(found, dict) else found
    assert [bytes(value) for value in values] == [value_of(n, sizes[n]) for n in chosen]
    return reads


# Between two members lie what fills the first one to 512 bytes, and a header of as many.
@pytest.mark.parametrize(
    ("gap_bytes", "value_bytes", "stretch_bytes", "sizes", "calls"),
    [
        (512, 2**14, 2**20, [1024, 1024], 1),
        (511, 2**14, 2**20, [1024, 1024], 2),
        (512, 1024, 2**20, [1024, 1024, 1024], 1),
        (512, 1023, 2**20, [1024, 512, 512, 1024], 3),
        (512, 511, 2**20, [512, 512], 2),
        (512, 2**14, 4096, [1024, 1024, 512], 1),
        (512, 2**14, 2048, [1024, 1024, 512], 2),
    ],
)
def test_values_that_lie_close_together_are_read_by_one_call(
    tmp_path, monkeypatch, gap_bytes, value_bytes, stretch_bytes, sizes, calls
):
    set_constants(
        monkeypatch, READ_GAP_BYTES=gap_bytes, JOINED_VALUE_BYTES=value_bytes, STRETCH_BYTES=stretch_bytes
    )
    numbers = list(range(len(sizes)))
    assert len(reads_of(monkeypatch, tmp_path / "in", sizes, numbers[::-1])) == calls


def test_values_of_several_files_and_of_no_bytes_come_back_in_their_order(tmp_path):
    sizes = [0, 1, 700, 20_000, 0, 4096, 3, 16_384, 16_385]
    storage = yogadl.open_storage(tmp_path / "caches")
    for name in ("a", "b", "c"):
        write_tar(tmp_path / f"in/{name}.tar", sizes)
    storage.adopt(tmp_path / "in", "d", "1", format="webdataset")
    ref = storage.fetch("d", "1")
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(len(ref)), 2)).tolist()
    found = ref.gather(order)["bin"]
    assert [bytes(value) for value in found] == [value_of(n % 9, sizes[n % 9]) for n in order]
    assert ref.gather([])["bin"] == []


# The files that are held open.


def open_files(folder):
    names = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(name.startswith(str(folder)) for name in names)


def read_many(root, limit, most):
    """Read a record of each of 40 files; return how many are open then, and once the reference is gone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit or soft, hard))
    ref = yogadl.open_storage(root / "caches").fetch("d", "1")
    assert [ref[number]["bin"] for number in range(40)] == [value_of(0, 50)] * 40
    found = open_files(root / "in")
    assert found == most
    del ref
    return open_files(root / "in")


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no /proc")
@pytest.mark.parametrize(("limit", "most"), [(80, 10), (318, 39), (320, 40), (None, 40)])
def test_a_reader_holds_as_many_files_open_as_an_eighth_of_what_the_process_may(tmp_path, limit, most):
    adopt(tmp_path, *[1] * 40)
    assert in_child(read_many, tmp_path, limit, most) == 0


def read_with_few_descriptors(root):
    """Read while the process may open no more files than it has."""
    ref = yogadl.open_storage(root / "caches").fetch("d", "1")
    assert ref[0]["bin"] == ref[1]["bin"]
    others = []
    with contextlib.suppress(OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (120, hard))
        while True:
            others.append(os.open("/dev/null", os.O_RDONLY))
    found = ref[2]["bin"]
    for descriptor in others:
        os.close(descriptor)
    return found


def test_where_the_process_may_open_no_more_files_those_that_are_held_make_room(tmp_path):
    adopt(tmp_path, 1, 1, 1)
    assert in_child(read_with_few_descriptors, tmp_path) == value_of(0, 50)
