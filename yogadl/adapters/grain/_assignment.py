"""Assign items to Grain's worker processes so that what they deliver, one after another, is in order.

Grain gives worker k of w every w-th item, k, k + w, ..., and takes one element from each worker in turn. If
the workers batch their items, those are not the batches of the order, and what was delivered is no prefix of
it. So the sampler assigns items by the batch: the j-th batch of worker k is batch j * w + k of the order. How
many items make a batch depends on the operations.
"""

import math
import sys
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
    """What operations do to the number of items; checkpoints of Grain have it as JSON.

    Attributes:
        deal: How many items in a row make one element, as far as that is fixed.
        is_in_step: Whether only batching changes their number, so that all shards stay in step.
        is_known: Whether all operations are Grain's own. Another one may hold back items that it took.
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


@dataclass(frozen=True)
class Assignment:
    """Which worker reads which items: integers only.

    Args:
        workers: How many; 1 also stands for none.
        deal: How many items in a row one worker gets: those of one delivered element.
        items: How many there are; `sys.maxsize`: without end.
    """

    workers: int
    deal: int
    items: int

    @property
    def length(self) -> int:
        """How many places Grain shares out among the workers; some behind the end may be empty."""
        if self.workers == 1 or self.deal == 1 or self.items == sys.maxsize:
            return self.items
        round_ = self.workers * self.deal
        return math.ceil(self.items / round_) * round_

    def item(self, place: int) -> int:
        """Return the item at a place; an item behind the end means that the place is empty."""
        if self.workers == 1 or self.deal == 1:
            return place
        own, worker = divmod(place, self.workers)
        element, within = divmod(own, self.deal)
        return (element * self.workers + worker) * self.deal + within

    def delivered(self, taken: Sequence[int]) -> int | None:
        """Return how many items were delivered, or ``None`` if they are no prefix of the order.

        Args:
            taken: How many items each worker took for what was delivered.
        """
        elements = []
        for worker, count in enumerate(taken):
            full, rest = divmod(count, self.deal)
            if rest:  # only the last element of all can be made of fewer
                if (full * self.workers + worker) * self.deal + rest != self.items:
                    return None
                full += 1
            elements.append(full)
        total = sum(elements)
        if elements != [len(range(worker, total, self.workers)) for worker in range(self.workers)]:
            return None
        return min(total * self.deal, self.items)
