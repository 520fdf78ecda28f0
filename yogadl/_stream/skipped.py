"""Leave positions out of every epoch, and count those that stay: integers only.

What a cursor says, and a user, counts as if nothing were left out. Shards and items count what stays.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from yogadl._arguments import whole
from yogadl._frozen import frozen
from yogadl._interfaces import Indices
from yogadl.errors import ConfigurationError


@frozen
class Skipped:
    """Ranges of positions that are left out, in ascending order, none next to another.

    Args:
        ranges: Each from its first position up to, not including, its second.
        records: How many positions an epoch has with them.
    """

    ranges: tuple[tuple[int, int], ...]
    records: int

    @staticmethod
    def of(given: Any, records: int) -> "Skipped":  # Any: from the user, or from a file
        """Return the ranges that were given, in any order; they may overlap.

        Raises:
            ConfigurationError: if they are no ranges, or leave nothing.
        """
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise ConfigurationError(f"pass a list of (start, stop), not {given!r:.100}")
        ranges: list[tuple[int, int]] = []
        for pair in given:
            try:
                start, stop = pair
            except (TypeError, ValueError):
                raise ConfigurationError(f"a range is (start, stop), not {pair!r:.100}") from None
            start, stop = whole("a range's start", start), whole("a range's stop", stop)
            if not start < stop <= records:
                raise ConfigurationError(
                    f"({start}, {stop}) is no range of an epoch's positions: they are 0 to {records - 1}"
                )
            ranges.append((start, stop))
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        found = Skipped(tuple(merged), records)
        if ranges and not found.kept:
            raise ConfigurationError(f"nothing is left of the {records} positions of an epoch")
        return found

    @property
    def kept(self) -> int:
        """How many positions stay."""
        return self.records - sum(stop - start for start, stop in self.ranges)

    @cached_property
    def _jumps(self) -> tuple[Indices, Indices]:
        """Before how many of those that stay each range lies, and how many are left out by then."""
        bounds = np.array(self.ranges, np.int64).reshape(-1, 2)
        left_out = np.cumsum(bounds[:, 1] - bounds[:, 0])
        return bounds[:, 1] - left_out, np.concatenate([[0], left_out])

    def places(self, kept: Indices) -> Indices:
        """Return the position of each of those that stay, given its number among them."""
        starts, left_out = self._jumps
        return kept + left_out[np.searchsorted(starts, kept, side="right")]

    def place(self, kept: int) -> int:
        """Return the position of one."""
        return int(self.places(np.array(kept)))

    def before(self, position: int) -> int:
        """Return how many stay before a position."""
        return position - sum(max(0, min(position, stop) - start) for start, stop in self.ranges)
