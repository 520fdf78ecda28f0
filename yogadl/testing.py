"""Contracts as test suites: with pytest, inherit one and give it what is to be tested.

Example:
    A bucket of your own keeps what `yogadl` expects of it if this passes::

        from yogadl.testing import BucketContract

        class TestMyBucket(BucketContract):
            @pytest.fixture
            def bucket(self):
                return MyBucket()  # an empty one
"""

import multiprocessing
import os
import pickle
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yogadl.errors import CacheFormatError, ConfigurationError, DatasetNotFoundError
from yogadl.storage import CacheStorage
from yogadl.storage._bucket import Bucket, Object, ReplacedError, read
from yogadl.storage._conditions import check_conditions
from yogadl.storage._memory_bucket import MemoryBucket

__all__ = ["BucketContract", "MemoryBucket", "StorageContract"]

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
    """What every bucket must do. Inherit it, and define a fixture `bucket` that returns an empty one.

    Attributes:
        is_shared: Whether other processes that have the pickled bucket see the same objects.
        many: How many objects are listed, better more than the store lists at once.
    """

    is_shared = True
    many = 101

    @pytest.mark.parametrize("size", _SIZES)
    def test_what_is_put_is_read(self, bucket: Bucket, size: int) -> None:
        content = _content(size)
        bucket.put("some/name", content)
        assert read(bucket, "some/name") == content

    @pytest.mark.parametrize("size", _SIZES)
    def test_a_file_is_put_as_it_is(self, bucket: Bucket, size: int, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_bytes(_content(size))
        assert bucket.put("some/name", file).size_bytes == size
        assert read(bucket, "some/name") == _content(size)
        assert file.read_bytes() == _content(size)

    def test_what_was_never_put_is_absent(self, bucket: Bucket) -> None:
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
    def test_a_range_of_nothing_is_empty(self, bucket: Bucket, start: int, stop: int | None) -> None:
        bucket.put("name", b"")
        assert read(bucket, "name", start, stop) == b""

    @pytest.mark.parametrize(("start", "stop"), [(-1, None), (5, 4)])
    def test_a_range_that_is_none_is_refused(self, bucket: Bucket, start: int, stop: int | None) -> None:
        bucket.put("name", b"content")
        with pytest.raises(ConfigurationError, match="range"):
            read(bucket, "name", start, stop)

    def test_a_body_says_whose_it_is(self, bucket: Bucket) -> None:
        bucket.put("name", _content(100))
        with bucket.get("name", 10, 20) as body:
            assert body is not None
            head = bucket.head("name")
            assert head is not None
            assert _without_time(body.object) == _without_time(head)
            assert b"".join(body.chunks) == _content(100)[10:20]

    def test_a_body_may_be_left_half_read(self, bucket: Bucket) -> None:
        content = _content(5 * 2**20)
        bucket.put("name", content)
        with bucket.get("name") as body:
            assert body is not None
            assert content.startswith(next(body.chunks))
        assert read(bucket, "name") == content

    def test_put_replaces(self, bucket: Bucket) -> None:
        old = bucket.put("name", b"old")
        new = bucket.put("name", b"new")
        assert read(bucket, "name") == b"new"
        assert old.tag != new.tag

    def test_put_head_and_list_say_the_same(self, bucket: Bucket) -> None:
        put = bucket.put("some/name", b"content")
        head = bucket.head("some/name")
        assert head is not None
        assert (
            [_without_time(found) for found in bucket.list()] == [_without_time(head)] == [_without_time(put)]
        )
        # Some stores know only the second.
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

    def test_every_replacement_has_a_tag_of_its_own(self, bucket: Bucket) -> None:
        tags = [bucket.put("name", b"%4d" % number).tag for number in range(20)]
        assert len(set(tags)) == 20

    def test_the_first_of_several_writers_wins(self, bucket: Bucket) -> None:
        assert bucket.put_if_absent("name", b"first")
        assert not bucket.put_if_absent("name", b"second")
        assert read(bucket, "name") == b"first"

    def test_a_winner_that_asks_again_is_told_so(self, bucket: Bucket) -> None:
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

    def test_it_keeps_conditions(self, bucket: Bucket) -> None:
        check_conditions(bucket)
        check_conditions(bucket)

    def test_the_list_is_in_order_of_names(self, bucket: Bucket) -> None:
        names = ["a", "a.b/c", "a-b", "ab", "b/c/d", "b/c", "b.c", "Z", "é", "zz", "\U0001f600", "\uffee"]
        names.remove("b/c")  # a name is no other's folder
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

    def test_the_list_has_many(self, bucket: Bucket) -> None:
        names = [f"name-{number:06d}" for number in range(self.many)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: bucket.put(name, b""), names))
        assert [found.name for found in bucket.list()] == names

    def test_what_is_deleted_is_absent(self, bucket: Bucket) -> None:
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
    def test_a_name_that_is_none_is_refused(self, bucket: Bucket, name: str) -> None:
        for use in (bucket.head, bucket.delete, lambda n: read(bucket, n), lambda n: bucket.put(n, b"")):
            with pytest.raises(ConfigurationError, match="name"):
                use(name)
        with pytest.raises(ConfigurationError, match="name"):
            bucket.put_if_absent(name, b"")

    @pytest.mark.parametrize("prefix", ["/", "../", "a/../", "a//"])
    def test_a_prefix_of_no_name_is_refused(self, bucket: Bucket, prefix: str) -> None:
        with pytest.raises(ConfigurationError, match="name"):
            list(bucket.list(prefix))

    def test_threads_share_it(self, bucket: Bucket) -> None:
        content = _content(300_007)
        bucket.put("name", content)
        ranges = [(start, start + 30_011) for start in range(0, len(content), 10_007)]
        with ThreadPoolExecutor(8) as pool:
            parts = list(pool.map(lambda part: read(bucket, "name", *part), ranges))
        assert parts == [content[start:stop] for start, stop in ranges]

    def test_its_repr_is_its_url(self, bucket: Bucket) -> None:
        assert repr(bucket) == bucket.url
        assert "://" in bucket.url

    def test_a_pickled_one_is_the_same(self, bucket: Bucket) -> None:
        if not self.is_shared:
            pytest.skip("it belongs to one process")
        bucket.put("name", b"content")
        other = pickle.loads(pickle.dumps(bucket))
        assert other.url == bucket.url
        assert read(other, "name") == b"content"

    def test_a_forked_child_uses_it_beside_its_parent(self, bucket: Bucket) -> None:
        if not self.is_shared:
            pytest.skip("it belongs to one process")
        content = _content(100_003)
        bucket.put("name", content)
        children = [_fork_reader(bucket, content) for _ in range(3)]
        assert all(read(bucket, "name") == content for _ in range(10))
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]


def _fork_reader(bucket: Bucket, content: bytes) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os._exit(0 if all(read(bucket, "name") == content for _ in range(10)) else 1)
    finally:
        os._exit(2)  # it must never come back into the test


def _content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def _without_time(found: Object) -> tuple[str, int, str]:
    return found.name, found.size_bytes, found.tag


class StorageContract:
    """What every storage must do. Inherit it, and define a fixture `storage` that returns an empty one.

    Whatever pickles it gets the same storage in another process.
    """

    def test_what_is_submitted_is_fetched(self, storage: CacheStorage) -> None:
        text = [f"{n % 97}" * (n % 5) for n in range(2_003)]
        storage.submit({"x": np.arange(2_003), "text": text}, "some/data", "1", part_bytes=5_000)
        ref = _again(storage).fetch("some/data", "1")
        assert len(ref) == 2_003
        batch = ref.gather([2_002, 0, 1_234])
        assert batch["x"].tolist() == [2_002, 0, 1_234]
        assert batch["text"] == [text[n] for n in (2_002, 0, 1_234)]
        assert storage.info("some/data", "1").parts > 2

    def test_a_fingerprint_is_of_the_content(self, storage: CacheStorage) -> None:
        storage.submit(range(101), "a", "1")
        storage.submit(range(101), "b", "other", part_bytes=64)
        storage.submit(range(102), "c", "1")
        assert storage.fetch("a", "1").fingerprint == storage.fetch("b", "other").fingerprint
        assert storage.fetch("a", "1").fingerprint != storage.fetch("c", "1").fingerprint

    def test_what_was_never_built_is_not_found(self, storage: CacheStorage) -> None:
        storage.submit([1], "data", "1")
        with pytest.raises(DatasetNotFoundError, match=r"\['1'\]"):
            storage.fetch("data", "2")
        for do in (storage.info, storage.verify, storage.delete, storage.undelete):
            with pytest.raises(DatasetNotFoundError, match="'absent'"):
                do("absent", "1")

    def test_ids_and_versions_may_have_slashes(self, storage: CacheStorage) -> None:
        keys = [("a", "1"), ("a", "1/2"), ("a/b", "1"), ("a/b/c", "1/2/3"), ("ab", "1")]
        for number, key in enumerate(keys):
            storage.submit([number], *key)
        assert storage.datasets() == ["a", "a/b", "a/b/c", "ab"]
        assert storage.versions("a") == ["1", "1/2"]
        storage.delete("a", "1")
        assert [storage.fetch(*key)[0] for key in keys[1:]] == [1, 2, 3, 4]

    def test_who_reads_a_replaced_version_keeps_it(self, storage: CacheStorage) -> None:
        storage.submit(np.arange(10), "data", "1", part_bytes=16)
        old = storage.fetch("data", "1")
        pickled = pickle.dumps(old)
        storage.submit(np.arange(100, 120), "data", "1", part_bytes=16)
        assert storage.fetch("data", "1").gather(range(20)).tolist() == list(range(100, 120))
        assert (
            old.gather(range(10)).tolist()
            == pickle.loads(pickled).gather(range(10)).tolist()
            == list(range(10))
        )

    def test_a_reference_pickles_small_and_reads_in_another_process(self, storage: CacheStorage) -> None:
        storage.submit(np.arange(1_009), "data", "1")
        pickled = pickle.dumps(storage.fetch("data", "1"))
        assert len(pickled) < 1_000
        assert _in_another_process(_gathered, pickled) == [1_008, 3]

    def test_a_digest_pins_the_bytes(self, storage: CacheStorage) -> None:
        storage.submit([1], "data", "1")
        digest = storage.info("data", "1").digest
        assert storage.fetch("data", "1", digest=digest)[0] == 1
        storage.submit([1], "data", "1")
        with pytest.raises(CacheFormatError, match="digest"):
            storage.fetch("data", "1", digest=digest)

    def test_cacheable_builds_once(self, storage: CacheStorage) -> None:
        calls = []

        @storage.cacheable("data", "1")
        def numbers() -> object:
            calls.append(1)
            return range(11)

        assert [numbers()[3], numbers()[3]] == [3, 3]
        assert _again(storage).fetch("data", "1")[10] == 10
        assert calls == [1]

    def test_cacheable_builds_another_version_for_other_arguments(self, storage: CacheStorage) -> None:
        @storage.cacheable("data", "auto")
        def numbers(count: int) -> object:
            return range(count)

        assert [len(numbers(3)), len(numbers(4)), len(numbers(3))] == [3, 4, 3]
        assert len(storage.versions("data")) == 2

    def test_threads_that_call_at_once_build_once(self, storage: CacheStorage) -> None:
        calls = []

        @storage.cacheable("data", "1")
        def numbers() -> object:
            calls.append(1)
            return range(101)

        with ThreadPoolExecutor(8) as pool:
            refs = [task.result() for task in [pool.submit(numbers) for _ in range(8)]]
        assert calls == [1]
        assert {ref.fingerprint for ref in refs} == {storage.fetch("data", "1").fingerprint}

    def test_a_source_that_raises_publishes_nothing(self, storage: CacheStorage) -> None:
        def source() -> Iterator[int]:
            yield from range(100)
            raise KeyError("gone")

        with pytest.raises(KeyError, match="gone"):
            storage.submit(source, "data", "1", part_bytes=64)
        assert storage.versions("data") == []
        storage.submit(range(5), "data", "1")
        assert len(storage.fetch("data", "1")) == 5

    def test_a_builder_that_asks_for_its_own_result_is_told_so(self, storage: CacheStorage) -> None:
        @storage.cacheable("data", "1")
        def numbers() -> object:
            return storage.cacheable("data", "1")(lambda: [1])()

        with pytest.raises(ConfigurationError, match="by this very call"):
            numbers()

    def test_partitions_are_written_apart_and_published_together(self, storage: CacheStorage) -> None:
        build = storage.begin("data", "1", partitions=3, run="job-1")
        for partition in (2, 0, 0):
            pickle.loads(pickle.dumps(build)).write(partition, range(partition * 10, partition * 10 + 10))
        with pytest.raises(ConfigurationError, match=r"\[1\]"):
            build.commit()
        build.write(1, [])
        build.commit()
        build.commit()
        assert storage.fetch("data", "1").gather(range(20)).tolist() == [*range(10), *range(20, 30)]

    def test_several_workers_build_what_one_does(self, storage: CacheStorage) -> None:
        storage.submit(range(1_009), "data", "1")
        storage.submit(range(1_009), "data", "2", workers=2)
        assert storage.fetch("data", "2").fingerprint == storage.fetch("data", "1").fingerprint

    def test_what_is_deleted_comes_back(self, storage: CacheStorage) -> None:
        storage.submit([1], "data", "1")
        storage.delete("data", "1")
        assert storage.datasets() == []
        with pytest.raises(DatasetNotFoundError):
            storage.fetch("data", "1")
        storage.undelete("data", "1")
        assert storage.fetch("data", "1")[0] == 1

    def test_undelete_brings_back_what_was_replaced_last(self, storage: CacheStorage) -> None:
        for number in (1, 2, 3):
            storage.submit([number], "data", "1")
        storage.undelete("data", "1")
        assert storage.fetch("data", "1")[0] == 2
        storage.undelete("data", "1")
        assert storage.fetch("data", "1")[0] == 3

    def test_prune_keeps_what_is_young_or_named(self, storage: CacheStorage) -> None:
        storage.submit(range(100), "data", "1", part_bytes=64)
        storage.submit(range(200), "data", "2", part_bytes=64)
        storage.delete("data", "2")
        assert storage.prune().files == ()
        would = storage.prune(grace_s=0, dry_run=True)
        storage.undelete("data", "2")
        storage.verify("data", "2")
        storage.delete("data", "2")
        assert len(would.files) == len(storage.prune(grace_s=0).files) > 3
        storage.verify("data", "1")
        with pytest.raises(DatasetNotFoundError):
            storage.undelete("data", "2")

    def test_prune_takes_nothing_from_a_build_in_progress(self, storage: CacheStorage) -> None:
        def source() -> Iterator[int]:
            for number in range(100):
                if number == 90:
                    assert storage.prune(grace_s=0).files == ()
                yield number

        storage.submit(source, "data", "1", part_bytes=64)
        storage.verify("data", "1")

    def test_verify_reads_every_part(self, storage: CacheStorage) -> None:
        storage.submit(np.arange(1_000), "data", "1", part_bytes=2_000)
        said: list[tuple[int, int]] = []
        found = storage.verify("data", "1", progress=lambda *args: said.append(args))
        parts = storage.info("data", "1").parts
        assert (found.records, found.parts) == (1_000, parts)
        assert said == [(number, parts) for number in range(1, parts + 1)]

    def test_versions_are_explained(self, storage: CacheStorage) -> None:
        for version, count in (("1", 3), ("2", 4)):

            @storage.cacheable("data", version)
            def numbers(count: int) -> object:
                return range(count)

            numbers(count)
        assert "count" in str(storage.explain("data", "1", "2"))

    def test_records_are_exported(self, storage: CacheStorage, tmp_path: Path) -> None:
        storage.submit({"x": np.arange(7)}, "data", "1")
        storage.export("data", "1", tmp_path / "exported")
        assert np.load(tmp_path / "exported" / "x.npy").tolist() == list(range(7))

    def test_a_storage_says_where_it_is(self, storage: CacheStorage) -> None:
        assert storage.location in repr(storage)


def _again(storage: CacheStorage) -> CacheStorage:
    """Return the same storage as another process would have it."""
    again: CacheStorage = pickle.loads(pickle.dumps(storage))
    return again


def _gathered(pickled: bytes) -> list[int]:
    found: list[int] = pickle.loads(pickled).gather([1_008, 3]).tolist()
    return found


def _in_another_process(
    function: Callable[[bytes], Any], argument: bytes
) -> Any:  # what the function returns
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, argument).result()
