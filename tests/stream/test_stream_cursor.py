"""Cursors: where one stands, what it must match, and how a bad one is refused."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_source import MemorySource, batch_ids, open_stream, record_ids, stream_of

from yogadl import Blocks
from yogadl.errors import ConfigurationError, CursorError

SHUFFLE = {"shuffle": True, "shuffle_seed": 7}


def place(state):
    return state["epoch"], state["position"]


def test_a_cursor_is_small_json():
    state = stream_of(10, **SHUFFLE, num_shards=2).state_dict()
    assert state == {
        "yogadl": 1,
        "epoch": 0,
        "position": 0,
        "records": 10,
        "fingerprint": "ffffffff",
        "order": {"name": "global", "version": 1},
        "seed": 7,
        "skip_shuffle_at_epoch_end": False,
    }
    assert json.loads(json.dumps(state)) == state


def test_the_seed_is_recorded_only_with_a_shuffle():
    state = stream_of(10, shuffle_seed=7, skip_shuffle_at_epoch_end=True).state_dict()
    assert state["seed"] is None
    assert state["skip_shuffle_at_epoch_end"] is False
    stream_of(10, cursor=state)


def test_a_cursor_counts_positions_over_all_shards():
    batches = iter(stream_of(20, num_shards=4, shard_rank=3).batch(2))
    places = [place(batches.state_dict())]
    for _ in batches:
        places.append(place(batches.state_dict()))
    places.append(place(batches.state_dict()))
    assert places == [(0, 0), (0, 8), (0, 16), (0, 20), (1, 0)]


def test_the_epochs_end_is_left_only_with_stop_iteration():
    records = iter(stream_of(2))
    next(records), next(records)
    assert place(records.state_dict()) == (0, 2)
    assert list(records) == []
    assert place(records.state_dict()) == (1, 0)


def test_the_next_epoch_begins_with_its_first_batch():
    batches = iter(stream_of(4).batch(2, epochs=2))
    places = [(next(batches), place(batches.state_dict()))[1] for _ in range(4)]
    assert places == [(0, 2), (0, 4), (1, 2), (1, 4)]


def test_across_epochs_the_cursor_is_where_the_next_row_is():
    batches = iter(stream_of(6, num_shards=2).batch(2, epochs=None, across_epochs=True))
    places = [(next(batches), place(batches.state_dict()))[1] for _ in range(4)]
    assert places == [(0, 4), (1, 2), (1, 6), (2, 4)]


def test_across_epochs_the_last_short_batch_ends_at_the_end():
    batches = iter(stream_of(6, num_shards=2).batch(4, epochs=3, across_epochs=True))
    places = [place(batches.state_dict()) for _ in batches]
    assert places == [(1, 2), (2, 4), (2, 6)]
    assert place(batches.state_dict()) == (3, 0)


def test_a_cursor_at_the_end_is_finished_not_left():
    end = stream_of(4).cursor(4)
    assert place(end) == (0, 4)
    assert record_ids(stream_of(4, cursor=end)) == []
    batches = iter(stream_of(4).batch(3))
    batches.load_state_dict(end)
    assert batch_ids(batches) == []
    assert place(batches.state_dict()) == (1, 0)
    batches = iter(stream_of(4).batch(3, epochs=2))
    batches.load_state_dict(end)
    assert batch_ids(batches) == [[0, 1, 2], [3]]


def test_a_cursor_is_counted_from_the_start_of_the_run():
    stream = stream_of(10, num_shards=2, start_offset=2)
    assert [place(stream.cursor(k)) for k in (0, 1, 3, 4, 8, 9)] == [
        (0, 4),
        (0, 6),
        (0, 10),
        (1, 2),
        (1, 10),
        (2, 2),
    ]


def test_a_cursor_is_counted_within_an_epoch():
    stream = stream_of(10, num_shards=2, start_offset=2)
    assert [place(stream.cursor(k, epoch=0)) for k in (0, 3)] == [(0, 4), (0, 10)]
    assert [place(stream.cursor(k, epoch=3)) for k in (0, 5)] == [(3, 0), (3, 10)]


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 70))
def test_a_start_offset_is_a_cursor(count, ranks, offset):
    options = {"num_shards": ranks, "shard_rank": ranks - 1, **SHUFFLE}
    stream = stream_of(count, **options)
    by_offset = stream_of(count, start_offset=offset, **options)
    by_cursor = stream_of(count, cursor=stream.cursor(offset), **options)
    assert by_offset.start == by_cursor.start
    assert record_ids(by_offset) == record_ids(by_cursor)


@pytest.mark.parametrize("state", [None, [], "cursor", 3, b"{}"])
def test_what_is_no_dict_is_refused(state):
    with pytest.raises(CursorError, match="a cursor is a dict"):
        iter(stream_of(10)).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"yogadl": 2}, "of version 2"),
        ({"yogadl": "1"}, "no yogadl cursor"),
        ({"yogadl": True}, "no yogadl cursor"),
        ({"epoch": -1}, "'epoch' is -1"),
        ({"epoch": 1.0}, "'epoch' is 1.0"),
        ({"epoch": True}, "'epoch' is True"),
        ({"epoch": 2**63}, "'epoch' is"),
        ({"position": -1}, "'position' is -1"),
        ({"position": "3"}, "'position' is '3'"),
        ({"position": 11}, "'position' is 11, more than"),
        ({"records": None}, "'records' is None"),
        ({"records": 11}, "number of records is 11, the stream has 10"),
        ({"fingerprint": 5}, "'fingerprint' is 5"),
        ({"fingerprint": "other"}, "fingerprint is 'other', the stream has 'ffffffff'"),
        ({"order": "global"}, "'order' is 'global'"),
        (
            {"order": {"name": "blocks"}},
            "another order, {'name': 'blocks'}, the stream has {'name': 'global'",
        ),
        ({"seed": False}, "'seed' is False"),
        ({"seed": 8}, "seed is 8, the stream has 7"),
        ({"seed": None}, "seed is None, the stream has 7"),
        ({"skip_shuffle_at_epoch_end": 0}, "'skip_shuffle_at_epoch_end' is 0"),
        ({"skip_shuffle_at_epoch_end": True}, "is True, the stream has False"),
        ({"shard": [0, 2]}, "has 'shard', which this yogadl does not know"),
        ({"needs": ["leads"]}, "has 'needs'"),
        ({3: 4}, "has '3'"),
    ],
)
def test_a_cursor_changed_by_hand_is_refused_by_name(change, message):
    stream = stream_of(10, **SHUFFLE)
    state = stream.cursor(3) | change
    with pytest.raises(CursorError, match=message):
        stream_of(10, **SHUFFLE, cursor=state)
    for reader in (iter(stream), stream, iter(stream.batch(2)), stream.batch(2)):
        with pytest.raises(CursorError, match=message):
            reader.load_state_dict(state)


@pytest.mark.parametrize("key", list(stream_of(10).state_dict()))
def test_a_cursor_without_a_key_is_refused(key):
    state = stream_of(10).state_dict()
    del state[key]
    with pytest.raises(CursorError, match=key):
        stream_of(10, cursor=state)


@given(st.dictionaries(st.text(), st.integers() | st.none() | st.text()) | st.integers() | st.none())
def test_any_other_json_is_refused(state):
    with pytest.raises(CursorError):
        iter(stream_of(10)).load_state_dict(state)


@given(st.data())
def test_any_change_is_refused_or_read(data):
    state = stream_of(10, **SHUFFLE).cursor(3)
    value = (
        st.none() | st.booleans() | st.integers(-1, 12) | st.floats() | st.text() | st.just({}) | st.just([])
    )
    state |= data.draw(st.dictionaries(st.sampled_from(list(state)), value))
    with contextlib.suppress(CursorError):
        assert stream_of(10, **SHUFFLE, cursor=state).start == place(state)


def test_a_refused_cursor_changes_nothing():
    records = iter(stream_of(5))
    next(records)
    with pytest.raises(CursorError):
        records.load_state_dict({})
    assert record_ids(records) == [1, 2, 3, 4]


def test_another_order_is_refused():
    blocks = {"shuffle": Blocks(records=2, window=1, lanes=2), "shuffle_seed": 7}
    with pytest.raises(CursorError, match="same shuffle"):
        stream_of(10, **blocks, cursor=stream_of(10, **SHUFFLE).cursor(3))
    assert stream_of(10, **blocks, cursor=stream_of(10, **blocks).cursor(3)).start == (0, 3)
    with pytest.raises(CursorError, match="another order"):
        stream_of(10, cursor=stream_of(10, **SHUFFLE).cursor(3))


def test_rebind_accepts_other_data_of_equal_length():
    state = stream_of(10, **SHUFFLE).cursor(3)
    other = MemorySource(10, fingerprint="other")
    stream = open_stream(other, **SHUFFLE)
    with pytest.raises(CursorError, match="rebind=True"):
        open_stream(other, **SHUFFLE, cursor=state)
    assert open_stream(other, **SHUFFLE, cursor=state, rebind=True).start == (0, 3)
    records = iter(stream)
    records.load_state_dict(state, rebind=True)
    assert records.state_dict() == {**state, "fingerprint": "other"}
    stream.load_state_dict(state, rebind=True)
    assert stream.state_dict()["position"] == 3


def test_rebind_does_not_accept_another_length():
    with pytest.raises(CursorError, match="number of records"):
        stream_of(11, cursor=stream_of(10).cursor(3), rebind=True)


def test_loading_where_shards_would_drift_is_refused():
    loader = stream_of(12, num_shards=2).batch(2, epochs=None)
    state = stream_of(12).cursor(3)
    for reader in (iter(loader), loader):
        with pytest.raises(ConfigurationError, match="drift"):
            reader.load_state_dict(state)
    with pytest.raises(ConfigurationError, match="drift"):
        loader.at(0, 3)


def test_state_dict_has_the_names_of_other_frameworks():
    batches = iter(stream_of(6).batch(2))
    next(batches)
    again = stream_of(6).batch(2)
    again.set_state(batches.get_state())
    assert batch_ids(again) == [[2, 3], [4, 5]]


def nested(kind, levels):
    found = 1
    for _ in range(levels):
        found = {"a": found} if kind is dict else kind([found])
    return found


@pytest.mark.parametrize("kind", [dict, list, tuple])
@pytest.mark.parametrize("levels", [198, 199, 200, 5000])
def test_a_cursor_that_is_nested_deep_is_refused(kind, levels):
    items = stream_of(9, shuffle=True).batch(2).__iter__()
    good = items.state_dict()
    for change in [{key: nested(kind, levels)} for key in good] + [
        {"skip_ranges": nested(kind, levels)},
        {"order": good["order"] | {"before": nested(kind, levels - 1)}},
    ]:
        with pytest.raises(CursorError, match="nested more than 200 deep" if levels >= 200 else "cursor"):
            items.load_state_dict(good | change)
    assert items.state_dict() == good


@pytest.mark.parametrize("change", [lambda big: big, lambda big: [[big]], lambda big: {"name": big}])
def test_a_cursor_with_a_number_that_python_does_not_show_is_refused(change):
    items = stream_of(9, shuffle=True).batch(2).__iter__()
    good = items.state_dict()
    for key in [*good, "skip_ranges", "rows", "version"]:
        for big in (10**5000, -(10**5000)):
            with pytest.raises(CursorError, match="a number in it has too many digits"):
                items.load_state_dict(good | {key: change(big)})
    assert items.state_dict() == good


def test_a_cursor_that_contains_itself_is_refused():
    items = stream_of(9, shuffle=True).batch(2).__iter__()
    good = items.state_dict()
    twice = [[]]
    for _ in range(300):
        twice = [twice, twice]
    loop = dict(good)
    loop["order"] = loop
    for state in (loop, good | {"seed": twice}):
        with pytest.raises(CursorError, match="nested more than 200 deep"):
            items.load_state_dict(state)
