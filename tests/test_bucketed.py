"""Batches of records of like length: `ref.bucketed`."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import yogadl
from yogadl import Leaf
from yogadl.errors import ConfigurationError, CursorError, UnsupportedDataError

LENGTHS = [3, 0, 7, 1, 5, 5, 2, 19, 4, 1, 8, 0, 6, 2, 2, 11, 3, 9, 1, 4, 5, 33, 2, 6] * 3
TOKENS = 24


def documents(lengths=LENGTHS):
    return [
        {
            "tokens": np.arange(1, length + 1, dtype=np.int32) + 1000 * number,
            "mask": np.ones(length, np.uint8),
            "frames": np.full((length % 3, 2), number, np.float32),
            "label": number,
        }
        for number, length in enumerate(lengths)
    ]


SPEC = {
    "tokens": Leaf("int32", (None,)),
    "mask": Leaf("uint8", (None,)),
    "frames": Leaf("float32", (None, 2)),
}


def in_memory(lengths=LENGTHS):
    return yogadl.from_source(documents(lengths), spec=SPEC)


@pytest.fixture
def ref(storage):
    storage.submit(documents(), "docs", "1", part_bytes=3000)
    return storage.fetch("docs", "1")


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, wanted[name])
        assert value.dtype == wanted[name].dtype


def labels(batches):
    return Counter(int(label) for batch in batches for label in batch["label"])


EACH_ONCE = Counter(range(len(LENGTHS)))


@pytest.mark.parametrize("tokens", [40, 20, 5])
def test_batches_have_the_bytes_of_their_records(tokens):
    records = in_memory([5] * 8)
    made = records.bucketed("tokens", tokens=tokens)
    assert len(made) == 40 // tokens
    assert made.stream().plan().bytes == pytest.approx(records.stream().plan().bytes, rel=0.01)


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    tokens=st.integers(1, 60),
    max_records=st.sampled_from([None, 1, 3]),
    pad_to=st.sampled_from(["longest", "class"]),
    epoch=st.integers(0, 3),
)
def test_batches_are_their_records_padded(lengths, tokens, max_records, pad_to, epoch):
    records = documents(lengths)
    made = in_memory(lengths).bucketed(
        "tokens", tokens=tokens, max_records=max_records, pad_to=pad_to, pad={"tokens": -1}
    )
    rows = made.at(epoch, seed=3)
    seen = Counter()
    shapes = set()
    for number in range(len(made)):
        batch, found = rows[number], rows.documents(number)
        seen.update(record for record, _, _ in found)
        assert batch["label"].tolist() == [record for record, _, _ in found]
        assert batch["lengths"].tolist() == [stop for _, _, stop in found]
        assert len(found) == 1 or len(found) * batch["tokens"].shape[1] <= tokens
        assert len(found) <= (max_records or len(found))
        longest = max(stop for _, _, stop in found)
        assert batch["tokens"].shape[1] >= longest
        assert batch["mask"].shape == batch["tokens"].shape
        if pad_to == "longest":
            assert batch["tokens"].shape[1] == longest
        shapes.add(batch["tokens"].shape[1])
        for row, (record, _, length) in enumerate(found):
            wanted = records[record]
            assert batch["tokens"][row].tolist()[:length] == wanted["tokens"].tolist()
            assert (batch["tokens"][row][length:] == -1).all()
            assert batch["mask"][row].sum() == length
            assert batch["frames"][row].sum() == wanted["frames"].sum()
    assert seen == Counter(range(len(lengths)))
    if pad_to == "class":
        over = {length for length in lengths if length > tokens}
        assert len(shapes - over) <= len(made._records.plan.longest)


def test_a_field_of_other_lengths_is_padded_to_its_own_longest_not_to_that_of_the_class():
    rows = (
        in_memory([5, 7, 7, 4, 6, 7] * 4).bucketed("tokens", tokens=TOKENS, pad_to="class", classes=1).at(0)
    )
    for number, batch in enumerate(rows):
        assert batch["tokens"].shape[1] == batch["mask"].shape[1] == 7
        assert batch["frames"].shape[1] == max(stop % 3 for _, _, stop in rows.documents(number))


def test_a_cache_gives_the_same_batches_as_memory(ref):
    ours, theirs = (one.bucketed("tokens", tokens=TOKENS) for one in (ref, in_memory()))
    for epoch in range(2):
        for found, wanted in zip(ours.at(epoch), theirs.at(epoch), strict=True):
            same(found, wanted)
    assert "classes of lengths" in repr(ours)
    padded = ref.bucketed("tokens", tokens=TOKENS, pad_to="class")
    assert ours.padding == 1 - sum(LENGTHS) / sum(batch["tokens"].size for batch in padded.at(0))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_record_comes_once_an_epoch_and_ranks_share_it(ref, ranks, shuffle):
    made = ref.bucketed("tokens", tokens=TOKENS, ranks=ranks)
    epochs = []
    for epoch in range(2):
        shards = [made.stream(shuffle=shuffle, shard_rank=r, num_shards=ranks) for r in range(ranks)]
        found = [list(stream.at(epoch)) for stream in shards]
        assert sum(map(labels, found), Counter()) == EACH_ONCE
        epochs.append(found)
    assert [len(share) for share in epochs[0]] == [len(share) for share in epochs[1]]
    together = [
        {frozenset(batch["label"].tolist()) for share in found for batch in share} for found in epochs
    ]
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


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_every_rank_has_as_many_batches(ref, ranks):
    made = ref.bucketed("tokens", tokens=TOKENS, ranks=ranks)
    shares = [list(made.stream(shuffle=True, shard_rank=r, num_shards=ranks)) for r in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    assert labels(batch for share in shares for batch in share) == EACH_ONCE


def test_the_documents_of_a_batch_are_known(ref):
    made = ref.bucketed("tokens", tokens=TOKENS)
    batches, seen = iter(made.stream(shuffle=True)), []
    for batch in batches:
        seen.append(batch)
        [documents] = batches.last.documents
        assert [document.record for document in documents] == batch["label"].tolist()
        assert [document.stop for document in documents] == batch["lengths"].tolist()
        assert {document.start for document in documents} == {0}
    assert labels(seen) == EACH_ONCE


def test_one_record_of_the_stream_is_one_batch_of_the_loader(ref):
    made = ref.bucketed("tokens", tokens=TOKENS)
    plain = list(made.stream(shuffle=True))
    loader = made.stream(shuffle=True).batch(None, epochs=2)
    assert len(list(loader)) == 2 * len(plain)
    for options in ({}, {"n": 2}, {"n": 2, "threads": 2}, {"n": 2, "workers": 2}):
        loader = made.stream(shuffle=True).batch(None)
        batches = iter(loader.prefetch(**options) if options else loader)
        for number, wanted in enumerate(plain):
            same(next(batches), wanted)
            assert batches.state_dict()["position"] == number + 1
        assert next(batches, None) is None
    flagged = next(iter(made.stream().batch(None, padding_field="is_padding")))
    assert flagged["is_padding"] is np.False_ or not flagged["is_padding"].shape
    with pytest.raises(ConfigurationError, match="n=None each record is a batch"):
        made.stream().batch(None, collate=list)
    same(loader.batch_at(3), plain[3])
    texts = yogadl.from_source([{"text": text, "n": n} for n, text in enumerate(["a", "bb" * 5000, ""])])
    for workers in (0, 2):
        found = list(texts.stream().batch(None).prefetch(1, workers=workers))
        assert [(one["text"], int(one["n"])) for one in found] == [("a", 0), ("bb" * 5000, 1), ("", 2)]


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
    assert made.spec.keys() == ["tokens", "mask", "frames", "label"]


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
        ({"long": "error"}, "record 21 has 33 values"),
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


def test_records_that_make_no_batch_are_refused():
    with pytest.raises(ConfigurationError, match="can't be padded"):
        yogadl.from_source([{"tokens": np.arange(3), "text": "a"}]).bucketed("tokens", tokens=9)
    with pytest.raises(ConfigurationError, match="dicts"):
        yogadl.from_source([np.arange(3)]).bucketed("tokens", tokens=9)
    with pytest.raises(ConfigurationError, match="others inside"):
        yogadl.from_source([{"a": {"b": 1}, "tokens": np.arange(3)}]).bucketed("tokens", tokens=9)


@pytest.mark.parametrize("lengths", [[5, 5, 5, 2], [40, 3, 3]])
def test_a_function_that_gives_other_lengths_later_makes_no_batch_over_the_budget(lengths):
    added = 0

    def grow(record):
        return {"tokens": np.resize(record["tokens"], len(record["tokens"]) + added)}

    mapped = in_memory(lengths).map(grow, spec={"tokens": Leaf("int32", (None,))})
    batches = mapped.bucketed("tokens", tokens=10)
    whole = list(batches.stream())
    added = -1  # this stays below the budget
    assert len(list(batches.stream())) == len(whole)
    added = 1
    with pytest.raises(UnsupportedDataError, match=r"but had \d+ or fewer when .* must return the same each"):
        list(batches.stream())
    added = 0
    assert len(list(batches.stream())) == len(whole)
