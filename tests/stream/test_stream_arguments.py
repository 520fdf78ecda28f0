"""Arguments that are nearly right: each error says what was meant."""

import inspect
import json
import re

import numpy as np
import pytest
from inside import Cut, NumberedBatches, names_of
from memory_source import stream_of

import yogadl
from yogadl import RecordsRef
from yogadl.errors import ConfigurationError

REF = yogadl.from_source({"x": np.arange(10)})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("seed", ["shuffle_seed="]),
        ("shufle", ["shuffle=", "shuffle_seed="]),
        ("shard", ["shard_rank=", "num_shards="]),
        ("num_shard", ["num_shards="]),
        ("rank", ["shard_rank="]),
        ("world_size", ["num_shards="]),
        ("skip", ["start_offset="]),
        ("batch_size", ["ref.stream(...).batch(n=...)"]),
        ("batch", ["ref.stream(...).batch(...)"]),
        ("epochs", ["ref.stream(...).batch(epochs=...)"]),
        ("prefetch", ["ref.stream(...).prefetch(...)"]),
        ("drop_remainder", ["drop_shard_remainder=", "ref.stream(...).batch(drop_remainder=...)"]),
        ("collate_fn", ["ref.stream(...).batch(collate=...)"]),
    ],
)
def test_a_stream_says_which_argument_was_meant(name, meant):
    with pytest.raises(ConfigurationError) as caught:
        REF.stream(**{name: 1})
    start = f"RecordsRef.stream has no argument {name!r}: did you mean "
    assert str(caught.value).startswith(start)
    assert set(str(caught.value)[len(start) : -1].split(" or ")) >= set(meant)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: REF.stream().batch(batch_size=4), "batch has no argument 'batch_size': did you mean n=?"),
        (lambda: REF.stream().batch(4, drop_last=True), "did you mean drop_remainder=?"),
        (lambda: REF.stream().batch(4, shuffle=True), "did you mean ref.stream(shuffle=...)?"),
        (lambda: REF.stream(skip_finished_epoch=True), "did you mean ref.stream(...).batch(skip_"),
        (lambda: REF.stream().prefetch(2, skip_finished_epoch=True), "did you mean stream.batch(skip_fin"),
        (lambda: REF.stream().batch(4, prefetch=2), "did you mean loader.prefetch(...)?"),
        (lambda: REF.stream().batch(4).prefetch(2, num_workers=2), "did you mean workers=?"),
        (lambda: REF.stream(colour=3), "has no argument 'colour': it has start_offset, shuffle, "),
        (lambda: yogadl.from_source([1], shuffle=True), "did you mean ref.stream(shuffle=...)?"),
        (lambda: yogadl.from_source([1], finger_print="a"), "did you mean fingerprint=?"),
        (lambda: REF.stream(True), "not True: to shuffle, pass shuffle=True"),
        (lambda: REF.stream(False), "start_offset must be a number of records, not False"),
        (lambda: REF.stream(0, 1000), "shuffle must be True, False or an order such as yogadl.Blocks("),
        (lambda: REF.stream(0, True, 7), "skip_shuffle_at_epoch_end must be True or False, not 7"),
    ],
)
def test_every_call_says_what_was_meant(call, says):
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        call()


LATE = stream_of(10, num_shards=2, start_offset=2)
CALLS = {
    "stream": lambda **given: stream_of(10, **given),
    "batch": lambda n=2, **given: stream_of(10).batch(n, **given),
    "cut": lambda **given: Cut(**{"size": 2, **given}),
    "by number": lambda n: NumberedBatches(stream_of(5), Cut(n)),
    "prefetch": lambda n=2, **given: stream_of(10).batch(2).prefetch(n, **given),
    "records'": lambda n=2, **given: stream_of(10).prefetch(n, **given),
    "at": lambda epoch=0, position=0: stream_of(10).at(epoch, position),
    "indices": lambda **given: stream_of(10).indices(**given),
    "cursor": lambda delivered=1, **given: LATE.cursor(delivered, **given),
    "batch_at": lambda step: stream_of(5).batch(2).batch_at(step),
    "on_stats": lambda fn=print, **given: stream_of(9).batch(3).on_stats(fn, **given),
}
NAN, INF = float("nan"), float("inf")
REFUSED = [  # of a call: an argument, what makes no sense for it, what the error says
    ("stream", "num_shards", (0, 2.0, True), "num_shards must be a whole number of at least 1"),
    ("stream", "shard_rank", (1,), "pass a rank from 0 to 0"),
    ("stream", "shard_rank", (-1, False), "shard_rank"),
    ("stream", "drop_shard_remainder", (1,), "drop_shard_remainder must be True or False"),
    ("stream", "pad_shard_remainder", (None,), "pad_shard_remainder must be True or False"),
    ("stream", "skip_shuffle_at_epoch_end", ("no",), "skip_shuffle_at_epoch_end must be True or False"),
    ("stream", "start_offset", (-1, 1.0), "start_offset"),
    ("stream", "shuffle", (1, "global", yogadl.Blocks), "shuffle must be"),
    ("stream", "shuffle_seed", ("7", True), "shuffle_seed must be a whole number"),
    ("batch", "n", (0, 2.0, True), "batch's n"),
    ("batch", "epochs", (0, False), "epochs"),
    ("batch", "drop_remainder", (1,), "drop_remainder"),
    ("batch", "across_epochs", (None,), "across_epochs"),
    ("batch", "skip_finished_epoch", ("yes",), "skip_finished_epoch"),
    ("batch", "collate", (3,), "collate must be a function"),
    ("batch", "padding_field", (3,), "name of a field"),
    ("batch", "padding_field", ("pair",), "choose another"),
    ("batch", "progress", (np.arange(3), 1), "progress"),
    ("cut", "size", (0, 2.0), r"batch's n (batch_size) must be a whole number of at least 1"),
    ("cut", "epochs", (0, "2"), "epochs must be a whole number of at least 1"),
    ("by number", "n", (0,), "at least 1"),
    *[
        (call, *refused)
        for call in ("prefetch", "records'")
        for refused in (
            ("n", (0, -1, 1.5, True), "prefetch's n"),
            ("workers", (-1, 1.5), "prefetch's workers"),
            ("threads", (0, -1, True), "prefetch's threads"),
        )
    ],
    ("prefetch", "timeout_s", (3,), "pass workers=1 or more"),
    ("prefetch", "worker_init", (print,), "pass workers=1 or more"),
    ("at", "epoch", (-1, 0.5, True), "epoch"),
    ("at", "position", (11, -1), "position"),
    ("indices", "epoch", (-1, True), "whole number"),
    ("indices", "start", (-1, 1.5), "whole number"),
    ("indices", "stop", (-1,), "whole number"),
    ("cursor", "delivered", (-1, 1.0, True), "delivered"),
    ("cursor", "epoch", (-1,), "epoch"),
    ("batch_at", "step", (-1, 1.5, "1", None), "step"),
    ("on_stats", "fn", (None, 5), "on_stats"),
    ("on_stats", "every_s", (0, -1.0, "1"), "every_s"),
]
TOGETHER = [
    ("stream", {"shard_rank": -1, "num_shards": 2}, "shard_rank"),
    ("stream", {"drop_shard_remainder": True, "pad_shard_remainder": True}, "exclude each other"),
    ("batch", {"n": 11, "epochs": None, "drop_remainder": True}, "never yield anything"),
    ("cursor", {"delivered": 6, "epoch": 1}, "epoch"),
    ("cursor", {"delivered": 4, "epoch": 0}, "epoch"),
    ("prefetch", {"workers": 2, "threads": 2}, "threads"),
    *[("prefetch", {"workers": 2, "timeout_s": each}, "timeout_s must be") for each in (0, "1", INF, NAN)],
    ("records'", {"workers": 2, "timeout_s": 0}, "timeout_s must be"),
    ("prefetch", {"workers": 2, "worker_init": 3}, "worker_init must be"),
    ("prefetch", {"workers": 2, "start_method": "thread"}, "start_method must be one of fork"),
    ("prefetch", {"workers": 2, "worker_threads": 0}, "worker_threads must be"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "given", "says"),
    [(call, {name: each}, says) for call, name, values, says in REFUSED for each in values] + TOGETHER,
    ids=str,
)
def test_what_makes_no_sense_is_refused(call, given, says):
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        CALLS[call](**given)


def test_numbers_of_numpy_are_numbers():
    cut = Cut(np.int64(3), np.bool_(True), np.int32(2))
    assert cut == Cut(3, True, 2)
    assert [type(value) for value in (cut.size, cut.drop_remainder, cut.epochs)] == [int, bool, int]
    options = {"shard_rank": np.int64(1), "num_shards": np.uint8(2), "shuffle": np.True_}
    stream = stream_of(10, **options, shuffle_seed=np.int32(3))
    json.dumps(stream.state_dict())
    assert len(stream) == 5


def test_what_is_right_passes_as_it_is():
    assert [r["x"] for r in REF[:3].stream(0, np.False_, shuffle_seed=None)] == [0, 1, 2]
    assert names_of(RecordsRef.stream) == tuple(inspect.signature(RecordsRef.stream).parameters)[1:]
    assert inspect.signature(REF.stream).parameters["shuffle_seed"].default is None
