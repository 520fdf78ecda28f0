"""Damage to a cache's files is found, named, and never more than an error."""

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pytest
from cache_files import parts_and_indexes, read_index, read_table
from damage import Altered
from inside import ArrayFile, PartTable
from processes import in_child

import yogadl
from yogadl.errors import CacheFormatError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    damage.build(tmp_path)
    assert len(damage.files(tmp_path, ".mdb")) > 2
    return tmp_path


def table_of(root: Path) -> PartTable:
    (path,) = damage.files(root, ".parts")
    return read_table(path)


def flip_blocks(root: Path) -> int:
    """Flip a bit in every block of every part, and check that `verify` names its field and records."""
    damage.limit_memory()
    table = table_of(root)
    rng = random.Random(1)
    flips = 0
    for part, sha256 in enumerate(table.sha256):
        index = read_index(root / "data" / "parts" / f"{table.index_sha256[part]}.idx")
        first = int(table.first_record[part])
        with Altered(root / "data" / "parts" / f"{sha256}.mdb") as file:
            for name, field in zip(damage.FIELDS, index.fields, strict=True):
                for blocks in (field.rows, field.heap):
                    for position, length in zip(
                        blocks.position.tolist(), blocks.length.tolist(), strict=True
                    ):
                        for offset in {0, length - 1, rng.randrange(length)} if length else ():
                            file.flip(position + offset, rng.randrange(8))
                            error = damage.verify(root)
                            assert isinstance(error, CacheFormatError)
                            assert f"'data' version '1': field {name!r}, records {first} to" in str(error)
                            flips += 1
    assert damage.verify(root).records == damage.RECORDS
    return flips


def test_a_bit_flipped_in_any_block_is_named_by_dataset_field_and_records(root: Path) -> None:
    assert in_child(flip_blocks, root) > 60


def flip_elsewhere(root: Path) -> int:
    """Flip bits of LMDB's own pages and of the rest of the last page of each block."""
    damage.limit_memory()
    flips = 0
    for path, index in parts_and_indexes(root / "data")[:2]:
        ours = np.zeros(path.stat().st_size, bool)
        for field in read_index(index).fields:
            for blocks in (field.rows, field.heap):
                for position, length in zip(blocks.position.tolist(), blocks.length.tolist(), strict=True):
                    ours[position : position + length] = True
        with Altered(path) as file:
            for position in np.flatnonzero(~ours)[::2503].tolist():
                file.flip(position, position % 8)
                error = damage.verify(root)
                assert isinstance(error, CacheFormatError)
                assert "'data' version '1'" in str(error)
                assert path.name in str(error)
                # A reader needs none of those pages.
                assert damage.is_right(damage.read_all(root))
                flips += 1
    return flips


def test_a_bit_flipped_outside_of_the_blocks_is_named_and_does_not_hinder_reading(root: Path) -> None:
    assert in_child(flip_elsewhere, root) > 20


def read_flipped(root: Path, flips: int) -> dict[str, int]:
    """Flip bits where a reader follows what it reads: in entries and in values of varying length."""
    damage.limit_memory()
    rng = random.Random(2)
    places = []
    for path, index in parts_and_indexes(root / "data"):
        for field in read_index(index).fields:
            if field.stored == "varying":
                for weight, blocks in ((8, field.rows), (1, field.heap)):
                    for position, length in zip(
                        blocks.position.tolist(), blocks.length.tolist(), strict=True
                    ):
                        places += [(path, position, length)] * (weight if length else 0)
    found = {"read": 0, "refused": 0}
    for _ in range(flips):
        path, position, length = rng.choice(places)
        with Altered(path) as file:
            file.flip(position + rng.randrange(length), rng.randrange(8))
            result = damage.read_all(root)
            assert isinstance(result, dict | CacheFormatError), result
            found["read" if isinstance(result, dict) else "refused"] += 1
            assert isinstance(damage.verify(root), CacheFormatError)
    return found


def test_reading_values_with_a_flipped_bit_never_does_worse_than_an_error(root: Path) -> None:
    found = in_child(read_flipped, root, 120)
    assert found["read"] > 20
    assert found["refused"] > 20


def check(root: Path) -> str:
    """Read and verify a cache with something damaged: only errors of ours, or the right records."""
    found = damage.read_all(root)
    error = damage.verify(root)
    if isinstance(found, dict):
        if isinstance(error, CacheFormatError):
            return "verify"
        assert damage.is_right(found)
        return "harmless"
    assert isinstance(found, CacheFormatError), found
    return "read"


def fuzz(root: Path, suffix: str, flips: int) -> dict[str, int]:
    damage.limit_memory()
    rng = random.Random(3)
    found = {"read": 0, "verify": 0, "harmless": 0}
    paths = damage.files(root, suffix)
    for _ in range(flips):
        with Altered(rng.choice(paths)) as file:
            file.flip(rng.randrange(len(file.content)), rng.randrange(8))
            found[check(root)] += 1
    assert check(root) == "harmless"
    return found


@pytest.mark.parametrize("suffix", [".parts", ".idx", "versions/1.json"])
def test_flipped_bits_of_the_small_files_are_only_ever_errors_or_harmless(root: Path, suffix: str) -> None:
    found = in_child(fuzz, root, suffix, 100)
    if suffix == ".parts":
        assert found["read"] == 100
    elif suffix == ".idx":
        assert found["verify"] == 100
    else:
        assert found["read"] > 40


def forge_tables(root: Path, times: int) -> dict[str, int]:
    """Change bytes of the part table and make the manifest agree, so that only the numbers can tell."""
    damage.limit_memory()
    rng = random.Random(4)
    found = {"read": 0, "verify": 0, "harmless": 0}
    (path,) = damage.files(root, ".parts")
    content = path.read_bytes()
    manifest = damage.manifest_of(root).read_bytes()
    for _ in range(times):
        changed = bytearray(content)
        for _ in range(rng.choice((1, 1, 1, 3))):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        table = damage.forge_table(root, bytes(changed))
        found[check(root)] += 1
        damage.manifest_of(root).write_bytes(manifest)
        if table != path:
            table.unlink()
    return found


def test_a_forged_part_table_never_does_worse_than_an_error(root: Path) -> None:
    found = in_child(forge_tables, root, 200)
    assert found["read"] > 40


ODD_NUMBERS = (-1, 0, 1, 3, 2**20, 2**31, 2**32 + 1, 2**40, 2**62, 2**63 - 1, -(2**63), 2**61 + 4096)


def forge_numbers(root: Path, times: int) -> dict[str, int]:
    """Put odd numbers, other types and other shapes into the part table."""
    damage.limit_memory()
    rng = random.Random(5)
    found = {"read": 0, "verify": 0, "harmless": 0}
    (path,) = damage.files(root, ".parts")
    content = path.read_bytes()
    whole = ArrayFile.from_buffer(content, "it")
    manifest = damage.manifest_of(root).read_bytes()
    changes: list[Callable[[Any], Any]] = [
        lambda array: array[:-1],
        lambda array: array[:0],
        lambda array: np.concatenate([array, array]),
        lambda array: array.reshape(1, *array.shape),
        lambda array: array.view(np.uint8),
        lambda array: array.view(np.uint64) if array.dtype == np.int64 else array,
        lambda array: array[::-1].copy(),
    ]

    def odd(array: Any) -> Any:
        if not array.size:
            return array
        changed = array.copy()
        many = rng.random() < 0.5
        number = rng.choice(ODD_NUMBERS)
        if changed.dtype != np.int64:
            number %= 256
        changed.reshape(-1)[slice(None) if many else rng.randrange(changed.size)] = number
        return changed

    names = sorted(whole.arrays)
    every = [(name, change) for name in names for change in changes if rng.random() < 0.5]
    every += [(name, odd) for name in names for _ in range(times)]
    for name, change in every:
        arrays = dict(whole.arrays)
        arrays[name] = change(arrays[name])
        table = damage.forge_table(root, ArrayFile(arrays, whole.document).to_bytes())
        try:
            found[check(root)] += 1
        except BaseException as error:
            error.add_note(f"{name}: {arrays[name]!r} in place of {whole.arrays[name]!r}")
            raise
        damage.manifest_of(root).write_bytes(manifest)
        if table != path:
            table.unlink()
    return found


def test_odd_numbers_in_a_forged_part_table_never_do_worse_than_an_error(root: Path) -> None:
    found = in_child(forge_numbers, root, 1)
    assert found["read"] > 40


# Truncated and missing files.


@pytest.mark.parametrize("suffix", [".mdb", ".parts", ".idx", "versions/1.json"])
@pytest.mark.parametrize("left", ["nothing", "a byte", "half", "all but a byte"])
def test_a_truncated_file_is_an_error_at_fetch_and_at_verify(root: Path, suffix: str, left: str) -> None:
    storage = yogadl.open_storage(root)
    for path in damage.files(root, suffix)[:2]:
        with Altered(path) as file:
            size = len(file.content)
            file.write(file.content[: {"nothing": 0, "a byte": 1, "half": size // 2}.get(left, size - 1)])
            if suffix != ".idx":
                with pytest.raises(CacheFormatError, match="data"):
                    storage.fetch("data", "1")
            with pytest.raises(CacheFormatError, match="data"):
                storage.verify("data", "1")
    storage.verify("data", "1")


@pytest.mark.parametrize("suffix", [".mdb", ".parts", ".idx"])
def test_a_missing_file_is_an_error_at_fetch_and_at_verify(root: Path, suffix: str) -> None:
    storage = yogadl.open_storage(root)
    path = damage.files(root, suffix)[-1]
    path.rename(path.with_suffix(".gone"))
    if suffix != ".idx":
        with pytest.raises(CacheFormatError, match="data"):
            storage.fetch("data", "1")
    with pytest.raises(CacheFormatError, match="data"):
        storage.verify("data", "1")
    path.with_suffix(".gone").rename(path)
    storage.verify("data", "1")


def read_pickled(pickled: bytes) -> str:
    try:
        pickle.loads(pickled).gather(range(damage.RECORDS))
    except CacheFormatError as error:
        return str(error)
    raise AssertionError("it was read")


@pytest.mark.parametrize("change", ["truncated", "grown", "missing"])
def test_a_reference_opened_in_another_process_refuses_a_part_of_another_size(
    root: Path, change: str
) -> None:
    pickled = pickle.dumps(yogadl.open_storage(root).fetch("data", "1"))
    path = damage.files(root, ".mdb")[0]
    content = path.read_bytes()
    if change == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-4096] if change == "truncated" else content + bytes(4096))
    said = in_child(read_pickled, pickled)
    assert path.name.removesuffix(".mdb") in said
    assert ("overwritten" in said) == (change != "missing")


def read_after_truncation(root: Path) -> str:
    ref = yogadl.open_storage(root).fetch("data", "1")  # maps nothing yet
    for path in damage.files(root, ".mdb"):
        path.write_bytes(path.read_bytes()[:8192])
    return read_pickled(pickle.dumps(ref)) and read_now(ref)


def read_now(ref: Any) -> str:
    try:
        ref.gather([0, damage.RECORDS - 1])
    except CacheFormatError as error:
        return str(error)
    raise AssertionError("it was read")


def test_a_part_truncated_between_fetch_and_first_read_is_an_error_and_no_crash(root: Path) -> None:
    assert "truncated" in in_child(read_after_truncation, root)


def test_a_part_in_place_of_another_is_found_by_verify(root: Path) -> None:
    one, other = damage.files(root, ".mdb")[:2]
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    with pytest.raises(CacheFormatError, match="'data' version '1'"):
        yogadl.open_storage(root).verify("data", "1")


def test_files_of_others_are_ignored(root: Path) -> None:
    storage = yogadl.open_storage(root)
    before = storage.datasets(), storage.versions("data")
    foreign = [
        "versions/notes.txt",
        "README.md",
        ".DS_Store",
        "data/.DS_Store",
        "data/versions/._1.json",
        "data/versions/.hidden/2.json",
        "data/versions/.0123456789abcdef.tmp",
        "data/parts/notes.mdb",
        "data/parts/sub/thing.idx",
        "data/tables/notes.txt",
        "data/trash/notes.json",
        "data/trash/x@y.json",
        "data/builds/notes.txt",
        "lost+found/x",
        "versions/x.json",
        "trash/1@00000000000000000001.json",
        "parts/x.mdb",
        "data/locks/notes.lock",
        "..strange/versions/1.json",
        "data/versions/a//b",
    ]
    for name in foreign:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not ours")
    assert (storage.datasets(), storage.versions("data")) == before
    assert damage.is_right(storage.fetch("data", "1").gather(range(damage.RECORDS)))
    storage.verify("data", "1")
    kept = {*storage.prune(grace_s=0).files}
    assert kept <= {"data/versions/.0123456789abcdef.tmp"}
    assert all((root / name).exists() for name in foreign if name not in kept)
    storage.delete("data", "1")
    storage.undelete("data", "1")
    damage.build(root)
    assert (storage.datasets(), storage.versions("data")) == before
