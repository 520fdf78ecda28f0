"""Draw records with replacement, anew in each epoch."""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import int_argument
from yogadl._core.memory import require_memory
from yogadl._core.protocols import Column, Indices, Memory, OnPlanned, RandomAccess, announce
from yogadl._order.draw import sampled, whole_weights
from yogadl._order.keys import RECORDS_LIMIT
from yogadl._views.chosen import numbers_of_values, read_field
from yogadl._views.views import hash_of
from yogadl.errors import ConfigurationError

_WEIGHT_BYTES: Final = 40  # the most memory that weights need for each record


class SampledRecords:
    """Records drawn from others with replacement; see `RecordsRef.sampled`.

    An index is ``draw * len(self) + number``, and each draw has other records; see `yogadl._order`.

    Args:
        parent: The records to draw from.
        weights: How often each is drawn in proportion, or the name of a field that tells; None: all alike.
        by: The name of a field whose values are drawn equally often.
        records: How many are drawn in an epoch; as many as there are, if None.

    Raises:
        ConfigurationError: if an argument makes no sense.
    """

    is_drawn = True
    steps = 0, 1  # how many steps are shuffled as they are, and the records of each; see `Drawn`
    shown = "sampled records"

    def __init__(self, parent: RandomAccess, weights: Any, by: str | int | None, records: Any) -> None:
        self.parent = parent
        if not len(parent):
            raise ConfigurationError("there are no records to sample from")
        self._records = int_argument("records", len(parent) if records is None else records, 1)
        if self._records > RECORDS_LIMIT:
            raise ConfigurationError(f"records is {records}, and an epoch has at most 2**62")
        if weights is not None and by is not None:
            raise ConfigurationError("sampled takes weights= or by=, not both")
        require_memory("sampled", len(parent), _WEIGHT_BYTES)
        if by is not None:
            numbers = numbers_of_values(parent, by)
            found = 1 / np.bincount(numbers)[numbers]
        else:
            found = np.ones(len(parent)) if weights is None else _checked_weights(parent, weights)
        self._bounds = np.cumsum(whole_weights(found))
        self.spec = parent.spec
        self.record_bytes = parent.record_bytes
        content = hashlib.sha256(self._bounds.astype("<i8").tobytes()).hexdigest()
        self.fingerprint = hash_of("sampled", parent.fingerprint, self._records, content)

    def __len__(self) -> int:
        return self._records

    def chosen(self, indices: Indices) -> Indices:
        """Return the parent's indices of the records that are drawn."""
        return sampled(*np.divmod(indices, self._records), self._bounds)

    def of_parent(self, indices: Indices, number: int) -> tuple[RandomAccess, Indices, int]:
        """Return the parent, and the indices and the field's number there."""
        return self.parent, self.chosen(indices), number

    def will_need(
        self, indices: Indices, fields: Sequence[int] | None = None, on_planned: OnPlanned | None = None
    ) -> int:
        """Announce that these records will be read soon; see `announce`."""
        return announce(self.parent, self.chosen(indices), fields, on_planned)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records in the order of `indices`."""
        return self.parent.columns(self.chosen(indices), fields, memory)


def _checked_weights(records: RandomAccess, weights: Any) -> NDArray[np.float64]:
    """Return one weight for each record."""
    if isinstance(weights, str):
        leaf, chunks = read_field(records, weights, "weights")
        if not leaf.is_numeric or leaf.numpy_dtype.kind not in "biuf":
            raise ConfigurationError(f"weights={weights!r} is {leaf.dtype}: a weight is a number")
        found = np.empty(len(records))
        for chunk, column in chunks:
            found[chunk] = column
    else:
        try:
            found = np.asarray(weights, np.float64)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"weights are one number for each record, or the name of a field, not {weights!r:.100}"
            ) from error
        if found.shape != (len(records),):
            raise ConfigurationError(
                f"weights are one number for each of {len(records)} records, not of shape {found.shape}"
            )
    if not np.isfinite(found).all() or found.min() < 0 or not found.max() > 0:
        raise ConfigurationError("a weight is a finite number, 0 or more, and one of them is more than 0")
    return found
