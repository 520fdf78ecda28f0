"""The order is a bijection, invertible, frozen, and the same however it is asked for."""

import json
import pickle
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import (
    EXACT_LIMIT,
    ROUNDS,
    BlocksOfGroups,
    BlocksOrder,
    Drawn,
    GlobalOrder,
    Order,
    SequencesOfEpisodes,
    SourceOrder,
    _random,
    absorb,
    absorb_array,
    derive_key,
    draw_of,
    make_order,
    make_ranges,
    permute,
    permute_each,
    unpermute,
)

from yogadl import Blocks, Sequences
from yogadl.errors import ConfigurationError

HERE = Path(__file__).parent
VECTORS: dict[str, Any] = json.loads((HERE / "vectors" / "order-v1.json").read_text())
DOCUMENT = (HERE.parent / "docs" / "explanation" / "order.md").read_text()
ODD_BLOCKS = Blocks(records=127, window=5, lanes=101)

Program = dict[str, Callable[..., Any]]  # of the page on the order
small = st.integers(1, 12)
seeds = st.integers(-(2**200), 2**200)


def assert_permutes(order: Order, epoch: int) -> None:
    positions = np.arange(order.records, dtype=np.int64)
    indices = order.indices(positions, epoch)
    assert indices.dtype == np.int64
    seen = np.zeros(order.records, np.bool_)
    seen[indices] = True
    assert seen.all()
    np.testing.assert_array_equal(order.positions(indices, epoch), positions)


def order_of(row: dict[str, Any]) -> Order:
    shuffle = Blocks(**row["blocks"]) if "blocks" in row else True
    return make_order(row["records"], shuffle, row["seed"])


# -- a bijection -------------------------------------------------------------------------------------------


def test_every_small_number_of_records_is_permuted() -> None:
    for records in range(301):
        assert_permutes(make_order(records, True, seed=records), epoch=1)


@pytest.mark.parametrize(
    ("records", "shuffle"),
    [
        *[(EXACT_LIMIT + more, True) for more in (-1, 0, 1)],
        *[(2**16 + more, True) for more in (-1, 0, 1, 3)],
        *[(100_003, True), (1_000_003, True), (2_000_003, ODD_BLOCKS)],
    ],
)
def test_numbers_of_records_around_the_limit_and_many_are_permuted(
    records: int, shuffle: bool | Blocks
) -> None:
    assert_permutes(make_order(records, shuffle, seed=1), epoch=2)


def test_numbers_that_go_round_in_circles_outside_do_no_harm() -> None:
    # The network over 100,000 has 352 numbers to spare. Some keys have a circle among those.
    order = make_order(100_000, True, seed=0)
    for epoch in range(40):
        assert_permutes(order, epoch)


@given(records=st.integers(EXACT_LIMIT + 1, 2**62), seed=seeds, epoch=st.integers(0, 2**40), data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_position_of_any_number_of_records_has_an_inverse(
    records: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    order = make_order(records, True, seed)
    chosen = data.draw(st.lists(st.integers(0, records - 1), min_size=1, max_size=20, unique=True))
    positions = np.array(chosen, np.int64)
    indices = order.indices(positions, epoch)
    assert len(set(indices.tolist())) == len(chosen)
    assert indices.min() >= 0
    assert indices.max() < records
    np.testing.assert_array_equal(order.positions(indices, epoch), positions)


@pytest.mark.parametrize(
    ("records", "shuffle"),
    [
        *[(records, True) for records in (10**9, 2**31 - 1, 2**31, 2**31 + 1, 2**32 + 1, 10**10, 2**62)],
        (2_400_000_000, Blocks(128, 8)),
        (10**10, Blocks(1000, 2_200_000, 2)),  # a lane beyond 32 bits
        (2**62, Blocks(2**20, 3, 5)),
        (2**62, Blocks(2**61, 1, 2)),
        (10**10, Blocks(1, 1, 2**62)),  # no window at all
        (10**10, Blocks(2**40, 2**40, 2**40)),
    ],
    ids=str,
)
def test_the_ends_of_huge_data_are_permuted_without_overlap(records: int, shuffle: bool | Blocks) -> None:
    order = make_order(records, shuffle, seed=5)
    ends = [np.arange(start, start + 20_000) for start in (0, records // 2, records - 20_000)]
    positions = np.unique([*ends, np.random.default_rng(1).integers(0, records, 20_000)])
    indices = order.indices(positions, 3)
    assert len(np.unique(indices)) == len(indices)
    assert 0 <= indices.min() <= indices.max() < records
    np.testing.assert_array_equal(order.positions(indices, 3), positions)


def test_the_source_order_is_the_identity_in_memory_of_its_own() -> None:
    order, positions = make_order(7, False, 0), np.arange(7)
    indices = order.indices(positions, 4)
    np.testing.assert_array_equal(indices, positions)
    assert not np.shares_memory(indices, positions)


# -- asked for in any way ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True, ODD_BLOCKS], ids=str)
@pytest.mark.parametrize("records", [20_001, 300_007])
def test_indices_of_a_subset_are_a_subset_of_the_indices(shuffle: bool | Blocks, records: int) -> None:
    order = make_order(records, shuffle, seed=9)
    everything = order.indices(np.arange(records), 1)
    rng = np.random.default_rng(0)
    for count in (0, 1, 2, 1000, 50_000):
        positions = rng.integers(0, records, count)
        np.testing.assert_array_equal(order.indices(positions, 1), everything[positions])
    np.testing.assert_array_equal(order.indices(np.arange(records)[::-3], 1), everything[::-3])


@pytest.mark.parametrize("shuffle", [False, True, Blocks(3, 2, 5)], ids=str)
@pytest.mark.parametrize("records", [100, 40_000])
def test_the_shape_of_the_question_is_the_shape_of_the_answer(shuffle: bool | Blocks, records: int) -> None:
    order = make_order(records, shuffle, 0)
    square = np.arange(100).reshape(4, 25)
    assert order.indices(square, 0).shape == (4, 25)
    np.testing.assert_array_equal(order.positions(order.indices(square, 0), 0), square)
    small: Any = square.astype(np.int8)
    np.testing.assert_array_equal(order.positions(order.indices(small, 0), 0), square)
    assert order.indices(np.array(3), 0).shape == ()
    assert order.indices(np.zeros(0, np.int64), 0).shape == (0,)


@pytest.mark.parametrize("shuffle", [False, True, Blocks(3, 2, 5)], ids=str)
@pytest.mark.parametrize("records", [0, 10, 40_000])
@pytest.mark.parametrize("ask", ["indices", "positions"])
def test_what_is_out_of_range_is_an_index_error(shuffle: bool | Blocks, records: int, ask: str) -> None:
    order = make_order(records, shuffle, 0)
    for wrong in (-1, records, 2**63 - 1, -(2**63)):
        with pytest.raises(IndexError, match=re.escape(f" {wrong} in an order of {records} records")):
            getattr(order, ask)(np.array([wrong], np.int64), 0)


@pytest.mark.parametrize("records", [100, 20_000, 200_000])
def test_an_answer_may_be_written_to_and_threads_that_ask_at_once_get_the_same(records: int) -> None:
    order, positions = make_order(records, True, seed=77), np.arange(min(records, 20_000))
    wanted = [order.indices(positions, epoch).copy() for epoch in range(3)]
    for epoch in range(3):
        order.indices(positions, epoch)[:] = 0
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(order.indices, [positions] * 24, [0, 1, 2] * 8))
    for number, answer in enumerate(answers):
        np.testing.assert_array_equal(answer, wanted[number % 3])


def test_the_first_index_of_ten_billion_takes_next_to_no_memory() -> None:
    tracemalloc.start()
    try:
        make_order(10**10, True, 987).indices(np.array([10**10 - 1]), 0)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.reset_peak()
        make_order(10**10, True, 987).indices(np.arange(16384), 0)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.reset_peak()
        for epoch in range(20):  # some five numbers leave the range, beside which are 262,143 to spare
            make_order(2**34 + 1, True, 987).indices(np.arange(16384), epoch)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# -- seeds, epochs, keys -----------------------------------------------------------------------------------


def test_seeds_of_any_size_and_sign_differ() -> None:
    chosen = [0, 1, -1, 2**63, -(2**63), 2**64 - 1, 2**64, -(2**64), 2**1000, -(2**1000)]
    for records in (1000, 10**6):
        firsts = {
            tuple(make_order(records, True, seed).indices(np.arange(20), epoch).tolist())
            for seed in chosen
            for epoch in (0, 1)
        }
        assert len(firsts) == 2 * len(chosen)


@given(one=st.lists(seeds, max_size=4), other=st.lists(seeds, max_size=4))
def test_keys_of_different_integers_differ(one: list[int], other: list[int]) -> None:
    assert (derive_key(*one) == derive_key(*other)) == (one == other)
    assert 0 <= derive_key(*one) < 2**64


def test_a_longer_key_continues_a_shorter_one() -> None:
    words = [0, 1, 5, 2**64 - 1]
    array = absorb_array(derive_key(3, -4), np.array(words, np.uint64))
    assert array.tolist() == [derive_key(3, -4, word) for word in words]
    assert absorb(derive_key(3), 9) == derive_key(3, 9)


def test_a_numpy_seed_is_the_integer_it_stands_for() -> None:
    three, ten = np.int32(-3), np.int64(10)
    order = make_order(ten, True, three)  # type: ignore[arg-type]
    assert order == make_order(10, True, -3)
    assert type(order.records) is int


# -- blocks ------------------------------------------------------------------------------------------------


@given(
    records=st.integers(0, 4000),
    size=small,
    window=small,
    lanes=small,
    seed=seeds,
    epoch=st.integers(0, 2**70),
)
@settings(max_examples=150, deadline=None)
def test_blocks_of_any_parameters_permute(
    records: int, size: int, window: int, lanes: int, seed: int, epoch: int
) -> None:
    assert_permutes(make_order(records, Blocks(size, window, lanes), seed), epoch)


def test_every_small_number_of_records_is_permuted_in_blocks() -> None:
    for records in range(130):
        for blocks in (Blocks(1, 1, 1), Blocks(1, 1, 7), Blocks(7, 1, 1), Blocks(1, 7, 1), Blocks(3, 2, 5)):
            assert_permutes(make_order(records, blocks, seed=records), epoch=0)


@given(size=small, window=small, lanes=small, windows=st.integers(1, 4), rest=st.integers(0, 500))
@settings(max_examples=60, deadline=None)
def test_a_lane_touches_just_its_own_blocks_in_a_window(
    size: int, window: int, lanes: int, windows: int, rest: int
) -> None:
    span = size * window * lanes
    order = make_order(windows * span + rest % span, Blocks(size, window, lanes), seed=8)
    touched: list[int] = []
    for start in range(0, windows * span, span):
        for lane in range(lanes):
            indices = order.indices(np.arange(start + lane, start + span, lanes), 0)
            blocks = np.unique(indices // size)
            assert len(blocks) == window
            touched += blocks.tolist()
    assert len(touched) == len(set(touched)) == windows * window * lanes


def test_a_shard_needs_each_of_its_blocks_alone_where_the_lanes_divide() -> None:
    order = make_order(12 * 8 * 4 * 6, Blocks(records=8, window=4, lanes=12), seed=1)
    by_shard = [set((order.indices(np.arange(r, order.records, 4), 0) // 8).tolist()) for r in range(4)]
    assert sum(map(len, by_shard)) == len(set().union(*by_shard)) == order.records // 8


@pytest.mark.parametrize(
    ("name", "value"),
    [("records", 0), ("window", -1), ("lanes", 0), ("records", 1.5), ("window", "3")],
)
def test_blocks_check_themselves(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"Blocks: {name} must be"):
        Blocks(**{"records": 2, "window": 2, "lanes": 2, name: value})
    assert Blocks(128, 16).lanes == 7680
    assert Blocks(np.int64(4), 2) == Blocks(4, 2)  # type: ignore[arg-type]


# -- choosing, describing, carrying ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "shuffle", "seed"),
    [
        (5, "yes", 0),
        (5, None, 0),
        (5, 1, 0),
        (5, True, 1.5),
        (5, True, None),
        (-1, True, 0),
        (2**62 + 1, True, 0),
    ],
)
def test_anything_else_is_a_configuration_error(records: int, shuffle: Any, seed: Any) -> None:
    with pytest.raises(ConfigurationError):
        make_order(records, shuffle, seed)


def test_orders_describe_themselves_without_seed_and_length() -> None:
    described = [make_order(50, shuffle, 3).describe() for shuffle in (False, True, Blocks(4, 3, 2))]
    assert described == [
        {"name": "source", "version": 1},
        {"name": "global", "version": 1},
        {"name": "blocks", "version": 1, "records": 4, "window": 3, "lanes": 2},
    ]
    assert json.loads(json.dumps(described)) == described


@pytest.mark.parametrize(
    ("shuffle", "kind"),
    [
        (False, SourceOrder(10**10)),
        (True, GlobalOrder(10**10, 3)),
        (Blocks(4, 3), BlocksOrder(10**10, 3, Blocks(4, 3))),
    ],
    ids=str,
)
def test_orders_are_tiny_values(shuffle: bool | Blocks, kind: Order) -> None:
    order = make_order(10**10, shuffle, 3)
    carried = pickle.dumps(order)
    assert len(carried) < 300
    assert pickle.loads(carried) == order == kind
    assert hash(pickle.loads(carried)) == hash(order)
    assert order != make_order(10**10, shuffle, 4) or shuffle is False


# -- frozen ------------------------------------------------------------------------------------------------


def test_keys_are_those_of_the_vectors() -> None:
    for row in VECTORS["derive_key"]:
        assert derive_key(*row["integers"]) == row["key"]


@pytest.mark.parametrize("regime", ["global", "blocks"])
def test_indices_are_those_of_the_vectors(regime: str) -> None:
    for row in VECTORS[regime]:
        positions = row["start"] + np.arange(len(row["indices"]))
        assert order_of(row).indices(positions, row["epoch"]).tolist() == row["indices"], row
        assert (
            order_of(row).positions(np.array(row["indices"]), row["epoch"]).tolist() == positions.tolist()
        ), row


def test_draws_and_steps_are_those_of_the_vectors(stranger: Program) -> None:
    for row in VECTORS["draw"]:
        place = row["seed"], row["epoch"], row["records"]
        assert draw_of(*place) == stranger["draw_of"](*place) == row["draw"], row
    for row in VECTORS["steps"]:
        steps = row["steps"], row["size"]
        order = make_order(row["records"], Drawn(shuffle=True, steps=steps), row["seed"])
        positions = row["start"] + np.arange(len(row["indices"]))
        draw = draw_of(row["seed"], row["epoch"], row["records"])
        assert (order.indices(positions, row["epoch"]) - draw * row["records"]).tolist() == row["indices"]
        for position, index in zip(positions.tolist(), row["indices"], strict=True):
            place = position, row["records"], *steps, row["seed"], row["epoch"]
            assert stranger["steps_index"](*place) == index, row


def test_groups_are_those_of_the_vectors(stranger: Program) -> None:
    for row in VECTORS["groups"]:
        blocks, sizes = Blocks("groups", window=row["window"], lanes=row["lanes"]), row["sizes"]
        order = make_order(sum(sizes), BlocksOfGroups(blocks, np.cumsum(sizes)), row["seed"])
        positions = np.arange(sum(sizes))
        found = order.indices(positions, row["epoch"])
        assert found.tolist() == row["indices"]
        assert sorted(row["indices"]) == positions.tolist()
        again = pickle.loads(pickle.dumps(order))
        assert (again, hash(again)) == (order, hash(order))
        assert again.indices(positions[::-1], row["epoch"]).tolist() == row["indices"][::-1]
        for position in positions[::7].tolist():
            place = position, sizes, row["window"], row["lanes"], row["seed"], row["epoch"]
            assert stranger["groups_index"](*place) == row["indices"][position], row
            first, end = order.neighbours(position, row["epoch"])
            assert 0 <= first <= position < end <= sum(sizes)


@pytest.mark.parametrize("row", VECTORS["sequences"], ids=lambda row: f"{len(row['sizes'])}-{row['lanes']}")
def test_sequences_are_those_of_the_vectors(stranger: Program, row: dict[str, Any]) -> None:
    sizes, lanes, place = row["sizes"], row["lanes"], (row["seed"], row["epoch"])
    records, positions = sum(sizes), np.arange(sum(sizes))
    order = make_order(records, SequencesOfEpisodes(Sequences(lanes), np.cumsum(sizes)), row["seed"])
    found = order.indices(positions, row["epoch"])
    assert found.tolist() == row["indices"]
    assert sorted((found % records).tolist()) == positions.tolist()
    again = pickle.loads(pickle.dumps(order))
    assert (again, hash(again)) == (order, hash(order))
    assert again.indices(positions[::-1], row["epoch"]).tolist() == row["indices"][::-1]
    scattered = np.random.default_rng(1).permutation(records)
    for first in ("is_first", None):
        shuffle = SequencesOfEpisodes(Sequences(lanes, first=first), np.cumsum(sizes), scattered)
        marks = 0 if first is None else found // records * records
        others = make_order(records, shuffle, row["seed"])
        assert others != order
        expected = scattered[found % records] + marks
        assert others.indices(positions, row["epoch"]).tolist() == expected.tolist()
    for position in positions.tolist():
        index, is_first = stranger["sequences_place"](position, sizes, lanes, *place)
        assert index + is_first * records == row["indices"][position]


@pytest.mark.parametrize("steps", [(0, 1), (7, 1), (7, 0)])
def test_drawn_records_without_steps_have_the_global_order(steps: tuple[int, int]) -> None:
    order, plain = make_order(101, Drawn(shuffle=True, steps=steps), 5), make_order(101, True, 5)
    positions = np.arange(101)
    found = order.indices(positions, 2) - draw_of(5, 2, 101) * 101
    assert found.tolist() == plain.indices(positions, 2).tolist()
    assert order.describe() == {**plain.describe(), "draw": 1}


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 100, 1000, 40_000])
def test_the_documented_program_draws_from_each_range(stranger: Program, n: int) -> None:
    members = np.arange(n)[:: max(1, n // 50)]
    ranges = make_ranges(np.array([n]), np.array([5], np.uint64))
    found = permute_each(members, np.zeros(len(members), np.int64), ranges, 11)
    assert found.tolist() == [stranger["each"](x, n, absorb(11, 5)) for x in members.tolist()]


def test_the_documented_program_gives_the_vectors(stranger: Program) -> None:
    for row in VECTORS["derive_key"]:
        assert stranger["derive_key"](*row["integers"]) == row["key"]
    for row in VECTORS["global"]:
        for offset, index in list(enumerate(row["indices"]))[
            :: 8 if row["records"] in (1000, EXACT_LIMIT) else 1
        ]:
            found = stranger["global_index"](row["start"] + offset, row["records"], row["seed"], row["epoch"])
            assert found == index, row
    for row in VECTORS["blocks"]:
        sizes = [row["blocks"][name] for name in ("records", "window", "lanes")]
        for offset, index in list(enumerate(row["indices"]))[:: 7 if row["records"] > 10_000 else 1]:
            position = row["start"] + offset
            found = stranger["blocks_index"](position, row["records"], *sizes, row["seed"], row["epoch"])
            assert found == index, row


@pytest.mark.parametrize("place", [(0, 0, 0, 0), (7, 1, 2, 3), (-(2**70), 5, 2**33, 10**12)])
def test_the_documented_program_starts_pcg64_as_random_functions_get_it(
    stranger: Program, place: tuple[int, int, int, int]
) -> None:
    words = stranger["random_start"](*place)
    [generator] = _random.generators(*place[:3], np.array(place[3:]))
    # PCG64's own way to begin at a state in a stream.
    multiplier = 0x2360ED051FC65DA44385DF649FCCF645
    increment = (((words[2] << 64 | words[3]) << 1) | 1) % 2**128
    start = ((increment + (words[0] << 64 | words[1])) * multiplier + increment) % 2**128
    state: Any = generator.bit_generator.state["state"]
    assert (state["state"], state["inc"]) == (start, increment)


def rows_of(pattern: str) -> Iterable[tuple[str, ...]]:
    rows = re.findall(pattern, DOCUMENT, re.MULTILINE)
    assert len(rows) >= 5
    return rows


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(", ")]


def test_the_documented_tables_are_right() -> None:
    for integers, key in rows_of(r"^\| ([-\d, ]+) \| 0x(\w{16}) \|$"):
        assert derive_key(*numbers(integers)) == int(key, 16)
    orders = rows_of(r"^\| (global|blocks)([\d, ]*) \| (\d+) \| (-?\d+) \| (\d+) \| ([\d, ]+) \|$")
    for name, sizes, records, seed, epoch, indices in orders:
        shuffle = True if name == "global" else Blocks(*numbers(sizes.strip()))
        order = make_order(int(records), shuffle, int(seed))
        assert order.indices(np.arange(8), int(epoch)).tolist() == numbers(indices)
    assert f"Up to {EXACT_LIMIT:,}" in DOCUMENT
    assert f"r = 0 .. {ROUNDS - 1}" in DOCUMENT


@given(records=st.integers(EXACT_LIMIT + 1, 2**62), key=st.integers(0, 2**64 - 1), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_documented_network_is_the_library_s(
    stranger: Program, records: int, key: int, data: st.DataObject
) -> None:
    x = data.draw(st.integers(0, records - 1))
    image = stranger["permute"](x, records, key)
    assert permute(np.array([x]), records, key).tolist() == [image]
    assert unpermute(np.array([image]), records, key).tolist() == [x]


@given(size=small, window=small, lanes=small, records=st.integers(1, 3000), seed=seeds, data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_documented_blocks_are_the_library_s(
    stranger: Program,
    size: int,
    window: int,
    lanes: int,
    records: int,
    seed: int,
    data: st.DataObject,
) -> None:
    position = data.draw(st.integers(0, records - 1))
    order = make_order(records, Blocks(size, window, lanes), seed)
    expected = stranger["blocks_index"](position, records, size, window, lanes, seed, 1)
    assert order.indices(np.array([position]), 1).tolist() == [expected]


@pytest.mark.parametrize("window", [2**10, 2**11 - 1, 2**11, 2**11 + 1, 2**12])
def test_windows_of_any_number_of_records_have_the_documented_order(stranger: Program, window: int) -> None:
    sizes = 2**20, window, 1  # windows of 2**30 to 2**32 records: up to 2**31, words of 32 bits do
    records = 2**33 + 5
    positions = [0, 1, 2**31 - 1, 2**31, 2**32 + 7, records - 1]
    order = make_order(records, Blocks(*sizes), 3)
    expected = [stranger["blocks_index"](position, records, *sizes, 3, 1) for position in positions]
    assert order.indices(np.array(positions), 1).tolist() == expected


def test_the_order_imports_nothing_but_numpy_and_the_errors() -> None:
    program = (
        "import sys, numpy; known = set(sys.modules); import yogadl._order; print(*set(sys.modules) - known)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in done.stdout.split()}
    assert packages <= {"yogadl", "numpy"} | set(sys.stdlib_module_names)
