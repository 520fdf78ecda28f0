"""Draw how a job is killed and goes on with other ranks; run as a script, it writes resume.svg.

The numbers are those that yogadl gives.
"""

import itertools
from pathlib import Path

import numpy as np

import yogadl

RECORDS, KILLED, SEED = 18, 6, 7
SIDE, LEFT = 37, 10
READ, REST, LOST, WORDS = "#1971c2", "#237032", "#c2410c", "#7d8590"


def drawn():
    """Return the picture."""
    ref = yogadl.from_source(np.arange(RECORDS), fingerprint="a picture")
    order = ref.stream(shuffle=True, shuffle_seed=SEED)
    before = [ref.stream(shuffle=True, shuffle_seed=SEED, shard_rank=rank, num_shards=2) for rank in range(2)]
    reader = iter(before[0])
    read = [[int(next(reader)) for _ in range(KILLED // 2)], [*map(int, before[1])][: KILLED // 2]]
    cursor = reader.state_dict()
    assert cursor["position"] == KILLED
    resumed = [
        ref.stream(shuffle=True, shuffle_seed=SEED, shard_rank=rank, num_shards=3, cursor=cursor)
        for rank in range(3)
    ]
    rest = [[*map(int, stream)] for stream in resumed]
    assert sorted(itertools.chain(*read, *rest)) == list(range(RECORDS))
    boxes = [
        box(int(record), LEFT + place * SIDE, 34, READ if place < KILLED else REST)
        for place, record in enumerate(order)
    ]
    for x, rows, color in ((LEFT, read, READ), (300, rest, REST)):
        for rank, records in enumerate(rows):
            boxes += [
                box(record, x + place * SIDE, 114 + rank * SIDE, color)
                for place, record in enumerate(records)
            ]
    border = LEFT + KILLED * SIDE
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 690 250"'
            ' font-family="Helvetica, Arial, sans-serif">',
            "<title>Two ranks are killed, and three read what is left of the epoch: each record once</title>",
            f'<g font-size="13" fill="{WORDS}">',
            text(LEFT, 22, f"an epoch: all {RECORDS} records, in the order of its seed"),
            text(LEFT, 104, "2 ranks"),
            text(300, 104, "3 ranks read the rest"),
            text(LEFT, 244, "on any number of ranks, with any batch size: each record of the epoch once"),
            text(128, 144, "saved:"),
            text(128, 162, f'{{"position": {cursor["position"]}, ...}}'),
            "</g>",
            f'<g font-size="13" font-weight="bold" fill="{LOST}">{text(border + 6, 92, "killed")}</g>',
            f'<path d="M{border} 26v74" stroke="{LOST}" stroke-width="2" stroke-dasharray="5 4"/>',
            f'<path d="M{border + 16} 146h38m-6-5l6 5l-6 5" fill="none" stroke="{WORDS}"/>',
            '<g font-size="13" font-weight="bold" text-anchor="middle">',
            *boxes,
            "</g>",
            "</svg>\n",
        ]
    )


def box(number, x, y, color):
    """Return a record."""
    return (
        f'<rect x="{x}" y="{y}" width="{SIDE - 2}" height="{SIDE - 3}" fill="{color}"/>'
        f'<text x="{x + SIDE // 2 - 1}" y="{y + 22}" fill="#fff">{number}</text>'
    )


def text(x, y, words):
    """Return words."""
    return f'<text x="{x}" y="{y}">{words}</text>'


if __name__ == "__main__":
    Path(__file__).with_name("resume.svg").write_text(drawn(), encoding="utf-8")
