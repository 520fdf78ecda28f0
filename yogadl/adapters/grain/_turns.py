"""Say which worker process reads which items, so that what they deliver in turn is in order: integers only.

Grain gives worker k of w every w-th item, k, k + w, ..., and takes one element from each worker in turn. If
the workers batch those, a batch is not that of the order, and what was delivered is no prefix of it. So the
sampler deals: the j-th batch of worker k is batch j * w + k of the order.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Turns:
    """How items are dealt out to workers.

    Args:
        workers: How many; 1 also stands for none.
        deal: How many items in a row one worker gets: what one delivered element is made of.
        items: How many there are; `sys.maxsize`: without end.
    """

    workers: int
    deal: int
    items: int

    @property
    def length(self) -> int:
        """How many places Grain is to share out among the workers; some behind the end may stay empty."""
        if self.workers == 1 or self.deal == 1 or self.items == sys.maxsize:
            return self.items
        round_ = self.workers * self.deal
        return math.ceil(self.items / round_) * round_

    def item(self, place: int) -> int:
        """Return the item at a place; one behind the end stands for an empty place."""
        if self.workers == 1 or self.deal == 1:
            return place
        mine, worker = divmod(place, self.workers)
        turn, within = divmod(mine, self.deal)
        return (turn * self.workers + worker) * self.deal + within

    def delivered(self, taken: Sequence[int]) -> int | None:
        """Return how many items were delivered, or ``None`` if they are no prefix of the order.

        Args:
            taken: How many items each worker took for what was delivered.
        """
        turns = []
        for worker, count in enumerate(taken):
            full, rest = divmod(count, self.deal)
            if rest:  # only the last element of all can be made of fewer
                if (full * self.workers + worker) * self.deal + rest != self.items:
                    return None
                full += 1
            turns.append(full)
        total = sum(turns)
        if turns != [len(range(worker, total, self.workers)) for worker in range(self.workers)]:
            return None
        return min(total * self.deal, self.items)
