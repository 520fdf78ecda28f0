"""Draw where records come from, for three ways to shuffle; run as a script, it writes shuffle.svg.

Each dot is a record: to the right, when it comes in the epoch; upwards, where it lies in the source.
"""

import random
from pathlib import Path

import numpy as np

import yogadl

RECORDS, BUFFER, RANKS, RANK, EVERY = 100_000, 10_000, 8, 3, 59
SIDE, GAP, TOP = 220, 30, 44


def shuffled(items, dice):
    """Return the items in another order: the same with every version of Python."""
    items = list(items)
    for last in range(len(items) - 1, 0, -1):
        chosen = int(dice.random() * (last + 1))
        items[last], items[chosen] = items[chosen], items[last]
    return items


def by_buffer(dice):
    """Shuffle as tf.data does: hand out any record of a buffer, and put the next one in its place."""
    order, buffer = [], list(range(BUFFER))
    for number in range(BUFFER, RECORDS):
        chosen = int(dice.random() * BUFFER)
        order.append(buffer[chosen])
        buffer[chosen] = number
    return order + shuffled(buffer, dice)


def shards_first(dice):
    """Give each rank an eighth of the files, and shuffle each eighth as well as can be; ranks take turns."""
    share = RECORDS // RANKS
    shards = [shuffled(range(rank * share, (rank + 1) * share), dice) for rank in range(RANKS)]
    return [shards[position % RANKS][position // RANKS] for position in range(RECORDS)]


def by_yogadl(_):
    """Shuffle all records, then deal them out: the library's own order."""
    ref = yogadl.from_source({"number": np.arange(RECORDS)})
    return ref.stream(shuffle=True, shuffle_seed=7).indices().tolist()


PANELS = (
    (by_buffer, "a buffer of 10,000"),
    (shards_first, "shards first, then a shuffle"),
    (by_yogadl, "yogadl: a shuffle, then shards"),
)


def dots(order, left, positions):
    """Return a path with a dot for each of these positions."""
    places = (
        (left + SIDE * position / RECORDS, TOP + SIDE * (1 - order[position] / RECORDS))
        for position in positions
    )
    return "".join(f"M{x:.0f} {y:.0f}h0" for x, y in places)


def picture():
    """Return the picture as SVG. Its colours are read on a white page and on a black one."""
    width, height = 3 * SIDE + 4 * GAP, TOP + SIDE + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14" text-anchor="middle" fill="#7d8590">',
        "<title>Where records come from, for three ways to shuffle</title>",
    ]
    for number, (order_of, title) in enumerate(PANELS):
        left = GAP + number * (SIDE + GAP)
        middle = left + SIDE / 2
        order = order_of(random.Random(1))
        every = range(0, RECORDS, EVERY)
        own = [position for position in every if position % RANKS == RANK]
        others = [position for position in every if position % RANKS != RANK]
        lines += [
            f'<text x="{middle:.0f}" y="{TOP - 16}" font-weight="bold">{title}</text>',
            f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#7d8590"/>',
            '<g fill="none" stroke-linecap="round" stroke-width="3">',
            f'<path stroke="#7d8590" stroke-opacity=".45" d="{dots(order, left, others)}"/>',
            f'<path stroke="#e8590c" stroke-width="4" d="{dots(order, left, own)}"/>',
            "</g>",
            f'<text x="{middle:.0f}" y="{TOP + SIDE + 22}">time in the epoch →</text>',
        ]
    side = TOP + SIDE / 2
    turned = f'transform="rotate(-90 16 {side:.0f})" x="16" y="{side:.0f}"'
    lines.append(f"<text {turned}>place in the source →</text>")
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(), "utf-8")
