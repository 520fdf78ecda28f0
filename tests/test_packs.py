"""Packs and batches by tokens: each piece once an epoch, no row over its budget, no damaged plan opened."""

import copy
import hashlib
import itertools
import json
import mmap
import struct
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from itertools import chain, combinations, islice, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import (
    EXACT_EACH,
    BucketPlan,
    GroupPlan,
    PackPlan,
    absorb,
    derive_key,
    make_ranges,
    order_packs,
    permute_each,
    set_constants,
)
from numpy.typing import NDArray
from soak import few_or_many

from yogadl.errors import CacheFormatError, ConfigurationError

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "order-v1.json").read_text())
SIGMAS = 5.0
MASK = (1 << 64) - 1
Program = dict[str, Callable[..., int]]  # of the page on the order

seeds = st.integers(-(2**70), 2**70)
some_lengths = st.one_of(
    st.lists(st.integers(0, 90), max_size=80),
    st.lists(st.sampled_from([0, 1, 2, 7, 8, 9, 16, 17, 500]), max_size=200),
).map(lambda lengths: np.array(lengths, np.int64))


def lognormal(records: int, middle: float, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).lognormal(np.log(middle), 1.0, records).astype(np.int64) + 1


# -- the draw ----------------------------------------------------------------------------------------------


def all_of(
    sizes: NDArray[np.int64], state: int, words: NDArray[Any] | None = None
) -> list[NDArray[np.int64]]:
    """Return the whole permutation of each range."""
    ranges = make_ranges(sizes, np.arange(len(sizes), dtype=np.uint64) if words is None else words)
    numbers = np.concatenate([np.arange(size) for size in sizes])
    images = permute_each(numbers, np.repeat(np.arange(len(sizes)), sizes), ranges, state)
    return np.split(images, np.cumsum(sizes)[:-1])


def test_ranges_of_all_small_sizes_are_permuted() -> None:
    sizes = np.arange(1, 301)
    for size, images in zip(sizes.tolist(), all_of(sizes, state=5), strict=True):
        assert sorted(images.tolist()) == list(range(size))


@given(sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=6), state=st.integers(0, MASK))
@settings(max_examples=30, deadline=None)
def test_ranges_of_any_size_are_permuted(sizes: list[int], state: int) -> None:
    for size, images in zip(sizes, all_of(np.array(sizes), state), strict=True):
        np.testing.assert_array_equal(np.sort(images), np.arange(size))


@given(
    sizes=st.lists(st.one_of(st.integers(1, 70), st.integers(1, 2**62)), min_size=1, max_size=12),
    state=st.integers(0, MASK),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_a_number_is_permuted_as_by_integers_of_any_size(
    stranger: Program, sizes: list[int], state: int, data: st.DataObject
) -> None:
    words = np.array([data.draw(st.integers(0, MASK)) for _ in sizes], np.uint64)
    numbers = [data.draw(st.integers(0, size - 1)) for size in sizes]
    ranges = make_ranges(np.array(sizes, np.int64), words)
    images = permute_each(np.array(numbers, np.int64), np.arange(len(sizes)), ranges, state)
    expected = [
        stranger["each"](number, size, absorb(state, word))
        for number, size, word in zip(numbers, sizes, words.tolist(), strict=True)
    ]
    assert images.tolist() == expected


@pytest.mark.parametrize("size", [2**53, 2**53 + 1, 2**54 - 1, 2**54, 2**61, 2**62 - 1, 2**62])
def test_sizes_that_no_float_holds_have_the_right_network(size: int) -> None:
    ranges = make_ranges(np.array([size]), np.zeros(1, np.uint64))
    left_bits = ((size - 1).bit_length() + 1) // 2
    assert (int(ranges.left_bits[0]), int(ranges.rights[0])) == (left_bits, -(-size >> left_bits))


def deviation(counts: NDArray[np.int64]) -> float:
    """Return how many standard deviations chi-squared is off its mean."""
    expected = counts.sum() / counts.size
    return float(
        (((counts - expected) ** 2 / expected).sum() - counts.size + 1) / np.sqrt(2 * counts.size - 2)
    )


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_a_few_pieces_come_in_all_orders_equally_often(size: int) -> None:
    ranges = make_ranges(np.array([size]), np.array([77], np.uint64))
    counts = dict.fromkeys(permutations(range(size)), 0)
    for epoch in range(few_or_many(2000, 8000)):
        state = derive_key(order_packs.PACK_TAG, 0, epoch)
        images = permute_each(np.arange(size), np.zeros(size, np.int64), ranges, state)
        counts[tuple(images.tolist())] += 1
    assert abs(deviation(np.array(list(counts.values())))) < SIGMAS


@pytest.mark.parametrize("size", [EXACT_EACH + 1, 36, 48, 65, 96, 200])
def test_pairs_are_drawn_equally_often(size: int) -> None:
    classes = 30_000
    images = np.stack(all_of(np.full(classes, size), state=1))
    for one, other in [(0, 1), (0, 8), (1, size - 1), (8, 16)]:
        pairs = np.bincount(images[:, one] * size + images[:, other], minlength=size * size)
        different = pairs.reshape(size, size)[~np.eye(size, dtype=bool)]
        assert pairs.sum() == different.sum()
        assert abs(deviation(different)) < SIGMAS


@pytest.mark.parametrize("size", [5, 40, 3000])
def test_classes_epochs_and_seeds_are_drawn_independently(size: int) -> None:
    bins = min(size, 10)
    ranges = make_ranges(np.full(400, size), np.arange(400, dtype=np.uint64))
    number, which = np.tile(np.arange(size), 400), np.repeat(np.arange(400), size)

    def drawn(seed: int, epoch: int) -> NDArray[np.int64]:
        return permute_each(number, which, ranges, derive_key(1, seed, epoch)) * bins // size

    first = drawn(0, 0)
    others = drawn(1, 0), drawn(0, 1), drawn(1, 1), np.roll(first, size)
    for other in others:
        counts = np.bincount(first * bins + other, minlength=bins * bins).reshape(bins, bins)
        expected = counts.sum() / bins**2
        chi2 = float(((counts - expected) ** 2 / expected).sum()) * (size - 1) / size
        freedom = (bins - 1) ** 2
        assert abs(chi2 - freedom) / np.sqrt(2 * freedom) < SIGMAS


# -- packs -------------------------------------------------------------------------------------------------


def pieces_by_record(plan: PackPlan, seed: int, epoch: int, shuffle_within: bool) -> dict[int, list[Any]]:
    """Return the pieces of all rows; check each row."""
    found = plan.pieces(np.arange(plan.packs), seed, epoch, shuffle_within=shuffle_within)
    assert found.offsets[0] == 0
    assert found.offsets[-1] == len(found.records) == plan.pieces_per_epoch
    sizes = found.stops - found.starts
    by_row = [sizes[first:last] for first, last in zip(found.offsets[:-1], found.offsets[1:], strict=True)]
    for row in by_row:
        assert 1 <= len(row) <= plan.max_segments
        assert row.min() > 0
        assert row.sum() <= plan.capacity
        if not shuffle_within and plan.round_to == 1:
            assert row.tolist() == sorted(row.tolist(), reverse=True)
    by_record = defaultdict(list)
    for record, start, stop in zip(*(array.tolist() for array in found[1:]), strict=True):
        by_record[record].append((start, stop))
    return by_record


def expected_pieces(lengths: NDArray[np.int64], capacity: int, long: str) -> dict[int, list[Any]]:
    expected = {}
    for record, length in enumerate(lengths.tolist()):
        if length and (length <= capacity or long == "cut"):
            expected[record] = [
                (start, min(start + capacity, length)) for start in range(0, length, capacity)
            ]
    return expected


@given(
    lengths=some_lengths,
    capacity=st.integers(1, 60),
    long=st.sampled_from(["cut", "drop"]),
    round_to=st.integers(1, 70),
    seed=seeds,
    shuffle_within=st.booleans(),
)
@settings(max_examples=few_or_many(100, 2000), deadline=None)
def test_each_piece_comes_once_an_epoch(
    lengths: NDArray[np.int64], capacity: int, long: Any, round_to: int, seed: int, shuffle_within: bool
) -> None:
    made = PackPlan.make(lengths, capacity, long=long, round_to=round_to)
    plan = PackPlan.from_buffer(made.to_bytes())
    expected = expected_pieces(lengths, capacity, long)
    for epoch in (0, 1):
        found = pieces_by_record(plan, seed, epoch, shuffle_within)
        assert {record: sorted(pieces) for record, pieces in found.items()} == expected
        assert found == pieces_by_record(made, seed, epoch, shuffle_within)
    dropped = lengths[lengths > capacity] if long == "drop" else lengths[:0]
    assert (plan.records, plan.empty) == (len(lengths), int((lengths == 0).sum()))
    assert (plan.dropped, plan.dropped_tokens) == (len(dropped), int(dropped.sum()))
    assert plan.cut == (int((lengths > capacity).sum()) if long == "cut" else 0)
    assert plan.tokens == lengths.sum() - plan.dropped_tokens
    assert plan.pieces_per_epoch == sum(map(len, expected.values()))
    assert plan.padding == pytest.approx(1 - plan.tokens / (plan.packs * capacity) if plan.packs else 0)


@given(
    lengths=some_lengths,
    capacity=st.integers(1, 60),
    seed=seeds,
    shuffle_within=st.booleans(),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_row_is_known_without_the_others(
    lengths: NDArray[np.int64], capacity: int, seed: int, shuffle_within: bool, data: st.DataObject
) -> None:
    plan = PackPlan.make(lengths, capacity)
    every = plan.pieces(np.arange(plan.packs), seed, 3, shuffle_within=shuffle_within)
    chosen = data.draw(st.lists(st.integers(0, plan.packs - 1), max_size=8)) if plan.packs else []
    found = plan.pieces(np.array(chosen, np.int64), seed, 3, shuffle_within=shuffle_within)
    for number, pack in enumerate(chosen):
        here = slice(found.offsets[number], found.offsets[number + 1])
        there = slice(every.offsets[pack], every.offsets[pack + 1])
        for ours, theirs in zip(found[1:], every[1:], strict=True):
            assert ours[here].tolist() == theirs[there].tolist()


def drawn_from(plan: PackPlan | BucketPlan, seed: int, epoch: int) -> NDArray[np.int64]:
    draw = plan.pieces if isinstance(plan, PackPlan) else plan.batches
    return draw(np.arange(50), seed, epoch).records


@pytest.mark.parametrize("make", [PackPlan.make, BucketPlan.make])
def test_a_row_or_batch_holds_other_records_in_each_epoch_and_seed(make: Any) -> None:
    plan = make(lognormal(20_000, 100), 1024)
    drawn = [drawn_from(plan, seed, epoch) for seed, epoch in [(0, 0), (0, 1), (1, 0)]]
    for one, other in combinations(drawn, 2):
        assert np.mean(one == other) < 0.2


def test_the_pieces_of_a_row_come_in_all_orders_equally_often() -> None:
    plan = PackPlan.make(np.array([6, 3, 1] * 30), 10)
    counts = dict.fromkeys(permutations([1, 3, 6]), 0)
    for epoch in range(200):
        found = plan.pieces(np.arange(plan.packs), 0, epoch, shuffle_within=True)
        for row in (found.stops - found.starts).reshape(-1, 3).tolist():
            counts[tuple(row)] += 1
    assert abs(deviation(np.array(list(counts.values())))) < SIGMAS


def best_fit_decreasing(lengths: NDArray[np.int64], capacity: int) -> int:
    """Return the rows that best-fit makes of whole records, one at a time."""
    rows = list[int]()
    for length in sorted(lengths.tolist(), reverse=True):
        fitting = [space for space in rows if space >= length]
        space = min(fitting) if fitting else capacity
        if fitting:
            rows.remove(space)
        rows.append(space - length)
    return len(rows)


@given(lengths=st.lists(st.integers(1, 40), max_size=120).map(np.array), capacity=st.integers(40, 90))
@settings(max_examples=150, deadline=None)
def test_the_rows_are_those_of_best_fit_from_the_longest_down(
    lengths: NDArray[np.int64], capacity: int
) -> None:
    lengths = lengths.astype(np.int64)
    assert PackPlan.make(lengths, capacity).packs == best_fit_decreasing(lengths, capacity)


def test_wider_classes_are_fewer_and_pad_more() -> None:
    lengths = lognormal(5000, 300)
    narrow, wide = PackPlan.make(lengths, 2048), PackPlan.make(lengths, 2048, round_to=64)
    assert narrow.padding < wide.padding < 0.1


def test_a_record_of_many_rows_takes_no_memory_for_each() -> None:
    plan = PackPlan.make(np.array([2**40, 3, 2**40 - 1]), 4)
    assert plan.packs == 2**39 + 1
    assert len(plan.to_bytes()) < 1000
    found = plan.pieces(np.array([0, 1, 2**38, 2**39 - 1, 2**39]), 0, 0)
    assert len(found.records) == 5
    assert set(found.records.tolist()) <= {0, 1, 2}
    assert (found.starts % 4 == 0).all()
    most = PackPlan.make(np.array([2**24, 2**24 + 1, 5]), 2**24)  # as many values as a row may have
    assert (most.packs, most.cut) == (3, 1)


def test_lengths_of_any_integer_type_make_the_same_plan() -> None:
    lengths = lognormal(500, 40)
    plans = {
        PackPlan.make(lengths.astype(kind), 128).to_bytes()
        for kind in ("i2", "u2", "i4", ">i4", "u4", "i8", "u8")
    }
    assert len(plans) == 1


def test_chunks_of_lengths_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = lognormal(3000, 100)
    whole = PackPlan.make(lengths, 256).to_bytes(), BucketPlan.make(lengths, 1024).to_bytes()
    for chunk in (1, 7, 1000, 3000):
        set_constants(monkeypatch, CHUNK_LENGTHS=chunk)
        assert (PackPlan.make(lengths, 256).to_bytes(), BucketPlan.make(lengths, 1024).to_bytes()) == whole


def test_more_lengths_than_16_bits_can_tell_apart() -> None:
    lengths = np.random.default_rng(0).permutation(70_000)
    found = pieces_by_record(PackPlan.make(lengths, 1 << 20), 0, 0, shuffle_within=False)
    assert {record: pieces[0][1] for record, pieces in found.items()} == {
        record: length for record, length in enumerate(lengths.tolist()) if length
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": np.array([1.0])}, "integers"),
        ({"lengths": np.array([[1]])}, "one dimension"),
        ({"lengths": [1]}, "array"),
        ({"lengths": np.array([3, -1])}, "record 1 has the length -1"),
        ({"lengths": np.array([3, 2**40 + 1])}, "record 1 has the length 1099511627777"),
        ({"lengths": np.array([2**63 + 5], np.uint64)}, "record 0 has the length 9223372036854775813"),
        ({"capacity": 0}, "capacity"),
        ({"capacity": 2**24 + 1}, r"capacity must be at most 2\*\*24"),
        ({"round_to": 0}, "round_to"),
        ({"long": "keep"}, "long"),
        ({"long": "raise"}, "record 2 has 9 values, more than the 8 of a row"),
        ({"tokens": 0}, "tokens"),
        ({"tokens": 8, "max_records": 0}, "max_records"),
        ({"tokens": 8, "ranks": 0}, "ranks"),
        ({"tokens": 8, "classes": 1025}, "classes"),
        ({"tokens": 8, "long": "cut"}, "long"),
        ({"tokens": 8, "long": "raise"}, "record 2 has 9 values, more than the 8 of a batch"),
    ],
)
def test_what_can_not_be_packed_or_bucketed_is_said(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"lengths": np.array([3, 4, 9, 10]), **change}
    make, budget = (BucketPlan.make, "tokens") if "tokens" in change else (PackPlan.make, "capacity")
    with pytest.raises(ConfigurationError, match=message):
        make(arguments.pop("lengths"), arguments.pop(budget, 8), **arguments)


def test_a_row_or_batch_that_is_not_there_is_an_index_error() -> None:
    packs, batches = PackPlan.make(np.array([3, 4]), 8), BucketPlan.make(np.array([3, 4]), 8)
    for number in (-1, packs.packs):
        with pytest.raises(IndexError, match=f"no pack {number}"):
            packs.pieces(np.array([number]), 0, 0)
    for number in (-1, batches.batches_per_epoch):
        with pytest.raises(IndexError, match=f"no batch {number}"):
            batches.batches(np.array([number]), 0, 0)


# -- batches by tokens -------------------------------------------------------------------------------------


@given(
    lengths=some_lengths,
    tokens=st.integers(1, 400),
    max_records=st.one_of(st.none(), st.integers(1, 9)),
    classes=st.one_of(st.none(), st.integers(1, 9)),
    ranks=st.integers(1, 5),
    seed=seeds,
)
@settings(max_examples=few_or_many(100, 2000), deadline=None)
def test_each_record_comes_once_an_epoch_within_the_budget(
    lengths: NDArray[np.int64],
    tokens: int,
    max_records: int | None,
    classes: int | None,
    ranks: int,
    seed: int,
) -> None:
    made = BucketPlan.make(lengths, tokens, max_records=max_records, classes=classes, ranks=ranks)
    plan = BucketPlan.from_buffer(made.to_bytes())
    assert len(plan.longest) <= (classes or 128)
    for epoch in (0, 1):
        found = plan.batches(np.arange(plan.batches_per_epoch), seed, epoch)
        assert (
            found.records.tolist() == made.batches(np.arange(made.batches_per_epoch), seed, epoch)[1].tolist()
        )
        assert sorted(found.records.tolist()) == list(range(len(lengths)))
        sizes = np.diff(found.offsets)
        most = np.maximum(1, tokens // np.maximum(1, found.longest))
        most = np.minimum(most, max_records or len(lengths))
        assert ((sizes >= 1) & (sizes <= most)).all()
        assert ((sizes * found.longest <= tokens) | (sizes == 1)).all()
        if ranks == 1:
            most_of_classes = [
                min(tokens // max(1, length), max_records or 10**9) for length in plan.longest.tolist()
            ]
            jumps = sum(one > 2 * other for one, other in itertools.pairwise(most_of_classes))
            assert (sizes < most).sum() <= 1 + jumps, "one short batch an epoch, and where lengths jump"
        missing = -len(sizes) % ranks
        for limit in np.unique(found.longest) if missing else ():
            of_class = sizes[np.minimum(found.longest, tokens + 1) == min(limit, tokens + 1)]
            assert of_class.sum() < len(of_class) + missing, "not a multiple of the ranks"
        assert (lengths[found.records] <= np.repeat(found.longest, sizes)).all()
        alone = found.longest > tokens
        assert (
            sorted(found.records[np.repeat(alone, sizes)].tolist())
            == np.flatnonzero(lengths > tokens).tolist()
        )
        assert (sizes[alone] == 1).all()
        assert int((sizes * found.longest).sum()) == plan.padded_tokens
        steps = np.where(alone, tokens + 1, found.longest)[: plan.steps_of_one_class * ranks].reshape(
            -1, ranks
        )
        assert (steps == steps[:, :1]).all()
    assert plan.steps_of_one_class * ranks > plan.batches_per_epoch - ranks * (len(plan.longest) + 1)


@given(lengths=some_lengths, tokens=st.integers(1, 400), ranks=st.integers(1, 5), seed=seeds, data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_batch_is_known_without_the_others(
    lengths: NDArray[np.int64], tokens: int, ranks: int, seed: int, data: st.DataObject
) -> None:
    plan = BucketPlan.make(lengths, tokens, ranks=ranks)
    count = plan.batches_per_epoch
    every = plan.batches(np.arange(count), seed, 3)
    chosen = data.draw(st.lists(st.integers(0, count - 1), max_size=8)) if count else []
    found = plan.batches(np.array(chosen, np.int64), seed, 3)
    for number, batch in enumerate(chosen):
        ours = found.records[found.offsets[number] : found.offsets[number + 1]]
        assert ours.tolist() == every.records[every.offsets[batch] : every.offsets[batch + 1]].tolist()
        assert found.longest[number] == every.longest[batch]


def test_batches_of_lognormal_lengths_pad_little() -> None:
    lengths = lognormal(200_000, 500)
    plan = BucketPlan.make(lengths, 65_536)
    assert plan.padding <= 0.03
    found = plan.batches(np.arange(plan.batches_per_epoch), 0, 0)
    padded = np.diff(found.offsets) * found.longest
    small = padded[found.longest <= 65_536 / 20]
    assert len(small) > 1000
    assert (small > 65_536 * 0.95).all()


@pytest.mark.parametrize(
    ("spread", "classes"),
    [
        *[(1.1, 4), (1.3, 8), (2, 12), (2.5, 16), (3, 24), (5, 32), (7, 40)],
        *[(13, 48), (20, 56), (30, 64), (50, 80), (130, 96), (250, 112), (500, 128)],
    ],
)
def test_the_numbers_of_classes_that_are_tried_stay_the_same_as_they_are_part_of_the_order(
    spread: float, classes: int
) -> None:
    shares = (np.arange(60_000) + 0.5) / 60_000
    lengths = (30_000 / (spread + shares * (1 - spread))).astype(
        np.int64
    )  # the longest is `spread` times one
    plan = BucketPlan.make(lengths, 30_000)
    assert len(plan.longest) == classes
    assert plan.padding <= 0.03


@pytest.mark.parametrize(
    ("lengths", "tokens", "batches"),
    [
        ([1] * 5000 + [500], 4096, 3),
        ([0] * 5000 + [3], 8, 626),
        ([7] * 20_000 + [8000], 65_536, 4),
        ([7] * 20_000 + [8000] * 50, 65_536, 3 + 7),
    ],
)
def test_a_few_long_records_have_batches_of_their_own(lengths: list[int], tokens: int, batches: int) -> None:
    plan = BucketPlan.make(np.array(lengths), tokens)
    assert plan.batches_per_epoch == batches
    assert plan.padding <= 0.01


def test_few_classes_are_those_that_pad_least() -> None:
    kinds, counts = np.array([1, 2, 10, 11, 12, 30, 31]), np.array([50, 3, 40, 5, 1, 60, 1])

    def padded(longest: tuple[int, ...]) -> int:
        return int((np.array(longest)[np.searchsorted(longest, kinds)] * counts).sum())

    for classes in range(1, 8):
        plan = BucketPlan.make(np.repeat(kinds, counts), 1000, classes=classes)
        best = min(((*some, 31) for some in combinations(kinds[:-1].tolist(), classes - 1)), key=padded)
        assert plan.longest.tolist() == list(best)


def test_lengths_longer_than_the_histogram_are_rounded_up() -> None:
    lengths = np.random.default_rng(0).integers(1, 2**30, 300)
    plan = BucketPlan.make(lengths, 2**33)
    found = plan.batches(np.arange(plan.batches_per_epoch), 0, 0)
    assert sorted(found.records.tolist()) == list(range(300))
    assert (lengths[found.records] <= np.repeat(found.longest, np.diff(found.offsets))).all()
    assert found.longest.max() == lengths.max()


# -- as the page on the order states it --------------------------------------------------------------------


def rows_slowly(
    program: Program, lengths: list[int], capacity: int, round_to: int, seed: int, epoch: int
) -> list[list[Any]]:
    """Return the pieces of all rows, cut and shuffled within each row, by integers alone."""
    # The cut-off ones come before whole records of the same length.
    pieces = [
        (start - min(start + capacity, length), length == capacity, record, start)
        for record, length in enumerate(lengths)
        for start in range(0, length, capacity)
    ]
    classes = defaultdict(list)
    for size, _, record, start in sorted(pieces):
        classes[min(capacity, -(size // round_to) * round_to)].append((record, start, start - size))
    groups: list[tuple[int, int, list[tuple[int, int]]]] = []  # space, rows, [(class, pieces)]
    done = []

    def put(space: int, rows: int, recipe: list[tuple[int, int]]) -> None:
        (done if space < min(classes) else groups).append((space, rows, recipe))

    for size in sorted(classes, reverse=True):
        count = len(classes[size])
        while count:
            spaces = [space for space, _, _ in groups if space >= size]
            if spaces:
                last = max(number for number, group in enumerate(groups) if group[0] == min(spaces))
                space, rows, recipe = groups.pop(last)
            else:
                space, rows, recipe = capacity, -(-count // (capacity // size)), []
            fitting = space // size
            full = min(count // fitting, rows)
            if full:
                put(space - fitting * size, full, [*recipe, (size, fitting)])
            count, rows = count - full * fitting, rows - full
            if count and rows:
                put(space - count * size, 1, [*recipe, (size, count)])
                count, rows = 0, rows - 1
            if rows:
                put(space, rows, recipe)
    found: list[list[Any]] = []
    taken = dict.fromkeys(classes, 0)
    for _, rows, recipe in [*done, *sorted(groups, key=lambda group: group[0])]:
        for _ in range(rows):
            row = []
            for size, fitting in recipe:
                members = classes[size]
                key = derive_key(int.from_bytes(b"pack-1", "big"), seed, epoch, size)
                for number in range(taken[size], taken[size] + fitting):
                    row.append(members[program["each"](number, len(members), key)])
                taken[size] += fitting
            key = derive_key(int.from_bytes(b"within-1", "big"), seed, epoch, len(found))
            found.append([row[i] for i in sorted(range(len(row)), key=lambda i: program["stream"](key, i))])
    return found


@given(lengths=some_lengths, capacity=st.integers(1, 60), round_to=st.integers(1, 70), seed=st.integers(0, 9))
@settings(max_examples=80, deadline=None)
def test_rows_are_those_that_the_page_states(
    stranger: Program, lengths: NDArray[np.int64], capacity: int, round_to: int, seed: int
) -> None:
    plan = PackPlan.make(lengths, capacity, round_to=round_to)
    found = plan.pieces(np.arange(plan.packs), seed, 4, shuffle_within=True)
    pieces = list(zip(*(array.tolist() for array in found[1:]), strict=True))
    rows = [pieces[first:last] for first, last in zip(found.offsets[:-1], found.offsets[1:], strict=True)]
    assert rows == rows_slowly(stranger, lengths.tolist(), capacity, round_to, seed, 4)


def batches_slowly(
    program: Program, lengths: list[int], plan: BucketPlan, seed: int, epoch: int
) -> list[list[int]]:
    """Return the records of all batches of a plan's classes, by integers alone."""
    limits = plan.longest.tolist()
    members: list[list[int]] = [[] for _ in range(len(limits) + 1)]
    for record, length in enumerate(lengths):
        members[sum(length > limit for limit in limits)].append(record)
    batches_of, left = list[list[list[int]]](), list[int]()
    for number, own in enumerate(members):
        over = number == len(limits)
        per_batch = 1 if over else min(plan.budget // max(1, limits[number]), plan.max_records)
        pool = left + own
        key = derive_key(int.from_bytes(b"bucket-1", "big"), seed, epoch, number)
        drawn = [pool[program["each"](k, len(pool), key)] for k in range(len(pool))]
        used = len(pool)
        if number < len(limits) - 1:
            after = min(plan.budget // max(1, limits[number + 1]), plan.max_records)
            used -= len(pool) % per_batch if len(pool) % per_batch <= 2 * after else 0
        batches_of.append([drawn[k : k + per_batch] for k in range(0, used, per_batch)])
        left = drawn[used:]
    return in_steps_slowly(batches_of, plan.ranks)


def in_steps_slowly(batches_of: list[list[list[int]]], ranks: int) -> list[list[int]]:
    """Return the batches of all classes in the order of their numbers, as many as ranks can share."""
    missing = -sum(map(len, batches_of)) % ranks
    flat = [list(chain.from_iterable(batches)) for batches in batches_of]
    most = max(
        (
            len(batches)
            for batches, drawn in zip(batches_of, flat, strict=True)
            if len(drawn) >= len(batches) + missing
        ),
        default=None,
    )
    for batches, drawn in zip(batches_of, flat, strict=True):
        if missing and len(batches) == most and len(drawn) >= most + missing:
            size, larger = divmod(len(drawn), most + missing)
            sizes = [size + (i < larger) for i in range(most + missing)]
            rest = iter(drawn)
            batches[:] = [list(islice(rest, size)) for size in sizes]
            break
    steps = [len(batches) // ranks * ranks for batches in batches_of]
    in_steps = [batch for batches, end in zip(batches_of, steps, strict=True) for batch in batches[:end]]
    return in_steps + [
        batch for batches, end in zip(batches_of, steps, strict=True) for batch in batches[end:]
    ]


@given(
    lengths=some_lengths,
    tokens=st.integers(1, 400),
    max_records=st.one_of(st.none(), st.integers(1, 9)),
    ranks=st.integers(1, 4),
    seed=st.integers(0, 9),
)
@settings(max_examples=80, deadline=None)
def test_batches_are_those_that_the_page_states(
    stranger: Program, lengths: NDArray[np.int64], tokens: int, max_records: int | None, ranks: int, seed: int
) -> None:
    plan = BucketPlan.make(lengths, tokens, max_records=max_records, ranks=ranks)
    found = plan.batches(np.arange(plan.batches_per_epoch), seed, 4)
    batches = [part.tolist() for part in np.split(found.records, found.offsets[1:-1])] if len(lengths) else []
    assert batches == batches_slowly(stranger, lengths.tolist(), plan, seed, 4)


@given(
    kinds=st.lists(st.integers(0, 6), max_size=80),
    per_batch=st.lists(st.integers(1, 9), min_size=7, max_size=7),
    ranks=st.integers(1, 4),
    seed=st.integers(0, 9),
)
@settings(max_examples=few_or_many(60, 1000), deadline=None)
def test_batches_of_one_value_are_those_that_the_page_states(
    stranger: Program, kinds: list[int], per_batch: list[int], ranks: int, seed: int
) -> None:
    values = list(dict.fromkeys(kinds))
    numbers = np.array([values.index(kind) for kind in kinds], np.uint16)
    plan = GroupPlan.from_buffer(GroupPlan.make(numbers, per_batch[: len(values)], ranks).to_bytes())
    found = plan.batches(np.arange(plan.batches_per_epoch), seed, 4)
    batches = [part.tolist() for part in np.split(found.records, found.offsets[1:-1])] if kinds else []
    batches_of = list[list[list[int]]]()
    for number, size in zip(range(len(values)), per_batch, strict=False):
        own = np.flatnonzero(numbers == number).tolist()
        key = derive_key(int.from_bytes(b"bucket-1", "big"), seed, 4, number)
        drawn = [own[stranger["each"](k, len(own), key)] for k in range(len(own))]
        batches_of.append([drawn[k : k + size] for k in range(0, len(own), size)])
    assert batches == in_steps_slowly(batches_of, ranks)
    assert (found.longest == 0).all()


def test_rows_and_batches_are_those_of_the_vectors() -> None:
    for row in VECTORS["packs"]:
        plan = PackPlan.make(np.array(row["lengths"]), row["capacity"], round_to=row["round_to"])
        found = plan.pieces(
            np.arange(plan.packs), row["seed"], row["epoch"], shuffle_within=row["shuffle_within"]
        )
        pieces = np.stack(found[1:], axis=1)
        assert [part.tolist() for part in np.split(pieces, found.offsets[1:-1])] == row["rows"]
    for row in VECTORS["buckets"]:
        options = {"max_records": row["max_records"], "ranks": row["ranks"]}
        made = BucketPlan.make(np.array(row["lengths"]), row["tokens"], **options)
        assert made.longest.tolist() == row["longest"]
        batches = made.batches(np.arange(made.batches_per_epoch), row["seed"], row["epoch"])
        assert [part.tolist() for part in np.split(batches.records, batches.offsets[1:-1])] == row["batches"]


# -- kept --------------------------------------------------------------------------------------------------

KEPT = {
    "packs": PackPlan.make(np.array([5, 9, 0, 4, 4, 30, 1, 2, 16, 3]), 8),
    "rounded": PackPlan.make(lognormal(50, 20), 100, long="drop", round_to=7),
    "all cut": PackPlan.make(np.array([9, 20, 8 * 3]), 8),
    "buckets": BucketPlan.make(np.append(lognormal(30, 20), 500), 200, classes=6, ranks=2),
    "groups": GroupPlan.make(np.arange(31) % 7 % 4, [3, 1, 40, 2], 2),
}
OPENED: dict[str, Any] = {"buckets": BucketPlan, "groups": GroupPlan}


def opened(name: str, buffer: Any) -> Any:
    return OPENED.get(name, PackPlan).from_buffer(buffer)


def read_all(plan: PackPlan | BucketPlan | GroupPlan) -> None:
    """Read some rows of a plan that may be damaged."""
    if isinstance(plan, PackPlan):
        plan.pieces(np.arange(min(plan.packs, 20)), 0, 0)
    else:
        plan.batches(np.arange(min(plan.batches_per_epoch, 10)), 0, 0)


@pytest.mark.parametrize("name", KEPT)
def test_a_plan_is_used_where_it_is_mapped(name: str, tmp_path: Path) -> None:
    path = tmp_path / "plan"
    with path.open("wb") as file:
        KEPT[name].write(file)
    assert path.read_bytes() == KEPT[name].to_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        plan = opened(name, mapped)
        assert plan.to_bytes() == KEPT[name].to_bytes()
        read_all(plan)
        assert plan._numbers.ctypes.data % 8 == 0
        del plan


@pytest.mark.parametrize("name", KEPT)
def test_a_plan_that_is_cut_or_longer_or_of_another_kind_is_refused(name: str) -> None:
    whole = KEPT[name].to_bytes()
    for size in range(len(whole)):
        with pytest.raises(CacheFormatError, match="damaged"):
            opened(name, whole[:size])
    for more in (b"\0", bytes(8)):
        with pytest.raises(CacheFormatError, match="follow"):
            opened(name, whole + more)
    with pytest.raises(CacheFormatError, match="begin"):
        opened("packs" if name in OPENED else "buckets", whole)
    with pytest.raises(CacheFormatError, match="begin"):
        opened("groups" if name == "buckets" else "buckets" if name == "groups" else "groups", whole)


@pytest.mark.parametrize("name", KEPT)
def test_any_number_that_is_changed_is_refused_or_harmless(name: str) -> None:
    whole = KEPT[name].to_bytes()
    values = [0, 1, 2, 3, 255, 2**31, 2**32 - 1, 2**32, 2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
    tracemalloc.start()
    for place in range(8, len(whole) - 7, few_or_many(12, 4)):
        for value in values:
            changed = bytearray(whole)
            struct.pack_into("<Q", changed, place, value)
            try:
                read_all(opened(name, bytes(changed)))
            except CacheFormatError:
                pass
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


# Places in `_integers`, or an array's number and places in it, with what is added there.
@pytest.mark.parametrize(
    ("integers", "arrays", "message"),
    [
        ({1: -1}, {}, "its settings contradict each other"),  # multiples of 0
        ({2: 1}, {}, "its settings contradict each other"),  # long records are dropped, and some are cut
        ({2: 3}, {}, "it has 3 where it can have 0 to 2"),  # there are three ways to treat long records
        ({12: 1}, {}, "its settings contradict each other"),  # numbers of 5 bytes
        ({}, {1: {1: 1}}, "its counts contradict each other"),
        ({}, {3: {0: 1}}, "its counts contradict each other"),
        ({3: -8}, {}, "its counts contradict each other"),  # 2 records, of which 3 are cut
        ({}, {0: {0: -1}}, "it has no place for pieces that are cut off"),
        ({}, {1: {0: -4, 1: 4}}, "it has no place for pieces that are cut off"),
        ({3: -2}, {}, "it has more pieces than records"),
        ({4: 10}, {}, "it has more pieces than records"),
    ],
)
def test_packs_that_contradict_themselves_are_refused(
    integers: dict[int, int], arrays: dict[int, dict[int, int]], message: str
) -> None:
    plan = copy.copy(PackPlan.from_buffer(KEPT["packs"].to_bytes()))
    plan._integers = [value + integers.get(place, 0) for place, value in enumerate(plan._integers)]
    plan._arrays = [array.copy() for array in plan._arrays]
    for number, changes in arrays.items():
        for place, change in changes.items():
            plan._arrays[number][place] = int(plan._arrays[number][place]) + change
    with pytest.raises(CacheFormatError, match=message):
        PackPlan.from_buffer(plan.to_bytes())


# An integer, or an array's number and a place in it, with what is added there.
@pytest.mark.parametrize(
    ("integer", "array", "place", "more", "message"),
    [
        (0, None, 0, -2, "its settings contradict each other"),  # steps of no batch
        (3, None, 0, 1, "its settings contradict each other"),  # numbers of 5 bytes
        (None, 0, 0, -3, "a number is out of range"),  # batches of no record
        (None, 1, 3, -4, "a number is out of range"),  # a value of no record
        (None, 1, 1, 1, "its counts contradict each other"),
        (None, 0, 0, 100, "its counts contradict each other"),  # batches of more records than there are
    ],
)
def test_groups_that_contradict_themselves_are_refused(
    integer: int | None, array: int | None, place: int, more: int, message: str
) -> None:
    plan = copy.copy(GroupPlan.from_buffer(KEPT["groups"].to_bytes()))
    plan._integers, plan._arrays = list(plan._integers), [each.copy() for each in plan._arrays]
    if integer is not None:
        plan._integers[integer] += more
    if array is not None:
        plan._arrays[array][place] += more
    with pytest.raises(CacheFormatError, match=message):
        GroupPlan.from_buffer(plan.to_bytes())


@given(data=st.data(), name=st.sampled_from(sorted(KEPT)))
@settings(max_examples=few_or_many(100, 2000), deadline=None)
def test_whatever_is_forged_no_wrong_kind_of_error_is_raised(data: st.DataObject, name: str) -> None:
    changed = bytearray(KEPT[name].to_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_all(opened(name, changed))
    except CacheFormatError:
        pass


# -- frozen ------------------------------------------------------------------------------------------------


def test_the_pieces_of_rows_are_those_of_version_1() -> None:
    plan = PackPlan.make(np.arange(1, 61), 50)
    found = plan.pieces(np.array([0, 11, 36]), seed=7, epoch=2, shuffle_within=True)
    assert found.offsets.tolist() == [0, 1, 3, 10]
    assert found.records.tolist() == [55, 25, 23, 57, 2, 51, 50, 4, 6, 3]
    assert found.starts.tolist() == [0, 0, 0, 50, 0, 50, 50, 0, 0, 0]
    assert found.stops.tolist() == [50, 26, 24, 58, 3, 52, 51, 5, 7, 4]
    large = PackPlan.make(np.full(200, 3), 7)
    found = large.pieces(np.array([0, 11, 36]), seed=7, epoch=2, shuffle_within=True)
    assert found.records.tolist() == [98, 44, 43, 28, 178, 117]


def test_the_records_of_batches_are_those_of_version_1() -> None:
    plan = BucketPlan.make(np.arange(60) % 23, 50, classes=4)
    found = plan.batches(np.array([0, 5, 9]), seed=7, epoch=2)
    assert found.offsets.tolist() == [0, 12, 15, 17]
    assert found.records.tolist() == [27, 23, 3, 0, 24, 49, 48, 25, 26, 50, 4, 46, 34, 56, 33, 40, 43]
    assert found.longest.tolist() == [4, 14, 22]


def test_the_batches_of_one_value_are_those_of_version_1() -> None:
    plan = GroupPlan.make(np.arange(60) % 23 % 5, [3, 7, 2, 50, 4], 2)
    found = plan.batches(np.array([0, 5, 9]), seed=7, epoch=2)
    assert found.offsets.tolist() == [0, 3, 9, 11]
    assert found.records.tolist() == [43, 23, 15, 47, 44, 1, 6, 34, 24, 53, 2]
    assert hashlib.sha256(plan.to_bytes()).hexdigest()[:16] == "3e4612c60e5178bc"


def test_the_recipes_and_classes_are_those_of_version_1() -> None:
    numbers = np.arange(20_000)
    lengths = numbers * numbers % 8191 * (numbers % 37) // 97 + 1
    packs, wide = PackPlan.make(lengths, 512), PackPlan.make(lengths, 5000, long="drop", round_to=16)
    buckets = BucketPlan.make(lengths, 16_384), BucketPlan.make(lengths, 16_384, classes=7, ranks=4)
    digests = [hashlib.sha256(plan.to_bytes()).hexdigest()[:16] for plan in (packs, wide, *buckets)]
    assert digests == [
        "a5341fdcd2f74b8e",
        "dcc97329a1317e38",
        "1804e2283ad6823e",
        "58a87d02bb93fba4",
    ]
