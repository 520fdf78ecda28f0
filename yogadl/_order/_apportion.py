"""Divide a whole number in proportion, by the method of largest remainders, exactly."""

from collections.abc import Sequence
from fractions import Fraction


def apportion(total: int, weights: Sequence[int | Fraction]) -> list[int]:
    """Return whole numbers that add up to `total`, each differing from its exact share by less than 1.

    Each number is first its share rounded down. The rest goes, one each, to the shares with the largest
    fractions; of equal fractions, the earlier one comes first.
    """
    whole = sum(weights)
    counts = [int(total * weight // whole) for weight in weights]
    fractions = [total * weight % whole for weight in weights]
    # Sorting keeps the order of equal elements, also with `reverse`.
    largest = sorted(range(len(weights)), key=fractions.__getitem__, reverse=True)
    for number in largest[: total - sum(counts)]:
        counts[number] += 1
    return counts
