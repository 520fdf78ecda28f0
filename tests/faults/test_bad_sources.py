"""A source that fails or gives what can't be stored: one clear error, and nothing is published."""

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from processes import in_child

import yogadl
from yogadl.errors import DatasetNotFoundError, UnsupportedDataError

RECORDS = 1100
HUGE_BYTES = 3 * 2**30


class BrokenSourceError(Exception):
    """An error of the source's own kind."""


def record(number: int) -> dict[str, Any]:
    return {"x": np.full(4, number, np.float32), "inner": {"text": f"text {number}", "count": number}}


class Items:
    """A source with random access; `odd` stands in for the record of that number, or is raised by it."""

    def __init__(self, at: int = -1, odd: Any = None, records: int = RECORDS) -> None:
        self.at, self.odd, self.records = at, odd, records

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, number: int) -> Any:
        if number >= RECORDS:
            raise IndexError(number)
        if number != self.at:
            return record(number)
        if isinstance(self.odd, BaseException):
            raise self.odd
        return self.odd


class Batches(Items):
    """The same, read as PyTorch's fetcher does."""

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return [self[number] for number in numbers]


def in_order(items: Items) -> Iterator[Any]:
    return (items[number] for number in range(len(items)))


KINDS: dict[str, Callable[..., Any]] = {
    "items": Items,
    "batches": Batches,
    "iterator": lambda *args: in_order(Items(*args)),
    "function": lambda *args: lambda: in_order(Items(*args)),
}


def check_nothing_was_left(storage: Any, root: Path) -> None:
    """Check that there is no cache and no half one, and that the same key can be built right away."""
    assert storage.datasets() == []
    assert storage.versions("data") == []
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("data", "1")
    unfinished = [path for path in (root / "data").rglob("*") if path.suffix in (".mdb", ".idx", ".tmp")]
    assert all(path.parent.name == "parts" for path in unfinished), unfinished
    ref = storage.submit(Items(records=150), "data", "1", build=yogadl.BuildOptions(part_bytes=4_000))
    storage.verify("data", "1")
    assert ref.gather(range(150))["inner"]["count"].tolist() == list(range(150))


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("at", [0, 1, 1037, RECORDS - 1])
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_source_keeps_its_type_and_says_at_which_record(
    tmp_path: Path, kind: str, at: int
) -> None:
    storage = yogadl.open_storage(tmp_path)
    raised = BrokenSourceError("no such file")
    with pytest.raises(BrokenSourceError) as caught:
        storage.submit(KINDS[kind](at, raised), "data", "1", build=yogadl.BuildOptions(part_bytes=20_000))
    assert caught.value is raised
    notes = notes_of(raised)
    if kind == "batches":
        assert "reading record" in notes
    else:
        assert f"record {at} of the source" in notes
    check_nothing_was_left(storage, tmp_path)


@pytest.mark.parametrize("at", [0, 1037])
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_in_the_middle_of_a_build_leaves_nothing_behind(tmp_path: Path, kind: str, at: int) -> None:
    storage = yogadl.open_storage(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        storage.submit(
            KINDS[kind](at, KeyboardInterrupt()), "data", "1", build=yogadl.BuildOptions(part_bytes=20_000)
        )
    check_nothing_was_left(storage, tmp_path)


def test_a_version_that_is_being_replaced_stays_when_its_replacement_fails(tmp_path: Path) -> None:
    storage = yogadl.open_storage(tmp_path)
    storage.submit(Items(), "data", "1")
    before = storage.info("data", "1").digest
    for odd in (BrokenSourceError(), None, KeyboardInterrupt()):
        with pytest.raises((BrokenSourceError, UnsupportedDataError, KeyboardInterrupt)):
            storage.submit(Items(1037, odd), "data", "1", build=yogadl.BuildOptions(part_bytes=20_000))
        assert storage.info("data", "1").digest == before
    storage.verify("data", "1")


EMPTY_SOURCES: dict[str, Callable[[], Any]] = {
    "a list": list,
    "a tuple": tuple,
    "a dict": dict,
    "an iterator": lambda: iter([]),
    "a function": lambda: lambda: iter(()),
    "an array": lambda: np.empty(0),
    "an array of rows": lambda: np.empty((0, 3)),
    "columns": lambda: {"x": np.empty((0, 2)), "y": np.empty(0)},
    "a column that is a tuple": lambda: ({"x": ()},),
    "items": lambda: Items(records=0),
    "batches": lambda: Batches(records=0),
}


@pytest.mark.parametrize("kind", EMPTY_SOURCES)
def test_an_empty_source_is_refused(tmp_path: Path, kind: str) -> None:
    storage = yogadl.open_storage(tmp_path)
    with pytest.raises(UnsupportedDataError):
        storage.submit(EMPTY_SOURCES[kind](), "data", "1")
    check_nothing_was_left(storage, tmp_path)


def with_(path: str, value: Any, number: int = 1037) -> dict[str, Any]:
    """Return a record in which one thing is different; `...` takes it out."""
    found = record(number)
    *outer, last = path.split("/")
    place = found
    for name in outer:
        place = place[name]
    place[last] = value
    if value is ...:
        del place[last]
    return found


ODD_RECORDS = {
    "a missing key": (with_("inner/text", ...), "inner"),
    "another key": (with_("inner/more", 1), "inner"),
    "no dict": ([1, 2], "the record itself"),
    "a dict in place of a number": (with_("inner/count", {"a": 1}), "inner/count"),
    "an array in place of a dict": (with_("inner", np.zeros(3)), "inner"),
    "another dtype": (with_("x", np.zeros(4, np.float64)), "x"),
    "integers for floats": (with_("x", np.zeros(4, np.int32)), "x"),
    "a float for an integer": (with_("inner/count", 1.5), "inner/count"),
    "a bool for an integer": (with_("inner/count", True), "inner/count"),
    "a number for text": (with_("inner/text", 7), "inner/text"),
    "bytes for text": (with_("inner/text", b"abc"), "inner/text"),
    "None for a record": (None, "the record itself"),
    "None for text": (with_("inner/text", None), "inner/text"),
    "None for a number": (with_("inner/count", None), "inner/count"),
    "None for an array": (with_("x", None), "x"),
    "an object": (with_("x", object()), "x"),
    "a set": (with_("inner/count", {1, 2}), "inner/count"),
    "an object array": (with_("x", np.array([1, None, "a", 2], object)), "x"),
    "a structured array": (with_("x", np.zeros(4, [("a", "i4")])), "x"),
    "an integer of 70 bits": (with_("inner/count", 2**70), "inner/count"),
    "an integer of 64 bits": (with_("inner/count", 2**63), "inner/count"),
    "a very negative integer": (with_("inner/count", -(2**63) - 1), "inner/count"),
}


# Each odd record by one kind of source, by turns.
BY_TURNS = [(what, ("items", "batches", "iterator")[number % 3]) for number, what in enumerate(ODD_RECORDS)]


@pytest.mark.parametrize(("what", "kind"), BY_TURNS)
def test_a_record_unlike_those_before_is_refused_by_field_and_number(
    tmp_path: Path, what: str, kind: str
) -> None:
    odd, field = ODD_RECORDS[what]
    storage = yogadl.open_storage(tmp_path)
    with pytest.raises(UnsupportedDataError, match="record 1037:") as caught:
        storage.submit(KINDS[kind](1037, odd), "data", "1", build=yogadl.BuildOptions(part_bytes=20_000))
    assert (field if field == "the record itself" else f"field {field!r}") in str(caught.value)
    check_nothing_was_left(storage, tmp_path)


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


MOST_DIMENSIONS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
ODD_FIRST_RECORDS = {
    "None": ({"x": None}, "'x'"),
    "an object": ({"x": object()}, "'x'"),
    "an integer of 70 bits": ({"x": 2**70}, "'x'"),
    "a set deep inside": ({"x": [1, {"y": {3}}]}, "'x/1/y'"),
    "an array of None": ({"x": np.array([None])}, "'x'"),
    "an array of large integers": ({"x": np.array([10**30, 1])}, "'x'"),
    "as many dimensions as numpy has": ({"x": np.zeros((1,) * MOST_DIMENSIONS)}, "'x'"),
    "raw memory": ({"x": np.zeros(3, "V5")}, "'x'"),
    "a key that is a float": ({3.5: 1}, "3.5"),
    "deep nesting": ({"x": nested(2000)}, "nest"),
    "many fields": ({"x": (0,) * 5000}, "5000 fields"),
    "no fields": ({}, "no fields"),
}


@pytest.mark.parametrize("what", ODD_FIRST_RECORDS)
@pytest.mark.parametrize("kind", [list, iter])
def test_a_first_record_that_cant_be_stored_is_refused_by_name(tmp_path: Path, kind: Any, what: str) -> None:
    odd, name = ODD_FIRST_RECORDS[what]
    storage = yogadl.open_storage(tmp_path)
    with pytest.raises(UnsupportedDataError, match=name):
        storage.submit(kind([odd, odd]), "data", "1")
    check_nothing_was_left(storage, tmp_path)


def test_an_array_of_more_dimensions_than_there_is_room_for_is_refused_by_record(tmp_path: Path) -> None:
    storage = yogadl.open_storage(tmp_path)
    source = [{"x": np.zeros((1,) * rank)} for rank in (2, 3, 8, 9)]
    with pytest.raises(UnsupportedDataError, match=r"record 3: field 'x' has 9 dimensions"):
        storage.submit(source, "data", "1")
    storage.submit(source[:3], "data", "1")
    assert storage.fetch("data", "1")[2]["x"].shape == (1,) * 8


class Liar(Items):
    """A source whose length is not how many records it has."""

    def __init__(self, said: int, records: int) -> None:
        super().__init__(records=records)
        self.said = said

    def __len__(self) -> int:
        return self.said

    def __getitem__(self, number: int) -> Any:
        if number >= self.records:
            raise IndexError("index out of range")
        return super().__getitem__(number)


class LiarInOrder:
    """The same, which can only be read in order."""

    def __init__(self, said: int, records: int) -> None:
        self.said, self.records = said, records

    def __len__(self) -> int:
        return self.said

    def __iter__(self) -> Iterator[Any]:
        return (record(number) for number in range(self.records))


class LiarInBatches(Liar):
    """The same, which gives fewer records than it was asked for."""

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return [record(number) for number in numbers if number < self.records]


@pytest.mark.parametrize("said", [99, 101, 3000])
def test_an_iterable_that_lies_about_its_length_is_refused(tmp_path: Path, said: int) -> None:
    storage = yogadl.open_storage(tmp_path)
    with pytest.raises(
        UnsupportedDataError, match=rf"length of the source is {said}, but it returned 100 records"
    ):
        storage.submit(LiarInOrder(said, 100), "data", "1", build=yogadl.BuildOptions(part_bytes=1000))
    check_nothing_was_left(storage, tmp_path)


def test_a_source_with_fewer_items_than_it_says_raises_its_own_error(tmp_path: Path) -> None:
    storage = yogadl.open_storage(tmp_path)
    for _ in range(2):  # the second time with parts of the first
        with pytest.raises(IndexError) as caught:
            storage.submit(Liar(120, 100), "data", "1", build=yogadl.BuildOptions(part_bytes=1000))
        assert "record 100 of the source" in notes_of(caught.value)
    check_nothing_was_left(storage, tmp_path)


@pytest.mark.parametrize("part_bytes", [None, 1000])
def test_a_source_that_gives_fewer_items_than_it_was_asked_for_is_refused(
    tmp_path: Path, part_bytes: int | None
) -> None:
    storage = yogadl.open_storage(tmp_path)
    for _ in range(2):
        with pytest.raises(UnsupportedDataError, match="records"):
            storage.submit(
                LiarInBatches(120, 100), "data", "1", build=yogadl.BuildOptions(part_bytes=part_bytes)
            )
    check_nothing_was_left(storage, tmp_path)


def refuse_huge(folder: Path, what: str) -> tuple[str, float, int]:
    """Submit rows of 3 GB that take no memory as long as nobody touches them."""
    virtual = np.broadcast_to(np.zeros(1, np.uint8), HUGE_BYTES)
    columns = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (3, HUGE_BYTES), (0, 0))
    small = np.zeros(5, np.uint8)
    sources: dict[str, Any] = {
        "column": {"row": columns},
        "first": [{"row": np.zeros(HUGE_BYTES, np.uint8)}] * 20,
        "iterator": ({"row": virtual} for _ in range(20)),
        "later": [{"row": small}] * 7 + [{"row": virtual}] * 20,
        "bytes": [{"row": bytes(HUGE_BYTES)}] * 20,
        "wide": [{"row": np.zeros(HUGE_BYTES // 8, np.complex128)}] * 20,
    }
    storage = yogadl.open_storage(folder)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    try:
        storage.submit(sources[what], "data", "1")
    except UnsupportedDataError as error:
        spent_s = time.monotonic() - started
        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
        assert storage.versions("data") == []
        return str(error), spent_s, grown_kb
    raise AssertionError("it was accepted")


@pytest.mark.parametrize("what", ["column", "first", "iterator", "later", "bytes", "wide"])
def test_rows_of_3_gb_are_refused_by_name_before_they_are_touched(tmp_path: Path, what: str) -> None:
    message, spent_s, grown_kb = in_child(refuse_huge, tmp_path, what)
    assert "field 'row'" in message
    assert f"record {7 if what == 'later' else 0}:" in message
    assert "GiB" in message
    assert spent_s < 5
    assert grown_kb < 200_000


class Point(NamedTuple):
    """A record that is fine, to see that the checks above refuse no more than they should."""

    x: Any
    y: Any


def test_odd_but_storable_records_are_accepted(tmp_path: Path) -> None:
    storage = yogadl.open_storage(tmp_path)
    source = [Point(np.zeros((1,) * 8), {"a": [1, (2.0, "c")], 3: b""}) for _ in range(3)]
    storage.submit(source, "data", "1")
    found = storage.fetch("data", "1")[1]
    assert found.y["a"][1][1] == "c"
    assert found.x.shape == (1,) * 8
