"""A builder killed at any moment leaves nothing to read and nothing to clear, and the next one goes on."""

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inside import DatasetKey, open_table
from processes import fork, in_child, wait
from soak import few_or_many

import yogadl
from yogadl.errors import DatasetNotFoundError

RECORDS = 500
ROW_BYTES = 512
PARTS = 3  # at least
PART_BYTES = 200 * (ROW_BYTES + 8)
# What a builder reads of each sealed part to compare it with the source: of its head and its tail.
COMPARED = 2 * 17
# Every call that changes what others see goes through one of these.
STEPS = ("replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "fsync")


class Items:
    """A source with random access that notes which records were read."""

    def __init__(self, seed: int = 0, changed: range = range(0), records: int = RECORDS) -> None:
        self.rows = np.random.default_rng(0).integers(0, 255, (records, ROW_BYTES), np.uint8)
        self.rows[changed.start : changed.stop] ^= np.uint8(seed)
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append(index)
        return {"row": self.rows[index], "number": index}


class Records:
    """The same, which can only be read in order."""

    def __init__(self, *args: Any) -> None:
        self.items = Items(*args)

    @property
    def read(self) -> list[int]:
        return self.items.read

    def __iter__(self) -> Iterator[Any]:
        return (self.items[i] for i in range(len(self.items)))


# What runs in the children.


def build(root: Path, source: Any) -> list[int]:
    """Build the cache if there is none, and return which records were read from the source."""
    source.read.clear()
    storage = yogadl.open_storage(root)
    if not storage.versions("data"):
        storage.submit(source, "data", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    return list(source.read)


def call(root: Path, source: Any) -> list[int]:
    """Do the same as users do, who have a builder."""
    source.read.clear()
    yogadl.open_storage(root).cacheable("data", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))(
        lambda: source
    )()
    return list(source.read)


def replace(root: Path, source: Any) -> None:
    yogadl.open_storage(root).submit(source, "data", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))


def kill_at(step: int, function: Callable[..., Any], *args: Any, only: str = "") -> None:
    """Run a function and kill this process before its call number `step` of those that change the disk.

    With `only`, just those calls count whose last argument ends so.
    """
    calls = 0

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            if str(args[-1]).endswith(only):
                if calls == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                calls += 1
            return original(*args, **kwargs)

        return call

    for name in STEPS:
        setattr(os, name, counting(getattr(os, name)))
    function(*args)


def killed_at_step(step: int, function: Callable[..., Any], *args: Any, only: str = "") -> bool:
    code = wait(fork(partial(kill_at, only=only), step, function, *args))
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def killed_after(delay_s: float, function: Callable[..., Any], *args: Any) -> bool:
    pid = fork(function, *args)
    deadline = time.monotonic() + delay_s
    while time.monotonic() < deadline:
        time.sleep(0.0002)
    os.kill(pid, signal.SIGKILL)
    code = wait(pid)
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def fingerprint_of(root: Path) -> str | None:
    """Return the fingerprint of what can be read, every byte and record checked; None if there is nothing."""
    storage = yogadl.open_storage(root)
    try:
        ref = storage.fetch("data", "1")
    except DatasetNotFoundError:
        assert storage.versions("data") == []
        return None
    storage.verify("data", "1")
    assert ref.gather(range(RECORDS))["number"].tolist() == list(range(RECORDS))
    return ref.fingerprint


def expected(source: Any) -> str:
    with tempfile.TemporaryDirectory() as root:
        yogadl.open_storage(root).submit(source, "data", "1")
        return yogadl.open_storage(root).fetch("data", "1").fingerprint


def bounds_of(folder: Path, source: Any) -> list[int]:
    """Return the first record of each part of a build that nobody kills, and the end."""
    storage = yogadl.open_storage(folder / "whole")
    storage.submit(source, "data", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    bounds = open_table(
        storage._backend.root, storage._backend.catalogue.published(DatasetKey("data", "1")).manifest
    ).first_record.tolist()
    assert len(bounds) > PARTS
    return bounds


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def check_leftovers(root: Path, bounds: list[int], *, was_built: bool) -> None:
    """Check that a finished build left nothing of itself or of the killed one before it."""
    if was_built:
        # Killed after it had published, before it cleared what nobody needs any more: `prune` does.
        yogadl.open_storage(root).prune(grace_s=0)
    found = files(root)
    kinds = [path.rpartition(".")[2] for path in found]
    assert kinds.count("mdb") == kinds.count("idx") == len(bounds) - 1, found
    assert kinds.count("parts") == kinds.count("json") == 1, found
    assert not any("builds/" in path for path in found), found
    yogadl.open_storage(root).prune(grace_s=0)
    assert not any(path.endswith(".tmp") for path in files(root))
    assert fingerprint_of(root) is not None


def sealed_parts(root: Path) -> int:
    return len(list(root.glob("data/parts/*.mdb")))


def build_killed_at_every_step(folder: Path, kind: type) -> int:
    source = kind()
    want = expected(source)
    bounds = bounds_of(folder, source)
    step = 0
    while killed_at_step(step, build, folder / str(step), source):
        root = folder / str(step)
        found = fingerprint_of(root)
        assert found in (None, want), step
        sealed = sealed_parts(root)
        read = build(root, source)
        assert fingerprint_of(root) == want, step
        check_leftovers(root, bounds, was_built=found is not None)
        check_read(kind, read, bounds[: sealed + 1], is_built=found is not None, step=step)
        shutil.rmtree(root)
        step += 1
    check_leftovers(folder / str(step), bounds, was_built=False)
    return step


def check_read(kind: type, read: list[int], sealed: list[int], *, is_built: bool, step: Any) -> None:
    """Check that the builder that went on read no more of the source than it had to."""
    if is_built:
        assert read == [], step
    elif kind is Records:
        assert sorted(read) == list(range(RECORDS)), step
    else:
        # The last part may have come to its place without the note that it is there.
        kept = max(0, len(sealed) - 2)
        assert len(read) <= 1 + kept * COMPARED + RECORDS - sealed[kept], (step, len(read), sealed)


def build_killed_at_random(folder: Path, kills: int) -> int:
    """Kill builders so many times in all, some of them one after the other in the same folder."""
    source = Items()
    want = expected(source)
    bounds = bounds_of(folder, source)
    call(folder / "warm", source)
    longest_s = forked_s(call, folder / "timed", source)
    killed = went_on = moment = 0
    rng = random.Random(2)
    # On a machine that is busy the moments may all be too early: then there are more of them.
    while killed < kills or (not went_on and killed < 10 * kills):
        root = folder / str(moment)
        for _ in range(1 + moment % 3):
            is_killed = killed_after(rng.uniform(0, longest_s), call, root, source)
            assert fingerprint_of(root) in (None, want), moment
            killed += is_killed
            # Keep to the time that a build takes, whatever else this machine does.
            longest_s *= 0.9 if not is_killed else 1.1 if not sealed_parts(root) else 1
        sealed = sealed_parts(root)
        is_built = fingerprint_of(root) is not None
        read = call(root, source)
        assert fingerprint_of(root) == want, moment
        check_read(Items, read, bounds[: sealed + 1], is_built=is_built, step=moment)
        check_leftovers(root, bounds, was_built=is_built)
        went_on += sealed > 0 and not is_built
        shutil.rmtree(root)
        moment += 1
    return went_on


def forked_s(function: Callable[..., Any], *args: Any) -> float:
    """Return how long a function takes in a forked process."""
    started = time.monotonic()
    assert wait(fork(function, *args)) == 0
    return time.monotonic() - started


def replacing_killed_at_every_step(folder: Path) -> tuple[int, int]:
    old, new = Items(), Items(1, range(RECORDS))
    both = expected(old), expected(new)
    step = replaced = 0
    build(folder / "old", old)
    while True:
        root = folder / str(step)
        shutil.copytree(folder / "old", root)
        reader = yogadl.open_storage(root).fetch("data", "1")
        is_killed = killed_at_step(step, replace, root, new)
        found = fingerprint_of(root)
        assert found in both, step
        replaced += found == both[1]
        # Whoever had opened the old version keeps it, with parts mapped late.
        assert np.array_equal(reader.gather(range(RECORDS))["row"], old.rows)
        replace(root, new)
        assert fingerprint_of(root) == both[1], step
        shutil.rmtree(root)
        if not is_killed:
            return step, replaced
        step += 1


def replacing_killed_at_random(folder: Path, moments: int) -> None:
    """Replace again and again, killed most times, while others read all the time."""
    sources = [Items(number, range(RECORDS)) for number in range(4)]
    prints = [expected(source) for source in sources]
    root = folder / "root"
    build(root, sources[0])
    whole_s = forked_s(replace, root, sources[0])
    rng = random.Random(3)
    stop_reading, writing = os.pipe()

    def read_on() -> None:
        os.close(writing)
        os.set_blocking(stop_reading, False)
        times = 0
        while True:
            ref = yogadl.open_storage(root).fetch("data", "1")
            rows = ref.gather(range(0, RECORDS, 7))["row"]
            assert np.array_equal(rows, sources[prints.index(ref.fingerprint)].rows[::7])
            times += 1
            try:
                if os.read(stop_reading, 1) == b"":
                    break
            except BlockingIOError:
                pass
        assert times > 1

    reader = fork(read_on)
    before = 0
    for moment in range(moments):
        new = (before + 1) % 4
        killed_after(rng.uniform(0, 1.1 * whole_s), replace, root, sources[new])
        found = fingerprint_of(root)
        assert found in (prints[before], prints[new]), moment
        before = prints.index(found)
    os.close(writing)
    assert wait(reader) == 0


class FromFile:
    """A source whose records lie in a file, which nobody can see from its code and its values."""

    def __init__(self, path: Path, items: Items) -> None:
        path.write_bytes(items.rows.tobytes())
        self.path = path
        self.records = len(items)
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> dict[str, Any]:
        rows = np.fromfile(self.path, np.uint8, ROW_BYTES, offset=index * ROW_BYTES)
        return {"row": rows, "number": index}


def built_after_changes(folder: Path) -> dict[str, bool]:
    """Kill builds with two parts sealed, change their source, build: is the result what it should be?"""
    old = Items()
    bounds = bounds_of(folder, old)
    second, third = bounds[1], bounds[2]
    changes = {
        "everything": Items(1, range(RECORDS)),
        "head of the first part": Items(1, range(1)),
        "tail of the first part": Items(1, range(second - 1, second)),
        "head of the second part": Items(1, range(second, second + 1)),
        "tail of the second part": Items(1, range(third - 1, third)),
        "length": Items(records=RECORDS + 1),
        "middle of the first part": Items(1, range(second // 2, second // 2 + 1)),
    }
    found = {}
    for what, new in changes.items():
        root = folder / what
        assert killed_at_step(2, build, root, FromFile(folder / "rows", old), only=".mdb")
        assert sealed_parts(root) == 2
        replace(root, FromFile(folder / "rows", new))
        yogadl.open_storage(root).verify("data", "1")
        found[what] = yogadl.open_storage(root).fetch("data", "1").fingerprint == expected(new)
    return found


def killed_after_publishing(folder: Path, then: str) -> bool:
    """Kill a builder just before it clears its notes, replace its cache: is the result what it should be?"""
    old = Items()
    middle = bounds_of(folder, old)[1] // 2
    new = Items(1, range(middle, middle + 1))
    root = folder / "root"

    def build_and_die() -> None:
        shutil.rmtree = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        build(root, old)

    assert wait(fork(build_and_die)) == -signal.SIGKILL
    assert fingerprint_of(root) == expected(old)
    if then == "delete":
        yogadl.open_storage(root).delete("data", "1")
    replace(root, new)
    return fingerprint_of(root) == expected(new)


# The tests.


@pytest.mark.parametrize("kind", [Items, Records])
def test_a_build_killed_before_any_change_to_the_disk_is_taken_up_by_the_next_caller(
    tmp_path: Path, kind: type
) -> None:
    steps = in_child(build_killed_at_every_step, tmp_path, kind)
    assert steps > 6 * PARTS


def test_a_build_killed_at_random_moments_is_taken_up_by_the_next_caller(tmp_path: Path) -> None:
    kills, timeout_s = few_or_many((10, 240), (300, 1500))
    assert in_child(build_killed_at_random, tmp_path, kills, timeout_s=timeout_s) > 0


def test_a_replacement_killed_before_any_change_to_the_disk_leaves_the_old_version_or_the_new_one(
    tmp_path: Path,
) -> None:
    steps, replaced = in_child(replacing_killed_at_every_step, tmp_path)
    assert steps > 6 * PARTS
    assert 0 < replaced < steps / 2


def test_readers_of_a_version_whose_replacements_are_killed_at_random_see_one_of_them_whole(
    tmp_path: Path,
) -> None:
    moments, timeout_s = few_or_many((8, 240), (200, 1500))
    in_child(replacing_killed_at_random, tmp_path, moments, timeout_s=timeout_s)


def test_a_source_changed_after_a_kill_is_noticed_by_the_first_and_last_16_records_of_each_part_and_no_others(
    tmp_path: Path,
) -> None:
    """The last is the limit of what can be seen of a file: who changes it must bump the version."""
    assert in_child(built_after_changes, tmp_path) == {
        "everything": True,
        "head of the first part": True,
        "tail of the first part": True,
        "head of the second part": True,
        "tail of the second part": True,
        "length": True,
        "middle of the first part": False,
    }


@pytest.mark.parametrize("then", ["replace", "delete"])
def test_a_builder_killed_after_it_published_lends_no_parts_to_what_replaces_its_version(
    tmp_path: Path, then: str
) -> None:
    assert in_child(killed_after_publishing, tmp_path, then)


def killed_in_the_middle(root: Path, part_bytes: int | None) -> int:
    """Kill the first build of a dataset, which nobody goes on with; return what is left after a prune."""

    def source() -> Iterator[Any]:
        for _ in range(50):
            yield from Items().rows
        os.kill(os.getpid(), signal.SIGKILL)

    storage = yogadl.open_storage(root)
    assert (
        wait(
            fork(
                lambda: storage.submit(source, "data", "1", build=yogadl.BuildOptions(part_bytes=part_bytes))
            )
        )
        == -signal.SIGKILL
    )
    held = [path.stat().st_size for path in root.rglob("*") if path.is_file()]
    assert sum(held) > 25 * RECORDS * ROW_BYTES
    assert storage.datasets() == []
    storage.prune(grace_s=0)
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and path.suffix != ".holder")


@pytest.mark.parametrize("part_bytes", [None, 10 * PART_BYTES])
def test_what_a_killed_first_build_holds_is_freed_by_prune(tmp_path: Path, part_bytes: int | None) -> None:
    assert in_child(killed_in_the_middle, tmp_path, part_bytes) == 0
