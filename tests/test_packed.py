"""Rows made of several whole records: `ref.packed`."""

import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import PackPlan, lengths_of, set_constants

import yogadl
from yogadl import Leaf
from yogadl.errors import (
    ConfigurationError,
    CursorError,
    StageError,
    UnsupportedDataError,
)
from yogadl.storage import copy

LENGTHS = [3, 0, 7, 1, 5, 5, 2, 19, 4, 1, 8, 0, 6, 2, 2, 11, 3, 9, 1, 4, 5, 33, 2, 6]
CAPACITY = 10


def documents(lengths=LENGTHS):
    """Records whose tokens are unlike those of all others: 1,000 times the record's number, and counting."""
    return [
        {
            "tokens": np.arange(1, length + 1, dtype=np.int32) + 1000 * number,
            "weights": np.linspace(1, 2, 2 * length, dtype=np.float32).reshape(length, 2) + number,
            "loss_mask": np.ones(length, np.uint8),
            "label": number,
        }
        for number, length in enumerate(lengths)
    ]


SPEC = {
    "tokens": Leaf("int32", (None,)),
    "weights": Leaf("float32", (None, 2)),
    "loss_mask": Leaf("uint8", (None,)),
}


def in_memory(lengths=LENGTHS):
    return yogadl.from_source(documents(lengths), spec=SPEC)


def submit(storage, lengths=LENGTHS, **options):
    records = documents(lengths)
    storage.submit(records, "docs", "1", **options)
    return storage.fetch("docs", "1")


@pytest.fixture
def ref(storage):
    return submit(storage, part_bytes=3000)


def pieces(lengths, capacity, long="cut"):
    """All pieces that an epoch has, worked out record by record."""
    found = []
    for record, length in enumerate(lengths):
        if length > capacity and long == "drop":
            continue
        for start in range(0, length, capacity):
            found.append((record, start, min(start + capacity, length)))
    return found


def row_of(records, found, capacity, pad=0, most=None):
    """A row of these pieces, worked out token by token."""
    tokens, segments, positions, ends = [], [], [], [0]
    for number, (record, start, stop) in enumerate(found, 1):
        for position in range(start, stop):
            tokens.append(int(records[record]["tokens"][position]))
            segments.append(number)
            positions.append(position)
        ends.append(len(tokens))
    mask = [position + 1 < len(tokens) and segments[position] == segments[position + 1]
            for position in range(len(tokens))]  # fmt: skip
    missing = capacity - len(tokens)
    return {
        "tokens": tokens + [pad] * missing,
        "segments": segments + [0] * missing,
        "positions": positions + [0] * missing,
        "mask": mask + [False] * missing,
        "cu": ends + ends[-1:] * ((most or len(found)) + 1 - len(ends)),
        "label": [record for record, _, _ in found],
    }


def tokens_of(rows):
    return Counter(int(token) for row in rows for token in row["tokens"] if token)


def all_tokens(lengths=LENGTHS):
    return Counter(int(token) for record in documents(lengths) for token in record["tokens"])


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        if isinstance(value, list):
            for one, other in zip(value, wanted[name], strict=True):
                np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_array_equal(value, wanted[name])
            assert value.dtype == wanted[name].dtype


# What a row is.


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    capacity=st.integers(1, 24),
    long=st.sampled_from(["cut", "drop"]),
    round_to=st.sampled_from([1, 3, 8]),
    shuffle_within=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_rows_are_what_their_documents_say_token_by_token(
    lengths, capacity, long, round_to, shuffle_within, epoch
):
    records = documents(lengths)
    packed = in_memory(lengths).packed(
        capacity,
        fields=("tokens", "weights"),
        long=long,
        round_to=round_to,
        shuffle_within=shuffle_within,
        pad={"tokens": -7, "weights": 0.5},
        mask="mask",
        cu_seqlens="cu",
        values="label",
    )
    rows = packed.at(epoch, seed=5)
    assert len(rows) == len(packed)
    found = [rows.documents(number) for number in range(len(rows))]
    assert sorted(piece for row in found for piece in row) == pieces(lengths, capacity, long)
    if not len(packed):
        return
    most = max(map(len, found))
    batch = rows.gather(np.arange(len(rows))[::-1])
    assert batch["tokens"].dtype == batch["positions"].dtype == batch["cu"].dtype == np.int32
    for number, documents_of_row in enumerate(reversed(found)):
        wanted = row_of(records, documents_of_row, capacity, -7, most)
        assert {name: batch[name][number].tolist() for name in wanted} == wanted
        weights = np.concatenate([records[r]["weights"][a:b] for r, a, b in documents_of_row])
        np.testing.assert_array_equal(batch["weights"][number][: len(weights)], weights)
        assert (batch["weights"][number][len(weights) :] == 0.5).all()


def test_the_longest_comes_first_unless_they_are_shuffled_within(ref):
    in_order = ref.packed(CAPACITY, fields="tokens", shuffle_within=False).at(1)
    rows = [in_order.documents(number) for number in range(len(in_order))]
    lengths = [[stop - start for _, start, stop in row] for row in rows]
    assert lengths == [sorted(row, reverse=True) for row in lengths]
    assert max(map(len, lengths)) > 1


def test_a_mask_of_the_records_becomes_0_at_the_last_token_of_each(ref):
    packed = ref.packed(CAPACITY, fields=("tokens", "loss_mask"), mask="loss_mask", positions=None)
    assert list(packed.spec.keys()) == ["tokens", "loss_mask", "segments"]
    rows = list(packed.stream())
    assert len(rows) == len(packed) > 10
    for row in rows:
        last = np.append(np.diff(row["segments"]) != 0, True)
        assert row["loss_mask"].dtype == np.uint8
        np.testing.assert_array_equal(row["loss_mask"], (row["segments"] > 0) & ~last)


def test_max_segments_sets_the_size_of_the_bounds(ref):
    rows = ref.packed(CAPACITY, fields="tokens").at(0)
    most = max(len(rows.documents(number)) for number in range(len(rows)))
    packed = ref.packed(CAPACITY, fields="tokens", cu_seqlens="cu", max_segments=most + 3)
    assert packed.at(0)[0]["cu"].shape == (most + 4,)
    with pytest.raises(ConfigurationError, match=f"max_segments is 1, but a row has up to {most}"):
        ref.packed(CAPACITY, fields="tokens", cu_seqlens="cu", max_segments=1)


def test_positions_go_on_across_the_pieces_of_a_record():
    packed = in_memory([25]).packed(10, fields="tokens")
    found = {tuple(row["positions"].tolist()) for row in packed.stream()}
    assert found == {(*range(10),), (*range(10, 20),), (*range(20, 25), 0, 0, 0, 0, 0)}


def test_rows_are_new_memory_that_may_be_written(ref):
    packed = ref.packed(CAPACITY, fields=("tokens", "loss_mask"))
    first = packed.at(0).gather([0, 1, 0])
    for column in first.values():
        assert column.flags.writeable
        assert column.flags.c_contiguous
        column[:] = 0
    again = packed.at(0).gather([0, 1, 0])
    assert again["tokens"].any()


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
    packed = ref.packed(CAPACITY, fields="tokens")
    stream = packed.stream(shuffle=shuffle)
    epochs = [list(stream) for _ in range(3)]
    assert all(tokens_of(rows) == all_tokens() for rows in epochs)
    assert any(
        not np.array_equal(a["tokens"], b["tokens"]) for a, b in zip(epochs[0], epochs[1], strict=True)
    )
    for epoch, rows in enumerate(epochs):
        at = packed.at(epoch)
        for number, row in zip(stream.indices(epoch).tolist(), rows, strict=True):
            same(row, at[number])


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
    [{"round_to": 2}, {"long": "drop"}, {"shuffle_within": False}, {"fields": ("tokens", "weights")}],
)
def test_a_cursor_is_of_all_arguments(ref, change):
    cursor = ref.packed(CAPACITY, fields="tokens").stream().cursor(1)
    with pytest.raises(CursorError):
        ref.packed(CAPACITY, **{"fields": "tokens", **change}).stream(cursor=cursor)


def test_a_cursor_is_of_the_lengths_that_a_map_makes(ref):
    def cut(record):
        return {"tokens": record["tokens"][:5]}

    def cut_other(record):
        return {"tokens": record["tokens"][1:]}

    spec = {"tokens": Leaf("int32", (None,))}
    ours, theirs = (ref.map(fn, spec=spec).packed(CAPACITY, fields="tokens") for fn in (cut, cut_other))
    assert ours.fingerprint != theirs.fingerprint
    assert tokens_of(ours.stream()) == Counter(
        int(token) for record in documents() for token in record["tokens"][:5]
    )


def test_skip_shuffle_keeps_the_draw_of_the_first_epoch(ref):
    stream = ref.packed(CAPACITY, fields="tokens").stream(shuffle=True, skip_shuffle_at_epoch_end=True)
    for a, b in zip(stream, stream, strict=True):
        same(a, b)


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
    packed = ref.packed(CAPACITY, fields="tokens")
    wanted = list(packed.stream(shuffle=True).batch(2, epochs=3))
    set_constants(monkeypatch, RUN_INDICES=4)
    for found, other in zip(packed.stream(shuffle=True).batch(2, epochs=3), wanted, strict=True):
        same(found, other)


def test_skipped_positions_are_left_out(ref):
    stream = ref.packed(CAPACITY, fields="tokens").stream(shuffle=True)
    whole = list(stream.at(0))
    kept = list(stream.skip_ranges([(2, 5)]).at(0))
    assert len(kept) == len(whole) - 3
    for found, wanted in zip(kept, whole[:2] + whole[5:], strict=True):
        same(found, wanted)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_documents_of_the_last_batch_are_known(ref, workers):
    packed = ref.packed(CAPACITY, fields="tokens")
    for stream in (packed.stream(shuffle=True), packed.map(lambda row: row).stream(shuffle=True)):
        batches = iter(stream.batch(4).prefetch(1, workers=workers))
        for batch in batches:
            found = batches.last.documents
            epoch = packed.at(0)
            assert found == [epoch.documents(number) for number in batches.last.indices.tolist()]
            for row, documents in zip(batch["tokens"], found, strict=True):
                joined = np.concatenate(
                    [ref[record]["tokens"][start:stop] for record, start, stop in documents]
                )
                np.testing.assert_array_equal(row[: len(joined)], joined)
    again = pickle.loads(pickle.dumps(batches.last))
    assert again.indices.tolist() == batches.last.indices.tolist()
    assert again.documents == []
    plain = iter(ref.stream())
    next(plain)
    assert plain.last.documents == []


def test_the_documents_of_a_mix_are_those_of_its_parents(ref):
    parents = {
        "a": (ref[:20].packed(CAPACITY, fields="tokens"), 1),
        "b": (ref[20:].packed(CAPACITY, fields="tokens"), 1),
    }
    mixed = yogadl.mix(parents, at_end="repeat")
    rows, count = iter(mixed.stream(shuffle=True).batch(3)), 0
    firsts = len(parents["a"][0])
    for batch in rows:
        count += len(batch["tokens"])
        for number, row, documents in zip(
            rows.last.indices.tolist(), batch["tokens"], rows.last.documents, strict=True
        ):
            parent = ref[:20] if number < firsts else ref[20:]
            joined = np.concatenate(
                [parent[record]["tokens"][start:stop] for record, start, stop in documents]
            )
            np.testing.assert_array_equal(row[: len(joined)], joined)
    assert count == len(mixed)


def test_rows_at_random_are_those_of_an_epoch(ref):
    packed = ref.packed(CAPACITY, fields="tokens")
    with pytest.raises(ConfigurationError, match=r"packed\.at\(epoch\)\[\.\.\.\]"):
        packed[0]
    assert repr(packed.at(2)).startswith(f"<PackedEpoch of {len(packed)} rows of {CAPACITY}, ")


def test_the_last_batch_is_known_by_the_numbers_of_rows(ref):
    packed = ref.packed(CAPACITY, fields="tokens")
    batches = iter(packed.stream(shuffle=True, shuffle_seed=2).batch(4))
    batch, last = next(batches), batches.last
    assert last.indices.max() < len(packed)
    same(packed.at(0, seed=2).gather(last.indices), batch)


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


def test_a_stream_has_a_plan(ref):
    packed = ref.packed(CAPACITY, fields="tokens")
    plan = packed.stream(shuffle=True).plan()
    assert plan.records == len(packed)
    assert plan.chosen == "here"
    assert "records" in str(plan)


# Mixes.


def test_mixes_draw_each_parent_anew(ref):
    packed = ref.packed(CAPACITY, fields="tokens")
    other = in_memory([5] * 40).map(lambda record: {**record, "tokens": record["tokens"] + 500_000})
    others = other.packed(CAPACITY, fields="tokens")
    mixed = yogadl.mix({"a": (packed, 0.5), "b": (others, 0.5)}, at_end="repeat", seed=1)
    stream = mixed.stream(shuffle=True)
    first_passes = []
    for epoch in range(2):
        rows = list(stream.at(epoch))
        ours = [row for row in rows if row["tokens"][0] < 500_000]
        theirs = [row for row in rows if row["tokens"][0] >= 500_000]
        assert len(ours) == len(theirs)
        counted = tokens_of(ours)
        whole, rest = divmod(len(ours), len(packed))
        assert whole >= 1
        assert all(whole <= counted[token] <= whole + bool(rest) for token in all_tokens())
        passes = [ours[: len(packed)], ours[len(packed) : 2 * len(packed)]]
        assert tokens_of(passes[0]) == all_tokens()
        first_passes.append({tuple(row["tokens"].tolist()) for row in passes[0]})
        if len(passes[1]) == len(packed):
            sets = [{tuple(row["tokens"].tolist()) for row in rows_of_pass} for rows_of_pass in passes]
            assert sets[0] != sets[1]
    assert first_passes[0] != first_passes[1]
    cursor = stream.cursor(7)
    resumed = [
        row
        for rank in range(2)
        for row in mixed.stream(shuffle=True, cursor=cursor, shard_rank=rank, num_shards=2)
    ]
    assert tokens_of(resumed) + tokens_of(list(stream.at(0))[:7]) == tokens_of(stream.at(0))


def test_packed_and_plain_references_are_mixed(ref):
    packed = ref.packed(CAPACITY, fields="tokens", segments=None, positions=None)
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


def test_lengths_by_workers_are_the_same(ref):
    view = ref.map(lambda record: {"tokens": record["tokens"][:4]}, spec={"tokens": Leaf("int32", (None,))})
    assert view.packed(CAPACITY, fields="tokens", workers=2).fingerprint == (
        view.packed(CAPACITY, fields="tokens").fingerprint
    )

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
    packed.stream(), ref.packed(CAPACITY, fields="tokens", mask="m")
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
    first, second = (
        yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=tmp_path / name) for name in ("a", "b")
    )
    ours = submit(first, part_bytes=3000).packed(CAPACITY, fields="tokens")
    assert list((tmp_path / "bucket").rglob("*.plan"))
    theirs = second.fetch("docs", "1").packed(CAPACITY, fields="tokens")
    assert list((tmp_path / "b").rglob("*.plan"))
    assert theirs.fingerprint == ours.fingerprint
    for found, wanted in zip(theirs.stream(shuffle=True), ours.stream(shuffle=True), strict=True):
        same(found, wanted)
    assert first.prune(grace_s=0).files == ()


def test_ranges_of_a_bucket_are_read_and_announced(tmp_path):
    storage = yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=None)
    packed = submit(storage, part_bytes=3000).packed(CAPACITY, fields=("tokens", "weights"), values="label")
    plan = packed.stream(shuffle=True).plan()
    assert plan.way("ranges").requests > 0
    assert plan.way("ranges").bytes > 0
    assert tokens_of(packed.stream(shuffle=True)) == all_tokens()
    other = storage.fetch("docs", "1").packed(CAPACITY, fields="tokens").stream(shuffle=True).batch(4)
    assert tokens_of({"tokens": row} for batch in other for row in batch["tokens"]) == all_tokens()


@pytest.mark.parametrize("values", [(), "label"])
@pytest.mark.parametrize("capacity", [1651, 4950])  # a third of the longest record, or all of it
def test_the_requests_for_rows_are_exactly_those_that_are_planned(tmp_path, capacity, values):
    storage = yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=None)
    made = submit(storage, range(0, 5000, 50))
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
        ({"long": "error"}, "record 7 has 19 values"),
        ({"round_to": 0}, "round_to"),
        ({"shuffle_within": 1}, "shuffle_within"),
        ({"pad": {"other": 1}}, "pad is a dict"),
        ({"pad": 3}, "pad is a dict"),
        ({"pad": {"tokens": 0.5}}, "no single value of int32"),
        ({"segments": 5}, "segments is the name"),
        ({"segments": "tokens"}, "a name of its own"),
        ({"mask": "segments"}, "a name of its own"),
        ({"cu_seqlens": ""}, "cu_seqlens is the name"),
        ({"max_segments": 0}, "max_segments"),
        ({"values": "tokens"}, "numbers of one shape"),
        ({"values": "nothing"}, "no field 'nothing'"),
        ({"workers": -1}, "workers"),
        ({"capacity": 10, "field": "tokens"}, "fields="),
    ],
)
def test_arguments_that_make_no_sense_are_refused(ref, options, text):
    with pytest.raises(ConfigurationError, match=text):
        ref.packed(**{"capacity": CAPACITY, "fields": "tokens", **options})


def test_what_has_no_fields_is_refused():
    with pytest.raises(ConfigurationError, match="dicts"):
        yogadl.from_source([np.arange(3)]).packed(4, fields="tokens")
    with pytest.raises(ConfigurationError, match="is not packed"):
        yogadl.from_source([{"text": "a"}]).packed(4, fields="text")


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


def test_a_function_that_gives_other_lengths_later_is_found_out():
    most = 5

    def shrink(record):
        return {"tokens": record["tokens"][:most]}

    spec = {"tokens": Leaf("int32", (None,))}
    packed = in_memory([5, 5, 5]).map(shrink, spec=spec).packed(5, fields="tokens")
    assert len(list(packed.stream())) == 3
    most = 4
    with pytest.raises(UnsupportedDataError, match="same each time"):
        list(packed.stream())


def test_a_function_that_gives_more_later_is_found_out():
    added = 0

    def grow(record):
        return {"tokens": np.resize(record["tokens"], len(record["tokens"]) + added)}

    spec = {"tokens": Leaf("int32", (None,))}
    packed = in_memory([4, 13, 2]).map(grow, spec=spec).packed(5, fields="tokens")
    whole = list(packed.stream())
    added = 1
    with pytest.raises(UnsupportedDataError, match=r"has \d+ values .* but had \d+ when .*same each time"):
        list(packed.stream())
    added = 0
    assert len(list(packed.stream())) == len(whole)


def test_what_a_packed_reference_is_not(ref):
    packed = ref.packed(CAPACITY, fields="tokens")
    for name in ("gather", "select", "filter", "split", "packed", "columns"):
        with pytest.raises(AttributeError, match=r"packed.at\(epoch\)"):
            getattr(packed, name)
    with pytest.raises(AttributeError, match="nothing"):
        _ = packed.nothing
    with pytest.raises(ConfigurationError, match="blocks"):
        packed.stream(shuffle=yogadl.Blocks(records=4, window=2))
    with pytest.raises(ConfigurationError, match="shuffle"):
        packed.stream(shuffle="yes")
    with pytest.raises(ConfigurationError, match="joined"):
        yogadl.concat([packed])
    with pytest.raises(ConfigurationError, match="epoch"):
        packed.at(-1)
    with pytest.raises(IndexError):
        packed.at(0).documents(len(packed))
    assert packed.at(0).documents(-1) == packed.at(0).documents(len(packed) - 1)


def test_the_padding_of_a_mask_is_0(ref):
    with pytest.raises(ConfigurationError, match="its padding is 0"):
        ref.packed(CAPACITY, fields=("tokens", "loss_mask"), mask="loss_mask", pad={"loss_mask": 7})


def test_a_cursor_of_another_packing_says_what_to_do(ref):
    cursor = ref.packed(CAPACITY, fields="tokens").stream().cursor(1)
    for options in ({"capacity": CAPACITY + 1}, {"round_to": 3}, {"segments": None}):
        with pytest.raises(CursorError, match="pass the same arguments to packed, bucketed or sampled"):
            ref.packed(**{"capacity": CAPACITY, "fields": "tokens", **options}).stream(cursor=cursor)
