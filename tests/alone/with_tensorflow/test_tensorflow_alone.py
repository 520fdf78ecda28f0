"""TensorFlow by itself: its data are built, read in batches, and gone on with from a cursor."""

import tensorflow as tf

from yogadl.adapters import tensorflow as adapter


def test_its_data_are_built_and_read_in_batches_and_from_a_cursor(storage):
    storage.submit(tf.data.Dataset.range(20).map(lambda i: {"id": i}), "numbers", "1")
    ref = storage.fetch("numbers", "1")
    stream = ref.stream(shuffle=True)
    found = next(iter(adapter.make_tf_dataset(stream, 8)))["id"].numpy().tolist()
    rest = adapter.make_tf_dataset(ref.stream(shuffle=True, cursor=stream.cursor(delivered=8)), 8)
    for batch in rest:
        found += batch["id"].numpy().tolist()
    assert found == stream.indices().tolist()
