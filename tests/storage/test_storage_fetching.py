"""Open a storage, submit with options, fetch what was meant and nothing else."""

import io
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import yogadl
from yogadl.errors import CacheFormatError, DatasetNotFoundError, StorageError
from yogadl.storage import LFSConfigurations, LFSStorage


def test_a_storage_may_be_opened_before_it_is_there(tmp_path):
    storage = yogadl.open_storage(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    assert isinstance(storage, yogadl.Storage)
    assert str(tmp_path / "a" / "b") in repr(storage)


def test_a_storage_may_be_given_as_text_or_path_relative_or_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for location in (str(tmp_path / "x"), tmp_path / "x", "x", "~/x", "./x/"):
        yogadl.open_storage(location).submit([1], "d", "1")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_storage_stays_where_it_was_when_the_process_moves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = yogadl.open_storage("caches")
    storage.submit([1], "d", "1")
    monkeypatch.chdir("/")
    assert storage.fetch("d", "1")[0] == 1
    assert pickle.loads(pickle.dumps(storage)).datasets() == ["d"]


def test_the_names_of_version_0_1_still_work(tmp_path):
    storage = LFSStorage(LFSConfigurations(str(tmp_path)))
    storage.submit([1], "d", "1")
    assert storage.fetch(dataset_id="d", dataset_version="1")[0] == 1
    with pytest.warns(DeprecationWarning, match="tensorflow_config does nothing any more"):
        LFSStorage(LFSConfigurations(tmp_path), tensorflow_config=object())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_storage_can_be_read_and_says_what_it_cannot(storage):
    storage.submit([1], "d", "1")
    root = Path(storage.location)
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        read_only = yogadl.open_storage(root)
        assert read_only.fetch("d", "1")[0] == 1
        assert read_only.datasets() == ["d"]
        read_only.verify("d", "1")
        for write in (
            lambda: read_only.submit([1], "e", "1"),
            lambda: read_only.delete("d", "1"),
            read_only.prune,
            lambda: read_only.begin("d", "2", partitions=1).write(0, [1]),
            lambda: yogadl.open_storage(root / "below"),
        ):
            with pytest.raises(StorageError, match="not writable"):
                write()
    finally:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755)


def test_fetch_opens_at_once_and_a_missing_part_is_named(storage):
    storage.submit(np.arange(100), "d", "1", build=yogadl.BuildOptions(part_bytes=400))
    part = min((Path(storage.location) / "d" / "parts").glob("*.mdb"))
    part.rename(part.with_suffix(".away"))
    with pytest.raises(CacheFormatError, match=f"{part.name} is missing; build the dataset again"):
        storage.fetch("d", "1")
    part.with_suffix(".away").rename(part)
    assert len(storage.fetch("d", "1")) == 100


def test_a_manifest_copied_by_hand_is_refused(storage):
    storage.submit([1], "d", "1")
    versions = Path(storage.location) / "d" / "versions"
    (versions / "2.json").write_bytes((versions / "1.json").read_bytes())
    with pytest.raises(CacheFormatError, match="is the manifest of 'd' version '1', not of 'd' version '2'"):
        storage.fetch("d", "2")


def test_a_digest_of_something_else_is_named(storage):
    storage.submit([1], "d", "1")
    with pytest.raises(CacheFormatError, match=f"not {'0' * 64}"):
        storage.fetch("d", "1", digest="0" * 64)
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("e", "1", digest="0" * 64)


def test_a_reference_pickles_small_however_large_its_spec(storage):
    storage.submit([{f"a field with a long name {k}": k for k in range(200)}], "d", "1")
    ref = storage.fetch("d", "1")
    assert len(pickle.dumps(ref)) < 1024
    assert pickle.loads(pickle.dumps(ref))[0].keys() == ref[0].keys()


def test_a_pickle_keeps_the_word_on_unpickling(storage):
    storage.submit([{1}, None], "d", "1", records=yogadl.RecordOptions(allow_pickle=True))
    ref = pickle.loads(pickle.dumps(storage.fetch("d", "1", allow_pickle=True)))
    assert ref[0] == {1}


@pytest.mark.parametrize(
    "make", [lambda: [{"n": n} for n in range(100)], lambda: iter(range(100)), lambda: np.arange(100)]
)
def test_progress_is_told_as_it_goes(storage, make):
    said = []
    source = make()
    total = len(source) if hasattr(source, "__len__") else None
    storage.submit(source, "d", "1", build=yogadl.BuildOptions(progress=lambda *args: said.append(args)))
    records = [args[0] for args in said]
    assert records == sorted(records)
    assert records[-1] == 100
    assert {args[1] for args in said} == {total}
    assert said[-1][2] == 800


def test_an_error_of_the_callers_progress_ends_the_build(storage):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storage.submit(np.arange(10), "d", "1", build=yogadl.BuildOptions(progress=stop))
    assert storage.datasets() == []
    storage.submit(np.arange(10), "d", "1")


def test_progress_is_shown_by_wish_and_on_a_terminal_only(storage, monkeypatch, capsys):
    storage.submit(np.arange(10), "d", "1")
    assert capsys.readouterr().err == ""
    storage.submit(np.arange(10), "d", "1", build=yogadl.BuildOptions(progress=True))
    err = capsys.readouterr().err
    assert "building 'd' version '1'" in err
    assert "10 of 10 records" in err
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    storage.submit(np.arange(10), "d", "1", build=yogadl.BuildOptions(progress=False))
    assert terminal.getvalue() == ""


def test_a_plan_counts_the_bytes_of_the_records_and_not_of_their_files(storage):
    fixed = {"x": np.zeros((5, 3), np.float32), "n": np.arange(5)}
    texts = [{"text": "a" * n, "n": n} for n in range(4)]
    late = [{"row": np.zeros(2)}] * 3 + [{"row": np.zeros(6)}]
    for version, (data, each) in enumerate([(fixed, 20), (texts, 8 + 1.5), (late, 24)]):
        storage.submit(data, "d", str(version))
        ref = storage.fetch("d", str(version))
        assert 0 <= ref.stream().plan().bytes - len(ref) * each < len(ref)
    assert storage.fetch("d", "0")[1:].stream(num_shards=2).plan().bytes == 40


BUILD = """
import sys
import yogadl
from yogadl.storage._builds import build as _build

_build._LOG_AFTER_S = 0.0
data = [{"n": n} for n in range(5_000)]
yogadl.open_storage(sys.argv[1]).submit(data, "d", "1", build=yogadl.BuildOptions(progress=eval(sys.argv[2])))
"""


@pytest.mark.parametrize(("progress", "is_said"), [("None", True), ("False", False), ("print", False)])
def test_a_long_build_in_a_plain_script_says_how_long_it_will_take(tmp_path, progress, is_said):
    child = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path), progress], capture_output=True, text=True, check=True
    )
    assert len(re.findall(r"about .* in all, \d+ s left, .* free", child.stderr)) == is_said
