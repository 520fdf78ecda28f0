"""References made of references, through stages: any chain of stops and resumes reads each record once.

Every operation meets every other here. 100 chains; 2,000 with ``--hypothesis-profile=thorough``.
"""

import itertools
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import yogadl

SEED = 5


def passed(record):
    return {"id": record["id"], "x": record["x"] + 0}


def is_kept(record):
    return record["id"] % 3 != 1


def noisy(record, rng):
    return {"id": record["id"], "noise": rng.random()}


def base(records, first=0):
    ids = np.arange(first, first + records)
    return yogadl.from_source({"id": ids, "x": ids * 0.5}, fingerprint=f"ids-{first}-{records}")


def sliced(ref, ids, dice):
    start, step = dice(0, 5), dice(1, 3)
    return ref[start::step], ids[start::step]


def selected(ref, ids, dice):
    chosen = [dice(0, len(ids) - 1) for _ in range(dice(0, len(ids)))] if ids else []
    return ref.select(chosen), [ids[number] for number in chosen]


def mapped(ref, ids, dice):
    return ref.map(passed, spec=None if ids else ref.spec), ids


def filtered(ref, ids, dice):
    return ref.filter(is_kept), [number for number in ids if number % 3 != 1]


def joined(ref, ids, dice):
    more = dice(0, 9)
    other = ref[:more], base(4, 1000), ref
    return yogadl.concat([*other]), [*ids[:more], *range(1000, 1004), *ids]


def divided(ref, ids, dice):
    shares = ref.split(0.6, seed=dice(0, 9))
    found = [[int(record["id"]) for record in share] for share in shares]
    assert sorted(itertools.chain(*found)) == sorted(ids)
    number = dice(0, 1)
    return shares[number], found[number]


@st.composite
def references(draw):
    """Draw a reference and the ids of its records."""

    def dice(low, high):
        return draw(st.integers(low, high))

    count = dice(1, 30)
    ref, ids = base(count), list(range(count))
    for operation in draw(
        st.lists(st.sampled_from([sliced, selected, mapped, filtered, joined, divided]), max_size=4)
    ):
        ref, ids = operation(ref, ids, dice)
    return ref, ids


legs = st.lists(
    st.tuples(
        st.integers(1, 4),  # shards
        st.integers(1, 8),  # batch size
        st.integers(0, 4),  # batches until the stop
        st.integers(0, 3),  # threads that read ahead
        st.booleans(),  # by a cursor given to the stream, or loaded
    ),
    max_size=5,
)


def loaders(ref, leg, ranges, cursor):
    """Return an iterator for each shard, all of them started at the cursor."""
    ranks, size, _, threads, loads = leg
    found = []
    for rank in range(ranks):
        options = {"shard_rank": rank, "num_shards": ranks, "cursor": None if loads else cursor}
        stream = ref.stream(shuffle=True, shuffle_seed=SEED, **options).skip_ranges(ranges)
        loader = stream.random_map(noisy, spec=SPEC).batch(size)
        found.append(iter(loader.prefetch(2, threads=threads) if threads else loader))
        if loads and cursor is not None:
            found[-1].load_state_dict(cursor)
    return found


SPEC = yogadl.from_source({"id": np.arange(1), "noise": np.zeros(1)}).spec


def pairs(batch):
    return [] if batch is None else list(zip(batch["id"].tolist(), batch["noise"].tolist(), strict=True))


def taken(iterators, batches):
    """Take so many batches of each shard in step; return their records row by row."""
    found = []
    for _ in range(batches):
        columns = [pairs(next(iterator, None)) for iterator in iterators]
        found += [pair for row in itertools.zip_longest(*columns) for pair in row if pair is not None]
    return found


def read_in_legs(ref, ranges, chain):
    """Read the first epoch with stops, each time on other shards; return what came, in order."""
    seen, cursor = [], None
    for leg in chain:
        iterators = loaders(ref, leg, ranges, cursor)
        seen += taken(iterators, leg[2])
        cursor = json.loads(json.dumps(iterators[leg[2] % leg[0]].state_dict()))
        for iterator in iterators:
            iterator.close()
        if cursor["epoch"]:
            return seen
    return seen + taken(loaders(ref, (1, 7, 0, False, False), ranges, cursor), len(ref) + 1)


def ranges_within(count, spans):
    """Return ranges of positions that leave something."""
    ranges = [(start, min(start + length, count)) for start, length in spans if start < count]
    left = set(range(count)).difference(*(range(*pair) for pair in ranges))
    return (ranges, sorted(left)) if left else ([], list(range(count)))


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=2)


@given(references(), spans, legs)
def test_any_chain_over_any_view_reads_each_record_once(made, given_spans, chain):
    ref, ids = made
    ranges, left = ranges_within(len(ids), given_spans)
    order = ref.stream(shuffle=True, shuffle_seed=SEED).indices(0)
    whole = taken(loaders(ref, (1, 9, 0, False, False), ranges, None), len(ids) + 1)
    assert [number for number, _ in whole] == [ids[order[position]] for position in left]
    assert read_in_legs(ref, ranges, chain) == whole


@given(st.lists(references(), min_size=1, max_size=3), st.sampled_from(["stop", "repeat"]), spans, legs)
def test_any_chain_over_a_mix_of_views_reads_each_record_once(parents, at_end, given_spans, chain):
    parents = [made for made in parents if made[1]] or [(base(3), [0, 1, 2])]
    mixed = yogadl.mix({str(n): (ref, n + 1) for n, (ref, _) in enumerate(parents)}, seed=3, at_end=at_end)
    ids = [number for _, some in parents for number in some]
    ranges, left = ranges_within(len(mixed), given_spans)
    order = mixed.stream(shuffle=True, shuffle_seed=SEED).indices(0)
    if at_end == "stop":
        assert len(set(order.tolist())) == len(order)
    else:
        assert set(order.tolist()) == set(range(len(ids)))
    whole = taken(loaders(mixed, (1, 9, 0, False, False), ranges, None), len(mixed) + 1)
    assert [number for number, _ in whole] == [ids[order[position]] for position in left]
    assert read_in_legs(mixed, ranges, chain) == whole
