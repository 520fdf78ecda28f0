"""A folder that can't be listed is an error that names it: for prune, and for all that look for files."""

import errno
import os
import re
import resource
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from processes import fork, in_child, wait

import yogadl
from yogadl.errors import DatasetNotFoundError, StorageError
from yogadl.storage import CacheStorage

NOBODY = 65534
FILES = 128


def opened(root: Path, kind: str) -> CacheStorage:
    return yogadl.open_storage(root, shared=kind == "shared")


def furnish(root: Path, kind: str) -> None:
    storage = opened(root, kind)
    for dataset_id in ("mine", "others"):
        for version in ("1", "2", "deep/down/3"):
            storage.submit([f"{dataset_id} {version}"] * 9, dataset_id, version)
        storage.delete(dataset_id, "2")


@pytest.fixture
def root(seen_by_all: Path) -> Path:
    """A storage that belongs to nobody, but for one folder of versions, which only root may list."""
    root = seen_by_all / "caches"
    furnish(root, "folder")
    for path in [root, *root.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    forbidden = root / "others/versions/deep"
    os.chown(forbidden, 0, 0)
    forbidden.chmod(stat.S_IRWXU)
    return root


def prune_as_nobody(root: Path) -> str:
    with tempfile.TemporaryDirectory() as other:
        furnish(Path(other), "folder")  # now everything that is imported late has been
        opened(Path(other), "folder").prune(grace_s=0)
    storage = opened(root, "folder")
    storage.fetch("others", "1")
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    with pytest.raises(StorageError) as caught:
        storage.prune(grace_s=0)
    assert storage.datasets() == ["mine"]
    assert storage.fetch("others", "1")[0] == "others 1"
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("others", "4")
    return str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_prune_removes_nothing_of_a_dataset_of_which_a_folder_may_not_be_listed(root: Path) -> None:
    said: str = in_child(prune_as_nobody, root)
    assert "can't prune 'others'" in said
    assert f"can't list {root / 'others/versions/deep'}" in said
    assert "not readable for this user" in said
    storage = opened(root, "folder")
    for dataset_id in ("mine", "others"):
        for version in ("1", "deep/down/3"):
            storage.verify(dataset_id, version)
    storage.undelete("others", "2")
    storage.verify("others", "2")
    with pytest.raises(DatasetNotFoundError):
        storage.undelete("mine", "2")


def read_as_nobody(root: Path) -> dict[str, str]:
    """Look for files as nobody, before and after a folder among them belongs to root; return the errors."""
    files = root / "files"
    for name in ("a/1", "b/2", "c/deep/3"):
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / f"{name}.jsonl").write_bytes(f"record {name}\n".encode() * 9)
    patterns = ("*/*.jsonl", "**/*.jsonl", "*/deep/3.jsonl", "c/*/3.jsonl", "**", "")
    with tempfile.TemporaryDirectory() as other:  # imports everything that is imported late
        opened(Path(other), "folder").adopt(f"{files}/**", "adopted", "1", format="jsonl")
        opened(Path(other), "folder").refresh("adopted", "1", "2")
        yogadl.image_folder(files, extensions=[".jsonl"])
    os.setgroups([])
    os.seteuid(NOBODY)
    storage = opened(root / "caches", "folder")
    for number, pattern in enumerate(patterns):
        storage.adopt(f"{files}/{pattern}", "adopted", f"{number}", format="jsonl")
    assert len(yogadl.image_folder(files, extensions=[".jsonl"])) == 3
    os.seteuid(0)
    (files / "c").chmod(stat.S_IRWXU)
    os.seteuid(NOBODY)
    said = {}
    for number, pattern in enumerate(patterns):
        with pytest.raises(StorageError) as caught:
            storage.adopt(f"{files}/{pattern}", "adopted", "anew", format="jsonl")
        said[f"adopt {pattern}"] = str(caught.value)
        with pytest.raises(StorageError) as caught:
            storage.refresh("adopted", f"{number}", "anew")
        said[f"refresh {pattern}"] = str(caught.value)
    with pytest.raises(StorageError) as caught:
        yogadl.image_folder(files, extensions=[".jsonl"])
    said["image_folder"] = str(caught.value)
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("adopted", "anew")
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_files_of_a_folder_that_may_not_be_listed_are_never_left_out(seen_by_all: Path) -> None:
    (seen_by_all / "caches").mkdir()
    os.chown(seen_by_all / "caches", NOBODY, NOBODY)
    said: dict[str, str] = in_child(read_as_nobody, seen_by_all)
    assert len(said) == 13
    for way, text in said.items():
        assert re.search("can't (look for files|read a foreign file): Permission denied", text), way
        assert f"{seen_by_all}/files/c" in text, way


@pytest.mark.parametrize("pattern", ["*/*.jsonl", "**/*.jsonl", "", "image_folder"])
def test_whichever_list_fails_no_file_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "files" / name).mkdir(parents=True)
        (tmp_path / "files" / name / "1.jsonl").write_bytes(name.encode() * 99)
    storage = opened(tmp_path / "caches", "folder")
    scandir, fails = os.scandir, [""]

    def failing(path: Any = ".") -> Any:
        if os.fspath(path) == fails[0]:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return scandir(path)

    def look() -> None:
        if pattern == "image_folder":
            yogadl.image_folder(tmp_path / "files", extensions=[".jsonl"])
        else:
            storage.adopt(f"{tmp_path}/files/{pattern}", "data", "1", format="jsonl")

    monkeypatch.setattr(os, "scandir", failing)
    for name in ("files/b", "files/c", "files"):
        fails[0] = str(tmp_path / name)
        with pytest.raises(StorageError, match=rf"Input/output error.*{name}"):
            look()


def prune_with_no_more_files(root: Path, kind: str) -> None:
    """Prune again and again, with one more list each time before all descriptors are gone once."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    scandir, lists, fails_at, failed = os.scandir, 0, 0, 0

    def failing(path: Any = ".") -> Any:
        nonlocal lists
        lists += 1
        held: list[int] = []
        try:
            while lists == fails_at:
                try:
                    held.append(os.dup(0))
                except OSError:
                    break
            return scandir(path)
        finally:
            for descriptor in held:
                os.close(descriptor)

    os.scandir = failing  # what os.walk lists with
    storage = opened(root, kind)
    while lists >= fails_at:
        lists, fails_at = 0, fails_at + 1
        try:
            storage.prune(grace_s=0)
        except StorageError:
            failed += 1
    assert 10 < failed == fails_at - 1


@pytest.mark.parametrize("kind", ["folder", "shared"])
def test_prune_removes_nothing_that_is_named_whichever_list_finds_too_many_files_open(
    tmp_path: Path, kind: str
) -> None:
    furnish(tmp_path / "caches", kind)
    assert wait(fork(prune_with_no_more_files, tmp_path / "caches", kind)) == 0
    storage = opened(tmp_path / "caches", kind)
    for dataset_id in ("mine", "others"):
        for version in ("1", "deep/down/3"):
            assert storage.fetch(dataset_id, version)[0] == f"{dataset_id} {version}"
            storage.verify(dataset_id, version)
