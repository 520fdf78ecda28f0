"""begin, write, commit: partitions from any task, in any order, any number of times."""

import functools
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from inside import Folder

import yogadl
from yogadl.errors import ConfigurationError, UnsupportedDataError


def numbers(ref):
    return [int(record["n"]) for record in ref]


def rows(*bounds):
    return [{"n": n} for n in range(*bounds)]


def written(storage, *sources, **options):
    """Begin a build of as many partitions as sources, and write them."""
    build = storage.begin("d", "1", partitions=len(sources), **options)
    for number, source in enumerate(sources):
        build.write(number, source)
    return build


def test_a_partition_may_be_any_source_and_may_have_no_records(storage):
    columns = {"n": np.arange(5, 8)}
    build = written(storage, [], iter(rows(3)), lambda: iter(rows(3, 5)), columns, [])
    assert storage.datasets() == []
    build.commit()
    assert numbers(storage.fetch("d", "1")) == list(range(8))


def test_a_build_pickles_and_every_task_may_begin_it_itself(storage):
    build = storage.begin("d", "1", partitions=2, run="job-7")
    pickle.loads(pickle.dumps(build)).write(0, rows(3))
    elsewhere = yogadl.open_storage(Path(storage.location)).begin("d", "1", partitions=2, run="job-7")
    elsewhere.write(1, rows(3, 6))
    storage.begin("d", "1", partitions=2, run="job-7").commit()
    assert numbers(storage.fetch("d", "1")) == list(range(6))


def test_runs_do_not_mix(storage):
    one, other = (storage.begin("d", "1", partitions=2) for _ in range(2))
    one.write(0, rows(3))
    other.write(1, rows(3, 6))
    with pytest.raises(ConfigurationError, match=r"1 of 2 partitions are not written yet: \[1\]"):
        one.commit()


@pytest.mark.parametrize(("missing", "named"), [(10, "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"), (11, "9, 10, ...]")])
def test_ten_of_the_missing_partitions_are_named(storage, missing, named):
    build = storage.begin("d", "1", partitions=1 + missing)
    build.write(0, rows(3))
    with pytest.raises(ConfigurationError, match="are not written yet") as caught:
        build.commit()
    assert named in str(caught.value)


def test_a_partition_written_twice_counts_once(storage):
    build = written(storage, rows(3))
    build.write(0, rows(100, 200))
    build.commit()
    assert numbers(storage.fetch("d", "1")) == [0, 1, 2]


def test_a_write_that_failed_may_be_repeated(storage):
    build = storage.begin("d", "1", partitions=1)
    with pytest.raises(ZeroDivisionError):
        build.write(0, ({"n": 1 // (5 - n)} for n in range(10)))
    with pytest.raises(ConfigurationError, match="none of 1 partitions is written yet"):
        build.commit()
    build.write(0, rows(4))
    build.commit()
    assert numbers(storage.fetch("d", "1")) == list(range(4))


def test_a_partition_whose_parts_were_pruned_is_written_again(storage):
    build = written(storage, rows(1), rows(1, 2))
    next((Path(storage.location) / "d/parts").glob("*.mdb")).unlink()
    with pytest.raises(ConfigurationError, match="1 of 2 partitions are not written yet"):
        build.commit()
    for k in range(2):
        build.write(k, rows(k, k + 1))
    build.commit()
    assert numbers(storage.fetch("d", "1")) == [0, 1]


def test_what_tasks_have_written_is_pruned_with_no_grace_but_a_day_later(storage, days_go_by):
    build = storage.begin("d", "1", partitions=2)
    build.write(0, rows(3))
    assert storage.prune(grace_s=0).files == ()
    assert storage.prune(unfinished=True).files == ()
    build.write(1, rows(3, 6))
    storage.prune(grace_s=0)
    build.commit()
    assert numbers(storage.fetch("d", "1")) == list(range(6))
    other = storage.begin("d", "2", partitions=2)
    other.write(0, rows(100))
    days_go_by(1.1)
    assert len(storage.prune(grace_s=0).files) >= 3
    storage.verify("d", "1")
    with pytest.raises(ConfigurationError, match="none of 2 partitions is written yet"):
        other.commit()


def test_unfinished_builds_are_told_beside_a_manifest_that_cannot_be_read(storage, caplog):
    storage.submit(rows(3), "d", "1")
    storage.begin("d", "2", partitions=2).write(0, rows(3))
    storage.begin("e", "1", partitions=2).write(0, rows(3))
    (Path(storage.location) / "d/versions/1.json").write_bytes(b"{")
    assert [(left.id, left.version) for left in storage.unfinished()] == [("d", "2"), ("e", "1")]
    assert "d/versions/1.json" in caplog.text


def test_a_receipt_names_a_part_in_one_form_whoever_writes_it(storage):
    def stop(records, total, size_bytes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storage.submit({"n": np.arange(3)}, "d", "1", build=yogadl.BuildOptions(progress=stop))
    storage.begin("d", "1", partitions=2).write(0, {"n": np.arange(3)})
    builds = Path(storage.location) / "d/builds"
    alone, partition = (next(builds.glob(name)) for name in ("*/one/*.json", "*/run-*/*.json"))
    assert json.loads(alone.read_bytes())["parts"] == json.loads(partition.read_bytes())["parts"]


def test_a_second_commit_does_no_harm(storage):
    build = written(storage, rows(1), rows(1, 2))
    build.commit()
    digest = storage.info("d", "1").digest
    build.commit()
    pickle.loads(pickle.dumps(build)).commit()
    assert storage.info("d", "1").digest == digest


def test_what_is_written_after_the_commit_changes_nothing_and_leaves_nothing(storage):
    def begun():
        return storage.begin("d", "1", partitions=2, run="job")

    for k in range(2):
        begun().write(k, rows(k, k + 1))
    begun().commit()
    for k in range(2):
        begun().write(k, rows(10, 20))
    begun().commit()
    assert numbers(storage.fetch("d", "1")) == [0, 1]
    assert storage.unfinished() == []


def read(path):
    return [{"text": path.read_text()}]


def files(folder):
    for name in "ab":
        (folder / name).write_text(name)
    return yogadl.partitioned.of([folder / "a", folder / "b"], read)


def test_a_commit_by_whoever_has_the_same_source_does_no_harm_either(storage, tmp_path):
    source = files(tmp_path)
    for k in range(2):
        storage.begin("d", "1", source=source).write(k)
    storage.begin("d", "1", source=source).commit()
    digest = storage.info("d", "1").digest
    storage.begin("d", "1", source=source).commit()
    assert storage.info("d", "1").digest == digest


def test_a_source_whose_file_has_changed_since_is_built_anew(storage, tmp_path):
    source = files(tmp_path)
    for times in range(2):
        (tmp_path / "b").write_text("b" * times)
        if times:
            with pytest.raises(ConfigurationError, match="none of 2 partitions is written yet"):
                storage.begin("d", "1", source=source).commit()
        for k in range(2):
            storage.begin("d", "1", source=source).write(k)
        storage.begin("d", "1", source=source).commit()
        assert [record["text"] for record in storage.fetch("d", "1")] == ["a", "b" * times]


def test_a_file_that_has_changed_between_tasks_is_not_committed(storage, tmp_path):
    source = files(tmp_path)
    for k in range(2):
        storage.begin("d", "1", source=source).write(k)
    (tmp_path / "a").write_text("changed")
    with pytest.raises(
        ConfigurationError, match=r"partition 0 of 2 \(.*/a'\) has changed since it was written"
    ):
        storage.begin("d", "1", source=source).commit()
    assert storage.datasets() == []


def test_a_commit_of_another_run_is_not_taken_for_ours(storage):
    written(storage, rows(3)).commit()
    with pytest.raises(ConfigurationError, match="none of 1 partitions is written yet"):
        storage.begin("d", "1", partitions=1).commit()


def test_a_commit_replaces_what_was_there_and_leaves_nothing_unfinished(storage):
    storage.submit(rows(100), "d", "1")
    old = storage.fetch("d", "1")
    written(storage, rows(3)).commit()
    assert numbers(storage.fetch("d", "1")) == [0, 1, 2]
    assert len(old.gather(range(100))["n"]) == 100
    assert [path for path in (Path(storage.location) / "d" / "builds").rglob("*") if path.is_file()] == []


def test_shapes_and_ranks_may_differ_between_partitions(storage):
    values = [np.zeros((5, 3)), np.ones((5, 4)), np.arange(5.0), [np.zeros((k, 2)) for k in range(5)]]
    written(storage, *({"x": value} for value in values)).commit()
    ref = storage.fetch("d", "1")
    assert ref.spec.fields[0].leaf.shape is None
    shapes = [np.shape(value) for value in ref.gather(range(20))["x"]]
    assert shapes == [(3,)] * 5 + [(4,)] * 5 + [()] * 5 + [(k, 2) for k in range(5)]
    storage.submit([row for value in values for row in ({"x": x} for x in value)], "d", "whole")
    assert storage.fetch("d", "whole").fingerprint == ref.fingerprint


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ([{"a": 1}], [{"a": 1, "b": 2}], "'a' int64, 'b' int64"),
        ([{"a": 1, "b": 2}], [{"a": 1}], "'a' int64"),
        ([{"a": np.int64(1)}], [{"a": np.float64(1.5)}], "'a' float64.*'a' int64"),
        ([{"a": 1}], [[1]], "a list"),
        ([{"a": "x"}], [{"a": b"x"}], "'a' bytes"),
        ([1], ["x"], "than before: str, not int64"),
    ],
    ids=str,
)
def test_partitions_of_different_structure_are_refused_with_both(storage, first, second, says):
    build = written(storage, first, second)
    with pytest.raises(
        UnsupportedDataError, match=f"partition 1 of 2 has another structure or dtype.*{says}"
    ):
        build.commit()
    assert storage.datasets() == []


def test_partitions_without_any_records_are_refused(storage):
    build = written(storage, [], [])
    empty = yogadl.partitioned([list, list])
    for do in (build.commit, lambda: storage.submit(empty, "d", "2")):
        with pytest.raises(UnsupportedDataError, match="no partition has any records"):
            do()


def test_progress_and_part_size_are_a_partitions_own(storage):
    said = []
    build = storage.begin("d", "1", partitions=2)
    build.write(0, np.arange(100), part_bytes=80, progress=lambda *args: said.append(args))
    build.write(1, np.arange(100))
    build.commit()
    assert said[-1][:2] == (100, 100)
    assert storage.info("d", "1").parts == 11


# Workers: processes of our own that stand on the same three.


def test_several_workers_read_a_source_and_report(storage):
    said = []
    storage.submit(
        rows(25), "d", "1", workers=3, build=yogadl.BuildOptions(progress=lambda *args: said.append(args))
    )
    assert numbers(storage.fetch("d", "1")) == list(range(25))
    assert [records for records, _, _ in said] == sorted(records for records, _, _ in said)
    assert said[-1][:2] == (25, 25)


@pytest.mark.parametrize("workers", [0, 2])
def test_in_the_end_all_partitions_are_said_to_be_done(storage, capsys, workers):
    parts = [functools.partial(rows, 7), functools.partial(rows, 0), functools.partial(rows, 9)]
    storage.submit(
        yogadl.partitioned(parts), "d", "1", workers=workers, build=yogadl.BuildOptions(progress=True)
    )
    assert "3 of 3 partitions" in capsys.readouterr().err.splitlines()[-1]


def test_more_workers_than_records(storage):
    storage.submit(rows(1), "d", "1", workers=4)
    assert numbers(storage.fetch("d", "1")) == [0]


def test_an_error_in_a_worker_reaches_the_caller_whole(storage):
    class Broken:
        def __len__(self):
            return 20

        def __getitem__(self, index):
            if index == 15:
                raise ConnectionResetError("gone")
            return {"n": index}

    with pytest.raises(ConnectionResetError, match="gone") as caught:
        storage.submit(Broken(), "d", "1", workers=2)
    assert "while reading record 15 of the source" in caught.value.__notes__
    assert storage.datasets() == []


def test_a_bad_record_in_a_worker_is_named_by_its_number_in_the_source(storage):
    records = rows(20)
    records[15] = {"n": None}
    with pytest.raises(UnsupportedDataError, match="record 15: field 'n' is None"):
        storage.submit(records, "d", "1", workers=2)


def test_what_tasks_have_written_stays_where_others_submit_the_version_meanwhile(storage):
    build = written(storage, [0, 10], [1, 11])
    storage.submit([1, 2, 3], "d", "1")
    build.commit()
    assert storage.fetch("d", "1").gather(range(4)).tolist() == [0, 10, 1, 11]


@pytest.mark.parametrize("is_file", [True, False])
def test_workers_of_a_script_need_no_guard_and_are_sent_its_classes(tmp_path, is_file):
    text = f"""
import yogadl

class Items:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return number_of(index)

def number_of(index):
    return 3 * index

storage = yogadl.open_storage({str(tmp_path / "caches")!r})
storage.submit(Items(), "d", "1", workers=2)
print(len(storage.fetch("d", "1").filter(lambda number: number % 2 == 0, workers=2)))
"""
    script = tmp_path / "script.py"
    script.write_text(text)
    command = [sys.executable, "-W", "error", *([script] if is_file else [])]
    given = {} if is_file else {"input": text}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, **given)
    assert (done.returncode, done.stdout, done.stderr) == (0, "50\n", "")
    assert yogadl.open_storage(tmp_path / "caches").fetch("d", "1")[99] == 297


def test_a_file_is_written_though_its_folder_is_cleared_away_meanwhile(tmp_path, monkeypatch):
    folder, made = Folder(tmp_path), []
    mkdir = Path.mkdir

    def cleared(path, *args, **options):
        mkdir(path, *args, **options)
        if path.name == "builds" and len(made) < 3:
            made.append(path)
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", cleared)
    folder.write("builds/version", b"1")
    assert folder.read("builds/version") == b"1"
    assert len(made) == 3


@pytest.mark.parametrize("run", [None, "r"])
@pytest.mark.parametrize(
    "view",
    [
        lambda ref: ref,
        lambda ref: ref[:],
        lambda ref: ref.fields("v"),
        lambda ref: ref.map(lambda record: {"v": -record["v"]}),
    ],
    ids=["whole", "slice", "fields", "map"],
)
def test_partitions_of_two_references_of_other_records_are_not_published_together(storage, view, run):
    def source(more, **options):
        return view(yogadl.from_source({"i": np.arange(4), "v": np.arange(4) + more}, **options))

    if run is None:
        with pytest.raises(ConfigurationError, match=r"not certain which records .* give a run"):
            storage.begin("d", "1", source=source(0), partitions=2)
    options = {"partitions": 2, "run": run}
    first, second = ({"fingerprint": name} if run is None else {} for name in ("a", "b"))
    storage.begin("d", "1", source=source(0, **first), **options).write(0)
    build = storage.begin("d", "1", source=source(7, **second), **options)
    build.write(1)
    with pytest.raises(ConfigurationError, match=r"partitions (are|were) "):
        build.commit()
    build.write(0)
    build.commit()
    assert [abs(record["v"]) for record in storage.fetch("d", "1")] == [7, 8, 9, 10]


@pytest.mark.parametrize("run", [None, "r"])
def test_nor_are_those_of_another_function(storage, run):
    ref = yogadl.from_source({"v": np.arange(4)}, fingerprint="a")
    options = {"partitions": 2, "run": run}
    storage.begin("d", "1", source=ref.map(lambda record: {"v": record["v"] + 0}), **options).write(0)
    build = storage.begin("d", "1", source=ref.map(lambda record: {"v": record["v"] + 1}), **options)
    build.write(1)
    with pytest.raises(ConfigurationError, match=r"partitions (are|were) "):
        build.commit()
