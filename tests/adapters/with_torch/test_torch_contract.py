"""The contract of adapters, kept by what PyTorch iterates over."""

from near_misses import Adapter

from yogadl.adapters import torch as adapter


class TestDataloader(Adapter):
    names = (
        ("drop_last", "drop_remainder="),
        ("num_epochs", "epochs="),
        ("persistent_worker", "persistent_workers="),
    )
    workers = 0

    def make(self, stream, batch_size, *, epochs=1, **options):
        return adapter.make_dataloader(stream, batch_size, self.workers, epochs=epochs, **options)


class TestDataloaderWithWorkers(TestDataloader):
    workers = 2
