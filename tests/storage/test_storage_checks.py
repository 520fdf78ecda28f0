"""What damage is found when a cache is read with `check=True`, and when a mirror is verified or filled."""

import errno
import multiprocessing
import os
import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from inside import DatasetKey, Reader, set_constants
from processes import in_fork

import yogadl
from yogadl.errors import CacheFormatError, DatasetNotFoundError, StorageError

RECORDS = 500
DAMAGE = r"'d' version '1': field 'row', records \d+ to \d+: the bytes in part \w{64}.mdb were changed"


def rows():
    rows = np.random.default_rng(6).integers(0, 256, (RECORDS, 100), np.uint8)
    return {"row": rows, "text": [f"text {n}" for n in range(RECORDS)]}


def is_right(found, indices):
    expected = rows()
    return np.array_equal(found["row"], expected["row"][indices]) and found["text"] == [
        expected["text"][n] for n in indices
    ]


@pytest.fixture(params=["local", "shared", "mirrored", "on a network"])
def opened(request, tmp_path, monkeypatch):
    """Return a function that opens a storage with a cache, and the folder that its parts are read from."""
    root = tmp_path / "caches"
    storage = yogadl.open_storage(root, shared=request.param == "shared")
    storage.submit(rows(), "d", "1", build=yogadl.BuildOptions(part_bytes=12_000))
    assert storage.info("d", "1").parts > 3
    if request.param == "mirrored":
        folder = tmp_path / "mirror"
        yogadl.open_storage(f"file://{root}", mirror=folder).fetch("d", "1")
        return lambda: yogadl.open_storage(f"file://{root}", mirror=folder), folder
    if request.param == "on a network":
        mounts = tmp_path / "mountinfo"
        mounts.write_text("1 1 0:1 / / rw - nfs4 server:/ rw\n")
        set_constants(monkeypatch, MOUNTINFO=mounts)
    return lambda: yogadl.open_storage(root, shared=request.param != "local"), root


def flip(folder, after=0):
    """Flip a bit in a row of one of the parts in a folder, that of the first record there is from one on."""
    path, position = next(
        (path, position + 50)
        for row in rows()["row"][after:]
        for path in sorted(folder.rglob("*.mdb"))
        # Random bytes are found by their value.
        if (position := path.read_bytes().find(row.tobytes())) >= 0
    )
    content = path.read_bytes()
    with path.open("rb+") as file:
        file.seek(position)
        file.write(bytes([content[position] ^ 1]))
    return path


def test_rot_is_read_as_data_unless_a_check_is_asked_for(opened):
    open_storage, folder = opened
    flip(folder)
    every = range(RECORDS)
    assert not is_right(open_storage().fetch("d", "1").gather(every), every)
    with pytest.raises(CacheFormatError, match=DAMAGE):
        open_storage().fetch("d", "1", check=True).gather(every)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("forked_workers")
def test_rot_is_not_copied(opened, tmp_path, workers):
    open_storage, folder = opened
    target = yogadl.open_storage(tmp_path / "copies", shared=True)
    target.submit(open_storage().fetch("d", "1"), "d", "before", workers=workers)
    assert target.info("d", "before").fingerprint == open_storage().fetch("d", "1").fingerprint
    flip(folder)
    with pytest.raises(CacheFormatError, match="do not have the fingerprint of the version"):
        target.submit(open_storage().fetch("d", "1"), "d", "1", workers=workers)
    with pytest.raises(DatasetNotFoundError):
        target.fetch("d", "1")


def test_what_is_sound_reads_the_same_with_a_check(opened):
    open_storage, _ = opened
    ref = open_storage().fetch("d", "1", check=True)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(RECORDS)
        for indices in np.array_split(order, 7):
            assert is_right(ref.gather(indices), indices.tolist())
    assert ref[3]["text"] == "text 3"
    assert ref.fields("text").gather([7, 5])["text"] == ["text 7", "text 5"]


def test_records_beside_the_damage_are_read(opened):
    open_storage, folder = opened
    flip(folder)
    ref = open_storage().fetch("d", "1", check=True)
    damaged, messages = [], set()
    for number in range(RECORDS):
        try:
            assert is_right(ref.gather([number]), [number])
        except CacheFormatError as error:
            damaged.append(number)
            messages.add(str(error))
    assert 0 < len(damaged) < RECORDS / 3
    (message,) = messages
    assert f"records {damaged[0]} to {damaged[-1]}: " in message


def test_a_stream_that_reads_ahead_ends_with_the_damage(opened):
    open_storage, folder = opened
    flip(folder)
    loader = open_storage().fetch("d", "1", check=True).stream(shuffle=True).batch(10).prefetch(2)
    with pytest.raises(CacheFormatError, match=DAMAGE):
        list(loader)


def message_of(pickled):
    try:
        pickle.loads(pickled).gather(range(RECORDS))
    except CacheFormatError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_another_process_that_gets_the_reference_checks_as_well(tmp_path, method):
    storage = yogadl.open_storage(tmp_path)
    storage.submit(rows(), "d", "1", build=yogadl.BuildOptions(part_bytes=12_000))
    checked, unchecked = (pickle.dumps(storage.fetch("d", "1", check=check)) for check in (True, False))
    flip(tmp_path)
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        assert "field 'row', records" in pool.submit(message_of, checked).result()
        assert pool.submit(message_of, unchecked).result() == "nothing"


def test_a_process_forked_under_way_goes_on_with_what_was_checked(tmp_path):
    storage = yogadl.open_storage(tmp_path)
    storage.submit(rows(), "d", "1", build=yogadl.BuildOptions(part_bytes=12_000))
    ref = storage.fetch("d", "1", check=True)
    ref.gather(range(30))
    flip(tmp_path, RECORDS - 1)
    with pytest.raises(CacheFormatError, match=DAMAGE):
        ref.gather(range(RECORDS))

    def forked():
        ref.gather(range(30))
        with pytest.raises(CacheFormatError, match=DAMAGE):
            ref.gather(range(RECORDS))

    in_fork(forked)


def test_a_cacheable_function_may_ask_for_a_check(tmp_path):
    storage = yogadl.open_storage(tmp_path)

    @storage.cacheable("d", "1", build=yogadl.BuildOptions(part_bytes=12_000), check=True)
    def build():
        return rows()

    assert is_right(build().gather([3, 4]), [3, 4])
    flip(tmp_path)
    with pytest.raises(CacheFormatError, match=DAMAGE):
        build().gather(range(RECORDS))


def test_without_a_check_nothing_stands_between_a_batch_and_its_reader(tmp_path):
    storage = yogadl.open_storage(tmp_path)
    storage.submit(rows(), "d", "1")
    assert type(storage.fetch("d", "1")._records.open()[1]) is Reader
    assert type(storage.fetch("d", "1", check=True)._records.open()[1]) is not Reader


@pytest.mark.parametrize("change", ["missing", "damaged"])
def test_checksums_that_are_damaged_themselves_are_an_error(tmp_path, change):
    storage = yogadl.open_storage(tmp_path)
    storage.submit(rows(), "d", "1", build=yogadl.BuildOptions(part_bytes=12_000))
    ref = storage.fetch("d", "1", check=True)
    for path in tmp_path.rglob("*.idx"):
        content = path.read_bytes()
        path.unlink() if change == "missing" else path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(
        CacheFormatError, match=r"'d' version '1': records 0 to \d+: the index .* is missing or"
    ):
        ref.gather([0])
    assert is_right(storage.fetch("d", "1").gather([0]), [0])


# Mirrors, of a folder that plays the bucket.


@pytest.fixture
def bucket(tmp_path):
    storage = yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=tmp_path / "builder's mirror")
    storage.submit(rows(), "d", "1", build=yogadl.BuildOptions(part_bytes=12_000))
    return tmp_path / "bucket"


def mirrored(tmp_path, **options):
    return yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=tmp_path / "mirror", **options)


def files(folder, *suffixes):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.suffix in suffixes}


def test_a_mirror_without_a_check_has_no_checksums(bucket, tmp_path):
    mirrored(tmp_path).fetch("d", "1").gather([0])
    assert files(tmp_path / "mirror", ".idx") == {}


def test_a_mirror_that_has_it_all_is_checked_without_the_bucket(bucket, tmp_path):
    ref = mirrored(tmp_path).fetch("d", "1", check=True)
    assert files(tmp_path / "mirror", ".idx") == files(bucket, ".idx")
    for part in bucket.rglob("parts"):
        shutil.rmtree(part)
    assert is_right(ref.gather(range(RECORDS)), range(RECORDS))
    assert is_right(mirrored(tmp_path).fetch("d", "1", check=True).gather([9]), [9])


CHANGES = [lambda content: None, lambda content: content[:-1], lambda content: content[:-1] + b"x"]


@pytest.mark.parametrize("change", CHANGES)
def test_checksums_damaged_in_a_mirror_are_brought_again_by_who_reads(bucket, tmp_path, change):
    ref = mirrored(tmp_path).fetch("d", "1", check=True)
    for path in (tmp_path / "mirror").rglob("*.idx"):
        content = change(path.read_bytes())
        path.unlink() if content is None else path.write_bytes(content)
    assert is_right(ref.gather(range(RECORDS)), range(RECORDS))
    assert files(tmp_path / "mirror", ".idx") == files(bucket, ".idx")


def test_the_error_of_a_damaged_mirror_says_how_to_mend_it(bucket, tmp_path):
    storage = mirrored(tmp_path)
    storage.fetch("d", "1")
    flip(tmp_path / "mirror")
    with pytest.raises(CacheFormatError, match=r"storage\.verify, or `yogadl verify`, downloads it again"):
        storage.fetch("d", "1", check=True).gather(range(RECORDS))
    storage.verify("d", "1")
    assert is_right(storage.fetch("d", "1", check=True).gather(range(RECORDS)), range(RECORDS))


@pytest.mark.parametrize("suffix", [".mdb", ".idx", ".parts"])
@pytest.mark.parametrize("change", ["a bit", "a byte less", "nothing left"])
@pytest.mark.parametrize("by", ["verify", "fill"])
def test_whatever_is_damaged_in_a_mirror_is_found_and_brought_anew(
    bucket, tmp_path, caplog, suffix, change, by
):
    storage = mirrored(tmp_path)
    storage.fetch("d", "1", check=True)
    path = sorted((tmp_path / "mirror").rglob(f"*{suffix}"))[0]
    content = path.read_bytes()
    descriptor = os.open(path, os.O_RDWR)  # as a reader has it that mapped it
    flipped = content[:99] + bytes([content[99] ^ 1]) + content[100:]
    new = {"a bit": flipped, "a byte less": content[:-1], "nothing left": b""}[change]
    path.write_bytes(new)
    if by == "verify":
        found = storage.verify("d", "1")
        mended, count = list(found.mended), found.mirrored
        assert count == len(files(tmp_path / "mirror", ".mdb", ".idx", ".parts"))
    else:
        mended = storage._backend.catalogue.opener.mirror.fill(
            storage._backend.catalogue.published(DatasetKey("d", "1")).manifest
        )
    assert mended == [str(path.relative_to(tmp_path / "mirror/caches"))]
    assert f"{path} has other bytes than it had" in caplog.text
    assert files(tmp_path / "mirror", ".mdb", ".idx", ".parts") == files(bucket, ".mdb", ".idx", ".parts")
    assert os.pread(descriptor, len(content), 0) == new
    os.close(descriptor)
    assert storage.verify("d", "1").mended == ()


@pytest.mark.parametrize("way", ["verify", "read"])
def test_an_error_of_the_disk_names_the_file(tmp_path, monkeypatch, way):
    storage = yogadl.open_storage(tmp_path, mapped=False)
    storage.submit(rows(), "d", "1")
    (part,) = tmp_path.rglob("*.mdb")
    ref = storage.fetch("d", "1")

    def fails(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fails)
    with pytest.raises(StorageError, match="can't read a part") as caught:
        storage.verify("d", "1") if way == "verify" else ref[5]
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(part))


def test_a_folder_in_the_way_of_a_download_is_named(bucket, tmp_path):
    part = next(bucket.glob("d/parts/*.mdb"))
    in_the_way = tmp_path / "mirror" / "caches" / "d" / "parts" / f".{part.name}.tmp"
    in_the_way.mkdir(parents=True)
    with pytest.raises(StorageError, match=in_the_way.name):
        mirrored(tmp_path).fetch("d", "1")


def test_who_builds_offline_is_told_so_once(bucket, tmp_path, caplog):
    storage = mirrored(tmp_path, offline=True)
    with pytest.raises(StorageError, match="offline=True"):
        storage.submit([1], "d", "2")
    assert caplog.text == ""


def test_a_list_without_a_version_changes_nothing_offline_but_to_ask_for_it_does(bucket, tmp_path):
    storage = mirrored(tmp_path)
    storage.fetch("d", "1")
    yogadl.open_storage(f"file://{bucket}", mirror=tmp_path / "elsewhere").delete("d", "1")
    offline = mirrored(tmp_path, offline=True)
    assert storage.versions("d") == []
    assert len(offline.fetch("d", "1")) == RECORDS
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("d", "1")
    with pytest.raises(StorageError, match="offline=True"):
        offline.fetch("d", "1")
