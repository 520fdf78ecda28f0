"""PyTorch by itself: its data are built, read in batches, and gone on with from a cursor."""

import torch

from yogadl.adapters import torch as adapter


def test_its_data_are_built_and_read_in_batches_and_from_a_cursor(storage):
    storage.submit(torch.utils.data.StackDataset(id=torch.arange(20)), "numbers", "1")
    stream = storage.fetch("numbers", "1").stream(shuffle=True)
    batches = iter(adapter.make_dataloader(stream, 8, num_workers=1))
    found = next(batches)["id"].tolist()
    loader = adapter.make_dataloader(stream, 8)
    loader.load_state_dict(batches.state_dict())
    for batch in loader:
        assert isinstance(batch["id"], torch.Tensor)
        found += batch["id"].tolist()
    assert found == stream.indices().tolist()
