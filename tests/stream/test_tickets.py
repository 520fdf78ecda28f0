"""Each place of a stream ends once, in whatever order tickets end, fail and are resumed, on any ranks."""

import asyncio
import copy
import json
import os
import pickle
import random
import threading
from itertools import chain

import numpy as np
import pytest
from inside import set_constants
from processes import in_child, wait_until
from rollouts import waits_alone
from soak import few_or_many

import yogadl
from yogadl.errors import ConfigurationError, CursorError, StageError, TicketError

COUNT = 29


def ref_of(count=COUNT):
    return yogadl.from_source({"id": np.arange(count)}, fingerprint=f"of {count}")


def stream_of(rank=0, ranks=1, count=COUNT, **options):
    return ref_of(count).stream(shuffle=True, shuffle_seed=5, shard_rank=rank, num_shards=ranks, **options)


def ids(tickets, count=None):
    """End the next tickets one by one; return their places and records."""
    found = []
    for ticket in tickets:
        found.append((ticket.place, int(ticket.record["id"])))
        ticket.done()
        if len(found) == count:
            break
    return found


def all_places(count=COUNT, epochs=1):
    stream = stream_of(count=count)
    return [((e, p), int(i)) for e in range(epochs) for p, i in enumerate(stream.indices(e))]


def saved(tickets):
    return json.loads(json.dumps(tickets.state_dict()))


def test_tickets_have_the_records_of_the_stream_epoch_after_epoch():
    assert ids(stream_of().tickets(epochs=3)) == all_places(epochs=3)
    endless = stream_of().tickets()
    assert ids(endless, 2 * COUNT + 1)[-1][0] == (2, 0)


def test_tickets_begin_where_the_stream_starts():
    stream = stream_of(cursor=stream_of().cursor(COUNT - 2))
    assert [place for place, _ in ids(stream.tickets(epochs=2))] == [
        (0, COUNT - 2), (0, COUNT - 1), *((1, position) for position in range(COUNT))
    ]  # fmt: skip


def test_a_failed_place_is_given_out_again_before_new_ones_with_the_same_record_and_numbers():
    def noisy(record, rng):
        return {"id": record["id"], "noise": rng.random()}

    tickets = stream_of().random_map(noisy, seed=3).tickets()
    first, second, third = (next(tickets) for _ in range(3))
    before = first.record["id"], first.record["noise"]
    first.record["noise"] = -1.0  # the driver's own
    third.again()
    first.again()
    again = next(tickets)
    assert again.place == first.place
    assert (again.record["id"], again.record["noise"]) == before
    assert next(tickets).place == third.place
    assert next(tickets).place == (0, 3)
    assert second.is_open
    assert not first.is_open


def test_a_ticket_ends_once():
    tickets = stream_of().tickets()
    ticket = next(tickets)
    ticket.again()
    for end in (ticket.done, ticket.again, lambda: ticket.drop("why")):
        with pytest.raises(TicketError, match="ended already"):
            end()
    newer = next(tickets)
    with pytest.raises(TicketError, match="ended already"):
        ticket.done()
    newer.done()
    assert tickets.dropped() == []


def test_open_places_come_first_after_a_resume():
    tickets = stream_of().tickets()
    given = [next(tickets) for _ in range(10)]
    for number in (0, 1, 3, 4, 8):
        given[number].done()
    given[2].again()
    state = saved(tickets)
    assert [place for place, _ in ids(stream_of().tickets(state=state), 7)] == [
        (0, 2), (0, 5), (0, 6), (0, 7), (0, 9), (0, 10), (0, 11)
    ]  # fmt: skip
    assert state["next"] == [0, 10]
    assert state["open"] == [[0, 2], [0, 5], [0, 6], [0, 7], [0, 9]]
    # The cursor in it is a stream's, before which everything has ended.
    assert stream_of(cursor=state["cursor"]).start == (0, 2)


def test_dropped_places_are_listed_with_their_reasons_also_after_a_resume():
    tickets = stream_of().tickets(epochs=1)
    next(tickets).drop("no reward")
    next(tickets).done()
    next(tickets).drop("x" * 500)
    dropped = [((0, 0), "no reward"), ((0, 2), "x" * 200)]
    assert tickets.dropped() == dropped
    resumed = stream_of().tickets(state=saved(tickets), epochs=1)
    assert resumed.dropped() == dropped
    assert len(ids(resumed)) == COUNT - 3


@pytest.mark.parametrize("dropped", [9_999, 10_000, 10_001, 25_000])
def test_the_last_dropped_ones_are_kept(dropped):
    tickets = stream_of(count=7).tickets()
    for _ in range(dropped):
        next(tickets).drop("")
    assert len(tickets.dropped()) == len(tickets.state_dict()["dropped"]) == min(dropped, 10_000)
    assert tickets.dropped()[-1].place == divmod(dropped - 1, 7)
    assert stream_of(count=7).tickets(state=saved(tickets)).dropped() == tickets.dropped()


def test_take_gives_none_where_next_would_wait():
    tickets = stream_of().tickets(max_open=2, epochs=1)
    first, _ = tickets.take(), tickets.take()
    assert tickets.take() is None
    first.done()
    assert tickets.take().place == (0, 2)


def test_the_only_thread_does_not_wait_for_ever():
    errors = in_child(waits_alone)  # this process has other threads, which could end a ticket
    assert len(errors) == 2
    assert all("2 tickets are open" in error and "only thread" in error for error in errors)


def test_a_long_wait_is_logged(monkeypatch, caplog):
    set_constants(monkeypatch, LONG_WAIT_S=0.01)
    tickets = stream_of().tickets(max_open=1)
    first, found = next(tickets), []
    thread = threading.Thread(target=lambda: found.append(next(tickets)))
    thread.start()
    wait_until(lambda: caplog.records, "the warning")
    first.done()
    thread.join(60)
    assert found[0].place == (0, 1)
    assert "one of 1 open tickets" in caplog.text


def test_an_event_loop_is_not_stopped():
    async def drive():
        tickets = stream_of().tickets(max_open=1)
        next(tickets)
        with pytest.raises(TicketError, match="event loop"):
            next(tickets)

    asyncio.run(drive())


def test_the_last_epoch_ends_when_all_tickets_have():
    tickets = stream_of(count=3).tickets(epochs=1)
    given = [next(tickets) for _ in range(3)]
    assert not tickets.finished
    assert tickets.take() is None
    given[1].done()
    given[0].again()
    found = next(tickets)
    assert found.place == (0, 0)
    found.done()
    given[2].drop("")
    assert list(tickets) == []
    assert tickets.finished
    assert list(stream_of(count=3).tickets(state=saved(tickets), epochs=1)) == []
    assert ids(stream_of(count=3).tickets(state=saved(tickets), epochs=2))[0][0] == (1, 0)


def test_threads_take_each_place_once():
    tickets = stream_of(count=1000).tickets(max_open=3, epochs=2)
    found, lock = [], threading.Lock()

    def work(seed):
        draw = random.Random(seed)
        for ticket in tickets:
            if draw.random() < 0.2:
                ticket.again()
                continue
            with lock:
                found.append((ticket.place, int(ticket.record["id"])))
            ticket.done()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == all_places(1000, 2)


def test_a_place_finds_its_open_ticket():
    tickets = stream_of(1, 2).tickets()
    ticket = next(tickets)
    assert ticket.place == (0, 1)
    assert tickets.ticket(json.loads(json.dumps(ticket.place))) is ticket
    ticket.again()
    for place in ((0, 1), (0, 3), (0, 0), (0, COUNT), (7, 1)):
        with pytest.raises(TicketError, match="no open ticket here"):
            tickets.ticket(place)


def test_tickets_stay_in_their_process():
    tickets = stream_of().tickets()
    ticket = next(tickets)
    for thing, word in ((tickets, "state_dict"), (ticket, "place")):
        with pytest.raises(TicketError, match=word):
            pickle.dumps(thing)
    with pytest.raises(TicketError):
        copy.copy(ticket)
    with tickets._changed:  # as another thread may hold it
        child = os.fork()
        if child == 0:
            os._exit(refused_in_a_child(tickets, ticket))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 12
    ticket.done()


def refused_in_a_child(tickets, ticket):
    assert "1 open" in repr(tickets)
    assert "open" in repr(ticket)
    refused = 0
    for work in (
        ticket.done, ticket.again, lambda: ticket.drop(""), lambda: ticket.record,
        lambda: next(tickets), tickets.take, tickets.dropped, tickets.state_dict, lambda: tickets.finished,
        lambda: tickets.watermark, lambda: tickets.follow(3), lambda: tickets.ticket((0, 0)),
    ):  # fmt: skip
        try:
            work()
        except TicketError:
            refused += 1
    return refused


def test_a_function_that_raises_leaves_the_ticket_open():
    def check(record):
        if int(record["id"]) == 3:
            raise OSError("broken")
        return record

    index = stream_of().indices().tolist().index(3)
    tickets = stream_of().map(check, spec=ref_of().spec).tickets(epochs=1)
    found = []
    for ticket in tickets:
        try:
            found.append(int(ticket.record["id"]))
        except StageError as error:
            with pytest.raises(StageError):
                _ = ticket.record
            ticket.drop(str(error))
        else:
            ticket.done()
    assert sorted(found) == [number for number in range(COUNT) if number != 3]
    assert [place for place, _ in tickets.dropped()] == [(0, index)]


class Failing:
    """Records of which one can't be read for a while."""

    fails = False

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if self.fails and index == 11:
            raise OSError("unreadable")
        return {"id": index}


def test_records_that_are_read_together_fail_alone():
    source = Failing()
    tickets = yogadl.from_source(source).stream().tickets(epochs=1)
    source.fails = True
    given = [next(tickets) for _ in range(COUNT)]
    for ticket in given:
        if ticket.place.position == 11:
            with pytest.raises(OSError, match="unreadable"):
                _ = ticket.record
            source.fails = False
        assert int(ticket.record["id"]) == ticket.place.position


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 127, 128, 129, 300])
def test_any_number_of_records_is_read_together(count, size):
    width = 1 if size == "small" else 64_000 // 8 // 5
    rows = np.arange(count * width).reshape(count, width)
    stream = yogadl.from_source({"x": rows}).stream(shuffle=True)
    found = [np.array(ticket.record["x"]) for ticket in map(ending, stream.tickets(epochs=2))]
    np.testing.assert_array_equal(found, [record["x"] for epoch in range(2) for record in stream.at(epoch)])


def ending(ticket):
    ticket.done()
    return ticket


@pytest.mark.parametrize("together", [1, 2, 64])
def test_an_open_ticket_keeps_few_records(monkeypatch, together):
    set_constants(monkeypatch, TOGETHER_BYTES=together * 8)
    tickets = stream_of().tickets(epochs=1)
    record = next(tickets).record
    base = record["id"] if record["id"].base is None else record["id"].base
    assert base.nbytes <= max(1, together) * 8 or base.nbytes <= 64 * 8


# Several ranks.


def test_the_tickets_of_ranks_are_an_epoch_together():
    found = [ids(stream_of(rank, 3).tickets(epochs=2)) for rank in range(3)]
    assert sorted(chain(*found)) == all_places(epochs=2)
    assert [place for place, _ in found[1]][:2] == [(0, 1), (0, 4)]


def test_more_ranks_than_records():
    found = [ids(stream_of(rank, 5, count=3).tickets(epochs=2)) for rank in range(5)]
    assert sorted(chain(*found)) == all_places(3, 2)
    with pytest.raises(ConfigurationError, match="wait for ever"):
        stream_of(4, 5, count=3).tickets()
    parts = [stream_of(rank, 5, count=3).tickets(epochs=2) for rank in range(5)]
    found = ids(parts[1], 1) + ids(parts[2], 2)
    assert parts[4].watermark == 6
    states = [saved(part) for part in parts]
    assert sorted(found + ids(stream_of(count=3).tickets(state=states, epochs=2))) == all_places(3, 2)
    assert ids(stream_of(4, 5, count=3).tickets(state=states[4], epochs=2)) == []


def test_a_rank_goes_on_with_its_own_state_and_others_need_all():
    parts = [stream_of(rank, 3).tickets(epochs=1) for rank in range(3)]
    found = ids(parts[0], 4) + ids(parts[1], 1)
    states = [saved(part) for part in parts]
    same = [ids(stream_of(rank, 3).tickets(state=states[rank], epochs=1)) for rank in range(3)]
    assert sorted(chain(found, *same)) == all_places()
    listed = [ids(stream_of(rank, 3).tickets(state=states, epochs=1)) for rank in range(3)]
    assert listed == same
    for missing in (states[0], states[:2], [states[1]]):
        with pytest.raises(CursorError, match="all 3 ranks"):
            stream_of(0, 2).tickets(state=missing)
    with pytest.raises(CursorError, match="rank 2 of 3"):
        stream_of(2, 3).tickets(state=states[:2])
    with pytest.raises(CursorError, match="same rank"):
        stream_of(0, 3).tickets(state=[states[0], states[0], states[2]])
    with pytest.raises(CursorError, match="different runs"):
        stream_of(0, 2).tickets(state=[*states[:2], saved(stream_of(3, 4).tickets())])


def test_states_of_different_runs_are_never_taken_together():
    """Each rank saves over its own file, and is killed before or after its first save of a run."""
    files = [saved(part) for part in (stream_of(rank, 3, 12).tickets(epochs=1) for rank in range(3))]
    of_two = [stream_of(rank, 2, 12).tickets(epochs=1, state=files) for rank in range(2)]
    of_three = [
        stream_of(rank, 3, 12).tickets(epochs=1, state=[saved(part) for part in of_two]) for rank in range(3)
    ]
    with pytest.raises(CursorError, match="from which that run resumed"):
        stream_of(0, 3, 12).tickets(state=[saved(of_two[0]), *files[1:]])
    with pytest.raises(CursorError, match="different runs"):
        stream_of(2, 3, 12).tickets(state=[saved(of_three[0]), saved(of_three[1]), files[2]])
    # What the error advises goes on.
    rest = [
        ids(stream_of(rank, 3, 12).tickets(epochs=1, state=list(map(saved, of_two)))) for rank in range(3)
    ]
    assert sorted(chain(*rest)) == all_places(12)
    skipping = stream_of(0, 2, 12).skip_ranges([(8, 9)])
    with pytest.raises(CursorError, match="different runs"):
        skipping.tickets(state=[saved(skipping.tickets()), saved(stream_of(1, 2, 12).tickets())])


def test_a_rank_without_places_holds_nobody_back():
    epochs = 10**6
    states = [saved(stream_of(rank, 3, count=2).tickets(epochs=epochs)) for rank in range(3)]
    tickets = stream_of(count=2).tickets(epochs=epochs, state=states, max_lead=2)
    assert [ticket.place for ticket in iter(tickets.take, None)] == [(0, 0), (0, 1)]


@pytest.mark.parametrize("is_list", [True, False])
def test_max_lead_holds_after_a_resume(is_list):
    parts = [stream_of(rank, 2, count=1000).tickets() for rank in range(2)]
    ids(parts[0], 400)
    states = [saved(part) for part in parts]
    fast, slow = (
        stream_of(rank, 2, count=1000).tickets(state=states if is_list else states[rank], max_lead=10)
        for rank in range(2)
    )
    assert fast.take() is None
    fast.follow(min(fast.watermark, slow.watermark))
    assert fast.take() is None
    assert len(list(iter(slow.take, None))) == 5
    fast.follow(795)
    assert [ticket.place.position for ticket in iter(fast.take, None)] == [800, 802, 804]


def test_max_lead_makes_the_fastest_wait():
    fast, slow = (stream_of(rank, 2).tickets(max_lead=6, epochs=1) for rank in range(2))
    assert len([ending(ticket) for ticket in iter(fast.take, None)]) == 3  # 0, 2, 4
    assert (fast.watermark, slow.watermark) == (6, 1)
    assert fast.take() is None
    held = next(slow)
    next(slow).done()
    fast.follow(slow.watermark)
    assert fast.take().place == (0, 6)  # 6 places ahead of (0, 1) is too far for (0, 8)
    assert fast.take() is None
    held.done()
    assert slow.watermark == 5
    fast.follow(slow.watermark)
    fast.follow(0)  # a late message
    assert [ticket.place.position for ticket in iter(fast.take, None)] == [8, 10]


def test_max_lead_of_one_driver_is_counted_from_the_first_open_ticket():
    tickets = stream_of().tickets(max_lead=4)
    given = [*iter(tickets.take, None)]
    assert len(given) == 4
    given[1].done()
    given[2].again()
    assert tickets.take().place == (0, 2)
    assert tickets.take() is None
    given[0].done()
    assert [ticket.place.position for ticket in iter(tickets.take, None)] == [4, 5]


def test_following_wakes_a_thread_that_waits():
    tickets = stream_of(0, 2).tickets(max_lead=2)
    next(tickets).done()
    found = []
    thread = threading.Thread(target=lambda: found.append(next(tickets)))
    thread.start()
    tickets.follow(2)
    thread.join(60)
    assert found[0].place == (0, 2)


@pytest.mark.parametrize("behind", [99, 100, 101, 400])
def test_ranks_may_be_so_far_apart(monkeypatch, behind):
    set_constants(monkeypatch, UNREACHED_PLACES=100)
    parts = [stream_of(rank, 2, count=38).tickets(epochs=100) for rank in range(2)]
    fast = ids(parts[0], behind)
    states = [saved(part) for part in parts]
    epochs = 7
    if behind > 100:
        with pytest.raises(CursorError, match="max_lead"):
            stream_of(0, 3, count=38).tickets(state=states)
        assert stream_of(1, 2, count=38).tickets(state=states[1]).take().place == (0, 1)
        return
    rest = [ids(stream_of(rank, 3, count=38).tickets(state=states, epochs=epochs)) for rank in range(3)]
    assert sorted(chain(fast, *rest)) == all_places(38, epochs)


# Other streams, and states that don't fit.


def test_positions_that_are_skipped_have_no_tickets():
    stream = stream_of().skip_ranges([(3, 7), (20, 22)])
    kept = [each for each in all_places() if not (3 <= each[0][1] < 7 or 20 <= each[0][1] < 22)]
    assert ids(stream.tickets(epochs=1)) == kept
    parts = [stream_of(rank, 2).tickets(epochs=1) for rank in range(2)]
    found = ids(parts[0], 3)
    open_one = next(parts[0])  # (0, 6), which is skipped afterwards
    states = [saved(part) for part in parts]
    with pytest.raises(CursorError, match="all 2 ranks"):
        stream_of(0, 2).skip_ranges([(5, 7)]).tickets(state=states[0])
    for ranks in (1, 2, 3):
        rest = [
            ids(stream_of(rank, ranks).skip_ranges([(5, 7)]).tickets(state=states, epochs=1))
            for rank in range(ranks)
        ]
        expected = [each for each in all_places() if not 5 <= each[0][1] < 7]
        assert sorted(chain(found, *rest)) == expected
    assert open_one.place == (0, 6)


def mixed(weights=(2, 1)):
    parts = [ref_of(40), yogadl.from_source({"id": np.arange(100, 130)}, fingerprint="b")]
    return yogadl.mix(dict(zip("ab", zip(parts, weights, strict=True), strict=True)))


def streams():
    sampled = ref_of(40).sampled(np.arange(1, 41))
    packs = yogadl.from_source(
        [{"tokens": np.arange(1 + n % 7)} for n in range(50)], spec={"tokens": yogadl.Leaf("int64", (None,))}
    ).packed(8, fields="tokens")
    return {
        "mix": lambda **options: mixed().stream(shuffle=True, shuffle_seed=2, **options),
        "sampled": lambda **options: sampled.stream(shuffle=True, shuffle_seed=2, **options),
        "packed": lambda **options: packs.stream(shuffle=True, shuffle_seed=2, **options),
        "blocks": lambda **options: ref_of(300).stream(
            shuffle=yogadl.Blocks(16, window=4, lanes=6), shuffle_seed=2, **options
        ),
        "in order": lambda **options: ref_of(31).stream(**options),
    }


def shown(record):
    return json.dumps({key: np.asarray(value).tolist() for key, value in record.items()})


@pytest.mark.parametrize("name", ["mix", "sampled", "packed", "blocks", "in order"])
def test_tickets_of_other_streams_are_resumed_on_any_ranks(name):
    """A model of what has ended is compared with all places of the stream, through stops and other ranks."""
    open_one = streams()[name]
    epochs = 3
    expected = {}
    for epoch in range(epochs):
        iterator = open_one().at(epoch)
        for record in iterator:
            expected[(epoch, int(iterator.last.positions[0]))] = shown(record)
    for seed in range(few_or_many(3, 300)):
        draw = random.Random(seed)
        found, states = {}, None
        for _ in range(50):
            ranks = draw.choice([1, 2, 3, 5])
            parts = [
                open_one(shard_rank=rank, num_shards=ranks).tickets(
                    max_open=draw.choice([3, 50]), state=states, epochs=epochs
                )
                for rank in range(ranks)
            ]
            opened = []
            for _ in range(draw.randrange(200)):
                action = draw.random()
                if action < 0.55 or not opened:
                    ticket = draw.choice(parts).take()
                    opened += [] if ticket is None else [ticket]
                    continue
                ticket = opened.pop(draw.randrange(len(opened)))
                if action < 0.65:
                    ticket.again()
                else:
                    assert tuple(ticket.place) not in found
                    found[tuple(ticket.place)] = shown(ticket.record)
                    ticket.done() if action < 0.95 else ticket.drop("x")
            states = [saved(part) for part in parts]
            draw.shuffle(states)
            if all(part.finished for part in parts):
                break
        final = open_one().tickets(state=states, epochs=epochs)
        for ticket in final:
            assert tuple(ticket.place) not in found
            found[tuple(ticket.place)] = shown(ticket.record)
            ticket.done()
        assert found == expected


def test_a_mix_with_other_weights_refuses_the_state():
    tickets = mixed().stream(shuffle=True).tickets()
    ids(tickets, 5)
    state = saved(tickets)
    with pytest.raises(CursorError):
        mixed((1, 1)).stream(shuffle=True).tickets(state=state)
    # After a change of weights, the open places and their records are those of both.
    changed = mixed((1, 1)).stream(shuffle=True, cursor=state["cursor"])
    tickets = changed.tickets(epochs=2)
    given = [next(tickets) for _ in range(70)]
    for ticket in given[1:]:
        ticket.done()
    state = saved(tickets)
    with pytest.raises(CursorError):
        mixed((1, 1)).stream(shuffle=True).tickets(state=state)
    again = next(mixed((1, 1)).stream(shuffle=True, cursor=state["cursor"]).tickets(state=state))
    assert again.place == given[0].place
    assert int(again.record["id"]) == int(given[0].record["id"])


def test_weights_change_between_epochs_as_the_error_says():
    def tickets_of(weights, cursor=None, **options):
        return mixed(weights).stream(shuffle=True, cursor=cursor).tickets(**options)

    tickets = tickets_of((2, 1))
    ids(tickets, 5)
    with pytest.raises(CursorError, match="when all places of an epoch have ended"):
        tickets_of((1, 1), state=saved(tickets))
    tickets = tickets_of((2, 1), state=saved(tickets), epochs=1)
    ids(tickets)
    stream = mixed((1, 1)).stream(shuffle=True)
    cursor = stream.cursor(0, epoch=1)
    found = ids(tickets_of((1, 1), cursor, epochs=1))
    assert [index for _, index in found] == [int(record["id"]) for record in stream.at(1)]


def test_shards_of_equal_length_are_refused():
    for option in ("drop_shard_remainder", "pad_shard_remainder"):
        with pytest.raises(ConfigurationError, match=option):
            stream_of(0, 2, **{option: True}).tickets()
        assert len(ids(stream_of(**{option: True}).tickets(epochs=1))) == COUNT


def test_tickets_are_not_read_ahead():
    for ahead in (stream_of().prefetch(2), stream_of().prefetch(2, workers=1)):
        with pytest.raises(ConfigurationError, match="without prefetch"):
            ahead.tickets()


@pytest.mark.parametrize(
    "options", [{"max_open": 0}, {"max_lead": 0}, {"epochs": 0}, {"max_open": True}, {"rebind": 3}]
)
def test_arguments_that_make_no_sense(options):
    with pytest.raises(ConfigurationError):
        stream_of().tickets(**options)


def test_rebind_accepts_other_data_of_equal_length():
    tickets = stream_of().tickets()
    next(tickets)
    state = saved(tickets)
    other = yogadl.from_source({"id": np.arange(COUNT)}, fingerprint="other").stream(
        shuffle=True, shuffle_seed=5
    )
    with pytest.raises(CursorError, match="rebind=True"):
        other.tickets(state=state)
    assert next(other.tickets(state=state, rebind=True)).place == (0, 0)


def test_a_cursor_is_no_state_and_a_state_no_cursor():
    tickets = stream_of().tickets()
    with pytest.raises(CursorError, match="without state"):
        stream_of().tickets(state=stream_of().cursor(3))
    with pytest.raises(CursorError, match="tickets"):
        stream_of(cursor=saved(tickets))


def changed(state, **values):
    return {**copy.deepcopy(state), **values}


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_ranks_that_are_ages_apart_are_refused():
    parts = [stream_of(rank, 2).tickets() for rank in range(2)]
    states = [saved(part) for part in parts]
    states[0]["next"] = [2**62, 0]
    states[0]["cursor"]["epoch"] = 2**62
    with pytest.raises(CursorError, match="behind"):
        stream_of().tickets(state=states)


@pytest.mark.parametrize("place", [None, 3, (0,), (0, 0, 0), (0, "1"), (-1, 0), "00", {}])
def test_what_is_no_place(place):
    with pytest.raises(ConfigurationError):
        stream_of().tickets().ticket(place)


def test_damaged_states_are_refused():
    tickets = stream_of(1, 2).tickets()
    given = [next(tickets) for _ in range(5)]
    given[1].drop("reason")
    state = saved(tickets)
    assert stream_of(1, 2).tickets(state=state).take().place == (0, 1)
    without = {key: value for key, value in state.items() if key != "open"}
    cursor = state["cursor"]
    for damaged in (
        [], "x", 3, [3], {}, without,
        changed(state, more=1), changed(state, yogadl_tickets=2), changed(state, yogadl_tickets=None),
        changed(state, rank=2), changed(state, rank=-1), changed(state, ranks=0), changed(state, ranks="2"),
        changed(state, rank=True), changed(state, yogadl_tickets=True), changed(state, yogadl_tickets=1.0),
        changed(state, run=3), changed(state, open=nested(2000)), changed(state, rank=nested(2000)),
        changed(state, dropped=[[0, 0, nested(90_000)]]), nested(5000), [nested(5000)],
        {"yogadl_tickets": nested(5000)},
        changed(state, rank=10**5000), changed(state, yogadl_tickets=10**5000),
        changed(state, rank=0),
        changed(state, next=[0]), changed(state, next=[0, 8]), changed(state, next=[0, 3]),
        changed(state, next=[0, COUNT]), changed(state, next=None), changed(state, next=[2**70, 1]),
        changed(state, open=None), changed(state, open=[3]), changed(state, open=[[0, 1], [0, 1]]),
        changed(state, open=[[0, 5], [0, 1]]), changed(state, open=[[0, 1], [0, 2]]),
        changed(state, open=[[0, 1], [0, 1.0]]), changed(state, open=[[0, 1], [5, 1]]),
        changed(state, open=state["open"][1:]), changed(state, open={"a": 1}),
        changed(state, dropped=[[0, 3]]), changed(state, dropped=[[0, 3, 4]]),
        changed(state, dropped=[[0, COUNT, ""]]), changed(state, dropped=None),
        changed(state, cursor=None), changed(state, cursor={**cursor, "position": 5}),
        changed(state, cursor={**cursor, "fingerprint": "other"}),
        changed(state, cursor={**cursor, "epoch": -1}),
    ):  # fmt: skip
        with pytest.raises(CursorError):
            stream_of(1, 2).tickets(state=damaged)


def test_a_thousand_open_tickets_are_a_small_state():
    stream = stream_of(count=10**6)
    tickets = stream.tickets(max_open=1024, state=None)
    for _ in range(999_000):
        next(tickets).done()
    for _ in range(1024):
        next(tickets)
    assert len(json.dumps(tickets.state_dict())) <= 64 * 1024
    assert "1024 open" in repr(tickets)
