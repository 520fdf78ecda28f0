"""The contract of adapters, kept by datasets of tf.data, whose iterators are saved by checkpoints."""

import itertools

import pytest
import tensorflow as tf
from near_misses import REF, VALUES, Adapter

from yogadl.adapters import tensorflow as adapter
from yogadl.errors import ConfigurationError


class TestDataset(Adapter):
    errors = (tf.errors.OpError,)
    test_a_loader_pickles = None
    values = VALUES
    names = (
        ("drop_last", "drop_remainder="),
        ("padding_fields", "padding_field="),
    )

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.paths = (str(tmp_path / f"{number}") for number in itertools.count())

    def make(self, stream, batch_size, *, epochs=1, **options):
        self.stream = stream
        dataset = adapter.make_tf_dataset(stream, batch_size, **options)
        return dataset if epochs == 1 else dataset.repeat(epochs)

    def begin(self, loader, state=None):
        iterator = iter(loader)
        if state is not None:
            tf.train.Checkpoint(iterator=iterator).read(state).assert_consumed()
        return iterator

    def state(self, loader, iterator, delivered):
        return tf.train.Checkpoint(iterator=iterator).write(next(self.paths))

    def cursor(self, loader, iterator, delivered):
        return self.stream.cursor(8 * delivered)  # a loop counts its batches


def test_a_remainder_is_dropped_of_batches_only():
    with pytest.raises(ConfigurationError, match="drop_remainder needs batch_size"):
        adapter.make_tf_dataset(REF.stream(), drop_remainder=True)
