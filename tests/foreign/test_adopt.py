"""Records of foreign files are those that were written, however they are adopted and read."""

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from adopted_files import FORMATS, SUFFIXES, every, plain, write, write_numbered
from foreign_files import bytes_feature, example_of, int64_feature, mds_config, mds_of, tfrecord_of
from inside import set_constants
from processes import in_fork

import yogadl
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError, UnsupportedDataError
from yogadl.storage import copy

COUNTS = [7, 1, 23, 12]


def one_file_a_group(monkeypatch):
    """Have a part for each file."""
    set_constants(monkeypatch, GROUPS=10**9, LEAST_GROUP_BYTES=1, LEAST_UNREAD_FILES=1)


def adopted(storage, folder, form, version="1", **options):
    storage.adopt(str(folder), "d", version, format=form, **options)
    return storage.fetch("d", version)


@pytest.mark.parametrize("window_bytes", [100, 4095, 4096, 4097, 2**20])
@pytest.mark.parametrize("form", FORMATS)
def test_files_are_read_alike_mapped_and_not(tmp_path, monkeypatch, form, window_bytes):
    set_constants(monkeypatch, FOREIGN_WINDOW_BYTES=window_bytes)
    write_numbered(tmp_path / "in", form, [150, 50])
    found = set()
    for mapped in (True, False):
        storage = yogadl.open_storage(tmp_path / f"caches {mapped}", mapped=mapped)
        adopted(storage, tmp_path / "in", form)
        assert storage.verify("d", "1").records == 200
        found.add(storage.info("d", "1").fingerprint)
    assert len(found) == 1


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("form", FORMATS)
def test_all_ways_to_read_give_the_records(tmp_path, storage, form, read, monkeypatch):
    # Groups of one file, so that there are several parts; a window holds a few records.
    one_file_a_group(monkeypatch)
    set_constants(monkeypatch, FOREIGN_WINDOW_BYTES=1000)
    records = write_numbered(tmp_path / "in", form, COUNTS)
    expected = [plain(each) for each in records]
    adopted(storage, tmp_path / "in", form, files=yogadl.FileOptions(read=read))
    assert storage.info("d", "1").parts == len(COUNTS)
    numbers = [41, 0, 7, 8, 8, 30, 6, 0, 42]
    for mapped in (True, False):
        opened = yogadl.open_storage(tmp_path / "caches", mapped=mapped)
        for check in (False, read):  # what was not read has no checksums
            ref = opened.fetch("d", "1", check=check)
            assert len(ref) == len(records)
            assert every(ref) == expected
            assert every(ref, numbers) == [expected[k] for k in numbers]
            assert [plain(ref[k]) for k in (0, 17, -1)] == [expected[k] for k in (0, 17, -1)]
            if form == "webdataset":
                assert every(ref.fields("cls", "__key__"), numbers) == [
                    {"cls": expected[k]["cls"], "__key__": expected[k]["__key__"]} for k in numbers
                ]
    assert storage.verify("d", "1").records == len(records)
    copied = storage.submit(records, "s", "1")
    assert ref.spec == copied.spec
    assert (ref.fingerprint == copied.fingerprint) == read


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("read", [True, False])
def test_streams_with_threads_and_workers_give_each_record_once(tmp_path, storage, form, read):
    expected = [plain(each) for each in write_numbered(tmp_path / "in", form, COUNTS)]
    ref = adopted(storage, tmp_path / "in", form, files=yogadl.FileOptions(read=read))
    plain_order = [plain(each) for each in ref.stream(shuffle=True, shuffle_seed=3)]
    assert sorted(map(repr, plain_order)) == sorted(map(repr, expected))
    for options in ({}, {"workers": 2}) if form in ("webdataset", "npy") else ({},):
        stream = ref.stream(shuffle=True, shuffle_seed=3).prefetch(2, **options)
        assert [plain(each) for each in stream] == plain_order


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("form", ["webdataset", "megatron"])
def test_processes_adopt_the_same_as_one(tmp_path, storage, form, monkeypatch):
    one_file_a_group(monkeypatch)
    expected = [plain(each) for each in write_numbered(tmp_path / "in", form, COUNTS)]
    for read in (True, False):
        alone = adopted(storage, tmp_path / "in", form, f"alone-{read}", files=yogadl.FileOptions(read=read))
        together = adopted(
            storage, tmp_path / "in", form, f"together-{read}", files=yogadl.FileOptions(read=read), workers=2
        )
        assert every(together) == every(alone) == expected
        assert alone.fingerprint == together.fingerprint


def test_values_of_every_size_around_the_window_come_back(tmp_path, storage, monkeypatch):
    set_constants(monkeypatch, FOREIGN_WINDOW_BYTES=64, UNREAD_BLOCK_BYTES=100, FOREIGN_MOST_RECORDS=3)
    sizes = [1, 62, 63, 64, 65, 127, 128, 129, 191, 192, 193, 99, 100, 101, 1, 1, 1, 1, 1, 300, 2]
    lines = [bytes([65 + k]) * size for k, size in enumerate(sizes)]
    write(tmp_path / "in/a.jsonl", "jsonl", lines)
    for read in (True, False):
        ref = adopted(storage, tmp_path / "in", "jsonl", f"{read}", files=yogadl.FileOptions(read=read))
        assert every(ref) == lines
        assert every(storage.fetch("d", f"{read}", check=read), range(20, -1, -1)) == lines[::-1]
        assert storage.verify("d", f"{read}").records == len(lines)
    storage.submit(lines, "s", "1")
    assert storage.fetch("s", "1").fingerprint == storage.fetch("d", "True").fingerprint


@pytest.mark.parametrize("count", [2, 3, 4, 5, 9, 10])
@pytest.mark.parametrize("read", [True, False])
def test_groups_of_any_number_of_files_keep_the_order(tmp_path, storage, count, read, monkeypatch):
    size_bytes = len(b'{"n": 0, "text": ""}\n')
    set_constants(
        monkeypatch, GROUPS=2, LEAST_GROUP_BYTES=3 * size_bytes, MOST_GROUP_BYTES=4 * size_bytes,
        LEAST_UNREAD_FILES=3,
    )  # fmt: skip
    expected = write_numbered(tmp_path / "in", "jsonl", [1] * count)
    ref = adopted(storage, tmp_path / "in", "jsonl", files=yogadl.FileOptions(read=read))
    assert every(ref) == expected
    assert storage.info("d", "1").parts < count


def test_features_are_gathered_and_refreshed(tmp_path, storage):
    def example(number):
        return example_of(image=bytes_feature(b"i" * (50 + number)), label=int64_feature([number]))

    features = {"image": "bytes", "label": "int64"}
    (tmp_path / "a.tfrecord").write_bytes(tfrecord_of([example(0), example(1)]))
    storage.adopt(
        str(tmp_path / "*.tfrecord"), "d", "1", format="tfrecord", files=yogadl.FileOptions(features=features)
    )
    (tmp_path / "b.tfrecord").write_bytes(tfrecord_of([example(2)]))
    found = storage.refresh("d", "1", "2").gather(range(3))
    assert list(found["image"]) == [b"i" * 50, b"i" * 51, b"i" * 52]
    assert np.asarray(found["label"]).tolist() == [0, 1, 2]


def test_a_version_continues_another_one(tmp_path, storage):
    first = write_numbered(tmp_path / "a", "jsonl", [3, 4])
    second = write_numbered(tmp_path / "b", "jsonl", [5])
    storage.adopt(str(tmp_path / "a"), "d", "1", format="jsonl")
    storage.adopt(str(tmp_path / "b"), "d", "2", format="jsonl", files=yogadl.FileOptions(base_version="1"))
    assert every(storage.fetch("d", "2")) == first + second
    assert storage.refresh("d", "2", "3").lineage.version == "2"
    write(tmp_path / "c.txt", "jsonl", [b"c"])
    with pytest.raises(ConfigurationError, match="give the same"):
        storage.adopt(
            str(tmp_path / "c.txt"),
            "d",
            "3",
            format="jsonl",
            files=yogadl.FileOptions(base_version="2", read=False),
        )


def test_no_file_is_appended_twice(tmp_path, storage):
    write_numbered(tmp_path / "a", "jsonl", [3, 4])
    storage.adopt(str(tmp_path / "a"), "d", "1", format="jsonl")
    write(tmp_path / "a/c.jsonl", "jsonl", [b"c"])
    with pytest.raises(ConfigurationError, match=r"already.*storage\.refresh"):
        storage.adopt(
            str(tmp_path / "a"), "d", "2", format="jsonl", files=yogadl.FileOptions(base_version="1")
        )
    storage.adopt(
        str(tmp_path / "a/c.jsonl"), "d", "2", format="jsonl", files=yogadl.FileOptions(base_version="1")
    )
    assert len(storage.fetch("d", "2")) == 8


@pytest.mark.parametrize("form", FORMATS)
def test_a_copy_with_values_has_the_records_and_needs_no_files(tmp_path, storage, form):
    expected = [plain(each) for each in write_numbered(tmp_path / "in", form, COUNTS)]
    target = yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=None)
    for read in (True, False):
        adopted(storage, tmp_path / "in", form, f"{read}", files=yogadl.FileOptions(read=read))
        assert copy(storage, target, "d", f"{read}", materialize=True)
        assert not copy(storage, target, "d", f"{read}", materialize=True)
    for path in (tmp_path / "in").iterdir():
        path.unlink()
    for read in (True, False):
        assert every(target.fetch("d", f"{read}")) == expected


def test_values_in_a_file_of_gigabytes_that_is_not_read(tmp_path, storage):
    """Its blocks are many; a place in the file has more than 32 bits."""
    rows, row_bytes = 5200, 2**20
    path = tmp_path / "a.npy"
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (rows, row_bytes))  # a sparse file
    chosen = [0, 1022, 1023, 1024, 1025, 2047, 2048, 4094, 4095, 4096, 4097, 5199]
    for number in chosen:
        array[number, :3] = array[number, -3:] = number % 256, number // 256, 7
    array.flush()
    del array
    ref = adopted(storage, path, "npy", files=yogadl.FileOptions(read=False))
    for number in chosen:
        row = ref[number]
        assert row.shape == (row_bytes,)
        assert row[:3].tolist() == row[-3:].tolist() == [number % 256, number // 256, 7]
        assert not row[3:-3].any()


def test_what_was_not_read_can_not_be_checked(tmp_path, storage):
    write_numbered(tmp_path / "in", "jsonl", [3])
    adopted(storage, tmp_path / "in", "jsonl", files=yogadl.FileOptions(read=False))
    with pytest.raises(ConfigurationError, match="no checksums"):
        storage.fetch("d", "1", check=True)


def test_the_shards_that_an_index_names_are_found_through_links(tmp_path, storage):
    (tmp_path / "real").mkdir()
    columns, listed = {"text": "str"}, []
    for number in (1, 0):  # the order is that of the index
        name, shard = f"shard.{number}.mds", mds_of(columns, [[b"text %d" % number]] * 3)
        (tmp_path / "real" / name).write_bytes(shard)
        raw_data = {"basename": name, "bytes": len(shard), "hashes": {}}
        listed.append({**mds_config(columns), "samples": 3, "raw_data": raw_data, "zip_data": None})
    (tmp_path / "real/index.json").write_text(json.dumps({"version": 2, "shards": listed}))
    (tmp_path / "link").symlink_to("real")
    for number, path in enumerate(("real", "link", "link/", "link/index.json")):
        ref = adopted(storage, f"{tmp_path}/{path}", "mds", f"{number}")
        assert list(ref.gather(range(6))["text"]) == ["text 1"] * 3 + ["text 0"] * 3
        assert storage.refresh("d", f"{number}", "none").lineage.version == f"{number}"


# Paths.


def test_patterns_find_the_files_in_order(tmp_path, storage, monkeypatch):
    names = ["a1.jsonl", "a2.jsonl", "b1.jsonl", "sub/a3.jsonl", "sub/deep/a4.jsonl", "a5.other",
             "with space.jsonl", "ümläut.jsonl", ".hidden.jsonl"]  # fmt: skip
    for name in names:
        write(tmp_path / "in" / name, "jsonl", [name.encode()])
    (tmp_path / "in/folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "in/pipe.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    tops = ["a1.jsonl", "a2.jsonl", "b1.jsonl"]
    cases = {
        "in/a?.jsonl": tops[:2],
        "in/[ab]1.jsonl": ["a1.jsonl", "b1.jsonl"],
        "in/[!a]1.jsonl": ["b1.jsonl"],
        "in/**/a*.jsonl": ["a1.jsonl", "a2.jsonl", "sub/a3.jsonl", "sub/deep/a4.jsonl"],
        "in/*.jsonl": [*tops, "with space.jsonl", "ümläut.jsonl"],
        "in/*/a3.jsonl": ["sub/a3.jsonl"],
        "in/a{1..2}.jsonl": tops[:2],
        "in/{2..2}a.jsonl": None,
        "in/a5.other": ["a5.other"],
        "~/in/a1.jsonl": ["a1.jsonl"],
        "in/sub": ["sub/a3.jsonl", "sub/deep/a4.jsonl"],
        "in/sub/": ["sub/a3.jsonl", "sub/deep/a4.jsonl"],
        "in/sub/../b1.jsonl": ["b1.jsonl"],
        "in/pipe.jsonl": None,
        "in/folder.jsonl": None,
        "in/none.jsonl": None,
        "in/c*.jsonl": None,
        ("in/b1.jsonl", "in/a1.jsonl"): ["b1.jsonl", "a1.jsonl"],
        ("in/sub", Path("in/a1.jsonl")): ["sub/a3.jsonl", "sub/deep/a4.jsonl", "a1.jsonl"],
    }
    for number, (pattern, expected) in enumerate(cases.items()):
        paths = list(pattern) if isinstance(pattern, tuple) else pattern
        if expected is None:
            with pytest.raises(ConfigurationError, match="there is no file"):
                storage.adopt(paths, "d", f"{number}", format="jsonl")
            continue
        storage.adopt(
            paths, "d", f"{number}", format="jsonl", files=yogadl.FileOptions(read=bool(number % 2))
        )
        assert every(storage.fetch("d", f"{number}")) == [name.encode() for name in expected], pattern


@pytest.mark.parametrize("paths", ["", [], [""], b"a", [b"a"], 3, None, [None]])
def test_what_names_no_files_is_refused(storage, paths):
    with pytest.raises(ConfigurationError, match="give a path"):
        storage.adopt(paths, "d", "1", format="jsonl")


@pytest.mark.parametrize("pattern", ["a{3..1}.jsonl", "a{0..9999999}.jsonl", "{0..99999}{0..99999}.jsonl"])
def test_braces_that_count_too_much_are_refused_at_once(tmp_path, storage, pattern):
    write(tmp_path / "a0.jsonl", "jsonl", [b"a"])
    with pytest.raises(ConfigurationError):
        storage.adopt(str(tmp_path / pattern), "d", "1", format="jsonl")


@pytest.mark.parametrize("second", ["a.jsonl", "*.jsonl", "link.jsonl", ".", "{0..0}/../a.jsonl"])
def test_a_file_that_is_named_twice_is_refused(tmp_path, storage, second):
    write(tmp_path / "in/a.jsonl", "jsonl", [b"a"])
    (tmp_path / "in/0").mkdir()
    (tmp_path / "in/link.jsonl").symlink_to(tmp_path / "in/a.jsonl")
    with pytest.raises(ConfigurationError, match=r"a\.jsonl is named twice"):
        storage.adopt([str(tmp_path / "in/a.jsonl"), f"{tmp_path}/in/{second}"], "d", "1", format="jsonl")


def test_links_are_followed_to_files_that_are_there(tmp_path, storage):
    write(tmp_path / "real/a.jsonl", "jsonl", [b"a"])
    (tmp_path / "in").mkdir()
    (tmp_path / "in/b.jsonl").symlink_to("../real/a.jsonl")
    (tmp_path / "linked").symlink_to("in")
    assert every(adopted(storage, tmp_path / "linked/*.jsonl", "jsonl")) == [b"a"]
    (tmp_path / "in/c.jsonl").symlink_to("nowhere")
    for pattern in ("linked/*.jsonl", "in"):
        with pytest.raises(ConfigurationError, match=r"c\.jsonl is a link to what is not there"):
            adopted(storage, tmp_path / pattern, "jsonl", "2")


@pytest.mark.parametrize("name", ["a\nb.jsonl", "\x1b[2J.jsonl", os.fsdecode(b"\xff.jsonl"), "\u202e.jsonl"])
def test_names_that_can_not_be_kept_are_refused_before_files_are_read(tmp_path, storage, name):
    write(tmp_path / "in" / name, "jsonl", [b"a"])
    with pytest.raises(ConfigurationError, match="rename it"):
        adopted(storage, tmp_path / "in", "jsonl")


def test_a_folder_that_can_not_be_listed_is_an_error():
    def adopt_as_somebody_else(folder):
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            yogadl.open_storage(f"{folder}/caches").adopt(f"{folder}/in", "d", "1", format="jsonl")
        except StorageError as error:
            return str(error)
        return "nothing"

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        write(Path(folder) / "in/a.jsonl", "jsonl", [b"a"])
        write(Path(folder) / "in/closed/b.jsonl", "jsonl", [b"b"])
        (Path(folder) / "in/closed").chmod(0o700 if os.geteuid() == 0 else 0)
        assert "in/closed" in in_fork(adopt_as_somebody_else, folder)
        (Path(folder) / "in/closed").chmod(0o700)


@pytest.mark.parametrize("form", FORMATS)
def test_files_without_records_are_left_out(tmp_path, storage, form):
    counts = [2, 0, 3, 0] if form == "webdataset" else [0, 2, 0, 3, 0]
    expected = [plain(each) for each in write_numbered(tmp_path / "in", form, counts)]
    for read in (True, False):
        assert (
            every(adopted(storage, tmp_path / "in", form, f"{read}", files=yogadl.FileOptions(read=read)))
            == expected
        )
    write(tmp_path / f"none/a.{SUFFIXES[form]}", form, [])
    with pytest.raises(UnsupportedDataError):
        adopted(storage, tmp_path / "none", form, "3")


@pytest.mark.parametrize("name", ["a[1].jsonl", "[b].jsonl", "c[.jsonl"])
def test_a_name_with_brackets_is_that_file(tmp_path, storage, name):
    write(tmp_path / "in" / name, "jsonl", [b"1" * 30])
    write(tmp_path / "in/a1.jsonl", "jsonl", [b"2" * 30])
    assert every(adopted(storage, tmp_path / "in" / name, "jsonl")) == [b"1" * 30]
    if name != "a[1].jsonl":  # then it is a pattern
        assert every(adopted(storage, tmp_path / "in/a[1].jsonl", "jsonl", "2")) == [b"2" * 30]


def test_files_without_a_byte_are_refused_by_name(tmp_path, storage):
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_bytes(b"")
    with pytest.raises(UnsupportedDataError, match=r"/a\.jsonl is empty: there are no records"):
        adopted(storage, tmp_path / "a.jsonl", "jsonl")
    with pytest.raises(UnsupportedDataError, match=r"/a\.jsonl is empty, and so are the 2 others"):
        adopted(storage, tmp_path / "*.jsonl", "jsonl")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///data/a.jsonl", "give the path of a local file, without file://"),
        ("https://example.org/a.jsonl", "files of https:// can't be adopted"),
        ("hdfs://cluster/a.jsonl", "files of hdfs:// can't be adopted"),
        ("s3://bucket/a.jsonl", "lies outside of what this storage may read"),
    ],
)
def test_urls_that_are_not_read_say_what_to_do(storage, url, said):
    with pytest.raises(ConfigurationError, match=said):
        adopted(storage, url, "jsonl")


@pytest.mark.parametrize("window_bytes", [64, 2**20])
def test_text_that_is_no_utf8_is_found_where_it_is_read(tmp_path, storage, monkeypatch, window_bytes):
    set_constants(monkeypatch, FOREIGN_WINDOW_BYTES=window_bytes)
    texts = [b"plain", "ü".encode() * 60, b"", "ü".encode()[:1], b"last"]
    for count in (5, 3):  # the first three are sound
        records = [example_of(t=bytes_feature(text)) for text in texts[:count]]
        (tmp_path / f"{count}.tfrecord").write_bytes(tfrecord_of(records))
    how = {"format": "tfrecord", "files": yogadl.FileOptions(features={"t": "str"})}
    with pytest.raises(UnsupportedDataError, match=r"5\.tfrecord, byte \d+: a text there is not UTF-8"):
        storage.adopt(tmp_path / "5.tfrecord", "d", "1", **how)
    storage.adopt(tmp_path / "3.tfrecord", "d", "1", **how)
    assert storage.fetch("d", "1").gather(range(3))["t"] == [text.decode() for text in texts[:3]]
    unread = yogadl.FileOptions(read=False, features={"t": "str"})
    storage.adopt(tmp_path / "5.tfrecord", "d", "2", format="tfrecord", files=unread)
    ref = storage.fetch("d", "2")
    assert ref[4]["t"] == "last"
    with pytest.raises(CacheFormatError, match=r"not UTF-8: adopt the files with FileOptions\(read=True\)"):
        ref.gather([0, 3])
