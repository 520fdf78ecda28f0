"""Divide a whole number in proportion: by the largest remainders, exactly."""

from collections.abc import Sequence
from fractions import Fraction


def apportion(total: int, weights: Sequence[int | Fraction]) -> list[int]:
    """Return whole numbers that add up to `total`, each less than 1 from its exact share.

    Each gets its share without the fraction; one more go to those with the largest fractions, the earlier of
    equal ones first.
    """
    whole = sum(weights)
    counts = [int(total * weight // whole) for weight in weights]
    fractions = [total * weight % whole for weight in weights]
    # Reversed or not, sorting keeps the order of equals.
    largest = sorted(range(len(weights)), key=fractions.__getitem__, reverse=True)
    for number in largest[: total - sum(counts)]:
        counts[number] += 1
    return counts
