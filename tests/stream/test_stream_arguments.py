"""Arguments that are nearly right: each error says what was meant."""

import inspect
import re

import numpy as np
import pytest
from inside import names_of

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


def test_what_is_right_passes_as_it_is():
    assert [r["x"] for r in REF[:3].stream(0, np.False_, shuffle_seed=None)] == [0, 1, 2]
    assert names_of(RecordsRef.stream) == tuple(inspect.signature(RecordsRef.stream).parameters)[1:]
    assert inspect.signature(REF.stream).parameters["shuffle_seed"].default is None
