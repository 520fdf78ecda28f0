"""No way into a storage gives a version places of this machine that it had not where it comes from."""

import contextlib

import forge
import pytest
from adopted_files import every, write, write_numbered
from inside import ForeignFile, LocalBucket

import yogadl
from yogadl import cli
from yogadl.errors import CacheFormatError, ConfigurationError, YogaError
from yogadl.storage import copy

SECRET = b"secret"
SIZE = 600  # as large as any file of the tests, so that its blocks lie in the secret one


def secret_of(tmp_path):
    """Write what nobody may read by way of a bucket, and a link to it in the folder that may be read."""
    folder = tmp_path / "private"
    folder.mkdir()
    path = folder / "secret.jsonl"
    path.write_bytes((SECRET * SIZE)[: SIZE - 1] + b"\n")
    (tmp_path / "raw/link").symlink_to(folder)
    return path


def forged(root, address, tag, *, kind="table and index"):
    """Let a version name a file: in table and indexes, in its indexes alone, or in its patterns."""
    forgery = forge.Forgery.of(root)
    if kind == "paths":
        forgery.manifest["builder"]["adopted"]["paths"] = [address]
        forgery.write()
        return
    forgery.name_files(lambda _: ForeignFile(address, SIZE, tag), in_table=kind == "table and index")
    forgery.write()


class Place:
    """A storage that a version comes from, and one to which it is brought, each with what it may read."""

    def __init__(self, tmp_path, number=0, *, is_bucket=True):
        self.raw = f"file://{tmp_path}/raw"
        self.root = tmp_path / f"source{number}"
        self.location = f"file://{self.root}" if is_bucket else str(self.root)
        self.target = tmp_path / f"target{number}"
        self.mirror = tmp_path / f"mirror{number}"

    def source(self, **options):
        if self.location.startswith("file://"):
            options = {"mirror": None} | options
        else:
            options = {"shared": True} | options
        return yogadl.open_storage(self.location, **{"foreign": {self.raw: {}}} | options)

    def folder(self, **options):
        return yogadl.open_storage(self.target, **{"foreign": {self.raw: {}}} | options)

    def command(self, *words):
        return cli.main([*words, "--foreign", self.raw])

    def records(self):
        """Return all records of what came here: of the target, and of the mirror's folder as a storage."""
        found = []
        roots = [self.target, *(path.parent.parent for path in self.mirror.glob("**/versions"))]
        for storage in [yogadl.open_storage(root, foreign={self.raw: {}}) for root in roots]:
            for dataset in storage.datasets():
                for version in storage.versions(dataset):
                    with contextlib.suppress(YogaError):
                        found += every(storage.fetch(dataset, version))
                    with contextlib.suppress(YogaError):
                        found += list(storage.fetch(dataset, version).stream().prefetch(2))
        return found


def copied(place, version="1", **options):
    with contextlib.suppress(YogaError):
        copy(place.source(), place.folder(), "data", version, **options)


def made_there_or_here(call):
    """Make a version of the one that was forged: in the source, then copied; and copied, then here."""

    def way(place):
        with contextlib.suppress(YogaError):
            call(place.source(), "2", place.raw)
        copied(place, "2")
        copied(place, "2-refreshed")
        copied(place)
        call(place.folder(), "3", place.raw)

    return way


def mirrored(place):
    storage = place.source(mirror=yogadl.Mirror(place.mirror, fill="always"))
    for call in (
        lambda: storage.fetch("data", "1").gather([0]),
        lambda: storage.verify("data", "1"),
        lambda: list(storage.fetch("data", "1").stream()),
    ):
        with contextlib.suppress(YogaError):
            call()
    place.command("pull", "data", "1", "--from", place.location, "--mirror", f"{place.mirror}")


def adopted(storage, new, raw):
    storage.adopt(
        f"{raw}/more.jsonl", "data", new, format="jsonl", files=yogadl.FileOptions(base_version="1")
    )
    storage.refresh("data", new, f"{new}-refreshed")


# Each brings a version from one storage into the other, or makes another of it, there or here.
WAYS = {
    "copied": copied,
    "copied with values": lambda place: copied(place, materialize=True),
    "pulled": lambda place: place.command(
        "pull", "data", "1", "--from", place.location, "--to", f"{place.target}"
    ),
    "pushed": lambda place: place.command("push", "data", "1", f"{place.target}", "--from", place.location),
    "submitted": lambda place: place.folder().submit(place.source().fetch("data", "1"), "data", "1"),
    "imported": lambda place: place.command(
        "import-014", f"{place.root}/data/versions", "--trust-pickle", "-s", f"{place.target}"
    ),
    "mirrored": mirrored,
    "appended": made_there_or_here(
        lambda storage, new, _: storage.append([b"more"], "data", new, base_version="1")
    ),
    "adopted": made_there_or_here(adopted),
    "refreshed": made_there_or_here(lambda storage, new, _: storage.refresh("data", "1", new)),
    "compacted": made_there_or_here(lambda storage, new, _: storage.compact("data", "1", new)),
    "recompressed": made_there_or_here(
        lambda storage, new, _: storage.recompress("data", "1", new, codec=None)
    ),
}

# Addresses of the secret file, below a folder.
ADDRESSES = {
    "path": "{0}/private/secret.jsonl",
    "two slashes": "/{0}/private/secret.jsonl",
    "parent": "{0}/raw/../private/secret.jsonl",
    "link": "{0}/raw/link/secret.jsonl",
    "url": "file://{0}/private/secret.jsonl",
    "host": "file://localhost{0}/private/secret.jsonl",
    "parent in url": "file://{0}/raw/../private/secret.jsonl",
    "encoded parent": "file://{0}/raw/%2e%2e/private/secret.jsonl",
    "encoded slash": "file://{0}/raw%2f..%2fprivate/secret.jsonl",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["table and index", "index", "paths"])
def test_no_way_into_a_storage_gains_a_place_of_this_machine(tmp_path, way, kind):
    records = write_numbered(tmp_path / "raw", "jsonl", [3])
    write(tmp_path / "raw/more.jsonl", "jsonl", [b"more"])
    secret = secret_of(tmp_path)
    tags = [str(secret.stat().st_mtime_ns), LocalBucket(tmp_path).head("private/secret.jsonl").tag]
    first = Place(tmp_path, "")
    first.source().adopt(f"{first.raw}/000.jsonl", "data", "1", format="jsonl")
    assert every(first.source().fetch("data", "1")) == records
    for number, pattern in enumerate(ADDRESSES.values()):
        place, address = Place(tmp_path, number), pattern.format(tmp_path)
        forge.copy_cache(first.root, place.root)
        forged(place.root, address, tags["://" in address], kind=kind)
        with contextlib.suppress(YogaError):
            WAYS[way](place)
        found = place.records()
        assert not [record for record in found if SECRET in record], address


@pytest.mark.parametrize("way", ["copied", "copied with values", "pulled", "pushed", "submitted"])
@pytest.mark.parametrize("is_bucket", [True, False])
def test_a_version_of_permitted_places_comes_in_each_way(tmp_path, way, is_bucket):
    records = write_numbered(tmp_path / "raw", "jsonl", [3])
    place = Place(tmp_path, is_bucket=is_bucket)
    place.source().adopt(f"{place.raw}/000.jsonl", "data", "1", format="jsonl")
    WAYS[way](place)
    assert every(place.folder().fetch("data", "1")) == records
    assert place.records() == records * 2


def adopted_of_paths(tmp_path, storage):
    """Adopt a local file in a storage in a folder, and return its records."""
    records = write_numbered(tmp_path / "raw", "jsonl", [3])
    storage.adopt(f"{tmp_path}/raw/*.jsonl", "data", "1", format="jsonl")
    return records


@pytest.mark.parametrize(
    ("gives", "takes", "is_copied"),
    [
        ({}, {}, False),
        ({"raw": {}}, {}, False),
        ({}, {"raw": {}}, False),
        ({"raw": {}}, {"raw": {}}, True),
        ({"": {}}, {"raw": {}}, True),
        ({"ra": {}}, {"raw": {}}, False),
        ({"raw2": {}}, {"raw": {}}, False),
        ({"linked": {}}, {"raw": {}}, True),
    ],
)
def test_a_folder_that_machines_share_hands_on_local_files_only_if_both_storages_permit_them(
    tmp_path, gives, takes, is_copied
):
    place = Place(tmp_path, is_bucket=False)
    records = adopted_of_paths(tmp_path, place.source(foreign=None))
    (tmp_path / "linked").symlink_to(tmp_path / "raw")
    given, taken = ({f"file://{tmp_path}/{name}".rstrip("/"): {} for name in each} for each in (gives, takes))
    source, target = place.source(foreign=given), place.folder(foreign=taken)
    assert every(source.fetch("data", "1")) == records
    if is_copied:
        assert copy(source, target, "data", "1")
        assert every(target.fetch("data", "1")) == records
        return
    with pytest.raises(ConfigurationError, match="only if both storages are opened with foreign=") as caught:
        copy(source, target, "data", "1")
    assert str(tmp_path / "raw/000.jsonl") in str(caught.value)
    assert copy(source, target, "data", "1", materialize=True)  # as the error advises
    assert every(target.fetch("data", "1")) == records


def test_the_folder_that_the_error_names_permits_the_copy(tmp_path):
    place = Place(tmp_path, is_bucket=False)
    records = adopted_of_paths(tmp_path, place.source())
    named = f"file://{tmp_path}/raw"
    with pytest.raises(ConfigurationError) as caught:
        copy(place.source(foreign=None), place.folder(), "data", "1")
    assert f"foreign={{'{named}': {{}}}}" in str(caught.value)
    assert copy(place.source(), place.folder(), "data", "1")
    assert every(place.folder().fetch("data", "1")) == records


def test_a_folder_on_a_disk_of_this_machine_hands_on_its_own_local_files(tmp_path):
    storage = yogadl.open_storage(tmp_path / "caches")
    records = adopted_of_paths(tmp_path, storage)
    target = yogadl.open_storage(tmp_path / "others")
    assert copy(storage, target, "data", "1")
    write(tmp_path / "raw/001.jsonl", "jsonl", [b"new"])
    assert target.refresh("data", "1", "2").lineage.version == "2"
    assert every(target.fetch("data", "2")) == [*records, b"new"]
    target.append([b"more"], "data", "3", base_version="2")
    assert every(target.fetch("data", "3")) == [*records, b"new", b"more"]


@pytest.mark.parametrize("call", ["append", "refresh", "verify"])
def test_indexes_that_name_other_files_than_the_part_table_are_refused(tmp_path, call):
    storage = yogadl.open_storage(tmp_path / "caches")
    adopted_of_paths(tmp_path, storage)
    secret = secret_of(tmp_path)
    forged(tmp_path / "caches", str(secret), str(secret.stat().st_mtime_ns), kind="index")
    calls = {
        "append": lambda: storage.append([b"more"], "data", "2", base_version="1"),
        "refresh": lambda: storage.refresh("data", "1", "2"),
        "verify": lambda: storage.verify("data", "1"),
    }
    with pytest.raises(CacheFormatError, match="name foreign files that its part table lacks"):
        calls[call]()
    assert storage.versions("data") == ["1"]


def test_a_link_that_leads_out_of_a_permitted_place_is_refused(tmp_path):
    """To adopt it, to refresh a version of a pattern that it matches, and to read it."""
    permitted, caches = tmp_path / "ok", (tmp_path / "caches").as_uri()
    permitted.mkdir()
    write(permitted / "a.jsonl", "jsonl", [b"one"])
    write(tmp_path / "secret/s.jsonl", "jsonl", [SECRET])

    def opened(*places):
        return yogadl.open_storage(caches, foreign={place.as_uri(): {} for place in places}, mirror=None)

    def link():
        (permitted / "z.jsonl").symlink_to("../secret/s.jsonl")

    opened(permitted).adopt(f"{permitted.as_uri()}/*.jsonl", "lines", "1", format="jsonl")
    link()
    said = "z.jsonl is a link to .*/secret/s.jsonl, outside of what this storage may read"
    for call in (
        lambda: opened(permitted).refresh("lines", "1", "2"),
        lambda: opened(permitted).adopt(f"{permitted.as_uri()}/z.jsonl", "other", "1", format="jsonl"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            call()
    both = opened(permitted, tmp_path / "secret")  # as the error says
    both.refresh("lines", "1", "2")
    assert len(both.fetch("lines", "2")) == 2
    with pytest.raises(ConfigurationError, match=said):
        opened(permitted).fetch("lines", "2")[1]
