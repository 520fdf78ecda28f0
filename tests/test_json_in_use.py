"""Json values in use: views and streams have them as they were, and no two batches share one."""

import copy
import json

import numpy as np
import pytest
from indexed import Batched
from trees import JSON_VALUES, same_json, shared_parts

import yogadl
from yogadl import Leaf
from yogadl.errors import ConfigurationError, StageError

COUNT = 57
VALUES = [JSON_VALUES[number % len(JSON_VALUES)] for number in range(COUNT)]
TREE = Leaf("json")


def records():
    return [
        {"tree": value, "id": number, "text": f"t{number % 3}", "tokens": np.arange(number % 5 + 1)}
        for number, value in enumerate(VALUES)
    ]


def columns():
    return {
        "tree": VALUES,
        "id": np.arange(COUNT),
        "text": [f"t{number % 3}" for number in range(COUNT)],
        "tokens": [np.arange(number % 5 + 1) for number in range(COUNT)],
    }


@pytest.fixture(params=["cache", "records", "columns", "items"])
def ref(request, tmp_path):
    if request.param == "cache":
        return yogadl.open_storage(tmp_path).submit(records(), "set", "1", json="tree")
    made = {"records": records, "columns": columns, "items": lambda: Batched(records())}[request.param]()
    return yogadl.from_source(made, json="tree")


def trees_of(batches):
    return [value for batch in batches for value in batch["tree"]]


def same(record):
    return record


def with_more(record):
    return {"tree": record["tree"], "more": {"tree": record["tree"]}, "id": record["id"] + 1}


READ = {
    "records": lambda ref: [record["tree"] for record in ref],
    "gathered": lambda ref: ref.gather(range(COUNT))["tree"],
    "batches": lambda ref: trees_of(ref.stream().batch(10)),
    "ahead": lambda ref: trees_of(ref.stream().batch(10).prefetch(2)),
    "by workers": lambda ref: trees_of(ref.stream().batch(10).prefetch(2, workers=1)),
    "some fields": lambda ref: trees_of(ref.fields("tree", "id").stream().batch(10)),
    "mapped": lambda ref: trees_of(ref.map(with_more).stream().batch(10)),
    "mapped below": lambda ref: [
        record["more"]["tree"] for record in ref.map(with_more, spec={"more": {"tree": TREE}})
    ],
    "mapped by workers": lambda ref: trees_of(ref.stream().map(with_more).batch(10).prefetch(2, workers=1)),
    "mapped batches": lambda ref: trees_of(ref.stream().batch(10).map(same)),
    "filtered": lambda ref: [record["tree"] for record in ref.filter(lambda record: record["id"] >= 0)],
    "of itself": lambda ref: [
        record["tree"] for record in ref.filter(lambda r: not isinstance(r["tree"], set), fields="tree")
    ],
    "selected": lambda ref: ref.select(range(COUNT)).gather(range(COUNT))["tree"],
    "joined": lambda ref: [record["tree"] for record in yogadl.concat([ref[:20], ref[20:]])],
    "flat": lambda ref: trees_of(ref.flat_map(lambda r: [{"tree": r["tree"]}]).stream().batch(10)),
    "chained": lambda ref: trees_of(ref.map(same)[:40].map(with_more).stream().batch(9))
    + trees_of(ref[40:].stream().batch(5)),
}  # fmt: skip


@pytest.mark.parametrize("kind", READ)
def test_values_come_back_as_they_were(ref, kind):
    found = READ[kind](ref)
    assert same_json(found, VALUES)
    assert not shared_parts(found)


MANY = {
    "one record often": lambda ref: ref.gather([7, 7, 8, 8, 7])["tree"],
    "two epochs": lambda ref: trees_of(ref.stream().batch(10)) + trees_of(ref.stream().batch(10)),
    "a sample": lambda ref: trees_of(ref.sampled(records=200).stream().batch(50)),
    "twice from a function": lambda ref: trees_of(
        ref.flat_map(lambda record: [{"tree": record["tree"]}] * 2).stream().batch(50)
    ),
    "a constant of a function": lambda ref: trees_of(
        ref.map(lambda record, found=[{"a": []}]: {"tree": found}).stream().batch(50)
    ),
    "pieces of rows": lambda ref: trees_of(
        ref.packed(3, fields="tokens", values="tree").stream().batch(5)
    ),
    "padded batches": lambda ref: trees_of(
        ref.fields("tree", "tokens").bucketed("tokens", tokens=12).stream()
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", MANY)
def test_no_two_values_have_a_list_or_dict_in_common(ref, kind):
    found = MANY[kind](ref)
    assert not shared_parts(found)


def test_a_value_that_a_consumer_changes_comes_unchanged_the_next_time(ref):
    wanted = copy.deepcopy(JSON_VALUES[7:9])
    for _ in range(2):
        found = ref.gather([7, 8])["tree"]
        assert same_json(found, wanted)
        for value in found:
            value.clear()


@pytest.mark.parametrize("first", range(len(JSON_VALUES)), ids=lambda number: repr(JSON_VALUES[number])[:20])
def test_a_function_that_passes_a_field_on_keeps_it_a_json_value(ref, first):
    def passed(record):
        return {"id": record["id"], "tree": record["tree"]}

    for made in (ref[first:].map(passed), ref[first:].flat_map(lambda record: [passed(record)])):
        assert made.spec.tree.children[1] == TREE
        assert same_json(trees_of(made.stream().batch(10)), VALUES[first:])


def test_a_field_of_another_name_is_declared(ref):
    def renamed(record):
        return {"other": record["tree"]}

    with pytest.raises(StageError, match=r"If it is a json value, write map\(.*'other': .*Leaf"):
        list(ref[2:].map(renamed).stream().batch(10))
    found = ref[2:].map(renamed, spec={"other": TREE}).stream().batch(10)
    assert same_json([value for batch in found for value in batch["other"]], VALUES[2:])


def test_a_function_that_returns_no_json_value_is_refused(ref):
    def wrong(record):
        return {"tree": [record["id"]]}

    with pytest.raises(
        StageError, match=r"record 0: field 'tree' is a json value, whose \[0\] is a numpy.int64"
    ):
        list(ref.map(wrong, spec={"tree": TREE}).stream().batch(10))


def test_records_of_json_values_and_text_are_json(ref):
    only = ref.fields("tree", "text")
    for number in range(COUNT):
        assert json.loads(json.dumps(only[number])) == {"tree": VALUES[number], "text": f"t{number % 3}"}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("forked_workers")
def test_a_row_has_the_values_of_its_pieces(ref, workers):
    packed = ref.packed(3, fields="tokens", values=("tree", "id"))
    loader = packed.stream().batch(4)
    rows = [
        (row, ids.tolist())
        for batch in (loader.prefetch(2, workers=workers) if workers else loader)
        for row, ids in zip(batch["tree"], batch["id"], strict=True)
    ]
    assert len(rows) == len(packed) > 4
    assert any(len(row) > 1 for row, _ in rows)
    for row, ids in rows:
        assert same_json(row, [VALUES[number] for number in ids])
    assert {number for _, ids in rows for number in ids} == set(range(COUNT))


def test_a_padded_batch_has_the_values_of_its_records(ref):
    batches = list(ref.fields("tree", "id", "tokens").map(with_length).bucketed("tokens", tokens=12).stream())
    assert sum(len(batch["tree"]) for batch in batches) == COUNT
    for batch in batches:
        assert same_json(batch["tree"], [VALUES[number] for number in batch["id"][:, 0].tolist()])


def with_length(record):
    return {"tree": record["tree"], "id": record["id"].reshape(1), "tokens": record["tokens"]}


def test_a_json_value_is_neither_packed_nor_cut():
    ref = yogadl.from_source([{"tree": {"a": 1}}], json="tree")
    for cut in (lambda: ref.packed(4, fields="tree"), lambda: ref.bucketed("tree", tokens=4)):
        with pytest.raises(ConfigurationError, match="holds json, which is not packed"):
            cut()
    with pytest.raises(ConfigurationError, match="holds json, which is not cut"):
        ref.chunks("tree", 4)
    with pytest.raises(ConfigurationError, match="'tree' is json: a weight is a number"):
        ref.sampled("tree")


def test_equal_values_are_of_one_share(ref):
    groups = [share.gather(range(len(share)))["tree"] for share in ref.split(0.5, 0.5, key="tree")]
    texts = [{json.dumps(value) for value in group} for group in groups]
    assert all(texts)
    assert not texts[0] & texts[1]


def test_the_order_of_keys_makes_no_other_share():
    values = [{"a": number % 5, "b": [{"x": 1, "y": 2}]} for number in range(40)]
    values += [{"b": [{"y": 2, "x": 1}], "a": number % 5} for number in range(40)]
    shares = yogadl.from_source({"tree": values}).split(0.5, 0.5, key="tree")
    found = [{tree["a"] for tree in share.gather(range(len(share)))["tree"]} for share in shares]
    assert not found[0] & found[1]
    halves = yogadl.from_source({"tree": values}).split(0.5, 0.5, by="tree")
    counts = [[record["tree"]["a"] for record in half] for half in halves]
    assert [sorted(map(count.count, range(5))) for count in counts] == [[8] * 5] * 2


def test_values_are_drawn_equally_often(ref):
    found = [json.dumps(record["tree"]) for record in ref[:12].sampled(by="tree", records=4000).at(0)]
    assert len(set(found)) == len(JSON_VALUES)
    for text in set(found):
        assert 300 < found.count(text) < 500
