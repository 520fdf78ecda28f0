"""Leave positions out of every epoch, and count the kept positions: integers only.

Positions in cursors and in users' arguments include those left out. Shards and items count kept positions
only.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from yogadl._core.arguments import whole
from yogadl._core.frozen import frozen
from yogadl._core.protocols import Indices
from yogadl.errors import ConfigurationError


@frozen
class Skipped:
    """Ranges of positions that are left out, in ascending order, no two of them adjacent.

    Args:
        ranges: The first position of each range, and the position after its last one.
        records: The number of positions of an epoch, including those left out.
    """

    ranges: tuple[tuple[int, int], ...]
    records: int

    @staticmethod
    def of(given: Any, records: int) -> "Skipped":  # Any: from the user, or from a file
        """Return the given ranges, which may be in any order and overlap.

        Raises:
            ConfigurationError: if they are no ranges, or leave no position.
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
        """The number of kept positions."""
        return self.records - sum(stop - start for start, stop in self.ranges)

    @cached_property
    def _jumps(self) -> tuple[Indices, Indices]:
        """The number of kept positions before each range, and the number left out up to each."""
        bounds = np.array(self.ranges, np.int64).reshape(-1, 2)
        left_out = np.cumsum(bounds[:, 1] - bounds[:, 0])
        return bounds[:, 1] - left_out, np.concatenate([[0], left_out])

    def places(self, kept: Indices) -> Indices:
        """Return the position of each kept position, given its number among the kept ones."""
        starts, left_out = self._jumps
        return kept + left_out[np.searchsorted(starts, kept, side="right")]

    def place(self, kept: int) -> int:
        """Return the position of a kept position, given its number."""
        return int(self.places(np.array(kept)))

    def before(self, position: int) -> int:
        """Return the number of kept positions before a position."""
        return position - sum(max(0, min(position, stop) - start) for start, stop in self.ranges)
