"""Train with Keras in a process of its own, on the backend that KERAS_BACKEND names, and say what came out.

Run as ``python keras_job.py <JSON>``, a list of [name, task, arguments]: the last line on stdout has what
each returned, by name.
"""

import json
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path

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
    dataset = adapter.PyDataset(stream(root), batch, fields=FIELDS, epochs=None)
    checkpoint = adapter.Checkpoint(path, dataset, every_batches)
    model = checkpoint.restore(lambda: make_model(execution))
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
    dataset = adapter.PyDataset(stream(root), BATCH, fields=FIELDS, epochs=None)
    model.fit(dataset, epochs=epochs, steps_per_epoch=dataset.steps_per_epoch, verbose=0)
    return weights(model)


def count(root, epochs):
    """Count how often each record was trained on by a model that Keras builds."""
    model = make_counter(is_built=False)
    above = np.full((BATCH, 1), 1e9, np.float32)
    dataset = adapter.PyDataset(
        stream(root), BATCH, fields=lambda batch: (batch["id"][:, None], above), epochs=None
    )
    model.fit(dataset, epochs=epochs, steps_per_epoch=STEPS, shuffle=True, verbose=0)
    return np.ravel(model.get_weights()[0]).tolist()


def wrong_dataset(root, path):
    """Train on another dataset than that of the checkpoint."""
    datasets = [adapter.PyDataset(stream(root), BATCH, fields=FIELDS, epochs=None) for _ in range(2)]
    checkpoint = adapter.Checkpoint(path, datasets[0])
    return refusal(make_model(), datasets[1], steps_per_epoch=3, callbacks=[checkpoint])


def without_steps(root, path):
    """Train on a dataset without end, without saying how long."""
    dataset = adapter.PyDataset(stream(root), BATCH, fields=FIELDS, epochs=None)
    return refusal(make_model(), dataset, callbacks=[adapter.Checkpoint(path, dataset)])


def fit_finite(root):
    """Train on a dataset that ends, which Keras shuffles: of many batches, evaluated before, and of two."""
    model = make_model()
    found = []
    for size in (BATCH, RECORDS // 2):
        dataset = adapter.PyDataset(stream(root), size, fields=FIELDS, epochs=1)
        found.append(refusal(model, dataset))
        model.evaluate(dataset, verbose=0)
        found += [refusal(model, dataset) for _ in range(5)]
    return found


def fit_finite_in_order(root):
    """Train on the batches of a dataset that ends, twice, as they come; and do so by hand."""
    model, by_hand = make_decaying_counter(), make_decaying_counter()
    dataset = adapter.PyDataset(few(root), BY, fields=counted, epochs=1)
    model.evaluate(dataset, verbose=0)
    model.fit(dataset, epochs=2, shuffle=False, verbose=0)
    for _ in range(2):
        for batch in few(root).batch(BY):
            by_hand.train_on_batch(*counted(batch))
    return [weights(model), weights(by_hand)]


def read_without_end(root):
    """Leave it open how many batches of a dataset that has no end are to be read; say what was read."""
    model = make_model()
    dataset = adapter.PyDataset(stream(root), BATCH, fields=FIELDS, epochs=None)
    calls = (model.fit, model.evaluate, model.predict)
    found = [refusal(model, dataset, call) for call in calls]
    assert not dataset.asked_for
    return [*found, refusal(model, dataset, steps_per_epoch=1, validation_data=dataset)]


def refusal(model, dataset, call=None, **options):
    try:
        (call or model.fit)(dataset, verbose=0, **options)
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
    dataset = adapter.PyDataset(stream(root), BATCH, fields=FIELDS, epochs=None)
    history = model.fit(dataset, epochs=3, steps_per_epoch=5, validation_data=finite, verbose=0)
    found.append(model.evaluate(data["x"], data["y"], verbose=0))
    return {
        "losses": found[:2],
        "validated": [history.history["val_loss"][-1], found[2]],
        "predicted": predicted,
        "expected": expected,
    }


def evaluate_shards(root):
    """Put a loss and a metric together from those of seven shards, uneven and padded; and of all at once."""
    model = make_model()
    model.compile("adam", "mse", weighted_metrics=["mae"])

    def weighted(batch):
        return batch["x"], batch["y"], np.where(batch["is_padding"], 0.0, 1.0)

    found = {}
    for name, options in (("uneven", {}), ("padded", {"pad_shard_remainder": True})):
        totals = np.zeros(2)
        for rank in range(7):
            shard = stream(root, shard_rank=rank, num_shards=7, **options)
            part = adapter.PyDataset(shard, 5, fields=weighted, padding_field="is_padding", epochs=1)
            records = sum(weight.sum() for _, _, weight in part)
            means = model.evaluate(part, verbose=0, return_dict=True)
            totals += [means["loss"] * len(shard), means["mae"] * records]
        found[name] = (totals / RECORDS).tolist()
    whole = adapter.PyDataset(stream(root), 5, fields=FIELDS, epochs=1)
    means = model.evaluate(whole, verbose=0, return_dict=True)
    return {**found, "whole": [means["loss"], means["mae"]]}


class Fail(KillAfter):
    """Raise an error instead."""

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise InterruptedError


def backed_up(root, folder, save_freq):
    """Train two epochs with Keras's own callback, stopped after six batches; count as `count` does."""
    said = []
    for others in ([Fail(6)], []):
        model = make_counter(is_built=True)
        dataset = adapter.PyDataset(stream(root), BATCH, fields=counted, epochs=None)
        validation = adapter.PyDataset(few(root), BY, fields=counted, epochs=1)
        backup = keras.callbacks.BackupAndRestore(folder, save_freq=save_freq)
        options = {"callbacks": [backup, *others], "steps_per_epoch": STEPS, "epochs": 2, "verbose": 0}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                model.fit(dataset, validation_data=validation, **options)
            except InterruptedError:
                pass
        said += [str(one.message) for one in caught if "BackupAndRestore" in str(one.message)]
    return {
        "counts": np.ravel(model.get_weights()[0]).tolist(),
        "twice": stream(root).indices()[: 4 * BATCH].tolist(),
        "said": said,
    }


class KeepEach(adapter.Checkpoint):
    """Keep a copy of every checkpoint that is saved."""

    copies = 0

    def save(self):
        super().save()
        self.copies += 1
        shutil.copy(self._path, self._path.with_name(f"{self.copies}.keras"))


FEW, BY = 11, 4  # records, in batches of 4, 4 and 3


def few(root, **options):
    return yogadl.open_storage(root).fetch("points", "1")[:FEW].stream(**SHUFFLE, **options)


def counted(batch):
    """Return a batch for `make_counter`: a record's trainings are counted in a weight of its own."""
    return batch["id"][:, None], np.full((len(batch["id"]), 1), 1e9, np.float32)


def make_decaying_counter():
    """Return a model as of `make_counter` whose weights decay at each step: they say in which order, too."""
    model = make_counter(True)
    optimizer = keras.optimizers.SGD(1.0, weight_decay=0.1)
    model.compile(optimizer, keras.losses.MeanAbsoluteError(reduction="sum"), run_eagerly=True)
    return model


def train_few(root, path, drop, kind=adapter.Checkpoint):
    """Train three epochs, from where the checkpoint stands."""
    dataset = adapter.PyDataset(few(root), BY, fields=counted, drop_remainder=drop, epochs=None)
    checkpoint = kind(path, dataset, every_batches=1)
    model = checkpoint.restore(make_decaying_counter)
    begun = [checkpoint.epoch, checkpoint.step]
    for part in checkpoint.parts(3):
        model.fit(dataset, callbacks=[checkpoint], verbose=0, **part)
    return {"begun": begun, "steps": dataset.steps_per_epoch, "weights": weights(model)}


def train_few_by_hand(root, saved, done, drop):
    """Train without fit: on so many batches, and on what a loop that counts its epochs has left then."""
    model = make_decaying_counter()
    batches = iter(few(root).batch(BY, saved, epochs=3))
    for _ in range(done):
        model.train_on_batch(*counted(next(batches)))
    cursor = batches.state_dict()
    loader = few(root, cursor=cursor).batch(BY, drop)
    for batch in (batch for _ in range(cursor["epoch"], 3) for batch in loader):
        model.train_on_batch(*counted(batch))
    return weights(model)


def stops(root, folder):
    """Train once, then again from each checkpoint that was saved, with and without a last short batch."""
    found = []
    for saved, drops in ((False, (False, True)), (True, (True,))):
        kept = Path(folder, f"kept-{saved}")
        kept.mkdir(parents=True)
        steps = train_few(root, kept / "whole.keras", saved, KeepEach)["steps"]
        for number in range(3 * (steps + 1)):  # one a batch, and one more where an epoch ends
            epoch, within = divmod(number, steps + 1)
            done = epoch * steps + min(within + 1, steps)
            for drop in drops:
                path = kept / f"{number}-{drop}.keras"
                shutil.copy(kept / f"{number + 1}.keras", path)
                again = train_few(root, path, drop)
                expected = train_few_by_hand(root, saved, done, drop)
                found.append({"saved": saved, "done": done, "drop": drop, "expected": expected, **again})
    return found


TASKS = {
    f.__name__: f
    for f in (
        train,
        by_hand,
        fitted,
        count,
        evaluate,
        evaluate_shards,
        fit_finite,
        fit_finite_in_order,
        read_without_end,
        wrong_dataset,
        without_steps,
        backed_up,
        stops,
    )
}

if __name__ == "__main__":
    print(json.dumps({name: TASKS[task](**given) for name, task, given in json.loads(sys.argv[1])}))
