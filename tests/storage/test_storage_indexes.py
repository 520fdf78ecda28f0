"""Parts of equal bytes that lie differently: each cache keeps the index of its own."""

from pathlib import Path

import numpy as np
import pytest
from cache_files import parts_and_indexes

import yogadl
from yogadl.storage import copy

FLAT = np.arange(40 * 784, dtype=np.uint8).reshape(40, 784)

# Pairs of sources whose part files have the same bytes, though their records differ.
ALIKE = {
    "flat images, then square ones": ({"x": FLAT}, {"x": FLAT.reshape(40, 28, 28)}),
    "a zero more, which the padding of a page has anyway": (np.array([1, 2, 3]), np.array([1, 2, 3, 0])),
}


def assert_holds(storage, version, source):
    ref = storage.fetch("d", version)
    assert storage.verify("d", version).records == len(ref)
    found = ref.gather(range(len(ref)))
    if isinstance(source, dict):
        found, source = found["x"], source["x"]
    np.testing.assert_array_equal(found, source)


@pytest.mark.parametrize("name", ALIKE)
def test_of_two_versions_with_equal_files_both_verify_and_can_be_copied(storage, tmp_path, name):
    for version, source in zip("12", ALIKE[name], strict=True):
        storage.submit(source, "d", version)
    pairs = parts_and_indexes(Path(storage.location) / "d")
    assert len({part for part, _ in pairs}) == 1 < len({index for _, index in pairs}), "they are not alike"
    storage.prune(grace_s=0)
    other = yogadl.open_storage(tmp_path / "other")
    for version, source in zip("12", ALIKE[name], strict=True):
        assert_holds(storage, version, source)
        assert copy(storage, other, "d", version)
        assert not copy(storage, other, "d", version), "all of it is there"
    for version, source in zip("12", ALIKE[name], strict=True):
        assert_holds(other, version, source)


def test_when_one_of_two_versions_with_equal_files_is_pruned_the_other_keeps_its_index(storage):
    for version, source in zip("12", ALIKE["flat images, then square ones"], strict=True):
        storage.submit(source, "d", version)
    storage.delete("d", "2")
    storage.prune(grace_s=0)
    assert len(parts_and_indexes(Path(storage.location) / "d")) == 1
    assert_holds(storage, "1", ALIKE["flat images, then square ones"][0])


def test_shares_of_equal_labels_are_built_by_several_workers(storage):
    storage.submit(np.zeros(301, np.int64), "d", "1", workers=3)
    assert_holds(storage, "1", np.zeros(301, np.int64))


def test_parts_of_equal_bytes_and_unequal_counts_are_copied_each_with_its_index(storage, tmp_path):
    build = storage.begin("d", "1", partitions=3)
    for number, count in enumerate((100, 100, 101)):
        build.write(number, np.zeros(count, np.int64))
    build.commit()
    other = yogadl.open_storage(tmp_path / "other")
    assert copy(storage, other, "d", "1")
    assert_holds(other, "1", np.zeros(301, np.int64))
