"""The contract of an adapter, as a suite of tests."""

import pickle
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from yogadl._dataref import RecordsRef, from_source
from yogadl._stream import RecordStream
from yogadl.errors import CursorError, StageError

_RECORDS = 103
_EPOCHS = 3
_FAILS = 70
_PADDED = {"shard_rank": 1, "num_shards": 2, "pad_shard_remainder": True}


class AdapterContract:
    """The contract of an adapter, which hands a stream's batches to a framework.

    Inherit it, and define `make`. Batches are dicts of what numpy takes for arrays. Where loaders do not load
    a cursor as those of the library do, define how a loop stops and goes on, too: `begin`, `state` and
    `cursor`; a state is what survives pickle. An adapter says what it does not have by the tests that it
    leaves out: ``test_padding_is_told = None``, of one whose loaders don't pickle
    ``test_a_loader_pickles = None``, and of one that can't go on both tests of states and that of cursors.

    Attributes:
        errors: The exceptions that are raised where a function of the stream fails.
        refusals: The exceptions that are raised at the state of another order.
        second: The epoch that a second iterator over a loader reads, or None for the rest of the first one's.

    Example:
        The batches of the library itself::

            class TestBatches(AdapterContract):
                def make(self, stream, batch_size, *, epochs=1, **options):
                    return stream.batch(batch_size, epochs=epochs, **options)
    """

    errors: tuple[type[Exception], ...] = (StageError,)
    refusals: tuple[type[Exception], ...] = (CursorError,)
    second: int | None = 1

    def make(self, stream: Any, batch_size: int, *, epochs: int = 1, **options: Any) -> Any:
        """Return a loader, which a loop iterates over: `epochs` epochs in batches.

        Options are `drop_remainder`, `padding_field` and `skip_finished_epoch`.
        """
        raise NotImplementedError

    def begin(self, loader: Any, state: Any = None) -> Iterator[Any]:
        """Return an iterator over a loader, which goes on at a state that was saved, if one is given."""
        if state is not None:
            loader.load_state_dict(state)
        return iter(loader)

    def state(self, loader: Any, iterator: Any, delivered: int) -> Any:
        """Return what a checkpoint saves of a loop, after this many batches."""
        return iterator.state_dict()

    def cursor(self, loader: Any, iterator: Any, delivered: int) -> Any:
        """Return the stream's cursor in a loop, after this many batches."""
        return self.state(loader, iterator, delivered)

    def _read(self, stream: Any, batch_size: int, **options: Any) -> list[Any]:
        return list(self.begin(self.make(stream, batch_size, **options)))

    # An epoch that makes no batch has a test of its own.
    @pytest.mark.parametrize(
        ("batch_size", "drop_remainder"), [(1, False), (8, False), (8, True), (103, True), (200, False)]
    )
    def test_batches_are_those_of_the_stream(self, batch_size: int, drop_remainder: bool) -> None:
        whole = _epochs(range(2), batch_size, drop_remainder)
        found = self._read(_shuffled(), batch_size, epochs=2, drop_remainder=drop_remainder)
        assert list(map(_ids, found)) == whole
        for batch in found:
            x = np.asarray(batch["x"])
            assert x.dtype == np.float32
            assert np.array_equal(x, _x(_ids(batch)))

    @pytest.mark.parametrize("drop_shard_remainder", [False, True])
    def test_a_shard_is_read_alone(self, drop_shard_remainder: bool) -> None:
        order = _shuffled().indices().tolist()
        for rank in range(3):
            options = {"num_shards": 3, "drop_shard_remainder": drop_shard_remainder}
            found = self._read(_shuffled(shard_rank=rank, **options), 8)
            share = order[rank:102:3] if drop_shard_remainder else order[rank::3]
            assert [i for batch in found for i in _ids(batch)] == share

    def test_a_stream_that_begins_late_has_a_short_first_epoch(self) -> None:
        orders = [_shuffled().indices(epoch) for epoch in range(2)]
        found = self._read(_shuffled(start_offset=20), 8, epochs=2)
        assert list(map(_ids, found)) == _cut(orders[0][20:], 8) + _cut(orders[1], 8)

    def test_random_functions_get_each_record_with_its_place(self) -> None:
        drawn = _shuffled().random_map(_draw)
        noise = [{int(one["id"]): one["noise"] for one in drawn.at(epoch)} for epoch in range(2)]
        for options in ({}, _PADDED):
            stream = _shuffled(**options)
            batches = self._read(stream.random_map(_draw), 8, epochs=2)
            found = [i for batch in batches for i in _ids(batch)]
            first, second = (stream.indices(epoch).tolist() for epoch in range(2))
            assert found == first + second
            wanted = [noise[n >= len(first)][i] for n, i in enumerate(found)]
            values = np.concatenate([np.asarray(batch["noise"]) for batch in batches]).tolist()
            for last in (len(found), len(first)) if options else ():  # padding has a place beyond the epoch
                del values[last - 1], wanted[last - 1]
            assert values == wanted

    def test_padding_is_told(self) -> None:
        for rank in range(2):
            stream = _shuffled(**{**_PADDED, "shard_rank": rank})
            found = self._read(stream, 8, epochs=2, padding_field="is_padding")
            flags = [bool(flag) for batch in found for flag in np.asarray(batch["is_padding"])]
            assert flags == ([False] * 51 + [rank == 1]) * 2

    def test_a_shard_without_a_record_has_no_batch(self) -> None:
        shares = [_numbers(2).stream(shard_rank=rank, num_shards=3) for rank in range(3)]
        assert [list(map(_ids, self._read(stream, 4))) for stream in shares] == [[[0]], [[1]], []]

    def test_an_epoch_that_makes_no_full_batch_is_a_warning(self) -> None:
        with pytest.warns(UserWarning, match="there is no batch to read: 103 records make none of 200"):
            assert self._read(_shuffled(), 200, drop_remainder=True) == []

    def test_a_finished_epoch_is_passed_over_on_request(self) -> None:
        stream = _shuffled(cursor=_shuffled().cursor(_RECORDS))
        found = self._read(stream, 8, skip_finished_epoch=True)
        assert list(map(_ids, found)) == _cut(stream.indices(1), 8)

    def test_the_next_iterator_reads_what_the_adapter_says(self) -> None:
        epochs = [_epochs([epoch], 40) for epoch in range(2)]
        for read in (1, 3):
            loader = self.make(_shuffled(), 40)
            iterator = self.begin(loader)
            assert [_ids(next(iterator)) for _ in range(read)] == epochs[0][:read]
            if read == 3:
                assert next(iterator, None) is None
            left = epochs[0][read:] if self.second is None else epochs[self.second]
            assert [_ids(batch) for batch in self.begin(loader)] == left

    def test_batches_that_are_kept_do_not_change(self) -> None:
        kept, copies = [], []
        for batch in self.begin(self.make(_shuffled(), 8, epochs=_EPOCHS)):
            kept.append(batch)
            copies.append(np.asarray(batch["x"]).copy())
        for batch, copy in zip(kept, copies, strict=True):
            assert np.array_equal(batch["x"], copy)

    def test_a_function_that_fails_is_an_error_after_the_batches_before_it(self) -> None:
        stream = _numbers().stream().map(_fail_at_one)
        seen: list[int] = []
        what = re.escape(f"map(_fail_at_one) failed at record {_FAILS}: LookupError: no label")
        with pytest.raises(self.errors, match=what):
            for batch in self.begin(self.make(stream, 16)):
                seen += _ids(batch)
        assert seen == list(range(_FAILS // 16 * 16))

    @pytest.mark.parametrize("drop_remainder", [False, True])
    def test_a_loop_that_stopped_at_any_batch_goes_on_with_the_next(self, drop_remainder: bool) -> None:
        def make() -> Any:
            return self.make(_shuffled(), 40, epochs=_EPOCHS, drop_remainder=drop_remainder)

        whole = _epochs(range(_EPOCHS), 40, drop_remainder)
        loader = make()
        iterator = self.begin(loader)
        states = [self.state(loader, iterator, 0)]
        for delivered, batch in enumerate(iterator, 1):
            assert _ids(batch) == whole[delivered - 1]
            states.append(self.state(loader, iterator, delivered))
        states.append(self.state(loader, iterator, len(whole)))  # after the end
        *states, end = map(pickle.loads, map(pickle.dumps, states))
        for delivered, state in enumerate(states):
            assert [_ids(batch) for batch in self.begin(make(), state)] == whole[delivered:]
        after = [_ids(batch) for batch in self.begin(make(), end)]
        assert after in ([], _epochs(range(_EPOCHS, 2 * _EPOCHS), 40, drop_remainder))

    def test_the_state_of_another_order_is_refused(self) -> None:
        loader = self.make(_shuffled(shuffle_seed=4), 8)
        iterator = self.begin(loader)
        next(iterator)
        state = self.state(loader, iterator, 1)
        with pytest.raises(self.refusals):
            next(self.begin(self.make(_shuffled(), 8), state))

    def test_a_cursor_goes_on_with_other_ranks_and_batches_here_and_elsewhere(self) -> None:
        seen, cursors = [], []
        for rank in range(2):
            loader = self.make(_shuffled(shard_rank=rank, num_shards=2), 8)
            iterator = self.begin(loader)
            seen += [i for _ in range(3) for i in _ids(next(iterator))]
            cursors.append(self.cursor(loader, iterator, 3))
        assert cursors[0] == cursors[1] == _shuffled(num_shards=2).cursor(24)
        streams = [_shuffled(shard_rank=rank, num_shards=3, cursor=cursors[0]) for rank in range(3)]
        here = [i for stream in streams for batch in self._read(stream, 7) for i in _ids(batch)]
        in_the_core = [i for stream in streams for batch in stream.batch(5) for i in batch["id"].tolist()]
        assert here == in_the_core
        assert sorted(seen + here) == list(range(_RECORDS))

    def test_a_loader_pickles(self) -> None:
        loader = self.make(_shuffled(), 8)
        again = pickle.loads(pickle.dumps(loader))
        assert list(map(_ids, self.begin(again))) == list(map(_ids, self.begin(loader)))


def _numbers(count: int = _RECORDS) -> RecordsRef:
    ids = np.arange(count, dtype=np.int32)
    x = _x(ids)
    return from_source({"id": ids, "x": x}, fingerprint=f"numbers to {count}")


def _x(ids: Any) -> Any:
    return (np.asarray(ids)[:, None] * [100.1, 200.2, 300.3]).astype(np.float32)


def _shuffled(**options: Any) -> RecordStream:
    return _numbers().stream(**{"shuffle": True, "shuffle_seed": 3, **options})


def _draw(record: Any, rng: np.random.Generator) -> Any:
    return {"id": record["id"], "noise": np.float32(rng.random())}


def _fail_at_one(record: Any) -> Any:
    if record["id"] == _FAILS:
        raise LookupError("no label")
    return record


def _ids(batch: Any) -> list[int]:
    found: list[int] = np.asarray(batch["id"]).tolist()
    return found


def _epochs(epochs: Iterable[int], size: int, drop_remainder: bool = False) -> list[list[int]]:
    order = _shuffled()
    return [batch for epoch in epochs for batch in _cut(order.indices(epoch), size, drop_remainder)]


def _cut(ids: Any, size: int, drop_remainder: bool = False) -> list[list[int]]:
    batches: list[list[int]] = [ids[at : at + size].tolist() for at in range(0, len(ids), size)]
    return [batch for batch in batches if len(batch) == size or not drop_remainder]
