"""The parts of the adapters' contract that hold for what is no loader, such as a sampler."""

from yogadl.testing import AdapterContract


class _Contract(AdapterContract):
    def __init__(self, make, names):
        self.made, self.names = make, names

    def make(self, stream, batch_size, **options):
        return self.made(stream, **options)


def check_refusals(make, names):
    """Check what `make` says to what is no stream, and to arguments that it does not have."""
    contract = _Contract(make, names)
    contract.test_what_is_no_stream_is_refused_with_the_way_out()
    contract.test_a_name_that_the_stream_or_another_framework_has_is_explained()


def check_no_batch(make):
    """Check that `make` warns where a batch takes more records than there are, and must be full."""

    def of_full_batches(stream, drop_remainder):
        return make(stream, batch_size=200)

    _Contract(of_full_batches, ()).test_an_epoch_that_makes_no_full_batch_is_a_warning()
