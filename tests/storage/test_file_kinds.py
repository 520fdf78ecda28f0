"""The kinds of files of a version declare what differs: a further kind needs no other code."""

import io
import os
import tokenize
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
from adopted_files import every, plain, write_numbered
from inside import FileId, Files, ForeignFile, ForeignFiles, PartFile, Permitted

import yogadl
from yogadl import open_storage
from yogadl.errors import CacheFormatError

ROOT = Path(yogadl.__file__).parent
# Files of `storage` and `cli` that know of foreign files; others use what the kinds declare.
DOORS = (
    "storage/_builds/adopted.py",
    "storage/_builds/adopted_files.py",
    "storage/_builds/growth.py",  # of adopted versions
    "storage/_files/permitted.py",
    "storage/__init__.py",  # the argument
    "cli/_arguments.py",  # the option
)
PUBLIC = {"foreign_files", "foreign_read"}
ROOMS = {"_foreign"}  # which is imported
OTHER_SENSES = {"storage/_builds/partitions.py"}  # parts of another maker


def test_no_code_but_that_of_adopting_names_foreign_files():
    found = {}
    for path in (*ROOT.glob("storage/**/*.py"), *ROOT.glob("cli/**/*.py")):
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        names = {token.string for token in tokens if token.type == tokenize.NAME}
        if knows := {name for name in names if "foreign" in name.lower()} - PUBLIC - ROOMS:
            found[path.relative_to(ROOT).as_posix()] = knows
    assert found.keys() == {*DOORS, *OTHER_SENSES}


@dataclass(frozen=True)
class WholeFile:
    """A kind that the library does not know: its files have another suffix, and errors of their own."""

    was: ForeignFile

    suffix = ".whole"
    is_interleaved = False
    is_watched = False
    opened = []  # noqa: RUF012  (the paths, which the test clears)

    @property
    def address(self):
        return self.was.address

    @property
    def tag(self):
        return self.was.tag

    @property
    def size_bytes(self):
        return self.was.size_bytes

    @cached_property
    def sha256(self):
        return self.was.sha256[::-1]

    @property
    def label(self):
        return f"whole {self.address}"

    @property
    def damage(self):
        return self.label, "look for another"

    def open(self, path):
        self.opened.append(path)
        return os.open(path, os.O_RDONLY)

    def changed(self, problem):
        return CacheFormatError(f"{self.label}: {problem}")


@pytest.fixture
def lake(tmp_path, monkeypatch):
    """Return a bucket with three adopted files, of the unknown kind from then on, and their records."""
    url = tmp_path.as_uri()
    expected = [plain(each) for each in write_numbered(tmp_path / "raw", "jsonl", [7, 1, 12])]
    open_storage(f"{url}/caches", mirror=None, foreign={url: {}}).adopt(
        f"{url}/raw/*.jsonl", "d", "1", format="jsonl"
    )
    known = ForeignFiles.__getitem__
    monkeypatch.setattr(ForeignFiles, "__getitem__", lambda self, number: WholeFile(known(self, number)))
    monkeypatch.setattr(WholeFile, "opened", [])
    return url, expected


def fetched(url, **options):
    return open_storage(f"{url}/caches", foreign={url: {}}, **options).fetch("d", "1")


def test_an_unknown_kind_is_read_by_range(lake):
    url, expected = lake
    ref = fetched(url, mirror=None)
    assert every(ref) == expected
    assert every(ref, [9, 0, 19]) == [expected[k] for k in (9, 0, 19)]
    assert WholeFile.opened == []


@pytest.mark.parametrize("fill", ["auto", "always"])
def test_an_unknown_kind_is_kept_in_a_mirror_under_its_own_names(lake, tmp_path, fill):
    url, expected = lake
    mirror = tmp_path / "mirror"
    assert every(fetched(url, mirror=yogadl.Mirror(mirror, fill=fill))) == expected
    copies = sorted(mirror.glob("caches/d/parts/*.whole"))
    assert len(copies) == 3
    assert not list(mirror.glob("caches/d/parts/*.foreign"))
    assert set(WholeFile.opened) == set(map(str, copies))
    copies[0].unlink()
    assert every(fetched(url, mirror=mirror)) == expected
    assert copies[0].exists()


@pytest.mark.parametrize("has_mirror", [False, True])
def test_an_unknown_kind_says_that_it_was_changed(lake, tmp_path, has_mirror):
    url, _ = lake
    for path in (tmp_path / "raw").iterdir():
        path.write_bytes(path.read_bytes()[::-1])
        os.utime(path, ns=(1, 1))
    with pytest.raises(CacheFormatError, match=r"whole file:.*: it was replaced$"):
        every(fetched(url, mirror=tmp_path / "mirror" if has_mirror else None))


def test_a_damaged_block_of_an_unknown_kind_is_said_to_be_where_it_says(lake, tmp_path):
    url, _ = lake
    mirror = tmp_path / "mirror"
    assert every(fetched(url, mirror=mirror))
    for path in mirror.glob("caches/d/parts/*.whole"):
        path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(CacheFormatError, match=r"the bytes in whole file:.*; look for another$"):
        open_storage(f"{url}/caches", foreign={url: {}}, mirror=mirror).fetch("d", "1", check=True)[0]


def some_files(addresses):
    others = ForeignFiles.of(ForeignFile(address, 9, "t") for address in addresses)
    return Files(["0" * 64, "1" * 64], np.array([4096, 8192]), others)


def test_files_are_named_and_sized_in_the_order_of_their_numbers():
    files = some_files(["/here", "file:///lake/there"])
    assert list(files.ids) == [0, 1, 2, 3]
    assert list(files.addressed) == [2, 3]
    assert list(files.names) == [f"{files[file].sha256}{files[file].suffix}" for file in files.ids]
    assert files.sizes.tolist() == [files[file].size_bytes for file in files.ids]
    assert (files.addressed_bytes, files.are_here, files.mappable) == (18, False, 2)
    assert list(files.own.names) == list(files.names)[:2]
    assert files.own.own is files.own
    assert not files.own.are_interleaved
    assert files.own.are_here
    found = [(np.arange(4) == file)[files.are_addressed].any() for file in files.ids]
    assert found == [False, False, True, True]


def test_only_files_of_buckets_have_places(tmp_path):
    files = some_files(["/here", f"{tmp_path.as_uri()}/there"])
    assert some_files(["/here"]).are_here
    places = Permitted(True, ((tmp_path.as_uri(), None),)).places(files)
    (place,) = places.values()
    assert (*places, place.name, place.file) == (3, "there", files[FileId(3)])


def test_a_part_is_not_as_it_is_named():
    error = PartFile("0" * 64, 9).changed("is another file")
    assert str(error).startswith(f"part {'0' * 64} is another file; build the dataset again")
