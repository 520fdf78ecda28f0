"""A view of a stranger's: windows of time, made by `lower` and `make` alone."""

import numpy as np
from inside import DictNode, MadeRecords, Needs, Spec

from yogadl import Leaf, RecordsRef

STEPS, TOKENS = 3, 2


class Windows(MadeRecords):
    """Each record with the two after it: their ids and pairs, and the first tokens of each, end to end."""

    def __init__(self, parent):
        self.parent = parent
        names = [field.name for field in parent.spec.fields]
        self.numbers = {name: names.index(name) for name in ("id", "pair", "tokens")}
        leaves = Leaf("int64", (STEPS,)), Leaf("float32", (STEPS, 2)), Leaf("int32", (None,))
        self.spec = Spec(DictNode(tuple(self.numbers), leaves))
        self.record_bytes = STEPS * parent.record_bytes
        self.composition = f"windows of {STEPS}"
        self.fingerprint = f"{self.composition} of {parent.fingerprint}"

    def __len__(self):
        return max(0, len(self.parent) - STEPS + 1)

    def over(self, parent):
        return Windows(parent)

    def lower(self, indices, fields):
        records = (indices[:, None] + np.arange(STEPS)).reshape(-1)
        lengths = np.array([min(TOKENS, tokens_of(number)) for number in records.tolist()])
        names = [name for place, name in enumerate(self.numbers) if fields is None or place in fields]
        cut = [self.numbers[name] for name in names if name == "tokens"]
        whole = [self.numbers[name] for name in names if name != "tokens"]
        none = np.zeros(len(records), np.int64)
        return lengths, Needs(records, whole, cut, none, lengths, none.astype(bool))

    def make(self, lengths, found, fields, memory):
        made = []
        for place, (name, number) in enumerate(self.numbers.items()):
            if fields is not None and place not in fields:
                continue
            if name == "tokens":
                ends = np.cumsum(lengths.reshape(-1, STEPS).sum(axis=1))
                made.append([part.copy() for part in np.split(found[number], ends[:-1])])
            else:
                made.append(found[number].reshape(-1, STEPS, *found[number].shape[1:]))
        return made if fields is None else [made[sorted(fields).index(place)] for place in fields]


def tokens_of(n):
    """Return the number of tokens of a record of `algebra_bases`."""
    return n * 7 % 11 if n % 5 else 0


def windows(ref):
    """Return the windows of a reference."""
    return RecordsRef(Windows(ref._records))
