"""Keras with one backend: its datasets are built, trained on in batches, and gone on with from a cursor."""

import keras
import numpy as np

from yogadl.adapters import keras as adapter


class Batches(keras.utils.PyDataset):
    """A dataset of four batches."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"id": np.arange(5 * index, 5 * index + 5)}


def test_its_data_are_built_and_trained_on_in_batches_and_from_a_cursor(storage):
    storage.submit(Batches(), "numbers", "1")
    ref = storage.fetch("numbers", "1")
    stream = ref.stream(shuffle=True)
    dataset = adapter.PyDataset(stream, 8, epochs=None)
    found = dataset[0]["id"].tolist()
    rest = adapter.PyDataset(ref.stream(shuffle=True, cursor=dataset.cursor(1)), 8, epochs=1)
    for batch in rest:
        found += batch["id"].tolist()
    assert found == stream.indices().tolist()
    layers = [keras.Input([1]), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    trained = adapter.PyDataset(
        stream, 5, fields=lambda batch: (batch["id"][:, None], batch["id"][:, None]), epochs=None
    )
    model.fit(trained, shuffle=False, steps_per_epoch=trained.steps_per_epoch, verbose=0)
    assert trained.cursor(4) == stream.cursor(20)
