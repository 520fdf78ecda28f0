"""Versions of files that lie in real stores: adopted, read in every way, refreshed, and fenced in."""

import os
import pickle
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from adopted_files import FORMATS, SUFFIXES, content, every, plain, record, write_numbered
from places import s3_place_at
from processes import Process, until

import yogadl
from yogadl.errors import CacheFormatError, ConfigurationError, DatasetNotFoundError
from yogadl.storage import copy

COUNTS = [7, 1, 12]


def above(place, name):
    """Return another prefix of the same bucket."""
    return replace(place, url="/".join(place.url.split("/")[:3]) + f"/{name}")


def put(place, name, value):
    place.open().put(name, value)


def raw_of(place, folder, form, counts=COUNTS):
    """Put files of a format into the bucket, and return their records."""
    records = write_numbered(folder, form, counts)
    for path in folder.iterdir():
        put(above(place, "raw"), path.name, path.read_bytes())
    return [plain(each) for each in records]


def readers(place, tmp_path, **options):
    """Return the storage with all that decides how it reads."""
    return [
        place.storage(**options),
        place.storage(verify="block", **options),
        place.storage(mirror=yogadl.Mirror(tmp_path / "never", fill="never"), **options),
        place.storage(mirror=tmp_path / "mirror", **options),
        place.storage(mirror=tmp_path / "mirror", mapped=False, **options),
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_records_of_objects_are_those_of_the_files(either_place, tmp_path, form):
    place = either_place
    expected = raw_of(place, tmp_path / "raw", form)
    url = above(place, "raw").url
    storage = place.storage()
    storage.adopt(f"{url}/*.{SUFFIXES[form]}", "d", "1", format=form)
    storage.adopt(url, "d", "weak", format=form, files=yogadl.FileOptions(read=False))
    for version in ("1", "weak"):
        for reader in readers(place, tmp_path):
            ref = reader.fetch("d", version)
            assert every(ref) == expected
            assert every(ref, [9, 0, 19, 9]) == [expected[k] for k in (9, 0, 19, 9)]
        checked = place.storage().fetch("d", version, check=version == "1")
        assert every(checked) == expected
        found = [plain(each) for each in checked.stream(shuffle=True, shuffle_seed=1).prefetch(2)]
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
        assert place.storage().verify("d", version).records == len(expected)
    assert storage.refresh("d", "1", "2").lineage.version == "1"
    storage.submit([record(form, k) for k in range(sum(COUNTS))], "s", "1")
    assert storage.fetch("s", "1").fingerprint == storage.fetch("d", "1").fingerprint
    storage.submit(storage.fetch("d", "weak"), "d", "copied")
    assert every(storage.fetch("d", "copied")) == expected


@pytest.mark.parametrize("form", ["webdataset", "jsonl"])
def test_copies_of_objects_that_rot_are_mended(either_place, tmp_path, form):
    expected = raw_of(either_place, tmp_path / "raw", form)
    mirror = tmp_path / "mirror"
    storage = either_place.storage(mirror=mirror)
    storage.adopt(f"{above(either_place, 'raw').url}/*.{SUFFIXES[form]}", "d", "1", format=form)
    assert every(storage.fetch("d", "1")) == expected
    copies = sorted((mirror / "caches/d/parts").glob("*.foreign"))
    assert len(copies) == len(COUNTS)
    whole = storage.verify("d", "1")
    assert (whole.mended, whole.foreign_files) == ((), len(COUNTS))
    value = record(form, 9)["jpg" if form == "webdataset" else slice(None)][:30]
    (flip,) = [path for path in copies if value in path.read_bytes()]
    damaged, status = bytearray(flip.read_bytes()), flip.stat()
    damaged[damaged.index(value) + 20] ^= 1
    flip.write_bytes(damaged)
    os.utime(flip, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(CacheFormatError, match=r"mirror that has other bytes, storage\.verify downl"):
        every(either_place.storage(mirror=mirror).fetch("d", "1", check=True))
    found = either_place.storage(mirror=mirror).verify("d", "1")
    assert [Path(name).name for name in found.mended] == [flip.name]
    assert found.mirrored == whole.mirrored
    assert flip.read_bytes() != bytes(damaged)
    assert every(either_place.storage(mirror=mirror).fetch("d", "1", check=True)) == expected


def test_without_the_network_a_mirror_has_the_objects_of_its_own_bucket(s3_place, tmp_path):
    expected = raw_of(s3_place, tmp_path / "raw", "webdataset")
    storage = s3_place.storage(mirror=tmp_path / "mirror")
    storage.adopt(f"{above(s3_place, 'raw').url}/*.tar", "d", "1", format="webdataset")
    assert every(storage.fetch("d", "1")) == expected
    ref = s3_place.storage(mirror=tmp_path / "mirror", offline=True).fetch("d", "1")
    assert every(ref) == expected
    assert len(list(pickle.loads(pickle.dumps(ref)).stream(shuffle=True).batch(4))) > 1


def test_workers_read_objects(s3_place, tmp_path):
    expected = raw_of(s3_place, tmp_path / "raw", "webdataset")
    storage = s3_place.storage()
    storage.adopt(f"{above(s3_place, 'raw').url}/*.tar", "d", "1", format="webdataset", workers=2)
    stream = storage.fetch("d", "1").stream(shuffle=True, shuffle_seed=1).prefetch(2, workers=2)
    assert sorted(map(repr, map(plain, stream))) == sorted(map(repr, expected))


def test_replaced_and_removed_objects_are_errors_that_name_them(either_place, tmp_path):
    place, raw, name = either_place, above(either_place, "raw"), "001.jsonl"
    raw_of(place, tmp_path / "raw", "jsonl")
    storage = place.storage()
    storage.adopt(f"{raw.url}/", "d", "1", format="jsonl")
    before = (tmp_path / "raw" / name).read_bytes()
    for number, value in enumerate((before.upper(), before + b"more\n", before[:-4], b"", None)):
        if value is None:
            raw.open().delete(name)
        else:
            put(raw, name, value)
        mirror = tmp_path / f"mirror-{number}"
        for reader in (
            place.storage(),
            place.storage(mirror=yogadl.Mirror(mirror, fill="never")),
            place.storage(mirror=mirror),
        ):
            for call in (
                lambda reader=reader: every(reader.fetch("d", "1")),
                lambda reader=reader: every(reader.fetch("d", "1", check=True)),
                lambda reader=reader: reader.verify("d", "1"),
            ):
                with pytest.raises(CacheFormatError, match=rf"{name} is not the file .*refresh"):
                    call()


def test_an_object_that_is_replaced_while_it_is_read_is_seen(either_place, tmp_path):
    place, raw = either_place, above(either_place, "raw")
    expected = raw_of(place, tmp_path / "raw", "jsonl")
    place.storage().adopt(f"{raw.url}/", "d", "1", format="jsonl")
    ref = place.storage().fetch("d", "1")
    assert ref[0] == expected[0]
    put(raw, "002.jsonl", (tmp_path / "raw/002.jsonl").read_bytes().upper())
    with pytest.raises(CacheFormatError, match=r"002\.jsonl is not the file"):
        every(ref, [19])


def test_objects_are_refreshed(either_place, tmp_path):
    place, raw = either_place, above(either_place, "raw")
    expected = raw_of(place, tmp_path / "raw", "jsonl")
    storage = place.storage()
    storage.adopt(f"{raw.url}/*.jsonl", "d", "1", format="jsonl")
    put(raw, "003.jsonl", b"new\n")
    assert storage.refresh("d", "1", "2").lineage.version == "2"
    assert every(storage.fetch("d", "2")) == [*expected, b"new"]
    put(raw, "001.jsonl", b"other\n")
    raw.open().delete("002.jsonl")
    put(raw, "0015.jsonl", b"")
    assert storage.refresh("d", "2", "3").lineage.version == "3"
    assert every(storage.fetch("d", "3")) == [*expected[:7], b"other", b"new"]
    assert storage.refresh("d", "3", "4").lineage.version == "3"
    put(raw, "003.jsonl", b"new\n")
    ref = storage.refresh("d", "3", "4")  # a generation is new where an ETag is not
    assert ref.lineage.version == ("4" if place.url.startswith("gs:") else "3")


def test_other_buckets_are_read_only_if_they_are_named(s3_place, moto_endpoint, tmp_path):
    """Two buckets of two stores, each with options of its own."""
    theirs = above(s3_place_at(moto_endpoint), "raw/sub")
    expected = [record("jsonl", k) for k in range(5)]
    put(theirs, "a.jsonl", content("jsonl", expected))
    put(above(theirs, "raw/sub2"), "a.jsonl", b"secret\n")
    foreign = {theirs.url: theirs.options}
    storage = s3_place.storage(foreign=foreign)
    for number, address in enumerate(
        (theirs.url, f"{theirs.url}/", f"{theirs.url}/a.jsonl", f"{theirs.url}/*")
    ):
        storage.adopt(address, "d", f"{number}", format="jsonl")
        for reader in readers(s3_place, tmp_path, foreign=foreign):
            assert every(reader.fetch("d", f"{number}")) == expected
    for reader in readers(s3_place, tmp_path / "other"):
        with pytest.raises(ConfigurationError, match="outside of what this storage may read"):
            reader.fetch("d", "0")[0]
    ends = ("2/a.jsonl", "2/*", "*/*", "/../sub2/*", "/../sub2/a.jsonl")
    others = (above(theirs, "").url, "/etc/passwd", f"{tmp_path}/*")
    for address in (*(f"{theirs.url}{end}" for end in ends), *others):
        with pytest.raises(ConfigurationError, match=r"outside of what|of a machine|no object can be called"):
            storage.adopt(address, "x", "1", format="jsonl")
    folder = yogadl.open_storage(tmp_path / "folder", foreign=foreign)
    assert copy(storage, folder, "d", "0")
    assert every(folder.fetch("d", "0")) == expected
    assert every(folder.fetch("d", "0", check=True)) == expected
    assert folder.verify("d", "0").records == 5
    with pytest.raises(ConfigurationError, match="materialize=True"):
        copy(storage, yogadl.open_storage(tmp_path / "none"), "d", "0")
    assert copy(storage, yogadl.open_storage(tmp_path / "none"), "d", "0", materialize=True)
    assert every(yogadl.open_storage(tmp_path / "none").fetch("d", "0")) == expected


def test_files_of_a_machine_and_of_a_bucket_make_one_version(either_place, tmp_path):
    expected = raw_of(either_place, tmp_path / "raw", "webdataset")
    raw = above(either_place, "raw")
    storage = yogadl.open_storage(tmp_path / "caches", foreign={raw.url: raw.options})
    paths = [f"{raw.url}/002.tar", str(tmp_path / "raw/000.tar")]
    for read in (True, False):
        storage.adopt(paths, "d", f"{read}", format="webdataset", files=yogadl.FileOptions(read=read))
        assert every(storage.fetch("d", f"{read}")) == expected[8:] + expected[:7]
        found = storage.fetch("d", f"{read}", check=read)
        assert every(found, [12, 0]) == [expected[0], expected[8]]
        assert storage.refresh("d", f"{read}", "2").lineage.version == f"{read}"


def adopt_until_killed(place, log):
    from inside import adopted

    adopted._GROUPS, adopted._LEAST_GROUP_BYTES = 10**9, 1
    columns = adopted._FilesToAdopt._columns

    def noted(self):
        with open(log, "a+") as file:
            file.write(f"{self}\n")
            file.seek(0)
            if len(file.readlines()) == 8:
                time.sleep(100)
        return columns(self)

    adopted._FilesToAdopt._columns = noted
    storage = place.storage(lease=yogadl.Lease(wait_s=30, ttl_s=3))
    storage.adopt(f"{above(place, 'raw').url}/", "d", "1", format="jsonl")


def test_a_killed_call_goes_on(s3_place, tmp_path):
    expected = raw_of(s3_place, tmp_path / "raw", "jsonl", [2] * 12)
    log = tmp_path / "log"
    log.touch()
    with Process(adopt_until_killed, s3_place, str(log)) as process:
        for _ in until(60, "files to be read"):
            if len(log.read_text().split()) >= 8:
                break
        os.kill(process.pid, signal.SIGKILL)
        process.kill()
    with pytest.raises(DatasetNotFoundError):
        s3_place.storage().fetch("d", "1")
    with Process(adopt_until_killed, s3_place, str(log)) as process:
        process.result(100)
    names = [line.rpartition("/")[2] for line in log.read_text().split()]
    assert names == [f"{k:03d}.jsonl" for k in [*range(8), *range(7, 12)]]
    assert every(s3_place.storage().fetch("d", "1")) == expected


def begun(storage, version, shuffle):
    """Read an epoch, and return the records."""
    stream = storage.fetch("d", version).stream(shuffle=shuffle, shuffle_seed=1)
    return sorted(repr(plain(each)) for each in stream)


def said_of_ranges(caplog):
    found = [m.getMessage() for m in caplog.records if "requests of its own" in m.getMessage()]
    caplog.clear()
    return found


def test_a_shuffle_of_adopted_objects_by_range_names_faster_ways_once(s3_place, tmp_path, caplog):
    expected = sorted(map(repr, raw_of(s3_place, tmp_path / "raw", "webdataset", [40, 40])))
    url = above(s3_place, "raw").url
    bare, mirrored = s3_place.storage(), s3_place.storage(mirror=tmp_path / "mirror")
    for version in ("1", "2"):
        bare.adopt(url, "d", version, format="webdataset")
    blocks = yogadl.Blocks(records=8, window=2)
    for storage, shuffle in ((bare, False), (bare, blocks), (mirrored, blocks), (mirrored, True)):
        assert begun(storage, "1", shuffle) == expected
        assert said_of_ranges(caplog) == []
    for _ in range(2):
        assert begun(bare, "1", True) == expected
    [said] = said_of_ranges(caplog)
    assert "version '1'" in said
    assert "shuffle=yogadl.Blocks(...), or a mirror" in said
    assert begun(bare, "2", True) == expected
    assert len(said_of_ranges(caplog)) == 1
    bare.submit(list(range(50)), "d", "own")
    assert len(begun(bare, "own", True)) == 50
    assert said_of_ranges(caplog) == []


def test_a_mirror_that_is_never_filled_is_named_with_what_fills_it(s3_place, tmp_path, caplog):
    expected = sorted(map(repr, raw_of(s3_place, tmp_path / "raw", "webdataset")))
    s3_place.storage().adopt(above(s3_place, "raw").url, "d", "1", format="webdataset")
    never, always = (yogadl.Mirror(tmp_path / "mirror", fill=fill) for fill in ("never", "always"))
    assert begun(s3_place.storage(mirror=never), "1", True) == expected
    [said] = said_of_ranges(caplog)
    assert 'Mirror(fill="always")' in said
    assert begun(s3_place.storage(mirror=always), "1", True) == expected
    assert said_of_ranges(caplog) == []


def test_a_shuffle_of_objects_by_a_version_in_a_folder_names_faster_ways(s3_place, tmp_path, caplog):
    expected = sorted(map(repr, raw_of(s3_place, tmp_path / "raw", "webdataset", [40, 40])))
    raw = above(s3_place, "raw")
    storage = yogadl.open_storage(tmp_path / "caches", foreign={raw.url: raw.options})
    storage.adopt(raw.url, "d", "1", format="webdataset")
    assert begun(storage, "1", yogadl.Blocks(records=8, window=2)) == expected
    assert said_of_ranges(caplog) == []
    assert begun(storage, "1", True) == expected
    [said] = said_of_ranges(caplog)
    assert "yogadl.Blocks(...), or a mirror, if the version lies in a bucket, too (yogadl push)" in said
