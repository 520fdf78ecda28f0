"""Compute which record comes at which position of an epoch: pure integers, no I/O.

An order is a bijection of ``range(records)``, one for each (seed, epoch), computed at any position without
computing the others; a mix is an order over several sources. `docs/explanation/order.md` states the
arithmetic, which is frozen as version 1.
"""

from yogadl._order.blocks import (
    GROUPS,
    Blocks,
    BlocksOfGroups,
    Drawn,
    DrawnMixture,
    Mixture,
    Sequences,
    SequencesOfEpisodes,
)
from yogadl._order.keys import derive_key
from yogadl._order.order import Order
from yogadl._order.orders import BlocksOrder, GlobalOrder, SourceOrder, draw_of, make_order, substitute

__all__ = [
    "GROUPS",
    "Blocks",
    "BlocksOfGroups",
    "BlocksOrder",
    "Drawn",
    "GlobalOrder",
    "DrawnMixture",
    "Mixture",
    "Order",
    "Sequences",
    "SequencesOfEpisodes",
    "SourceOrder",
    "derive_key",
    "draw_of",
    "make_order",
    "substitute",
]
