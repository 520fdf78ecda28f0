"""The contract of adapters, kept by iterable datasets of Hugging Face, whose loops name their epochs."""

from near_misses import Adapter

from yogadl.adapters import datasets as adapter


class Loop:
    """A loop over batches that the dataset makes of its rows."""

    def __init__(self, dataset, size, epochs, drop):
        self.dataset, self.options, self.epochs, self.epoch = dataset, (size, drop), epochs, 0

    def batches(self, state=None):
        first, saved = state or (0, None)
        dataset = self.dataset.with_format("numpy")
        for epoch in range(first, self.epochs):
            self.epoch = epoch
            dataset.set_epoch(epoch)
            if saved is not None:
                dataset.load_state_dict(saved)
                saved = None
            self.read = dataset
            yield from dataset.iter(*self.options)


class TestIterableDataset(Adapter):
    second = 0
    lists = ()  # a row has each list, and datasets makes its batches of rows
    # It begins at no cursor, knows no padding, and is batched by others.
    test_a_finished_epoch_is_passed_over_on_request = None
    test_a_stream_that_begins_late_has_a_short_first_epoch = None
    test_a_cursor_goes_on_with_other_ranks_and_batches_here_and_elsewhere = None
    test_padding_is_told = None
    test_values_that_make_no_sense_are_refused = None
    test_that_nothing_is_left_of_an_epoch_is_told_unless_it_is_passed_over = None
    test_an_epoch_that_makes_no_full_batch_is_a_warning = None
    test_batches_of_sequences_are_of_no_other_size = None

    def make(self, stream, batch_size, *, epochs=1, drop_remainder=False, **names):
        return Loop(adapter.make_iterable_dataset(stream, **names), batch_size, epochs, drop_remainder)

    def begin(self, loader, state=None):
        return loader.batches(state)

    def state(self, loader, iterator, delivered):
        return (loader.epoch, loader.read.state_dict()) if delivered else None
