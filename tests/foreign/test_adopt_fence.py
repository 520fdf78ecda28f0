"""A storage reads foreign files only where it may."""

import os

import forge
import pytest
from adopted_files import every, write, write_numbered
from inside import ForeignFile, ForeignFiles, LocalBucket, Permitted

import yogadl
from yogadl.errors import CacheFormatError, ConfigurationError, YogaError
from yogadl.storage import copy


@pytest.fixture
def records(tmp_path):
    """Write files into a folder that is used as a bucket."""
    return write_numbered(tmp_path / "raw", "jsonl", [3, 4])


def bucket_at(tmp_path, name="bucket", **options):
    return yogadl.open_storage(f"file://{tmp_path}/{name}", mirror=None, **options)


def foreign(tmp_path, name="raw"):
    return {"foreign": {f"file://{tmp_path}/{name}": {}}}


def with_address(root, change):
    """Forge a version: its files are at the addresses that `change` returns for them."""
    forgery = forge.Forgery.of(root)
    forgery.name_files(change)
    forgery.write()


def secret_at(tmp_path):
    """Write a file that nobody may read by way of a bucket."""
    path = tmp_path / "secret.jsonl"
    path.write_bytes(b"s" * 200)
    status = path.stat()
    return path, str(status.st_mtime_ns)


def all_refused(storage, match):
    """Check that no way to read gives a record."""
    for call in (
        lambda: every(storage.fetch("data", "1")),
        lambda: every(storage.fetch("data", "1", check=True)),
        lambda: list(storage.fetch("data", "1").stream()),
        lambda: storage.verify("data", "1"),
    ):
        with pytest.raises(YogaError, match=match):
            call()


def test_a_bucket_adopts_what_it_is_told_to_and_nothing_else(tmp_path, records):
    storage = bucket_at(tmp_path, **foreign(tmp_path))
    storage.adopt(f"file://{tmp_path}/raw/*.jsonl", "data", "1", format="jsonl")
    for options in ({}, {"mirror": tmp_path / "mirror"}):
        opened = yogadl.open_storage(
            f"file://{tmp_path}/bucket", **{"mirror": None} | options | foreign(tmp_path)
        )
        for check in (False, True):
            assert every(opened.fetch("data", "1", check=check)) == records
        assert list(opened.fetch("data", "1").stream().prefetch(2)) == records
        assert opened.verify("data", "1").records == len(records)
    all_refused(bucket_at(tmp_path), "outside of what this storage may read")
    write(tmp_path / "raw2/a.jsonl", "jsonl", [b"a"])
    for address in (
        f"file://{tmp_path}/raw2/a.jsonl", f"file://{tmp_path}/raw2/*.jsonl", f"file://{tmp_path}/ra*/*.jsonl",
        f"file://{tmp_path}/raw/../raw2/a.jsonl", f"file://{tmp_path}/raw/../raw2/*.jsonl",
        f"{tmp_path}/raw/000.jsonl", f"{tmp_path}/raw/*.jsonl", "s3://bucket/a.jsonl", f"file://{tmp_path}/raw2",
        f"file://{tmp_path}/raw/x/../../raw2",
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=r"outside of what this storage may read|of a machine"):
            storage.adopt(address, "data", "2", format="jsonl")


@pytest.mark.parametrize("mirror", [False, True])
def test_a_version_in_a_bucket_that_names_a_file_of_the_machine_is_refused(tmp_path, records, mirror):
    storage = bucket_at(tmp_path, **foreign(tmp_path))
    storage.adopt(f"file://{tmp_path}/raw/*.jsonl", "data", "1", format="jsonl")
    path, tag = secret_at(tmp_path)
    for address in (str(path), f"/{path}", f"file://{path}", f"file://{tmp_path}/rawest/../secret.jsonl"):
        with_address(tmp_path / "bucket", lambda file, a=address: ForeignFile(a, 200, tag))
        options = {"mirror": tmp_path / "mirror" if mirror else None}
        opened = yogadl.open_storage(f"file://{tmp_path}/bucket", **options, **foreign(tmp_path))
        all_refused(opened, "may not name|outside of what|is no foreign file|damaged|contradict")


@pytest.mark.parametrize(
    "address",
    [
        "s3://raw/../other/x", "s3://raw/./x", "/a/../etc/passwd", "a", "", "file", "/a\nb", "/a\0b",
        "/" + "a" * 4096,
    ],
)  # fmt: skip
def test_addresses_that_no_storage_writes_are_refused(tmp_path, records, address):
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.adopt(f"{tmp_path}/raw", "data", "1", format="jsonl")
    with_address(tmp_path / "caches", lambda file: ForeignFile(address, file.size_bytes, file.tag))
    all_refused(storage, r"no foreign file|damaged|is missing")


@pytest.mark.parametrize(
    ("length", "size_bytes", "is_sound"),
    [
        (4095, 1, True), (4096, 1, True), (4097, 1, False), (2, -1, False), (2, 0, True),
        (2, 2**46 - 1, True), (2, 2**46, False),
    ],
)  # fmt: skip
def test_the_longest_address_and_the_largest_file(length, size_bytes, is_sound):
    address = "/" + "a" * (length - 1)
    if is_sound:
        assert ForeignFile.from_json([address, size_bytes, "tag"], "x").size_bytes == size_bytes
        return
    with pytest.raises(CacheFormatError):
        ForeignFile.from_json([address, size_bytes, "tag"], "x")


@pytest.mark.parametrize("sizes", [[-1], [2**46], [2**45, 2**45]])
def test_files_that_are_too_large_together_are_refused(sizes):
    files = [ForeignFile("/a", size_bytes, "tag") for size_bytes in sizes]
    with pytest.raises(ValueError, match="contradicts"):
        ForeignFiles.of(files)
    assert len(ForeignFiles.of([ForeignFile("/a", 2**45, "tag")])) == 1


@pytest.mark.parametrize(
    ("address", "is_permitted"),
    [
        ("s3://raw/a", True), ("s3://raw/sub/a", True), ("s3://raw2/a", False), ("s3://raw", False),
        ("s3://RAW/a", False), ("gs://raw/a", False), ("s3://rawa", False), ("s3://deep/er/a", True),
        ("s3://deep/era/a", False), ("s3://deep/a", False), ("file:///etc/passwd", False),
        ("/etc/passwd", False),
        ("s3://user@raw/a", False), ("s3://raw\\@evil/a", False),
    ],
)  # fmt: skip
def test_prefixes_end_at_a_slash(tmp_path, address, is_permitted):
    buckets = (("s3://deep/er", LocalBucket(tmp_path)), ("s3://raw", LocalBucket(tmp_path)))
    stores = Permitted(False, buckets)
    if is_permitted:
        assert stores.place(address)[1] == address.removeprefix("s3://deep/er/").removeprefix("s3://raw/")
    else:
        with pytest.raises(ConfigurationError):
            stores.place(address)


def test_the_longest_prefix_is_taken(tmp_path, records):
    write(tmp_path / "raw/sub/x.jsonl", "jsonl", [b"x"])
    urls = {f"file://{tmp_path}/raw": {}, f"file://{tmp_path}/raw/sub/": {}}
    storage = yogadl.open_storage(tmp_path / "caches", foreign=urls)
    storage.adopt(
        [f"file://{tmp_path}/raw/sub/x.jsonl", f"{tmp_path}/raw/000.jsonl"], "data", "1", format="jsonl"
    )
    assert every(storage.fetch("data", "1")) == [b"x", *records[:3]]
    assert every(storage.fetch("data", "1", check=True)) == [b"x", *records[:3]]
    assert list(storage.fetch("data", "1").stream().prefetch(2)) == [b"x", *records[:3]]
    assert storage.verify("data", "1").records == 4


@pytest.mark.parametrize("given", [[], "s3://a", {"a": {}}, {"s3://a": None}, {1: {}}, {"/local": {}}])
def test_what_is_no_list_of_places_is_refused(tmp_path, given):
    with pytest.raises(ConfigurationError, match="foreign must be"):
        yogadl.open_storage(tmp_path, foreign=given)


def test_an_index_is_not_copied_to_where_its_files_can_not_be_read(tmp_path, records):
    here = yogadl.open_storage(tmp_path / "caches", **foreign(tmp_path))
    here.adopt(f"{tmp_path}/raw", "data", "local", format="jsonl")
    here.adopt(f"file://{tmp_path}/raw", "data", "far", format="jsonl")
    bucket, permitted = bucket_at(tmp_path), bucket_at(tmp_path, **foreign(tmp_path))
    for target, version in ((bucket, "local"), (bucket, "far"), (permitted, "local")):
        with pytest.raises(ConfigurationError, match="materialize=True"):
            copy(here, target, "data", version)
    assert copy(here, permitted, "data", "far")
    assert every(permitted.fetch("data", "far")) == records
    assert not copy(here, permitted, "data", "far")
    folder = yogadl.open_storage(tmp_path / "folder")
    assert copy(here, folder, "data", "local")
    assert every(folder.fetch("data", "local")) == records


@pytest.mark.parametrize(("pattern", "expected"), [
    ("*.jsonl", "0 1"), ("**/*.jsonl", "0 1 2 3"), ("**", "0 1 o 2 3"), ("sub/**", "2 3"), ("", "0 1 2 3"),
    ("sub", "2 3"), ("sub/", "2 3"), ("[01].jsonl", "0 1"), ("[!0].jsonl", "1"), ("?.jsonl", "0 1"),
    ("{0..1}.jsonl", "0 1"), ("*/*.jsonl", "2"), ("0.jsonl", "0"), ("s*/**/3.jsonl", "3"), ("x*", ""),
    ("su", ""),
    ("[", ""), ("0.json", ""), ("*.json", ""), (".jsonl", ""),
])  # fmt: skip
def test_patterns_in_a_bucket_are_those_of_folders(tmp_path, pattern, expected):
    for name in ("0", "1", "sub/2", "sub/deep/3"):
        write(tmp_path / f"raw/{name}.jsonl", "jsonl", [name[-1].encode()])
    write(tmp_path / "raw/other", "jsonl", [b"o"])
    storage = yogadl.open_storage(tmp_path / "caches", **foreign(tmp_path))
    for number, base in enumerate((f"file://{tmp_path}/raw", f"{tmp_path}/raw")):
        if not expected:
            with pytest.raises(ConfigurationError, match="there is no file"):
                storage.adopt(f"{base}/{pattern}", "data", f"{number}", format="jsonl")
            continue
        storage.adopt(f"{base}/{pattern}", "data", f"{number}", format="jsonl")
        assert [each.decode() for each in every(storage.fetch("data", f"{number}"))] == expected.split()


def test_an_object_that_was_replaced_is_an_error_that_names_it(tmp_path, records):
    storage = bucket_at(tmp_path, **foreign(tmp_path))
    storage.adopt(f"file://{tmp_path}/raw", "data", "1", format="jsonl")
    path = tmp_path / "raw/001.jsonl"
    content = path.read_bytes()
    for spoiled in (content.upper(), content + b"more\n", content[:-3], None):
        path.unlink(missing_ok=True)
        if spoiled is not None:
            path.write_bytes(spoiled)
            os.utime(path, ns=(5, 5))
        for mirror in (None, tmp_path / f"mirror-{len(spoiled or b'')}"):
            opened = yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=mirror, **foreign(tmp_path))
            all_refused(opened, r"/raw/001\.jsonl is not the file|001\.jsonl.*missing")
