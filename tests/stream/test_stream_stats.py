"""What a loader says of itself: what it delivered, what it waited for, and where the time went."""

import io
import itertools
import pickle
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import _chain, run, stats
from memory_source import MemorySource, open_stream, stream_of

from yogadl.errors import ConfigurationError


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
    for module in (_chain, run, stats):
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


def test_progress_is_yes_or_no():
    with pytest.raises(ConfigurationError, match="progress"):
        stream_of(10).batch(4, progress=np.arange(3))


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
