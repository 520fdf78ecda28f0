"""Streams of `Sequences`: each row of a batch follows one episode, at any place and rank."""

import hashlib
import itertools
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inside import _KEPT_LAYOUTS, _LEVELLING, SequencesOfEpisodes, SequencesOrder

import yogadl
from yogadl import Sequences
from yogadl.errors import ConfigurationError, CursorError, StageError

LENGTHS = [5, 1, 7, 2, 2, 13, 1, 4, 9, 3, 3, 8, 1, 30, 6, 2, 11, 5, 4, 7]
RECORDS = sum(LENGTHS)


def episodes_of(lengths: Iterable[int] = LENGTHS) -> np.ndarray:
    return np.concatenate([np.full(length, number) for number, length in enumerate(lengths)])


def ref_of(episodes: np.ndarray | None = None) -> yogadl.RecordsRef:
    found = episodes_of() if episodes is None else episodes
    return yogadl.from_source({"episode": found, "record": np.arange(len(found))}, "sequences")


def scattered(lengths: Iterable[int] = LENGTHS) -> np.ndarray:
    return np.random.default_rng(5).permutation(episodes_of(lengths))


def followers(episodes: np.ndarray) -> dict[int, int]:
    """Return the record that follows each record in its episode."""
    pairs = {}
    for episode in np.unique(episodes):
        records = np.flatnonzero(episodes == episode).tolist()
        pairs.update(itertools.pairwise(records))
    return pairs


class Rows:
    """Checks that each row of the batches of one rank is marked, or the next record of the row before."""

    def __init__(self, episodes: np.ndarray) -> None:
        self._next = followers(episodes)
        self.before: list[int] = []

    def take(self, batch: Any) -> list[int]:
        records = batch["record"].tolist()
        for row, (record, is_first) in enumerate(zip(records, batch["is_first"].tolist(), strict=True)):
            if not is_first:
                assert record == self._next[self.before[row]], (row, record)
        self.before = [*records, *self.before[len(records) :]]
        return records


@pytest.mark.parametrize("episodes", [episodes_of(), scattered(), episodes_of([40]), episodes_of([1] * 23)])
@pytest.mark.parametrize("lanes", [1, 2, 7, 8, 64])
def test_each_row_goes_on_with_its_episode_and_each_record_comes_once(
    episodes: np.ndarray, lanes: int
) -> None:
    rows = Rows(episodes)
    batches = ref_of(episodes).stream(shuffle=Sequences(lanes, "episode"), shuffle_seed=3).batch(lanes)
    epochs = []
    for epoch in range(_KEPT_LAYOUTS + 2):
        found = [record for batch in batches.at(epoch) for record in rows.take(batch)]
        assert sorted(found) == list(range(len(episodes)))
        epochs.append(found)
    assert len({tuple(found) for found in epochs}) > 1 or len(set(episodes.tolist())) == 1
    assert [record for batch in batches.at(0) for record in batch["record"].tolist()] == epochs[0]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("episodes", [episodes_of(), scattered()])
def test_batches_across_epochs_keep_the_lanes_of_all_ranks(episodes: np.ndarray, ranks: int) -> None:
    counts: dict[int, int] = {}
    for rank in range(ranks):
        stream = ref_of(episodes).stream(
            shuffle=Sequences(8, "episode"), shard_rank=rank, num_shards=ranks, drop_shard_remainder=True
        )
        rows, batches = Rows(episodes), stream.batch(8 // ranks, epochs=3, across_epochs=True)
        for batch in batches:
            for record in rows.take(batch):
                counts[record] = counts.get(record, 0) + 1
    assert max(counts.values()) <= 3
    assert sum(counts.values()) == RECORDS // ranks * ranks * 3


@pytest.mark.parametrize("remainder", ["drop_shard_remainder", "pad_shard_remainder"])
def test_a_cursor_goes_on_in_each_lane_on_any_number_of_ranks(remainder: str) -> None:
    episodes = scattered()
    ref, shuffle = ref_of(episodes), Sequences(8, "episode")
    pairs = followers(episodes)
    for ranks in (1, 2, 4):
        options: dict[str, Any] = {"shuffle": shuffle, "shuffle_seed": 1, remainder: True}
        loaders = [
            ref.stream(**options, shard_rank=rank, num_shards=ranks).batch(8 // ranks, True, epochs=2)
            for rank in range(ranks)
        ]
        iterators = [iter(loader) for loader in loaders]
        for batches in zip(*iterators, strict=True):
            cursor = iterators[0].state_dict()
            assert all(iterator.state_dict() == cursor for iterator in iterators)
            lanes = np.stack([batch["record"] for batch in batches], axis=1).reshape(-1)
            for others in (1, 2, 4):
                if cursor["position"] + 8 > RECORDS:
                    continue
                found = [
                    next(
                        iter(
                            ref.stream(**options, cursor=cursor, shard_rank=rank, num_shards=others).batch(
                                8 // others
                            )
                        )
                    )
                    for rank in range(others)
                ]
                after = np.stack([batch["record"] for batch in found], axis=1).reshape(-1)
                marks = np.stack([batch["is_first"] for batch in found], axis=1).reshape(-1)
                for before, record, is_first in zip(lanes, after, marks, strict=True):
                    assert is_first or pairs[int(before)] == int(record)


def test_padding_is_marked() -> None:
    ref = ref_of()
    stream = ref.stream(shuffle=Sequences(8, "episode"), shard_rank=7, num_shards=8, pad_shard_remainder=True)
    *_, last = stream.batch(1, padding_field="is_padding")
    assert last["is_padding"].tolist() == [RECORDS % 8 != 0] == last["is_first"].tolist()


def pieces_of(lengths: list[int], lanes: int, seed: int) -> tuple[int, int]:
    """Return how many pieces begin in the middle of an episode, and how many records these have."""
    episodes = episodes_of(lengths)
    batches = ref_of(episodes).stream(shuffle=Sequences(lanes, "episode"), shuffle_seed=seed).batch(lanes)
    begins = set(np.flatnonzero(np.diff(episodes, prepend=-1)).tolist())
    is_cut, pieces, records = [False] * lanes, 0, 0
    for batch in batches:
        for row, (record, is_first) in enumerate(zip(batch["record"], batch["is_first"], strict=True)):
            if is_first:
                is_cut[row] = int(record) not in begins
                pieces += is_cut[row]
            records += is_cut[row]
    return pieces, records


@pytest.mark.parametrize(
    "count", [8 * _LEVELLING - 1, 8 * _LEVELLING, 8 * _LEVELLING + 1, 8 * _LEVELLING * 9]
)
def test_few_episodes_are_cut_and_little_of_them(count: int) -> None:
    lengths = (1 + np.random.default_rng(count).integers(20, 60, count)).tolist()
    for seed in range(3):
        pieces, records = pieces_of(lengths, 8, seed)
        assert pieces < 8
        assert records < 0.05 * sum(lengths)


def test_episodes_of_equal_length_that_fill_the_lanes_are_not_cut() -> None:
    assert pieces_of([7] * 8, 8, 0) == pieces_of([7] * 800, 8, 1) == (0, 0)


def test_a_single_series_is_cut_into_equal_stretches() -> None:
    series = yogadl.from_source({"record": np.arange(43)}, "series").windows(
        {"record": [0]}, None, masks=None
    )
    batches = list(series.stream(shuffle=Sequences(4)).batch(4))
    lanes = [
        [int(batch["record"][lane, 0]) for batch in batches if lane < len(batch["record"])]
        for lane in range(4)
    ]
    assert lanes == [list(range(0, 11)), list(range(11, 22)), list(range(22, 33)), list(range(33, 43))]
    assert [batch["is_first"].all() for batch in batches] == [True] + [False] * 10


@pytest.mark.parametrize(
    "view",
    [
        lambda windows: windows,
        lambda windows: windows.map(lambda record: record),
        lambda windows: windows.fields("record", "episode"),
        lambda windows: windows[3:70],
        lambda windows: windows[:],
    ],
)
def test_windows_have_episodes_of_their_own(view: Callable[[Any], Any]) -> None:
    windows = view(ref_of(scattered()).windows({"record": [0, 1]}, "episode", drop_last=1))
    now = {int(window["record"][0]): int(window["record"][1]) for window in windows}
    before, count = [-1] * 4, 0
    for batch in windows.stream(shuffle=Sequences(4)).batch(4):
        for row, (pair, is_first) in enumerate(zip(batch["record"], batch["is_first"], strict=True)):
            assert is_first or now[before[row]] == int(pair[0])
            before[row], count = int(pair[0]), count + 1
    assert count == len(windows)


def test_the_field_is_last_and_can_be_left_out_or_named() -> None:
    ref = ref_of()
    named = ref.stream(shuffle=Sequences(4, "episode", first="begins"))
    assert named.spec.keys() == ["episode", "record", "begins"]
    assert next(iter(named))["begins"]
    plain = ref.stream(shuffle=Sequences(4, "episode", first=None))
    assert plain.spec == ref.spec
    assert plain.indices(1).tolist() == named.indices(1).tolist()
    assert sorted(plain.indices(1).tolist()) == list(range(RECORDS))
    cursor = named.cursor(7)
    resumed = ref.stream(shuffle=Sequences(4, "episode", first=None), cursor=cursor)
    assert resumed.indices().tolist() == plain.indices()[7:].tolist()
    function = named.map(lambda record: {"both": record["record"] * 2 + record["begins"]})
    found = [int(record["both"]) for record in function]
    assert [both // 2 for both in found] == named.indices(0).tolist()
    assert found[0] % 2 == 1


def test_some_of_the_fields_are_read_alone() -> None:
    run = ref_of().stream(shuffle=Sequences(4, "episode")).run
    rows = run.rows(run.start, 0, 9)
    episode, record, marks = run.read(rows)
    for fields, expected in (([2, 0], [marks, episode]), ([1], [record]), ([2], [marks])):
        found = run.read(rows, fields)
        assert [column.tolist() for column in found] == [column.tolist() for column in expected]


def test_no_records_make_no_sequences() -> None:
    none = ref_of().filter(lambda record: False)
    assert list(none.stream(shuffle=Sequences(4, "episode")).batch(4)) == []
    order = SequencesOrder(0, 0, SequencesOfEpisodes(Sequences(4), np.empty(0, np.int64)))
    assert order.indices(np.empty(0, np.int64), 0).tolist() == []


def test_an_order_says_what_it_is_and_keeps_few_layouts() -> None:
    order = SequencesOrder(10, 5, SequencesOfEpisodes(Sequences(3, "episode"), np.array([4, 10])))
    digest = hashlib.sha256(np.array([4, 10], "<i8").tobytes()).hexdigest()[:16]
    assert order.describe() == {"name": "sequences", "version": 1, "lanes": 3, "episodes": digest}
    assert (order.records, order.seed, order.lanes) == (10, 5, 3)
    for epoch in range(_KEPT_LAYOUTS + 3):
        order.indices(np.arange(10), epoch)
    assert len(order._layouts) == _KEPT_LAYOUTS


def test_a_cursor_of_other_episodes_or_lanes_is_refused() -> None:
    episodes = np.array([0, 0, 0, 1, 1, 1])
    cursor = ref_of(episodes).stream(shuffle=Sequences(2, "episode")).cursor(2)
    for other, lanes in ((np.array([0, 0, 1, 1, 1, 1]), 2), (episodes, 3)):
        with pytest.raises(CursorError, match="another order"):
            ref_of(other).stream(shuffle=Sequences(lanes, "episode"), cursor=cursor)


def test_a_cursor_that_leaves_out_positions_is_of_another_order() -> None:
    ref = ref_of()
    cursor = ref.stream().skip_ranges([(0, 4)]).cursor(3)
    with pytest.raises(CursorError, match="another order"):
        ref.stream(shuffle=Sequences(4, "episode"), cursor=cursor)
    forged = {**STREAM.cursor(8), "skip_ranges": [[0, 8]]}
    with pytest.raises(CursorError, match="without the positions"):
        ref.stream(shuffle=Sequences(8, "episode"), cursor=forged)


def test_an_episode_comes_in_any_lane_at_any_time() -> None:
    ends, seeds = np.cumsum([7] * 40), 600
    lanes, turns = np.zeros((40, 4), int), np.zeros((40, 10), int)
    for seed in range(seeds):
        order = SequencesOrder(280, seed, SequencesOfEpisodes(Sequences(4), ends))
        begins = np.flatnonzero(order.indices(np.arange(280), seed % 3) >= 280)
        episodes = (order.indices(begins, seed % 3) - 280) // 7
        np.add.at(lanes, (episodes, begins % 4), 1)
        np.add.at(turns, (episodes, begins // 4 // 7), 1)
    for counts in (lanes, turns):
        expected = seeds / counts.shape[1]
        assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_threads_workers_and_tickets_give_the_same_records() -> None:
    stream = ref_of(scattered()).stream(shuffle=Sequences(8, "episode"), shuffle_seed=2)
    expected = [(batch["record"].tolist(), batch["is_first"].tolist()) for batch in stream.batch(8)]
    for options in ({"threads": 2}, {"workers": 2}):
        found = stream.batch(8).prefetch(3, **options)
        assert [(batch["record"].tolist(), batch["is_first"].tolist()) for batch in found] == expected
    tickets = [(int(t.record["record"]), bool(t.record["is_first"])) for t in done(stream.tickets(epochs=1))]
    pairs = [pair for batch in expected for pair in zip(*batch, strict=True)]
    assert tickets == pairs
    again = pickle.loads(pickle.dumps(stream))
    assert next(iter(again.batch(8)))["record"].tolist() == expected[0][0]
    assert stream.plan().records == RECORDS


def done(tickets: Iterable[Any]) -> Iterator[Any]:
    for ticket in tickets:
        yield ticket
        ticket.done()


def test_episodes_are_kept_beside_the_cache(tmp_path: Path) -> None:
    storage = yogadl.open_storage(tmp_path)
    records = [{"episode": int(episode), "record": n} for n, episode in enumerate(scattered())]
    ref = storage.submit(records, "steps", "1")
    expected = ref.stream(shuffle=Sequences(8, "episode")).indices(3).tolist()
    plans = {path for path in tmp_path.rglob("*") if path.is_file()}
    again = yogadl.open_storage(tmp_path).fetch("steps", "1")
    again.windows({"record": [0]}, "episode")  # needs the same plan
    assert again.stream(shuffle=Sequences(8, "episode")).indices(3).tolist() == expected
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == plans


def failing(record: Any) -> Any:
    if record["record"] == 0:
        raise ValueError("broken")
    return record


def test_a_broken_record_is_named_by_its_number() -> None:
    stream = ref_of().stream(shuffle=Sequences(4, "episode"))
    with pytest.raises(StageError, match="at record 0:"):
        list(stream.map(failing, spec=stream.spec).batch(4))


STREAM = ref_of().stream(shuffle=Sequences(8, "episode"))
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Sequences(0), "lanes must be from 1"),
    (lambda: Sequences(8, first=""), "first must be the name of a field"),
    (lambda: Sequences(8, first=True), "first must be the name of a field"),  # type: ignore[arg-type]
    (lambda: ref_of().stream(shuffle=Sequences(8)), r'Sequences\(lanes=8, within="episode"\)'),
    (lambda: ref_of()[::2].stream(shuffle=Sequences(8)), "needs the episode"),
    (lambda: ref_of().stream(shuffle=Sequences(8, "other")), "no field 'other'"),
    (lambda: ref_of().stream(shuffle=Sequences(8, "episode", "record")), "already a field 'record'"),
    (
        lambda: (
            ref_of()
            .fields("episode")
            .map(lambda record: record["episode"])
            .stream(shuffle=Sequences(2, None))
        ),
        "needs the episode",
    ),
    (
        lambda: ref_of().map(lambda record: (record["episode"],)).stream(shuffle=Sequences(2, "0")),
        r'ref.map\(lambda record: \{"value": record\}\)',
    ),
    (lambda: STREAM.batch(4), "must be 8, not 4"),
    (lambda: STREAM.batch(16), "must be 8, not 16"),
    (lambda: ref_of().stream(shuffle=Sequences(8, "episode"), num_shards=2).batch(8), "must be 4, not 8"),
    (lambda: ref_of().stream(shuffle=Sequences(8, "episode"), num_shards=3), "multiple of 3"),
    (lambda: STREAM.skip_ranges([(0, 8)]), "can't leave out positions"),
    (lambda: ref_of().stream(8, shuffle=Sequences(8, "episode")), "can't begin at start_offset"),
    (lambda: STREAM.map(failing, on_error="substitute"), "a record of another time"),
    (lambda: ref_of().sampled().stream(shuffle=Sequences(8, "episode")), "make no sequences"),
    (lambda: yogadl.mix({"a": (ref_of(), 1)}).stream(shuffle=Sequences(8, "episode")), "yogadl.concat"),
]


@pytest.mark.parametrize(("refused", "words"), REFUSED)
def test_what_would_break_a_sequence_is_refused(refused: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        refused()


def test_what_breaks_none_is_not() -> None:
    assert len(list(STREAM.skip_ranges([]).batch(None))) == RECORDS
    with pytest.raises(StageError, match="broken"):
        list(STREAM.map(failing, spec=STREAM.spec, on_error="raise").batch(8))


def test_many_episodes_are_laid_out_quickly() -> None:
    sizes = 1 + np.random.default_rng(0).integers(0, 400, 100_000)
    order = SequencesOrder(int(sizes.sum()), 1, SequencesOfEpisodes(Sequences(64), np.cumsum(sizes)))
    began = time.process_time()
    order.indices(np.arange(64), 0)
    assert time.process_time() - began < 0.5
