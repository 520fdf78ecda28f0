"""The contract of a bucket, as a suite of tests."""

import os
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from yogadl.errors import ConfigurationError
from yogadl.storage._objects.bucket import Bucket, Object, ReplacedError, check_conditions, read

_SIZES = (0, 1, 1_009, 2**20 + 1)
_RANGES = (
    (0, None),
    (0, 1),
    (1, None),
    (3, 7),
    (4, 4),
    (99, 100),
    (99, 2_000),
    (100, None),
    (100, 101),
    (2_000, 3_000),
)


class BucketContract:
    """The contract of a bucket. Inherit it, and define a fixture `bucket` that returns an empty bucket.

    Attributes:
        is_shared: Whether other processes that unpickle the bucket see the same objects.
        many: The number of objects to list; best more than the store lists in one request.
    """

    is_shared = True
    many = 101

    @pytest.mark.parametrize("size", _SIZES)
    def test_an_object_that_was_put_can_be_read(self, bucket: Bucket, size: int) -> None:
        content = _content(size)
        bucket.put("some/name", content)
        assert read(bucket, "some/name") == content

    @pytest.mark.parametrize("size", _SIZES)
    def test_put_of_a_file_stores_its_bytes(self, bucket: Bucket, size: int, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_bytes(_content(size))
        assert bucket.put("some/name", file).size_bytes == size
        assert read(bucket, "some/name") == _content(size)
        assert file.read_bytes() == _content(size)

    def test_a_hurried_bucket_reads_the_same_objects(self, bucket: Bucket) -> None:
        bucket.put("some/name", b"content")
        hurried = bucket.hurried()
        assert read(hurried, "some/name") == b"content"
        assert (hurried.url, hurried.origin) == (bucket.url, bucket.origin)

    def test_an_object_that_was_never_put_is_absent(self, bucket: Bucket) -> None:
        assert bucket.head("some/name") is None
        assert read(bucket, "some/name") is None
        assert read(bucket, "some/name", 5, 9) is None
        assert read(bucket, "some/name", 5, 5) is None

    @pytest.mark.parametrize(("start", "stop"), _RANGES)
    def test_a_range_is_cut_as_a_slice_is(self, bucket: Bucket, start: int, stop: int | None) -> None:
        content = _content(100)
        bucket.put("name", content)
        assert read(bucket, "name", start, stop) == content[start:stop]

    @pytest.mark.parametrize(("start", "stop"), [(0, None), (0, 0), (0, 1), (1, 2)])
    def test_a_range_of_an_empty_object_is_empty(self, bucket: Bucket, start: int, stop: int | None) -> None:
        bucket.put("name", b"")
        assert read(bucket, "name", start, stop) == b""

    @pytest.mark.parametrize(("start", "stop"), [(-1, None), (5, 4)])
    def test_an_invalid_range_is_refused(self, bucket: Bucket, start: int, stop: int | None) -> None:
        bucket.put("name", b"content")
        with pytest.raises(ConfigurationError, match="range"):
            read(bucket, "name", start, stop)

    def test_a_body_has_the_facts_about_its_object(self, bucket: Bucket) -> None:
        bucket.put("name", _content(100))
        with bucket.get("name", 10, 20) as body:
            assert body is not None
            head = bucket.head("name")
            assert head is not None
            assert _without_time(body.object) == _without_time(head)
            assert b"".join(body.chunks) == _content(100)[10:20]

    def test_a_body_can_be_closed_before_its_end(self, bucket: Bucket) -> None:
        content = _content(5 * 2**20)
        bucket.put("name", content)
        with bucket.get("name") as body:
            assert body is not None
            assert content.startswith(next(body.chunks))
        assert read(bucket, "name") == content

    @pytest.mark.parametrize(("start", "stop"), [part for part in _RANGES if part[1] is not None])
    def test_a_fetched_range_is_cut_as_a_slice_is(self, bucket: Bucket, start: int, stop: int) -> None:
        content = _content(100)
        bucket.put("name", content)
        fetched = bucket.fetch_range("name", start, stop)
        head = bucket.head("name")
        assert fetched is not None
        assert head is not None
        assert bytes(fetched.content) == content[start:stop]
        assert _without_time(fetched.object) == _without_time(head)
        assert abs(fetched.object.modified - head.modified) < 2

    def test_a_range_of_an_absent_object_is_none(self, bucket: Bucket) -> None:
        assert bucket.fetch_range("some/name", 5, 9) is None
        assert bucket.fetch_range("some/name", 5, 5) is None
        tag = bucket.put("some/name", b"content").tag
        bucket.delete("some/name")
        assert bucket.fetch_range("some/name", 5, 9) is None
        assert bucket.fetch_range("some/name", 5, 9, tag=tag) is None

    @pytest.mark.parametrize(("name", "start", "stop"), [("name", -1, 4), ("name", 5, 4), ("../name", 0, 1)])
    def test_a_fetch_of_an_invalid_range_is_refused(
        self, bucket: Bucket, name: str, start: int, stop: int
    ) -> None:
        bucket.put("name", b"content")
        with pytest.raises(ConfigurationError):
            bucket.fetch_range(name, start, stop)

    def test_a_large_range_can_be_fetched(self, bucket: Bucket) -> None:
        content = _content(5 * 2**20)
        bucket.put("name", content)
        fetched = bucket.fetch_range("name", 7, len(content) - 7)
        assert fetched is not None
        assert bytes(fetched.content) == content[7:-7]

    def test_put_replaces(self, bucket: Bucket) -> None:
        old = bucket.put("name", b"old")
        new = bucket.put("name", b"new")
        assert read(bucket, "name") == b"new"
        assert old.tag != new.tag

    def test_put_head_and_list_agree(self, bucket: Bucket) -> None:
        put = bucket.put("some/name", b"content")
        head = bucket.head("some/name")
        assert head is not None
        assert (
            [_without_time(found) for found in bucket.list()] == [_without_time(head)] == [_without_time(put)]
        )
        # Some stores keep times in whole seconds.
        assert abs(put.modified - head.modified) < 2
        assert put.size_bytes == len(b"content")

    def test_a_tag_pins_an_object(self, bucket: Bucket) -> None:
        old = bucket.put("name", b"old")
        assert read(bucket, "name", tag=old.tag) == b"old"
        assert read(bucket, "name", 1, 2, tag=old.tag) == b"l"
        bucket.put("name", b"new")
        for start, stop in ((0, None), (1, 2), (1, 1)):
            with pytest.raises(ReplacedError, match="name was replaced"):
                read(bucket, "name", start, stop, tag=old.tag)

    def test_a_tag_pins_a_fetched_range(self, bucket: Bucket) -> None:
        old = bucket.put("name", b"old")
        fetched = bucket.fetch_range("name", 1, 2, tag=old.tag)
        assert fetched is not None
        assert bytes(fetched.content) == b"l"
        assert fetched.object.tag == old.tag
        new = bucket.put("name", b"new")
        with pytest.raises(ReplacedError, match="name was replaced"):
            bucket.fetch_range("name", 1, 2, tag=old.tag)
        with pytest.raises(ReplacedError, match="name was replaced"):
            bucket.fetch_range("name", 1, 1, tag=old.tag)
        assert read(bucket, "name", tag=new.tag) == b"new"

    def test_each_replacement_has_a_new_tag(self, bucket: Bucket) -> None:
        tags = [bucket.put("name", b"%4d" % number).tag for number in range(20)]
        assert len(set(tags)) == 20

    def test_the_first_of_several_writers_wins(self, bucket: Bucket) -> None:
        assert bucket.put_if_absent("name", b"first")
        assert not bucket.put_if_absent("name", b"second")
        assert read(bucket, "name") == b"first"

    def test_a_repeated_put_if_absent_of_the_winner_succeeds(self, bucket: Bucket) -> None:
        assert bucket.put_if_absent("name", b"content with a token")
        assert bucket.put_if_absent("name", b"content with a token")

    def test_one_of_many_writers_wins(self, bucket: Bucket) -> None:
        for number in range(5):
            name = f"name-{number}"
            with ThreadPoolExecutor(8) as pool:
                won = list(
                    pool.map(lambda writer, name=name: bucket.put_if_absent(name, b"%d" % writer), range(8))
                )
            assert won.count(True) == 1
            assert read(bucket, name) == b"%d" % won.index(True)

    def test_conditional_writes_are_honoured(self, bucket: Bucket) -> None:
        check_conditions(bucket)
        check_conditions(bucket)

    def test_the_list_is_in_order_of_names(self, bucket: Bucket) -> None:
        names = ["a", "a.b/c", "a-b", "ab", "b/c/d", "b/c", "b.c", "Z", "é", "zz", "\U0001f600", "\uffee"]
        names.remove("b/c")  # a name must not be a folder of another name
        names.remove("a")
        for name in names:
            bucket.put(name, name.encode())
        assert [found.name for found in bucket.list()] == sorted(names, key=str.encode)

    @pytest.mark.parametrize(
        "prefix", ["", "par", "parts/", "parts/a", "parts/ab/", "parts/ab/c", "none", "parts/x"]
    )
    def test_the_list_is_of_names_with_a_prefix(self, bucket: Bucket, prefix: str) -> None:
        names = ["other", "parts/ab/c", "parts/abc", "parts/b", "partsof"]
        for name in names:
            bucket.put(name, b"")
        assert [found.name for found in bucket.list(prefix)] == [n for n in names if n.startswith(prefix)]

    def test_many_objects_are_listed(self, bucket: Bucket) -> None:
        names = [f"name-{number:06d}" for number in range(self.many)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: bucket.put(name, b""), names))
        assert [found.name for found in bucket.list()] == names

    def test_a_deleted_object_is_absent(self, bucket: Bucket) -> None:
        bucket.put("some/name", b"content")
        bucket.delete("some/name")
        bucket.delete("some/name")
        bucket.delete("never/there")
        assert bucket.head("some/name") is None
        assert list(bucket.list()) == []
        assert bucket.put_if_absent("some/name", b"again")

    @pytest.mark.parametrize(
        "name",
        ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\0b", "a\nb", "x" * 256, "x/" * 600 + "x"],
    )
    def test_an_invalid_name_is_refused(self, bucket: Bucket, name: str) -> None:
        for use in (bucket.head, bucket.delete, lambda n: read(bucket, n), lambda n: bucket.put(n, b"")):
            with pytest.raises(ConfigurationError, match="name"):
                use(name)
        with pytest.raises(ConfigurationError, match="name"):
            bucket.put_if_absent(name, b"")

    @pytest.mark.parametrize("prefix", ["/", "../", "a/../", "a//"])
    def test_a_prefix_that_no_name_can_have_is_refused(self, bucket: Bucket, prefix: str) -> None:
        with pytest.raises(ConfigurationError, match="name"):
            list(bucket.list(prefix))

    def test_threads_can_share_a_bucket(self, bucket: Bucket) -> None:
        content = _content(300_007)
        bucket.put("name", content)
        ranges = [(start, start + 30_011) for start in range(0, len(content), 10_007)]
        with ThreadPoolExecutor(8) as pool:
            parts = list(pool.map(lambda part: read(bucket, "name", *part), ranges))
        assert parts == [content[start:stop] for start, stop in ranges]

    def test_many_threads_fetch_ranges(self, bucket: Bucket) -> None:
        content = _content(300_007)
        tag = bucket.put("name", content).tag
        ranges = [(start, start + 1_009) for start in range(0, len(content), 1_009)]
        with ThreadPoolExecutor(64) as pool:
            parts = list(pool.map(lambda part: bucket.fetch_range("name", *part, tag=tag), ranges))
        assert b"".join(part.content for part in parts if part is not None) == content

    def test_the_repr_of_a_bucket_is_its_url(self, bucket: Bucket) -> None:
        assert repr(bucket) == bucket.url
        assert "://" in bucket.url

    def test_an_unpickled_bucket_has_the_same_objects(self, bucket: Bucket) -> None:
        if not self.is_shared:
            pytest.skip("it belongs to one process")
        bucket.put("name", b"content")
        other = pickle.loads(pickle.dumps(bucket))
        assert other.url == bucket.url
        assert read(other, "name") == b"content"

    def test_a_forked_child_and_its_parent_can_use_a_bucket_at_once(self, bucket: Bucket) -> None:
        if not self.is_shared:
            pytest.skip("it belongs to one process")
        content = _content(100_003)
        bucket.put("name", content)
        assert bucket.fetch_range("name", 7, 1_000) is not None
        children = [_fork_reader(bucket, content) for _ in range(3)]
        assert all(read(bucket, "name") == content for _ in range(10))
        assert bucket.fetch_range("name", 7, 1_000) is not None
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]


def _fork_reader(bucket: Bucket, content: bytes) -> int:
    child = os.fork()
    if child:
        return child
    try:
        same = all(read(bucket, "name") == content for _ in range(10))
        ranges = [bucket.fetch_range("name", 7, 1_000) for _ in range(10)]
        same_ranges = all(part is not None and bytes(part.content) == content[7:1_000] for part in ranges)
        os._exit(0 if same and same_ranges else 1)
    finally:
        os._exit(2)  # the child must never return to the test


def _content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def _without_time(found: Object) -> tuple[str, int, str]:
    return found.name, found.size_bytes, found.tag
