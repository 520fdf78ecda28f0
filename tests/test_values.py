"""Values of records: what comes back is what was given, what decides, and what is refused."""

import functools
import itertools
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from indexed import Items
from inside import CHUNK_BYTES, SAMPLED_RECORDS, set_constants
from record_cases import all_cases, are_same, cases_of_the_page, plain, said_of, said_of_batch

import yogadl
from yogadl.errors import ConfigurationError, UnsupportedDataError

RECORDS = 7
CASES = all_cases()
NAMES = [case.name for case in CASES]


def taken(values: list[Any], count: int = RECORDS) -> list[Any]:
    """Return so many of the values, which begin anew when they end."""
    return list(itertools.islice(itertools.cycle(values), count))


def by_tasks(storage, made, numbers, **options):
    build = storage.begin("d", "1", partitions=3, run="r", **options)
    for number in numbers:
        pickle.loads(pickle.dumps(build)).write(number, made[3 * number : 3 * number + 3])
    build.commit()
    return storage.fetch("d", "1")


def of_parts(records, parts=2):
    size = -(-len(records) // parts)
    return yogadl.partitioned([functools.partial(_part, records, size, number) for number in range(parts)])


def _part(records, size, number):
    return iter(records[number * size : (number + 1) * size])


def submitted(source=list, **more):
    return lambda storage, made, **options: storage.submit(source(made), "d", "1", **more, **options)


WAYS: dict[str, Callable[..., Any]] = {
    "list": submitted(),
    "generator": submitted(lambda records: lambda: iter(records)),
    "random access": submitted(Items),
    "partitions": submitted(of_parts),
    "tasks": functools.partial(by_tasks, numbers=(0, 1, 2)),
    "tasks in another order": functools.partial(by_tasks, numbers=(1, 2, 0)),
    "without a cache": lambda storage, made, records=None, **options: yogadl.from_source(
        made, spec=records and records.spec, **options
    ),
    "cached": lambda storage, made, **options: storage.cached(made, "d", **options),
    "workers": submitted(workers=2),
    "small parts": submitted(build=yogadl.BuildOptions(part_bytes=1)),
}


STARTED = ("bytes, such as a JPEG", "only empty lists")  # cases whose workers are not forks of this process


# Each case in each way; of the tasks in one order, by turns, and with workers a third.
TRIED = [
    pytest.param(case, way, id=f"{case.name}-{way}")
    for number, case in enumerate(CASES)
    for way in WAYS
    if way != ("tasks", "tasks in another order")[number % 2]
    if way != "workers" or number % 3 == 0 or case.name in STARTED
    # Only the first record of such an object decides what a number is.
    if (case.name, way) != ("integers beside floats", "random access")
]


@pytest.mark.parametrize(("case", "way"), TRIED)
def test_what_comes_back_is_what_was_given(storage, case, way, request):
    if way == "workers" and case.name not in STARTED:
        request.getfixturevalue("forked_workers")
    ref = WAYS[way](storage, taken(case.records), **case.options)
    found = [plain(record) for record in ref]
    assert are_same_records(found, taken(case.expected)), found


def are_same_records(found, expected):
    """Return whether records are the same; a namedtuple comes back with its names, but of another class."""
    if hasattr(expected[0], "_fields"):
        assert all(one._fields == other._fields for one, other in zip(found, expected, strict=True))
    return are_same([tuple_of(one) for one in found], [tuple_of(one) for one in expected])


def tuple_of(record):
    return tuple(record) if isinstance(record, tuple) else record


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_batches_have_what_records_have(storage, case):
    records = taken(case.records)
    for ref in (
        storage.submit(records, "d", "1", **case.options),
        yogadl.from_source(records, **case.options),
    ):
        (batch,) = ref.stream().batch(RECORDS)
        for number, record in zip(range(RECORDS), ref, strict=True):
            assert repr(plain(row_of(ref.spec.tree, batch, number))) == repr(plain(record))


def row_of(node, batch, number):
    """Return a row of a batch: of the column at each leaf."""
    if isinstance(node, yogadl.Leaf):
        return batch[number]
    if isinstance(batch, dict):
        return {
            key: row_of(child, batch[key], number)
            for key, child in zip(node.keys, node.children, strict=True)
        }
    rows = [row_of(child, column, number) for child, column in zip(node.children, batch, strict=True)]
    return type(batch)(*rows) if hasattr(batch, "_fields") else type(batch)(rows)


@pytest.mark.parametrize("case", [case for case in CASES if case.stored], ids=lambda case: case.name)
def test_what_is_stored_is_what_the_page_says(storage, case):
    records = taken(case.records, max(2, len(case.records)))
    for ref in (
        storage.submit(lambda: iter(records), "d", "1", **case.options),
        yogadl.from_source(records, **case.options),
    ):
        assert said_of(ref.spec) == case.stored
        if case.batch:
            assert said_of_batch(ref.gather([0, 1])) == case.batch


# What does not fit: the first value, a later one, and what the error says beside field, record and types.
MISFITS = [
    ("floats after integers", 1, 0.5, "has dtype float64, but the records before have int64"),
    ("floats after lists of integers", [1, 2], [0.5], "has dtype float64, but the records before have int64"),
    ("a large integer", 1, 2**63, "is 9223372036854775808, which does not fit into int64"),
    ("an integer that is no float", 0.5, 2**53 + 1, "has dtype int64, but the records before have float64"),
    ("integers after bools", True, 1, "has dtype int64, but the records before have bool"),
    ("integers after texts", "a", 1, "has dtype int64, but the records before have str"),
    ("texts after integers", 1, "a", "has dtype str, but the records before have int64"),
    ("None after integers", 1, None, "is None"),
    ("None after floats", 0.5, None, "is None"),
    ("None after bools", True, None, "is None"),
    ("None after texts", "a", None, "is None"),
    ("None after lists", [1, 2], None, "is None"),
    ("None after lists of texts", ["a"], None, "is None"),
    ("texts after lists of integers", [1], ["a"], "has dtype str, but the records before have int64"),
    ("integers after lists of texts", ["a"], [1], "is a list of int64, but the records before have str"),
    ("ragged lists", [[1, 2]], [[1], [2, 3]], "is a list whose items differ"),
    ("None in a list", [1, 2], [1, None], "is a list whose items differ"),
    ("lists of dicts after numbers", [1, 2], [{"a": 1}], "is a list whose items differ"),
    ("another dict", {"a": 1}, {"a": 1, "b": 2}, "should be a dict with the keys ['a'], .* is one with"),
    ("None after dicts", {"a": 1}, None, "should be a dict with the keys ['a'], .* is a NoneType"),
    ("a dict after numbers", 1, {"a": 1}, "but the records before have int64"),
]  # fmt: skip


def lines_of(error: object) -> list[dict[str, Any]]:
    """Return the arguments that an error's text says to write."""
    line = r"\b(?:json=\([^)]*\)|missing=\{.*\}(?:, json=\([^)]*\))?|spec=\{.*\})"
    return [eval(f"dict({text})", {"yogadl": yogadl}) for text in re.findall(line, str(error))]


@pytest.mark.parametrize(
    "way", ["list", "generator", "random access", "without a cache", "partitions", "columns"]
)
@pytest.mark.parametrize(
    ("first", "later", "says"), [misfit[1:] for misfit in MISFITS], ids=[m[0] for m in MISFITS]
)
def test_a_record_that_does_not_fit_is_named_with_a_line_that_works(
    storage, first, later, says, way, monkeypatch
):
    sampled = SAMPLED_RECORDS
    if way not in ("list", "generator"):  # where more is read than the constant says, too
        sampled = SAMPLED_RECORDS // 16
        set_constants(monkeypatch, SAMPLED_RECORDS=sampled)
    count = sampled + 70
    values = [first] * count + [later]
    records = [{"x": value, "n": number} for number, value in enumerate(values)]

    def read(**options):
        if "spec" in options:
            options = {"records": yogadl.RecordOptions(**options)}
        if way == "columns":
            return list(storage.submit({"x": values, "n": list(range(count + 1))}, "d", "1", **options))
        more = records[:7] if way == "without a cache" else []  # which reads the last record first
        return list(WAYS[way](storage, records + more, **options))

    if way == "columns" and type(first) is dict:
        pytest.skip("dicts in a column are json values")
    with pytest.raises(UnsupportedDataError) as caught:
        read()
    number = count if way != "partitions" else count - -(-(count + 1) // 2)
    assert re.search(
        rf"record {number}: field 'x' .*{re.escape(says).replace(re.escape('.*'), '.*')}", str(caught.value)
    )
    lines = lines_of(caught.value)
    if (way == "columns" and type(later) is float) or (way == "columns" and later == [0.5]):
        assert "make the column an array of floats" in str(caught.value)
        return
    assert lines, caught.value
    if way == "without a cache" and type(first) is list:
        lines = lines[-1:]  # an empty list has another shape, which is the next error
    for options in lines:
        found = read(**options)
        fill = options.get("missing", {}).get("x")
        expected = later if fill is None else type(first)() if fill == "empty" else fill
        assert repr(plain(found[count]["x"])) == repr(expected)
        shown = np.float64(first).tolist() if "spec" in options else first
        assert repr(plain(found[0]["x"])) == repr(shown)


KEYS = [
    ({"a": 1, "b": 2}, {"a": 1}), ({"a": 1, "b": "t"}, {"a": 1}), ({"a": 1, "b": [1, 2]}, {"a": 1}),
    ({"a": 1, "b": [{"c": 1}]}, {"a": 1}), ({"a": 1, "b": {"c": 1}}, {"a": 1}),
    ({"a": 1, "b": 0.5, "c": True}, {"a": 1}),
    ({"a": 1}, {"a": 1, "b": 2}), ({"a": 1}, {"a": 1, "b": "t"}), ({"a": 1}, {"a": 1, "b": [1, 2]}),
    ({"a": 1}, {"a": 1, "b": {"c": 1}}), ({"a": 1}, {"a": 1, "b": [{"c": 1}], "c": {}}),
]  # fmt: skip


@pytest.mark.parametrize("way", ["list", "generator", "without a cache"])
@pytest.mark.parametrize(("first", "later"), KEYS)
def test_a_record_of_other_keys_is_named_with_a_line_that_works(storage, first, later, way):
    count = SAMPLED_RECORDS + 70
    records = [first] * count + [later]
    with pytest.raises(UnsupportedDataError, match=rf"record {count}: the record itself should be") as caught:
        list(WAYS[way](storage, records))
    (options,) = lines_of(caught.value)
    found = list(WAYS[way](storage, records, **options))
    for record, given in ((found[0], first), (found[count], later)):
        assert {key: repr(plain(record[key])) for key in given} == {
            key: repr(value) for key, value in given.items()
        }
        assert record.keys() == first.keys() | later.keys()


@pytest.mark.parametrize(
    ("first", "later"),
    [(1, 0.5), ([1, 2], [0.5, 1.5]), (1, "a"), ({"a": 1}, {"b": 1}), ({"a": 1}, None), ([1], [[1], [2, 3]]),
     (1, None)],
)  # fmt: skip
def test_a_result_that_does_not_fit_is_named_with_a_line_that_works(first, later):
    ref = yogadl.from_source(np.arange(200))

    def function(number):
        return {"deep": {"x": later if number == 150 else first}, "n": number}

    with pytest.raises(yogadl.errors.StageError, match="record 150: field 'deep/x'") as caught:
        ref.map(function).gather(range(200))
    spec = eval(re.search(r"spec=(\{.*\})", str(caught.value))[1])
    batch = ref.map(function, spec=spec).gather(range(200))
    assert repr(plain(batch["deep"]["x"][150])) == repr(later)


@pytest.mark.parametrize("way", ["list", "generator", "without a cache"])
def test_as_many_records_as_the_constant_decide(storage, way):
    def records(place):
        return [{"x": 0.5 if number == place else number} for number in range(SAMPLED_RECORDS + 10)]

    ref = WAYS[way](storage, records(SAMPLED_RECORDS - 1))
    assert said_of(ref.spec) == "`float64 ()`"
    with pytest.raises(UnsupportedDataError, match=rf"record {SAMPLED_RECORDS}: field 'x' has dtype float64"):
        list(WAYS[way](storage, records(SAMPLED_RECORDS)))


@pytest.mark.parametrize("way", ["list", "generator"])
def test_fewer_records_decide_if_they_are_large(storage, way):
    size = CHUNK_BYTES // 4

    def records(place):
        return [{"t": bytes(size), "x": 0.5 if number == place else number} for number in range(6)]

    assert said_of(WAYS[way](storage, records(3)).spec) == "`t`: `bytes ()`, `x`: `float64 ()`"
    with pytest.raises(UnsupportedDataError, match=r"record 4: field 'x' has dtype float64"):
        WAYS[way](storage, records(4))


def test_records_that_a_generator_fills_anew_are_stored_as_they_were(storage):
    record: dict[str, Any] = {
        "n": 0,
        "chat": [{"a": []}],
        "list": [0],
        "deep": {"list": [], "tree": {"a": None}},
    }

    def records() -> Iterator[dict[str, Any]]:
        for number in range(SAMPLED_RECORDS + 100):
            record["n"] = number
            record["chat"][0]["a"].append(number)
            del record["chat"][0]["a"][:-3]
            record["list"][:] = range(number % 5)
            record["deep"]["list"] = [str(number)]
            record["deep"]["tree"].clear()
            record["deep"]["tree"][str(number % 3)] = number
            yield record

    ref = storage.submit(records, "d", "1")
    for number in range(3, SAMPLED_RECORDS + 100):
        assert plain(ref[number]) == {
            "n": number,
            "chat": [{"a": [number - 2, number - 1, number]}],
            "list": list(range(number % 5)),
            "deep": {"list": [str(number)], "tree": {str(number % 3): number}},
        }


def test_what_a_reader_changes_changes_nothing_else(storage):
    records = [{"x": [{"a": 1}]}, {"x": []}]
    for ref in (storage.submit(records, "d", "1"), yogadl.from_source(records)):
        ref[0]["x"][0]["a"] = 2
        ref.gather([0])["x"][0].append(3)
        assert ref[0] == {"x": [{"a": 1}]}
    assert records[0] == {"x": [{"a": 1}]}


DIFFERING = [
    ("integers and floats", [1, 2], [0.5], "float64"),
    ("lists of integers and of floats", [[1]], [[0.5]], "float64"),
    ("empty lists and numbers", [[], []], [[1]], "int64"),
    ("lists and None", [[1], [2]], [None], "int64"),
    ("dicts of differing keys", [{"a": 1}], [{"b": 1}], None),
    ("texts and lists", [["a"]], [[["a"], ["b", "c"]]], None),
]


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(
    ("one", "other"), [differing[1:3] for differing in DIFFERING], ids=[d[0] for d in DIFFERING]
)
@pytest.mark.parametrize("by", ["submit", "workers", "tasks", "tasks of a source"])
def test_all_partitions_have_what_the_first_decides(storage, one, other, is_turned, by, request):
    """The first to be written, or the first of the source: whose records do not fit is told so."""
    if one != DIFFERING[0][1] or is_turned:
        request.getfixturevalue("forked_workers")
    first, second = (
        [{"x": value} for value in values] for values in ((other, one) if is_turned else (one, other))
    )
    parts = [functools.partial(iter, first), functools.partial(iter, second)]

    def build(order=(0, 1), **options):
        if by in ("submit", "workers"):
            workers = 2 if by == "workers" else 0
            return storage.submit(yogadl.partitioned(parts), "d", "1", workers=workers, **options)
        has_source = by == "tasks of a source"
        source = {"source": yogadl.partitioned(parts)} if has_source else {"partitions": 2}
        begun = storage.begin(
            "d",
            "1",
            run=f"r{options}{order}".translate({ord(c): "-" for c in "{}'(): ,"}),
            **source,
            **options,
        )
        for number in order:
            begun.write(number) if has_source else begun.write(number, [first, second][number])
        begun.commit()
        return storage.fetch("d", "1")

    for order in ((0, 1), (1, 0)):
        error = None
        try:
            found = [plain(record) for record in build(order)]
        except UnsupportedDataError as caught:
            error, found = str(caught), first + second
        assert found == first + second  # also with floats in the place of integers
        is_of_dtypes = error and re.search("another structure or dtype.*float64", error)
        assert error is None or is_of_dtypes or ("field 'x'" in error and lines_of(error))
    found = [plain(record) for record in build((1, 0), json=("x",))]
    assert are_same(found, first + second)


def test_the_version_decides_what_is_appended(storage):
    storage.submit([{"x": 0.5, "l": [1.5], "c": [{"a": 1}], "d": {"k": 1}}], "d", "1")
    ref = storage.append([{"x": 1, "l": [], "c": [], "d": {"k": 2}}], "d", "2", base_version="1")
    ref = storage.append([{"x": 2, "l": [3, 4], "c": [1, None], "d": {"k": 3}}], "d", "3", base_version="2")
    assert [plain(record) for record in ref][1:] == [
        {"x": 1.0, "l": [], "c": [], "d": {"k": 2}},
        {"x": 2.0, "l": [3.0, 4.0], "c": [1, None], "d": {"k": 3}},
    ]
    with pytest.raises(UnsupportedDataError, match="record 0: field 'd' should be a dict with the keys"):
        storage.append([{"x": 1, "l": [], "c": [], "d": {"j": 2}}], "d", "4", base_version="3")


def test_missing_empty_needs_a_value_or_a_kind(storage):
    storage.submit([{"x": {"a": 1}}], "d", "1", json="x")
    with pytest.raises(ConfigurationError, match=r"missing=\{'x': \[\]\}"):
        storage.append([{"x": None}], "d", "2", base_version="1", missing={"x": "empty"})
    ref = storage.append([{"x": None}], "d", "2", base_version="1", missing={"x": {}})
    assert ref[1] == {"x": {}}


def test_the_page_has_forty_rows():
    assert len(cases_of_the_page()) >= 40
    assert len({case.name for case in CASES}) == len(CASES)


# What is said beside the records.

FLOATS_LATE = [{"x": number if number < 1_500 else 0.5, "n": number} for number in range(1_600)]
X_IS_FLOAT = {"x": yogadl.Leaf("float64")}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("forked_workers")
def test_a_declared_field_is_what_it_is_declared(storage, way, monkeypatch):
    ref = WAYS[way](
        storage, FLOATS_LATE[-205:] + FLOATS_LATE[:4], records=yogadl.RecordOptions(spec=X_IS_FLOAT)
    )
    assert ref.spec.fields[0].leaf.dtype == "float64"
    records = FLOATS_LATE if way not in ("tasks", "tasks in another order") else FLOATS_LATE[1_495:1_504]
    if way == "small parts":  # each record is one
        records = FLOATS_LATE[-200:]
        set_constants(monkeypatch, SAMPLED_RECORDS=50)
    ref = WAYS[way](
        yogadl.open_storage(f"{storage.location}-2"), records, records=yogadl.RecordOptions(spec=X_IS_FLOAT)
    )
    assert [plain(record) for record in ref] == [record | {"x": float(record["x"])} for record in records]


def test_a_declaration_is_a_part_of_an_auto_version(storage):
    records = [{"x": 1}, {"x": 2}]
    refs = [
        storage.cached(records, "d"),
        storage.cached(records, "d", records=yogadl.RecordOptions(spec=X_IS_FLOAT)),
    ]
    assert [ref.spec.fields[0].leaf.dtype for ref in refs] == ["int64", "float64"]

    @storage.cacheable("f", "1", records=yogadl.RecordOptions(spec=X_IS_FLOAT))
    def made():
        return records

    assert made().spec == refs[1].spec


@pytest.mark.parametrize(
    ("records", "spec", "says"),
    [
        ([{"x": 1}], {"y": yogadl.Leaf("int64")}, r"spec= names 'y' in the record, which has only \['x'\]"),
        ([{"x": "a"}], X_IS_FLOAT, "spec= declares field 'x' as float64, but the records sampled have str"),
        ({"x": np.arange(3)}, X_IS_FLOAT, "a dict says itself what its fields are"),
        (yogadl.from_source([{"x": 1}]), X_IS_FLOAT, "a RecordsRef says itself"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(storage, records, spec, says):
    with pytest.raises(ConfigurationError, match=says):
        storage.submit(records, "d", "1", records=yogadl.RecordOptions(spec=spec))
    assert storage.versions("d") == []


def test_names_that_no_field_has(storage, caplog):
    for data in ([{"x": 1}], {"x": [1]}, {"x": np.arange(3)}):
        with pytest.raises(ConfigurationError, match="json= names 'typo', and the fields of the records are"):
            storage.submit(data, "d", "1", json="typo")
    with pytest.raises(ConfigurationError, match="json= names 'x', which is Leaf"):
        storage.submit({"x": np.arange(3)}, "d", "1", json="x")
    with pytest.raises(ConfigurationError, match="missing= names 'typo', and the columns are x"):
        storage.submit({"x": [1]}, "d", "1", missing={"typo": 0})
    with pytest.raises(ConfigurationError, match="json= has the names of fields"):
        storage.submit([{"x": 1}], "d", "1", json=True)
    ref = storage.submit([{"x": 1}], "d", "1", missing={"late": 0})  # a later record may have it
    assert ref[0] == {"x": 1, "late": 0}
    assert "missing= names 'late', which none of the first 1 records has: all of them get 0" in caplog.text
    caplog.clear()
    storage.append([{"x": 2}], "d", "2", base_version="1", missing={"late": 0})
    assert not caplog.text


def test_a_fingerprint_that_is_given_is_of_records_before_they_are_filled(storage):
    rows = [{"x": 1}, {"x": None}]
    refs = [yogadl.from_source(rows, "rows", missing={"x": fill}) for fill in (-1, -1, -2)]
    assert refs[0].fingerprint == refs[1].fingerprint != refs[2].fingerprint
    assert [storage.cached(ref, "d")[1]["x"] for ref in refs] == [-1, -1, -2]
    assert yogadl.from_source([{"x": 1}], "rows").fingerprint == "rows"


def test_tasks_that_say_different_things_are_refused(storage):
    def begin(fill):
        return storage.begin("d", "1", partitions=2, run="r", missing={"x": fill})

    records = [{"x": 1}, {"x": None}]
    begin(-1).write(0, records)
    begin(-2).write(1, records)
    with pytest.raises(ConfigurationError, match="1 of 2 partitions were written by other code, arguments"):
        begin(-2).commit()
    begin(-2).write(0, records)
    begin(-2).commit()
    assert [record["x"] for record in storage.fetch("d", "1")] == [1, -2, 1, -2]


TREES = [{"x": []}, {"x": 1}, {"x": None}]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("first", "others"),
    [
        ([{"x": None}, {"x": [{"f": 1}]}], [{"x": None}]),
        *[(TREES, [{"x": value}]) for value in (1, True, None, {}, "a", [[1], [2, 3]], 0.5, [1])],
        ([{"x": 0.5}], [{"x": 1}]),
        ([{"x": [0.5]}], [{"x": []}]),
    ],
)
def test_partitions_whose_records_alone_show_less(storage, first, others, workers, request):
    if first[0] != {"x": None}:
        request.getfixturevalue("forked_workers")
    for number, parts in enumerate([(first, others), (first, others, first)]):
        source = yogadl.partitioned([functools.partial(iter, part) for part in parts])
        ref = storage.submit(source, "d", str(number), workers=workers)
        found = [plain(record) for record in ref]
        expected = list(itertools.chain(*parts))
        assert are_same(found, expected) or found == expected  # an integer among floats is one


@pytest.mark.parametrize("value", [np.int64(1), np.float32(1), np.array(1), np.zeros(2)], ids=repr)
@pytest.mark.parametrize("first", [[], [{"a": 1}], [[1], [1, 2]], [1, None]], ids=repr)
def test_numpy_beside_lists_is_refused_by_its_number(storage, first, value):
    for build in (
        functools.partial(storage.submit, [{"x": first}, {"x": value}], "d", "1"),
        functools.partial(yogadl.from_source, [{"x": first}, {"x": value}]),
    ):
        with pytest.raises(UnsupportedDataError, match=r"record 1: field 'x' is a .*: write its tolist\(\)"):
            build()


def test_records_that_are_lists_of_messages_are_told_to_have_a_name(storage):
    chats = [[{"role": "user"}], [{"role": "user"}, {"role": "assistant"}]]
    with pytest.raises(UnsupportedDataError, match=r'give the list a name, \{"messages": \[...\]\}'):
        storage.submit(chats, "d", "1")
    ref = storage.submit([{"messages": chat} for chat in chats], "d", "1")
    assert [record["messages"] for record in ref] == chats
    with pytest.raises(UnsupportedDataError, match="the record itself is None: leave it out"):
        storage.submit(["a", None], "d", "2")


def test_what_continues_a_version_is_told_what_helps_there(storage):
    storage.submit([{"x": 1, "y": "a"}], "d", "1")
    append = functools.partial(storage.append, dataset_id="d", dataset_version="2", base_version="1")
    with pytest.raises(UnsupportedDataError) as caught:
        append([{"x": None, "y": "b"}])
    assert "json=" not in str(caught.value)
    (options,) = lines_of(caught.value)
    assert append([{"y": "b", "x": None}], **options)[1] == {"x": -1, "y": "b"}  # in another order
    for record in ({"x": 0.5, "y": "b"}, {"x": 1, "y": [1]}, {"x": {}, "y": "b"}):
        with pytest.raises(UnsupportedDataError, match=r"build another version|make it int64"):
            storage.append([record], "d", "3", base_version="1")


def test_results_that_are_nested_too_deep_are_refused():
    deep: Any = 1
    for _ in range(1_200):
        deep = [deep]
    with pytest.raises(yogadl.errors.StageError, match="nested more than 512 deep"):
        yogadl.from_source([1, 2]).map(lambda number: {"x": deep}).gather([0])


def test_objects_that_map_returns_are_declared(storage):
    ref = yogadl.from_source(np.arange(2_000))

    def function(number):
        return {"tools": None if number < 1_500 else [1]}

    with pytest.raises(UnsupportedDataError, match="are Python objects") as caught:
        storage.submit(ref.map(function), "d", "1")
    (options,) = lines_of(caught.value)
    found = storage.submit(ref.map(function, **options), "d", "1")
    assert [found[0], found[1_999]] == [{"tools": None}, {"tools": [1]}]
