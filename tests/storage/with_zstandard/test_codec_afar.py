"""Compressed versions in a bucket: read by range, through a mirror of any size, offline, and mended."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from inside import BucketRoot
from test_storage_codec import WORDS, alike
from trees import assert_same_batches

import yogadl
from yogadl.errors import CacheFormatError

RECORDS = 1500


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """A bucket with a raw and a compressed version, in several parts."""
    folder = tmp_path_factory.mktemp("bucket")
    storage = yogadl.open_storage(f"file://{folder}", mirror=None)
    for version, codec in (("raw", None), ("1", "zstd")):
        storage.submit(
            alike(RECORDS), "d", version, codec=codec, build=yogadl.BuildOptions(part_bytes=60_000)
        )
    assert storage.info("d", "1").parts > 3
    return folder


def check(ref):
    made = alike(RECORDS)
    seen = {}
    for batch in ref.stream(shuffle=True, shuffle_seed=1).batch(100).prefetch(2, threads=1):
        seen.update(zip(batch["n"].tolist(), batch["text"], strict=True))
    assert seen == {record["n"]: record["text"] for record in made}
    assert ref[7]["text"] == made[7]["text"]


OPTIONS = {
    "no mirror": {"mirror": None},
    "no mirror, blocks verified": {"mirror": None, "verify": "block"},
    "small mirror": {"mirror": yogadl.Mirror("mirror", limit=100_000, fill="always")},
    "mirror that is not filled": {"mirror": yogadl.Mirror("mirror", fill="never")},
    "mirror": {"mirror": "mirror"},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("check_blocks", [False, True])
def test_a_cold_machine_reads_the_records(bucket, tmp_path, options, check_blocks, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = OPTIONS[options]
    ref = yogadl.open_storage(f"file://{bucket}", **given).fetch("d", "1", check=check_blocks)
    check(ref)
    check(yogadl.open_storage(f"file://{bucket}", **given).fetch("d", "1"))


def test_blocks_come_by_range_as_compressed_bytes_and_the_plan_counts_them(bucket):
    storage = yogadl.open_storage(f"file://{bucket}", mirror=None)
    received, planned, made = {}, {}, {record["n"]: record["text"] for record in alike(RECORDS)}
    for version in ("raw", "1"):
        ref = storage.fetch("d", version)
        stream = ref.stream(shuffle=yogadl.Blocks(64, window=4), shuffle_seed=1).batch(64)
        planned[version] = stream.plan().way("blocks").bytes
        batches = [zip(batch["n"].tolist(), batch["text"], strict=True) for batch in stream]
        assert dict(itertools.chain(*batches)) == made
        received[version] = ref.locality().range_bytes
    assert received["1"] < 0.6 * received["raw"]
    assert planned["1"] < 0.6 * planned["raw"]


@pytest.mark.parametrize("options", ["no mirror", "no mirror, blocks verified", "mirror that is not filled"])
def test_chunks_of_compressed_tokens_are_read_in_blocks(tmp_path, options, monkeypatch):
    monkeypatch.chdir(tmp_path)
    documents = [np.repeat(np.arange(number % 50, dtype=np.uint16), 9) for number in range(RECORDS)]
    storage = yogadl.open_storage("bucket")
    here = storage.submit([{"tokens": each} for each in documents], "tokens", "1", codec="zstd")
    there = yogadl.open_storage(f"file://{tmp_path}/bucket", **OPTIONS[options]).fetch("tokens", "1")
    ours, theirs = (
        ref.chunks("tokens", 128).stream(shuffle=yogadl.Blocks(16, window=4, lanes=2)).batch(8)
        for ref in (there, here)
    )
    assert ours.plan().way("blocks").bytes > 0
    assert_same_batches(ours, theirs)


def test_the_mirror_has_all_that_reading_offline_needs(bucket, tmp_path):
    storage = yogadl.open_storage(f"file://{bucket}", mirror=tmp_path / "mirror")
    check(storage.fetch("d", "1"))
    away = yogadl.open_storage(f"file://{bucket}", mirror=tmp_path / "mirror", offline=True)
    check(away.fetch("d", "1"))
    (dictionary,) = (tmp_path / "mirror").rglob("*.dict")
    dictionary.unlink()
    with pytest.raises(yogadl.errors.YogaError):
        yogadl.open_storage(f"file://{bucket}", mirror=tmp_path / "mirror", offline=True).fetch("d", "1")[0]


@pytest.mark.parametrize("damage", ["missing", "altered"])
def test_a_damaged_dictionary_of_the_mirror_is_downloaded_again(bucket, tmp_path, damage, caplog):
    storage = yogadl.open_storage(f"file://{bucket}", mirror=tmp_path / "mirror")
    check(storage.fetch("d", "1"))
    (dictionary,) = (tmp_path / "mirror").rglob("*.dict")
    content = dictionary.read_bytes()
    dictionary.unlink() if damage == "missing" else dictionary.write_bytes(b"x" + content[1:])
    again = yogadl.open_storage(f"file://{bucket}", mirror=tmp_path / "mirror")
    check(again.fetch("d", "1"))
    assert dictionary.read_bytes() == content
    assert ("damaged" in caplog.text) == (damage == "altered")
    dictionary.write_bytes(b"y" + content[1:])
    verified = again.verify("d", "1")
    assert [name.rpartition("/")[2] for name in verified.mended] == [dictionary.name]
    assert dictionary.read_bytes() == content


def test_a_dictionary_that_is_gone_from_the_bucket_is_one_error(bucket, tmp_path):
    storage = yogadl.open_storage(f"file://{tmp_path / 'other'}", mirror=None)
    storage.submit(alike(1000), "d", "1", codec="zstd")
    (dictionary,) = Path(tmp_path / "other").rglob("*.dict")
    dictionary.unlink()
    with pytest.raises(CacheFormatError, match="dict is missing"):
        storage.fetch("d", "1")[0]
    with pytest.raises(CacheFormatError, match=r"dict.* is missing"):
        yogadl.open_storage(f"file://{tmp_path / 'other'}", mirror=tmp_path / "mirror").fetch("d", "1")[0]


def test_versions_are_pushed_and_pulled_with_their_dictionaries(bucket, tmp_path):
    source = yogadl.open_storage(f"file://{bucket}", mirror=None)
    folder = yogadl.open_storage(tmp_path / "folder")
    other = yogadl.open_storage(f"file://{tmp_path / 'other'}", mirror=None)
    assert yogadl.storage.copy(source, folder, "d", "1")
    assert yogadl.storage.copy(folder, other, "d", "1")
    assert not yogadl.storage.copy(folder, other, "d", "1")
    for storage in (folder, other):
        check(storage.fetch("d", "1"))
        storage.verify("d", "1")


def test_a_dictionary_that_an_earlier_version_has_there_is_not_copied_again(tmp_path, monkeypatch):
    """However old it is, as a part: no prune takes what a manifest names."""
    source = yogadl.open_storage(tmp_path / "folder")
    target = yogadl.open_storage(f"file://{tmp_path / 'other'}", mirror=None)
    source.submit(alike(RECORDS), "d", "1", codec="zstd")
    source.append(alike(100), "d", "2", base_version="1")
    assert yogadl.storage.copy(source, target, "d", "1")
    (dictionary,) = (tmp_path / "other").rglob("*.dict")
    copied = dictionary.stat()
    now = BucketRoot.now
    monkeypatch.setattr(BucketRoot, "now", lambda root: now(root) + 3 * 86_400)
    assert yogadl.storage.copy(source, target, "d", "2")
    assert (dictionary.stat().st_ino, dictionary.stat().st_mtime_ns) == (copied.st_ino, copied.st_mtime_ns)


def test_windows_by_range(tmp_path):
    rng = np.random.default_rng(0)
    documents = [rng.choice(len(WORDS), 1 + n % 400).astype(np.uint16) for n in range(300)]
    storage = yogadl.open_storage(f"file://{tmp_path / 'bucket'}", mirror=None)
    for version, codec in (("raw", None), ("1", "zstd")):
        storage.submit(
            {"tokens": documents}, "d", version, codec=codec, build=yogadl.BuildOptions(part_bytes=30_000)
        )
    streams = [
        storage.fetch("d", version).chunks("tokens", 50).stream(shuffle=True) for version in ("raw", "1")
    ]
    found = [np.concatenate([batch["tokens"] for batch in stream.batch(16)]) for stream in streams]
    assert found[0].shape == (sum(map(len, documents)) // 50, 50)
    assert np.array_equal(*found)


def test_rows_of_parts_without_a_codec_are_read_as_they_were_announced(tmp_path):
    rows = np.random.default_rng(0).integers(0, 256, (1500, 512), np.uint8)
    rows[750:] = 1
    storage = yogadl.open_storage(f"file://{tmp_path / 'bucket'}", mirror=None)
    storage.submit({"x": rows}, "d", "1", codec="auto", build=yogadl.BuildOptions(part_bytes=200_000))
    ref = storage.fetch("d", "1")
    assert set(ref._records.table.fields[0].codec.tolist()) == {0, 1}
    stream = ref.stream(shuffle=True, shuffle_seed=1)
    for batch, indices in zip(stream.batch(100), np.split(stream.indices(), 15), strict=True):
        assert np.array_equal(batch["x"], rows[indices])
    assert ref.locality().range_bytes < 1.2 * ref.locality().bytes  # no page, and then its rows again
