"""Train with Keras in a process of its own, on the backend that KERAS_BACKEND names, and say what came out.

Run as ``python keras_job.py <JSON>``, a list of [name, task, arguments]: the last line on stdout has what
each returned, by name.
"""

import json
import os
import signal
import sys

import keras
import numpy as np

import yogadl
from yogadl.adapters import keras as adapter

RECORDS, BATCH = 120, 8
STEPS = RECORDS // BATCH
SHUFFLE = {"shuffle": True, "shuffle_seed": 3}
FIELDS = ("x", "y")


def build(root):
    """Submit the records that all tasks read."""
    random = np.random.default_rng(0)
    x = random.normal(size=(RECORDS, 4)).astype(np.float32)
    data = {"x": x, "y": x.sum(axis=1, keepdims=True), "id": np.arange(RECORDS)}
    yogadl.open_storage(root).submit(data, "points", "1")


def stream(root, **options):
    return yogadl.open_storage(root).fetch("points", "1").stream(**SHUFFLE, **options)


def make_model(steps_per_execution=1):
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input([4]), layers.Dense(8, activation="tanh"), layers.Dropout(0.2, seed=5), layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=steps_per_execution)
    return model


def make_counter(is_built):
    """Return a model whose weight i grows by one whenever it is trained on record i.

    One that is not built Keras builds by a batch that it asks for besides.
    """
    layers = [keras.layers.Embedding(RECORDS, 1, embeddings_initializer="zeros"), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input([1]), *layers] if is_built else layers)
    model.compile(keras.optimizers.SGD(1.0), keras.losses.MeanAbsoluteError(reduction="sum"))
    return model


def weights(model):
    return [weight.tolist() for weight in model.get_weights()]


class KillAfter(keras.callbacks.Callback):
    """Kill the process once so many batches were trained on."""

    def __init__(self, batches):
        super().__init__()
        self.left = batches

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


class StopAfter(KillAfter):
    """Tell fit to stop instead."""

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            self.model.stop_training = True


def train(root, path, epochs, kill_after=None, stop_after=None, every_batches=None, execution=1, batch=BATCH):
    """Train with a checkpoint, from where it stands, and possibly not to the end."""
    dataset = adapter.PyDataset(stream(root), batch, fields=FIELDS)
    checkpoint = adapter.Checkpoint(path, dataset, every_batches)
    model = checkpoint.restore() or make_model(execution)
    begun = [checkpoint.epoch, checkpoint.step]
    others = [KillAfter(kill_after)] if kill_after else [StopAfter(stop_after)] if stop_after else []
    for part in checkpoint.parts(epochs):
        model.fit(dataset, callbacks=[checkpoint, *others], verbose=0, **part)
    return {
        "begun": begun,
        "ended": [checkpoint.epoch, checkpoint.step],
        "cursor": checkpoint.cursor(),
        "weights": weights(model),
    }


def by_hand(root, batches):
    """Train without fit, on the core's batches."""
    model = make_model()
    loader = iter(stream(root).batch(BATCH, epochs=None))
    for _ in range(batches):
        batch = next(loader)
        model.train_on_batch(batch["x"], batch["y"])
    return weights(model)


def fitted(root, epochs):
    """Train by one fit as a user would, who leaves ``shuffle=True``."""
    model = make_model()
    dataset = adapter.PyDataset(stream(root), BATCH, fields=FIELDS)
    model.fit(dataset, epochs=epochs, steps_per_epoch=dataset.steps_per_epoch, verbose=0)
    return weights(model)


def count(root, epochs, is_built):
    """Count how often each record was trained on."""
    model = make_counter(is_built)
    above = np.full((BATCH, 1), 1e9, np.float32)
    dataset = adapter.PyDataset(stream(root), BATCH, fields=lambda batch: (batch["id"][:, None], above))
    model.fit(dataset, epochs=epochs, steps_per_epoch=STEPS, shuffle=True, verbose=0)
    return np.ravel(model.get_weights()[0]).tolist()


def wrong_dataset(root, path):
    """Train on another dataset than that of the checkpoint."""
    datasets = [adapter.PyDataset(stream(root), BATCH, fields=FIELDS) for _ in range(2)]
    checkpoint = adapter.Checkpoint(path, datasets[0])
    return refusal(make_model(), datasets[1], steps_per_epoch=3, callbacks=[checkpoint])


def without_steps(root, path):
    """Train on a dataset without end, without saying how long."""
    dataset = adapter.PyDataset(stream(root), BATCH, fields=FIELDS)
    return refusal(make_model(), dataset, callbacks=[adapter.Checkpoint(path, dataset)])


def fit_finite(root):
    """Train on a dataset that ends, which Keras shuffles."""
    return refusal(make_model(), adapter.PyDataset(stream(root), BATCH, fields=FIELDS, epochs=1))


def refusal(model, dataset, **options):
    try:
        model.fit(dataset, verbose=0, **options)
    except Exception as error:  # noqa: BLE001  (TensorFlow makes errors of its own of some)
        return f"{type(error).__name__}: {error}"
    return "no error"


def evaluate(root):
    """Evaluate and predict over all records, twice, and as the validation of a fit."""
    model = make_model()
    data = yogadl.open_storage(root).fetch("points", "1").gather(range(RECORDS))
    finite = adapter.PyDataset(stream(root), 7, fields=FIELDS, epochs=1)  # 120 = 17 * 7 + 1
    found = [model.evaluate(finite, verbose=0) for _ in range(2)]
    predicted = [model.predict(finite, verbose=0).ravel().tolist() for _ in range(2)]
    order = finite.stream.indices()
    expected = model.predict(data["x"][order], verbose=0).ravel().tolist()
    dataset = adapter.PyDataset(stream(root), BATCH, fields=FIELDS)
    history = model.fit(dataset, epochs=3, steps_per_epoch=5, validation_data=finite, verbose=0)
    found.append(model.evaluate(data["x"], data["y"], verbose=0))
    return {
        "losses": found[:2],
        "validated": [history.history["val_loss"][-1], found[2]],
        "predicted": predicted,
        "expected": expected,
    }


TASKS = {
    f.__name__: f for f in (train, by_hand, fitted, count, evaluate, fit_finite, wrong_dataset, without_steps)
}

if __name__ == "__main__":
    print(json.dumps({name: TASKS[task](**given) for name, task, given in json.loads(sys.argv[1])}))
