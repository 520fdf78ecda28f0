"""Another record in the place of a broken one, the same wherever a place is read; no other place changes."""

import json
import pickle
import random
import sys

import numpy as np
import pytest
from inside import derive_key, set_constants, splitmix64_output
from soak import few_or_many

import yogadl
from yogadl import Blocks, Leaf
from yogadl.errors import ConfigurationError, StageError

COUNT = 400
BROKEN = set(range(3, COUNT, 37)) | {0, 5, 6}
OUT = {"id": Leaf("int64"), "noise": Leaf("float64")}
WAYS = ({}, {"n": 2}, {"n": 2, "threads": 2}, {"n": 2, "workers": 2})


def check(record):
    if int(record["id"]) in BROKEN:
        raise OSError(f"truncated {int(record['id'])}")
    return record


def with_noise(record, rng):
    check(record)
    return {"id": record["id"], "noise": rng.random()}


def fill(record, rng, out):
    out["id"][...] = record["id"] + 1000  # half written before it fails
    check(record)
    out["id"][...] = record["id"]
    out["noise"][...] = rng.random()


def ref_of(count=COUNT, first=0):
    return yogadl.from_source({"id": np.arange(first, first + count)}, fingerprint=f"{first} {count}")


def drawn(order_seed, epoch, position, attempt, first=0, end=COUNT):
    """Return the positions that an attempt draws, one after another."""
    key = derive_key(int.from_bytes(b"substitute-1", "big"), order_seed, epoch, position, attempt)
    number = 0
    while True:
        yield first + (splitmix64_output(key, number) * (end - first) >> 64)
        number += 1


def expected(order, epoch, seed, fits=lambda position: True, window=lambda position: (0, COUNT)):
    """Return the records of an epoch's positions, those in the place of broken ones as the page says."""
    found = []
    for position, index in enumerate(order):
        attempt = 0
        while index in BROKEN:
            first, end = window(position)
            candidates = drawn(seed, epoch, position, attempt, first, end)
            index = order[next(place for place in candidates if fits(place))]
            attempt += 1
        found.append(index)
    return found


def ids(items):
    return np.concatenate([np.atleast_1d(item["id"]) for item in items]).tolist()


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_each_sound_record_stays_and_broken_ones_are_replaced_as_the_page_says(options):
    stream = ref_of().stream(shuffle=True, shuffle_seed=11)
    for made in (
        stream.map(check, on_error="substitute"),
        stream.random_map(with_noise, on_error="substitute"),
        stream.random_map(fill, out=OUT, on_error="substitute"),
        stream.map(dict).map(check, on_error="substitute").map(dict),
        stream.map(check, on_error="substitute").random_map(fill, out=OUT),
    ):
        loader = made.batch(16, epochs=2)
        loader = loader.prefetch(**options) if options else loader
        batches = list(loader)
        wanted = [expected(stream.indices(epoch).tolist(), epoch, 11) for epoch in range(2)]
        assert ids(batches) == wanted[0] + wanted[1]
        rejected = loader.rejected()
        order = stream.indices(1).tolist()
        firsts = {one.position: one for one in rejected if one.epoch == 1}
        assert {order[position] for position in firsts} == BROKEN
        assert rejected == sorted(rejected, key=lambda one: (one.epoch, one.position))
        assert all(one.reason == f"OSError: truncated {one.index}" for one in rejected)
        assert {one.index for one in rejected} == BROKEN
        assert loader.stats().rejected == len(rejected) >= 2 * len(BROKEN)
        assert f"{len(rejected)} records replaced" in str(loader.stats())
        assert loader.stats().as_dict()["rejected"] == len(rejected)


def test_random_numbers_are_those_of_the_place():
    stream = ref_of().stream(shuffle=True, shuffle_seed=11)
    plain = stream.random_map(lambda record, rng: {"id": record["id"], "noise": rng.random()})
    replacing = stream.random_map(with_noise, on_error="substitute")
    filling = stream.random_map(fill, out=OUT, on_error="substitute")
    for _, one, other, another in zip(range(COUNT), plain, replacing, filling, strict=True):
        assert one["noise"] == other["noise"] == another["noise"]
        assert other["id"] == another["id"]


@pytest.mark.parametrize("ranks", [2, 3, 7])
@pytest.mark.parametrize("remainder", [{}, {"drop_shard_remainder": True}, {"pad_shard_remainder": True}])
def test_all_ranks_have_the_same_records_in_the_places(ranks, remainder):
    whole = ids(ref_of().stream(shuffle=True, shuffle_seed=4).map(check, on_error="substitute"))
    shares = [
        ids(
            ref_of()
            .stream(shuffle=True, shuffle_seed=4, shard_rank=rank, num_shards=ranks, **remainder)
            .map(check, on_error="substitute")
            .batch(5)
        )
        for rank in range(ranks)
    ]
    for rank, share in enumerate(shares):
        kept = len(whole[rank::ranks])
        assert share[:kept] == whole[rank::ranks][: len(share)]
        assert not set(share) & BROKEN
    if remainder:
        longest = COUNT // ranks if "drop_shard_remainder" in remainder else -(-COUNT // ranks)
        assert list(map(len, shares)) == [longest] * ranks
    else:
        assert sum(map(len, shares)) == COUNT


def test_a_mix_takes_a_record_of_the_same_parent():
    parents = {"a": (ref_of(), 0.9), "b": (ref_of(150, first=1000), 0.1)}
    stream = yogadl.mix(parents, seed=2, at_end="repeat").stream(shuffle=True, shuffle_seed=3)
    broken = {1003, 1100}

    def check_both(record):
        if int(record["id"]) in broken | BROKEN:
            raise ValueError("no")
        return record

    plain, found = ids(stream), ids(stream.map(check_both, on_error="substitute").batch(32))
    for before, after in zip(plain, found, strict=True):
        if before in broken | BROKEN:
            assert after not in broken | BROKEN
            assert (after >= 1000) == (before >= 1000)
        else:
            assert before == after
    assert ids(stream.map(check_both, on_error="substitute")) == found


def test_blocks_take_a_record_of_the_same_window():
    blocks = Blocks(records=4, window=3, lanes=5)
    stream = ref_of().stream(shuffle=blocks, shuffle_seed=8)
    windowed = COUNT // 60 * 60

    def window(position):
        return (position // 60 * 60, position // 60 * 60 + 60) if position < windowed else (windowed, COUNT)

    found = ids(stream.map(check, on_error="substitute").batch(7))
    assert found == expected(stream.indices(0).tolist(), 0, 8, window=window)


def test_positions_that_are_left_out_are_not_drawn():
    ranges = [(0, 100), (150, 390)]
    stream = ref_of().stream(shuffle=True, shuffle_seed=1).skip_ranges(ranges)
    order = ref_of().stream(shuffle=True, shuffle_seed=1).indices(0).tolist()
    left = [position for position in range(COUNT) if not any(a <= position < b for a, b in ranges)]
    wanted = expected(order, 0, 1, fits=left.__contains__)
    assert ids(stream.map(check, on_error="substitute").batch(9)) == [wanted[position] for position in left]


def rows_of_documents():
    """Return packed rows of 90 documents, each of its own number."""
    documents = [{"tokens": np.full(number % 7 + 1, number)} for number in range(90)]
    return yogadl.from_source(documents).packed(12, fields="tokens")


def no_fives(row):
    if 5 in row["tokens"]:
        raise ValueError("five")
    return row


def test_packed_rows_are_replaced_by_rows_of_the_same_epoch():
    packed = rows_of_documents()
    for epoch in range(3):
        rows = [row["tokens"].tolist() for row in packed.stream(shuffle=True).at(epoch)]
        assert sum(5 in row for row in rows) == 1
        found = packed.stream(shuffle=True).map(no_fives, on_error="substitute").at(epoch)
        for row, other in zip(found, rows, strict=True):
            if 5 in other:
                assert row["tokens"].tolist() in rows
                assert 5 not in row["tokens"]
            else:
                assert row["tokens"].tolist() == other


def test_a_later_function_may_fail_at_the_record_in_the_place():
    def odd(record):
        if int(record["id"]) % 2:
            raise ValueError("odd")
        return record

    stream = ref_of().stream(shuffle=True)
    made = stream.map(check, on_error="substitute").map(odd, on_error="substitute")
    found = ids(made.batch(16))
    assert not {number for number in found if number % 2 or number in BROKEN}
    for before, after in zip(ids(stream), found, strict=True):
        assert before == after or before % 2 or before in BROKEN
    assert ids(made) == found
    partly = stream.map(odd, on_error="substitute").map(check)
    with pytest.raises(StageError, match="check"):
        list(partly.batch(16))


def test_an_earlier_function_that_fails_at_the_record_in_the_place_is_an_error():
    def early(record):
        if record["id"] >= 16:
            raise ValueError("late")
        return record

    def odd(record):
        if record["id"] % 2:
            raise ValueError("odd")
        return record

    made = ref_of(32).stream().map(early).map(odd, on_error="substitute").batch(16)
    with pytest.raises(StageError, match=r"map\(early\) failed at record \d+: ValueError: late$"):
        next(iter(made))


def test_when_all_fail_the_error_says_so():
    def fail(record):
        raise ValueError("never")

    stream = ref_of(3).stream()
    with pytest.raises(StageError, match="failed at record"):
        _ = stream.map(fail, on_error="substitute").spec
    made = stream.map(fail, spec=stream.spec, on_error="substitute").batch(2)
    with pytest.raises(StageError, match="so did 100 records that were to come in its place"):
        next(iter(made))


def test_the_first_record_may_be_broken():
    assert 0 in BROKEN
    assert ref_of().stream().map(check, on_error="substitute").spec == ref_of().spec
    found = ids(ref_of().stream().map(check, on_error="substitute").batch(50))
    assert found == expected(range(COUNT), 0, 0)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_more_errors_than_allowed_are_an_error_that_stays(options):
    stream = ref_of().stream(shuffle=True)
    for most, is_enough in ((0, False), (5, False), (1000, True)):
        loader = stream.map(check, on_error="substitute", max_errors=most).batch(16)
        loader = loader.prefetch(**options) if options else loader
        batches = iter(loader)
        if is_enough:
            assert len(list(batches)) == COUNT // 16
            continue
        with pytest.raises(StageError, match=f"more than max_errors={most}; .*other ranks"):
            list(batches)
        place = batches.state_dict()
        for again in (batches, batches, iter(loader), iter(loader)):
            with pytest.raises(StageError, match=f"more than max_errors={most}; .*make the loader anew"):
                next(again)
        assert batches.state_dict() == place
    made = stream.map(check, on_error="substitute").batch(16)
    list(made)
    rejected = len({one.index for one in made.rejected()})
    exact = stream.map(check, on_error="substitute", max_errors=rejected).batch(16)
    assert len(list(exact)) == COUNT // 16
    with pytest.raises(StageError, match="max_errors"):
        list(stream.map(check, on_error="substitute", max_errors=rejected - 1).batch(16))


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_record_that_is_broken_in_each_epoch_counts_once(options):
    stream = ref_of().stream(shuffle=True).map(check, on_error="substitute", max_errors=len(BROKEN))
    loader = stream.batch(16, epochs=5)
    loader = loader.prefetch(**options) if options else loader
    assert len(list(loader)) == 5 * COUNT // 16
    assert len(list(loader)) == 5 * COUNT // 16
    assert loader.stats().rejected >= 5 * len(BROKEN)


def test_packed_rows_of_other_epochs_count_as_others():
    packed = yogadl.from_source([{"tokens": np.full(4, n)} for n in range(8)]).packed(8, fields="tokens")

    def no_threes(row):
        if 3 in row["tokens"]:
            raise ValueError("three")
        return row

    stream = packed.stream(shuffle=True).map(no_threes, on_error="substitute", max_errors=2)
    loader = stream.batch(1)
    assert [len(list(loader)) for _ in range(2)] == [4, 4]
    with pytest.raises(StageError, match="max_errors=2"):
        list(loader)


def test_a_loader_that_is_made_anew_after_too_many_errors_delivers():
    stream = ref_of().stream().map(check, on_error="substitute", max_errors=2)
    ended = stream.batch(2)
    with pytest.raises(StageError, match="max_errors=2"):
        list(ended)
    with pytest.raises(StageError, match="max_errors=2"):
        ended.batch_at(20)
    anew = iter(stream.batch(2))
    anew.load_state_dict(ended.state_dict())
    assert next(anew)["id"].tolist()[1] not in BROKEN


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_loaders_of_one_stream_count_by_themselves(options):
    stream = ref_of().stream(shuffle=True).map(check, on_error="substitute")
    plain = stream.batch(16)
    loaders = [plain, plain.prefetch(**options) if options else stream.batch(16)]
    counts = []
    for loader in loaders:
        assert loader.rejected() == []
        list(loader)
        assert loader.stats().rejected == len(loader.rejected())
        counts.append(len(loader.rejected()))
    assert counts[0] == counts[1] >= len(BROKEN)
    assert stream.rejected() == []


def test_the_file_of_a_rejected_record_is_its_field():
    ref = yogadl.from_source([{"id": n, "file": f"{n}.jpg"} for n in range(COUNT)], fingerprint="files")

    def dropped(record):
        return {"id": check(record)["id"]}

    streams = [
        ref.stream(shuffle=True).map(dropped, on_error="substitute"),
        ref.stream().map(lambda record: {"id": record["id"]}).map(check, on_error="substitute"),
        ref.sampled(records=COUNT).stream().map(check, on_error="substitute"),
    ]
    for stream in streams:
        list(stream)
        assert len(stream.rejected()) > 0
        assert all(one.file == f"{one.index}.jpg" for one in stream.rejected())


class Mute(Exception):
    """An error whose text can't be made."""

    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_an_error_whose_text_raises_is_replaced_like_others(options):
    def mute(record):
        if int(record["id"]) in BROKEN:
            raise Mute
        return record

    stream = ref_of().stream()
    loader = stream.map(mute, on_error="substitute").batch(16)
    loader = loader.prefetch(**options) if options else loader
    assert ids(loader) == expected(range(COUNT), 0, 0)
    assert {one.reason for one in loader.rejected()} == {"Mute (its text can't be shown: RuntimeError)"}
    raising = stream.map(mute, spec=stream.spec).batch(16)
    with pytest.raises(StageError, match="record 0: Mute"):
        next(iter(raising.prefetch(**options) if options else raising))
    assert len(ref_of().map(mute, on_error="skip")) == COUNT - len(BROKEN)


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("function", [check, fill], ids=["returned", "filled"])
def test_the_last_item_names_what_was_delivered_and_what_was_rejected(options, function):
    stream = ref_of().stream(shuffle=True, shuffle_seed=11)
    if function is fill:
        stream = stream.random_map(fill, out=OUT, on_error="substitute")
    else:
        stream = stream.map(check, on_error="substitute")
    loader = stream.batch(16, epochs=2)
    batches, rejected = iter(loader.prefetch(**options) if options else loader), []
    for batch in batches:
        assert batches.last.indices.tolist() == batch["id"].tolist()
        rejected += batches.last.rejected
        places = set(zip([batches.last.epoch] * 16, batches.last.positions.tolist(), strict=True))
        assert {(one.epoch, one.position) for one in batches.last.rejected} <= places
    assert {one.index for one in rejected} == BROKEN
    kept = pickle.loads(pickle.dumps(batches.last))
    assert kept.rejected == batches.last.rejected
    assert kept.indices.tolist() == batches.last.indices.tolist()


@pytest.mark.parametrize("most", [3, 14, 1000])
@pytest.mark.parametrize("options", WAYS[:3], ids=str)
def test_the_last_item_is_known_however_many_were_rejected_before(monkeypatch, most, options):
    set_constants(monkeypatch, MOST_REJECTED=most)
    stream = ref_of().stream(shuffle=True).map(check, on_error="substitute")
    loader = stream.batch(4, epochs=2)
    batches = iter(loader.prefetch(**options) if options else loader)
    count = 0
    for batch in batches:
        assert batches.last.indices.tolist() == batch["id"].tolist()
        count += len(batches.last.rejected)
    assert count >= 2 * len(BROKEN)
    assert len(stream.rejected()) == 0
    list(loader)
    assert len(loader.rejected()) <= most


def test_an_error_that_does_not_come_again_leaves_the_record_in_its_place():
    failing = {7}

    def once(record):
        if int(record["id"]) in failing:
            raise OSError("once")
        return record

    loader = ref_of(20).stream().map(once, on_error="substitute").batch(4)
    batches = iter(loader)
    cursor = batches.state_dict()
    next(batches)
    assert next(batches)["id"].tolist() == batches.last.indices.tolist() != [4, 5, 6, 7]
    failing.clear()
    batches.load_state_dict(cursor)
    next(batches)
    assert next(batches)["id"].tolist() == batches.last.indices.tolist() == [4, 5, 6, 7]
    assert batches.last.rejected == ()


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_the_last_documents_are_those_of_the_rows_that_were_delivered(options):
    packed = rows_of_documents()
    loader = packed.stream(shuffle=True).map(no_fives, on_error="substitute").batch(4, epochs=3)
    batches, rejected = iter(loader.prefetch(**options) if options else loader), 0
    for batch in batches:
        for row, documents in zip(batch["tokens"], batches.last.documents, strict=True):
            made = [number for number, start, stop in documents for _ in range(start, stop)]
            assert row.tolist() == made + [0] * (12 - len(made))
        rejected += len(batches.last.rejected)
    assert rejected >= 3


def test_reading_a_batch_again_counts_nothing_again():
    loader = ref_of().stream(shuffle=True).map(check, on_error="substitute").batch(16)
    first = list(loader)
    count = len(loader.rejected())
    assert ids([loader.batch_at(3)]) == ids([first[3]])
    assert len(loader.rejected()) == count
    plain = ref_of().stream(shuffle=True).map(check, on_error="substitute")
    list(plain)
    assert len(plain.rejected()) == count


def test_what_ends_the_program_is_not_replaced():
    def leave(record):
        sys.exit(3)

    with pytest.raises(SystemExit):
        next(iter(ref_of().stream().map(leave, spec=ref_of().spec, on_error="substitute").batch(2)))
    with pytest.raises(ConfigurationError, match="on_error"):
        ref_of().stream().map(check, on_error="ignore")


def test_a_result_of_another_structure_is_an_error():
    def odd_one(record):
        return {"other": 1} if int(record["id"]) == 30 else record

    with pytest.raises(StageError, match="record 30 that is not like the first one"):
        list(ref_of().stream().map(odd_one, on_error="substitute").batch(8))


def test_random_chains_of_stops_and_ranks_have_the_same_records_in_the_places():
    for seed in range(few_or_many(20, 500)):
        dice = random.Random(seed)
        size = dice.randint(30, COUNT)
        broken = set(dice.sample(range(size), max(1, size // 100))) | ({7} if dice.random() < 0.5 else set())

        def check(record, rng, out, broken=broken):
            out["id"][...] = -1
            if int(record["id"]) in broken:
                raise OSError("truncated")
            out["id"][...], out["noise"][...] = record["id"], rng.random()

        def stream_at(cursor, rank, ranks, check=check, size=size, seed=seed):
            stream = ref_of(size).stream(
                shuffle=True, shuffle_seed=seed, cursor=cursor, shard_rank=rank, num_shards=ranks
            )
            return stream.random_map(check, out=OUT, on_error="substitute")

        whole = [(int(one["id"]), float(one["noise"])) for one in stream_at(None, 0, 1)]
        assert len(set(range(size)) - broken - {number for number, _ in whole}) == 0
        cursor, seen, ranks = None, [], 4
        for leg in range(4):
            steps = None if leg == 3 else dice.randint(0, 4)
            batch = dice.choice([1, 3, 8])
            shares, cursors = [], set()
            for rank in range(ranks):
                batches = iter(stream_at(cursor, rank, ranks).batch(batch))
                share = []
                for _ in range(sys.maxsize if steps is None else steps):
                    found = next(batches, None)
                    if found is None:
                        break
                    share += list(zip(found["id"].tolist(), found["noise"].tolist(), strict=True))
                shares.append(share)
                cursors.add(json.dumps(batches.state_dict()))
            rows = [
                share[row] for row in range(max(map(len, shares))) for share in shares if row < len(share)
            ]
            assert rows or steps == 0 or seen == whole
            seen += rows
            assert seen == whole[: len(seen)], seed
            if len({len(share) for share in shares}) > 1 or steps is None:
                break
            [state] = cursors
            cursor, ranks = json.loads(state), dice.randint(1, 5)
            if cursor["epoch"]:
                break
        assert seen == whole or steps is not None
        assert not broken & {number for number, _ in seen}
