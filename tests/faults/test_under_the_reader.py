"""Deleting, replacing and pruning while others read or build, and folders that vanish."""

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import Process, in_child, until

import yogadl
from yogadl.errors import CacheFormatError, DatasetNotFoundError, StorageError, YogaError

RECORDS = 400
PARTS = 20


def rows(seed: int) -> Any:
    return {"i": np.arange(RECORDS), "row": np.random.default_rng(seed).integers(0, 9, (RECORDS, 30))}


def submit(root: Path, seed: int = 0) -> Any:
    storage = yogadl.open_storage(root)
    storage.submit(rows(seed), "data", "1", build=yogadl.BuildOptions(part_bytes=5000))
    assert storage.info("data", "1").parts >= PARTS
    return storage


def is_whole(ref: Any, seed: int = 0) -> bool:
    found = ref.gather(range(RECORDS))
    return found["i"].tolist() == list(range(RECORDS)) and np.array_equal(found["row"], rows(seed)["row"])


def test_a_reader_goes_on_while_its_version_is_deleted_and_brought_back(tmp_path: Path) -> None:
    storage = submit(tmp_path)
    ref = storage.fetch("data", "1")
    items = iter(ref.stream(shuffle=True).batch(10))
    found = next(items)["i"].tolist()
    storage.delete("data", "1")
    found += [number for batch in items for number in batch["i"].tolist()]
    assert sorted(found) == list(range(RECORDS))
    assert is_whole(pickle.loads(pickle.dumps(ref)))
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("data", "1")
    storage.undelete("data", "1")
    assert is_whole(storage.fetch("data", "1"))


def test_a_reader_goes_on_while_its_version_is_replaced_again_and_again(tmp_path: Path) -> None:
    storage = submit(tmp_path)
    ref = storage.fetch("data", "1")
    items = iter(ref.stream().batch(50))
    next(items)
    for seed in (1, 2):
        submit(tmp_path, seed)
        assert is_whole(storage.fetch("data", "1"), seed)
    assert sum(len(batch["i"]) for batch in items) == RECORDS - 50
    storage.prune()  # within the grace nothing goes
    assert is_whole(pickle.loads(pickle.dumps(ref)))
    assert is_whole(ref)


def test_after_a_prune_without_grace_a_deleted_version_is_a_clear_error_or_still_mapped(
    tmp_path: Path,
) -> None:
    storage = submit(tmp_path)
    mapped, fresh = storage.fetch("data", "1"), storage.fetch("data", "1")
    assert is_whole(mapped)
    pickled = pickle.dumps(mapped)
    storage.delete("data", "1")
    storage.prune(grace_s=0)
    assert not list(tmp_path.rglob("*.mdb"))
    assert is_whole(mapped)
    with pytest.raises(CacheFormatError, match="is missing"):
        fresh.gather([0])
    with pytest.raises(DatasetNotFoundError, match="pruned; fetch it again"):
        pickle.loads(pickled).gather([0])


def read_and_vanish(root: Path) -> None:
    storage = yogadl.open_storage(root)
    mapped, half, fresh = (storage.fetch("data", "1") for _ in range(3))
    assert is_whole(mapped)
    half.gather([0])
    shutil.rmtree(root)
    assert is_whole(mapped)
    for ref in (half, fresh):
        try:
            assert is_whole(ref)
        except YogaError as error:
            assert "missing" in str(error)  # noqa: PT017
    for call in (storage.fetch, storage.info, storage.verify, storage.delete):
        with pytest.raises(DatasetNotFoundError):
            call("data", "1")
    assert storage.datasets() == []
    assert storage.prune(grace_s=0).files == ()
    assert not root.exists()
    submit(root)
    assert is_whole(storage.fetch("data", "1"))


def test_a_folder_removed_under_a_reader_is_a_clear_error_or_still_mapped(tmp_path: Path) -> None:
    submit(tmp_path / "root")
    in_child(read_and_vanish, tmp_path / "root")


def read_with_the_table_cut_short(root: Path) -> bool:
    ref = yogadl.open_storage(root).fetch("data", "1")
    (table,) = root.rglob("*.parts")
    os.truncate(table, 0)
    return is_whole(ref)


def test_a_part_table_cut_short_under_a_reader_does_not_kill_it(tmp_path: Path) -> None:
    submit(tmp_path)
    assert in_child(read_with_the_table_cut_short, tmp_path)


def read_parts_cut_short(root: Path, location: str, options: dict[str, Any]) -> str:
    storage = pickle.loads(pickle.dumps(yogadl.open_storage(location, mapped=False, **options)))
    ref = storage.fetch("data", "1")
    assert is_whole(ref)
    for part in root.rglob("*.mdb"):
        os.truncate(part, 0)
    try:
        ref.gather(range(RECORDS))
    except CacheFormatError as error:
        return str(error)
    return "it was read"


@pytest.mark.parametrize("kind", ["local", "shared", "mirrored"])
def test_parts_cut_short_under_a_reader_that_maps_nothing_are_an_error(tmp_path: Path, kind: str) -> None:
    submit(tmp_path / "caches")
    location = f"file://{tmp_path}/caches" if kind == "mirrored" else str(tmp_path / "caches")
    options = {"local": {}, "shared": {"shared": True}, "mirrored": {"mirror": tmp_path / "mirror"}}[kind]
    assert "truncated" in in_child(read_parts_cut_short, tmp_path, location, options)


def test_a_folder_removed_under_a_builder_is_an_error_of_the_storage(tmp_path: Path) -> None:
    root = tmp_path / "root"
    storage = yogadl.open_storage(root)

    def source() -> Any:
        for number in range(3000):
            if number == 2000:
                root.rename(tmp_path / "gone")
            yield number

    with pytest.raises(StorageError):
        storage.submit(source, "data", "1", build=yogadl.BuildOptions(part_bytes=2000))
    storage.submit([1, 2, 3], "data", "1")
    storage.verify("data", "1")


def build_slowly(root: Path) -> None:
    """Build, waiting in the middle until told to go on."""

    def source() -> Any:
        for number in range(3000):
            if number == 2000:  # the first 1,024 are read before any is written
                (root / "waiting").touch()
                for _ in until(200, "the word to go on"):
                    if (root / "go on").exists():
                        break
            yield number

    yogadl.open_storage(root).submit(source, "slow", "1", build=yogadl.BuildOptions(part_bytes=500))


def test_a_prune_by_another_process_takes_nothing_from_a_build_that_goes_on(tmp_path: Path) -> None:
    storage = yogadl.open_storage(tmp_path)
    child = Process(build_slowly, tmp_path)
    for _ in until(200, "the build to be in the middle"):
        sealed = list(tmp_path.rglob("parts/*.mdb"))
        if (tmp_path / "waiting").exists() and len(sealed) > 3:
            break
    assert storage.prune(grace_s=0).files == ()
    assert storage.versions("slow") == []
    (tmp_path / "go on").touch()
    child.result()
    storage.verify("slow", "1")
    assert all(path.exists() for path in sealed)


class Failing:
    """Records of which one can't be had: a build that has failed there may go on before it."""

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, number: int) -> int:
        return 1 // (2000 - number)


def test_a_prune_takes_what_a_failed_build_left_once_it_is_old_enough(tmp_path: Path) -> None:
    storage = yogadl.open_storage(tmp_path)
    with pytest.raises(ZeroDivisionError):
        storage.submit(Failing(), "data", "1", build=yogadl.BuildOptions(part_bytes=2000))
    left = list(tmp_path.rglob("*.mdb"))
    assert left
    assert storage.prune().files == ()
    assert storage.prune(grace_s=0, dry_run=True).files
    assert all(path.exists() for path in left)
    storage.prune(grace_s=0)
    assert not list(tmp_path.rglob("*.mdb"))
    assert not list(tmp_path.rglob("*.idx"))
