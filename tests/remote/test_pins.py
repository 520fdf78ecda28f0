"""Parts are the objects that were published: one that was swapped before its first range is an error."""

import sys

import numpy as np
import pytest
from inside import NotCarriedOverError, ReplacedError, RetryPolicy, copy, obstore_ranges, read, set_constants
from places import Place, parts_of, swap
from processes import in_fork
from store_proxy import refuses
from warm import warm

import yogadl
from yogadl.errors import CacheFormatError, SpendingError, StorageError

COUNT = 61
MORE = 17
PART_BYTES = 60_000


def columns(first=0, count=COUNT):
    ids = np.arange(first, first + count)
    return {"id": ids, "x": (ids[:, None] * 31 + np.arange(2000)).astype(np.uint16)}


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch):
    """Bring no cache to the mirror at once."""
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0)


@pytest.fixture
def folder_place(tmp_path):
    """A bucket in a folder, for what does not depend on the store."""
    return Place(f"file://{tmp_path}/bucket")


@pytest.fixture(params=["obstore", "sdk"])
def way(request, monkeypatch):
    """What ranges are read by."""
    if request.param == "sdk":

        def refuse(*arguments):
            raise NotCarriedOverError("this test")

        monkeypatch.setattr(obstore_ranges, "_connected", refuse)
    name = request.param
    return name


def built(place, **options):
    storage = place.storage(**options)
    storage.submit(columns(), "set", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    assert storage.info("set", "1").parts > 3
    return storage


def drained(ref, shuffle=True, **ahead):
    """Read an epoch, and compare all of it."""
    seen = []
    for batch in ref.stream(shuffle=shuffle).batch(16).prefetch(2, **ahead):
        np.testing.assert_array_equal(batch["x"], columns(0, COUNT + MORE)["x"][batch["id"]])
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(len(ref)))


def assert_swapped(read, *arguments, **more):
    """Check that something that reads says that a part is another object."""
    with pytest.raises(ReplacedError, match="is not the object that was published"):
        read(*arguments, **more)


def tag_of(bucket, name):
    found = bucket.head(name)
    assert found is not None
    return found.tag


def put_again(place):
    """Put the same bytes in the place of each part, so that it has another tag."""
    bucket = place.open()
    for found in parts_of(place):
        content = read(bucket, found.name)
        assert content is not None
        if place.url.startswith("gs:"):
            bucket.put(found.name, content)
        else:
            put_in_pieces(place, found.name, content)
        assert tag_of(bucket, found.name) != found.tag


def put_in_pieces(place, name, content):
    """Put an object into S3 by an upload in pieces, though it is small."""
    import boto3

    client = boto3.client("s3", endpoint_url=place.options["endpoint_url"], **place.options["client_options"])
    bucket, _, root = place.url.removeprefix("s3://").partition("/")
    of = {"Bucket": bucket, "Key": f"{root}/{name}"}
    upload = client.create_multipart_upload(**of)["UploadId"]
    tag = client.upload_part(**of, UploadId=upload, PartNumber=1, Body=content)["ETag"]
    done = {"Parts": [{"PartNumber": 1, "ETag": tag}]}
    client.complete_multipart_upload(**of, UploadId=upload, MultipartUpload=done)
    client.close()


def pins_of(place):
    return [found.name for found in place.open().list("set/tables/") if found.name.endswith(".pins")]


@pytest.mark.parametrize(
    ("any_place", "ahead"),
    [("moto", {"workers": 2}), ("ministack", {"threads": 2}), ("gcs", {"threads": 2}), ("gcs", {})],
    indirect=["any_place"],
    ids=str,
)
def test_a_part_swapped_after_the_publication_is_one_error(any_place, ahead):
    built(any_place)
    swap(any_place)
    with pytest.raises(ReplacedError, match="is not the object that was published, and has other bytes"):
        drained(any_place.storage().fetch("set", "1"), **ahead)


# Either store by either way.
BY_EITHER_WAY = pytest.mark.parametrize(
    ("any_place", "way"),
    [("moto", "obstore"), ("ministack", "sdk"), ("gcs", "obstore"), ("gcs", "sdk")],
    indirect=True,
)


@BY_EITHER_WAY
def test_a_part_swapped_after_the_fetch_is_one_error(any_place, way):
    built(any_place)
    ref = any_place.storage().fetch("set", "1")
    swap(any_place)
    assert_swapped(drained, ref)
    with pytest.raises(ReplacedError, match="is not the object that was published"):
        ref[0]  # of a swapped part nothing is ever read


def test_a_part_swapped_before_a_fork_reads_is_one_error_there(either_place):
    built(either_place)
    ref = either_place.storage().fetch("set", "1")
    ref[0]
    swap(either_place)

    def forked():
        with pytest.raises(ReplacedError, match="is not the object that was published"):
            ref[1]
        return True

    assert in_fork(forked)


@pytest.mark.parametrize(
    ("any_place", "shuffle"),
    [("moto", True), ("gcs", yogadl.Blocks(records=5, window=5, lanes=3))],
    indirect=["any_place"],
    ids=["moto-records", "gcs-blocks"],
)
def test_a_part_swapped_before_a_mirror_has_it_is_one_error(any_place, tmp_path, shuffle):
    built(any_place)
    ref = any_place.storage(mirror=yogadl.Mirror(tmp_path, limit=100_000)).fetch("set", "1")
    swap(any_place)
    with pytest.raises((ReplacedError, CacheFormatError), match=r"was published|name says"):
        drained(ref, shuffle)


@pytest.mark.parametrize(
    ("any_place", "way", "ahead"),
    [("moto", "obstore", {"threads": 2}), ("ministack", "sdk", {"threads": 2}),
     ("gcs", "obstore", {"threads": 2}), ("gcs", "sdk", {"threads": 2}), ("gcs", "obstore", {"workers": 2})],
    indirect=["any_place", "way"],
    ids=str,
)  # fmt: skip
def test_parts_that_were_put_again_with_the_same_bytes_are_read(any_place, way, ahead):
    built(any_place)
    put_again(any_place)
    drained(any_place.storage().fetch("set", "1"), **ahead)


def test_parts_that_were_put_again_are_read_once_as_a_whole(either_place, caplog):
    built(either_place)
    ref = either_place.storage().fetch("set", "1")
    drained(ref, False)
    few = ref.locality().ranges
    drained(ref, False)
    more = ref.locality().ranges
    put_again(either_place)
    again = either_place.storage().fetch("set", "1")
    with caplog.at_level("WARNING", "yogadl"):
        drained(again, False)
    assert caplog.text.count("put there again") == 1
    parts = len(parts_of(either_place))
    assert again.locality().ranges == few + parts
    drained(again, False)
    assert again.locality().ranges == more + parts
    with pytest.raises(SpendingError):
        drained(either_place.storage(limits=yogadl.Limits(requests=few)).fetch("set", "1"), False)


def test_where_blocks_are_compared_no_pin_is_looked_at(either_place):
    built(either_place)
    ref = either_place.storage(verify="block").fetch("set", "1")
    put_again(either_place)
    drained(ref)
    assert ref.locality().range_bytes < 2 * ref.locality().bytes


def test_a_cache_without_pins_is_read(either_place):
    built(either_place)
    [name] = pins_of(either_place)
    either_place.open().delete(name)
    put_again(either_place)
    drained(either_place.storage().fetch("set", "1"))


def test_a_reader_that_may_not_list_reads_a_cache_without_pins(broken):
    place, proxy = broken
    built(place)
    proxy.breaks(lambda request: ".pins" in request.name, refuses(403, "AccessDenied"))
    drained(place.storage().fetch("set", "1"))


def test_pins_that_do_not_come_are_an_error_and_asked_for_again(broken):
    place, proxy = broken
    built(place)
    proxy.breaks(lambda request: ".pins" in request.name, refuses(503, "SlowDown"))
    ref = place.storage(patience=RetryPolicy(4.0, 3.0)).fetch("set", "1")
    with pytest.raises(StorageError, match=r"can't read .*\.pins"):
        drained(ref)
    proxy.rules.clear()
    drained(ref)


@pytest.mark.parametrize("content", [b"", b"\0" * 4000, b"\xff" * 100_000], ids=["empty", "other", "large"])
def test_damaged_pins_are_one_error_that_says_what_to_do(folder_place, content):
    built(folder_place)
    [name] = pins_of(folder_place)
    folder_place.open().put(name, content)
    ref = folder_place.storage().fetch("set", "1")
    with pytest.raises(CacheFormatError, match=r"\.pins in .*, which may be removed,"):
        drained(ref)
    folder_place.open().delete(name)
    drained(ref)


def test_pins_of_another_part_table_are_refused(folder_place):
    built(folder_place)
    folder_place.storage().submit(columns(), "set", "2", build=yogadl.BuildOptions(part_bytes=10**8))
    one, other = pins_of(folder_place)
    bucket = folder_place.open()
    contents = [read(bucket, name) or b"" for name in (other, one)]
    for name, content in zip((one, other), contents, strict=True):
        bucket.put(name, content)
    with pytest.raises(CacheFormatError, match=r"\.pins in .* does not have a pin for each of the \d+ parts"):
        drained(folder_place.storage().fetch("set", "1"))


def test_objects_copied_one_by_one_to_another_place_are_read(either_place, caplog):
    built(either_place)
    other = Place(f"{either_place.url}/other", either_place.options)
    bucket, target = either_place.open(), other.open()
    for found in list(bucket.list("set/")):
        target.put(found.name, read(bucket, found.name) or b"")
    put_again(other)
    drained(other.storage().fetch("set", "1"))
    assert "put there again" not in caplog.text


@pytest.mark.parametrize(("any_place", "way"), [("moto", "obstore"), ("gcs", "sdk")], indirect=True)
def test_a_copy_into_another_bucket_has_pins_of_its_own(any_place, way):
    source = built(any_place)
    other = Place(f"{any_place.url}/other", any_place.options)
    assert copy(source, other.storage(), "set", "1")
    assert len(pins_of(other)) == 1
    ref = other.storage().fetch("set", "1")
    drained(ref, False)
    first = any_place.storage().fetch("set", "1")
    drained(first, False)
    assert ref.locality().ranges == first.locality().ranges
    swap(other)
    assert_swapped(drained, other.storage().fetch("set", "1"))
    drained(any_place.storage().fetch("set", "1"))


def test_a_cache_pushed_from_a_folder_and_pulled_again_is_read(either_place, tmp_path):
    local = yogadl.open_storage(tmp_path / "caches")
    local.submit(columns(), "set", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    copy(local, either_place.storage(), "set", "1")
    ref = either_place.storage().fetch("set", "1")
    swap_one = parts_of(either_place)[0]
    drained(ref)
    copy(either_place.storage(), yogadl.open_storage(tmp_path / "pulled"), "set", "1")
    drained(yogadl.open_storage(tmp_path / "pulled").fetch("set", "1"))
    assert not list((tmp_path / "pulled").rglob("*.pins"))
    either_place.open().put(swap_one.name, bytes(swap_one.size_bytes))
    assert_swapped(drained, either_place.storage().fetch("set", "1"))


def test_parts_that_were_there_already_are_pinned(either_place, tmp_path, caplog):
    """A copy leaves them as they are."""
    local = yogadl.open_storage(tmp_path / "caches")
    local.submit(columns(), "set", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    target = either_place.storage()
    copy(local, target, "set", "1")
    put_again(either_place)
    for name in pins_of(either_place):
        either_place.open().delete(name)
    either_place.open().delete("set/versions/1.json")
    copy(local, target, "set", "1")
    drained(either_place.storage().fetch("set", "1"))
    assert "put there again" not in caplog.text


def test_a_build_that_is_gone_on_with_pins_what_an_earlier_process_put(either_place, tmp_path):
    code = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from test_pins import PART_BYTES, columns
import yogadl
from yogadl.storage._remote.mirror import MirroredRoot

adopt, adopted = MirroredRoot.adopt, []

def adopt_few(root, files):
    adopt(root, files)
    adopted.append(files)
    if len(adopted) == int(sys.argv[1]):
        os._exit(9)

MirroredRoot.adopt = adopt_few
storage = yogadl.open_storage({either_place.url!r}, **{either_place.options!r}, mirror=None)
storage.submit(columns(), "set", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
"""
    script = tmp_path / "build.py"
    script.write_text(code)
    builder = warm("yogadl.storage", "sdks")
    assert builder.run(script, 2).returncode == 9
    assert parts_of(either_place)
    for found in list(either_place.open().list("set/leases/")):
        either_place.open().delete(found.name)  # as if that were long ago
    assert builder.run(script, 0).returncode == 0
    ref = either_place.storage().fetch("set", "1")
    drained(ref)
    swap(either_place)
    assert_swapped(drained, either_place.storage().fetch("set", "1"))


def test_appended_versions_carry_the_pins_of_the_parts_that_they_share(either_place):
    storage = built(either_place)
    shared = parts_of(either_place)
    storage.append(columns(COUNT, MORE), "set", "2", base_version="1")
    drained(either_place.storage().fetch("set", "2"))
    either_place.open().put(shared[0].name, bytes(shared[0].size_bytes))
    assert_swapped(drained, either_place.storage().fetch("set", "2"))
    with pytest.raises(CacheFormatError, match="has other bytes than its name says"):
        storage.append(columns(COUNT, MORE), "set", "3", base_version="1")


def test_a_version_appended_to_parts_that_were_put_again_pins_them_as_they_are_now(either_place):
    storage = built(either_place)
    put_again(either_place)
    storage.append(columns(COUNT, MORE), "set", "2", base_version="1")
    ref = either_place.storage().fetch("set", "2")
    drained(ref, False)
    storage.compact("set", "2", "3")
    compacted = either_place.storage().fetch("set", "3")
    drained(compacted, False)
    swap(either_place)
    for version in ("1", "2", "3"):
        assert_swapped(drained, either_place.storage().fetch("set", version))


def test_pins_are_pruned_with_their_part_table_and_not_before(folder_place):
    storage = built(folder_place)
    storage.submit(columns(COUNT, MORE), "set", "2")
    assert len(pins_of(folder_place)) == 2
    storage.prune(grace_s=0)
    assert len(pins_of(folder_place)) == 2
    storage.delete("set", "1")
    storage.prune(grace_s=0)
    assert len(pins_of(folder_place)) == 1
    assert len(storage.fetch("set", "2")) == MORE


def test_a_shared_folder_and_a_local_one_have_none(tmp_path):
    for shared in (False, True):
        root = tmp_path / str(shared)
        yogadl.open_storage(root, shared=shared).submit(
            columns(), "set", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES)
        )
        assert not list(root.rglob("*.pins"))
