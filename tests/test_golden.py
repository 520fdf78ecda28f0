"""The golden cache must open for ever: it was written by the first release of format version 1."""

import importlib.util
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from inside import _build
from trees import assert_same

import yogadl
import yogadl.storage

GOLDEN = Path(__file__).parent / "golden"


def program(name):
    spec = importlib.util.spec_from_file_location(f"golden_{name}", GOLDEN / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make, read = program("make"), program("read")
FINGERPRINT, DIGEST = read.FINGERPRINT, read.DIGEST


@pytest.fixture
def storage(tmp_path):
    shutil.copytree(GOLDEN / "v1", tmp_path / "v1")
    return yogadl.open_storage(tmp_path / "v1")


def test_the_golden_cache_opens_and_holds_what_was_written(storage):
    ref = storage.fetch("golden/forms", "1", digest=DIGEST)
    assert len(ref) == make.RECORDS
    for i, record in enumerate(ref):
        assert_same(record, make.record(i))


def test_the_program_that_a_release_runs_reads_the_golden_cache(capsys):
    read.main()
    assert f"{make.RECORDS} golden records" in capsys.readouterr().out


def test_the_golden_cache_verifies(storage):
    assert storage.verify("golden/forms", "1").records == make.RECORDS


def test_the_golden_cache_whose_indexes_are_named_after_their_parts_is_kept_and_copied(storage, tmp_path):
    storage.prune(grace_s=0)
    other = yogadl.open_storage(tmp_path / "other")
    assert yogadl.storage.copy(storage, other, "golden/forms", "1")
    assert not yogadl.storage.copy(other, storage, "golden/forms", "1"), "it has all of it"
    for each in (storage, other):
        assert each.fetch("golden/forms", "1", digest=DIGEST).fingerprint == FINGERPRINT
        assert each.verify("golden/forms", "1").records == make.RECORDS


def test_the_same_records_still_have_the_golden_fingerprint(storage, tmp_path):
    assert storage.fetch("golden/forms", "1").fingerprint == FINGERPRINT
    again = yogadl.open_storage(tmp_path / "again")
    again.submit(map(make.record, range(make.RECORDS)), "again", "1")
    assert again.fetch("again", "1").fingerprint == FINGERPRINT


def test_records_are_appended_to_the_golden_cache_in_its_structure(storage):
    assert any(field.name == "pair/1/0" for field in storage.fetch("golden/forms", "1").spec.fields)  # a list
    more = [make.record(i) for i in range(make.RECORDS, 2 * make.RECORDS)]
    turned = [dict(reversed(record.items())) for record in more]  # the version's order of keys stays
    for version, records in (("2", more), ("3", lambda: iter(turned))):
        ref = storage.append(records, "golden/forms", version, base_version="1")
        for i, record in zip(range(2 * make.RECORDS), ref, strict=True):
            assert_same(record, make.record(i))
            assert list(record) == list(make.record(i))


def test_a_cursor_of_the_golden_cache_still_means_the_same_records(storage):
    cursor = {
        "yogadl": 1,
        "epoch": 2,
        "position": 9,
        "records": 23,
        "fingerprint": FINGERPRINT,
        "order": {"name": "global", "version": 1},
        "seed": 7,
        "skip_shuffle_at_epoch_end": False,
    }
    stream = storage.fetch("golden/forms", "1").stream(shuffle=True, shuffle_seed=7, cursor=cursor)
    assert [int(record["id"]) for record in stream] == IDS


IDS = [15, 12, 20, 5, 13, 8, 1, 11, 22, 18, 0, 4, 6, 7]


def test_records_in_pickles_of_earlier_releases_come_back(tmp_path):
    """A namedtuple from a cache is pickled by the name of a function: by users, and in fields of objects."""
    pickled = (
        b"\x80\x04\x95K\x00\x00\x00\x00\x00\x00\x00\x8c\x0cyogadl._spec\x94\x8c\x13rebuild_named_tuple\x94\x93"
        b"\x94\x8c\x05Point\x94\x8c\x01x\x94\x8c\x01y\x94\x86\x94K\x01G@\x04\x00\x00\x00\x00\x00\x00\x86"
        b"\x94\x87\x94R\x94."
    )
    point = pickle.loads(pickled)
    assert repr(point) == "Point(x=1, y=2.5)"
    assert pickle.dumps(point, protocol=4) == pickled
    shutil.copytree(GOLDEN / "objects", tmp_path / "objects")
    storage = yogadl.open_storage(tmp_path / "objects")
    ref = storage.fetch("golden/objects", "1", allow_pickle=True)
    other = point._replace(x=3, y=4.5)
    assert [record["objects"] for record in ref] == [frozenset([point]), frozenset([other])]
    assert storage.verify("golden/objects", "1").records == 2
    again = yogadl.open_storage(tmp_path / "again")
    again.submit(list(ref), "golden/objects", "1", records=yogadl.RecordOptions(allow_pickle=True))
    assert again.fetch("golden/objects", "1", allow_pickle=True).fingerprint == ref.fingerprint


def killed(tmp_path, name):
    """Return a storage with a build that was killed under a version with another form of receipts."""
    shutil.copytree(GOLDEN / "killed" / name, tmp_path / name, copy_function=shutil.copyfile)
    return yogadl.open_storage(tmp_path / name)


def numbers(storage):
    storage.verify("d", "1")
    assert storage.unfinished() == []
    return [int(record["n"]) for record in storage.fetch("d", "1")]


def test_a_killed_build_of_an_older_version_goes_on_at_its_last_part(tmp_path, caplog):
    storage = killed(tmp_path, "alone")
    with caplog.at_level("INFO", "yogadl"):
        storage.submit({"n": np.arange(5)}, "d", "1", build=yogadl.BuildOptions(part_bytes=16))
    assert "continuing at record 4" in caplog.text
    assert numbers(storage) == list(range(5))


def test_a_killed_build_of_an_older_version_by_an_executor_writes_what_is_missing(tmp_path, monkeypatch):
    storage, run, written = killed(tmp_path, "shares"), _build.Build.write_parts, []
    monkeypatch.setattr(_build.Build, "write_parts", lambda *args: written.append(run(*args)) or written[-1])
    with ThreadPoolExecutor(1) as engine:
        storage.submit({"n": np.arange(3)}, "d", "1", build=yogadl.BuildOptions(engine=engine))
    assert len(written) == 1
    assert numbers(storage) == list(range(3))


def test_partitions_that_an_older_version_wrote_are_committed(tmp_path):
    storage = killed(tmp_path, "tasks")
    build = storage.begin("d", "1", partitions=3, run="job")
    for partition in range(3):
        build.write(partition, {"n": np.array([100 + partition])})
    build.commit()
    assert numbers(storage) == [0, 1, 2, 3, 102]


@pytest.mark.parametrize(("name", "parts"), [("alone", 2), ("shares", 2), ("tasks", 2)])
def test_the_parts_of_a_killed_build_of_an_older_version_are_found(tmp_path, name, parts):
    storage = killed(tmp_path, name)
    storage.submit({"n": np.arange(1000, 1003)}, "d", "2")
    before = len(list(tmp_path.rglob("*.mdb")))
    assert storage.unfinished()[0].size_bytes > parts * 20_000
    storage.prune(grace_s=0)
    assert len(list(tmp_path.rglob("*.mdb"))) == (before if name == "tasks" else before - parts)
