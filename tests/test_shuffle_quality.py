"""The shuffles look random: statistics with known distributions, at fixed seeds.

Each statistic is compared with what independent uniform permutations would give, in standard
deviations. With some hundred statistics five of them is the limit.
"""

import math
from collections.abc import Callable, Iterator
from itertools import permutations, product

import numpy as np
import pytest
from inside import Order, derive_key, make_order, set_constants
from inside import _permutation as network
from numpy.typing import NDArray

from yogadl import Blocks

SIGMAS = 5.0
NEIGHBOURS = [((0, 0), (1, 0)), ((0, 0), (0, 1)), ((0, 1), (1, 0))]  # what is added to (seed, epoch)


def deviation(counts: NDArray[np.int64], expected: float, freedom: int | None = None) -> float:
    """Return how many standard deviations chi-squared is off its mean."""
    freedom = counts.size - 1 if freedom is None else freedom
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    return (chi2 - freedom) / math.sqrt(2 * freedom)


def deviation_of_permutations(counts: NDArray[np.int64], expected: float) -> float:
    """Do the same for a sum of permutation matrices, whose rows and columns are not independent."""
    n = len(counts)
    chi2 = float(((counts - expected) ** 2 / expected).sum()) * (n - 1) / n
    return (chi2 - (n - 1) ** 2) / (math.sqrt(2) * (n - 1))


def count_jointly(one: NDArray[np.int64], other: NDArray[np.int64], n: int, bins: int) -> NDArray[np.int64]:
    # The bins are all of one size as nearly as integers allow; divided first, so that nothing overflows.
    size = -(-n // bins)
    return np.bincount(one // size * bins + other // size, minlength=bins * bins)


def shuffled(n: int, seed: int, epoch: int = 0) -> NDArray[np.int64]:
    return make_order(n, True, seed).indices(np.arange(n), epoch)


# -- each place is as likely as any other ------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 17, 64])
def test_a_few_records_come_at_each_position_equally_often(n: int) -> None:
    positions, rounds = np.arange(n), 4000
    counts = np.zeros((n, n), np.int64)
    for seed, epoch in product(range(rounds // 4), range(4)):
        counts[positions, make_order(n, True, seed).indices(positions, epoch)] += 1
    assert abs(deviation_of_permutations(counts, rounds / n)) < SIGMAS


def test_four_records_come_in_all_orders_equally_often() -> None:
    found = dict.fromkeys(permutations(range(4)), 0)
    for seed in range(6000):
        found[tuple(make_order(4, True, seed).indices(np.arange(4), 0).tolist())] += 1
    assert abs(deviation(np.array(list(found.values())), 6000 / 24)) < SIGMAS


@pytest.mark.parametrize(
    "n", [network.EXACT_LIMIT, network.EXACT_LIMIT + 32, 10**6, 10**9 - 1, 10**10, 2**61]
)
def test_many_records_come_at_each_position_equally_often(n: int) -> None:
    bins, sample, seeds = 16, 512, 200
    size = n // bins
    positions = np.arange(sample) * (n // sample) + n // sample // 2
    counts = np.zeros((bins, bins + 1), np.int64)
    for seed in range(seeds):
        indices = make_order(n, True, seed).indices(positions, 7)
        np.add.at(counts, (np.arange(sample) * bins // sample, indices // size), 1)
    counts = counts[:, :bins]  # the last, short bin holds less than 16 of n
    assert abs(deviation(counts, sample * seeds / bins**2, bins * (bins - 1))) < SIGMAS


@pytest.mark.parametrize("n", [9973, 40_009, 10**6])
def test_records_are_displaced_as_far_as_by_chance(n: int) -> None:
    # The sum of |index - position| (Spearman's footrule) of a random permutation: mean and variance.
    mean, variance = (n * n - 1) / 3, (n + 1) * (2 * n * n + 7) / 45
    orders = 20 if n < 10**6 else 4
    positions = np.arange(n)
    total = sum(float(np.abs(shuffled(n, seed) - positions).sum()) for seed in range(orders))
    assert abs(total - orders * mean) / (orders * variance) ** 0.5 < SIGMAS


# -- neither seeds nor epochs replay each other ------------------------------------------------------------


@pytest.mark.parametrize("n", [network.EXACT_LIMIT - 768, 100_000])
@pytest.mark.parametrize(("one", "other"), NEIGHBOURS)
def test_neighbouring_seeds_and_epochs_are_not_correlated(
    n: int, one: tuple[int, int], other: tuple[int, int]
) -> None:
    bins, correlations, matches, joint = 16, [], 0, []
    middle = (n - 1) / 2
    for base in range(0, 50, 2):
        a, b = (shuffled(n, base + seed, base + epoch) for seed, epoch in (one, other))
        # Of two random permutations: correlation 0 with variance 1 / (n - 1); one match, Poisson.
        correlations.append(float(((a - middle) * (b - middle)).mean()) / ((n * n - 1) / 12) * (n - 1) ** 0.5)
        matches += int((a == b).sum())
        joint.append(deviation(count_jointly(a, b, n, bins), n / bins**2, (bins - 1) ** 2))
        # Nor is one the other, moved along: the same for neighbours.
        joint.append(deviation(count_jointly(a[1:], b[:-1], n, bins), n / bins**2, (bins - 1) ** 2))
    assert max(map(abs, correlations)) < SIGMAS
    assert abs(matches - 25) < SIGMAS * 25**0.5
    assert max(map(abs, joint)) < SIGMAS
    assert abs(float(np.mean(joint))) * len(joint) ** 0.5 < SIGMAS


@pytest.mark.parametrize("n", [20_000, 100_003])
@pytest.mark.parametrize("distance", [1, 2, 512, 1000])
def test_neighbours_in_the_source_share_a_batch_no_more_than_by_chance(n: int, distance: int) -> None:
    batch, orders = 250, 20
    meetings = 0
    for seed in range(orders):
        positions = make_order(n, True, seed).positions(np.arange(n), 0) // batch
        meetings += int((positions[distance:] == positions[:-distance]).sum())
    full, short = divmod(n, batch)
    together = (full * batch * (batch - 1) + short * (short - 1)) / (n * (n - 1))
    expected = orders * (n - distance) * together
    assert abs(meetings - expected) < SIGMAS * expected**0.5  # the pairs are as good as independent


# -- why six rounds ----------------------------------------------------------------------------------------


@pytest.fixture
def set_rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    def set_rounds(rounds: int) -> None:
        network.make_schedule.cache_clear()
        network._landings.cache_clear()
        set_constants(monkeypatch, ROUNDS=rounds)

    yield set_rounds
    network.make_schedule.cache_clear()
    network._landings.cache_clear()


def worst_deviation(n: int, keys: int = 6) -> float:
    """Look at neighbours in the order: their difference, second difference, low bits, and three in a row."""
    deviations = []
    count = min(n, 1 << 18)
    step = 1 << network.make_network(n).left_bits
    for number in range(keys):
        start = number * ((n - count) // keys)
        images = network.permute(np.arange(start, start + count), n, derive_key(number))
        for lag in (1, 2, 7, step, step + 1):
            here, there = images[:-lag], images[lag:]
            differences = (there - here) % n * 256 // n
            deviations.append(deviation(np.bincount(differences, minlength=256), here.size / 256))
            low = (here ^ there) & 127
            deviations.append(deviation(np.bincount(low, minlength=128), here.size / 128))
        second = (images[2:] - 2 * images[1:-1] + images[:-2]) % n * 256 // n
        deviations.append(deviation(np.bincount(second, minlength=256), second.size / 256))
        octants = images * 8 // n
        triples = octants[2:] * 64 + octants[1:-1] * 8 + octants[:-2]
        # Without replacement the fuller picture is the flatter one: so only an excess would be a fault.
        deviations.append(max(0.0, deviation(np.bincount(triples, minlength=512), triples.size / 512)))
    return max(map(abs, deviations))


@pytest.mark.parametrize("n", [network.EXACT_LIMIT + 32, 10**6, 10**9, 10**10])
def test_five_rounds_pass_and_three_do_not(n: int, set_rounds: Callable[[int], None]) -> None:
    set_rounds(3)
    assert worst_deviation(n) > 20
    set_rounds(5)
    assert worst_deviation(n) < SIGMAS
    set_rounds(6)
    assert worst_deviation(n) < SIGMAS


def test_four_rounds_show_in_the_low_bits_of_small_data(set_rounds: Callable[[int], None]) -> None:
    set_rounds(4)
    assert worst_deviation(network.EXACT_LIMIT + 32) > 20


@pytest.mark.parametrize("n", [network.EXACT_LIMIT + 3, 200_003])
def test_the_order_has_no_spectrum(n: int) -> None:
    # The power of each frequency of a random sequence is exponential: the largest of them all, and the
    # mean of the squares (2), are known.
    powers = []
    for seed, factor in product(range(12), (1, 2, 3, 512, n // 2 - 1)):
        waves = np.exp(2j * np.pi * (shuffled(n, seed) * factor % n) / n)
        powers.append((np.abs(np.fft.fft(waves)) ** 2 / n)[1:])
    power = np.concatenate(powers)
    assert power.max() < np.log(power.size) + np.log(1 / 3e-7)  # as likely as five sigmas
    assert abs(float((power**2).mean()) - 2) < SIGMAS * (20 / power.size) ** 0.5


# -- blocks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane_records", [8, 30, 64])
def test_a_lane_s_records_come_at_each_turn_equally_often(lane_records: int) -> None:
    lanes, epochs = 500, 12
    order = make_order(lane_records * lanes * 2, Blocks(lane_records, 1, lanes), seed=3)
    counts = np.zeros((lane_records, lane_records), np.int64)
    turns = np.arange(order.records) // lanes % lane_records
    for epoch in range(epochs):
        np.add.at(counts, (turns, order.indices(np.arange(order.records), epoch) % lane_records), 1)
    assert abs(deviation_of_permutations(counts, order.records * epochs / lane_records**2)) < SIGMAS


def drawn(order: Order, lanes: int, lane_records: int, epoch: int) -> NDArray[np.int64]:
    indices = order.indices(np.arange(order.records), epoch) % lane_records
    return indices.reshape(-1, lane_records, lanes)  # window, turn, lane


def test_neighbouring_lanes_windows_and_epochs_draw_independently() -> None:
    lanes, size = 400, 256
    order = make_order(lanes * size * 4, Blocks(size, 1, lanes), seed=3)
    this, next_epoch = drawn(order, lanes, size, 0), drawn(order, lanes, size, 1)
    pairs = {
        "lanes": (this[:, :, 1:], this[:, :, :-1]),
        "windows": (this[1:], this[:-1]),
        "epochs": (this, next_epoch),
    }
    for name, (one, other) in pairs.items():
        counts = count_jointly(one.ravel(), other.ravel(), size, 16)
        assert abs(deviation(counts, one.size / 256, 225)) < SIGMAS, name
        assert abs(int((one == other).sum()) - one.size / size) < SIGMAS * (one.size / size) ** 0.5, name


def test_blocks_are_spread_over_the_windows_of_an_epoch() -> None:
    blocks, bins, epochs = 10_000, 20, 20
    order = make_order(blocks * 10, Blocks(records=10, window=4, lanes=25), seed=3)
    counts = np.zeros(bins * bins, np.int64)
    for epoch in range(epochs):
        windows = order.positions(np.arange(0, order.records, 10), epoch) // (10 * 4 * 25)
        counts += count_jointly(np.arange(blocks), windows * 100, blocks, bins)
    assert abs(deviation(counts, epochs * blocks / bins**2, (bins - 1) ** 2)) < SIGMAS


def test_what_fills_no_window_gets_a_global_shuffle() -> None:
    n, batch, orders = 20_000, 250, 20
    meetings = 0
    for seed in range(orders):
        positions = make_order(n, Blocks(records=10, window=4), seed).positions(np.arange(n), 0) // batch
        meetings += int((positions[1:] == positions[:-1]).sum())
    expected = orders * (n - 1) * (batch - 1) / (n - 1)
    assert abs(meetings - expected) < SIGMAS * expected**0.5
