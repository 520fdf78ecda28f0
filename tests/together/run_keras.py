"""Deliver the batches of a job as Keras's own `fit` trains on them, on its JAX backend."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from job import Job

from yogadl.adapters.keras import PyDataset


def deliver(job: Job) -> Iterator[tuple[list[int], dict]]:
    """Yield, a batch, the ids of its records and the cursor that stands right after it."""
    finite = PyDataset(job.stream(), job.batch_size, fields="id", epochs=job.epochs, prefetch=job.workers)
    steps = finite.num_batches
    if not steps:
        return
    is_uneven = job.ranks > 1 and not (job.drop_shard_remainder or job.pad_shard_remainder)
    if is_uneven:  # there are no endless ones of those
        fit = Fit(finite, shuffle=False)
    else:
        dataset = PyDataset(job.stream(), job.batch_size, fields="id", prefetch=job.workers, epochs=None)
        fit = Fit(dataset, steps_per_epoch=steps, shuffle=True)
    try:
        for _ in range(steps):
            ids, cursor = fit.next()
            yield job.ids_of({"id": ids}), cursor
    finally:
        fit.stop()


class Fit(threading.Thread):
    """A `fit` in a thread, which does a step whenever it is asked for one."""

    def __init__(self, dataset: PyDataset, **options: Any) -> None:
        super().__init__(daemon=True)
        self._dataset = dataset
        self._options = options
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.start()

    def next(self) -> tuple[np.ndarray, dict]:
        """Return what the next step trained on, and the cursor after it."""
        self._asked.put(True)
        found = self._done.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def stop(self) -> None:
        """Let `fit` return."""
        self._asked.put(False)
        self.join()

    def run(self) -> None:
        """Train: the model learns nothing, but says what it saw."""
        try:
            model = Onlooker()
            model.compile("sgd", run_eagerly=True)
            begin = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: self._wait(model))
            end = keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: self._hand_over(model, batch + 1)
            )
            model.fit(self._dataset, callbacks=[begin, end], verbose=0, **self._options)
        except Exception as error:  # noqa: BLE001  (whoever waits for the batch raises it)
            self._done.put(error)

    def _wait(self, model: "Onlooker") -> None:
        model.stop_training = not self._asked.get()

    def _hand_over(self, model: "Onlooker", consumed: int) -> None:
        if not model.stop_training:
            self._done.put((model.seen, self._dataset.cursor(consumed)))


class Onlooker(keras.Model):
    """A model that notes the ids which it is trained on."""

    def call(self, ids: Any) -> Any:
        return ids

    def train_step(self, state: Any, data: Any) -> Any:  # as Keras's trainer for JAX calls it
        self.seen = np.asarray(data[0])
        return {}, state
