"""Ids, versions and locations that must never become a path."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import yogadl
from yogadl.errors import ConfigurationError, DatasetNotFoundError

BAD_NAMES = [
    "",
    ".",
    "..",
    "../x",
    "a/../b",
    "a/..",
    "/",
    "/etc/passwd",
    "a//b",
    "a/",
    "/a",
    "a/./b",
    ".hidden",
    "a/.b",
    "a\0b",
    "\0",
    "a\nb",
    "a\rb",
    "a\tb",
    "\x1b[31m",
    "\x7f",
    "a\\b",
    "C:\\x",
    "x" * 300,
    "é" * 150,
    "/".join(["x" * 100] * 9),
    "\ud800",
    "a\udcffb",
    "versions",
    "a/versions",
    "parts/a",
    "a/tables/b",
    "builds",
    "trash",
    "a/locks",
    "leases",
    "a.json/b",
]
GOOD_NAMES = [
    "a",
    "a/b/c",
    "a-b_c.d",
    "x" * 200,
    "ä ö",
    "1",
    "a.json",
    "a..b",
    "versionsx",
    "con",
    "~",
    "$x",
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_a_bad_name_is_refused_everywhere_before_anything_is_touched(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    storage = yogadl.open_storage(root)
    calls: list[Any] = [
        lambda *key: storage.submit([1], *key),
        storage.fetch,
        storage.cacheable,
        storage.info,
        storage.verify,
        storage.delete,
        storage.undelete,
        lambda *key: storage.begin(*key, partitions=1),
    ]
    for call in calls:
        for key in ((name, "1"), ("data", name)):
            with pytest.raises(ConfigurationError):
                call(*key)
    with pytest.raises(ConfigurationError):
        storage.versions(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [None, 7, b"data", Path("data"), ["data"]], ids=repr)
def test_a_name_that_is_no_string_is_refused(tmp_path: Path, name: Any) -> None:
    storage = yogadl.open_storage(tmp_path)
    for key in ((name, "1"), ("data", name)):
        with pytest.raises(ConfigurationError, match="must be a string"):
            storage.submit([1], *key)
        with pytest.raises(ConfigurationError, match="must be a string"):
            storage.fetch(*key)


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_good_name_works_from_start_to_end(tmp_path: Path, name: str) -> None:
    storage = yogadl.open_storage(tmp_path)
    storage.submit([1, 2], name, name)
    assert storage.datasets() == [name]
    assert storage.versions(name) == [name]
    assert storage.fetch(name, name).gather([1]).tolist() == [2]
    storage.delete(name, name)
    with pytest.raises(DatasetNotFoundError):
        storage.fetch(name, name)
    storage.undelete(name, name)
    storage.verify(name, name)
    assert storage.prune(grace_s=0).files == ()


def test_ids_and_versions_that_begin_alike_do_not_meet(tmp_path: Path) -> None:
    storage = yogadl.open_storage(tmp_path)
    keys = [("a", "1"), ("a/b", "1"), ("a", "1/2"), ("a/b/c", "1"), ("a", "b/1"), ("ab", "1")]
    for number, key in enumerate(keys):
        storage.submit([number], *key)
    assert storage.datasets() == ["a", "a/b", "a/b/c", "ab"]
    assert storage.versions("a") == ["1", "1/2", "b/1"]
    for number, key in enumerate(keys):
        assert storage.fetch(*key)[0] == number
    storage.delete("a", "1")
    assert storage.prune(grace_s=0).files  # that of ("a", "1"), and nothing else
    for number, key in enumerate(keys[1:], 1):
        storage.verify(*key)
        assert storage.fetch(*key)[0] == number


@pytest.mark.parametrize("location", ["", "\0", "a\0b", b"bytes", "s4://bucket", "http://x"])
def test_a_location_that_is_none_is_refused(location: Any) -> None:
    with pytest.raises(ConfigurationError):
        yogadl.open_storage(location)


@pytest.mark.parametrize("below", ["", "sub", "sub/sub"])
def test_a_location_that_is_a_file_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises((ConfigurationError, OSError)) as caught:
        yogadl.open_storage(tmp_path / "file" / below)
    assert isinstance(caught.value, yogadl.errors.YogaError)
    assert "file" in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_where_a_datasets_folder_should_be_is_an_error_of_the_storage(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    storage = yogadl.open_storage(tmp_path)
    with pytest.raises(yogadl.errors.StorageError):
        storage.submit([1], "data", "1")
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("data", "1")
    assert storage.datasets() == []
    assert (tmp_path / "data").read_text() == "mine"


def test_names_of_files_that_are_not_unicode_are_passed_over(tmp_path: Path) -> None:
    storage = yogadl.open_storage(tmp_path)
    storage.submit([1], "data", "1")
    for name in (b"data/versions/\xff.json", b"data/parts/\xff.mdb", b"data/trash/\xff@1.json", b"\xff"):
        path = os.fsencode(tmp_path) + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"x")
    os.makedirs(os.fsencode(tmp_path) + b"/\xfe/versions")
    assert storage.datasets() == ["data"]
    assert storage.versions("data") == ["1"]
    assert storage.prune(grace_s=0).files == ()


def test_a_link_in_a_circle_does_not_hang_the_listing(tmp_path: Path) -> None:
    storage = yogadl.open_storage(tmp_path)
    storage.submit([1], "data", "1")
    (tmp_path / "data" / "again").symlink_to(tmp_path)
    assert storage.datasets() == ["data"]
    assert subprocess.run(["ls", str(tmp_path)], capture_output=True, check=True).stdout == b"data\n"
