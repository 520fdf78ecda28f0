"""Builds that leave out records that can't be read: `on_error="skip"`."""

import json
import os
import signal
from collections import Counter

import numpy as np
import pytest
from command import run_command
from inside import MAX_METADATA_BYTES, LeftOut
from processes import fork, wait

import yogadl
from yogadl.errors import ConfigurationError, StageError, UnsupportedDataError
from yogadl.storage import copy

COUNT = 300


class Files:
    """Records of which some can't be read; like a data set of PyTorch."""

    def __init__(self, broken, count=COUNT):
        self.broken = frozenset(broken)
        self.samples = [(f"{n}.png", 0) for n in range(count)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, number):
        if number in self.broken:
            raise OSError(f"broken {number}")
        return {"id": number, "x": np.full(3, number)}


class Batched(Files):
    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


def whole(ref):
    return ref.gather(range(len(ref)))["id"].tolist()


def kept(broken, count=COUNT):
    return [n for n in range(count) if n not in broken]


BROKEN = [(), (0,), (0, 1, 2), (COUNT - 1,), (17, 18, 63, 64, 200), range(6, 12), range(1, COUNT)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Files, Batched])
@pytest.mark.parametrize("broken", BROKEN, ids=repr)
@pytest.mark.usefixtures("forked_workers")
def test_records_that_can_t_be_read_are_left_out_and_listed(storage, broken, kind, workers):
    storage.submit(kind(broken), "d", "1", records=yogadl.RecordOptions(on_error="skip"), workers=workers)
    ref = storage.fetch("d", "1")
    assert whole(ref) == kept(broken)
    if not broken:
        assert ref.metadata == {}
        return
    listed = ref.metadata["left_out"]
    assert listed["count"] == len(broken)
    assert listed["records"] == [
        {"index": n, "reason": f"OSError: broken {n}", "file": f"{n}.png", "version": "1"} for n in broken
    ]


class Differing(Files):
    """Files whose first one has another key: the value is a json value."""

    def __getitem__(self, number):
        return super().__getitem__(number) | {"more": {"b" if number else "a": number}}


@pytest.mark.parametrize("broken", [(), (0,), (1,), (0, 1, 3), (2, 8)], ids=repr)
def test_all_records_that_can_be_read_decide_the_structure(storage, broken):
    storage.submit(Differing(broken, 9), "d", "1", records=yogadl.RecordOptions(on_error="skip"))
    storage.submit([Differing((), 9)[n] for n in kept(broken, 9)], "d", "2")
    found, wanted = storage.fetch("d", "1"), storage.fetch("d", "2")
    assert (found.spec, found.fingerprint) == (wanted.spec, wanted.fingerprint)


@pytest.mark.parametrize("broken", [(17,), (64, 65, 200), (COUNT - 1,)], ids=repr)
def test_records_beside_those_that_can_t_be_read_are_read_once(storage, broken):
    calls = Counter()

    class Counted(Files):
        def __getitem__(self, number):
            calls[number] += 1
            return super().__getitem__(number)

    storage.submit(Counted(()), "d", "1", records=yogadl.RecordOptions(on_error="skip"))
    usual = calls.copy()
    calls.clear()
    storage.submit(Counted(broken), "d", "2", records=yogadl.RecordOptions(on_error="skip"))
    assert [calls[number] for number in kept(broken)] == [usual[number] for number in kept(broken)]


def test_the_version_is_the_same_with_any_number_of_workers(storage):
    for version, workers in (("1", 0), ("2", 1), ("3", 3)):
        storage.submit(
            Files({5, 77}), "d", version, records=yogadl.RecordOptions(on_error="skip"), workers=workers
        )
    storage.submit([{"id": n, "x": np.full(3, n)} for n in kept({5, 77})], "d", "plain")
    assert len({storage.fetch("d", version).fingerprint for version in ("1", "2", "3", "plain")}) == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("broken", BROKEN[:-1], ids=repr)
@pytest.mark.usefixtures("forked_workers")
def test_records_of_a_reference_whose_function_raises_are_left_out(storage, broken, workers):
    def decoded(number):
        if int(number) in broken:
            raise ValueError("truncated")
        return {"id": number}

    ref = yogadl.from_source(np.arange(COUNT)).map(decoded)
    storage.submit(ref, "d", "1", records=yogadl.RecordOptions(on_error="skip"), workers=workers)
    found = storage.fetch("d", "1")
    assert whole(found) == kept(broken)
    assert [each["index"] for each in found.metadata.get("left_out", {}).get("records", [])] == list(broken)


@pytest.mark.parametrize("broken", [{0}, {0, 1, 5}, range(COUNT - 2)])
def test_pieces_of_records_that_raise_are_left_out(storage, broken):
    def pieces(record):
        if int(record) in broken:
            raise OSError("broken")
        return [{"id": record, "piece": n} for n in range(1 + int(record) % 3)]

    ref = yogadl.from_source(np.arange(COUNT)).flat_map(pieces, count=lambda record: 1 + int(record) % 3)
    storage.submit(ref, "d", "1", records=yogadl.RecordOptions(on_error="skip"))
    wanted = [(n, piece) for n in kept(broken) for piece in range(1 + n % 3)]
    found = storage.fetch("d", "1")
    assert [(int(record["id"]), int(record["piece"])) for record in found] == wanted
    assert found.metadata["left_out"]["count"] == sum(1 + n % 3 for n in broken)
    decoded = yogadl.from_source(np.arange(COUNT)).flat_map(lambda n: [n] * (1 + int(n) % 3))
    storage.submit(
        decoded.map(lambda n: pieces(n)[0]), "d", "2", records=yogadl.RecordOptions(on_error="skip")
    )
    assert whole(storage.fetch("d", "2")) == [n for n, _ in wanted]


def test_without_being_told_an_error_ends_the_build(storage):
    with pytest.raises(OSError, match="broken 3"):
        storage.submit(Files({3}), "d", "1")
    with pytest.raises(OSError, match="broken 0"):
        storage.submit(Files({0}), "d", "1")


def test_a_build_that_could_read_nothing_is_an_error(storage):
    with pytest.raises(
        UnsupportedDataError, match="none of 300 records can be read; the first: OSError: brok"
    ):
        storage.submit(Files(range(COUNT)), "d", "1", records=yogadl.RecordOptions(on_error="skip"))

    def decoded(number):
        raise ValueError("truncated")

    with pytest.raises(StageError, match="truncated"):
        storage.submit(
            yogadl.from_source(np.arange(9)).map(decoded),
            "d",
            "1",
            records=yogadl.RecordOptions(on_error="skip"),
        )
    ref = yogadl.from_source(np.arange(9)).map(decoded, spec=yogadl.from_source(np.arange(9)).spec)
    with pytest.raises(UnsupportedDataError, match="none of 9 records can be read: ValueError: truncated"):
        storage.submit(ref, "d", "1", records=yogadl.RecordOptions(on_error="skip"))
    with pytest.raises(yogadl.errors.DatasetNotFoundError):
        storage.fetch("d", "1")


def test_a_record_that_does_not_fit_and_a_cache_that_is_damaged_are_never_left_out(storage):
    class Odd(Files):
        def __getitem__(self, number):
            return {"id": "text"} if number == 7 else {"id": number}

    with pytest.raises(UnsupportedDataError, match="record 7"):
        storage.submit(Odd(()), "d", "1", records=yogadl.RecordOptions(on_error="skip"))

    class Huge(Files):
        def __getitem__(self, number):
            raise MemoryError

    with pytest.raises(MemoryError):
        storage.submit(Huge(()), "d", "1", records=yogadl.RecordOptions(on_error="skip"))

    def leave(number):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        storage.submit(
            yogadl.from_source(np.arange(9)).map(leave, spec=3),
            "d",
            "1",
            records=yogadl.RecordOptions(on_error="skip"),
        )


def test_an_appended_version_lists_those_of_both(storage):
    storage.submit(
        Files({3}, 10),
        "d",
        "1",
        records=yogadl.RecordOptions(on_error="skip"),
        build=yogadl.BuildOptions(metadata={"by": "us"}),
    )
    storage.append(
        Files({0, 4}, 10), "d", "2", base_version="1", records=yogadl.RecordOptions(on_error="skip")
    )
    found = storage.fetch("d", "2").metadata
    assert found["by"] == "us"
    assert found["left_out"]["count"] == 3
    assert [(each["version"], each["index"]) for each in found["left_out"]["records"]] == [
        ("1", 3), ("2", 0), ("2", 4),
    ]  # fmt: skip
    storage.append(
        Files((), 5), "d", "3", base_version="2", build=yogadl.BuildOptions(metadata={"by": "them"})
    )
    after = storage.fetch("d", "3").metadata
    assert after == {"by": "them", "left_out": found["left_out"]}
    with pytest.raises(ConfigurationError, match="builds keep 'left_out' themselves"):
        storage.submit([1], "d", "4", build=yogadl.BuildOptions(metadata=after))
    storage.compact("d", "3", "5")
    assert storage.fetch("d", "5").metadata == after


def test_a_copy_has_the_list_too(storage, tmp_path):
    storage.submit(Files({3}), "d", "1", records=yogadl.RecordOptions(on_error="skip"))
    other = yogadl.open_storage(tmp_path / "other")
    copy(storage, other, "d", "1")
    assert other.fetch("d", "1").metadata["left_out"]["count"] == 1


def test_cacheable_leaves_out_too(storage, caplog):
    @storage.cacheable("d", "1", records=yogadl.RecordOptions(on_error="skip"))
    def files():
        return Files({2, 9})

    assert whole(files()) == kept({2, 9})
    assert "2 of 300 records can't be read and are left out; the first is record 2: OSError" in caplog.text


def test_a_killed_build_goes_on(storage, tmp_path):
    class Deadly(Files):
        def __getitem__(self, number):
            (tmp_path / f"read-{number}").touch()
            if number == 200 and not (tmp_path / "killed").exists():
                (tmp_path / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(number)

    child = fork(
        lambda: storage.submit(Deadly({7, 150, 290}), "d", "1", records=yogadl.RecordOptions(on_error="skip"))
    )
    assert wait(child) == -signal.SIGKILL
    assert (tmp_path / "read-100").exists()
    for path in tmp_path.glob("read-*"):
        path.unlink()
    storage.submit(Deadly({7, 150, 290}), "d", "1", records=yogadl.RecordOptions(on_error="skip"))
    assert not (tmp_path / "read-100").exists()
    ref = storage.fetch("d", "1")
    assert whole(ref) == kept({7, 150, 290})
    assert [each["index"] for each in ref.metadata["left_out"]["records"]] == [7, 150, 290]


@pytest.mark.parametrize("count", [999, 1000, 1001])
@pytest.mark.usefixtures("forked_workers")
def test_a_thousand_are_listed(storage, count):
    storage.submit(
        Files(range(1, count + 1), 1100), "d", "1", records=yogadl.RecordOptions(on_error="skip"), workers=2
    )
    listed = storage.fetch("d", "1").metadata["left_out"]
    assert listed["count"] == count
    assert 0 < len(listed["records"]) <= min(count, 1000)
    assert [each["index"] for each in listed["records"]] == list(range(1, len(listed["records"]) + 1))
    assert len(json.dumps(storage.fetch("d", "1").metadata)) <= MAX_METADATA_BYTES


@pytest.mark.parametrize("spare", [0, 1, 100, 64_000])
def test_the_list_takes_the_room_that_the_users_metadata_leaves(storage, spare):
    given = {"text": ""}
    given["text"] = "x" * (MAX_METADATA_BYTES - len(json.dumps(given)) - spare)
    storage.submit(
        Files({3, 4}),
        "d",
        "1",
        records=yogadl.RecordOptions(on_error="skip"),
        build=yogadl.BuildOptions(metadata=given),
    )
    found = storage.fetch("d", "1").metadata
    assert found["left_out"]["count"] == 2
    assert len(found["left_out"]["records"]) == (2 if spare > 300 else 0)
    assert found["text"] == given["text"]


@pytest.mark.parametrize("characters", [299, 300, 301])
def test_a_reason_is_cut(characters):
    left_out = LeftOut()
    left_out.note(3, "x" * characters, None)
    assert left_out.records == [{"index": 3, "reason": "x" * min(characters, 300)}]


@pytest.mark.parametrize("facts", [None, [], {"count": "3"}, {"count": 2, "records": 7}, {}])
def test_facts_of_another_kind_are_none(facts):
    found = LeftOut.of(facts)
    assert (found.count, found.records) == ((2, []) if facts == {"count": 2, "records": 7} else (0, []))


def test_the_log_says_how_many(storage, capsys):
    storage.submit(
        Files({3, 4}),
        "d",
        "1",
        records=yogadl.RecordOptions(on_error="skip"),
        build=yogadl.BuildOptions(metadata={"by": "us"}),
    )
    said = run_command(capsys, "log", "d", "-s", storage.location).out
    assert "left out 2 records that could not be read" in said
    assert '"by": "us"' in said


@pytest.mark.parametrize("broken", [(), (0,), (0, 1), (1,), (2,)], ids=repr)
def test_an_error_names_the_record_by_its_number_among_all(storage, broken):
    class Odd(Files):
        def __getitem__(self, number):
            return super().__getitem__(number) | {"t": None if number == 3 else 1}

    with pytest.raises(UnsupportedDataError, match=r"^record 3: field 't' is None"):
        storage.submit(Odd(broken), "d", "1", records=yogadl.RecordOptions(on_error="skip"))


@pytest.mark.parametrize("kind", [Files, Batched])
def test_a_record_that_does_not_fit_is_named_by_its_number_among_all(storage, kind):
    class Late(kind):
        def __getitem__(self, number):
            return super().__getitem__(number) | ({"x": np.zeros(4)} if number == 1291 else {})

    broken = (3, 1201, 1202, 1290, 1295)
    with pytest.raises(UnsupportedDataError, match=r"^record 1291: field 'x'"):
        storage.submit(Late(broken, 1300), "d", "1", records=yogadl.RecordOptions(on_error="skip"))
