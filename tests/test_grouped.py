"""Batches of records of one value: `ref.grouped`."""

import os
import pickle
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from inside import MOST_GROUPS, GroupPlan
from trees import assert_equal, assert_same_batches

import yogadl
from yogadl import Leaf
from yogadl.errors import ConfigurationError, CursorError, StageError, UnsupportedDataError

COUNT = 47
SIZES = (2, 5, 3)
SPEC = {"image": Leaf("uint8", (None, None, 3)), "name": Leaf("str"), "key": Leaf("bytes")}
RARE = 46  # the only record of its value


def picture(number):
    size = 7 if number == RARE else SIZES[number * number % 7 % 3]
    return {
        "image": np.full((size, size + 1, 3), number, np.uint8),
        "size": size,
        "wide": size > 3,
        "name": f"of {size}",
        "key": bytes([size, 0]),
        "meta": {"number": number},
        "label": number,
    }


PICTURES = [picture(number) for number in range(COUNT)]
VALUES = [one["size"] for one in PICTURES]


def in_memory(records=None):
    return yogadl.from_source(PICTURES if records is None else records, spec=SPEC, json=["meta"])


def numbered(values):
    """Return records that have these values, and no arrays."""
    return yogadl.from_source([{"value": value, "label": n} for n, value in enumerate(values)])


@pytest.fixture
def ref(storage):
    build = yogadl.BuildOptions(part_bytes=3000)
    return storage.submit(in_memory(), "pictures", "1", build=build)


def shape_of(record):
    return record["image"].shape[:2]


def size_of(record):
    return int(record["size"])


def labels(batches):
    return [int(label) for batch in batches for label in batch["label"]]


def plans_in(storage):
    return list(Path(storage.location).glob("pictures/tables/*/*.plan"))


@pytest.mark.parametrize(
    "by", ["size", "name", "key", shape_of, size_of], ids=["size", "name", "key", "shape_of", "size_of"]
)
def test_the_records_of_a_batch_share_a_value_and_are_stacked(ref, by):
    made = ref.grouped(by, records=4)
    counts = Counter(VALUES)
    assert len(made) == sum(-(-count // 4) for count in counts.values())
    for epoch in range(2):
        sizes = []
        for batch in made.at(epoch):
            records = [PICTURES[label] for label in batch["label"]]
            assert len({one["size"] for one in records}) == 1
            for name in ("image", "size", "wide"):
                assert_equal(batch[name], np.stack([np.asarray(one[name]) for one in records]))
            for name in ("name", "key", "meta"):
                assert list(batch[name]) == [one[name] for one in records]
            sizes.append((records[0]["size"], len(records)))
        wanted = [[4] * (count // 4) + [count % 4] * (count % 4 > 0) for count in counts.values()]
        assert sorted(sizes) == sorted(
            (value, n) for value, some in zip(counts, wanted, strict=True) for n in some
        )
        assert sorted(labels(made.at(epoch))) == list(range(COUNT))


def test_a_bool_groups_too(ref):
    found = ref.fields("wide", "label").grouped("wide", records=5)
    assert all(len(set(batch["wide"].tolist())) == 1 for batch in found.at(0))


@pytest.mark.parametrize("by", ["size", "name", "key"])
def test_a_field_a_function_memory_and_worker_processes_make_the_same_batches(ref, by):
    wanted = list(ref.grouped("size", records=3).at(1))
    same = (
        ref.grouped(by, records=3),
        in_memory().grouped(by, records=3),
        ref.grouped(by, records=3, workers=2),
    )
    for made in (*same, *(ref.grouped(size_of, records=3, fields=["size"], workers=n) for n in (0, 1))):
        assert_same_batches(list(made.at(1)), wanted)


def test_the_function_takes_the_fields_that_are_named(ref):
    seen = []

    def value(record):
        seen.append(tuple(record))
        return record["size"]

    ref.grouped(value, records=4, fields=["size"])
    assert set(seen) == {("size",)}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_record_comes_once_an_epoch_and_ranks_share_it(ref, ranks, shuffle):
    made = ref.grouped("size", records=3, ranks=ranks)
    shards = [made.stream(shuffle=shuffle, shard_rank=r, num_shards=ranks) for r in range(ranks)]
    epochs = [[list(stream.at(epoch)) for stream in shards] for epoch in range(2)]
    for shares in epochs:
        assert sorted(labels(chain(*shares))) == list(range(COUNT))
        assert len(set(map(len, shares))) == 1
    together = [{frozenset(batch["label"].tolist()) for batch in chain(*shares)} for shares in epochs]
    assert together[0] != together[1]
    for step in range(made._records.steps[0]):
        assert len({share[step]["size"][0] for share in epochs[0]}) == 1


def test_the_batches_of_all_values_are_shuffled_together(ref):
    orders = [
        [int(batch["size"][0]) for batch in ref.grouped("size", records=3).stream(shuffle=True).at(epoch)]
        for epoch in range(3)
    ]
    assert all(order != sorted(order) for order in orders)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_cursor_in_the_middle_of_an_epoch_goes_on_with_other_ranks(ref, ranks):
    made = ref.grouped("size", records=2)
    options = {"shuffle": True, "shuffle_seed": 5}
    reading = iter(made.stream(**options).batch(None).prefetch(2, workers=1))
    seen = [next(reading) for _ in range(7)]
    cursor = reading.state_dict()
    [documents] = reading.last.documents
    assert [tuple(one) for one in documents] == [(label, 0, 1) for label in seen[-1]["label"].tolist()]
    again = ref.grouped("size", records=2)
    for rank in range(ranks):
        seen += again.stream(**options, cursor=cursor, shard_rank=rank, num_shards=ranks)
    assert sorted(labels(seen)) == list(range(COUNT))


@pytest.mark.parametrize(
    ("values", "records", "sizes"),
    [
        ([], 4, []),
        (["a"], 4, [1]),
        (["a"] * 13, 4, [1, 4, 4, 4]),
        (["a"] * 8, 4, [4, 4]),
        (range(13), 4, [1] * 13),
        ([0] * 9 + [1], 4, [1, 1, 4, 4]),
        ([0] * 9 + [1], 10**30, [1, 9]),
        ([True, False, True], 1, [1, 1, 1]),
    ],
    ids=str,
)
def test_few_records_or_values_and_many(values, records, sizes):
    ref = numbered(values) if len(values) else numbered([1]).select([])
    made = ref.grouped("value", records=records)
    for epoch in range(2):
        batches = list(made.stream(shuffle=True).at(epoch))
        assert sorted(len(batch["label"]) for batch in batches) == sizes
        assert sorted(labels(batches)) == list(range(len(values)))


def test_each_value_may_have_its_own_size(ref):
    given = {2: 4, 3: 2, 5: 1, 7: 3, 9: 6}
    made = ref.grouped("size", records=given)
    for batch in made.at(0):
        assert len(batch["label"]) <= given[int(batch["size"][0])]
    counts = Counter(VALUES)
    assert len(made) == sum(-(-count // given[value]) for value, count in counts.items())
    by_shape = ref.grouped(shape_of, records={(size, size + 1): given[size] for size in counts})
    assert_same_batches(list(by_shape.at(0)), list(made.at(0)))
    with pytest.raises(
        ConfigurationError, match=r"no size for 7, the value of record 46: it has \[2, 3, 5\]"
    ):
        ref.grouped("size", records={2: 4, 3: 2, 5: 1})


@pytest.mark.parametrize(
    "change", [{"records": 5}, {"by": "wide"}, {"ranks": 2}, {"records": {2: 9, 3: 1, 5: 1, 7: 1}}], ids=str
)
def test_a_cursor_is_of_all_arguments(ref, change):
    options = {"by": "size", "records": 4}
    ref = ref.fields("size", "wide", "label")
    cursor = ref.grouped(**options).stream().cursor(1)
    with pytest.raises(CursorError):
        ref.grouped(**options | change).stream(cursor=cursor)


@pytest.mark.parametrize("by", ["size", size_of], ids=["field", "function"])
def test_the_plan_is_kept_and_made_again_if_it_is_damaged(storage, ref, by):
    made = ref.grouped(by, records=4)
    [file] = plans_in(storage)
    content = file.read_bytes()
    os.utime(file, ns=(1, 1))
    found = storage.fetch("pictures", "1").grouped(by, records=4)
    assert found.fingerprint == made.fingerprint
    assert file.stat().st_mtime_ns == 1  # it was not made again
    file.chmod(0o644)
    for damaged in (content[:-3], b"", content[:90] + bytes(len(content) - 90)):
        file.write_bytes(damaged)
        again = storage.fetch("pictures", "1").grouped(by, records=4)
        assert_same_batches(list(again.at(0)), list(found.at(0)))
        assert file.read_bytes() == content
    ref.grouped(by, records=5)
    assert len(plans_in(storage)) == 2


@pytest.mark.parametrize(("records", "ranks"), [(COUNT - 1, 1), (COUNT, 2)])
def test_a_plan_of_other_records_or_ranks_under_its_name_is_made_again(storage, ref, records, ranks):
    made = ref.grouped("size", records=4)
    [file] = plans_in(storage)
    file.unlink()
    other = GroupPlan.make(np.zeros(records, np.uint16), [4], ranks).to_bytes()
    kept = made._records._kept
    assert kept.cache.keep_plan(kept.name, other)
    assert ref.grouped("size", records=4).fingerprint == made.fingerprint


def test_a_pickle_has_the_plan_of_a_function_and_finds_that_of_a_field(storage, ref):
    pickles = [
        pickle.dumps(ref.grouped(by, records=4)) for by in ("size", size_of, lambda record: record["size"])
    ]
    for file in plans_in(storage):
        file.unlink()
    wanted = list(ref.grouped("size", records=4).at(2))
    for content in pickles:
        assert_same_batches(list(pickle.loads(content).at(2)), wanted)


def test_a_function_that_gives_other_values_later_is_found_out():
    changes = False

    def changing(record):
        size = 9 if changes and record["label"] == 1 else record["size"]
        return {**record, "size": size}

    mapped = numbered([0] * 4).map(lambda one: changing({**one, "size": 3}))
    made = mapped.grouped("size", records=4)
    assert len(list(made.stream())) == 1
    changes = True
    with pytest.raises(
        UnsupportedDataError, match=r"have different values in field 'size'.* the same each time"
    ):
        list(made.stream())


def test_records_of_one_batch_that_differ_in_shape_are_named(ref):
    with pytest.raises(UnsupportedDataError, match=r"'image' has the shape \(\d, \d, 3\) in record \d+ and"):
        list(ref.grouped("wide", records=40).stream())
    assert len(list(ref.fields("wide", "label").grouped("wide", records=40).stream())) == 2


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (np.arange(3), "dicts"),
        ({"a": {"b": 1}, "size": 3}, "others inside"),
    ],
)
def test_records_that_make_no_batch_are_refused(record, text):
    with pytest.raises(ConfigurationError, match=text):
        yogadl.from_source([record]).grouped("size", records=9)


def test_pickled_values_make_no_batch(storage):
    options = yogadl.RecordOptions(allow_pickle=True)
    ref = storage.submit([{"size": 1, "any": {1, 2}}], "pickled", "1", records=options)
    with pytest.raises(ConfigurationError, match=r"'any' is .*can't be stacked"):
        ref.grouped("size", records=1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"by": "nothing"}, "or one of the fields"),
        ({"by": 3}, "or one of the fields"),
        ({"by": ["size"]}, "or one of the fields"),
        ({"by": "image"}, "one number, date, str or bytes"),
        ({"by": "meta"}, "grouped by an integer, a bool"),
        ({"records": 0}, "records"),
        ({"records": {2: 0}}, r"records\[2\]"),
        ({"records": "many"}, "records"),
        ({"fields": ["size"]}, "leave fields out"),
        ({"by": size_of, "fields": ["nothing"]}, "nothing"),
        ({"ranks": 0}, "ranks"),
        ({"workers": -1}, "workers"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(ref, options, text):
    with pytest.raises(ConfigurationError, match=text):
        ref.grouped(**{"by": "size", "records": 4, **options})


def test_a_float_groups_nothing():
    with pytest.raises(ConfigurationError, match="float64: records are grouped by an integer"):
        numbered([0.5]).grouped("value", records=1)


def _none(_):
    return None


def _list_inside(record):
    return (1, [int(record["size"])])


def _failing(record):
    if record["label"] == 30:
        raise ValueError("broken")
    return 1


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("function", "text"),
    [
        (_none, r"grouped\(_none\) must return an integer.* record 0 it returned None"),
        (_list_inside, r"record 0 it returned \(1, \["),
        (_failing, r"grouped\(_failing\) failed at record 30: .*broken"),
    ],
)
def test_a_function_that_tells_no_value_is_named_with_the_record(ref, function, text, workers):
    with pytest.raises(StageError, match=text):
        ref.grouped(function, records=4, workers=workers)


@pytest.mark.parametrize("more", [0, 1])
def test_there_are_at_most_so_many_values(more):
    ref = yogadl.from_source({"value": np.arange(MOST_GROUPS + more)[::-1].copy()})
    if more:
        with pytest.raises(UnsupportedDataError, match="more than 65536 values"):
            ref.grouped("value", records=2)
    else:
        made = ref.grouped("value", records=2)
        assert len(made) == MOST_GROUPS
        assert made.at(0)[0]["value"].tolist() == [MOST_GROUPS - 1]  # values are in the order of records


def test_a_reference_says_what_it_is(ref):
    made = ref.grouped("size", records=4)
    assert "batches of records of one value, 47 records, 4 values" in repr(made)
    assert made.padding == 0
    assert made.fields("label").spec.keys() == ["label"]
    assert made.spec.keys() == list(PICTURES[0])
    mixed = yogadl.mix({"a": (made, 1), "b": (made, 1)})
    assert set(labels(mixed.stream(shuffle=True))) == set(range(COUNT))
    two_epochs = made.fields("label").stream(shuffle=True).batch(7, epochs=2, across_epochs=True)
    found = Counter(int(x) for batch in two_epochs for one in batch["label"] for x in one)
    assert found == Counter([*range(COUNT)] * 2)
