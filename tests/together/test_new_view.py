"""A view that says what it needs of its parent, and makes it, has all that references have."""

import pickle

import numpy as np
import pytest
from algebra_bases import COUNT, RECORDS, SPEC, caches
from windows import STEPS, TOKENS, windows

import yogadl

EXPECTED = [
    {
        "id": np.arange(n, n + STEPS),
        "pair": np.stack([RECORDS[n + step]["pair"] for step in range(STEPS)]),
        "tokens": np.concatenate([RECORDS[n + step]["tokens"][:TOKENS] for step in range(STEPS)]),
    }
    for n in range(COUNT - STEPS + 1)
]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    found = caches(tmp_path_factory.mktemp("caches"))
    return found | {"list": yogadl.from_source(RECORDS, spec=SPEC)}


def same(found, numbers):
    """Whether records are the windows of these numbers."""
    return len(found) == len(numbers) and all(
        one.keys() == EXPECTED[n].keys() and all(np.array_equal(one[name], EXPECTED[n][name]) for name in one)
        for one, n in zip(found, numbers, strict=True)
    )


def names():
    return ["local", "ranged", "mirrored", "mirrored in part", "unmapped", "shared", "list"]


@pytest.mark.parametrize("base", names())
def test_it_is_read_in_every_way(bases, base):
    ref = windows(bases[base])
    assert same(list(ref), range(len(ref)))
    assert same([ref[n] for n in (4, 4, 0)], [4, 4, 0])
    assert ref.gather([5, 5, 2])["id"].tolist() == [[5, 6, 7], [5, 6, 7], [2, 3, 4]]
    stream = ref.stream(shuffle=True, shuffle_seed=3)
    order = stream.indices(0).tolist()
    assert same(list(stream), order)
    assert same(list(stream.prefetch(2, threads=2)), order)
    iterator = iter(ref.stream(shuffle=True, shuffle_seed=3))
    for _ in range(8):
        next(iterator)
    state = iterator.state_dict()
    options = {"shuffle": True, "shuffle_seed": 3, "cursor": state, "num_shards": 2}
    shards = [list(ref.stream(shard_rank=rank, **options)) for rank in (0, 1)]
    assert same(shards[0], order[8::2])
    assert same(shards[1], order[9::2])
    again = pickle.loads(pickle.dumps(ref))
    assert same(list(again.stream(shuffle=True, shuffle_seed=3, cursor=state)), order[8:])


def test_views_of_it_and_it_over_views(bases):
    ref = windows(bases["local"])
    assert same(list(ref[3:9:2]), [3, 5, 7])
    assert same(list(ref.filter(lambda record: record["id"][0] % 2 == 0)), range(0, len(ref), 2))
    assert ref.fields("tokens", "id")[4].keys() == {"tokens", "id"}
    assert np.array_equal(ref.fields("tokens")[4]["tokens"], EXPECTED[4]["tokens"])
    assert same(list(yogadl.concat([ref, ref[2:4]])), [*range(len(ref)), 2, 3])
    mapped = ref.map(lambda record: record["id"].sum())
    assert [int(number) for number in mapped] == [3 * n + 3 for n in range(len(ref))]


def test_its_cursor_holds_for_a_copy_and_workers_make_it(bases):
    ref, copy = windows(bases["local"]), windows(bases["shared"])
    iterator = iter(ref.stream(shuffle=True))
    next(iterator)
    order = ref.stream(shuffle=True).indices(0).tolist()
    assert same(list(copy.stream(shuffle=True, cursor=iterator.state_dict())), order[1:])
    batches = ref.stream(shuffle=True).batch(4).prefetch(2, workers=1)
    assert np.concatenate([batch["id"] for batch in batches]).tolist() == [[n, n + 1, n + 2] for n in order]


@pytest.mark.parametrize(("fields", "most"), [(("id", "pair"), 1), (("tokens", "pair", "id"), 1.5)])
def test_what_it_would_read_is_planned(tmp_path, fields, most):
    ranged = caches(tmp_path)["ranged"]
    stream = windows(ranged).fields(*fields).stream(shuffle=True)
    [planned] = [way for way in stream.plan().ways if way.name == "ranges"]
    list(stream)
    found = ranged.locality()
    assert 0 < planned.requests <= found.ranges <= most * planned.requests  # lengths are not known
    assert planned.bytes <= found.range_bytes <= most * planned.bytes
