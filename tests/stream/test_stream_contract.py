"""The contract of adapters, kept by the core's own batches: read here, ahead, and by processes."""

from yogadl.testing import AdapterContract


class TestBatches(AdapterContract):
    threads = 0
    # A loader is made by a method of the stream, which has names of its own.
    test_what_is_no_stream_is_refused_with_the_way_out = None
    test_a_name_that_the_stream_or_another_framework_has_is_explained = None

    def make(self, stream, batch_size, *, epochs=1, **options):
        loader = stream.batch(batch_size, epochs=epochs, **options)
        return loader.prefetch(3, threads=self.threads) if self.threads else loader

    def begin(self, loader, state=None):
        if state is not None:
            loader.load_state_dict(state)
        return iter(loader)

    def state(self, loader, iterator, delivered):
        return iterator.state_dict()


class TestBatchesReadAhead(TestBatches):
    threads = 2
