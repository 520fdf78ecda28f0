"""A copy of all records of a version begins with the versions that this one begins with; a view does not."""

import numpy as np
import pytest

import yogadl
from yogadl.errors import ConfigurationError
from yogadl.storage import copy

FACTS = {"classes": ["cat", "dog"]}


@pytest.fixture
def storage(tmp_path):
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.submit({"n": np.arange(100)}, "d", "1", build=yogadl.BuildOptions(metadata=FACTS))
    storage.append({"n": np.arange(100, 130)}, "d", "2", base_version="1")
    storage.append({"n": np.arange(130, 150)}, "d", "3", base_version="2")
    return storage


def submitted(storage, ref, **options):
    storage.submit(ref, "d", "copy", **options)


def written_by_workers(storage, ref):
    storage.submit(ref, "d", "copy", workers=2)


def written_by_tasks(storage, ref):
    for number in range(2):
        storage.begin("d", "copy", source=ref, partitions=2, run="job").write(number)
    storage.begin("d", "copy", source=ref, partitions=2, run="job").commit()


def without_the_unreadable(storage, ref):
    storage.submit(ref, "d", "copy", records=yogadl.RecordOptions(on_error="skip"))


def returned(storage, ref):
    storage.cacheable("d", "copy")(lambda: ref)()


BUILDS = [submitted, written_by_workers, written_by_tasks, without_the_unreadable, returned]


def shares_of(ref):
    return [
        share.gather(range(len(share)))["n"].tolist() for share in ref.split(0.8, 0.2, seed=1, grows=True)
    ]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("view", [lambda ref: ref, lambda ref: ref[:]])
def test_a_copy_is_split_as_the_version_is_and_has_its_metadata(storage, build, view):
    ref = storage.fetch("d", "3")
    build(storage, view(ref))
    found = storage.fetch("d", "copy")
    assert found.lineage.earlier == ref.lineage.earlier
    assert shares_of(found) == shares_of(ref)
    with pytest.raises(ConfigurationError, match=r"grows="):
        found.split(0.8, 0.2, seed=1)
    assert found.metadata == FACTS
    assert storage.info("d", "copy").earlier == storage.info("d", "3").earlier


@pytest.mark.parametrize("build", BUILDS)
def test_no_validation_record_of_an_earlier_version_is_trained_on_in_a_copy(storage, build):
    _, validation = shares_of(storage.fetch("d", "1"))
    build(storage, storage.fetch("d", "3"))
    train, _ = shares_of(storage.fetch("d", "copy"))
    assert not set(train) & set(validation)


@pytest.mark.parametrize("materialize", [False, True])
def test_a_copy_in_another_storage_keeps_lineage_and_metadata(storage, tmp_path, materialize):
    other = yogadl.open_storage(tmp_path / "other")
    copy(storage, other, "d", "3", materialize=materialize)
    assert other.info("d", "3").earlier == storage.info("d", "3").earlier
    assert other.fetch("d", "3").metadata == FACTS


def test_the_copied_values_of_adopted_files_keep_lineage_and_metadata(storage, tmp_path):
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_bytes(b'{"text": "%s"}\n' % (b"x" * 90) * 30)
    storage.adopt(f"{tmp_path}/0.jsonl", "a", "1", format="jsonl", build=yogadl.BuildOptions(metadata=FACTS))
    storage.adopt(f"{tmp_path}/1.jsonl", "a", "2", format="jsonl", files=yogadl.FileOptions(base_version="1"))
    other = yogadl.open_storage(tmp_path / "other")
    assert copy(storage, other, "a", "2", materialize=True)
    assert other.info("a", "2").earlier == storage.info("a", "2").earlier
    assert [each.records for each in other.info("a", "2").earlier] == [30]
    assert other.fetch("a", "2").metadata == FACTS


VIEWS = {
    "slice": lambda ref: ref[:120],
    "reversed": lambda ref: ref[::-1],
    "select all": lambda ref: ref.select(range(len(ref))),
    "map": lambda ref: ref.map(lambda record: {"n": record["n"] + 1}),
    "same map": lambda ref: ref.map(lambda record: record),
    "concat": lambda ref: yogadl.concat([ref, ref]),
    "filter": lambda ref: ref.filter(lambda record: record["n"] != 7),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("build", [submitted, written_by_tasks])
def test_a_copy_of_a_view_is_a_version_of_its_own(storage, view, build):
    ref = VIEWS[view](storage.fetch("d", "3"))
    build(storage, ref)
    found = storage.fetch("d", "copy")
    assert found.lineage.earlier == ()
    assert found.metadata == {}


def test_a_copy_of_some_of_the_fields_is_a_version_of_its_own(storage):
    storage.submit(
        {"n": np.arange(9), "m": np.arange(9)}, "f", "1", build=yogadl.BuildOptions(metadata=FACTS)
    )
    storage.append({"n": np.arange(4), "m": np.arange(4)}, "f", "2", base_version="1")
    storage.submit(storage.fetch("f", "2").fields("n"), "f", "copy")
    assert storage.info("f", "copy").earlier == ()
    assert storage.fetch("f", "copy").metadata == {}


@pytest.mark.parametrize("given", [{}, {"owner": "me"}])
def test_metadata_that_are_given_replace_those_of_the_version(storage, given):
    submitted(storage, storage.fetch("d", "3"), build=yogadl.BuildOptions(metadata=given))
    assert storage.fetch("d", "copy").metadata == given
    assert len(storage.info("d", "copy").earlier) == 2


def test_a_copy_can_be_appended_to(storage):
    submitted(storage, storage.fetch("d", "3"))
    storage.append({"n": np.arange(150, 160)}, "d", "5", base_version="copy")
    assert [each.version for each in storage.info("d", "5").earlier] == ["1", "2", "copy"]
    assert storage.fetch("d", "5").metadata == FACTS
    with pytest.raises(ConfigurationError, match="has all its records"):
        storage.append({"n": np.arange(5)}, "d", "2", base_version="copy")


def test_the_records_that_a_version_left_out_are_listed_in_its_copy(storage):
    class Broken:
        def __len__(self):
            return 5

        def __getitem__(self, number):
            return {"n": number / (number - 2)}

    storage.submit(Broken(), "b", "1", records=yogadl.RecordOptions(on_error="skip"))
    storage.submit(storage.fetch("b", "1"), "b", "copy")
    assert storage.fetch("b", "copy").metadata == storage.fetch("b", "1").metadata
    assert storage.fetch("b", "copy").metadata["left_out"]["count"] == 1
