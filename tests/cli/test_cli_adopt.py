"""adopt and refresh: versions of the files of other libraries, and what the other commands say of them."""

import io
import os
import struct
import tarfile

import numpy as np
import pytest
from foreign_files import bytes_feature, entry, example_of, float_feature, int64_feature, tfrecord_of
from inside import _arguments, format_of_name, parse_feature, set_constants

import yogadl

pytestmark = pytest.mark.filterwarnings("always::UserWarning")


def write_tar(path, first, count, *, lacks=()):
    """Write samples with an image and a class; those in `lacks` have no class."""
    with tarfile.open(path, "w") as shard:
        for number in range(first, first + count):
            members = {"jpg": b"\xff\xd8" + bytes([number]) * 1_000, "cls": b"%d" % (number % 10)}
            for ending, content in members.items():
                if ending == "jpg" or number not in lacks:
                    member = tarfile.TarInfo(f"{number:06d}.{ending}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))


@pytest.fixture
def raw(tmp_path):
    """Return a folder with two shards: 20 samples."""
    folder = tmp_path / "raw"
    folder.mkdir()
    write_tar(folder / "train-000.tar", 0, 10)
    write_tar(folder / "train-001.tar", 10, 10)
    return folder


@pytest.fixture
def adopt(run, raw):
    """Adopt the shards as version 1 of dataset d; other words are added."""
    return lambda *words: run("adopt", "d", "1", f"{raw}/*.tar", *words)


def keys(storage, version="1"):
    ref = storage.fetch("d", version)
    return [int(ref[number]["__key__"]) for number in range(len(ref))]


def test_the_records_are_those_of_the_files_and_only_an_index_is_written(adopt, storage, raw):
    ended = adopt().ends(0)
    assert ended.out.startswith("Built d 1 in ")
    size_bytes = sum(path.stat().st_size for path in raw.iterdir())
    assert f"Its values stay in 2 files of {size_bytes / 1000:.1f} kB (webdataset)" in ended.out
    assert "which were read through.\nFingerprint, the same on every machine: " in ended.out
    assert keys(storage) == list(range(20))
    assert storage.fetch("d", "1")[7]["jpg"] == b"\xff\xd8" + bytes([7]) * 1_000
    assert storage.info("d", "1").is_adopted


def test_files_that_are_not_read_have_a_fingerprint_of_their_sizes_and_tags(adopt, storage):
    ended = adopt("--no-read")
    assert "which were not read through.\nFingerprint, made of the sizes and tags of the files: " in ended.out
    assert keys(storage) == list(range(20))


def test_a_version_that_exists_is_left_as_it_is(adopt, storage):
    adopt()
    digest = storage.info("d", "1").digest
    ended = adopt().ends(0)
    assert ended.out.startswith("d 1 is there already, ")
    assert ended.err == "yogadl: nothing was built; --replace builds it again\n"
    assert storage.info("d", "1").digest == digest
    assert adopt("--replace").out.startswith("Built d 1 in ")
    assert storage.info("d", "1").digest != digest


def test_a_version_of_other_files_or_options_is_left_with_a_warning(adopt, run, raw, storage):
    adopt()
    ended = adopt("--no-read", "--field", "jpg")
    assert (
        "warning: 'd' version '1' was adopted otherwise than this call says (read: True -> False; "
        in ended.err
    )
    assert "options: {} -> {'fields': ['jpg']}). It is left as it is" in ended.err
    ended = run("adopt", "d", "1", raw / "train-000.tar")
    assert "(paths: " in ended.err
    assert len(storage.fetch("d", "1")) == 20
    storage.submit([1], "d", "1")
    assert "was not adopted from foreign files. It is left as it is" in adopt().err


def test_metadata_is_kept_and_some_fields_are_taken(adopt, storage):
    adopt("--metadata", 'classes=["cat", "dog"]', "--field", "cls")
    assert storage.fetch("d", "1").metadata == {"classes": ["cat", "dog"]}
    assert set(storage.fetch("d", "1")[3]) == {"cls", "__key__"}


def test_a_field_that_a_sample_lacks_is_refused_or_empty(adopt, storage, raw):
    write_tar(raw / "train-001.tar", 10, 10, lacks=[13])
    adopt().ends(1, "000013")
    for fill in ("empty", "cls=empty"):
        assert adopt("--missing", fill, "--replace").code == 0
        assert [storage.fetch("d", "1")[number]["cls"] for number in (12, 13)] == [b"2", b""]


def test_workers_read_the_files(adopt, storage):
    assert adopt("--workers", "2").code == 0
    assert keys(storage) == list(range(20))


def test_json_says_all(adopt, raw):
    found = adopt("--json").json
    assert (found["was_built"], found["records"], found["is_adopted"]) == (True, 20, True)
    assert found["adopted"] == {
        "format": "webdataset",
        "paths": [f"{raw}/*.tar"],
        "files": 2,
        "size_bytes": sum(path.stat().st_size for path in raw.iterdir()),
        "is_read": True,
    }
    assert adopt("--json").json["was_built"] is False


# What a record of each format is, and whether the format is found by the names of the files.


def write_megatron(folder):
    """Write three sequences of 2, 3 and 4 tokens."""
    np.arange(9, dtype=np.uint16).tofile(folder / "tokens.bin")
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 2)
    index += np.array([2, 3, 4], np.int32).tobytes() + np.array([0, 4, 10], np.int64).tobytes()
    (folder / "tokens.idx").write_bytes(index + np.array([0, 3], np.int64).tobytes())


def test_a_format_is_found_by_the_names(run, storage, tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(12).reshape(4, 3))
    (tmp_path / "lines.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "t.tfrecord-00000-of-00001").write_bytes(tfrecord_of([b"one", b"two", b"three"]))
    write_megatron(tmp_path)
    for version, name in enumerate(["rows.npy", "lines.jsonl", "t.tfrecord-*", "*.bin"]):
        run("adopt", "d", version, tmp_path / name).ends(0)
    assert storage.fetch("d", "0")[2].tolist() == [6, 7, 8]
    assert storage.fetch("d", "1")[1] == b'{"a": 2}'
    assert storage.fetch("d", "2")[2] == b"three"
    assert storage.fetch("d", "3")[1].tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("s3://bucket/a/*.tar", "webdataset"),
        ("x-{000..099}.tar", "webdataset"),
        ("a.tfrec", "tfrecord"),
        ("a.feather", "arrow"),
        ("a.arrow", "arrow"),
        ("a.mds", "mds"),
        ("a.ndjson", "jsonl"),
        ("a.bin", "megatron"),
        ("gs://b/t.tfrecord-00003-of-00064", "tfrecord"),
        ("t.tfrecord-*-of-00064", "tfrecord"),
        ("t.tfrecord-{00000..00063}-of-00064", "tfrecord"),
        ("train-*", None),
        ("a.tar-*/b", None),
    ],
)
def test_the_format_of_a_name(name, format):
    assert format_of_name(name) == format


# Features.


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ("a=bytes", ("a", "bytes")),
        ("image/encoded=str", ("image/encoded", "str")),
        ("a=b=int64", ("a=b", "int64")),
        ("row=float32[128]", ("row", ("float32", (128,)))),
        ("t=int64[]", ("t", ("int64", (None,)))),
        ("boxes=float32[,4]", ("boxes", ("float32", (None, 4)))),
        ("grid=int64[3, 4]", ("grid", ("int64", (3, 4)))),
    ],
)
def test_a_feature(text, feature):
    assert parse_feature(text) == feature


@pytest.fixture
def examples(tmp_path):
    path = tmp_path / "e.tfrecord"
    path.write_bytes(
        tfrecord_of(
            example_of(
                entry(b"label", int64_feature([number])),
                entry(b"image/encoded", bytes_feature(b"x" * number)),
                entry(b"tokens", int64_feature(range(number))),
                entry(b"row", float_feature([number] * 3)),
            )
            for number in range(7)
        )
    )
    return path


FEATURES = ["label=int64", "image/encoded=bytes", "tokens=int64[]", "row=float32[3]"]


@pytest.fixture
def adopt_examples(run, examples):
    options = [word for feature in FEATURES for word in ("--feature", feature)]
    return lambda version: run("adopt", "d", version, examples, *options)


def test_features_are_those_of_a_call_in_python(adopt_examples, storage, examples):
    features = {
        "label": "int64", "image/encoded": "bytes", "tokens": ("int64", (None,)), "row": ("float32", (3,)),
    }  # fmt: skip
    ref = storage.adopt(examples, "d", "1", format="tfrecord", files=yogadl.FileOptions(features=features))
    assert "warning" not in adopt_examples("1").err
    assert adopt_examples("2").code == 0
    assert storage.fetch("d", "2").fingerprint == ref.fingerprint


def test_files_with_features_are_refreshed(adopt_examples, run, storage, examples):
    adopt_examples("1")
    os.utime(examples, (1, 1))
    assert run("refresh", "d", "1", "2").code == 0
    assert storage.info("d", "2").fingerprint == storage.info("d", "1").fingerprint
    features = {"tokens": yogadl.Leaf("int64", (None,)), "image/encoded": yogadl.Leaf("bytes")}
    storage.adopt(examples, "d", "3", format="tfrecord", files=yogadl.FileOptions(features=features))
    os.utime(examples, (2, 2))
    assert run("refresh", "d", "3", "4").code == 0
    assert storage.fetch("d", "4")[2]["tokens"].tolist() == [0, 1]


def test_records_that_no_file_is_known_for_are_not_lost_by_a_refresh(run, storage, raw, examples):
    storage.submit([{"__key__": "a", "jpg": b"", "cls": b""}], "d", "0")
    assert run("adopt", "d", "1", f"{raw}/*.tar", "--base", "0").code == 0
    assert run("adopt", "d", "copied", examples, "--feature", "label=int64").code == 0
    for version in ("1", "copied"):
        run("refresh", "d", version, "2").ends(1, "have no values in foreign files", "adopt the files again")
    assert storage.versions("d") == ["0", "1", "copied"]


def test_it_is_said_that_small_values_were_copied(run, storage, tmp_path):
    np.save(tmp_path / "numbers.npy", np.arange(7))
    ended = run("adopt", "d", "1", tmp_path / "numbers.npy")
    assert "All its values are small, so they were copied: it needs no other file.\n" in ended.out
    (tmp_path / "numbers.npy").unlink()
    assert storage.fetch("d", "1").gather(range(7)).tolist() == list(range(7))


# Another version first.


def test_the_records_of_another_version_come_first(yoga, adopt, run, root, raw, storage):
    adopt()
    write_tar(raw / "more.tar", 20, 5)
    words = ["adopt", "d", "2", raw / "more.tar", "--base", "1", "-s", root]
    yoga(*words).ends(0)
    assert keys(storage, "2") == list(range(25))
    assert "continues    version 1, with 5 records more" in run("info", "d", "2").out
    again = yoga(*words)
    assert again.out.startswith("d 2 is there already, ")
    assert "warning" not in again.err


# By many tasks.


@pytest.fixture
def groups(monkeypatch):
    """Let each file be a group of its own."""
    set_constants(monkeypatch, LEAST_GROUP_BYTES=1)


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_tasks_in_any_order_adopt_what_one_call_would(adopt, groups, storage, run, raw, tasks):
    write_tar(raw / "train-002.tar", 20, 3)
    for task in reversed(range(tasks)):
        ended = adopt("--task", f"{task + 1}/{tasks}")
        assert ended.out.startswith(f"Task {task + 1} of {tasks} has written "), ended.err
        assert storage.versions("d") == []
    adopt("--commit", "--metadata", "a=1").ends(0)
    assert keys(storage) == list(range(23))
    assert storage.fetch("d", "1").metadata == {"a": 1}
    one = run("adopt", "d", "one", f"{raw}/*.tar")
    assert one.code == 0
    assert storage.info("d", "one").fingerprint == storage.info("d", "1").fingerprint
    assert storage.info("d", "1").builder["adopted"] == storage.info("d", "one").builder["adopted"]


def test_what_tasks_adopted_can_be_refreshed(adopt, groups, storage, run, raw):
    for words in (["--task", "1/2"], ["--task", "2/2"], ["--commit"]):
        assert adopt(*words).code == 0
    write_tar(raw / "train-002.tar", 20, 3)
    assert run("refresh", "d", "1", "2").code == 0
    assert keys(storage, "2") == list(range(23))


def test_a_commit_says_which_tasks_are_missing(adopt, groups, storage):
    adopt("--task", "1/2")
    adopt("--commit").ends(1, "1 of 2 partitions are not written yet: run the tasks 2/2")
    assert storage.versions("d") == []


def test_tasks_that_saw_other_files_are_not_mixed(adopt, groups, storage, raw):
    adopt("--task", "1/2")
    write_tar(raw / "train-001.tar", 30, 10)
    ended = adopt("--task", "2/2")
    assert "other tasks of 'd' version '1' have other code, arguments or source" in ended.err
    assert adopt("--commit").code == 1
    adopt("--task", "1/2")
    assert adopt("--commit").code == 0
    assert keys(storage) == [*range(10), *range(30, 40)]


def test_a_version_is_replaced_by_the_tasks_of_a_run(adopt, groups, storage, raw):
    adopt()
    write_tar(raw / "train-002.tar", 20, 3)
    assert adopt("--task", "1/1").out.startswith("d 1 is there already, ")
    assert adopt("--task", "1/1", "--replace").code == 2
    run = ["--replace", "--run", "job-7"]
    assert adopt("--task", "1/1", *run).code == 0
    assert adopt("--commit", *run).out.startswith("Built d 1 in ")
    assert keys(storage) == list(range(23))
    assert "what the run job-7 has built" in adopt("--commit", *run).err


# Refresh.


def test_nothing_is_built_if_nothing_has_changed(adopt, run, storage):
    adopt()
    ended = run("refresh", "d", "1", "2").ends(0)
    assert ended.out.startswith("The files of d 1 are as they were: 2 files of ")
    assert ended.out.endswith("(webdataset). Nothing is built.\n")
    assert storage.versions("d") == ["1"]
    found = run("refresh", "d", "1", "2", "--json").json
    assert (found["was_built"], found["version"], found["adopted"]["files"]) == (False, "1", 2)


def test_new_files_are_added_and_changed_ones_read_again(adopt, run, raw, storage):
    adopt()
    write_tar(raw / "train-001.tar", 50, 3)
    write_tar(raw / "train-002.tar", 60, 2)
    storage.tag("d", "stable", "1")
    ended = run("refresh", "d@stable", "2").ends(0)
    assert ended.out.startswith("Built d 2 in ")
    assert "Its values stay in 3 files of " in ended.out
    assert "; those of 1 in 2 files of " in ended.out
    assert keys(storage, "2") == [*range(10), *range(50, 53), 60, 61]
    ended = run("refresh", "d", "2", "2")
    assert "Nothing is built" in ended.out
    (raw / "train-000.tar").unlink()
    found = run("refresh", "d", "2", "2", "--json").json
    assert (found["was_built"], found["version"], found["records"]) == (True, "2", 5)
    assert keys(storage, "2") == [*range(50, 53), 60, 61]


def test_as_many_workers_as_are_said_read_them_again(adopt, run, raw, monkeypatch):
    adopt()
    write_tar(raw / "train-002.tar", 60, 2)
    given, refresh = [], yogadl.storage.CacheStorage.refresh

    def noted(*words, **options):
        given.append(options.get("workers"))
        return refresh(*words, **options)

    monkeypatch.setattr(yogadl.storage.CacheStorage, "refresh", noted)
    for version, workers in (("2", ["--workers", "2"]), ("3", [])):
        run("refresh", "d", "1", version, *workers).ends(0)
    assert given == [2, 0]


def test_another_version_is_not_replaced_unawares(adopt, run, raw, storage):
    adopt()
    storage.submit([1], "d", "2")
    write_tar(raw / "train-002.tar", 60, 2)
    ended = run("refresh", "d", "1", "2")
    assert (ended.code, ended.out) == (1, "")
    assert "'d' version '2' exists: give NEW another name, or replace it with --replace" in ended.err
    assert len(storage.fetch("d", "2")) == 1
    assert run("refresh", "d", "1", "2", "--replace").code == 0
    assert keys(storage, "2") == [*range(20), 60, 61]


def test_verify_says_what_it_has_compared(adopt, run):
    adopt()
    ended = run("verify", "d", "1")
    assert ended.out.endswith("\n2 foreign files of it: all bytes were compared with their checksums\n")
    adopt("--no-read", "--replace")
    ended = run("verify", "d", "1")
    assert "\n2 foreign files of it: only their sizes and tags were compared; they were adopted" in ended.out
    (found,) = run("verify", "--all", "--json").json["versions"]
    assert (found["is_sound"], found["foreign_files"], found["foreign_read"]) == (True, 2, False)


# Where files may lie.


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["-s", "caches"], {"s3://b/raw": {}}),
        (["-s", "caches", "--profile", "p", "--anonymous"],
         {"s3://b/raw": {"profile": "p", "anonymous": True}}),
        (["-s", "s3://mine", "--endpoint-url", "http://store:9000"],
         {"s3://b/raw": {"endpoint_url": "http://store:9000"}}),
        (["-s", "gs://mine", "--endpoint-url", "http://store:9000"], {"s3://b/raw": {}}),
        (["-s", "caches", "--region", "r", "--foreign", "gs://c"],
         {"s3://b/raw": {"client_options": {"region_name": "r"}},
          "gs://c": {"client_options": {"region_name": "r"}}}),
    ],
)  # fmt: skip
def test_options_of_a_bucket_are_those_of_the_foreign_files(yoga, monkeypatch, tmp_path, words, options):
    opened = []

    def open_storage(location, **given):
        opened.append((location, given))
        raise yogadl.errors.ConfigurationError("stop")

    monkeypatch.setattr(_arguments, "open_storage", open_storage)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "caches").mkdir()
    assert yoga("head", "d", "1", "--foreign", "s3://b/raw", *words).code == 1
    ((location, given),) = opened
    assert given.pop("foreign") == options
    assert set(given) == ({"endpoint_url"} if "://mine" in location else set())


def test_options_of_a_bucket_are_taken_for_foreign_files(run, squares):
    assert run("ls", "--profile", "p", "--foreign", "s3://b").code == 0


def test_a_storage_reads_where_it_may(yoga, root, raw):
    where = ["-s", f"file://{root}", "--mirror", "none"]
    root.mkdir(exist_ok=True)
    adopt = ["adopt", "d", "1", f"file://{raw}/*.tar", *where]
    yoga(*adopt).ends(1, "lies outside of what this storage may read", "the command takes --foreign URL")
    may = ["--foreign", f"file://{raw}"]
    assert yoga(*adopt, *may).code == 0
    assert "000000" in yoga("head", "d", "1", *where, *may).out
    assert yoga("head", "d", "1", *where).code == 1


def test_pull_fills_the_mirror_with_whole_foreign_files(yoga, root, raw, tmp_path):
    root.mkdir(exist_ok=True)
    where = ["-s", f"file://{root}", "--foreign", f"file://{raw}", "--mirror", tmp_path / "mirror"]
    assert yoga("adopt", "d", "1", f"file://{raw}/*.tar", *where).code == 0
    ended = yoga("pull", "d", "1", *where).ends(0)
    sizes = [path.stat().st_size for path in (tmp_path / "mirror").rglob("*") if path.is_file()]
    assert all(path.stat().st_size in sizes for path in raw.iterdir())
    assert ", and its values: 2 files of " in ended.out
    assert yoga("pull", "d", "1", *where, "--json").json["adopted"]["files"] == 2


# Copies.


def test_a_copy_is_of_the_index_or_of_the_records(yoga, adopt, run, root, raw, tmp_path, storage):
    adopt()
    storage.tag("d", "stable", "1")
    index, whole = tmp_path / "index", tmp_path / "whole"
    assert run("push", "d@stable", index).code == 0
    ended = run("push", "d@stable", whole, "--materialize").ends(0)
    assert ended.out.startswith(f"d 1 is in {whole} now: 20 records, ")
    found = yoga("pull", "d", "1", "--from", root, "--to", whole, "--materialize", "--json").json
    copied = yogadl.open_storage(whole).info("d", "1")
    assert (found["was_copied"], found["digest"]) == (False, copied.digest)
    assert found["size_bytes"] == copied.size_bytes
    assert copied.fingerprint == storage.info("d", "1").fingerprint
    assert [yogadl.open_storage(each).info("d", "1").is_adopted for each in (index, whole)] == [True, False]
    for path in raw.iterdir():
        path.unlink()
    assert len(yogadl.open_storage(whole).fetch("d", "1")[19]["jpg"]) == 1_002
    assert yoga("head", "d", "1", "-s", index).code == 1


def test_a_version_of_its_own_values_is_copied_as_it_is(run, squares, tmp_path):
    assert run("push", "squares", "1", tmp_path / "copy", "--materialize").code == 0
    copied = yogadl.open_storage(tmp_path / "copy").info("squares", "1")
    assert copied.digest == squares.info("squares", "1").digest


# What the other commands say.


@pytest.mark.parametrize("reads", [True, False])
def test_info_says_where_values_lie(adopt, run, raw, storage, reads):
    adopt(*([] if reads else ["--no-read"]))
    size_bytes = sum(path.stat().st_size for path in raw.iterdir())
    out = run("info", "d", "1").out
    assert f"adopted      2 files of {size_bytes / 1000:.1f} kB (webdataset); its values stay there\n" in out
    assert f"read         {'yes, with checksums' if reads else 'no: pinned by size and tag'}\n" in out
    assert " kB in 1 file, the index alone\n" in out
    assert f"from         {raw}/"[:60] in out
    found = run("info", "d", "1", "--json").json
    assert found["adopted"]["is_read"] is reads
    assert found["adopted"]["size_bytes"] == size_bytes
    assert found["size_bytes"] == storage.info("d", "1").size_bytes


def test_info_of_a_cache_says_nothing_of_it(run, squares):
    assert "adopted" not in run("info", "squares", "1").out
    found = run("info", "squares", "1", "--json").json
    assert (found["is_adopted"], found["adopted"]) == (False, None)


def test_ls_names_the_versions_that_are_adopted(adopt, run, squares):
    assert "adopted" not in run("ls").err
    adopt()
    ended = run("ls")
    assert ended.err == "yogadl: adopted, so that values lie in other files (see `yogadl info`): d 1\n"
    document = run("ls", "--json").json
    assert {one["id"]: one["is_adopted"] for one in document["versions"]} == {
        "d": True, "more/texts": False, "squares": False,
    }  # fmt: skip


def test_log_and_explain_say_what_a_version_was_adopted_from(adopt, run, raw, storage):
    adopt()
    write_tar(raw / "train-002.tar", 20, 3)
    run("refresh", "d", "1", "2")
    run("adopt", "d", "3", raw / "train-000.tar", "--no-read")
    storage.submit([1], "d", "4")
    log = run("log", "d").out
    assert "20 records in 1 file, adopted from 2 files, " in log
    assert "adopted from 3 files" in log
    document = run("log", "d", "--json").json
    assert [one["foreign_files"] for one in document["versions"]] == [2, 3, 1, 0]
    same = run("explain", "d", "1", "2").out
    assert "(version '1' was adopted from 2 files)" in same
    assert "(version '2' was adopted from 3 files)" in same
    assert "not built by" not in same
    other = run("explain", "d", "1", "3").out
    assert f"adopted paths: ['{raw}/*.tar'] -> ['{raw}/train-000.tar']" in other
    assert "adopted read: True -> False" in other
    assert "(whether their records differ is not known: foreign files were adopted without reading" in other
    storage.submit(storage.fetch("d", "3"), "d", "copy")
    assert "(their records are the same)" in run("explain", "d", "3", "copy").out
    assert "(version '3' was adopted from 1 file)" in other
    assert "(version '4' was not built by storage.cacheable" in run("explain", "d", "1", "4").out


@pytest.mark.parametrize("reads", [True, False])
def test_the_report_says_it(adopt, run, raw, tmp_path, reads):
    adopt(*([] if reads else ["--no-read"]))
    assert run("report", "d", "1", "-o", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "in 2 other files, " in page
    assert "; the files above are their index" in page
    assert ("read through, with checksums" if reads else "pinned by size and tag") in page
    assert f"{raw}/*.tar" in page
    assert "The code that built it is not recorded." not in page
