"""Records of many kinds and what is stored of them: those of `docs/howto/records.md`, and more."""

import re
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pages import ROOT

PAGE = ROOT / "docs" / "howto" / "records.md"


@dataclass(frozen=True)
class Case:
    """Records, and what becomes of them.

    Args:
        name: What the case is called.
        records: The records, in a cycle of one or more.
        stored: The dtype and shape of each field, as in the table of the page; empty if no test says it.
        batch: What a batch has, in the words of the page; empty if no test says it.
        options: `json=` and `missing=` of the build.
        found: What comes back, if that differs from the records.
    """

    name: str
    records: list[Any]
    stored: str = ""
    batch: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    found: list[Any] | None = None

    @property
    def expected(self) -> list[Any]:
        """What comes back, as `plain` gives it."""
        return [plain(record) for record in (self.found or self.records)]


def plain(value: Any) -> Any:
    """Return a record with Python's values in the place of numpy's arrays and scalars."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, list):
        return list(map(plain, value))
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def are_same(one: Any, other: Any) -> bool:
    """Return whether plain values are equal, also in their types and in the order of keys."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(are_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(are_same, one, other))
    return repr(one) == repr(other)  # -0.0 is not 0.0, and NaN is NaN


def said_of(spec: Any) -> str:
    """Return the dtype and shape of each field, in the words of the page."""
    names = [field.name for field in spec.fields]
    leaves = [f"`{field.leaf.dtype} {field.leaf.shape}`" for field in spec.fields]
    if names in (["x"], [""]):
        return leaves[0]
    return ", ".join(f"`{name}`: {leaf}" for name, leaf in zip(names, leaves, strict=True))


def said_of_batch(batch: Any) -> str:
    """Return what a batch has, in the words of the page."""
    column = batch["x"] if isinstance(batch, dict) and list(batch) == ["x"] else batch
    if isinstance(column, np.ndarray):
        return f"array `{column.dtype} {column.shape}`"
    if isinstance(column, dict):
        return "dict"
    if isinstance(column, tuple):
        return "tuple"
    kinds = {type(item).__name__ for item in column}
    return f"list of `{kinds.pop()}`" if len(kinds) == 1 else "list of objects"


def cases_of_the_page() -> list[Case]:
    """Return the rows of the page's table."""
    table = PAGE.read_text("utf-8").split("| a batch of two has |\n")[1].split("\n\n")[0]
    found = []
    for line in table.splitlines()[1:]:
        name, records, stored, batch = (cell.strip() for cell in line.strip("|").split(" | "))
        values = [eval(text, {"np": np}) for text in re.findall("`([^`]+)`", records)]
        joined = _joined(values) if "beside floats" in name else None
        found.append(Case(name, values, stored, batch, found=joined))
    return found


def _joined(records: list[Any]) -> list[Any]:
    """Return records with floats in the place of integers."""
    values = [record["x"] for record in records]
    return [{"x": [*map(float, value)] if isinstance(value, list) else float(value)} for value in values]


class Point(namedtuple("Point", "x y")):
    """A record, or a part of one."""

    __slots__ = ()


def _case(name: str, *values: Any, **more: Any) -> Case:
    """Return a case whose records have one field of these values."""
    found = more.pop("found", None)
    given = None if found is None else [{"x": value} for value in found]
    return Case(name, [{"x": value} for value in values], more.pop("stored", ""), found=given, options=more)


def _call(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "arguments": arguments}]}


FURTHER = [
    _case(
        "chat with text beside lists", [{"content": "a"}], [{"content": [{"type": "text", "text": "a"}]}], []
    ),
    _case("tool calls of all kinds", [_call({})], [_call("{}")], [_call([1, 2.0, None])], stored="`json ()`"),
    _case("tools None first", None, None, [{"name": "f"}], stored="`json ()`"),
    _case("tools None last", [{"name": "f"}], [], None, stored="`json ()`"),
    _case("limits of json integers", [None, 2**63, 2**64 - 1, -(2**63)], stored="`json ()`"),
    _case("limits of int64", [-(2**63), 2**63 - 1], stored="`int64 (2,)`"),
    _case("limits of uint64", [0, 2**64 - 1], [2**63], stored="`uint64 (None,)`"),
    _case("a least integer", -(2**63), 2**63 - 1, stored="`int64 ()`"),
    _case(
        "floats that show as integers", [None, 1.0, 1, True, 0, -0.0, 1e22, 1e-7, 5e-324], stored="`json ()`"
    ),
    _case(
        "floats of every size",
        [-0.0, 1e308, 5e-324],
        [float("inf"), float("nan")],
        stored="`float64 (None,)`",
    ),
    _case("bools beside integers", [True, 1], stored="`json ()`"),
    _case("empty matrices", [[]], [[1, 2]], stored="`int64 (1, None)`"),
    _case("boxes, sometimes none", [], [[1, 2, 3, 4]], [], stored="`int64 (None, 4)`"),
    _case(
        "boxes of floats beside integers",
        [[1, 2]],
        [[0.5, 2], [1, 1]],
        found=[[[1.0, 2.0]], [[0.5, 2.0], [1.0, 1.0]]],
        stored="`float64 (None, 2)`",
    ),
    _case("three dimensions", [[[1], [2]]], [[[3], [4]], [[5], [6]]], stored="`int64 (None, 2, 1)`"),
    _case("lists of lists of text", [["a", "b"]], [["", "é"], ["\n", "\x00"]], stored="`str (None, 2)`"),
    _case("lists of lists, some empty", [[1], []], [], [[2, 3]], stored="`json ()`"),
    _case("text beside lists of text", "a", ["a", "b"], stored="`json ()`"),
    _case("numbers beside text in lists", [1], ["a"], stored="`json ()`"),
    _case("bools beside integers in other records", [True], [1], stored="`json ()`"),
    _case("nulls anywhere", {"a": None, "b": [None, {}]}, {"a": [], "b": {}}),
    _case("None beside text, as json", "a", None, "", json=("x",), stored="`json ()`"),
    _case("numbers as json", 1, 1.0, True, None, 2**64 - 1, json=("x",), stored="`json ()`"),
    _case("a dict as json", {"a": 1}, {"a": 2}, json="x", stored="`json ()`"),
    _case("a list as json", [1, 2], [3, 4], json=["x"], stored="`json ()`"),
    _case("empty keys, long keys", [{"": 1, "a/b": 2, "é" * 300: 3}], stored="`json ()`"),
    _case("order of keys", [{"b": 1, "a": 2}], [{"a": 1, "b": 2}], stored="`json ()`"),
    _case("nested dicts of differing keys", {"a": {"b": 1}}, {"a": {"c": [2]}}, stored="`x/a`: `json ()`"),
    _case("unicode", "\u2028😀\x00", "", "\ufeffa", stored="`str ()`"),
    _case("unicode in lists", ["\u2028😀", "\x00", ""], [], stored="`str (None,)`"),
    _case("deep lists", [[[[1, [2]]]]], [[[]]], stored="`json ()`"),
    _case(
        "numpy scalars in lists", [np.float32(1), np.float32(2)], [np.float32(3)], stored="`float32 (None,)`"
    ),
    _case(
        "a tuple of lists", ([1], ["a"]), ([2, 3], []), stored="`x/0`: `int64 (None,)`, `x/1`: `str (None,)`"
    ),
    _case("an array beside others", np.arange(3, dtype=np.int8), np.arange(2, dtype=np.int8)),
    _case(
        "a list of chats and arrays",
        [np.arange(2), [{"a": 1}]],
        stored="`x/0`: `int64 (2,)`, `x/1`: `json ()`",
    ),
    _case(
        "missing numbers and texts",
        {"n": None, "t": "a"},
        {"n": 3},
        {"t": None, "n": 2},
        missing={"x/n": -1, "x/t": "empty"},
        found=[{"n": -1, "t": "a"}, {"n": 3, "t": ""}, {"n": 2, "t": ""}],
    ),
    _case(
        "missing lists", None, [1, 2], missing={"x": "empty"}, found=[[], [1, 2]], stored="`int64 (None,)`"
    ),
    _case("missing text", None, "a", missing={"x": "none"}, found=["none", "a"], stored="`str ()`"),
    _case("missing dicts", {"a": 1}, None, missing={"x": "empty"}, found=[{"a": 1}, {}], stored="`json ()`"),
    _case(
        "missing in tuples",
        (1, None),
        (None, "a"),
        missing={"x/0": -1, "x/1": "empty"},
        found=[(1, ""), (-1, "a")],
        stored="`x/0`: `int64 ()`, `x/1`: `str ()`",
    ),
    Case(
        "missing in a namedtuple and below it",
        [Point(1, {"a": None}), Point(None, {"a": 2})],
        options={"missing": {"x": -1, "y/a": -2}},
        found=[Point(1, {"a": -2}), Point(-1, {"a": 2})],
    ),
    Case("a namedtuple", [Point([1], [{"a": 1}]), Point([2, 3], [])], "`x`: `int64 (None,)`, `y`: `json ()`"),
    Case("a record that is a text", ["a", "", "é"], "`str ()`"),
    Case(
        "a field that is not there",
        [{"a": 1, "b": "x"}, {"a": 2}],
        "`a`: `int64 ()`, `b`: `str ()`",
        options={"missing": {"b": "empty"}},
        found=[{"a": 1, "b": "x"}, {"a": 2, "b": ""}],
    ),
    Case(
        "many fields",
        [
            {"id": 1, "text": "a", "tokens": [1, 2], "meta": {"url": None, "tags": ["x"]}},
            {"id": 2, "text": "", "tokens": [], "meta": None},
        ],
    ),
]


def all_cases() -> list[Case]:
    """Return all cases."""
    return [*cases_of_the_page(), *FURTHER]
