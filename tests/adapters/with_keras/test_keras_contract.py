"""The contract of adapters, kept by Keras's datasets: a loop asks for batches by their numbers."""

from near_misses import Adapter

from yogadl.adapters import keras as adapter


class TestPyDataset(Adapter):
    second = 0
    lists = ()  # bytes and arrays that vary are refused
    test_a_finished_epoch_is_passed_over_on_request = None  # batch 0 is the next one that there is
    values = tuple(one for one in Adapter.values if "skip_finished_epoch" not in one[0])  # see above
    test_that_nothing_is_left_of_an_epoch_is_told_unless_it_is_passed_over = None  # in other words
    names = (
        ("drop_last", "drop_remainder="),
        ("num_epochs", "epochs="),
        ("field", "fields="),
    )

    def make(self, stream, batch_size, *, epochs=1, **options):
        return adapter.PyDataset(stream, batch_size, epochs=epochs, **options)

    def begin(self, loader, state=None):
        count, (cursor, done) = loader.num_batches, state or (None, 0)
        if cursor is not None:
            loader.load_state_dict(cursor)
        return (loader[number] for number in range(count - done))

    def state(self, loader, iterator, delivered):
        return loader.cursor(delivered), delivered

    def cursor(self, loader, iterator, delivered):
        return loader.cursor(delivered)
