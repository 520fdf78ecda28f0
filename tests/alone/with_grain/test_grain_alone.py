"""Grain by itself: its data are built, read in batches, and gone on with from a cursor."""

import grain
import numpy as np

from yogadl.adapters import grain as adapter


def test_its_data_are_built_and_read_in_batches_and_from_a_cursor(storage):
    source = grain.MapDataset.range(20).map(lambda i: {"id": np.int64(i)})
    storage.submit(source, "numbers", "1")
    ref = storage.fetch("numbers", "1")
    stream = ref.stream(shuffle=True)
    batches = iter(adapter.make_dataloader(stream, batch_size=8))
    found = next(batches)["id"].tolist()
    rest = ref.stream(shuffle=True, cursor=adapter.cursor(batches))
    for batch in adapter.make_dataloader(rest, batch_size=8):
        found += batch["id"].tolist()
    assert found == stream.indices().tolist()
