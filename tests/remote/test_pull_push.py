"""Copies of a cache: from a bucket to here, from here to a bucket, the same to the digest, or not at all."""

import errno
import time

import pytest
from inside import BucketRoot, _copy, copy, upload
from mirrors import bucket_with, rows
from processes import Process, processes, wait_until

import yogadl
from yogadl.errors import CacheFormatError, ConfigurationError, DatasetNotFoundError, StorageError


@pytest.fixture
def caches(tmp_path):
    """A local storage with a cache of several parts."""
    bucket_with(tmp_path / "caches", "a")
    return yogadl.open_storage(tmp_path / "caches")


@pytest.fixture
def bucket(tmp_path):
    """An empty storage in a bucket."""
    storage = yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=tmp_path / "mirror")
    return storage


@pytest.fixture(
    params=["folder to bucket", "folder to folder", "bucket to folder", "bucket to bucket", "to shared"]
)
def pair(request, caches, tmp_path):
    """A storage that has a cache, and an empty one, of all kinds."""
    remote = yogadl.open_storage(f"file://{tmp_path}/caches", mirror=tmp_path / "mirror")
    empty = yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=tmp_path / "other mirror")
    match request.param:
        case "folder to bucket":
            return caches, empty
        case "folder to folder":
            return caches, yogadl.open_storage(tmp_path / "copies")
        case "bucket to folder":
            return remote, yogadl.open_storage(tmp_path / "copies")
        case "bucket to bucket":
            return remote, empty
        case _:
            return remote, yogadl.open_storage(tmp_path / "copies", shared=True)


def is_same(source, target):
    """Return whether the target has the cache, to the digest, and every byte of it is sound."""
    target.verify("a", "1")
    found = target.fetch("a", "1").gather(range(2_000))
    return source.info("a", "1").digest == target.info("a", "1").digest and bool(
        (found["row"] == rows()["row"]).all()
    )


def left_over(folder):
    """Return the files that no finished copy leaves."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [str(path) for path in files if "builds" in path.parts or path.suffix == ".tmp"]


def test_a_copy_is_the_same_to_the_digest(pair, tmp_path):
    source, target = pair
    assert copy(source, target, "a", "1")
    assert is_same(source, target)
    assert left_over(tmp_path) == []
    assert source.verify("a", "1").records == 2_000


def test_a_second_copy_has_nothing_to_do(pair):
    source, target = pair
    copy(source, target, "a", "1")
    assert not copy(source, target, "a", "1")


def test_progress_ends_with_all_of_it(pair):
    source, target = pair
    said = []
    copy(source, target, "a", "1", progress=lambda done, total: said.append((done, total)))
    size_bytes = source.info("a", "1").size_bytes
    assert said[-1] == (size_bytes, size_bytes)


def test_another_version_of_that_name_stays_unless_it_is_to_be_replaced(pair):
    source, target = pair
    target.submit([1, 2, 3], "a", "1")
    with pytest.raises(ConfigurationError, match="has another 'a' version '1'"):
        copy(source, target, "a", "1")
    assert list(target.fetch("a", "1").stream()) == [1, 2, 3]
    assert copy(source, target, "a", "1", replaces=True)
    assert is_same(source, target)
    target.undelete("a", "1")
    assert list(target.fetch("a", "1").stream()) == [1, 2, 3]


@pytest.mark.parametrize("suffix", [".mdb", ".idx", ".parts"])
def test_what_is_damaged_is_not_copied(pair, suffix, tmp_path):
    source, target = pair
    path = sorted((tmp_path / "caches/a").rglob(f"*{suffix}"))[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    with pytest.raises(CacheFormatError):
        copy(source, target, "a", "1")
    with pytest.raises(DatasetNotFoundError):
        target.fetch("a", "1")


def test_parts_that_an_earlier_version_has_there_are_not_copied_again(pair, monkeypatch):
    """However old they are: a bucket's can't be made young, but no prune takes what a manifest names."""
    source, target = pair
    copy(source, target, "a", "1")
    source.append(rows(7, 100), "a", "2", base_version="1")
    source.append(rows(8, 100), "a", "3", base_version="2")
    now = BucketRoot.now
    monkeypatch.setattr(BucketRoot, "now", lambda root: now(root) + 3 * 86_400)
    names = []
    take = _copy._CopiedFiles._move_to_target

    def taking(files, name, path):
        names.append(name)
        take(files, name, path)

    monkeypatch.setattr(_copy._CopiedFiles, "_move_to_target", taking)
    assert copy(source, target, "a", "3")
    assert sorted(name[-4:] for name in names) == [".idx", ".idx", ".mdb", ".mdb"]
    target.verify("a", "3")
    assert len(target.fetch("a", "3")) == 2_200
    assert target.info("a", "3").digest == source.info("a", "3").digest


@pytest.mark.parametrize("suffix", [".mdb", ".idx", ".parts"])
def test_a_file_that_the_target_has_lost_is_copied_again(pair, suffix):
    source, target = pair
    copy(source, target, "a", "1")
    lost = next(entry.name for entry in target._backend.root.entries("a") if entry.name.endswith(suffix))
    target._backend.root.remove(lost)
    assert copy(source, target, "a", "1")
    assert not copy(source, target, "a", "1")
    assert is_same(source, target)


def test_what_is_not_there_is_not_found(pair):
    with pytest.raises(DatasetNotFoundError, match=r"there are the versions \['1'\]"):
        copy(*pair, "a", "2")


def test_a_copy_that_failed_goes_on_where_it_stopped(caches, bucket, monkeypatch):
    sent = []
    may_fail = True

    def failing(bucket, name, path):
        if may_fail and len(sent) == 7:
            raise StorageError(errno.EACCES, "no credentials any more")
        sent.append(name)
        return upload(bucket, name, path)

    monkeypatch.setattr(_copy, "upload", failing)
    with pytest.raises(StorageError, match="no credentials any more"):
        copy(caches, bucket, "a", "1")
    with pytest.raises(DatasetNotFoundError):
        bucket.fetch("a", "1")
    before, may_fail = set(sent), False
    sent.clear()
    assert copy(caches, bucket, "a", "1")
    assert not before & set(sent)
    assert is_same(caches, bucket)


def push(folder, url, mirror):
    """Push the cache, slowly."""
    from inside import LocalBucket

    put = LocalBucket.put

    def slow_put(self, name, content):
        if name.endswith(".mdb"):
            time.sleep(0.2)
        return put(self, name, content)

    LocalBucket.put = slow_put
    target = yogadl.open_storage(url, mirror=mirror, lease=yogadl.Lease(ttl_s=2.0))
    copy(yogadl.open_storage(folder), target, "a", "1")


def test_a_push_that_is_killed_leaves_nothing_to_be_read_and_the_next_one_goes_on(caches, tmp_path):
    url = f"file://{tmp_path}/bucket"
    target = yogadl.open_storage(url, mirror=tmp_path / "mirror", lease=yogadl.Lease(ttl_s=2.0))
    with Process(push, tmp_path / "caches", url, tmp_path / "mirror") as child:
        wait_until(lambda: list((tmp_path / "bucket").rglob("*.mdb")), "the first part")
        child.kill()
    sent = {path.name: path.stat().st_ino for path in (tmp_path / "bucket").rglob("*.mdb")}
    assert target.datasets() == []
    assert copy(caches, target, "a", "1")
    assert is_same(caches, target)
    now = {path.name: path.stat().st_ino for path in (tmp_path / "bucket").rglob("*.mdb")}
    assert 0 < len(sent) < len(now)
    assert sent.items() <= now.items()


def test_two_that_push_at_once_make_one_cache(caches, tmp_path):
    url = f"file://{tmp_path}/bucket"
    with processes(push, [(tmp_path / "caches", url, tmp_path / f"mirror-{n}") for n in range(2)]) as pushing:
        for one in pushing:
            one.result()
    assert is_same(caches, yogadl.open_storage(url, mirror=tmp_path / "mirror"))


def test_to_push_does_not_fill_the_mirror(caches, bucket, tmp_path):
    copy(caches, bucket, "a", "1")
    assert list((tmp_path / "mirror").rglob("*.mdb")) == []


# The commands.


def test_push_and_pull_and_read(yoga, either_place, caches, tmp_path, monkeypatch):
    for name, value in either_place.options.get("client_options", {}).items():
        monkeypatch.setenv({"region_name": "AWS_DEFAULT_REGION"}.get(name, name.upper()), value)
    options = ["--endpoint-url", either_place.options["endpoint_url"]]
    options += ["--anonymous"] if either_place.options.get("anonymous") else []
    ended = yoga("push", "a", "1", either_place.url, "-s", tmp_path / "caches", *options)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"a 1 is in {either_place.url} now: 2,000 records, ")
    assert yoga("push", "a", "1", "--to", either_place.url, "--from", tmp_path / "caches", *options).out == (
        f"a 1 is in {either_place.url} already.\n"
    )
    ended = yoga("pull", "a", "1", "-s", either_place.url, "--mirror", tmp_path / "mirror", *options)
    assert ended.out.startswith(f"a 1 is in the mirror {tmp_path / 'mirror'}: ")
    yoga("pull", "a", "1", "--from", either_place.url, "--to", tmp_path / "copies", *options).ends(0)
    assert is_same(caches, yogadl.open_storage(tmp_path / "copies"))
    yoga("ls", "-s", either_place.url, *options).ends(0)


def test_pull_from_one_store_to_another_has_options_for_each(
    yoga, s3_place, gcs_place, moto_place, tmp_path, monkeypatch
):
    bucket_with(tmp_path / "caches", "a")
    for name, value in s3_place.options["client_options"].items():
        monkeypatch.setenv({"region_name": "AWS_DEFAULT_REGION"}.get(name, name.upper()), value)
    endpoint = "endpoint_url"
    of_s3 = ["--endpoint-url", s3_place.options[endpoint]]
    assert yoga("push", "a", "1", s3_place.url, "-s", tmp_path / "caches", *of_s3).code == 0
    to_gcs = ["--to-endpoint-url", gcs_place.options[endpoint], "--to-anonymous"]
    ended = yoga("pull", "a", "1", "--from", s3_place.url, *of_s3, "--to", gcs_place.url, *to_gcs)
    assert (ended.code, ended.err) == (0, "")
    of_gcs = ["--endpoint-url", gcs_place.options[endpoint], "--anonymous"]
    to_s3 = ["--to-endpoint-url", moto_place.options[endpoint]]
    ended = yoga("push", "a", "1", moto_place.url, "-s", gcs_place.url, *of_gcs, *to_s3)
    assert (ended.code, ended.err) == (0, "")
    of_third = ["--endpoint-url", moto_place.options[endpoint]]
    folder = tmp_path / "copies"
    assert yoga("pull", "a", "1", "--from", moto_place.url, *of_third, "--to", folder).code == 0
    assert is_same(yogadl.open_storage(tmp_path / "caches"), yogadl.open_storage(folder))


def test_push_as_json_has_stable_keys(yoga, caches, tmp_path):
    ended = yoga("push", "a", "1", tmp_path / "copies", "-s", tmp_path / "caches", "--json")
    info = caches.info("a", "1")
    assert ended.json == {
        "storage": str(tmp_path / "caches"),
        "to": str(tmp_path / "copies"),
        "id": "a",
        "version": "1",
        "was_copied": True,
        "size_bytes": info.size_bytes,
        "digest": info.digest,
    }


def test_pull_as_json_has_stable_keys(yoga, caches, tmp_path):
    url = f"file://{tmp_path}/caches"
    ended = yoga("pull", "a", "1", "-s", url, "--mirror", tmp_path / "mirror", "--json")
    info = caches.info("a", "1")
    assert ended.json == {
        "storage": url,
        "id": "a",
        "version": "1",
        "mirror": str(tmp_path / "mirror"),
        "size_bytes": info.size_bytes,
        "parts": info.parts,
        "mended": [],
        "adopted": None,
    }


def test_a_mirror_limit_that_is_too_small_is_one_line(yoga, caches, tmp_path):
    url = f"file://{tmp_path}/caches"
    ended = yoga("pull", "a", "1", "-s", url, "--mirror", tmp_path / "mirror", "--mirror-limit", "10kB")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "Raise it, Mirror(limit=...)" in ended.err
