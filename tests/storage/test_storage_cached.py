"""cached: the version of a source is found, or built once; "auto" knows it by its content."""

import functools
import os
from pathlib import Path

import numpy as np
import pytest
from inside import user_cache_folder
from processes import Process, in_child

import yogadl
from yogadl.errors import ConfigurationError, UnsupportedDataError

ROWS = 1_009


class Counted:
    """Records of which each read is noted in a file, by any process."""

    def __init__(self, path):
        self.path = Path(path)

    def __len__(self):
        return 11

    def __getitem__(self, number):
        with self.path.open("a") as file:
            file.write(f"{number}\n")
        return number


class Named(Counted):
    """Records that say what they are."""

    __yogadl_version__ = "of 2026"


class WithoutFingerprint(yogadl.DataRef):
    """A reference of a user."""

    def __len__(self):
        return 3

    def stream(self, *arguments, **options):
        return yogadl.Stream(lambda: iter(range(3)), 3)


def read_lines(path):
    return Path(path).read_text().split()


def version_of(ref):
    return ref.lineage.version


def test_a_version_that_exists_is_returned_without_a_look_at_the_source(storage, tmp_path):
    built = storage.cached(Counted(tmp_path / "reads"), "d", "1")
    assert set(read_lines(tmp_path / "reads")) == {f"{number}" for number in range(11)}
    (tmp_path / "reads").unlink()
    found = storage.cached(Counted(tmp_path / "reads"), "d", "1")
    assert not (tmp_path / "reads").exists()
    assert found.fingerprint == built.fingerprint == storage.fetch("d", "1").fingerprint
    assert found.gather([3, 0]).tolist() == [3, 0]
    assert storage.cached(object(), "d", "1").fingerprint == built.fingerprint


def ask(folder, reads):
    return version_of(yogadl.open_storage(folder).cached(Named(reads), "d"))


def test_two_processes_that_ask_at_once_build_once(tmp_path):
    arguments = str(tmp_path / "caches"), str(tmp_path / "reads")
    with Process(ask, *arguments) as first, Process(ask, *arguments) as second:
        versions = {first.result(), second.result()}
    assert len(versions) == 1
    once = tmp_path / "once"
    yogadl.open_storage(tmp_path / "other").cached(Named(once), "d")
    assert sorted(read_lines(tmp_path / "reads")) == sorted(read_lines(once))


def arrays(change=0):
    x = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)
    x[ROWS // 2, 1] += change
    return {"x": x, "text": ["a" * (n % 7) for n in range(ROWS)]}


def version_in(folder, change):
    return version_of(yogadl.open_storage(folder).cached(arrays(change), "d"))


def test_arrays_are_known_by_all_of_their_content(storage, tmp_path):
    first = storage.cached(arrays(), "d")
    assert version_of(first).startswith("auto-")
    assert version_of(storage.cached(arrays(), "d")) == version_of(first)
    assert in_child(version_in, str(tmp_path / "caches"), 0) == version_of(first)
    assert storage.versions("d") == [version_of(first)]
    assert version_of(storage.cached(arrays(1), "d")) != version_of(first)


def changed(data, **changes):
    return {**data, **changes}


@pytest.mark.parametrize(
    "other",
    [
        changed(arrays(), x=arrays()["x"].astype(np.float64)),
        changed(arrays(), x=arrays()["x"].reshape(ROWS, 1, 2)),
        changed(arrays(), text=["a" * (n % 7) for n in range(ROWS - 1)] + ["b"]),
        changed(arrays(), text=[b"a" * (n % 7) for n in range(ROWS)]),
        {name: column[::-1] for name, column in arrays().items()},
        {name: column[:-1] for name, column in arrays().items()},
        {"y": arrays()["x"], "text": arrays()["text"]},
        dict(reversed(arrays().items())),
        arrays()["x"],
    ],
)
def test_other_records_are_another_version(storage, other):
    assert version_of(storage.cached(arrays(), "d")) != version_of(storage.cached(other, "d"))


def test_how_arrays_lie_in_memory_does_not_matter(storage):
    x = arrays()["x"]
    versions = {
        version_of(storage.cached(each, "d")) for each in (x, np.asfortranarray(x), x.repeat(2, 0)[::2])
    }
    assert len(versions) == 1


def test_lists_of_records_are_known_by_their_content(storage):
    def records(last=0):
        return [{"tokens": np.arange(n % 5), "name": f"{n}"} for n in range(101)] + [
            {"tokens": np.array([last]), "name": ""}
        ]

    first = storage.cached(records(), "d")
    assert version_of(storage.cached(records(), "d")) == version_of(first)
    assert version_of(storage.cached(records(1), "d")) != version_of(first)
    assert [len(record["tokens"]) for record in first][:6] == [0, 1, 2, 3, 4, 0]


def test_columns_of_values_of_any_shape_are_known(storage):
    columns = {"x": [np.ones((n % 3, 2)) for n in range(50)] + [np.ones(4)]}
    assert len(storage.cached(columns, "d")) == 51
    assert len(storage.versions("d")) == 1


def test_a_record_that_cannot_be_stored_is_named(storage):
    with pytest.raises(UnsupportedDataError, match="record 1"):
        storage.cached([{"x": 1}, {"y": 1}], "d")


def add(record, by=1):
    return {"n": record["n"] + by}


def first(_, record):
    return record


def test_a_reference_is_known_by_its_records_and_functions(storage):
    ref = storage.submit({"n": np.arange(20), "m": np.arange(20)}, "base", "1")
    views = [
        ref, ref[:10], ref.fields("n"), ref.map(add), ref.map(functools.partial(add, by=2)),
        yogadl.from_source({"n": np.arange(20)}).map(add), yogadl.from_source({"n": np.arange(20)}),
        yogadl.from_source({"n": np.arange(20)[::-1]}),
    ]  # fmt: skip
    versions = [version_of(storage.cached(view, "d")) for view in views]
    assert len(set(versions)) == len(views)
    assert [version_of(storage.cached(view, "d")) for view in views] == versions
    assert version_of(storage.cached(storage.fetch("base", "1"), "d")) == versions[0]
    assert versions[0] == "auto-f63d9fd513305597"  # another name would have it built again


def test_records_between_those_of_a_sample_count(storage):
    def ref(change):
        numbers = np.arange(10_000)
        numbers[5_001] += change
        return yogadl.from_source({"n": numbers})

    assert ref(0).fingerprint == ref(1).fingerprint
    assert version_of(storage.cached(ref(0), "d")) != version_of(storage.cached(ref(1), "d"))


def read_numbers(path):
    return [{"n": int(line)} for line in path.read_text().split()]


def test_files_of_partitions_are_known_by_size_and_time(storage, tmp_path):
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_text("1 2 3")
    source = yogadl.partitioned.of(paths, read_numbers)
    first = storage.cached(source, "d")
    assert version_of(storage.cached(yogadl.partitioned.of(paths, read_numbers), "d")) == version_of(first)
    os.utime(paths[1], ns=(0, 0))
    assert version_of(storage.cached(source, "d")) != version_of(first)
    assert len(first) == 6


def test_an_image_folder_is_known_by_its_files(storage, tmp_path):
    (tmp_path / "in" / "cats").mkdir(parents=True)
    (tmp_path / "in" / "cats" / "1.jpg").write_bytes(b"1")
    first = storage.cached(yogadl.image_folder(tmp_path / "in"), "d")
    assert version_of(storage.cached(yogadl.image_folder(tmp_path / "in"), "d")) == version_of(first)
    (tmp_path / "in" / "cats" / "2.jpg").write_bytes(b"2")
    assert version_of(storage.cached(yogadl.image_folder(tmp_path / "in"), "d")) != version_of(first)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ((number for number in range(3)), "this generator"),
        (lambda: iter(range(3)), r"@storage.cacheable\('d', 'auto'\)"),
        (Counted("nowhere"), "Counted"),
        (yogadl.partitioned([functools.partial(range, 3)]), "partition 0 has no file"),
        (yogadl.partitioned.of(["nowhere"], range), "partition 0 has no file"),
        (yogadl.from_source(Named(os.devnull)), "fingerprint="),
        (WithoutFingerprint(), "it has no fingerprint"),
        (yogadl.from_source([1], "one").map(functools.partial(first, (n for n in ()))), "no content"),
    ],
)
def test_what_cannot_be_known_asks_for_a_version(storage, source, reason):
    with pytest.raises(ConfigurationError, match=reason) as refused:
        storage.cached(source, "d")
    assert "storage.cached(source, 'd', '1')" in str(refused.value)
    assert storage.datasets() == []


def test_a_source_that_asks_for_a_version_is_built_with_one(storage):
    assert storage.cached(iter(range(5)), "d", "1").gather(range(5)).tolist() == list(range(5))
    assert len(storage.cached(iter(range(7)), "d", "1")) == 5


def test_options_that_change_the_records_change_the_version(storage):
    records = [{"n": 1}, {"n": 2}]
    plain = version_of(storage.cached(records, "d"))
    assert (
        version_of(
            storage.cached(records, "d", workers=2, build=yogadl.BuildOptions(part_bytes=64), check=True)
        )
        == plain
    )
    assert version_of(storage.cached(records, "d", records=yogadl.RecordOptions(on_error="skip"))) != plain


def test_names_are_refused_before_the_source_is_read(storage, tmp_path):
    storage.submit([1], "d", "1")
    storage.tag("d", "newest", "1")
    with pytest.raises(ConfigurationError, match="is a tag"):
        storage.cached(Named(tmp_path / "reads"), "d", "newest")
    assert not (tmp_path / "reads").exists()


def test_without_a_storage_the_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("YOGADL_CACHE", str(tmp_path / "mine"))
    ref = yogadl.cached([1, 2, 3], "d", codec=None)
    assert yogadl.open_storage(tmp_path / "mine").fetch("d", version_of(ref)).gather([2]).tolist() == [3]
    monkeypatch.delenv("YOGADL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr("sys.platform", "linux")
    assert len(yogadl.cached([1, 2], "d", "1")) == 2
    assert yogadl.open_storage(tmp_path / "caches" / "yogadl" / "caches").versions("d") == ["1"]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache_folder() == tmp_path / ".cache" / "yogadl"
