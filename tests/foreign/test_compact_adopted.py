"""Compacting a version that was adopted joins its index, and leaves the values where they lie."""

import os

import numpy as np
import pytest
from adopted_files import FORMATS, SUFFIXES, every, plain, write, write_numbered
from inside import set_constants

import yogadl
from yogadl.errors import CacheFormatError, DatasetNotFoundError
from yogadl.storage import copy

COUNTS = [13, 1, 40, 7]


@pytest.fixture(autouse=True)
def one_file_a_group(monkeypatch):
    set_constants(monkeypatch, LEAST_GROUP_BYTES=0, LEAST_UNREAD_FILES=1)


def adopted(storage, folder, form, counts=COUNTS, **options):
    records = write_numbered(folder, form, counts)
    storage.adopt(f"{folder}/*.{SUFFIXES[form]}", "d", "1", format=form, **options)
    return [plain(record) for record in records]


def large_lines(folder, count=60, size=20_000):
    """Write lines that are far larger than an index of them."""
    rng = np.random.default_rng(0)
    lines = [b'"%s"' % rng.bytes(size // 2).hex().encode() for _ in range(count)]
    for number in range(3):
        write(folder / f"{number}.jsonl", "jsonl", lines[number::3])
    return [line for number in range(3) for line in lines[number::3]]


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("form", FORMATS)
def test_a_compacted_version_has_the_same_records_in_fewer_parts(tmp_path, storage, form, read):
    records = adopted(storage, tmp_path / "in", form, files=yogadl.FileOptions(read=read))
    storage.compact("d", "1", "2")
    before, after = storage.info("d", "1"), storage.info("d", "2")
    assert after.is_adopted == before.is_adopted
    assert after.parts == 1 < before.parts
    assert after.fingerprint == before.fingerprint
    ref = storage.fetch("d", "2")
    assert every(ref) == records
    shuffled = np.random.default_rng(1).permutation(len(records)).tolist()
    assert every(ref, shuffled) == [records[number] for number in shuffled]
    storage.verify("d", "2")
    storage.compact("d", "2", "3")  # and once more
    assert storage.info("d", "3").fingerprint == before.fingerprint
    assert every(storage.fetch("d", "3")) == records


def test_values_in_foreign_files_are_not_copied_unless_that_is_asked_for(tmp_path, storage):
    lines = large_lines(tmp_path / "in")
    storage.adopt(f"{tmp_path}/in", "d", "1")
    storage.compact("d", "1", "2")
    storage.compact("d", "1", "3", materialize=True)
    whole = sum(map(len, lines))
    assert storage.info("d", "2").size_bytes < whole / 20 < whole < storage.info("d", "3").size_bytes
    assert [storage.info("d", name).is_adopted for name in "123"] == [True, True, False]
    assert len({storage.info("d", name).fingerprint for name in "123"}) == 1
    cursor = iter(storage.fetch("d", "1").stream(shuffle=True, shuffle_seed=3))
    seen = [next(cursor) for _ in range(20)]
    state = cursor.state_dict()
    left = [
        list(storage.fetch("d", name).stream(shuffle=True, shuffle_seed=3, cursor=state)) for name in "123"
    ]
    assert left[0] == left[1] == left[2]
    assert sorted(seen + left[1]) == sorted(lines)
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    assert every(storage.fetch("d", "3")) == lines
    with pytest.raises(CacheFormatError):
        every(storage.fetch("d", "2"))


def test_parts_may_end_within_a_block_of_a_foreign_file(tmp_path, storage):
    records = adopted(storage, tmp_path / "in", "webdataset")
    storage.compact("d", "1", "2", build=yogadl.BuildOptions(part_bytes=200))
    assert storage.info("d", "2").parts > len(COUNTS)
    assert every(storage.fetch("d", "2")) == records
    storage.compact("d", "2", "3")
    assert storage.info("d", "3").parts == 1
    assert storage.info("d", "3").fingerprint == storage.info("d", "1").fingerprint
    storage.verify("d", "2")
    storage.verify("d", "3")


@pytest.mark.usefixtures("forked_workers")
def test_workers_compact_the_same_version(tmp_path, storage):
    records = adopted(storage, tmp_path / "in", "webdataset")
    storage.compact("d", "1", "2", workers=2)
    assert storage.info("d", "2").is_adopted
    assert storage.info("d", "2").fingerprint == storage.info("d", "1").fingerprint
    assert every(storage.fetch("d", "2", check=True)) == records


@pytest.mark.parametrize("read", [True, False])
def test_records_of_the_cache_and_of_foreign_files_stay_what_they_are(tmp_path, storage, read):
    storage.submit([b"a", b"bb"], "d", "0")
    write_numbered(tmp_path / "in", "jsonl", [30, 5])
    storage.adopt(f"{tmp_path}/in", "d", "1", files=yogadl.FileOptions(base_version="0", read=read))
    storage.append([b"c"], "d", "2", base_version="1")
    storage.compact("d", "2", "3")
    before, after = storage.info("d", "2"), storage.info("d", "3")
    assert (after.fingerprint, after.records, after.is_adopted) == (before.fingerprint, 38, True)
    assert [each.version for each in after.earlier] == ["0", "1"]
    assert every(storage.fetch("d", "3")) == every(storage.fetch("d", "2"))
    storage.verify("d", "3")
    storage.append([b"d"], "d", "4", base_version="3")
    assert every(storage.fetch("d", "4")) == [*every(storage.fetch("d", "2")), b"d"]


def test_a_file_that_was_changed_ends_compacting(tmp_path, storage):
    lines = large_lines(tmp_path / "in")
    storage.adopt(f"{tmp_path}/in", "d", "1")
    file = tmp_path / "in/1.jsonl"
    status, content = file.stat(), bytearray(file.read_bytes())
    content[len(lines[0]) + 5] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(CacheFormatError, match=r"1\.jsonl"):
        storage.compact("d", "1", "2")
    with pytest.raises(DatasetNotFoundError):
        storage.info("d", "2")


def test_a_compacted_version_is_copied_and_refreshed(tmp_path, storage):
    records = adopted(storage, tmp_path / "in", "jsonl")
    storage.compact("d", "1", "2")
    other = yogadl.open_storage(tmp_path / "other")
    assert copy(storage, other, "d", "2")
    assert every(other.fetch("d", "2")) == records
    assert copy(storage, yogadl.open_storage(tmp_path / "third"), "d", "2", materialize=True)
    write(tmp_path / "in/9.jsonl", "jsonl", [b'"new"'])
    assert storage.refresh("d", "2", "3").lineage.version == "3"
    assert every(storage.fetch("d", "3")) == [*records, b'"new"']
    assert storage.info("d", "3").earlier[-1].version == "2"


@pytest.mark.parametrize("options", [{"mirror": None}, {}, {"mirror": None, "verify": "block"}])
def test_a_version_in_a_bucket_is_compacted(tmp_path, options):
    lines = large_lines(tmp_path / "raw")
    url = f"file://{tmp_path}/raw"
    if not options:
        options = {"mirror": tmp_path / "mirror"}
    bucket = yogadl.open_storage(f"file://{tmp_path}/bucket", foreign={url: {}}, **options)
    bucket.adopt(f"{url}/*.jsonl", "d", "1")
    bucket.compact("d", "1", "2")
    assert bucket.info("d", "2").size_bytes < sum(map(len, lines)) / 20
    assert bucket.info("d", "2").fingerprint == bucket.info("d", "1").fingerprint
    assert every(bucket.fetch("d", "2")) == lines
