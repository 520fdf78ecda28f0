"""Make the golden cache. It was run once, for format version 1; what it made must open for ever."""

import collections
import sys
from pathlib import Path
from typing import Any

import numpy as np

Point = collections.namedtuple("Point", ["x", "y"])
RECORDS = 23


def record(i: int) -> dict[str, Any]:
    """Return record `i`, which holds one field of each stored form."""
    return {
        "id": i,
        "flag": i % 3 == 0,
        "image": ((np.arange(4 * 5 * 3) * (i + 1)) % 251).astype(np.uint8).reshape(4, 5, 3),
        "point": Point(np.float32(i / 8), np.array([i, -i], np.int16)),
        "pair": (np.float64(-i), [np.complex64(i + 1j), np.uint64(2**63 + i)]),
        "tokens": np.arange(i % 7, dtype=np.int32) - i,
        "grid": np.full((i % 3, 2, i % 2 + 1), i, np.float16),
        "anything": np.zeros((2,) * (i % 4), np.int8) + np.int8(i),
        "raw": bytes(range(i)),
        "text": "blåbær 漢字 "[: i % 12],
        "words": np.array([f"w{j}" for j in range(i % 4)] or [""], object),
        "when": np.datetime64(1_600_000_000 + i, "s"),
        "span": np.timedelta64(-i, "ms"),
        "empty": np.zeros((0, 3), np.float32),
    }


if __name__ == "__main__":
    import yogadl

    root = Path(sys.argv[1])
    yogadl.open_storage(root).submit(
        map(record, range(RECORDS)), "golden/forms", "1", build=yogadl.BuildOptions(part_bytes=4000)
    )
