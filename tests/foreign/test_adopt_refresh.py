"""A version of changed files has their records as they are now, and reads only what it must."""

import itertools
import json
import os
import random

import numpy as np
import pytest
from adopted_files import SUFFIXES, every, plain, record, tar_of, write, write_numbered
from inside import FileReader, Lines, Permitted, adopted, set_constants

import yogadl
from yogadl.errors import (
    CacheFormatError,
    ConfigurationError,
    CursorError,
    DatasetNotFoundError,
    UnsupportedDataError,
    YogaError,
)
from yogadl.storage import copy

FORMS = ("webdataset", "jsonl", "megatron")
FORMATS = ("jsonl", "tfrecord", "webdataset", "mds", "arrow")


@pytest.fixture(params=[1, 2, 10])
def group(request, monkeypatch):
    """Have parts of so many files."""
    set_constants(
        monkeypatch, GROUPS=10**9, LEAST_GROUP_BYTES=1 if request.param == 1 else 900 * request.param,
        LEAST_UNREAD_FILES=request.param,
    )  # fmt: skip
    return request.param


def lines(*numbers):
    return [b'{"n": %d, "text": "%s"}' % (number, b"x" * 400) for number in numbers]


def write_lines(folder, **files):
    for name, numbers in files.items():
        write(folder / f"{name}.jsonl", "jsonl", lines(*numbers))


def now(folder):
    return [
        line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().split(b"\n") if line
    ]


def at(folder, name):
    return folder / f"{name}.jsonl"


def remove(folder, names):
    for name in names:
        at(folder, name).unlink()


def swap(folder):
    at(folder, "a").rename(folder / "x")
    at(folder, "e").rename(at(folder, "a"))
    (folder / "x").rename(at(folder, "e"))


# What is done to the folder of the files a to e.
CHANGES = {
    "append": lambda folder: write_lines(folder, f=[10, 11]),
    "change the middle": lambda folder: write_lines(folder, c=[20, 21, 22]),
    "append to the last": lambda folder: _append(at(folder, "e")),
    "touch": lambda folder: _touch(at(folder, "b")),
    "remove the first": lambda folder: remove(folder, "a"),
    "remove the last": lambda folder: remove(folder, "e"),
    "remove the middle": lambda folder: remove(folder, "c"),
    "remove most": lambda folder: remove(folder, "abde"),
    "rename": lambda folder: at(folder, "b").rename(at(folder, "b2")),
    "reorder": lambda folder: at(folder, "a").rename(at(folder, "z")),
    "swap": swap,
    "insert": lambda folder: write_lines(folder, b1=[30], a0=[31, 32]),
    "change all": lambda folder: write_lines(folder, **{name: [1] for name in "abcde"}),
    "replace all": lambda folder: (remove(folder, "abcde"), write_lines(folder, k=[77, 78])),
    "empty one": lambda folder: at(folder, "b").write_bytes(b""),
    "add an empty one": lambda folder: (
        at(folder, "b1").write_bytes(b"\n\n"),
        write_lines(folder, f=[10, 11]),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("read", [True, False])
def test_the_records_are_those_of_the_files_as_they_are(tmp_path, storage, group, read, change):
    folder = tmp_path / "in"
    write_lines(folder, a=[0, 1], b=[2], c=[3, 4], d=[5], e=[6, 7])
    storage.adopt(f"{folder}/*.jsonl", "d", "1", format="jsonl", files=yogadl.FileOptions(read=read))
    assert storage.refresh("d", "1", "none").lineage.version == "1"
    CHANGES[change](folder)
    assert storage.refresh("d", "1", "2").lineage.version == "2"
    found = storage.fetch("d", "2", check=read)
    assert every(found) == now(folder)
    assert storage.verify("d", "2").records == len(found)
    storage.adopt(f"{folder}/*.jsonl", "d", "anew", format="jsonl", files=yogadl.FileOptions(read=read))
    assert storage.fetch("d", "anew").fingerprint == found.fingerprint
    assert storage.refresh("d", "2", "none").lineage.version == "2"
    earlier = [each.version for each in storage.info("d", "2").earlier]
    if change == "append" or (change == "add an empty one" and group == 1):
        assert earlier == ["1"]
    else:
        assert earlier in ([], ["1"])


@pytest.mark.parametrize("seed", range(6))
def test_random_changes_one_after_the_other(tmp_path, storage, seed, monkeypatch):
    rng = random.Random(seed)
    set_constants(
        monkeypatch, GROUPS=10**9, LEAST_GROUP_BYTES=rng.choice([1, 1500, 3000]), LEAST_UNREAD_FILES=2
    )
    folder = tmp_path / "in"
    write_lines(folder, a=[0], b=[1], c=[2], d=[3])
    storage.adopt(
        f"{folder}/*.jsonl", "d", "0", format="jsonl", files=yogadl.FileOptions(read=bool(seed % 2))
    )
    version, number = 0, 100
    for _ in range(12):
        for _ in range(rng.randrange(3)):
            names = sorted(path.stem for path in folder.glob("*.jsonl"))
            number += 1
            chosen = rng.choice(names)
            if rng.random() < 0.3 and len(names) > 1:
                (folder / f"{chosen}.jsonl").unlink()
            elif rng.random() < 0.3:
                os.replace(folder / f"{chosen}.jsonl", folder / f"{rng.choice('abcdefgh')}.jsonl")
            else:
                write_lines(folder, **{rng.choice("abcdefgh"): [number] * rng.randrange(3)})
        expected = now(folder)
        if not expected:
            write_lines(folder, a=[number])
            expected = now(folder)
        ref = storage.refresh("d", f"{version}", f"{version + 1}")
        assert every(ref) == expected
        version = int(ref.lineage.version)
        assert every(storage.fetch("d", f"{version}")) == expected


def test_only_parts_with_changed_files_are_read(tmp_path, storage, group, monkeypatch):
    folder = tmp_path / "in"
    write_lines(folder, a=[0], b=[1], c=[2], d=[3], e=[4], f=[5])
    storage.adopt(f"{folder}/*.jsonl", "d", "1", format="jsonl")
    write_lines(folder, d=[9])
    opened, reader = [], Permitted.reader

    def counted(self, file, **options):
        opened.append(os.path.basename(file.address)[0])
        return reader(self, file, **options)

    monkeypatch.setattr(Permitted, "reader", counted)
    assert storage.refresh("d", "1", "2").lineage.version == "2"
    parts = {1: "d", 2: "cd" if storage.info("d", "1").parts == 3 else "abcdef", 10: "abcdef"}[group]
    assert {"d"} <= set(opened) <= set(parts) | {"a"}  # the first file says which fields there are
    assert every(storage.fetch("d", "2")) == now(folder)


def test_a_cursor_of_the_files_so_far_goes_on_with_those_that_were_added(tmp_path, storage):
    folder = tmp_path / "in"
    write_lines(folder, a=range(10), b=range(10, 15))
    storage.adopt(f"{folder}/*.jsonl", "d", "1", format="jsonl")
    before = storage.fetch("d", "1").stream()
    iterator = iter(before)
    seen = [next(iterator) for _ in range(7)]
    cursor = iterator.state_dict()
    write_lines(folder, c=range(15, 20))
    assert storage.refresh("d", "1", "2").lineage.version == "2"
    grown = storage.fetch("d", "2")
    assert seen + list(grown[:15].stream(cursor=cursor)) + list(grown[15:].stream()) == lines(*range(20))
    write_lines(folder, a=range(10))
    assert storage.refresh("d", "2", "3").lineage.version == "3"
    assert storage.info("d", "3").earlier == ()


@pytest.mark.parametrize("names", ["cls jpg", "jpg", "jpg cls txt"])
def test_the_first_file_decides_on_the_fields_as_it_does_when_all_are_adopted(tmp_path, storage, names):
    first = [{"__key__": "a", "jpg": b"jpg of a", "cls": b"cls of a"}]
    (tmp_path / "b.tar").write_bytes(tar_of(first))
    storage.adopt(f"{tmp_path}/*.tar", "d", "1", format="webdataset")
    other = [{"__key__": "b", **{name: name.encode() + b" of b" for name in names.split()}}]
    (tmp_path / "c.tar").write_bytes(tar_of(other))
    for new, expected, refused in (("2", first + other, "c"), ("3", other + first, "b")):
        if new == "3":
            (tmp_path / "c.tar").rename(tmp_path / "a.tar")
        if names != "cls jpg":
            with pytest.raises(UnsupportedDataError, match=rf"{refused}\.tar"):
                storage.refresh("d", "1", new)
            continue
        assert storage.refresh("d", "1", new).lineage.version == new
        assert every(storage.fetch("d", new)) == expected
        assert list(storage.fetch("d", new)[0]) == list(expected[0])


def test_records_that_were_not_adopted_are_not_lost(tmp_path, storage):
    write_lines(tmp_path / "in", a=[1])
    storage.submit([b"x", b"y"], "d", "1")
    storage.adopt(f"{tmp_path}/in", "d", "2", format="jsonl", files=yogadl.FileOptions(base_version="1"))
    assert every(storage.fetch("d", "2")) == [b"x", b"y", *lines(1)]
    write_lines(tmp_path / "in", b=[2])
    with pytest.raises(ConfigurationError, match=r"records 0 to 1 .* not adopted"):
        storage.refresh("d", "2", "3")
    storage.append([b"z"], "d", "4", base_version="2")
    with pytest.raises(ConfigurationError, match="was not adopted"):
        storage.refresh("d", "4", "5")
    storage.compact("d", "2", "6")
    with pytest.raises(ConfigurationError, match="was not adopted"):
        storage.refresh("d", "6", "7")


def test_values_that_were_copied_can_not_be_refreshed(tmp_path, storage):
    np.save(tmp_path / "a.npy", np.arange(5))
    storage.adopt(f"{tmp_path}/*.npy", "d", "1", format="npy")
    np.save(tmp_path / "b.npy", np.arange(3))
    with pytest.raises(ConfigurationError, match="so small that they were copied"):
        storage.refresh("d", "1", "2")


@pytest.mark.parametrize("form", FORMS)
def test_a_base_that_is_gone_or_whose_files_are_gone(tmp_path, storage, form):
    records = write_numbered(tmp_path / "in", form, [3, 2])
    storage.adopt(f"{tmp_path}/in/*.{SUFFIXES[form]}", "d", "1", format=form)
    write(tmp_path / f"in/x.{SUFFIXES[form]}", form, [record(form, 9)])
    storage.refresh("d", "1", "2")
    storage.delete("d", "1")
    storage.prune()
    assert every(storage.fetch("d", "2")) == [plain(each) for each in [*records, record(form, 9)]]
    assert storage.refresh("d", "2", "3").lineage.version == "2"
    for path in (tmp_path / "in").iterdir():
        path.unlink()
    with pytest.raises(ConfigurationError, match="there is no file"):
        storage.refresh("d", "2", "3")
    with pytest.raises(yogadl.errors.DatasetNotFoundError):
        storage.refresh("d", "1", "3")


def test_files_that_have_no_records_any_more(tmp_path, storage):
    write_lines(tmp_path / "in", a=[1], b=[2])
    storage.adopt(f"{tmp_path}/in", "d", "1", format="jsonl")
    for name in "ab":
        (tmp_path / f"in/{name}.jsonl").write_bytes(b"\n")
    with pytest.raises(UnsupportedDataError):
        storage.refresh("d", "1", "2")


def test_an_appended_version_is_refreshed_by_all_its_patterns(tmp_path, storage):
    write_lines(tmp_path / "in", a=[0], c=[1])
    write_lines(tmp_path / "more", a=[2])
    storage.adopt(f"{tmp_path}/in/*.jsonl", "d", "1", format="jsonl")
    storage.adopt(
        f"{tmp_path}/more/*.jsonl", "d", "2", format="jsonl", files=yogadl.FileOptions(base_version="1")
    )
    assert storage.refresh("d", "2", "3").lineage.version == "2"
    write_lines(tmp_path / "in", b=[3])
    write_lines(tmp_path / "more", b=[4])
    assert storage.refresh("d", "2", "3").lineage.version == "3"
    assert every(storage.fetch("d", "3")) == lines(0, 3, 1, 2, 4)


@pytest.mark.parametrize("size_bytes", [-1, 0, 1])
def test_files_of_any_size_without_records(tmp_path, storage, size_bytes, monkeypatch):
    set_constants(monkeypatch, SMALL_FILE_BYTES=100)
    write_lines(tmp_path / "in", a=[0])
    storage.adopt(f"{tmp_path}/in", "d", "1", format="jsonl")
    (tmp_path / "in/b.jsonl").write_bytes(b"\n" * (100 + size_bytes))
    write_lines(tmp_path / "in", c=[1])
    assert storage.refresh("d", "1", "2").lineage.version == "2"
    assert every(storage.fetch("d", "2")) == lines(0, 1)


@pytest.mark.parametrize("new", ["1", "2"])
def test_a_version_that_exists_is_replaced_only_if_told_to(tmp_path, storage, new):
    write_lines(tmp_path / "in", a=[0])
    storage.adopt(f"{tmp_path}/in", "d", "1", format="jsonl")
    storage.submit([b"x"], "d", "2")
    assert storage.refresh("d", "1", new).lineage.version == "1"  # there is nothing to build
    write_lines(tmp_path / "in", b=[1])
    before = every(storage.fetch("d", new))
    with pytest.raises(ConfigurationError, match=f"'d' version '{new}' exists.*replace=True"):
        storage.refresh("d", "1", new)
    assert every(storage.fetch("d", new)) == before
    assert storage.refresh("d", "1", new, replace=True).lineage.version == new
    assert every(storage.fetch("d", new)) == lines(0, 1)


def test_a_version_that_appears_meanwhile_is_not_replaced(tmp_path, storage, monkeypatch):
    write_lines(tmp_path / "in", a=[0])
    storage.adopt(f"{tmp_path}/in", "d", "1", format="jsonl")
    write_lines(tmp_path / "in", b=[1])
    build = adopted.build_version

    def late(*args):
        monkeypatch.undo()
        storage.submit([b"x"], "d", "2")
        build(*args)

    monkeypatch.setattr(adopted, "build_version", late)
    with pytest.raises(ConfigurationError, match="exists"):
        storage.refresh("d", "1", "2")
    assert every(storage.fetch("d", "2")) == [b"x"]


@pytest.mark.parametrize("fields", [None, ("jpg",)])
@pytest.mark.parametrize("missing", [None, "empty"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_first_tar_that_is_as_it_was_is_not_read_for_its_fields(
    tmp_path, monkeypatch, scheme, fields, missing
):
    set_constants(monkeypatch, GROUPS=10**9, LEAST_GROUP_BYTES=1)
    storage = yogadl.open_storage(tmp_path / "caches", foreign={f"file://{tmp_path}": {}})
    samples = [{"__key__": f"{k}", "jpg": b"j" * 100_000, "cls": b"c" * 40} for k in range(30)]
    for name in "abc":
        (tmp_path / f"{name}.tar").write_bytes(tar_of(samples))
    options = {"format": "webdataset", "fields": fields, "missing": missing}
    storage.adopt(f"{scheme}{tmp_path}/*.tar", "d", "1", **options)
    os.utime(tmp_path / "b.tar", ns=(1, 1))
    (tmp_path / "b.tar").write_bytes(tar_of(samples))
    read = {}
    init = FileReader.__init__

    def counted(self, file, fetch, **others):
        def fetch_counted(position, length):
            read[file.address[-5]] = read.get(file.address[-5], 0) + length
            return fetch(position, length)

        init(self, file, fetch_counted, **others)

    monkeypatch.setattr(FileReader, "__init__", counted)
    assert storage.refresh("d", "1", "2").lineage.version == "2"
    assert read == {"b": (tmp_path / "b.tar").stat().st_size}
    monkeypatch.undo()
    storage.adopt(f"{scheme}{tmp_path}/*.tar", "d", "anew", **options)
    assert storage.fetch("d", "2").fingerprint == storage.fetch("d", "anew").fingerprint


CRAFTED = [None, 3, True, "x", "", [], {}, ["x"], [3], [[]], {"a": 1}, {"a": []}, {"a": [1, [2]]}, "\0",
           {"a": {"dtype": 3}}, {"a": ["int64", [{}]]}, ["a\0b"], ["\ud800"], ["../x"], [{}], "jsonl", -1,
           {"fields": [[]]}, {"fields": {}}, {"features": 3}, {"features": {"a": None}}, {"missing": []},
           {"features": {"a": {"dtype": "int64", "shape": [-1]}}}, {"self": 1}, {"is_read": True}, {"": {}},
           {"features": {"a": ["int64", ["x"]]}}, {"known": {}}, {"checks_data": 1}]  # fmt: skip


@pytest.mark.parametrize("name", ["adopted", "paths", "format", "read", "options", "more", "less"])
def test_a_manifest_that_says_nonsense_of_its_files_is_one_clear_error(tmp_path, storage, name):
    write_lines(tmp_path / "in", a=[0, 1])
    storage.adopt(f"{tmp_path}/in", "d", "1", format="jsonl")
    path = tmp_path / "caches/d/versions/1.json"
    original = path.read_bytes()
    write_lines(tmp_path / "in", b=[2])
    refused, tried, more = 0, set(), f"{tmp_path}/in/b.jsonl"
    for form, (number, value) in itertools.product(FORMATS, enumerate(CRAFTED)):
        manifest = json.loads(original)
        entry = manifest["builder"]["adopted"]
        entry["format"] = form
        if name == "adopted":
            manifest["builder"]["adopted"] = value
        elif name == "less":
            del entry[["paths", "format", "read", "options"][number % 4]]
        else:
            entry[name] = value
        text = json.dumps(manifest)
        if text in tried:  # without `format`, say, all forms are the same
            continue
        tried.add(text)
        path.write_text(text)
        opened = yogadl.open_storage(tmp_path / "caches")
        for call in (
            lambda opened=opened: opened.refresh("d", "1", "2"),
            lambda opened=opened: opened.adopt(
                more, "d", "3", format="jsonl", files=yogadl.FileOptions(base_version="1")
            ),
        ):
            try:
                call()
            except YogaError:
                refused += 1
    assert len(tried) >= (16 if name == "less" else len(CRAFTED))
    assert refused > 2 * len(tried) * 0.7


# Files that are not as they were.


def _append(path):
    with path.open("ab") as file:
        file.write(b"more\n")


def _touch(path):
    os.utime(path, ns=(1, 1))


def _rewrite(path):
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


SPOIL = {
    "append": _append,
    "truncate": lambda path: os.truncate(path, path.stat().st_size - 5),
    "touch": _touch,
    "link": lambda path: path.symlink_to(path.rename(path.parent / "moved").name),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "remove": lambda path: path.unlink(),
    "rewrite": _rewrite,
    "empty": lambda path: os.truncate(path, 0),
}


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("spoil", SPOIL)
def test_a_file_that_was_changed_is_an_error_that_names_it(tmp_path, storage, spoil, mapped):
    folder = tmp_path / "in"
    write_lines(folder, a=range(5), b=range(5, 9))
    for read in (True, False):
        storage.adopt(str(folder), "d", f"{read}", format="jsonl", files=yogadl.FileOptions(read=read))
    SPOIL[spoil](folder / "b.jsonl")
    opened = yogadl.open_storage(tmp_path / "caches", mapped=mapped)
    for version in ("True", "False"):
        ref = opened.fetch("d", version)
        calls = (
            lambda ref=ref: ref[7],
            lambda ref=ref: ref.gather(range(9)),
            lambda ref=ref: list(ref.stream(shuffle=True, shuffle_seed=1)),
            lambda ref=ref: list(ref.stream().prefetch(2)),
            lambda version=version: opened.fetch("d", version, check=version == "True")[8],
            lambda version=version: opened.verify("d", version),
        )
        for call in calls:
            with pytest.raises(CacheFormatError, match=r"/b\.jsonl is not the file .*refresh"):
                call()
        if mapped is False:
            assert ref[2] == lines(2)[0]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("spoil", ["append", "touch", "link", "pipe", "remove", "rewrite"])
def test_a_file_that_changes_while_it_is_read_is_seen(tmp_path, storage, spoil, mapped, check):
    write_lines(tmp_path / "in", a=range(9))
    storage.adopt(f"{tmp_path}/in", "d", "1", format="jsonl")
    ref = yogadl.open_storage(tmp_path / "caches", mapped=mapped).fetch("d", "1", check=check)
    assert ref[2] == lines(2)[0]
    SPOIL[spoil](tmp_path / "in/a.jsonl")
    with pytest.raises(CacheFormatError, match=r"/a\.jsonl is not the file"):
        ref.gather([3])


@pytest.mark.parametrize("batch", [0, -1])
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("spoil", ["append", "touch", "rewrite", "remove"])
def test_a_file_that_changes_while_it_is_adopted_is_seen(tmp_path, monkeypatch, spoil, mapped, batch):
    set_constants(monkeypatch, FOREIGN_WINDOW_BYTES=4096)
    write_lines(tmp_path / "in", a=range(100))
    find = Lines.batches

    def batches(self, reader):
        every = list(find(self, reader))
        for each in every:
            yield each
            if each is every[batch]:
                SPOIL[spoil](tmp_path / "in/a.jsonl")

    monkeypatch.setattr(Lines, "batches", batches)
    storage = yogadl.open_storage(tmp_path / "caches", mapped=mapped)
    with pytest.raises(CacheFormatError, match=r"/a\.jsonl was changed while it was adopted"):
        storage.adopt(f"{tmp_path}/in", "d", "1", format="jsonl")
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("d", "1")


def test_a_file_that_was_cut_is_seen_before_its_blocks_are_compared(tmp_path, storage, monkeypatch):
    set_constants(monkeypatch, FOREIGN_WINDOW_BYTES=4096)
    write_lines(tmp_path / "in", a=range(100))
    storage.adopt(f"{tmp_path}/in", "d", "1", format="jsonl")
    ref = storage.fetch("d", "1", check=True)
    assert ref[0] == lines(0)[0]
    os.truncate(tmp_path / "in/a.jsonl", 100)
    with pytest.raises(CacheFormatError, match=r"/a\.jsonl is not the file"):
        ref.gather([99])  # its block was not compared yet, and lies past the end


@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_that_is_written_over_in_place_never_gives_its_new_bytes(tmp_path, storage, mapped):
    write_lines(tmp_path / "in", a=range(1000))
    path = tmp_path / "in/a.jsonl"
    storage.adopt(str(path), "d", "1", format="jsonl")
    ref = yogadl.open_storage(tmp_path / "caches", mapped=mapped).fetch("d", "1")
    batches = iter(ref.stream(shuffle=True, shuffle_seed=1).batch(10))
    assert next(batches)
    with path.open("r+b") as file:  # as long as before
        file.write(path.read_bytes().replace(b"1", b"7"))
    with pytest.raises(CacheFormatError, match="it was written since"):
        next(batches)


@pytest.mark.parametrize("spoil", ["append", "truncate", "touch", "folder", "pipe", "remove"])
@pytest.mark.parametrize("verb", ["adopt", "refresh"])
def test_a_file_that_changes_after_it_was_listed_is_not_adopted(tmp_path, storage, spoil, verb, monkeypatch):
    write_lines(tmp_path / "in", a=[0], b=[1, 2], c=[3])
    if verb == "refresh":
        storage.adopt(f"{tmp_path}/in/a.jsonl", "d", "0", format="jsonl")
        storage.adopt(
            f"{tmp_path}/in/[bc].jsonl", "d", "1", format="jsonl", files=yogadl.FileOptions(base_version="0")
        )
        write_lines(tmp_path / "in", b=[4])
    listed = adopted.listed_files

    def spoiled(*args):
        found = listed(*args)
        if len(found) > 1:
            SPOIL[spoil](tmp_path / "in/b.jsonl")
        return found

    monkeypatch.setattr(adopted, "listed_files", spoiled)
    calls = {
        "refresh": lambda: storage.refresh("d", "1", "2"),
        "adopt": lambda: storage.adopt(f"{tmp_path}/in", "d", "2", format="jsonl"),
    }
    with pytest.raises(CacheFormatError, match=r"/b\.jsonl (is not the file|was changed while)"):
        calls[verb]()
    with pytest.raises(yogadl.errors.DatasetNotFoundError):
        storage.fetch("d", "2")


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("verb", ["adopt", "append", "refresh"])
@pytest.mark.parametrize("spoil", ["append", "touch", "remove", "rewrite"])
def test_a_file_that_changes_after_its_turn_is_seen(tmp_path, monkeypatch, spoil, verb, scheme):
    set_constants(monkeypatch, GROUPS=10**9, LEAST_GROUP_BYTES=1)
    storage = yogadl.open_storage(tmp_path / "caches", foreign={f"file://{tmp_path}": {}})
    write_lines(tmp_path / "in", a=[0], b=[1])
    write_lines(tmp_path / "old", a=[0])
    storage.adopt(f"{scheme}{tmp_path}/old", "d", "0", format="jsonl")
    storage.adopt(f"{scheme}{tmp_path}/in", "d", "1", format="jsonl")
    write_lines(tmp_path / "in", c=[2, 3])
    find = Lines.batches

    def batches(self, reader):
        yield from find(self, reader)
        if reader.name == "c.jsonl":  # the last one
            SPOIL[spoil](tmp_path / "in/a.jsonl")

    monkeypatch.setattr(Lines, "batches", batches)
    calls = {
        "adopt": lambda: storage.adopt(f"{scheme}{tmp_path}/in", "d", "2", format="jsonl"),
        "append": lambda: storage.adopt(
            f"{scheme}{tmp_path}/in", "d", "2", format="jsonl", files=yogadl.FileOptions(base_version="0")
        ),
        "refresh": lambda: storage.refresh("d", "1", "2"),
    }
    if (verb, scheme) == ("refresh", "file://"):  # a is kept as it was listed, which its readers notice
        assert calls[verb]()
        with pytest.raises(CacheFormatError, match=r"/a\.jsonl is not the file"):
            every(storage.fetch("d", "2"))
        return
    with pytest.raises(CacheFormatError, match=r"/a\.jsonl was changed while it was adopted"):
        calls[verb]()
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("d", "2")


def test_damage_without_a_trace_is_found_by_checksums_where_all_was_read(tmp_path, storage):
    path = tmp_path / "in/a.jsonl"
    write_lines(tmp_path / "in", a=range(5))
    storage.adopt(str(path), "d", "1", format="jsonl")
    storage.adopt(str(path), "d", "weak", format="jsonl", files=yogadl.FileOptions(read=False))
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    target = yogadl.open_storage(tmp_path / "copies")
    for call in (
        lambda: storage.verify("d", "1"),
        lambda: storage.fetch("d", "1", check=True)[0],
        lambda: copy(storage, target, "d", "1", materialize=True),
    ):
        with pytest.raises(CacheFormatError, match=r"records 0 to 4: the bytes in .*/a\.jsonl were changed"):
            call()
    with pytest.raises(CacheFormatError, match="do not have the fingerprint"):
        storage.submit(storage.fetch("d", "1"), "d", "copy")
    assert storage.verify("d", "weak").records == 5  # as documented, only size and time are compared


def test_a_cursor_of_other_files_is_refused(tmp_path, storage):
    write_lines(tmp_path / "in", a=range(5))
    storage.adopt(f"{tmp_path}/in", "d", "1", format="jsonl")
    iterator = iter(storage.fetch("d", "1").stream())
    next(iterator)
    cursor = iterator.state_dict()
    write_lines(tmp_path / "in", a=range(10, 15))
    storage.refresh("d", "1", "2")
    with pytest.raises(CursorError):
        next(iter(storage.fetch("d", "2").stream(cursor=cursor)))
