"""The contract of a storage, as a suite of tests."""

import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yogadl.errors import CacheFormatError, ConfigurationError, DatasetNotFoundError
from yogadl.storage import CacheStorage
from yogadl.storage._builds.options import BuildOptions


class StorageContract:
    """The contract of a storage. Inherit it, and define a fixture `storage` that returns an empty storage.

    A pickled storage is the same storage in another process.
    """

    def test_submitted_records_are_fetched(self, storage: CacheStorage) -> None:
        text = [f"{n % 97}" * (n % 5) for n in range(2_003)]
        storage.submit(
            {"x": np.arange(2_003), "text": text}, "some/data", "1", build=BuildOptions(part_bytes=5_000)
        )
        ref = _as_in_another_process(storage).fetch("some/data", "1")
        assert len(ref) == 2_003
        batch = ref.gather([2_002, 0, 1_234])
        assert batch["x"].tolist() == [2_002, 0, 1_234]
        assert batch["text"] == [text[n] for n in (2_002, 0, 1_234)]
        assert storage.info("some/data", "1").parts > 2

    def test_what_builds_a_version_returns_the_reference_to_it(self, storage: CacheStorage) -> None:
        made = [
            storage.submit(np.arange(101), "data", "1"),
            storage.append(np.arange(7), "data", "2", base_version="1"),
            storage.compact("data", "2", "3"),
        ]
        for number, ref in enumerate(made, 1):
            fetched = storage.fetch("data", f"{number}")
            assert (ref.fingerprint, len(ref), ref.lineage) == (
                fetched.fingerprint,
                len(fetched),
                fetched.lineage,
            )
            assert ref.gather([6, 0]).tolist() == [6, 0]

    def test_cached_builds_what_is_not_there(self, storage: CacheStorage) -> None:
        first = storage.cached(np.arange(101), "data")
        assert storage.cached(np.arange(101), "data").lineage == first.lineage
        assert storage.cached(np.arange(102), "data").lineage != first.lineage
        assert len(storage.versions("data")) == 2
        assert storage.cached(iter([]), "data", storage.versions("data")[0])[0] == 0

    def test_a_fingerprint_depends_on_the_records_alone(self, storage: CacheStorage) -> None:
        storage.submit(range(101), "a", "1")
        storage.submit(range(101), "b", "other", build=BuildOptions(part_bytes=64))
        storage.submit(range(102), "c", "1")
        assert storage.fetch("a", "1").fingerprint == storage.fetch("b", "other").fingerprint
        assert storage.fetch("a", "1").fingerprint != storage.fetch("c", "1").fingerprint

    def test_a_version_that_was_never_built_is_not_found(self, storage: CacheStorage) -> None:
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

    def test_a_reader_of_a_replaced_version_keeps_reading_the_old_records(
        self, storage: CacheStorage
    ) -> None:
        storage.submit(np.arange(10), "data", "1", build=BuildOptions(part_bytes=16))
        old = storage.fetch("data", "1")
        pickled = pickle.dumps(old)
        storage.submit(np.arange(100, 120), "data", "1", build=BuildOptions(part_bytes=16))
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

    def test_a_reference_with_check_reads_the_same(self, storage: CacheStorage) -> None:
        text = [f"{n}" * (n % 3) for n in range(503)]
        storage.submit({"x": np.arange(503), "text": text}, "data", "1", build=BuildOptions(part_bytes=1_000))
        pickled = pickle.dumps(storage.fetch("data", "1", check=True))
        for ref in (storage.fetch("data", "1", check=True), pickle.loads(pickled)):
            batch = ref.gather([502, 0, 251])
            assert (batch["x"].tolist(), batch["text"]) == ([502, 0, 251], [text[n] for n in (502, 0, 251)])
        assert _in_another_process(_numbers, pickled) == list(range(503))

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
        assert _as_in_another_process(storage).fetch("data", "1")[10] == 10
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
            storage.submit(source, "data", "1", build=BuildOptions(part_bytes=64))
        assert storage.versions("data") == []
        storage.submit(range(5), "data", "1")
        assert len(storage.fetch("data", "1")) == 5

    def test_a_builder_that_requests_its_own_result_gets_an_error(self, storage: CacheStorage) -> None:
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

    def test_several_workers_build_the_same_records_as_one(self, storage: CacheStorage) -> None:
        storage.submit(range(1_009), "data", "1")
        storage.submit(range(1_009), "data", "2", workers=2)
        assert storage.fetch("data", "2").fingerprint == storage.fetch("data", "1").fingerprint

    def test_appending_gives_the_same_version_as_one_build(self, storage: CacheStorage) -> None:
        storage.submit(np.arange(501), "data", "1", build=BuildOptions(part_bytes=1_000))
        storage.append(np.arange(501, 600), "data", "2", base_version="1")
        storage.append(range(600, 604), "data", "3", base_version="2")
        storage.submit(np.arange(604), "whole", "1")
        assert storage.fetch("data", "3").fingerprint == storage.fetch("whole", "1").fingerprint
        assert _as_in_another_process(storage).fetch("data", "3").gather(range(604)).tolist() == list(
            range(604)
        )
        assert storage.verify("data", "3").parts == storage.info("data", "1").parts + 2

    def test_the_base_of_an_append_can_be_deleted(self, storage: CacheStorage) -> None:
        storage.submit(np.arange(101), "data", "1", build=BuildOptions(part_bytes=200))
        storage.append([101], "data", "2", base_version="1")
        storage.delete("data", "1")
        assert storage.prune(grace_s=0).files
        storage.verify("data", "2")
        assert storage.fetch("data", "2").gather(range(102)).tolist() == list(range(102))

    def test_a_compacted_version_has_the_same_records_in_fewer_parts(self, storage: CacheStorage) -> None:
        storage.submit(np.arange(101), "data", "1", build=BuildOptions(part_bytes=200))
        storage.compact("data", "1", "2")
        assert (storage.info("data", "2").parts, storage.info("data", "1").parts > 2) == (1, True)
        assert storage.fetch("data", "2").fingerprint == storage.fetch("data", "1").fingerprint

    def test_a_tag_is_moved_and_removed(self, storage: CacheStorage) -> None:
        for version in ("1", "2"):
            storage.submit([int(version)], "data", version)
            storage.tag("data", "stable", version)
            assert _as_in_another_process(storage).fetch("data", "stable")[0] == int(version)
        assert storage.tags("data") == {"stable": "2"}
        with pytest.raises(ConfigurationError, match="is a tag of 'data'"):
            storage.submit([3], "data", "stable")
        with pytest.raises(ConfigurationError, match="has the tags"):
            storage.delete("data", "2")
        storage.untag("data", "stable")
        with pytest.raises(DatasetNotFoundError):
            storage.fetch("data", "stable")
        assert [move.version for move in storage.log("data").moves] == ["1", "2", None]
        assert (storage.datasets(), storage.versions("data")) == (["data"], ["1", "2"])

    def test_concurrent_moves_of_a_tag_all_succeed(self, storage: CacheStorage) -> None:
        for version in range(8):
            storage.submit([version], "data", str(version))

        def move(version: int) -> None:
            _as_in_another_process(storage).tag("data", "stable", str(version))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(move, range(8)))
        moves = [move.version for move in storage.log("data").moves]
        assert sorted(map(str, moves)) == [str(version) for version in range(8)]
        assert storage.tags("data")["stable"] in moves

    def test_undelete_restores_a_deleted_version(self, storage: CacheStorage) -> None:
        storage.submit([1], "data", "1")
        storage.delete("data", "1")
        assert storage.datasets() == []
        with pytest.raises(DatasetNotFoundError):
            storage.fetch("data", "1")
        storage.undelete("data", "1")
        assert storage.fetch("data", "1")[0] == 1

    def test_undelete_restores_the_version_that_was_replaced_last(self, storage: CacheStorage) -> None:
        for number in (1, 2, 3):
            storage.submit([number], "data", "1")
        storage.undelete("data", "1")
        assert storage.fetch("data", "1")[0] == 2
        storage.undelete("data", "1")
        assert storage.fetch("data", "1")[0] == 3

    def test_prune_keeps_files_that_are_young_or_in_use(self, storage: CacheStorage) -> None:
        storage.submit(range(100), "data", "1", build=BuildOptions(part_bytes=64))
        storage.submit(range(200), "data", "2", build=BuildOptions(part_bytes=64))
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

    def test_a_delete_waits_for_the_build_and_deletes_its_result(self, storage: CacheStorage) -> None:
        storage.submit([1], "data", "1")
        deleting = threading.Thread(target=storage.delete, args=("data", "1"))

        def source() -> Iterator[int]:
            deleting.start()
            deleting.join(0.3)  # without the wait the thread would end within this time
            yield 2

        storage.submit(source, "data", "1")
        deleting.join()
        assert storage.versions("data") == []
        storage.undelete("data", "1")
        assert storage.fetch("data", "1")[0] == 2

    def test_a_version_built_during_prunes_is_complete(self, storage: CacheStorage) -> None:
        pruning = [threading.Thread(target=storage.prune, kwargs={"grace_s": 0}) for _ in range(3)]
        for number, thread in enumerate(pruning):
            storage.submit(range(number, 20), "data", "1", build=BuildOptions(part_bytes=64))
            storage.delete("data", "1")
            thread.start()
            storage.submit(range(number, 20), "data", "1", build=BuildOptions(part_bytes=64))
            storage.verify("data", "1")
            thread.join()
            storage.verify("data", "1")

    def test_prune_removes_no_file_of_a_build_in_progress(self, storage: CacheStorage) -> None:
        storage.submit([1], "data", "0")
        storage.delete("data", "0")

        def source() -> Iterator[int]:
            for number in range(100):
                if number == 90:
                    assert storage.prune(grace_s=0).files == ()
                yield number

        storage.submit(source, "data", "1", build=BuildOptions(part_bytes=64))
        storage.verify("data", "1")

    def test_verify_reads_every_part(self, storage: CacheStorage) -> None:
        storage.submit(np.arange(1_000), "data", "1", build=BuildOptions(part_bytes=2_000))
        reported: list[tuple[int, int]] = []
        found = storage.verify("data", "1", progress=lambda *args: reported.append(args))
        parts = storage.info("data", "1").parts
        assert parts > 1
        assert (found.records, found.parts) == (1_000, parts)
        assert reported == [(number, parts) for number in range(1, parts + 1)]

    def test_explain_names_the_argument_that_differs(self, storage: CacheStorage) -> None:
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

    def test_the_repr_of_a_storage_has_its_location(self, storage: CacheStorage) -> None:
        assert storage.location in repr(storage)


def _as_in_another_process(storage: CacheStorage) -> CacheStorage:
    """Return the same storage as another process would have it."""
    unpickled: CacheStorage = pickle.loads(pickle.dumps(storage))
    return unpickled


def _numbers(pickled: bytes) -> list[int]:
    ref = pickle.loads(pickled)
    return [int(number) for number in ref.gather(range(len(ref)))["x"]]


def _gathered(pickled: bytes) -> list[int]:
    found: list[int] = pickle.loads(pickled).gather([1_008, 3]).tolist()
    return found


def _in_another_process(function: Callable[[bytes], Any], argument: bytes) -> Any:  # the function's result
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, argument).result()
