"""The contract of adapters, kept by Grain's loaders and datasets."""

from grain_stages import NO_THREADS
from near_misses import Adapter

from yogadl.adapters import grain as adapter


class TestDataloader(Adapter):
    refusals = (ValueError,)  # Grain's own
    second = 0
    test_a_loader_pickles = None  # Grain's class does not
    names = (
        ("drop_last", "drop_remainder="),
        ("num_workers", "worker_count="),
        ("read_option", "read_options="),
        ("data_source", "it has stream,"),
    )

    def make(self, stream, batch_size, *, epochs=1, **options):
        return adapter.make_dataloader(stream, batch_size=batch_size, epochs=epochs, **options)

    def begin(self, loader, state=None):
        iterator = iter(loader)
        if state is not None:
            iterator.set_state(state)
        return iterator

    def state(self, loader, iterator, delivered):
        return iterator.get_state()

    def cursor(self, loader, iterator, delivered):
        return adapter.cursor(iterator)


class TestMapDataset(TestDataloader):
    test_the_state_of_another_order_is_refused = None  # it is a number of elements, of Grain's own
    names = (
        ("num_epochs", "epochs="),
        ("padding", "padding_field="),
    )

    def make(self, stream, batch_size, *, epochs=1, **options):
        return adapter.map_dataset(stream, batch_size, epochs=epochs, **options)

    def begin(self, loader, state=None):
        return super().begin(loader.to_iter_dataset(NO_THREADS), state)
