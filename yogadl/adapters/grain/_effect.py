"""Say what Grain's operations do to the number of items."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grain

# Grain's transformations and operations share no type.
Operation = Any

_COUNTED = (grain.transforms.Filter, grain.experimental.FlatMapTransform)
_ONE_TO_ONE = (grain.transforms.Map, grain.transforms.RandomMap, grain.transforms.TfRandomMap)


@dataclass(frozen=True)
class Effect:
    """What operations do to the number of items.

    Attributes:
        deal: How many items in a row make one element, as far as that is fixed.
        is_in_step: Whether nothing is dropped or added but by batching.
        is_known: Whether all is Grain's own. Another operation may hold back what it took.
    """

    deal: int
    is_in_step: bool
    is_known: bool


def effect_of(operations: Sequence[Operation]) -> Effect:
    """Return what operations do to the number of items."""
    deal, is_in_step, is_known = 1, True, True
    for operation in operations:
        if isinstance(operation, grain.transforms.Batch):
            deal *= operation.batch_size if is_in_step else 1
        elif not isinstance(operation, _ONE_TO_ONE):
            is_in_step, is_known = False, is_known and isinstance(operation, _COUNTED)
    return Effect(deal, is_in_step, is_known)
