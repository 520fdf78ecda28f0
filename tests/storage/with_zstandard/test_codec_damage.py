"""Damaged files of compressed versions: found early, named, and mended by a copy."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from test_storage_codec import alike, dictionaries

import yogadl
from yogadl.errors import CacheFormatError, StorageError

RECORDS = alike(1000)


def the_dictionary(storage):
    (name,) = dictionaries(storage)
    return Path(storage.location, f"d/parts/{name}.dict")


def damage(path, how):
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        flipped = bytes([content[0] ^ 1]) + content[1:]
        path.write_bytes({"cut": content[:-9], "flipped": flipped, "large": b"x" * 2**21}[how])


@pytest.mark.parametrize("how", ["cut", "flipped"])
@pytest.mark.parametrize("url", ["", "file://"])
def test_a_copy_mends_a_damaged_dictionary(storage, tmp_path, how, url):
    storage.submit(RECORDS, "d", "1", codec="zstd")
    place = f"{url}{tmp_path / 'other'}"
    other = yogadl.open_storage(place, mirror=None) if url else yogadl.open_storage(place)
    assert yogadl.storage.copy(storage, other, "d", "1")
    (path,) = (tmp_path / "other").rglob("*.dict")
    damage(path, how)
    assert yogadl.storage.copy(storage, other, "d", "1")
    assert path.read_bytes() == the_dictionary(storage).read_bytes()
    assert other.fetch("d", "1")[7]["text"] == RECORDS[7]["text"]
    assert not yogadl.storage.copy(storage, other, "d", "1")


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_a_copy_mends_an_index_that_was_cut(storage, tmp_path, codec):
    storage.submit(RECORDS, "d", "1", codec=codec)
    other = yogadl.open_storage(tmp_path / "other")
    assert yogadl.storage.copy(storage, other, "d", "1")
    path = next((tmp_path / "other").rglob("*.idx"))
    content = path.read_bytes()
    damage(path, "cut")
    assert yogadl.storage.copy(storage, other, "d", "1")
    assert path.read_bytes() == content
    assert not yogadl.storage.copy(storage, other, "d", "1")


@pytest.mark.parametrize("how", ["cut", "flipped", "missing", "large"])
def test_a_damaged_dictionary_is_one_error_that_names_it_and_the_version(storage, how):
    documents = [{"x": np.arange(n % 50 + 9, dtype=np.uint16), "n": n} for n in range(1000)]
    storage.submit(documents, "d", "1", codec="zstd")
    path = the_dictionary(storage)
    ref, windows = storage.fetch("d", "1"), storage.fetch("d", "1").chunks("x", 8)
    assert len(windows)
    damage(path, how)
    for read in (
        *(lambda: ref[0], lambda: ref.gather([1, 2]), lambda: windows.gather([0])),
        *([lambda: storage.fetch("d", "1")] if how == "missing" else []),
    ):
        with pytest.raises(CacheFormatError, match=path.name) as caught:
            read()
        assert str(caught.value).count("'d' version '1'") == 1
    for do in (
        lambda: storage.append(documents[:5], "d", "2", base_version="1", codec=None),
        lambda: storage.verify("d", "1"),
    ):
        with pytest.raises(CacheFormatError, match=path.name):
            do()
    assert storage.versions("d") == ["1"]
    assert ref.fields("n")[3]["n"] == 3


def test_a_damaged_frame_names_the_version(storage):
    storage.submit(RECORDS, "d", "1", codec=yogadl.Zstd(dictionary=False))
    (path,) = Path(storage.location).rglob("*.mdb")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfe"))
    with pytest.raises(CacheFormatError, match="'d' version '1': a compressed value is damaged"):
        storage.fetch("d", "1")[0]


def test_the_space_of_compressed_fields_is_not_certain(storage, monkeypatch):
    arrays = {"x": np.zeros((1000, 5000), np.uint8), "n": np.zeros((1000, 10))}
    usage = shutil.disk_usage(storage.location if Path(storage.location).exists() else "/")
    for free_bytes, codec, fits in [
        (10**6, None, False),
        (10**6, {"n": "zstd"}, False),
        (10**6, {"x": "zstd"}, True),
        (10**6, "zstd", True),
        (10**4, {"x": "zstd"}, False),
    ]:
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free_bytes: usage._replace(free=free))
        if fits:
            storage.submit(arrays, "d", "1", codec=codec)
        else:
            with pytest.raises(StorageError, match="can't fit"):
                storage.submit(arrays, "e", "1", codec=codec)
