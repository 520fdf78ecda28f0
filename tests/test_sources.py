"""Anything records can be read from: recognised, read once, refused with a reason."""

import pickle
from collections import deque, namedtuple
from pathlib import Path

import numpy as np
import pytest
from indexed import Batched, Items
from inside import (
    ArraysSource,
    Forms,
    ItemsSource,
    IterableSource,
    RecordsSource,
    Spec,
    columns_of,
    open_source,
    sha256_of_data,
    spec_of,
)

import yogadl
from yogadl import Leaf
from yogadl.errors import UnsupportedDataError

Pair = namedtuple("Pair", "left right")


def records_of(data, start=0, *, allow_pickle=False):
    source = open_source(data, Forms(allow_pickle=allow_pickle))
    found = []
    for columns in source.chunks(start):
        assert len({len(column) for column in columns}) == 1
        found += source.spec.records(columns, len(columns[0]))
    return found


def numbers(count):
    yield from range(count)


def ids(count):
    return [{"id": number} for number in range(count)]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (np.arange(5), ArraysSource),
        ({"id": np.arange(5)}, ArraysSource),
        ({"id": list(range(5))}, ArraysSource),
        ((np.arange(5), np.arange(5)), ArraysSource),
        (Pair(np.arange(5), np.arange(5)), ArraysSource),
        ({"a": {"b": np.arange(5)}}, ArraysSource),
        ([1, 2, 3], ItemsSource),
        ((1, 2, 3), ItemsSource),
        (deque([1, 2, 3]), ItemsSource),
        (Items(ids(5)), ItemsSource),
        (range(5), ItemsSource),
        ({1, 2, 3}, IterableSource),
        (iter([1, 2]), IterableSource),
        (numbers(5), IterableSource),
        (lambda: numbers(5), IterableSource),
        (lambda: np.arange(5), ArraysSource),
        (lambda: Items(ids(5)), ItemsSource),
        (map(int, "123"), IterableSource),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_source_is_recognised_by_what_it_can_do(data, kind):
    source = open_source(data)
    assert type(source) is kind
    assert source.can_start_anywhere is (kind is not IterableSource)
    assert source.length is None or source.length == sum(len(columns[0]) for columns in source.chunks())


@pytest.mark.parametrize(
    "data", [3, None, 1.5, object(), lambda: 3, lambda: None], ids=lambda value: type(value).__name__
)
def test_what_is_no_source_is_refused_with_what_would_be(data):
    with pytest.raises(UnsupportedDataError, match=r"give an iterable|return or yield the records"):
        open_source(data)


@pytest.mark.parametrize("data", ["/data/train.parquet", b"x" * 200, bytearray(b"bytes"), Path("train.csv")])
@pytest.mark.parametrize("given", [lambda data: data, lambda data: lambda: data], ids=["itself", "returned"])
def test_the_path_of_a_file_is_not_stored_character_by_character(data, given):
    with pytest.raises(
        UnsupportedDataError, match=r"datasets\.load_dataset\(\.\.\.\); .* into a list"
    ) as caught:
        open_source(given(data))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "data",
    [
        [],
        (),
        {},
        iter([]),
        np.empty((0, 3)),
        {"a": []},
        {"a": np.empty(0)},
        lambda: iter(()),
        Items([]),
        set(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_source_without_records_is_refused(data):
    with pytest.raises(UnsupportedDataError, match="the source has no records"):
        open_source(data)


def test_columns_of_different_lengths_are_refused_by_name():
    with pytest.raises(UnsupportedDataError, match="'a': 3, 'b/c': 4"):
        open_source({"a": np.zeros(3), "b": {"c": np.zeros(4)}})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"a": 3}, "column 'a' is a int; .*for a single record, give a list"),
        ({"a": "text"}, "column 'a' is a str"),
        ({"a": np.array(3)}, "column 'a' is an array of no dimension"),
        ((np.array(3), np.arange(2)), "column '0' is an array of no dimension"),
        ({"a": [None]}, "record 0: field 'a' is None"),
        ({"a": [1, None]}, "record 1: field 'a' is None"),
        ({"a": [1, "x"]}, "record 1: field 'a' has dtype str, but the records before have int64"),
        ({b"a": np.arange(3)}, "dict key b'a'"),
        ({"x": {("a", 1): np.arange(3)}}, r"field 'x' has the dict key \('a', 1\)"),
        ({"a": {}}, "has no columns"),
        ({"a": np.ma.array([1, 2], mask=[0, 1])}, "field 'a' is a masked array"),
        ({"a": np.zeros(3, [("x", "i4")])}, "field 'a' has dtype"),
    ],
    ids=str,
)
def test_columns_that_cant_be_stored_are_named(data, says):
    with pytest.raises(UnsupportedDataError, match=says):
        records_of(data)


class Held:
    number = 0


class Refuses:
    """Offers an array, and fails to make it."""

    def __array__(self, *_, **__):
        raise RuntimeError("no memory")


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ([{"a": Refuses()}], "record 0: field 'a'"),
        ([{"a": 1.0}, {"a": Refuses()}], "record 1: field 'a'"),
        ({"a": [np.zeros(2), Refuses()]}, "record 1: field 'a'"),
        ({"a": {"b": [Refuses()]}}, "record 0: field 'a/b'"),
        ([Refuses()], "record 0: the record itself"),
    ],
    ids=["first", "later", "in a list", "deeper", "alone"],
)
def test_a_value_that_cant_be_made_an_array_is_named_with_its_error(data, where):
    with pytest.raises(UnsupportedDataError, match=f"{where} can't be made an array: .*no memory") as caught:
        records_of(data)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_an_array_of_no_dimension_is_no_source():
    with pytest.raises(UnsupportedDataError, match="an array of no dimension, 5, is no source"):
        open_source(np.array(5))


@pytest.mark.parametrize("lengths", [(3, 3), (3, 4)])
def test_a_column_of_arrays_as_objects_is_a_column_of_arrays(lengths):
    column = np.empty(2, object)
    column[:] = [np.arange(length, dtype=np.float64) for length in lengths]
    found = records_of({"a": column})
    assert [record["a"].tolist() for record in found] == [list(range(length)) for length in lengths]
    with pytest.raises(UnsupportedDataError, match="record 2: field 'a' has dtype str"):
        records_of({"a": np.array([*column, "text"], object)})


def test_a_column_of_objects_is_read_as_a_list_is():
    values = [1, 2.5, 3]
    assert open_source({"a": np.array(values, object)}).spec == open_source({"a": values}).spec
    assert records_of({"a": np.array(values, object)}) == records_of({"a": values})


def test_an_object_is_pickled_as_it_was_when_its_record_was_read():
    def records():
        held = Held()
        for held.number in range(5):
            yield {"held": held, "texts": []}  # an empty list: more records are sampled

    found = records_of(records(), allow_pickle=True)
    assert [pickle.loads(record["held"].data).number for record in found] == list(range(5))


def test_arrays_are_read_as_slices_without_a_copy():
    array = np.arange(3_000_000)
    chunks = list(open_source({"x": array}).chunks())
    assert len(chunks) > 1
    assert all(np.shares_memory(chunk[0], array) for chunk in chunks)
    assert np.array_equal(np.concatenate([chunk[0] for chunk in chunks]), array)


def test_columns_of_lists_hold_text_and_arrays_of_any_shape():
    data = {"text": ["a", "b", "ü"], "bytes": [b"a", b"", b"c"], "ragged": [np.zeros(k) for k in range(3)]}
    found = records_of(data)
    assert [record["text"] for record in found] == ["a", "b", "ü"]
    assert [record["ragged"].shape for record in found] == [(0,), (1,), (2,)]


@pytest.mark.parametrize("data", [np.arange(2000), Items(ids(2000)), Batched(ids(2000)), ids(2000)], ids=type)
@pytest.mark.parametrize("start", [0, 1, 15, 16, 63, 64, 1999, 2000])
def test_reading_may_begin_at_any_record(data, start):
    found = records_of(data, start)
    assert [int(record["id"] if isinstance(record, dict) else record) for record in found] == [
        *range(start, 2000)
    ]


def test_reading_from_the_middle_skips_what_lies_before():
    items = Items(ids(1000))
    source = open_source(items)
    assert source.spec.keys() == ["id"]
    items.read.clear()
    list(source.chunks(900))
    assert items.read == list(range(900, 1000))


def test_a_batched_getitem_is_used_where_there_is_one():
    items = Batched(ids(200))
    records_of(items)
    assert items.asked[1:] == [list(range(k, min(k + 64, 200))) for k in range(0, 200, 64)]


def test_an_iterable_is_read_once_and_lazily():
    read = []

    def records():
        for number in range(100):
            read.append(number)
            yield number

    source = open_source(records)
    assert read == [0]
    next(source.chunks())
    assert read == list(range(100))  # which decide whether the numbers are int or float
    array_source = open_source(np.full(3, number) for number in iter(records()))
    assert len(read) == 101
    next(array_source.chunks())
    assert len(read) < 200


@pytest.mark.parametrize("at", [0, 1, 5, 17, 99])
def test_an_error_of_the_source_keeps_its_type_and_says_at_which_record(at):
    def records():
        for number in range(100):
            if number == at:
                raise KeyError("no such image")
            yield number

    for data, kind in ((records, KeyError), (Items(ids(100), fails_at=at), OSError)):
        with pytest.raises(kind) as caught:
            records_of(data)
        assert caught.value.__notes__ == [f"while reading record {at} of the source"]


def test_a_bad_record_is_named_by_its_number_in_the_source():
    data = [{"a": 1}] * 500 + [{"a": None}] + [{"a": 1}] * 10
    for source in (data, iter(data), lambda: iter(data)):
        with pytest.raises(UnsupportedDataError, match="record 500: field 'a' is None"):
            records_of(source)
    with pytest.raises(UnsupportedDataError, match="record 500: field 'a' is None"):
        records_of(data, 300)


def test_large_records_come_in_small_chunks():
    sizes = [
        len(columns[0]) for columns in open_source(np.zeros(2**20, np.uint8) for _ in range(40)).chunks()
    ]
    assert max(sizes) <= 16
    sizes = [len(columns[0]) for columns in open_source(iter(range(5000))).chunks()]
    assert sizes[0] <= 16
    assert max(sizes) == 1024


def test_what_answers_by_columns_is_read_by_columns():
    class Answers:
        spec = spec_of({"x": 1})
        record_bytes = 8

        def __len__(self):
            return 10

        def columns(self, indices, fields=None):
            return [indices * 2]

    assert type(open_source(Answers())) is RecordsSource
    assert [record["x"] for record in records_of(Answers())] == list(range(0, 20, 2))


def test_pickled_fields_are_not_copied_without_asking():
    class Answers:
        spec = Spec(Leaf("object"))
        record_bytes = 8

        def __len__(self):
            return 1

        def columns(self, indices, fields=None):
            return [[None]]

    with pytest.raises(UnsupportedDataError, match="allow_pickle=True"):
        open_source(Answers())
    assert records_of(Answers(), allow_pickle=True) == [None]


def test_records_become_columns_in_field_order():
    spec = spec_of({"a": 1, "b": "x"})
    numbers, texts = columns_of(spec, [{"b": "x", "a": 1}, {"a": 2, "b": "y"}])
    assert numbers.tolist() == [1, 2]
    assert texts == ["x", "y"]


def test_a_tuple_of_dicts_is_records():
    source = open_source(({"x": np.arange(3)}, {"x": np.arange(3) + 1}))
    assert source.length == 2
    assert list(source.spec.keys()) == ["x"]


def test_the_spec_of_a_source_by_column_is_a_part_of_its_hash():
    source, other = ArraysSource({"x": np.arange(3)}), ArraysSource({"x": np.arange(3)})
    assert sha256_of_data(source) == sha256_of_data(other)
    other.spec = spec_of({"y": 1})
    assert sha256_of_data(source) != sha256_of_data(other)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"x": np.zeros((3, 2)), "text": ["a", "bc", ""]}, True),
        (np.zeros(3), True),
        (yogadl.from_source([np.zeros(2), np.zeros(2)]), True),
        ({"x": [np.zeros(2), np.zeros(3)]}, False),
        ([np.zeros(2), np.zeros(3)], False),
        ((np.zeros(size) for size in (2, 3)), False),
    ],
)
def test_a_source_has_a_final_spec_if_no_record_can_have_another_shape(data, expected):
    assert open_source(data).has_final_spec is expected
