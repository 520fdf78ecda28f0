"""A folder that can only be read is read without a single write; building there is one clear error."""

import contextlib
import io
import os
import pickle
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import in_child, mounting

import yogadl
from yogadl.cli import main
from yogadl.errors import ConfigurationError, DatasetNotFoundError, StorageError

RECORDS = 500


def make_caches(root: Path) -> None:
    storage = yogadl.open_storage(root)
    storage.submit(
        ({"i": i, "text": "x" * (i % 9)} for i in range(RECORDS)),
        "data",
        "1",
        build=yogadl.BuildOptions(part_bytes=2000),
    )
    storage.submit(np.arange(3), "data", "2")
    storage.delete("data", "2")


def remount(root: Path) -> None:
    """Make the folder read-only for this process and its children, whoever they are."""
    subprocess.run(["mount", "--bind", str(root), str(root)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(root)], check=True)


def become_nobody(_: Path) -> None:
    """Give up being root, so that the folder's permissions count."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def change_nothing(_: Path) -> None:
    """Leave everything as it is: the permissions were taken away already."""


def read_and_fail_to_write(root: Path, restrict: Callable[[Path], None]) -> None:
    use(root)
    with tempfile.TemporaryDirectory() as other:
        make_caches(Path(other))  # now everything that is imported late has been
    before = snapshot(root)
    restrict(root)
    use(root)
    storage = yogadl.open_storage(root)
    build_new = storage.cacheable("new", "1")(lambda: [1])
    calls: list[Callable[[], Any]] = [
        lambda: storage.submit([1, 2], "data", "1"),
        lambda: storage.submit([1, 2], "new", "1"),
        build_new,
        lambda: storage.begin("new", "1", partitions=1).write(0, [1]),
        lambda: storage.delete("data", "1"),
        lambda: storage.undelete("data", "2"),
        lambda: storage.prune(grace_s=0),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(StorageError) as caught:
            call()
        assert "not writable" in str(caught.value), (number, caught.value)
        assert str(root) in str(caught.value), (number, caught.value)
    assert snapshot(root) == before
    with pytest.raises(StorageError, match="not writable"):
        yogadl.open_storage(root / "below").submit([1], "data", "1")


def use(root: Path) -> None:
    """Do all that needs no write, including a cacheable whose cache is there."""
    storage = yogadl.open_storage(root)
    ref = storage.fetch("data", "1")
    assert ref.gather(range(RECORDS))["i"].tolist() == list(range(RECORDS))
    assert len(list(ref.stream(shuffle=True).batch(32).prefetch(2))) == 16
    assert pickle.loads(pickle.dumps(ref))[7]["text"] == "x" * 7
    assert storage.verify("data", "1").records == RECORDS
    assert storage.datasets() == ["data"]
    assert storage.versions("data") == ["1"]
    assert storage.info("data", "1").records == RECORDS

    @storage.cacheable("data", "1")
    def never() -> Any:
        raise AssertionError("it is built already")

    assert len(never()) == RECORDS
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("data", "3")


def filter_in_memory(root: Path, restrict: Callable[[Path], None]) -> None:
    """Filter twice; the second time nothing is called, though nothing could be written."""
    restrict(root)
    ref = yogadl.open_storage(root).fetch("data", "1")
    before, calls = snapshot(root), 0

    def is_odd(record: Any) -> bool:
        nonlocal calls
        calls += 1
        return bool(record["i"] % 2)

    is_odd.__yogadl_version__ = "odd"  # type: ignore[attr-defined]  # what it counts is no part of it
    for _ in range(2):
        assert ref.filter(is_odd).gather(range(RECORDS // 2))["i"].tolist() == list(range(1, RECORDS, 2))
    assert calls == RECORDS
    assert snapshot(root) == before


def read_offline(root: Path, restrict: Callable[[Path], None]) -> None:
    """Read from a filled mirror that can't be written, without its bucket."""
    url, before = (root / "bucket").as_uri(), {}
    for is_restricted in (False, True):  # now everything that is imported late has been
        if is_restricted:
            before = snapshot(root)
            restrict(root / "mirror")
        ref = yogadl.open_storage(url, mirror=root / "mirror", offline=True).fetch("data", "1")
        assert ref.gather(range(RECORDS))["i"].tolist() == list(range(RECORDS))
        assert len(list(ref.stream(shuffle=True).batch(32).prefetch(2))) == 16
        assert pickle.loads(pickle.dumps(ref))[7]["text"] == "x" * 7
    assert snapshot(root) == before


def fill_mirror(root: Path) -> None:
    make_caches(root / "bucket")
    url = (root / "bucket").as_uri()
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["pull", "data", "1", "--from", url, "--mirror", str(root / "mirror")]) == 0


def examine(root: Path, restrict: Callable[[Path], None]) -> None:
    """Have `doctor` examine it, which tells what can't be written, and goes on."""
    restrict(root)
    for words, code in (([], 1), (["--read-only"], 0)):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert main(["doctor", str(root), *words]) == code, said.getvalue()
        assert "open files" in said.getvalue()
        assert (("not writable" in said.getvalue()), ("--read-only" in said.getvalue())) == (code == 1,) * 2


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in sorted(root.rglob("*"))
    }


@pytest.mark.skipif(mounting() is None, reason="this user may not mount")
def test_a_folder_on_a_read_only_disk_can_be_read_and_nothing_else(tmp_path: Path) -> None:
    make_caches(tmp_path)
    in_child(read_and_fail_to_write, tmp_path, remount, prefix=mounting())


@pytest.mark.skipif(mounting() is None, reason="this user may not mount")
def test_a_filled_mirror_on_a_read_only_disk_is_read_offline(tmp_path: Path) -> None:
    fill_mirror(tmp_path)
    in_child(read_offline, tmp_path, remount, prefix=mounting())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_filled_mirror_of_another_user_is_read_offline(seen_by_all: Path) -> None:
    fill_mirror(seen_by_all)
    in_child(read_offline, seen_by_all, become_nobody)


@pytest.mark.skipif(mounting() is None, reason="this user may not mount")
def test_doctor_of_a_read_only_disk_says_so_and_goes_on(tmp_path: Path) -> None:
    in_child(examine, tmp_path, remount, prefix=mounting())


@pytest.mark.skipif(mounting() is None, reason="this user may not mount")
def test_what_is_selected_on_a_read_only_disk_is_kept_in_memory(tmp_path: Path) -> None:
    make_caches(tmp_path)
    in_child(filter_in_memory, tmp_path, remount, prefix=mounting())


def test_a_folder_without_write_permission_can_be_read_and_nothing_else(seen_by_all: Path) -> None:
    root = seen_by_all / "root"
    make_caches(root)
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        in_child(read_and_fail_to_write, root, become_nobody if os.geteuid() == 0 else change_nothing)
    finally:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_read_only_folder_that_is_missing_is_an_error_of_the_storage() -> None:
    with pytest.raises((StorageError, ConfigurationError)) as caught:
        yogadl.open_storage("/proc/self/caches").submit([1], "d", "1")
    assert "/proc/self/caches" in str(caught.value)
