"""A version keeps metadata of its user, in every copy and view, outside of the fingerprint."""

import json

import numpy as np
import pytest

import yogadl
from yogadl.errors import CacheFormatError, ConfigurationError

CLASSES = {"classes": ["cat", "dog"], "deep": {"mean": [0.5, None, True]}}
MAX_METADATA_BYTES = 2**16
SHELL_BYTES = len(json.dumps({"text": ""}))


@pytest.fixture
def storage(tmp_path):
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.submit(
        {"x": np.arange(7), "y": np.arange(7)}, "d", "1", build=yogadl.BuildOptions(metadata=CLASSES)
    )
    return storage


def test_a_version_without_metadata_has_none(storage):
    assert storage.fetch("d", "1").metadata == storage.info("d", "1").metadata == CLASSES
    storage.submit(np.arange(7), "d", "2")
    assert storage.fetch("d", "2").metadata == storage.info("d", "2").metadata == {}


def test_the_fingerprint_does_not_depend_on_it(storage):
    storage.submit({"x": np.arange(7), "y": np.arange(7)}, "d", "2")
    assert storage.fetch("d", "1").fingerprint == storage.fetch("d", "2").fingerprint


def test_a_change_of_what_is_returned_changes_nothing(storage):
    ref = storage.fetch("d", "1")
    ref.metadata["deep"]["mean"].append(1)
    assert ref.metadata == CLASSES


def test_views_have_that_of_their_source(storage):
    ref = storage.fetch("d", "1")
    views = [ref[:3], ref[::2][1:], ref.select([3, 1]), ref.fields("x"), ref.map(lambda record: record["x"])]
    assert [view.metadata for view in views] == [CLASSES] * len(views)


def test_records_of_several_versions_have_none(storage):
    ref = storage.fetch("d", "1")
    assert yogadl.concat([ref, ref]).metadata == {}
    assert yogadl.from_source(np.arange(3)).metadata == {}


@pytest.mark.parametrize("how", ["append", "compact"])
def test_a_version_made_of_another_keeps_it(storage, how):
    if how == "append":
        storage.append({"x": np.arange(3), "y": np.arange(3)}, "d", "2", base_version="1")
    else:
        storage.compact("d", "1", "2")
    assert storage.fetch("d", "2").metadata == CLASSES


@pytest.mark.parametrize("own", [{"a": 1}, {}])
def test_an_appended_version_may_have_its_own(storage, own):
    new = {"x": np.arange(3), "y": np.arange(3)}
    storage.append(new, "d", "2", base_version="1", build=yogadl.BuildOptions(metadata=own))
    assert storage.fetch("d", "2").metadata == own
    assert storage.fetch("d", "1").metadata == CLASSES


def test_an_export_has_it(storage, tmp_path):
    storage.export("d", "1", tmp_path / "exported")
    assert json.loads((tmp_path / "exported" / "spec.json").read_text())["metadata"] == CLASSES


def test_workers_and_tasks_keep_it(storage):
    storage.submit(np.arange(100), "d", "2", workers=2, build=yogadl.BuildOptions(metadata=CLASSES))
    build = storage.begin("d", "3", source=np.arange(10), partitions=2)
    for number in range(2):
        build.write(number)
    build.commit(metadata=CLASSES)
    assert storage.fetch("d", "2").metadata == storage.fetch("d", "3").metadata == CLASSES


def test_a_cacheable_keeps_it(storage):
    made = storage.cacheable("c", "1", build=yogadl.BuildOptions(metadata=CLASSES))(lambda: np.arange(3))
    assert made().metadata == made().metadata == CLASSES


def nested(levels):
    return {"a": nested(levels - 1)} if levels else 1


@pytest.mark.parametrize(
    ("most", "says"),
    [
        (lambda more: {"text": "a" * (MAX_METADATA_BYTES - SHELL_BYTES + more)}, "takes 65537 bytes as JSON"),
        (lambda more: nested(64 + more), "nested more than 64 deep"),
    ],
)
def test_its_size_and_depth_are_limited(storage, most, says):
    storage.submit(np.arange(3), "d", "2", build=yogadl.BuildOptions(metadata=most(0)))
    assert storage.fetch("d", "2").metadata == most(0)
    with pytest.raises(ConfigurationError, match=says):
        storage.submit(np.arange(3), "d", "2", build=yogadl.BuildOptions(metadata=most(1)))


def test_a_manifest_with_other_metadata_is_damaged(storage, tmp_path):
    path = tmp_path / "caches" / "d" / "versions" / "1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metadata": [1]}))
    with pytest.raises(CacheFormatError, match="a value of the wrong kind"):
        storage.fetch("d", "1")
