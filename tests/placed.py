"""Read a stream through one more function: one that says of each record at which place it comes."""

from dataclasses import fields

import numpy as np
from inside import RecordStream, Run

import yogadl

NAMES = ("epoch", "index", "position")


class PlacedRun(Run):
    """A run that reads records {"epoch", "index", "position"}, of which the source knows the index alone."""

    def read(self, rows, fields=None, memory=None):
        epochs = [np.full(len(positions), epoch) for epoch, positions in rows.pieces]
        positions = [np.asarray(positions, np.int64) for _, positions in rows.pieces]
        found = super().read(rows, None, memory)
        columns = [np.concatenate([*epochs, []]), found[1], np.concatenate([*positions, []])]
        return [columns[number].astype(np.int32) for number in (range(3) if fields is None else fields)]


PADDED = {"shuffle": True, "shuffle_seed": 3, "shard_rank": 1, "num_shards": 2, "pad_shard_remainder": True}


def placed(count, **options):
    """Return a stream of so many records, each of which says at which place it comes."""
    stand_in = np.zeros(count, np.int32)
    index = np.arange(count, dtype=np.int32)
    run = yogadl.from_source({"epoch": stand_in, "index": index, "position": stand_in}).stream(**options).run
    return RecordStream(PlacedRun(**{field.name: getattr(run, field.name) for field in fields(run)}))


def check_places(stream, batches, epochs, padding_field=None):
    """Check that batches, or records, are epochs of a stream, whole, and that each comes where it says."""
    columns = [_joined(batches, name) for name in NAMES]
    found = list(zip(*columns, strict=True))
    shard, order = stream.shard, stream.run.order
    wanted = []
    for epoch in epochs:
        first = stream.run.origin(epoch)
        rows = range(first + shard.rank, first + shard.rank + shard.own(first) * shard.ranks, shard.ranks)
        positions = np.array(rows, np.int64)
        indices = order.indices(positions % max(1, shard.records), epoch).tolist()
        wanted += zip([epoch] * len(rows), indices, rows, strict=True)
    assert found == wanted
    if padding_field is not None:
        assert _joined(batches, padding_field) == [position >= shard.records for _, _, position in wanted]


def _joined(batches, name):
    return np.concatenate([np.atleast_1d(np.asarray(batch[name])) for batch in batches]).tolist()
