"""Rows made of several whole records: `ref.packed`."""

import pickle
import subprocess
import sys
from collections import Counter
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path

import numpy as np
import pytest
from documents import LENGTHS, TOKENS, documents, in_memory, resized, submitted, tokens_of
from inside import PackPlan, lengths_of, set_constants
from trees import assert_equal, assert_same_batches

import yogadl
from yogadl import Leaf
from yogadl.errors import ConfigurationError, CursorError, StageError, UnsupportedDataError
from yogadl.storage import copy

CAPACITY = 10


@pytest.fixture
def ref(storage):
    return submitted(storage)


def all_tokens(lengths=LENGTHS):
    return tokens_of(documents(lengths))


# What a row is; `together/test_algebra.py` says it token by token.


def test_rows_of_any_field_are_padded_with_a_value_of_its_own(ref):
    padding = {"tokens": -7, "weights": 0.5}
    rows = ref.packed(CAPACITY, fields=("tokens", "weights"), pad=padding).at(1, seed=5)
    for number, row in enumerate(rows):
        pieces = rows.documents(number)
        for name, pad in padding.items():
            joined = np.concatenate([ref[record][name][start:stop] for record, start, stop in pieces])
            wanted = np.full((CAPACITY, *joined.shape[1:]), pad, joined.dtype)
            wanted[: len(joined)] = joined
            assert_equal(row[name], wanted)


def test_the_longest_comes_first_unless_they_are_shuffled_within(ref):
    in_order = ref.packed(CAPACITY, fields="tokens", shuffle_within=False).at(1)
    rows = [in_order.documents(number) for number in range(len(in_order))]
    lengths = [[stop - start for _, start, stop in row] for row in rows]
    assert lengths == [sorted(row, reverse=True) for row in lengths]
    assert max(map(len, lengths)) > 1


def test_a_mask_of_the_records_becomes_0_at_the_last_token_of_each(ref):
    packed = ref.packed(
        CAPACITY, fields=("tokens", "mask"), extra=yogadl.PackFields(mask="mask", positions=None)
    )
    assert list(packed.spec.keys()) == ["tokens", "mask", "segments"]
    rows = list(packed.stream())
    assert len(rows) == len(packed) > 10
    for row in rows:
        last = np.append(np.diff(row["segments"]) != 0, True)
        assert_equal(row["mask"], ((row["segments"] > 0) & ~last).astype(np.uint8))


def test_max_segments_sets_the_size_of_the_bounds(ref):
    rows = ref.packed(CAPACITY, fields="tokens").at(0)
    most = max(len(rows.documents(number)) for number in range(len(rows)))
    packed = ref.packed(
        CAPACITY, fields="tokens", extra=yogadl.PackFields(cu_seqlens="cu", max_segments=most + 3)
    )
    assert packed.at(0)[0]["cu"].shape == (most + 4,)
    with pytest.raises(ConfigurationError, match=f"max_segments is 1, but a row has up to {most}"):
        ref.packed(CAPACITY, fields="tokens", extra=yogadl.PackFields(cu_seqlens="cu", max_segments=1))


def test_rows_are_new_memory_that_may_be_written(ref):
    rows = ref.packed(CAPACITY, fields=("tokens", "mask")).at(0)
    for column in rows.gather([0, 1, 0]).values():
        assert column.flags.writeable
        assert column.flags.c_contiguous
        column[:] = 0
    assert rows.gather([0, 1, 0])["tokens"].any()


def test_fixed_lengths_and_no_rows(storage):
    storage.submit({"tokens": np.arange(60).reshape(20, 3)}, "f", "1")
    packed = storage.fetch("f", "1").packed(7, fields="tokens")
    assert len(packed) == 10
    tokens = [t for row in packed.stream() for t in row["tokens"][row["segments"] > 0].tolist()]
    assert sorted(tokens) == list(range(60))
    assert packed.at(0).gather([])["tokens"].shape == (0, 7)
    empty = in_memory([0, 0]).packed(7, fields="tokens")
    assert (len(empty), list(empty.stream())) == (0, [])


def test_its_repr_says_capacity_rows_padding_and_what_was_cut_or_dropped(ref):
    text = repr(ref.packed(CAPACITY, fields="tokens"))
    assert "rows of 10, 24 records" in text
    assert "3 long records cut" in text
    dropped = ref.packed(CAPACITY, fields="tokens", long="drop")
    assert "21 records" in repr(dropped)
    assert "3 long records dropped" in repr(dropped)
    kept = sum(length for length in LENGTHS if length <= CAPACITY)
    assert dropped.padding == pytest.approx(1 - kept / (len(dropped) * CAPACITY))
    assert f"{dropped.padding:.2%} padding" in repr(dropped)


# Streams.


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_token_comes_once_an_epoch_and_epochs_differ(ref, shuffle):
    epochs = [list(ref.packed(CAPACITY, fields="tokens").stream(shuffle=shuffle).at(n)) for n in range(3)]
    assert all(tokens_of(rows) == all_tokens() for rows in epochs)
    sets = [{tuple(row["tokens"].tolist()) for row in rows} for rows in epochs]
    assert sets[0] != sets[1] != sets[2]


def test_the_seed_is_in_the_cursor_even_without_a_shuffle(ref):
    packed = ref.packed(CAPACITY, fields="tokens")
    cursor = packed.stream(shuffle_seed=4).cursor(2)
    assert cursor["seed"] == 4
    assert cursor["order"] == {"name": "source", "version": 1, "draw": 1}
    with pytest.raises(CursorError, match="seed"):
        packed.stream(shuffle_seed=5, cursor=cursor)
    assert packed.stream(shuffle_seed=4, cursor=cursor).start.position == 2


@pytest.mark.parametrize(
    "change",
    [{"capacity": CAPACITY + 1}, {"round_to": 2}, {"long": "drop"}, {"shuffle_within": False},
     {"fields": ("tokens", "weights")}, {"extra": yogadl.PackFields(segments=None)}],
    ids=str,
)  # fmt: skip
def test_a_cursor_is_of_all_arguments(ref, change):
    cursor = ref.packed(CAPACITY, fields="tokens").stream().cursor(1)
    with pytest.raises(CursorError, match="pass the same arguments to packed, bucketed, grouped or sampled"):
        ref.packed(**{"capacity": CAPACITY, "fields": "tokens", **change}).stream(cursor=cursor)


def test_a_cursor_is_of_the_lengths_that_a_map_makes(ref):
    def first(record):
        return {"tokens": record["tokens"][:5]}

    functions = first, lambda record: {"tokens": record["tokens"][1:]}
    ours, theirs = (ref.map(fn, spec=TOKENS).packed(CAPACITY, fields="tokens") for fn in functions)
    assert ours.fingerprint != theirs.fingerprint
    assert tokens_of(ours.stream()) == tokens_of(map(first, documents()))


def test_skip_shuffle_keeps_the_draw_of_the_first_epoch(ref):
    stream = ref.packed(CAPACITY, fields="tokens").stream(shuffle=True, skip_shuffle_at_epoch_end=True)
    assert_same_batches(stream, stream)


@pytest.mark.parametrize("size_bytes", [1, 500, 2**20])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 1000])
def test_however_many_lengths_are_found_at_a_time(ref, monkeypatch, count, size_bytes):
    set_constants(
        monkeypatch, LENGTHS_AT_ONCE=count, LENGTHS_READ_RECORDS=count, LENGTHS_READ_BYTES=size_bytes
    )
    number = [field.name for field in ref.spec.fields].index("tokens")
    for records in (ref, ref[3:], ref.map(dict, spec=ref.spec), yogadl.concat([ref, ref[2:]])):
        found = lengths_of(records._records, [number], 0)
        assert found.tolist() == [len(record["tokens"]) for record in records]


def test_a_small_lookahead_gives_the_same(ref, monkeypatch):
    loader = ref.packed(CAPACITY, fields="tokens").stream(shuffle=True).batch(2, epochs=3)
    wanted = list(loader)
    set_constants(monkeypatch, RUN_INDICES=4)
    assert_same_batches(ref.packed(CAPACITY, fields="tokens").stream(shuffle=True).batch(2, epochs=3), wanted)


def test_skipped_positions_are_left_out(ref):
    stream = ref.packed(CAPACITY, fields="tokens").stream(shuffle=True)
    whole = list(stream.at(0))
    assert_equal(list(stream.skip_ranges([(2, 5)]).at(0)), whole[:2] + whole[5:])


@pytest.mark.parametrize("workers", [0, 1])
def test_the_documents_of_the_last_batch_are_known(ref, workers):
    packed = ref.packed(CAPACITY, fields="tokens")
    epoch = packed.at(0)
    for stream in (packed.stream(shuffle=True), packed.map(lambda row: row).stream(shuffle=True)):
        batches = iter(stream.batch(4).prefetch(1, workers=workers))
        for batch in batches:
            numbers = batches.last.indices
            assert_equal(batch, epoch.gather(numbers))
            assert batches.last.documents == [epoch.documents(number) for number in numbers.tolist()]
    again = pickle.loads(pickle.dumps(batches.last))
    assert again.indices.tolist() == batches.last.indices.tolist()
    assert again.documents == []
    plain = iter(ref.stream())
    next(plain)
    assert plain.last.documents == []


def test_an_error_of_a_function_names_the_row(ref):
    def fail(row):
        raise ValueError("no")

    packed = ref.packed(CAPACITY, fields="tokens").map(fail, spec={"x": Leaf("int32", ())})
    stream = packed.stream(shuffle=True)
    number = int(stream.indices(0)[0])
    with pytest.raises(StageError, match=f"failed at record {number}:"):
        next(iter(stream))
    loader = ref.packed(CAPACITY, fields="tokens").stream(shuffle=True).batch(2).map(fail)
    with pytest.raises(StageError, match=f"begins with record {number}:"):
        next(iter(loader))


# Mixes.


def test_mixes_draw_each_parent_anew(ref):
    packed = ref.packed(CAPACITY, fields="tokens")
    other = in_memory([5] * 40).map(lambda record: {**record, "tokens": record["tokens"] + 500_000})
    others = other.packed(CAPACITY, fields="tokens")
    mixed = yogadl.mix({"a": (packed, 0.5), "b": (others, 0.5)}, at_end="repeat", seed=1)
    passes = []
    for rows in (list(mixed.stream(shuffle=True).at(epoch)) for epoch in range(2)):
        ours = [tuple(row["tokens"].tolist()) for row in rows if row["tokens"][0] < 500_000]
        assert 2 * len(ours) == len(rows)
        passes += [ours[start : start + len(packed)] for start in range(0, len(ours), len(packed))]
    whole = [each for each in passes if len(each) == len(packed)]
    assert len(whole) > 1
    assert all(Counter(filter(None, chain(*rows))) == all_tokens() for rows in whole)
    assert len(set(map(frozenset, whole))) == len(whole)


def test_packed_and_plain_references_are_mixed(ref):
    packed = ref.packed(CAPACITY, fields="tokens", extra=yogadl.PackFields(segments=None, positions=None))
    plain = yogadl.from_source(
        {"tokens": np.arange(CAPACITY * 30, dtype=np.int32).reshape(30, CAPACITY) + 900_000}
    )
    mixed = yogadl.mix({"plain": (plain, 2), "packed": (packed, 1)})
    rows = list(mixed.stream(shuffle=True, shuffle_seed=1))
    assert len([row for row in rows if row["tokens"][0] >= 900_000]) >= 2 * len(packed) - 2
    found = [tuple(row["tokens"]) for row in mixed.stream(shuffle=True, shuffle_seed=1).batch(4).prefetch(2)]
    assert len(found) == -(-len(rows) // 4)
    with pytest.raises(ConfigurationError, match="blocks"):
        mixed.stream(shuffle=yogadl.Blocks(records=4, window=2))


def test_a_mix_of_functions_of_packed_records_names_the_row(ref):
    packed = ref.packed(CAPACITY, fields="tokens").map(lambda row: {"n": int(row["segments"].max())})
    mixed = yogadl.mix({"a": (packed, 1), "b": (packed, 1)}).map(lambda row: {"m": row["n"] + 1})
    assert sorted(int(row["m"]) for row in mixed.stream())[0] >= 2
    assert mixed.stream(shuffle=True).indices().max() < 2 * len(packed)


# Parents.


@pytest.mark.usefixtures("forked_workers")
def test_lengths_by_workers_are_the_same(ref):
    view = ref.map(lambda record: {"tokens": record["tokens"][:4]}, spec=TOKENS)
    found = {view.packed(CAPACITY, fields="tokens", workers=workers).fingerprint for workers in (0, 2)}
    assert len(found) == 1

    def fail(record):
        if record["label"] == 5:
            raise ValueError("bad record")
        return record

    for workers in (0, 2):
        with pytest.raises(StageError, match="record 5"):
            ref.map(fail, spec=ref.spec).packed(CAPACITY, fields="tokens", workers=workers)


# The plan that is kept.


def plans(storage):
    return sorted(Path(storage.location).glob("docs/tables/*/*.plan"))


def test_the_plan_is_kept_and_used_by_any_process(storage, ref, monkeypatch):
    packed = ref.packed(CAPACITY, fields="tokens")
    [file] = plans(storage)
    code = (
        "import sys, yogadl\n"
        "from yogadl._order.packs import PackPlan\n"
        "PackPlan.make = None\n"
        "ref = yogadl.open_storage(sys.argv[1]).fetch('docs', '1')\n"
        "print(ref.packed(10, fields='tokens').fingerprint)\n"
    )
    command = [sys.executable, "-c", code, storage.location]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        == packed.fingerprint
    )
    assert len(pickle.dumps(packed)) < 4000
    packed.stream(), ref.packed(CAPACITY, fields="tokens", extra=yogadl.PackFields(mask="m"))
    assert plans(storage) == [file]
    ref.packed(CAPACITY, fields="tokens", round_to=2)
    assert len(plans(storage)) == 2


@pytest.mark.parametrize("change", ["cut", "flip", "empty", "other"])
def test_a_damaged_plan_is_made_again(storage, ref, change):
    wanted = ref.packed(CAPACITY, fields="tokens")
    [file] = plans(storage)
    content = file.read_bytes()
    file.chmod(0o644)
    if change == "other":
        ref.packed(9, fields="tokens")
        [other] = [name for name in plans(storage) if name != file]
        file.write_bytes(other.read_bytes())
    elif change == "flip":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        file.write_bytes(content[: len(content) // 2] if change == "cut" else b"")
    found = storage.fetch("docs", "1").packed(CAPACITY, fields="tokens")
    assert found.fingerprint == wanted.fingerprint
    assert file.read_bytes() == content
    assert tokens_of(found.stream()) == all_tokens()


def test_a_forged_plan_reads_no_values_that_are_not_there(storage, ref):
    from xxhash import xxh3_128_digest

    ref.packed(CAPACITY, fields="tokens")
    [file] = plans(storage)
    forged = PackPlan.make(np.array(LENGTHS) + 3, CAPACITY).to_bytes()
    name = file.read_bytes()[:64]
    file.chmod(0o644)
    file.write_bytes(name + xxh3_128_digest(forged) + forged)
    with pytest.raises(yogadl.errors.CacheFormatError, match="verify"):
        list(storage.fetch("docs", "1").packed(CAPACITY, fields="tokens").stream())


def test_prune_and_copies_know_of_plans(storage, ref, tmp_path):
    packed = ref.packed(CAPACITY, fields="tokens")
    other = yogadl.open_storage(tmp_path / "other")
    copy(storage, other, "docs", "1")
    assert [file.name for file in plans(other)] == [file.name for file in plans(storage)]
    assert not copy(storage, other, "docs", "1")
    assert other.fetch("docs", "1").packed(CAPACITY, fields="tokens").fingerprint == packed.fingerprint
    assert storage.prune(grace_s=0).files == ()
    storage.delete("docs", "1")
    assert [name for name in storage.prune(grace_s=0).files if name.endswith(".plan")]
    assert plans(storage) == []


def test_a_bucket_keeps_plans_for_all_machines(tmp_path):
    url = f"file://{tmp_path}/bucket"
    first, second = (yogadl.open_storage(url, mirror=tmp_path / name) for name in ("a", "b"))
    ours = submitted(first).packed(CAPACITY, fields="tokens")
    assert list((tmp_path / "bucket").rglob("*.plan"))
    theirs = second.fetch("docs", "1").packed(CAPACITY, fields="tokens")
    assert list((tmp_path / "b").rglob("*.plan"))
    assert theirs.fingerprint == ours.fingerprint
    assert_same_batches(theirs.stream(shuffle=True), ours.stream(shuffle=True))
    assert first.prune(grace_s=0).files == ()


def test_ranges_of_a_bucket_are_read_and_announced(tmp_path):
    storage = yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=None)
    packed = submitted(storage).packed(CAPACITY, fields=("tokens", "weights"), values="label")
    plan = packed.stream(shuffle=True).plan()
    assert (plan.records, plan.chosen) == (len(packed), "ranges")
    assert plan.way("ranges").requests > 0 < plan.way("ranges").bytes
    assert tokens_of(packed.stream(shuffle=True)) == all_tokens()
    other = storage.fetch("docs", "1").packed(CAPACITY, fields="tokens").stream(shuffle=True).batch(4)
    assert tokens_of(other) == all_tokens()


@pytest.mark.parametrize("values", [(), "label"])
@pytest.mark.parametrize("capacity", [1651, 4950])  # a third of the longest record, or all of it
def test_the_requests_for_rows_are_exactly_those_that_are_planned(tmp_path, capacity, values):
    storage = yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=None)
    made = submitted(storage, range(0, 5000, 50), None)
    packed = made.packed(capacity, fields="tokens", values=values)
    ref, packed = pickle.loads(pickle.dumps((made, packed)))
    stream = packed.stream(shuffle=True).batch(2)
    planned, before = stream.plan().way("ranges"), ref.locality()
    assert sum(len(batch["tokens"]) for batch in stream) == len(packed)
    after = ref.locality()
    found = after.ranges - before.ranges, after.range_bytes - before.range_bytes
    assert (planned.requests, planned.bytes) == found


# Errors.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"capacity": 0}, "capacity"),
        ({"capacity": 2**25}, "capacity"),
        ({"fields": ()}, "fields to pack"),
        ({"fields": "nothing"}, "no field 'nothing'"),
        ({"fields": ("tokens", "tokens")}, "each once"),
        ({"fields": ("tokens", "label")}, "values="),
        ({"fields": {"tokens": 1}}, "names of fields"),
        ({"long": "split"}, "long"),
        ({"long": "raise"}, "record 7 has 19 values"),
        ({"round_to": 0}, "round_to"),
        ({"shuffle_within": 1}, "shuffle_within"),
        ({"pad": {"other": 1}}, "pad is a dict"),
        ({"pad": 3}, "pad is a dict"),
        ({"pad": {"tokens": 0.5}}, "no single value of int32"),
        ({"extra": yogadl.PackFields(segments=5)}, "segments is the name"),
        ({"extra": yogadl.PackFields(segments="tokens")}, "a name of its own"),
        ({"extra": yogadl.PackFields(mask="segments")}, "a name of its own"),
        ({"extra": yogadl.PackFields(cu_seqlens="")}, "cu_seqlens is the name"),
        ({"extra": yogadl.PackFields(max_segments=0)}, "max_segments"),
        ({"values": "tokens"}, "numbers of one shape"),
        ({"values": "nothing"}, "no field 'nothing'"),
        ({"workers": -1}, "workers"),
        ({"capacity": 10, "field": "tokens"}, "fields="),
        (
            {"fields": ("tokens", "mask"), "extra": yogadl.PackFields(mask="mask"), "pad": {"mask": 7}},
            "its padding is 0",
        ),
        ({"extra": "segments"}, r"extra must be yogadl\.PackFields"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(ref, options, text):
    with pytest.raises(ConfigurationError, match=text):
        ref.packed(**{"capacity": CAPACITY, "fields": "tokens", **options})


@pytest.mark.parametrize("kind", ["memory", "cache"])
def test_fields_of_unequal_lengths_are_refused(storage, kind):
    records = [{"a": np.arange(n), "b": np.arange(n + (n == 4))} for n in range(2, 8)]
    spec = {"a": Leaf("int64", (None,)), "b": Leaf("int64", (None,))}
    ref = yogadl.from_source(records, spec=spec)
    if kind == "cache":
        storage.submit(records, "u", "1")
        ref = storage.fetch("u", "1")
    with pytest.raises(UnsupportedDataError, match="record 2 has 4 values in field 'a' and 5 in 'b'"):
        ref.packed(9, fields=("a", "b"))


@pytest.mark.parametrize(("lengths", "later"), [([5, 5, 5], -1), ([4, 13, 2], 1)])
def test_a_function_that_gives_other_lengths_later_is_found_out(lengths, later):
    more = 0
    mapped = in_memory(lengths).map(lambda record: resized(record, more), spec=TOKENS)
    packed = mapped.packed(5, fields="tokens")
    whole = list(packed.stream())
    more = later
    with pytest.raises(UnsupportedDataError, match=r"has \d+ values .* but had \d+ .*same each time"):
        list(packed.stream())
    more = 0
    assert_equal(list(packed.stream()), whole)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        *[(attrgetter(name), AttributeError, r"packed.at\(epoch\)")
          for name in ("gather", "select", "filter", "split", "packed", "columns")],
        (attrgetter("nothing"), AttributeError, "nothing"),
        (itemgetter(0), ConfigurationError, r"packed\.at\(epoch\)\[\.\.\.\]"),
        (lambda packed: packed.stream(shuffle=yogadl.Blocks(4, 2)), ConfigurationError, "blocks"),
        (lambda packed: packed.stream(shuffle="yes"), ConfigurationError, "shuffle"),
        (lambda packed: yogadl.concat([packed]), ConfigurationError, "joined"),
        (lambda packed: packed.at(-1), ConfigurationError, "epoch"),
        (lambda packed: packed.at(0).documents(len(packed)), IndexError, "is out of range"),
    ],
)  # fmt: skip
def test_what_a_packed_reference_is_not(packed_in_memory, call, error, text):
    with pytest.raises(error, match=text):
        call(packed_in_memory)


@pytest.fixture(scope="module")
def packed_in_memory():
    return in_memory().packed(CAPACITY, fields="tokens")


def test_an_epoch_has_a_text_and_is_indexed_from_both_ends(packed_in_memory):
    packed = packed_in_memory
    assert repr(packed.at(2)).startswith(f"<PackedEpoch of {len(packed)} rows of {CAPACITY}, ")
    assert packed.at(0).documents(-1) == packed.at(0).documents(len(packed) - 1)


@pytest.mark.parametrize(
    ("records", "text"), [([np.arange(3)], "dicts"), ([{"tokens": "a"}], "is not packed")]
)
def test_what_has_no_fields_is_refused(records, text):
    with pytest.raises(ConfigurationError, match=text):
        yogadl.from_source(records).packed(4, fields="tokens")
