"""Assign items to Grain's worker processes so that Grain delivers the workers' elements in order.

Grain gives worker k of w every w-th item, k, k + w, ..., and takes one element from each worker in turn. If
the workers batch their items, their batches are not the batches of the order, and the delivered items are no
prefix of the order. Therefore the sampler assigns items by the batch: the j-th batch of worker k is batch
j * w + k of the order. The number of items in a batch depends on the operations.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grain

# Grain's transformations and operations have no common type.
Operation = Any

_COUNTED = (grain.transforms.Filter, grain.experimental.FlatMapTransform)
_ONE_TO_ONE = (grain.transforms.Map, grain.transforms.RandomMap, grain.transforms.TfRandomMap)


@dataclass(frozen=True)
class Effect:
    """The effect of operations on the number of items; Grain's checkpoints contain it as JSON.

    Attributes:
        deal: The number of consecutive items that make one element, as far as that number is fixed.
        is_in_step: Whether only batching changes the number of items, so that all shards stay in step.
        is_known: Whether all operations are Grain's own. Another operation may hold back items.
    """

    deal: int
    is_in_step: bool
    is_known: bool


def effect_of(operations: Sequence[Operation]) -> Effect:
    """Return the effect of operations on the number of items."""
    deal, is_in_step, is_known = 1, True, True
    for operation in operations:
        if isinstance(operation, grain.transforms.Batch):
            deal *= operation.batch_size if is_in_step else 1
        elif not isinstance(operation, _ONE_TO_ONE):
            is_in_step, is_known = False, is_known and isinstance(operation, _COUNTED)
    return Effect(deal, is_in_step, is_known)


@dataclass(frozen=True)
class Assignment:
    """The assignment of items to workers: integers only.

    Args:
        workers: The number of workers; 1 also if Grain uses none.
        deal: The number of consecutive items that one worker gets: the items of one delivered element.
        items: The number of items; `sys.maxsize` if they are endless.
    """

    workers: int
    deal: int
    items: int

    @property
    def length(self) -> int:
        """The number of places that Grain divides among the workers; places after the end may be empty."""
        if self.workers == 1 or self.deal == 1 or self.items == sys.maxsize:
            return self.items
        round_ = self.workers * self.deal
        return math.ceil(self.items / round_) * round_

    def item(self, place: int) -> int:
        """Return the item at a place; an item after the end means that the place is empty."""
        if self.workers == 1 or self.deal == 1:
            return place
        own, worker = divmod(place, self.workers)
        element, within = divmod(own, self.deal)
        return (element * self.workers + worker) * self.deal + within

    def delivered(self, taken: Sequence[int]) -> int | None:
        """Return the number of delivered items, or ``None`` if they are no prefix of the order.

        Args:
            taken: The number of items that each worker took for the delivered elements.
        """
        elements = []
        for worker, count in enumerate(taken):
            full, rest = divmod(count, self.deal)
            if rest:  # only the last element of all may have fewer items
                if (full * self.workers + worker) * self.deal + rest != self.items:
                    return None
                full += 1
            elements.append(full)
        total = sum(elements)
        if elements != [len(range(worker, total, self.workers)) for worker in range(self.workers)]:
            return None
        return min(total * self.deal, self.items)
