"""A mirror whose files have changed on the disk: what finds that, and what mends it."""

import json
import threading
from pathlib import Path

import pytest
from command import run_command
from inside import LocalBucket, LocalMirror, is_free
from mirrors import Watched, at_once, bucket_with, is_whole, litter_in, manifest_of, open_cache, rows

import yogadl
from yogadl.errors import CacheFormatError

RECORDS = 2_000


def part_of(folder, number=2):
    return sorted(folder.rglob("*.mdb"))[number]


def flip(path):
    """Flip a bit of a row, in place, as a disk does it; return what the file had."""
    content = path.read_bytes()
    position = next(at for row in rows()["row"] if (at := content.find(row.tobytes())) >= 0) + 20
    with path.open("rb+") as file:
        file.seek(position)
        file.write(bytes([content[position] ^ 1]))
    return content


def is_right(ref):
    return bool((ref.gather(range(RECORDS))["row"] == rows()["row"]).all())


@pytest.fixture
def stored(either_place, tmp_path):
    """A storage in a real store with a cache, and a mirror that has all of it."""
    storage = either_place.storage(mirror=tmp_path / "mirror")
    storage.submit(rows(), "a", "1", build=yogadl.BuildOptions(part_bytes=20_000))
    storage.fetch("a", "1", check=True)
    return storage


def test_a_bit_flipped_in_a_mirror_is_found_and_mended_by_verify(stored, tmp_path, caplog):
    path = part_of(tmp_path / "mirror")
    content = flip(path)
    reading = stored.fetch("a", "1")
    assert not is_right(reading)
    with pytest.raises(
        CacheFormatError, match=r"'a' version '1': field 'row', records .* downloads it again"
    ):
        stored.fetch("a", "1", check=True).gather(range(RECORDS))
    found = stored.verify("a", "1")
    assert (found.records, found.mended) == (RECORDS, (str(path.relative_to(tmp_path / "mirror/caches")),))
    assert str(path) in caplog.text
    assert path.read_bytes() == content
    assert is_right(stored.fetch("a", "1", check=True))
    assert not is_right(reading)  # it has mapped the old file, and is not disturbed
    assert stored.verify("a", "1").mended == ()


# With the command, on a folder that plays the bucket.


@pytest.fixture
def bucket(tmp_path):
    return bucket_with(tmp_path / "bucket", "a")


@pytest.fixture
def yoga(bucket, tmp_path, capsys):
    """Run a command on the bucket, and return how it ended and what it printed."""

    def command(name, *words):
        ended = run_command(capsys, name, "a", "1", "-s", bucket.url, "--mirror", tmp_path / "mirror", *words)
        return ended.code, ended.out, ended.err

    return command


def test_verify_says_what_it_has_mended(yoga, tmp_path):
    assert "mirror" not in yoga("verify")[1]  # there is none
    yoga("pull")
    code, out, _ = yoga("verify")
    kinds = (".mdb", ".idx", ".parts")
    count = len([path for path in (tmp_path / "mirror/caches").rglob("*") if path.suffix in kinds])
    assert code == 0
    assert f"{count} files of it in this machine's mirror: all sound\n" in out
    path = part_of(tmp_path / "mirror")
    content = flip(path)
    code, out, _ = yoga("verify")
    assert code == 0
    assert f"{count} files of it in this machine's mirror: 1 file was damaged, and downloaded again" in out
    assert path.name in out
    assert path.read_bytes() == content
    flip(path)
    code, out, _ = yoga("verify", "--json")
    (found,) = json.loads(out)["versions"]
    assert found["is_sound"]
    assert found["mirrored"] == count
    assert found["mended"] == [f"a/parts/{path.name}"]


def test_pull_compares_what_is_there_and_says_what_it_has_mended(yoga, tmp_path):
    assert "damaged" not in yoga("pull")[1]
    paths = [part_of(tmp_path / "mirror", number) for number in (1, 4)]
    contents = [flip(path) for path in paths]
    code, out, _ = yoga("pull")
    assert code == 0
    assert "Of what was there before, 2 files were damaged, and downloaded again" in out
    assert [path.read_bytes() for path in paths] == contents
    flip(paths[0])
    assert json.loads(yoga("pull", "--json")[1])["mended"] == [f"a/parts/{paths[0].name}"]
    assert json.loads(yoga("pull", "--json")[1])["mended"] == []


@pytest.mark.parametrize("word", ["pull", "verify"])
@pytest.mark.parametrize("damage", [b"", b"{", b"x" * 100_000])
def test_a_manifest_damaged_in_the_mirror_is_mended_so_that_the_version_opens_offline(
    yoga, tmp_path, word, damage
):
    yoga("pull")
    (manifest,) = (tmp_path / "mirror/caches").rglob("*.json")
    content = manifest.read_bytes()
    manifest.write_bytes(damage)
    code, out, _ = yoga(word)
    assert code == 0
    assert "1 file was damaged, and downloaded again" in out
    assert manifest.read_bytes() == content
    assert "damaged, and" not in yoga(word)[1]


def test_verify_of_a_bucket_makes_no_mirror_of_what_is_not_there(yoga, tmp_path):
    assert yoga("verify")[0] == 0
    assert list((tmp_path / "mirror").rglob("*.parts")) == []


# Mending, and what may come in between.


@pytest.fixture
def mirror(bucket, tmp_path):
    """A mirror that has all of it."""
    mirror = LocalMirror(bucket, tmp_path / "mirror")
    mirror.fill(manifest_of(bucket, "a"))
    return mirror


def test_what_can_not_be_brought_anew_is_not_left_to_be_read(bucket, mirror):
    path = part_of(mirror.folder.root)
    flip(path)
    flip(part_of(Path(bucket.url.removeprefix("file://"))))
    with pytest.raises(CacheFormatError, match=f"{path.name} in .* has other bytes than its name says"):
        mirror.mend(manifest_of(bucket, "a"))
    assert not path.exists()
    assert litter_in(mirror) == []


def test_damage_in_the_bucket_is_the_error_though_the_mirror_is_sound(bucket, mirror, tmp_path):
    flip(part_of(tmp_path / "bucket"))
    storage = yogadl.open_storage(bucket.url, mirror=mirror.location.root)
    with pytest.raises(CacheFormatError, match=r"'a' version '1': field 'row', records"):
        storage.verify("a", "1")
    assert is_right(storage.fetch("a", "1", check=True))


def test_several_that_mend_at_once_bring_a_damaged_part_once(bucket, mirror):
    paths = [part_of(mirror.folder.root, number) for number in (0, 3)]
    for path in paths:
        flip(path)
    together, ready = Watched(bucket), threading.Barrier(5)

    def mend():
        ready.wait()
        LocalMirror(together, mirror.location.root).mend(manifest_of(bucket, "a"))

    at_once(5, mend)
    assert is_whole(mirror, bucket, manifest_of(bucket, "a"))
    # One that compares while another has just put the new part finds it sound, or does not bring it.
    brought = {name.rpartition("/")[2]: count for name, count in together.gets.items()}
    assert brought == {path.name: 1 for path in paths}
    assert litter_in(mirror) == []


def test_a_mended_mirror_is_no_larger_and_free_to_be_evicted(bucket, mirror):
    manifest = manifest_of(bucket, "a")
    before = {path: path.stat().st_size for path in mirror.folder.root.rglob("*.*")}
    flip(part_of(mirror.folder.root))
    mirror.mend(manifest)
    assert {path: path.stat().st_size for path in mirror.folder.root.rglob("*.*")} == before
    assert is_free(mirror.location.reader_lock(f"a/tables/{manifest.table_sha256}.parts"))


def test_a_mirror_filled_to_its_limit_can_be_mended_and_checked(bucket, tmp_path):
    manifest = manifest_of(bucket, "a")
    whole = sum(found.size_bytes for found in bucket.list("a/") if not found.name.endswith(".json"))
    mirror = LocalMirror(bucket, tmp_path / "small", whole)
    mirror.fill(manifest)
    flip(part_of(mirror.folder.root))
    assert len(mirror.fill(manifest)) == 1
    storage = yogadl.open_storage(bucket.url, mirror=tmp_path / "small")
    assert is_right(storage.fetch("a", "1", check=True))


@pytest.mark.parametrize("part_bytes", [3_000, 40_000])
def test_checksums_of_few_and_many_parts_are_brought_once(tmp_path, part_bytes):
    storage = yogadl.open_storage(tmp_path / "bucket")
    storage.submit(rows(), "a", "1", build=yogadl.BuildOptions(part_bytes=part_bytes))
    assert (storage.info("a", "1").parts > 16) == (part_bytes < 10_000)
    watched = Watched(LocalBucket(tmp_path / "bucket"))
    for _ in range(2):
        mirror = LocalMirror(watched, tmp_path / "mirror")
        open_cache(mirror, manifest_of(LocalBucket(tmp_path / "bucket"), "a"), indexes=True).close()
    assert {path.name: path.read_bytes() for path in mirror.folder.root.rglob("*.idx")} == {
        path.name: path.read_bytes() for path in (tmp_path / "bucket").rglob("*.idx")
    }
    assert set(watched.gets.values()) == {1}


@pytest.mark.parametrize("is_new", [False, True])
def test_progress_of_filling_ends_with_all_of_it(bucket, mirror, tmp_path, is_new):
    manifest, said = manifest_of(bucket, "a"), []
    part_of(mirror.folder.root).unlink()
    filled = LocalMirror(bucket, tmp_path / "new") if is_new else mirror
    filled.fill(manifest, progress=lambda *numbers: said.append(numbers))
    assert said[-1] == (manifest.size_bytes, manifest.size_bytes)
    assert all(0 <= done <= manifest.size_bytes == whole for done, whole in said)
