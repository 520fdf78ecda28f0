"""Train on handwritten digits with Keras's fit, on any backend; stopped, it goes on where it was.

It is one process: for several see what the backend has, train_tensorflow.py for one.
"""

import argparse
import signal
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits

import yogadl
from yogadl.adapters import keras as yogadl_keras

BATCH = 96


def open_digits(folder: str) -> yogadl.DataRef:
    """Return the data set: whoever comes first builds its cache, the others wait for that."""
    storage = yogadl.open_storage(folder)

    @storage.cacheable("digits", "1")
    def digits() -> dict[str, np.ndarray]:
        found = load_digits()
        return {"image": found.images.astype(np.uint8), "label": found.target.astype(np.int32)}

    return digits()


def x_and_y(batch: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return what Keras calls x and y."""
    return batch["image"].reshape(-1, 64).astype(np.float32) / 16, batch["label"]


def make_model() -> keras.Model:
    """Return a small network, the same each time."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    model = keras.Sequential([keras.Input([64]), *layers])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class Progress(keras.callbacks.Callback):
    """Print what each epoch has brought, and end the training at the step after SIGTERM."""

    def __init__(self, stopping: threading.Event) -> None:
        super().__init__()
        self.stopping = stopping

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop within the epoch; the checkpoint is saved then."""
        if self.stopping.is_set():
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Print loss and accuracy of what is not trained on."""
        if not self.model.stop_training:
            found = f"loss {logs['val_loss']:.4f}, accuracy {logs['val_accuracy']:.4f}"
            print(f"epoch {epoch}: {found}", flush=True)


def train(args: argparse.Namespace, stopping: threading.Event) -> None:
    """Train until so many epochs are done, or until it is asked to stop."""
    training, held_out = open_digits(args.data).split(0.85, seed=1)
    stream = training.stream(shuffle=True, shuffle_seed=7)
    dataset = yogadl_keras.PyDataset(stream, BATCH, fields=x_and_y, drop_remainder=True, epochs=None)
    validation = yogadl_keras.PyDataset(held_out.stream(), 64, fields=x_and_y, epochs=1)
    checkpoint = yogadl_keras.Checkpoint(
        args.checkpoint / "model.keras", dataset, every_batches=args.save_every
    )
    model = checkpoint.restore(make_model)
    at = checkpoint.cursor()
    print(f"starts at epoch {at['epoch']}, record {at['position']}", flush=True)
    callbacks = [checkpoint, Progress(stopping)]
    for part in checkpoint.parts(epochs=args.epochs):
        model.fit(dataset, validation_data=validation, callbacks=callbacks, shuffle=False, verbose=0, **part)
    if checkpoint.epoch == args.epochs:
        np.savez(args.checkpoint / "weights.npz", *model.get_weights())


def main() -> None:
    """Train in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="the folder of the caches")
    parser.add_argument("--checkpoint", required=True, type=Path, help="the folder of this run")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=4, help="steps from one checkpoint to the next")
    args = parser.parse_args()
    args.checkpoint.mkdir(parents=True, exist_ok=True)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())  # saves at the next step, and ends
    train(args, stopping)


if __name__ == "__main__":
    main()
