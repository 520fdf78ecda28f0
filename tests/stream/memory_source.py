"""A source in memory for the stream's tests: records that know their own number."""

import numpy as np
from inside import RandomAccess, spec_of

from yogadl import RecordsRef


class MemorySource(RandomAccess):
    """`count` records {"id", "pair", "name"}; notes which indices were read, and fails where told to."""

    def __init__(self, count, fingerprint="f" * 8, record_bytes=32, fails_at=None):
        self.count, self.fingerprint, self.record_bytes, self.fails_at = (
            count,
            fingerprint,
            record_bytes,
            fails_at,
        )
        self.spec = spec_of({"id": np.int64(0), "pair": np.zeros(2, np.float32), "name": "r0"})
        self.read = []

    def __len__(self):
        return self.count

    def columns(self, indices, fields=None, memory=None):
        assert indices.ndim == 1
        assert indices.dtype == np.int64
        assert not len(indices) or (indices.min() >= 0 and indices.max() < self.count)
        self.read.extend(indices.tolist())
        if self.fails_at in indices:
            raise KeyError("the disk is on fire")
        pair = np.stack([indices, -indices], axis=1).astype(np.float32)
        return [indices.copy(), pair, [f"r{index}" for index in indices]]


class BareSource(MemorySource):
    """`count` records that are a number each, not a dict."""

    def __init__(self, count):
        super().__init__(count)
        self.spec = spec_of(np.int64(0))

    def columns(self, indices, fields=None, memory=None):
        return super().columns(indices)[:1]


def open_stream(source, **options):
    return RecordsRef(source).stream(**options)


def stream_of(count, **options):
    return open_stream(MemorySource(count), **options)


def record_ids(records):
    return [int(record["id"]) for record in records]


def batch_ids(batches):
    return [batch["id"].tolist() for batch in batches]


def flat(lists):
    return [number for numbers in lists for number in numbers]
