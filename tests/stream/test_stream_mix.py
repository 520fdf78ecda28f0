"""Several datasets mixed by weight: `yogadl.mix`."""

import json
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import RUN, Mixture, apportion, make_order

import yogadl
from yogadl import Blocks
from yogadl.errors import ConfigurationError, CursorError, StageError

GOLDEN = [
    # lengths, weights, at_end, seed, shuffle, shuffle_seed; positions; epoch 1's first indices, and the last
    (((70, 30), (7, 3), "stop", 0, True, 0), 100, [97, 75, 95, 27, 53, 70]),
    (((70, 30), (1, 1), "repeat", -1, True, 1180591620717411303424), 139, [74, 96, 36, 79, 57, 82]),
    (((5000, 6000, 70), (50, 49, 1), "stop", 2**64, False, 0), 7050, [0, 1, 5000, 2, 5001, 8454]),
    (((40000, 50000), (2, 3), "repeat", 7, True, 1), 99999, [74430, 71741, 54889, 39363, 35669, 78749]),
]


def ref_of(first, count):
    return yogadl.from_source({"id": np.arange(first, first + count)}, fingerprint=f"from {first}")


def mixed(lengths=(700, 300, 500), weights=(0.5, 0.3, 0.2), **options):
    firsts = np.cumsum([0, *lengths[:-1]]).tolist()
    parents = [ref_of(first, count) for first, count in zip(firsts, lengths, strict=True)]
    named = {f"p{n}": pair for n, pair in enumerate(zip(parents, weights, strict=True))}
    return yogadl.mix(named, **options)


def order_of(lengths, weights, at_end="stop", seed=0, shuffle=True, shuffle_seed=0):
    mixture = Mixture(tuple(lengths), tuple(weights), at_end, seed, shuffle)
    return make_order(0, mixture, shuffle_seed)


def all_of(order, epoch=0):
    return order.indices(np.arange(order.records), epoch)


def parents_of(indices, lengths):
    return np.searchsorted(np.cumsum(lengths), indices, side="right")


# The order


def test_the_mix_of_version_1_is_frozen():
    for row, records, indices in GOLDEN:
        order = order_of(*row)
        assert order.records == records
        assert all_of(order, 1)[[*range(5), -1]].tolist() == indices


@pytest.mark.parametrize("at_end", ["stop", "repeat"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("lengths", "weights"),
    [((70, 30, 50), (5, 3, 2)), ((1, 1), (1, 1)), ((3000, 2500), (2, 1)), ((9,), (1,))],
)
def test_the_documented_program_is_the_library_s(stranger, lengths, weights, at_end, shuffle):
    order = order_of(lengths, weights, at_end, -3, shuffle, 9)
    assert order.records == stranger["mix_length"](weights, lengths, at_end)
    for position in {0, 1, order.records // 2, RUN - 1, RUN, RUN + 1, order.records - 1} & set(
        range(order.records)
    ):
        wanted = stranger["mix_index"](position, weights, lengths, at_end, -3, 9 if shuffle else None, 2)
        assert order.indices(np.array([position]), 2).tolist() == [wanted]


weights_lists = st.lists(st.integers(1, 50), min_size=1, max_size=5)


@given(
    weights=weights_lists,
    data=st.data(),
    at_end=st.sampled_from(["stop", "repeat"]),
    seed=st.integers(-(2**65), 2**65),
)
@settings(deadline=None, max_examples=120)
def test_every_run_has_exact_counts_and_each_parent_its_own_order(weights, data, at_end, seed):
    limit = 9000 if at_end == "stop" else 400
    lengths = [data.draw(st.integers(1, limit)) for _ in weights]
    order = order_of(lengths, weights, at_end, seed, True, 5)
    indices, whole = all_of(order, 3), sum(weights)
    parents = parents_of(indices, lengths)
    for end in {*range(RUN, order.records, RUN), order.records}:
        counts = np.bincount(parents[:end], minlength=len(weights)).tolist()
        assert counts == apportion(end, weights)
        for count, weight in zip(counts, weights, strict=True):
            assert abs(count - Fraction(end * weight, whole)) < 1
    for number, length in enumerate(lengths):
        its = indices[parents == number] - sum(lengths[:number])
        own = make_order(length, True, 5).indices(np.arange(length), 3)
        assert its[:length].tolist() == own[: len(its)].tolist()
        if at_end == "stop":
            assert len(its) <= length
        else:
            assert len(its) >= length
            for first in range(0, len(its), length):
                again = its[first : first + length].tolist()
                assert len(set(again)) == len(again)
    # One position more would be too many, or one less too few: unless that is no place for an end.
    near = order.records + (1 if at_end == "stop" else -1)
    counts, before = apportion(near, weights), apportion(near - near % RUN, weights)
    if all(count >= least for count, least in zip(counts, before, strict=True)):
        pairs = zip(counts, lengths, strict=True)
        assert any(count > length if at_end == "stop" else count < length for count, length in pairs)


def test_a_parent_of_1_in_4096_comes_once_a_run():
    lengths, weights = (40_950, 10), (4095, 1)
    for at_end in ("stop", "repeat"):
        order = order_of(lengths, weights, at_end)
        assert order.records == 10 * RUN
        rare = np.flatnonzero(parents_of(all_of(order), lengths) == 1)
        assert (rare // RUN).tolist() == list(range(10))
        assert len(set((rare % RUN).tolist())) > 5


@pytest.mark.parametrize("size", [RUN - 1, RUN, RUN + 1, 2 * RUN, 2 * RUN + 1, 5 * RUN])
def test_epochs_of_sizes_around_a_run(size):
    order = order_of((size - size // 3, size // 3), (size - size // 3, size // 3))
    assert order.records == size
    assert sorted(all_of(order).tolist()) == list(range(size))


def test_epochs_runs_and_seeds_differ_and_positions_may_be_asked_for_in_any_way():
    order = order_of((9000, 9000), (1, 1), shuffle=False)
    first = all_of(order)
    parents = parents_of(first, (9000, 9000))
    layouts = [parents[:RUN], parents[RUN : 2 * RUN], parents_of(all_of(order, 1), (9000, 9000))[:RUN]]
    other = order_of((9000, 9000), (1, 1), seed=1, shuffle=False)
    layouts.append(parents_of(all_of(other), (9000, 9000))[:RUN])
    assert len({layout.tobytes() for layout in layouts}) == 4
    asked = np.random.default_rng(0).integers(0, order.records, (7, 1000))
    assert (order.indices(asked, 0) == first[asked]).all()
    assert order.indices(np.arange(order.records)[::-3], 0).tolist() == first[::-3].tolist()
    assert order.indices(np.zeros(0, np.int64), 0).shape == (0,)
    for wrong in (-1, order.records, 2**62):
        with pytest.raises(IndexError, match=f"no position {wrong} "):
            order.indices(np.array([wrong]), 0)


def test_a_mix_of_huge_parents_costs_what_is_asked_for():
    order = order_of((10**15, 10**14), (10**9 + 7, 10**8 + 9), shuffle=True)
    assert 10**15 < order.records < 1.1 * 10**15 + 10**8
    found = order.indices(np.array([0, order.records // 2, order.records - 1]), 5)
    assert ((found >= 0) & (found < 1.1 * 10**15)).all()


def test_parents_begin_again_in_another_order():
    order = order_of((5, 100), (1, 1), "repeat", shuffle_seed=4)
    assert order.records == 200
    indices = all_of(order)
    its = indices[indices < 5]
    times = {tuple(its[first : first + 5].tolist()) for first in range(0, 100, 5)}
    assert len(times) > 10
    in_order = all_of(order_of((5, 100), (1, 1), "repeat", shuffle=False))
    assert in_order[in_order < 5][:12].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_parents_are_shuffled_by_blocks():
    order = order_of((100, 60), (5, 3), shuffle=Blocks(4, 2, 2), shuffle_seed=3)
    indices = all_of(order, 2)
    own = make_order(100, Blocks(4, 2, 2), 3).indices(np.arange(100), 2)
    assert indices[indices < 100].tolist() == own.tolist()


# The reference


def test_it_is_a_data_ref_of_streams():
    ref = mixed(seed=3)
    assert isinstance(ref, yogadl.DataRef)
    assert not isinstance(ref, yogadl.RecordsRef)
    assert len(ref) == 1001  # the 300 are 300.3
    assert repr(ref) == f"<MixedRef of 1001 records, fingerprint {ref.fingerprint}>"
    assert [int(record["id"]) for record in ref] == ref.stream().indices().tolist()
    assert ref.spec == ref_of(0, 1).spec
    for shuffle in (False, True, yogadl.Blocks(8, 2, 2)):
        stream = ref.stream(shuffle=shuffle)
        assert len(stream) == 1001
        assert [int(n) for batch in stream.batch(64) for n in batch["id"]] == stream.indices().tolist()
    assert stream.plan().records == 1001
    with pytest.raises(TypeError):
        ref[0]


def test_weights_are_proportions_and_floats_what_they_are_printed_as():
    def weights(*given):
        return mixed((9,) * len(given), given).stream().state_dict()["order"]["weights"]

    assert weights(0.7, 0.3) == weights(7, 3) == weights(70, np.int64(30)) == [7, 3]
    assert weights(np.float64(0.7), Fraction(3, 10)) == [7, 3]
    assert weights(1e-300, 3e-300) == [1, 3]
    assert weights(1 / 3, 2 / 3) == [1, 2]
    assert weights(0.1, 0.2, 0.3) == [1, 2, 3]
    assert weights(5) == [1]


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ((0, 1), "weight of 'p0' must be"),
        ((1, -1), "weight of 'p1' must be"),
        ((True, 1), "weight of 'p0' must be"),
        ((float("nan"), 1), "weight of 'p0' must be"),
        ((float("inf"), 1), "weight of 'p0' must be"),
        (("1", 1), "weight of 'p0' must be"),
        ((1, 4096), "weight of 'p0' is less than 1 in 4096"),
        ((Fraction(1, 2**300 + 1), Fraction(1, 2**300 + 3)), "round them"),
    ],
)
def test_what_is_no_weight_is_refused(weights, said):
    with pytest.raises(ConfigurationError, match=said):
        mixed((9, 9), weights)
    assert len(mixed((9, 9), (1, 4095)))


@pytest.mark.parametrize(
    "parents",
    [
        *[{}, None, [], [("a", 1)], {"a": ref_of(0, 3)}, {"a": (ref_of(0, 3),)}, {"a": ([1, 2], 1)}],
        {"a": (ref_of(0, 3)[:0], 1)},
        {"a": (ref_of(0, 3), 1), "b": (yogadl.from_source([1]), 1)},
    ],
    ids=repr,
)
def test_what_can_t_be_mixed_is_refused(parents):
    with pytest.raises(ConfigurationError):
        yogadl.mix(parents)


def test_other_arguments_are_checked():
    with pytest.raises(ConfigurationError, match="at_end must be"):
        mixed(at_end="cycle")
    with pytest.raises(ConfigurationError, match="seed must be"):
        mixed(seed=1.5)
    with pytest.raises(ConfigurationError, match="did you mean seed="):
        mixed(shuffle_seed=1)
    with pytest.raises(ConfigurationError, match="shuffle must be True, False"):
        mixed().stream(shuffle=5)
    for again in (lambda ref: yogadl.concat([ref]), lambda ref: yogadl.mix({"a": (ref, 1)})):
        with pytest.raises(ConfigurationError, match="a mix can't be mixed or joined again"):
            again(mixed())


def test_records_can_be_mapped_before_and_after():
    halves = mixed().map(lambda record: {"half": record["id"] // 2, "id": record["id"]}).fields("half")
    stream = halves.stream(shuffle=True).map(lambda record: record["half"] * 2)
    assert np.concatenate(list(stream.batch(50))).tolist() == (stream.indices() // 2 * 2).tolist()
    assert halves.fingerprint == mixed().fingerprint

    def fails(record):
        if record["id"] == 705:
            raise LookupError("no label")
        return record

    broken = yogadl.mix({"a": (ref_of(0, 700), 1), "b": (ref_of(700, 300).map(fails), 1)})
    stream = broken.stream()
    assert stream.run.calls_functions
    with pytest.raises(StageError, match="record 5: LookupError"):
        list(stream.batch(16))


# Stopping and going on


def test_an_epoch_s_end_leads_into_the_next():
    ref = mixed(at_end="repeat")
    loader = ref.stream(shuffle=True).batch(len(ref) - 1, epochs=2)
    found = [n for batch in loader for n in batch["id"].tolist()]
    stream = ref.stream(shuffle=True)
    assert found == [*stream.indices(0).tolist(), *stream.indices(1).tolist()]
    across = ref.stream(shuffle=True).batch(64, epochs=2, across_epochs=True)
    assert [n for batch in across for n in batch["id"].tolist()] == found
    at_end = ref.stream(shuffle=True).cursor(delivered=len(ref))
    assert list(ref.stream(shuffle=True, cursor=at_end).batch(9)) == []


def test_a_cursor_says_what_is_mixed_and_how():
    ref = mixed(seed=-1)
    assert ref.stream(shuffle=True, shuffle_seed=6).state_dict() == {
        "yogadl": 1,
        "epoch": 0,
        "position": 0,
        "records": 1001,
        "fingerprint": ref.fingerprint,
        "order": {
            "name": "mix",
            "version": 1,
            "weights": [5, 3, 2],
            "lengths": [700, 300, 500],
            "at_end": "stop",
            "seed": -1,
            "parents": {"name": "global", "version": 1},
        },
        "seed": 6,
        "skip_shuffle_at_epoch_end": False,
    }
    unshuffled = ref.stream(shuffle_seed=6).state_dict()
    assert (unshuffled["order"]["parents"], unshuffled["seed"]) == ({"name": "source", "version": 1}, None)
    assert yogadl.concat([ref_of(0, 700), ref_of(700, 300), ref_of(1000, 500)]).fingerprint == ref.fingerprint


@pytest.mark.parametrize(
    "other",
    [
        lambda: mixed(seed=2).stream(shuffle=True),
        lambda: mixed(seed=1, at_end="repeat").stream(shuffle=True),
        lambda: mixed(seed=1).stream(shuffle=False),
        lambda: mixed(seed=1).stream(shuffle=True, shuffle_seed=1),
        lambda: mixed(seed=1).stream(shuffle=yogadl.Blocks(2, 2)),
        lambda: mixed((700, 300, 501), seed=1).stream(shuffle=True),
        lambda: yogadl.concat([ref_of(0, 700), ref_of(700, 300)]).stream(shuffle=True),
    ],
)
def test_a_cursor_of_another_mix_is_refused(other):
    cursor = mixed(seed=1).stream(shuffle=True).state_dict()
    with pytest.raises(CursorError, match="the cursor is of"):
        iter(other().batch(4)).load_state_dict(cursor)
    with pytest.raises(CursorError, match="the cursor is of"):
        mixed(seed=1).stream(shuffle=True, cursor=other().state_dict())


def test_other_parents_of_the_same_lengths_are_accepted_by_word_alone():
    ref = yogadl.mix({"a": (ref_of(5, 700), 7), "b": (ref_of(9, 300), 3)})
    cursor = mixed((700, 300), (7, 3)).stream().cursor(delivered=9)
    with pytest.raises(CursorError, match="fingerprint"):
        ref.stream(cursor=cursor)
    assert ref.stream(cursor=cursor, rebind=True).start == (0, 9)


def test_a_cache_is_built_of_a_mix_in_its_order(tmp_path):
    ref = mixed()
    storage = yogadl.open_storage(tmp_path)
    storage.submit(ref, "mixed", "1")
    built = storage.fetch("mixed", "1")
    assert built.gather(range(len(built)))["id"].tolist() == ref.stream().indices().tolist()


# Other weights


def open_mix(weights, cursor=None, at_end="stop", lengths=(9000, 6000, 3000), **options):
    ref = mixed(lengths, weights, at_end=at_end, seed=2)
    return ref.stream(shuffle=True, shuffle_seed=5, cursor=cursor, **options)


def read(stream, count):
    """Return the next indices of the stream's epoch, and the cursor after them."""
    epoch = stream.start.epoch
    indices = stream.indices(epoch, 0, count)
    return indices.tolist(), json.loads(json.dumps(stream.cursor(len(indices), epoch)))


stops = st.lists(
    st.tuples(
        st.tuples(*[st.integers(1, 9)] * 3),
        st.sampled_from([0, 1, 700, RUN - 1, RUN, RUN + 1, 2 * RUN, 10**6]) | st.integers(0, 9000),
    ),
    min_size=1,
    max_size=5,
)


@given(stops=stops, at_end=st.sampled_from(["stop", "repeat"]), epoch=st.integers(0, 2))
@settings(deadline=None, max_examples=80)
def test_weights_that_change_repeat_nothing_and_a_second_resume_is_exact(stops, at_end, epoch):
    lengths = (9000, 6000, 3000)
    cursor = open_mix(stops[0][0], at_end=at_end).cursor(0, epoch)
    came, is_over = [], False
    for weights, count in [*stops, ((1, 1, 1), 10**6)]:
        stream = open_mix(weights, cursor, at_end)
        assert stream.start.epoch == epoch
        own, after = read(stream, count)
        assert not (is_over and own)
        is_over = after["position"] == after["records"] == len(mixed(lengths, weights, at_end=at_end))
        # Exact counts in each run since the weights changed; what was said at another stop goes on so.
        resumed = open_mix(weights, cursor, at_end).indices(epoch)
        assert resumed[: len(own)].tolist() == own
        assert open_mix(weights, after, at_end).indices(epoch).tolist() == resumed[len(own) :].tolist()
        if "before" not in after["order"] or cursor["order"] != after["order"]:
            parents = parents_of(np.array(own, np.int64), lengths)
            for end in range(RUN, len(own) + 1, RUN):
                assert np.bincount(parents[:end], minlength=3).tolist() == apportion(end, weights) or (
                    cursor["order"]["weights"] == after["order"]["weights"]
                )
        came += own
        cursor = after
    assert came
    parents = parents_of(np.array(came, np.int64), lengths)
    for number, length in enumerate(lengths):
        its = np.array(came, np.int64)[parents == number] - sum(lengths[:number])
        order = make_order(length, True, 5).indices(np.arange(length), epoch)
        assert its[:length].tolist() == order[: len(its)].tolist()
        assert len(its) <= length if at_end == "stop" else len(its) >= length
    # The next epoch is that of the last weights alone.
    last = open_mix((1, 1, 1), cursor, at_end)
    wanted = open_mix((1, 1, 1), at_end=at_end).indices(epoch + 1).tolist()
    assert last.indices(epoch + 1).tolist() == wanted
    assert "before" not in last.cursor(0, epoch + 1)["order"]


def test_changed_weights_of_version_1_are_frozen():
    _, cursor = read(open_mix((5, 3, 1)), 5000)
    _, cursor = read(open_mix((1, 1, 1), cursor), 100)
    stream = open_mix((2, 1, 7), cursor)
    assert stream.start == (0, 837)
    assert stream.indices(0)[[*range(6), -1]].tolist() == [15415, 17753, 5538, 17758, 15887, 15156, 13976]


def test_a_chain_of_batches_shards_and_weights_reads_each_record_once():
    seen, cursor = [], None
    plan = [((5, 3, 2), 3), ((1, 1, 1), 2), ((1, 1, 1), 5), ((9, 1, 1), 1), ((2, 2, 9), 4)]
    for number, (weights, ranks) in enumerate([*plan, ((3, 2, 1), 1)]):
        ends = set()
        for rank in range(ranks):
            loader = open_mix(weights, cursor, "stop", (900, 700, 500), shard_rank=rank, num_shards=ranks)
            batches = iter(loader.batch(17))
            for _ in range(3 if number < len(plan) else 10**6):
                batch = next(batches, None)
                if batch is None:
                    break
                seen += batch["id"].tolist()
            ends.add(json.dumps(batches.state_dict()))
        [end] = ends
        cursor = json.loads(end)
    assert len(seen) == len(set(seen))
    assert (np.bincount(parents_of(seen, (900, 700, 500))) == (900, 700, 500)).any()  # which ends it


def test_padding_in_an_epoch_of_changed_weights_repeats_what_came_since():
    _, cursor = read(open_mix((1, 1, 1)), 500)
    for ranks in (2, 7, 300):
        whole = open_mix((5, 3, 1), cursor).indices(0)
        options = {"num_shards": ranks, "pad_shard_remainder": True}
        padded = [open_mix((5, 3, 1), cursor, shard_rank=rank, **options).indices(0) for rank in range(ranks)]
        rows = np.stack(padded, axis=1).reshape(-1)
        assert rows.tolist() == np.resize(whole, -(-len(whole) // ranks) * ranks).tolist()


def test_an_epoch_that_is_over_stays_so_under_other_weights():
    stream = open_mix((5, 3, 1))
    over = stream.cursor(len(stream))
    changed = open_mix((1, 1, 1), over)
    assert changed.start == (0, len(changed))
    assert list(changed.batch(100)) == []
    assert changed.state_dict()["order"] == open_mix((1, 1, 1)).state_dict()["order"]
    left = stream.cursor(0, epoch=1)
    assert open_mix((1, 1, 1), left).state_dict() == open_mix((1, 1, 1)).cursor(0, epoch=1)


def test_weights_change_where_a_stream_is_opened_and_nowhere_else():
    _, cursor = read(open_mix((5, 3, 1)), 500)
    batches = iter(open_mix((1, 1, 1)).batch(8))
    with pytest.raises(CursorError, match="with this cursor"):
        batches.load_state_dict(cursor)
    changed = open_mix((1, 1, 1), cursor)
    loader = changed.batch(8)
    _, later = read(changed, 100)
    loader.load_state_dict(later)
    assert loader.state_dict() == later
    _, clean = read(open_mix((1, 1, 1)), 9000)
    with pytest.raises(CursorError, match="another order"):
        loader.load_state_dict(clean)  # of the same weights and epoch, but from its start on
    loader.load_state_dict(open_mix((1, 1, 1)).cursor(5, epoch=1))
    with pytest.raises(IndexError, match="begins at position"):
        next(changed.at(0, 0))
    skipping = mixed((9000, 6000, 3000), (5, 3, 1), seed=2).stream(skip_shuffle_at_epoch_end=True)
    with pytest.raises(CursorError, match="can't change"):
        mixed((9000, 6000, 3000), (1, 1, 1), seed=2).stream(
            skip_shuffle_at_epoch_end=True, cursor=skipping.cursor(7)
        )


def crafted():
    """Return cursors that someone may have tampered with."""
    _, cursor = read(open_mix((5, 3, 1)), 5000)
    _, cursor = read(open_mix((1, 1, 1), cursor), 100)
    order = cursor["order"]
    [before] = order["before"]
    weights = [None, [], [1], [1, 1, 0], [1, 1, -1], [1, 1, 1.0], [1, 1, True], [1, 1, 5000], [2**256] * 3]
    weights += ["111", [1, 1, "1"], {"a": 1}, [[1], 1, 1]]
    befores = [None, {}, [], [None], [{}], [before] * 2, [before] * 101, 5, "x"]
    befores += [[{**before, "to": to}] for to in (16200, 2**70, -1, 5000.0, 0, None, True)]
    befores += [[{**before, "weights": held}] for held in ([5, 3, 2], [5, 3], None)]
    befores += [[{**before, "from": 1}], [{**before, "more": 1}]]
    changes = [*({"weights": given} for given in weights), *({"before": given} for given in befores)]
    changes += [{"lengths": [1, 2, 3]}, {"at_end": "repeat"}, {"seed": 5}, {"version": 2}, {"name": "global"}]
    found = [{**cursor, "order": {**order, **change}} for change in [*changes, {"x": 1}]]
    others = [{"position": 0}, {"position": 2**62}, {"records": 5}, {"order": None}, {"order": []}]
    others += [{"epoch": "0"}, {"epoch": None}, {"position": "1"}]
    return found + [{**cursor, **other} for other in others]


@pytest.mark.parametrize("cursor", crafted())
@pytest.mark.parametrize("weights", [(1, 1, 1), (5, 3, 1), (7, 1, 1)])
def test_a_cursor_that_was_tampered_with_is_refused(cursor, weights):
    with pytest.raises(CursorError):
        open_mix(weights, cursor)


def test_weights_can_change_a_hundred_times_within_an_epoch():
    cursor = None
    for number in range(101):
        _, cursor = read(open_mix((1 + number % 2, 1, 1), cursor), 3)
    assert len(cursor["order"]["before"]) == 100
    with pytest.raises(ConfigurationError, match="can change at most 100 times"):
        open_mix((5, 1, 1), cursor)


def test_positions_are_left_out_of_a_mix_and_of_one_with_changed_weights():
    stream = open_mix((5, 3, 1)).skip_ranges([(0, 100), (5000, 6000)])
    whole = open_mix((5, 3, 1)).indices(1).tolist()
    assert stream.indices(1).tolist() == whole[100:5000] + whole[6000:]
    _, cursor = read(open_mix((5, 3, 1)), 4000)
    changed = open_mix((1, 1, 1), cursor)
    left, first = changed.indices(0).tolist(), changed.start.position
    skipping = changed.skip_ranges([(first + 10, first + 30)])
    assert skipping.indices(0).tolist() == left[:10] + left[30:]
    saved = json.loads(json.dumps(skipping.cursor(15, 0)))
    assert open_mix((1, 1, 1), saved).indices(0).tolist() == left[35:]
    with pytest.raises(CursorError, match="weights can't change while positions are left out"):
        open_mix((5, 3, 1), saved)
    ranks = [
        open_mix((1, 1, 1), cursor, shard_rank=rank, num_shards=7, pad_shard_remainder=True)
        .skip_ranges([(first + 10, first + 30)])
        .indices(0)
        for rank in range(7)
    ]
    rows = np.stack(ranks, axis=1).reshape(-1)
    assert rows.tolist() == np.resize(left[:10] + left[30:], len(rows)).tolist()


@pytest.mark.parametrize("at_end", ["stop", "repeat"])
@pytest.mark.parametrize("at", [0, 99, 100, 4500])
@pytest.mark.parametrize("ranges", [[(100, 269)], [(3, 7), (5000, 5169)], [(4096, 8192)]], ids=str)
def test_left_out_records_do_not_come_again_where_weights_change_as_the_error_says(ranges, at, at_end):
    plain = open_mix((5, 3, 1), None, at_end)
    every, last = plain.indices(0), ranges[-1][1]
    out = np.concatenate([np.arange(max(start, at), max(stop, at)) for start, stop in ranges])
    stream = open_mix((5, 3, 1), plain.cursor(at), at_end).skip_ranges(ranges)
    records, seen, cursor = iter(stream), [], stream.state_dict()
    while cursor["position"] < last:
        with pytest.raises(CursorError, match=f"read until the 'position' of its cursor is {last} or more"):
            open_mix((1, 1, 1), cursor, at_end)
        seen += [int(next(records)["id"]) for _ in range(min(97, len(stream) - len(seen)))]
        cursor = records.state_dict()
    with pytest.raises(CursorError, match="weights first, and take the cursor of"):
        open_mix((1, 1, 1), cursor, at_end)
    cursor = open_mix((5, 3, 1), cursor, at_end).skip_ranges([]).cursor(0)
    rest = open_mix((1, 1, 1), cursor, at_end).indices(0).tolist()
    assert sorted([*seen, *every[out]]) == sorted(every[at : max(at, cursor["position"])])
    if at_end == "stop":  # else a short parent comes again, whether it was left out or not
        assert not {*every[out].tolist()} & {*rest}
        assert len({*seen, *rest}) == len(seen) + len(rest)


@pytest.mark.parametrize("name", ["gather", "select", "filter", "split", "chunks"])
def test_what_a_mix_has_not_is_explained(name):
    mixed = yogadl.mix({"a": (yogadl.from_source([1, 2]), 1)})
    with pytest.raises(AttributeError, match=f"a mix has no {name}: .*yogadl.concat"):
        getattr(mixed, name)
    with pytest.raises(AttributeError, match="no attribute 'gathered'"):
        _ = mixed.gathered
    assert len(pickle.loads(pickle.dumps(mixed))) == 2
