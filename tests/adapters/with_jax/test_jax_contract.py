"""The contract of adapters, kept by iterators of JAX's arrays."""

from near_misses import Adapter

from yogadl.adapters.jax import make_jax_iterator


class TestIterator(Adapter):
    second = None
    prefetch, threads = 2, 1
    lists = ()  # bytes and arrays that vary are refused
    test_a_loader_pickles = None
    names = (
        ("drop_last", "drop_remainder="),
        ("num_epochs", "epochs="),
        ("shardings", "sharding="),
    )

    def make(self, stream, batch_size, *, epochs=1, **options):
        return make_jax_iterator(
            stream, batch_size, epochs=epochs, prefetch=self.prefetch, threads=self.threads, **options
        )


class TestIteratorThatReadsNothingAhead(TestIterator):
    prefetch = 0


class TestIteratorOfSeveralThreads(TestIterator):
    threads = 2
