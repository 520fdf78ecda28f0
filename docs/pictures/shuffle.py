"""Draw where records come from, for ways to shuffle; run as a script, it writes shuffle.svg and orders.svg.

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


def by_yogadl(shuffle):
    """Return a function that gives the library's own order; of all records, which are then dealt out."""

    def order(_):
        ref = yogadl.from_source({"number": np.arange(RECORDS)})
        return ref.stream(shuffle=shuffle, shuffle_seed=7).indices().tolist()

    return order


# The panels of each picture, and what it shows.
PICTURES = {
    "shuffle": (
        "three ways to shuffle",
        (
            (by_buffer, "a buffer of 10,000"),
            (shards_first, "shards first, then a shuffle"),
            (by_yogadl(True), "yogadl: a shuffle, then shards"),
        ),
    ),
    "orders": (
        "the three orders of a stream",
        (
            (by_yogadl(False), "no shuffle"),
            (by_yogadl(yogadl.Blocks(records=500, window=20, lanes=1)), "Blocks, 20 in a window"),
            (by_yogadl(True), "shuffle=True"),
        ),
    ),
}


def dots(order, left, positions):
    """Return a path with a dot for each of these positions."""
    places = (
        (left + SIDE * position / RECORDS, TOP + SIDE * (1 - order[position] / RECORDS))
        for position in positions
    )
    return "".join(f"M{x:.0f} {y:.0f}h0" for x, y in places)


def picture(name):
    """Return a picture as SVG. Its colours are read on a white page and on a black one."""
    shown, panels = PICTURES[name]
    width, height = 3 * SIDE + 4 * GAP, TOP + SIDE + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14" text-anchor="middle" fill="#7d8590">',
        f"<title>Where records come from, for {shown}</title>",
    ]
    for number, (order_of, title) in enumerate(panels):
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
    for name in PICTURES:
        Path(__file__).with_name(f"{name}.svg").write_text(picture(name), "utf-8")
