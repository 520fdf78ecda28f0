"""An append killed at any moment leaves the base whole and nothing to read, and the next one goes on."""

import shutil
from pathlib import Path

from processes import in_child
from test_killed_builds import (
    COMPARED,
    PART_BYTES,
    PARTS,
    Items,
    build,
    expected,
    files,
    fingerprint_of,
    killed_at_step,
    sealed_parts,
)

import yogadl
from yogadl.errors import DatasetNotFoundError

MORE = 250


def append(root: Path, source: Items) -> list[int]:
    """Append to the cache, and return which records were read from the source."""
    source.read.clear()
    storage = yogadl.open_storage(root)
    storage.append(source, "data", "2", base_version="1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    return list(source.read)


def appended(root: Path) -> str | None:
    """Return the fingerprint of the new version, every byte checked; None if there is none."""
    storage = yogadl.open_storage(root)
    try:
        found = storage.info("data", "2").fingerprint
    except DatasetNotFoundError:
        assert storage.versions("data") == ["1"]
        return None
    storage.verify("data", "2")
    return found


def whole(base: Items, more: Items) -> str:
    records = [base[i] for i in range(len(base))] + [more[i] for i in range(len(more))]
    return expected(records)


def appending_killed_at_every_step(folder: Path) -> tuple[int, int]:
    base, more = Items(), Items(1, range(MORE), MORE)
    want = whole(base, more)
    build(folder / "old", base)
    old = fingerprint_of(folder / "old")
    before = sealed_parts(folder / "old")
    step = went_on = 0
    while True:
        root = folder / str(step)
        shutil.copytree(folder / "old", root)
        is_killed = killed_at_step(step, append, root, more)
        assert fingerprint_of(root) == old, step
        assert appended(root) in (None, want), step
        is_built, sealed = appended(root) is not None, sealed_parts(root) - before
        read = append(root, more)
        assert (fingerprint_of(root), appended(root)) == (old, want), step
        if sealed > 1 and not is_built:
            # The last part may have come to its place without the note that it is there.
            assert len(read) <= 1 + sealed * COMPARED + MORE - (sealed - 1) * (MORE // PARTS), step
            went_on += 1
        storage = yogadl.open_storage(root)
        storage.delete("data", "1")
        storage.prune(grace_s=0)
        assert appended(root) == want, step
        assert not [path for path in files(root) if "builds" in path], step
        shutil.rmtree(root)
        if not is_killed:
            return step, went_on
        step += 1


def test_an_append_killed_before_any_change_to_the_disk_is_taken_up_by_the_next(tmp_path: Path) -> None:
    steps, went_on = in_child(appending_killed_at_every_step, tmp_path)
    assert steps > 6 * 2
    assert went_on > 0
