"""Compute what Grain needs about numbered items: a length, random keys, and JSON for its checkpoints.

Grain's checkpoints contain a numbering as JSON. A cursor can be computed from this JSON alone.
"""

import json
import sys
from typing import Any

from yogadl._core.arguments import whole
from yogadl._order import derive_key
from yogadl._stream import Cut, Identity, Numbering, Shard, read_cursor
from yogadl.errors import CursorError

_TAG = int.from_bytes(b"grain-1", "big")


def length_of(numbering: Numbering) -> int:
    """Return the number of items; `sys.maxsize`, Grain's value for endless data, if there is no end."""
    return sys.maxsize if numbering.length is None else numbering.length


def random_key(numbering: Numbering, number: int) -> int:
    """Return the key of an item's random generator, made of seed, epoch and the first record's position."""
    epoch, inside = numbering.locate(number)
    return derive_key(_TAG, numbering.identity.seed or 0, epoch, numbering.position(epoch, inside))


def cursor_of(numbering: Numbering, delivered: int, *, is_short: bool) -> dict[str, Any]:
    """Return the cursor after `delivered` items.

    `is_short` is true if the last batch was to be larger, so that more items were requested than delivered. A
    shard that has one record less than the others then ends at the same position as they do.
    """
    is_end = is_short and delivered == numbering.length
    return numbering.cursor(numbering.end() if is_end else numbering.reach(delivered))


def to_json(numbering: Numbering) -> dict[str, Any]:
    """Return the numbering as plain JSON."""
    shard, cut = numbering.shard, numbering.cut
    return {
        "start": numbering.cursor(numbering.start),
        "shard": [shard.rank, shard.ranks, shard.remainder],
        "cut": [cut.size, cut.drop_remainder, cut.epochs],
    }


def from_json(described: Any) -> Numbering:  # Any: the JSON comes from a file
    """Return the numbering in JSON of `to_json`, or raise a CursorError."""
    try:
        start, (rank, ranks, remainder) = described["start"], described["shard"]
        size, drop_remainder, epochs = described["cut"]
        identity = Identity.of(start)
        point = read_cursor(identity, start)
        shard = Shard(identity.skipped.kept, whole("rank", rank), whole("ranks", ranks, 1), remainder)
        return Numbering(identity, shard, point, Cut(size, drop_remainder, epochs))
    except (KeyError, TypeError, ValueError) as error:
        raise CursorError(f"the state's sampler is damaged: {json.dumps(described)[:200]}") from error
