"""Documents of tokens, in memory and in a cache, to pack and to batch by length."""

from collections import Counter

import numpy as np

import yogadl
from yogadl import Leaf

LENGTHS = [3, 0, 7, 1, 5, 5, 2, 19, 4, 1, 8, 0, 6, 2, 2, 11, 3, 9, 1, 4, 5, 33, 2, 6]
TOKENS = {"tokens": Leaf("int32", (None,))}
SPEC = TOKENS | {
    "weights": Leaf("float32", (None, 2)),
    "mask": Leaf("uint8", (None,)),
    "frames": Leaf("float32", (None, 2)),
}


def documents(lengths=LENGTHS):
    """Return records with tokens unlike all others: 1,000 times the record's number, and counting."""
    return [
        {
            "tokens": np.arange(1, length + 1, dtype=np.int32) + 1000 * number,
            "weights": np.linspace(1, 2, 2 * length, dtype=np.float32).reshape(length, 2) + number,
            "mask": np.ones(length, np.uint8),
            "frames": np.full((length % 3, 2), number, np.float32),
            "label": number,
        }
        for number, length in enumerate(lengths)
    ]


def in_memory(lengths=LENGTHS):
    return yogadl.from_source(documents(lengths), spec=SPEC)


def submitted(storage, lengths=LENGTHS, part_bytes=3000):
    return storage.submit(documents(lengths), "docs", "1", build=yogadl.BuildOptions(part_bytes=part_bytes))


def tokens_of(rows):
    """Return how often each token comes; 0 is padding."""
    return Counter(int(token) for row in rows for token in np.ravel(row["tokens"]) if token)


def resized(record, more):
    """Return a record whose tokens are so many more."""
    return {"tokens": np.resize(record["tokens"], len(record["tokens"]) + more)}
