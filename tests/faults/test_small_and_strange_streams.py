"""Streams of caches that are tiny, and cursors that are not theirs."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yogadl
from yogadl.errors import ConfigurationError, CursorError


def cache(root: Path, records: int, version: str = "1") -> Any:
    storage = yogadl.open_storage(root)
    storage.submit(({"i": i} for i in range(records)), "data", version, part_bytes=64)
    return storage.fetch("data", version)


def numbers(items: Any) -> list[int]:
    return [number for item in items for number in np.atleast_1d(item["i"]).tolist()]


@pytest.mark.parametrize("records", [1, 2, 5])
@pytest.mark.parametrize("shuffle", [False, True, yogadl.Blocks(records=2, window=2, lanes=3)], ids=repr)
def test_more_shards_than_records_read_each_record_once(tmp_path: Path, records: int, shuffle: Any) -> None:
    ref = cache(tmp_path, records)

    def shards(**options: Any) -> list[list[int]]:
        return [
            numbers(
                ref.stream(shuffle=shuffle, shard_rank=rank, num_shards=8, **options).batch(2).prefetch(1)
            )
            for rank in range(8)
        ]

    uneven = shards()
    assert sorted(itertools.chain(*uneven)) == list(range(records))
    assert all(len(found) <= 1 for found in uneven)
    padded = shards(pad_shard_remainder=True)
    assert all(len(found) == 1 for found in padded)
    assert set(itertools.chain(*padded)) == set(range(records))
    assert shards(drop_shard_remainder=True) == [[]] * 8


@pytest.mark.parametrize("shuffle", [False, True, yogadl.Blocks(records=2, window=2, lanes=3)], ids=repr)
def test_a_cache_of_one_record_streams_shuffles_and_resumes(tmp_path: Path, shuffle: Any) -> None:
    ref = cache(tmp_path, 1)
    loader = ref.stream(shuffle=shuffle).batch(4, epochs=3)
    assert numbers(loader) == [0, 0, 0]
    items = iter(loader)
    next(items)
    state = json.loads(json.dumps(items.state_dict()))
    assert numbers(ref.stream(shuffle=shuffle, cursor=state).batch(1)) == []
    assert numbers(ref.stream(shuffle=shuffle).at(epoch=10**12)) == [0]
    assert [record["i"] for record in ref.stream(num_shards=2, shard_rank=1)] == []


def test_an_endless_loader_that_would_never_yield_is_refused(tmp_path: Path) -> None:
    ref = cache(tmp_path, 3)
    with pytest.raises(ConfigurationError):
        ref.stream(num_shards=8, shard_rank=5, drop_shard_remainder=True).batch(1, epochs=None)
    with pytest.raises(ConfigurationError):
        ref.stream().batch(4, drop_remainder=True, epochs=None)


@pytest.mark.parametrize(
    "change",
    [
        {"position": 11},
        {"position": -1},
        {"position": 2**63},
        {"position": 2.5},
        {"position": "3"},
        {"position": None},
        {"position": True},
        {"epoch": -1},
        {"epoch": 10**30},
        {"epoch": "0"},
        {"records": 11},
        {"fingerprint": "0" * 32},
        {"fingerprint": None},
        {"seed": 1},
        {"seed": "0"},
        {"order": {}},
        {"order": "shuffle"},
        {"order": None},
        {"skip_shuffle_at_epoch_end": True},
        {"yogadl": 2},
        {"yogadl": None},
        {"more": 1},
        {"shard": [0, 2]},
    ],
    ids=repr,
)
def test_a_cursor_edited_by_hand_is_refused_everywhere(tmp_path: Path, change: dict[str, Any]) -> None:
    ref = cache(tmp_path, 10)
    stream = ref.stream(shuffle=True)
    items = iter(stream.batch(3))
    next(items)
    state = items.state_dict() | change
    expected = numbers([next(items)])
    with pytest.raises(CursorError):
        ref.stream(shuffle=True, cursor=state)
    for target in (stream, stream.batch(3), iter(stream), items):
        with pytest.raises(CursorError):
            target.load_state_dict(state)
    # And it changed nothing.
    assert numbers(items)[:3] == numbers(stream.batch(3).at(0, 6))[:3]
    assert expected == numbers(stream.batch(3).at(0, 3))[:3]


@pytest.mark.parametrize("state", [None, [], "cursor", 7, {}, {"epoch": 0, "position": 3}, b""], ids=repr)
def test_what_is_no_cursor_is_refused(tmp_path: Path, state: Any) -> None:
    ref = cache(tmp_path, 10)
    with pytest.raises(CursorError):
        ref.stream().load_state_dict(state)
    if state is not None:
        with pytest.raises(CursorError):
            ref.stream(cursor=state)


def test_a_cursor_of_another_dataset_or_of_a_replaced_version_is_refused(tmp_path: Path) -> None:
    ref = cache(tmp_path, 10)
    cursor = ref.stream().cursor(delivered=4)
    other = cache(tmp_path, 11, "2")
    with pytest.raises(CursorError, match="other data"):
        other.stream(cursor=cursor)
    yogadl.open_storage(tmp_path).submit(({"i": 9 - i} for i in range(10)), "data", "1")
    replaced = yogadl.open_storage(tmp_path).fetch("data", "1")
    with pytest.raises(CursorError, match="other data"):
        replaced.stream(cursor=cursor)
    assert numbers(replaced.stream(cursor=cursor, rebind=True)) == [5, 4, 3, 2, 1, 0]
    assert numbers(ref.stream(cursor=cursor)) == [4, 5, 6, 7, 8, 9]


def test_a_cursor_goes_on_over_the_same_data_built_anew_in_other_parts(tmp_path: Path) -> None:
    ref = cache(tmp_path, 50)
    cursor = ref.stream(shuffle=True, num_shards=3).cursor(delivered=7)
    storage = yogadl.open_storage(tmp_path)
    storage.submit({"i": np.arange(50)}, "data", "1")
    again = storage.fetch("data", "1")
    assert again.fingerprint == ref.fingerprint
    assert numbers(again.stream(shuffle=True, cursor=cursor)) == numbers(ref.stream(shuffle=True))[21:]
