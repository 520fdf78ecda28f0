"""What a loader says of itself: what it delivered, what it waited for, and where the time went."""

import io
import itertools
import json
import pickle
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import _chain, _stages, iterator, run, stats
from memory_source import MemorySource, batch_ids, open_stream, stream_of


class Clock:
    """A clock that goes on when it is told to."""

    now = 1000.0

    def __call__(self):
        return self.now

    def takes(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    for module in (_chain, _stages, iterator, run, stats):
        monkeypatch.setattr(module, "perf_counter", found)
    return found


class SlowSource(MemorySource):
    """A source of which each read takes a second."""

    def __init__(self, count, clock):
        super().__init__(count, record_bytes=1_000_000)
        self.clock = clock

    def columns(self, indices, fields=None, memory=None):
        self.clock.takes(1)
        return super().columns(indices, fields, memory)


@given(
    count=st.integers(0, 23),
    size=st.integers(1, 7),
    epochs=st.integers(1, 3),
    taken=st.integers(0, 12),
    start=st.integers(0, 23),
    shards=st.sampled_from([{}, {"num_shards": 2, "shard_rank": 1}]),
    cut=st.sampled_from([{}, {"drop_remainder": True}, {"across_epochs": True}]),
)
@pytest.mark.filterwarnings("ignore:there is no batch")
def test_it_counts_what_was_delivered(count, size, epochs, taken, start, shards, cut):
    stream = stream_of(count, pad_shard_remainder=bool(shards), **shards)
    loader = stream.batch(size, epochs=epochs, **cut)
    batches = loader.at(0, min(start, count))
    sizes = [len(batch["id"]) for batch in itertools.islice(batches, taken)]
    found = loader.stats()
    assert (found.batches, found.records) == (len(sizes), sum(sizes))
    assert found.bytes == 32 * sum(sizes)


def test_it_says_where_the_time_went(clock):
    stream = open_stream(SlowSource(12, clock)).map(lambda record: clock.takes(2) or record)
    assert stream.spec  # for which the first record is read
    loader = stream.batch(3).random_map(lambda batch, rng: clock.takes(10) or batch)
    for _ in loader:
        clock.takes(4)
    found = loader.stats()
    assert found.stages == {"read": 4.0, "1 map(<lambda>)": 24.0, "2 random_map(<lambda>)": 40.0}
    assert found.waited_s == 4 + 24 + 40
    assert found.seconds == found.waited_s + 4 * 4
    clock.takes(100)
    assert loader.stats() == found
    assert found.waited_share == found.waited_s / found.seconds
    assert found.records_per_s == 12 / found.seconds
    assert found.mb_per_s == pytest.approx(12 / found.seconds)
    assert found.ready is None
    assert str(found) == (
        "12 records in 84 s: 0 records/s, 0 MB/s; waited 81%; "
        "read 4 s, 1 map(<lambda>) 24 s, 2 random_map(<lambda>) 40 s"
    )


def test_it_is_of_the_newest_iterator_alone(clock):
    loader = open_stream(SlowSource(6, clock)).batch(3)
    assert loader.stats().stages == {}
    assert str(loader.stats()) == "0 records in 0 s: 0 records/s, 0 MB/s; waited 0%"
    list(loader)
    again = iter(loader)
    assert loader.stats().batches == 0
    next(again)
    assert loader.stats().stages == {"read": 1.0}
    assert loader.stats().records == 3


def test_it_begins_anew_with_a_cursor_and_in_another_process(clock):
    loader = stream_of(9).batch(3)
    batches = iter(loader)
    next(batches)
    batches.load_state_dict(loader.stream.cursor(6))
    assert loader.stats().batches == 0
    next(batches)
    assert loader.stats().records == 3
    assert pickle.loads(pickle.dumps(loader)).stats().seconds == 0.0


def test_loaders_of_one_stream_count_for_themselves(clock):
    stream = open_stream(SlowSource(6, clock))
    one, other = stream.batch(3), stream.batch(2)
    for _ in itertools.zip_longest(one, other):
        pass
    assert one.stats().stages == {"read": 2.0}
    assert other.stats().stages == {"read": 3.0}


@pytest.mark.parametrize("ahead", [False, True])
def test_a_loader_that_never_ran_has_no_times_of_the_one_that_it_was_made_of(clock, ahead):
    one = open_stream(SlowSource(6, clock)).batch(3)
    one = one.prefetch(2) if ahead else one
    other = one.map(lambda batch: batch)
    empty = other.stats()
    list(one)
    assert one.stats().stages == {"read": 2.0}
    assert other.stats() == empty
    assert (empty.stages, empty.ready) == ({}, None)


@pytest.mark.parametrize("threads", [1, 2])
def test_it_says_how_many_batches_were_ready(threads):
    source = MemorySource(20, record_bytes=1_000_000)
    loader = open_stream(source).batch(2).prefetch(3, threads=threads)
    batches = iter(loader)
    next(batches)
    first = loader.stats().ready  # whatever came by then
    feed = batches._items.gi_frame.f_locals["feed"]
    while feed.ready < feed._most:
        time.sleep(0)
    next(batches)
    assert loader.stats().ready == (first + feed._most) / 2
    batches.close()


def test_no_batch_is_ready_after_the_last_one():
    batches = iter(open_stream(MemorySource(2, record_bytes=1_000_000)).batch(2).prefetch(3))
    next(batches)
    assert batches._items.gi_frame.f_locals["feed"].ready == 0
    assert list(batches) == []


def test_an_error_is_no_batch(clock):
    stream = open_stream(MemorySource(6, record_bytes=1_000_000, fails_at=4))
    loader = stream.batch(2)
    batches = iter(loader)
    next(batches), next(batches)
    for _ in range(2):
        with pytest.raises(KeyError):
            next(batches)
    assert loader.stats().records == 4


def terminal(monkeypatch):
    found = io.StringIO()
    found.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", found)
    return found


@pytest.mark.parametrize("epochs", [2, None])
def test_progress_is_lines_where_there_is_no_terminal(capsys, epochs):
    batches = iter(stream_of(10).batch(4, epochs=epochs, progress=True).prefetch(2))
    for _ in range(6):
        next(batches)
    batches.close()
    said = capsys.readouterr().err
    assert "reading: 20" + ("" if epochs is None else " of 20") + " records, 0 MiB" in said
    assert ", waited " in said
    assert said.count("\n") == 1


def test_progress_of_an_iterator_that_goes_on_is_of_what_is_left(capsys):
    loader = stream_of(10).batch(4, epochs=2, progress=True)
    batches = iter(loader)
    batches.load_state_dict(stream_of(10).cursor(6, epoch=1))
    assert batch_ids(batches) == [[6, 7, 8, 9]]
    assert "reading: 4 of 4 records" in capsys.readouterr().err


@pytest.mark.parametrize(("record_bytes", "counted"), [(0, 1), (1, 1), (2, 2)])
def test_each_record_has_at_least_a_byte(record_bytes, counted):
    loader = open_stream(MemorySource(10, record_bytes=record_bytes)).batch(5)
    list(loader)
    assert loader.stats().bytes == 10 * counted


def test_progress_is_a_bar_on_a_terminal(monkeypatch):
    screen = terminal(monkeypatch)
    loader = stream_of(10).batch(4, progress=True).map(lambda batch: batch)
    assert [len(batch["id"]) for batch in loader] == [4, 4, 2]
    assert "reading: 100%" in screen.getvalue()
    assert "10.0/10.0" in screen.getvalue()
    assert screen.getvalue().endswith("\n")


def test_a_dropped_iterator_leaves_no_bar(monkeypatch):
    screen = terminal(monkeypatch)
    for _ in stream_of(10).batch(4, progress=True):
        break
    assert "reading: " in screen.getvalue()
    assert screen.getvalue().endswith("\n")


def test_all_is_plain_numbers_by_name(clock):
    stream = open_stream(SlowSource(12, clock)).map(lambda record: clock.takes(2) or record)
    loader = stream.batch(3)
    assert loader.stats().as_dict()["records_per_s"] == 0.0
    for _ in loader:
        clock.takes(4)
    stats = loader.stats()
    found = stats.as_dict()
    assert found == {
        **{"batches": 4, "records": 12, "bytes": stats.bytes, "seconds": 44.0, "waited_s": 28.0},
        **{"waited_share": 28 / 44, "records_per_s": 12 / 44, "mb_per_s": stats.mb_per_s},
        **{"ranges": 0, "range_bytes": 0, "rejected": 0},
        **{"stage_s/read": 4.0, "stage_s/1 map(<lambda>)": 24.0},
        **{"stage_share/read": 4 / 28, "stage_share/1 map(<lambda>)": 24 / 28},
    }
    assert {type(value) for value in found.values()} == {int, float}
    assert json.loads(json.dumps(found)) == found


def test_the_depth_is_a_number_only_where_something_reads_ahead():
    loader = stream_of(9).batch(3).prefetch(2)
    list(loader)
    assert isinstance(loader.stats().as_dict()["ready"], float)


def test_a_function_is_called_every_few_seconds_and_at_the_end(clock):
    seen = []
    loader = open_stream(SlowSource(12, clock)).batch(3).on_stats(seen.append, every_s=9)
    for _ in loader:
        clock.takes(3)
    # `next` is called at 0, 4, 8, 12 and 16 seconds
    assert [(found.records, found.seconds) for found in seen] == [(9, 12.0), (12, 16.0)]
    for _ in loader:
        pass
    assert [(found.records, found.seconds) for found in seen[2:]] == [(12, 4.0)]  # the counts begin anew


@pytest.mark.parametrize("ahead", [{}, {"threads": 2}, {"workers": 1}])
def test_it_is_called_in_the_thread_that_iterates(ahead):
    threads = []
    loader = stream_of(9).batch(3).on_stats(lambda _: threads.append(threading.get_ident()), 1e-9)
    loader = loader.map(lambda batch: batch).prefetch(2, **ahead)
    assert len(list(loader)) == 3
    assert threads == [threading.get_ident()] * 4


def test_no_batch_is_lost_where_the_function_raises():
    calls = itertools.count()

    def fail(found):
        if next(calls) in (0, 2):
            raise OSError("no network")

    loader = stream_of(9).batch(2).on_stats(fail, 1e-9)
    batches, delivered, failed = iter(loader), [], 0
    while True:
        try:
            delivered += next(batches)["id"].tolist()
        except OSError:
            failed += 1
            assert batches.state_dict() == loader.stream.cursor(len(delivered))
        except StopIteration:
            break
    assert (delivered, failed) == (list(range(9)), 2)


def test_a_function_that_fails_at_the_end_does_not_keep_a_loop_from_ending():
    calls = []

    def fail(found):
        calls.append(found.batches)
        raise OSError("no network")

    batches = iter(stream_of(9).batch(3).on_stats(fail, 3600.0))
    start = batches.state_dict()
    for _ in range(2):
        assert [len(next(batches)["id"]) for _ in range(3)] == [3, 3, 3]
        with pytest.raises(OSError, match="no network"):
            next(batches)
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(batches)
        batches.load_state_dict(start)
    assert calls == [3, 3]


@pytest.mark.parametrize("workers", [1, 2])
def test_it_counts_what_workers_did(workers):
    stream = open_stream(MemorySource(40)).map(lambda record: time.sleep(0.001) or record)
    loader = stream.batch(4).map(lambda batch: batch).prefetch(3, workers=workers).map(lambda batch: batch)
    for _ in range(2):
        assert len(list(loader)) == 10
        found = loader.stats()
        assert (found.batches, found.records) == (10, 40)
        assert list(found.stages) == ["read", "1 map(<lambda>)", "2 map(<lambda>)", "3 map(<lambda>)"]
        assert 0.04 <= found.stages["1 map(<lambda>)"] < 40
        assert 0 <= found.ready <= 3 + workers
