"""Read a sample of a version: records chosen by a shuffle, so few that time and memory stay small."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.columns import size_of
from yogadl._core.leaf import OBJECT
from yogadl._core.protocols import Column
from yogadl._dataref import RecordsRef
from yogadl._order import make_order

MOST_RECORDS: Final = 4096
# Each value of a record in a bucket may take a request.
_MOST_RECORDS_AFAR: Final = 128
MOST_BYTES: Final = 64 * 2**20  # of all fields together
_MOST_FIELD_BYTES: Final = 16 * 2**20
_MOST_DRAWN_BYTES: Final = 32 * 2**20
_AT_ONCE: Final = 256


@dataclass(frozen=True)
class Sample:
    """A sample of a version: the records that come first in the first epoch of a shuffle.

    Args:
        ref: The version.
        seed: The seed of the shuffle.
    """

    ref: RecordsRef
    seed: int

    def indices(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of the records at these positions of the first epoch."""
        return make_order(len(self.ref), True, self.seed).indices(positions, 0)

    def columns(self, fields: int) -> Iterator[Column]:
        """Yield the sample's values of each of the first fields: fewer values where values are large.

        A pickled field yields no values, because unpickling runs code.
        """
        found = self.ref.locality()
        most = MOST_RECORDS if found.parts_here == found.parts else _MOST_RECORDS_AFAR
        chosen = self.indices(np.arange(min(len(self.ref), most)))
        most_bytes = min(_MOST_FIELD_BYTES, MOST_BYTES // max(1, fields))
        for number, field in enumerate(self.ref.spec.fields[:fields]):
            if field.leaf.dtype == OBJECT:
                yield []
            elif field.leaf.is_fixed:
                first = chosen[: max(1, most_bytes // max(1, field.leaf.row_bytes))]
                yield self.ref.columns(np.sort(first), [number])[0]
            else:
                yield self._varying(number, chosen, most_bytes)

    def _varying(self, number: int, chosen: NDArray[np.int64], most_bytes: int) -> list[Any]:
        """Read values of a field of varying length, until they reach the limit of bytes."""
        found: list[Any] = []
        step = max(1, min(_AT_ONCE, most_bytes // self.ref.record_bytes))
        size_bytes = 0
        while len(found) < len(chosen) and size_bytes < most_bytes:
            (column,) = self.ref.columns(np.sort(chosen[len(found) : len(found) + step]), [number])
            found += column
            size_bytes += size_of(column)
        return found

    def drawn(self, count: int, fields: int) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield the index of one record after another, and the values of its first fields.

        Fewer than `count` records are yielded if they are large, but one at least. The value of a pickled
        field is `None`.
        """
        leaves = [field.leaf for field in self.ref.spec.fields[:fields]]
        readable = [number for number, leaf in enumerate(leaves) if leaf.dtype != OBJECT]
        chosen = self.indices(np.arange(min(len(self.ref), count)))
        step = max(1, min(count, _MOST_DRAWN_BYTES // self.ref.record_bytes))
        size_bytes = 0
        for first in range(0, len(chosen), step):
            if size_bytes >= _MOST_DRAWN_BYTES:
                return
            indices = chosen[first : first + step]
            columns: list[Any] = [[None] * len(indices)] * len(leaves)
            for number, column in zip(readable, self.ref.columns(indices, readable), strict=True):
                columns[number] = column
                size_bytes += size_of(column)
            for place, index in enumerate(indices.tolist()):
                yield index, [column[place] for column in columns]
