"""What builds a version returns the reference to it, made of the manifest that it has written."""

import pickle

import numpy as np
import pytest

import yogadl
from yogadl.errors import ConfigurationError, DatasetNotFoundError


def assert_same(ref, fetched):
    assert type(ref) is type(fetched)
    assert (ref.fingerprint, len(ref), ref.spec) == (fetched.fingerprint, len(fetched), fetched.spec)
    assert (ref.lineage, ref.metadata) == (fetched.lineage, fetched.metadata)
    assert repr(ref) == repr(fetched)
    for one in (ref, pickle.loads(pickle.dumps(ref))):
        assert np.array_equal(one.gather(range(len(one))), fetched.gather(range(len(fetched))))


def test_what_builds_returns_what_fetch_returns(storage):
    made = [
        storage.submit(np.arange(7), "d", "1", build=yogadl.BuildOptions(metadata={"by": "me"})),
        storage.append(np.arange(7, 11), "d", "2", base_version="1"),
        storage.compact("d", "2", "3"),
        storage.recompress("d", "3", "4", codec=None),
    ]
    for number, ref in enumerate(made, 1):
        assert_same(ref, storage.fetch("d", f"{number}"))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("forked_workers")
def test_adopted_files_are_read_by_the_reference_that_is_returned(storage, tmp_path, workers):
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / f"{name}.jsonl").write_bytes(b"0\n1\n")
    made = [
        storage.adopt(f"{tmp_path}/in/[ab].jsonl", "d", "1", workers=workers),
        storage.adopt(
            f"{tmp_path}/in/c.jsonl", "d", "2", files=yogadl.FileOptions(base_version="1"), workers=workers
        ),
    ]
    for number, ref in enumerate(made, 1):
        assert_same(ref, storage.fetch("d", f"{number}"))


def test_refresh_returns_the_old_version_if_nothing_has_changed(storage, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b"0\n1\n")
    storage.adopt(f"{tmp_path}/in/*.jsonl", "d", "1")
    storage.tag("d", "newest", "1")
    assert_same(storage.refresh("d", "newest", "2"), storage.fetch("d", "1"))
    assert storage.versions("d") == ["1"]
    (tmp_path / "in" / "b.jsonl").write_bytes(b"2\n")
    assert_same(storage.refresh("d", "newest", "2"), storage.fetch("d", "2"))


def test_a_reference_reads_what_its_call_has_built_though_it_was_replaced_since(storage):
    first = storage.submit(np.arange(5), "d", "1")
    second = storage.submit(np.arange(6), "d", "1")
    assert (len(first), len(second)) == (5, 6)
    assert first.gather(range(5)).tolist() == list(range(5))


def test_a_reference_to_what_was_pruned_says_so_at_the_first_read(storage):
    ref = storage.submit(np.arange(5), "d", "1")
    storage.delete("d", "1")
    storage.prune(grace_s=0)
    assert len(ref) == 5
    with pytest.raises(DatasetNotFoundError, match="'d' version '1'"):
        ref.gather([0])


def test_pickled_fields_are_read_where_the_call_has_allowed_it(storage):
    records = [{"x": {1, n}} for n in range(3)]
    ref = storage.submit(records, "d", "1", records=yogadl.RecordOptions(allow_pickle=True))
    assert ref[2] == {"x": {1, 2}}
    compacted = storage.compact("d", "1", "2")
    assert compacted.fingerprint == ref.fingerprint
    with pytest.raises(ConfigurationError, match="allow_pickle=True"):
        compacted.gather([0])
