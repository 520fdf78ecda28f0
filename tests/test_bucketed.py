"""Batches of records of like length: `ref.bucketed`."""

import os
from collections import Counter
from itertools import chain
from pathlib import Path

import documents
import numpy as np
import pytest
from documents import in_memory, resized, submitted
from inside import RECORDS_LIMIT, total
from trees import assert_equal, assert_same_batches

import yogadl
from yogadl.errors import CacheFormatError, ConfigurationError, CursorError, UnsupportedDataError

LENGTHS = documents.LENGTHS * 3
TOKENS = 24


@pytest.fixture
def ref(storage):
    return submitted(storage, LENGTHS)


def labels(batches):
    return Counter(int(label) for batch in batches for label in batch["label"])


EACH_ONCE = Counter(range(len(LENGTHS)))


@pytest.mark.parametrize("tokens", [40, 20, 5])
def test_batches_have_the_bytes_of_their_records(tokens):
    records = in_memory([5] * 8)
    made = records.bucketed("tokens", tokens=tokens)
    assert len(made) == 40 // tokens
    assert made.stream().plan().bytes == pytest.approx(records.stream().plan().bytes, rel=0.01)


def test_a_field_of_other_lengths_is_padded_to_its_own_longest_not_to_that_of_the_class():
    records = in_memory([5, 7, 7, 4, 6, 7] * 4)
    rows = records.bucketed("tokens", tokens=TOKENS, pad_to="class", classes=1, pad={"frames": -1}).at(0)
    for number, batch in enumerate(rows):
        pieces = rows.documents(number)
        assert batch["tokens"].shape[1] == batch["mask"].shape[1] == 7
        assert batch["mask"].sum(axis=1).tolist() == [stop for _, _, stop in pieces]
        longest = max(stop % 3 for _, _, stop in pieces)
        for frames, (record, _, _) in zip(batch["frames"], pieces, strict=True):
            own = records[record]["frames"]
            assert_equal(frames, np.append(own, np.full((longest - len(own), 2), -1, np.float32), axis=0))


def test_a_cache_gives_the_same_batches_as_memory(ref):
    ours, theirs = (one.bucketed("tokens", tokens=TOKENS) for one in (ref, in_memory(LENGTHS)))
    for epoch in range(2):
        assert_same_batches(ours.at(epoch), theirs.at(epoch))
    assert "classes of lengths" in repr(ours)
    padded = ref.bucketed("tokens", tokens=TOKENS, pad_to="class")
    assert ours.padding == 1 - sum(LENGTHS) / sum(batch["tokens"].size for batch in padded.at(0))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_record_comes_once_an_epoch_and_ranks_share_it(ref, ranks, shuffle):
    made = ref.bucketed("tokens", tokens=TOKENS, ranks=ranks)
    shards = [made.stream(shuffle=shuffle, shard_rank=r, num_shards=ranks) for r in range(ranks)]
    epochs = [[list(stream.at(epoch)) for stream in shards] for epoch in range(2)]
    for shares in epochs:
        assert sum(map(labels, shares), Counter()) == EACH_ONCE
        assert len(set(map(len, shares))) == 1
    together = [{frozenset(batch["label"].tolist()) for batch in chain(*shares)} for shares in epochs]
    assert together[0] != together[1]


def test_the_ranks_of_a_step_have_batches_of_one_class(ref):
    made = ref.bucketed("tokens", tokens=TOKENS, ranks=2, pad_to="class")
    steps = made._records.plan.steps_of_one_class
    assert steps > 2
    orders = set()
    for epoch in range(3):
        shares = [list(made.stream(shuffle=True, shard_rank=r, num_shards=2).at(epoch)) for r in range(2)]
        for step in range(steps):
            widths = {share[step]["tokens"].shape[1] for share in shares}
            assert len(widths) == 1
        orders.add(tuple(batch["tokens"].shape[1] for batch in shares[0]))
    assert len(orders) == 3
    cursor = made.stream(shuffle=True).cursor(1)
    assert cursor["order"] == {"name": "steps", "version": 1, "steps": steps, "size": 2, "draw": 1}


def test_one_record_of_the_stream_is_one_batch_of_the_loader(ref):
    made = ref.bucketed("tokens", tokens=TOKENS)
    plain = list(made.stream(shuffle=True))
    loader = made.stream(shuffle=True).batch(None, epochs=2)
    assert len(list(loader)) == 2 * len(plain)
    for options in ({}, {"n": 2}, {"n": 2, "threads": 2}, {"n": 2, "workers": 2}):
        loader = made.stream(shuffle=True).batch(None)
        batches = iter(loader.prefetch(**options) if options else loader)
        for number, wanted in enumerate(plain):
            assert_equal(next(batches), wanted)
            assert batches.state_dict()["position"] == number + 1
            [documents] = batches.last.documents
            assert [(document.record, document.start) for document in documents] == [
                (label, 0) for label in wanted["label"]
            ]
            assert [document.stop for document in documents] == wanted["lengths"].tolist()
        assert next(batches, None) is None
    assert_equal(loader.batch_at(3), plain[3])


def test_a_batch_of_one_record_is_the_record():
    flagged = next(iter(in_memory().stream().batch(None, padding_field="is_padding")))
    assert flagged["is_padding"].shape == ()
    assert not flagged["is_padding"]
    with pytest.raises(ConfigurationError, match="n=None each record is a batch"):
        in_memory().stream().batch(None, collate=list)
    texts = yogadl.from_source([{"text": text, "n": n} for n, text in enumerate(["a", "bb" * 5000, ""])])
    for workers in (0, 2):
        found = list(texts.stream().batch(None).prefetch(1, workers=workers))
        assert [(one["text"], int(one["n"])) for one in found] == [("a", 0), ("bb" * 5000, 1), ("", 2)]


@pytest.mark.parametrize(
    ("record", "text"),
    [({"tokens": np.arange(3), "text": "a"}, "can't be padded"), (np.arange(3), "dicts"),
     ({"a": {"b": 1}, "tokens": np.arange(3)}, "others inside")],
)  # fmt: skip
def test_records_that_make_no_batch_are_refused(record, text):
    with pytest.raises(ConfigurationError, match=text):
        yogadl.from_source([record]).bucketed("tokens", tokens=9)


@pytest.mark.parametrize(
    "change",
    [{"tokens": TOKENS + 40}, {"max_records": 2}, {"pad_to": "class"}, {"pad": {"mask": 1}}],
    ids=str,
)
def test_a_cursor_is_of_all_arguments(ref, change):
    cursor = ref.bucketed("tokens", tokens=TOKENS).stream().cursor(1)
    with pytest.raises(CursorError):
        ref.bucketed("tokens", **{"tokens": TOKENS, **change}).stream(cursor=cursor)


def test_mixes_and_several_epochs_at_once(ref):
    made = ref.bucketed("tokens", tokens=TOKENS)
    mixed = yogadl.mix({"a": (made, 1), "b": (made, 1)})
    counted = labels(mixed.stream(shuffle=True))
    assert counted.keys() == EACH_ONCE.keys()
    assert set(counted.values()) <= {1, 2}
    across = made.fields("label").stream(shuffle=True).batch(7, epochs=2, across_epochs=True)
    assert Counter(int(x) for batch in across for one in batch["label"] for x in one) == EACH_ONCE + EACH_ONCE


def test_fields_that_are_left_out_are_not_needed(ref):
    made = ref.bucketed("tokens", tokens=TOKENS, lengths=None)
    assert [list(batch) for batch in made.fields("label").at(0)] == [["label"]] * len(made)
    assert made.spec.keys() == ["tokens", "weights", "mask", "frames", "label"]


def test_the_plan_is_kept(storage, ref):
    made = ref.bucketed("tokens", tokens=TOKENS)
    [file] = Path(storage.location).glob("docs/tables/*/*.plan")
    content = file.read_bytes()
    os.utime(file, ns=(1, 1))
    assert ref.bucketed("tokens", tokens=TOKENS, pad_to="class").fingerprint != made.fingerprint
    assert list(Path(storage.location).glob("docs/tables/*/*.plan")) == [file]
    assert file.stat().st_mtime_ns == 1  # it was not made again
    file.chmod(0o644)
    file.write_bytes(content[:-3])
    again = storage.fetch("docs", "1").bucketed("tokens", tokens=TOKENS)
    assert again.fingerprint == made.fingerprint
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"by": "nothing"}, "no field 'nothing'"),
        ({"by": "label"}, "first axis"),
        ({"tokens": 0}, "tokens"),
        ({"max_records": 0}, "max_records"),
        ({"pad_to": "most"}, "pad_to"),
        ({"long": "cut"}, "long"),
        ({"long": "raise"}, "record 21 has 33 values"),
        ({"pad": 1}, "pad is a dict"),
        ({"pad": {"tokens": "a"}}, "no single value"),
        ({"lengths": "tokens"}, "another name"),
        ({"lengths": 3}, "lengths is the name"),
        ({"classes": 0}, "classes"),
        ({"ranks": 0}, "ranks"),
        ({"workers": -1}, "workers"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(ref, options, text):
    with pytest.raises(ConfigurationError, match=text):
        ref.bucketed(**{"by": "tokens", "tokens": TOKENS, **options})


@pytest.mark.parametrize("lengths", [[5, 5, 5, 2], [40, 3, 3]])
def test_a_function_that_gives_other_lengths_later_makes_no_batch_over_the_budget(lengths):
    more = 0
    mapped = in_memory(lengths).map(lambda record: resized(record, more), spec=documents.TOKENS)
    batches = mapped.bucketed("tokens", tokens=10)
    whole = list(batches.stream())
    more = -1  # this stays below the budget
    assert len(list(batches.stream())) == len(whole)
    more = 1
    with pytest.raises(UnsupportedDataError, match=r"but had \d+ or fewer when .* must return the same each"):
        list(batches.stream())
    more = 0
    assert_equal(list(batches.stream()), whole)


@pytest.mark.parametrize("counts", [[-1, 2], [RECORDS_LIMIT, RECORDS_LIMIT // 1024], [RECORDS_LIMIT] * 4])
def test_counts_that_are_too_many_are_refused_even_if_their_sum_wraps(counts):
    with pytest.raises(CacheFormatError, match="too many pieces"):
        total(np.array(counts), "pieces")
    assert total(np.array([RECORDS_LIMIT - 1024, 1024]), "pieces") == RECORDS_LIMIT
    assert total(np.array([], np.int64), "pieces") == 0
