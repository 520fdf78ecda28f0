"""A view of a stranger's: windows of time, made by `lower` and `make` alone."""

import numpy as np
from inside import DictNode, MadeRecords, Needs, Spec

from yogadl import Leaf, RecordsRef

STEPS, TOKENS = 3, 2


class Windows(MadeRecords):
    """Each record with the two after it: their ids and pairs, and the first tokens of each, end to end."""

    def __init__(self, parent, lengths):
        self.parent, self.lengths = parent, np.asarray(lengths, np.int64)
        names = [field.name for field in parent.spec.fields]
        self.numbers = {name: names.index(name) for name in ("id", "pair", "tokens") if name in names}
        of_parent = {name: parent.spec.fields[number].leaf for name, number in self.numbers.items()}
        leaves = [
            leaf if name == "tokens" else Leaf(leaf.dtype, (STEPS, *leaf.shape))
            for name, leaf in of_parent.items()
        ]
        self.spec = Spec(DictNode(tuple(self.numbers), tuple(leaves)))
        self.record_bytes = STEPS * parent.record_bytes
        self.composition = f"windows of {STEPS} of {self.lengths.tolist()}"
        self.fingerprint = f"{self.composition} of {parent.fingerprint}"

    def __len__(self):
        return max(0, len(self.parent) - STEPS + 1)

    def over(self, parent):
        return Windows(parent, self.lengths[: len(parent)])

    def lower(self, indices, fields):
        records = (indices[:, None] + np.arange(STEPS)).reshape(-1)
        lengths = np.minimum(TOKENS, self.lengths[records])
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


def windows(ref, lengths=None):
    """Return the windows of a reference, given its lengths if they are not those of `algebra_bases`."""
    known = map(tokens_of, range(len(ref))) if lengths is None else lengths
    return RecordsRef(Windows(ref._records, list(known)))
