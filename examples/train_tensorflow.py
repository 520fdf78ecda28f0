"""Train on handwritten digits with tf.distribute, on any number of workers; stopped, it goes on where it was.

Each worker reads its own share of the global batch, which is the same for any number of them.
"""

import argparse
import json
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import yogadl
from yogadl.adapters import tensorflow as yogadl_tf

GLOBAL_BATCH = 96  # shared out among the workers


def open_digits(folder: str) -> yogadl.DataRef:
    """Return the data set: whoever comes first builds its cache, the others wait for that."""
    storage = yogadl.open_storage(folder)

    @storage.cacheable("digits", "1")
    def digits() -> dict[str, np.ndarray]:
        found = load_digits()
        return {"image": found.images.astype(np.uint8), "label": found.target.astype(np.int32)}

    return digits()


def losses(model: tf.Module, batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return each record's loss, and whether the model is right."""
    scores = model(tf.reshape(tf.cast(batch["image"], tf.float32), [-1, 64]) / 16)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], scores)
    return loss, tf.cast(tf.argmax(scores, 1, tf.int32) == batch["label"], tf.float32)


def evaluate(model: tf.Module, held_out: yogadl.DataRef) -> tuple[float, float]:
    """Return loss and accuracy over what is not trained on: so little that one worker reads all of it."""
    (batch,) = yogadl_tf.make_tf_dataset(held_out.stream(), batch_size=len(held_out))
    loss, is_right = losses(model, batch)
    return float(tf.reduce_mean(loss)), float(tf.reduce_mean(is_right))


class Cursor(tf.train.experimental.PythonState):
    """The place in the data, as part of a checkpoint of TensorFlow's."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value

    def serialize(self) -> str:
        """Return what is saved."""
        return json.dumps(self.value)

    def deserialize(self, text: bytes) -> None:
        """Take up what was saved."""
        self.value = json.loads(text)


def train(args: argparse.Namespace, strategy: tf.distribute.Strategy, stopping: threading.Event) -> None:
    """Train until so many epochs are done, or until it is asked to stop."""
    is_first = not strategy.cluster_resolver.task_id
    training, held_out = open_digits(args.data).split(0.85, seed=1)
    order = training.stream(shuffle=True, shuffle_seed=7)
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(10)]
        model = tf.keras.Sequential([tf.keras.Input([64]), *layers])
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
    cursor = Cursor(order.state_dict())
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, cursor=cursor)
    manager = tf.train.CheckpointManager(checkpoint, args.checkpoint, max_to_keep=2)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    start = cursor.value
    if is_first:
        print(f"starts at epoch {start['epoch']}, record {start['position']}", flush=True)

    def share(context: tf.distribute.InputContext) -> tf.data.Dataset:
        rank, ranks = context.input_pipeline_id, context.num_input_pipelines
        shard = {"shard_rank": rank, "num_shards": ranks, "drop_shard_remainder": True}
        stream = training.stream(shuffle=True, shuffle_seed=7, cursor=start, **shard)
        size = context.get_per_replica_batch_size(GLOBAL_BATCH)
        dataset = yogadl_tf.make_tf_dataset(stream, size, drop_remainder=True, skip_finished_epoch=True)
        return dataset.repeat()

    def update(batch: dict[str, tf.Tensor], stop: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(losses(model, batch)[0]) / GLOBAL_BATCH
        gradients = tape.gradient(loss, model.trainable_variables)  # apply adds up those of all workers
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(stop))

    run = tf.function(lambda batch, stop: strategy.run(update, args=(batch, stop)))
    batches = iter(strategy.distribute_datasets_from_function(share))
    steps_per_epoch = len(training) // GLOBAL_BATCH
    first = start["epoch"] * steps_per_epoch + start["position"] // GLOBAL_BATCH
    for step in range(first, args.epochs * steps_per_epoch):
        is_stopping = float(run(next(batches), tf.constant(float(stopping.is_set())))) > 0  # in any worker
        epoch, steps = step // steps_per_epoch, step % steps_per_epoch + 1  # done of this epoch
        is_end = step + 1 == args.epochs * steps_per_epoch
        if is_first and (is_stopping or is_end or steps % args.save_every == 0):
            cursor.value = order.cursor(delivered=steps * GLOBAL_BATCH, epoch=epoch)
            manager.save()
        if is_stopping:
            return
        if is_first and steps == steps_per_epoch:
            loss, accuracy = evaluate(model, held_out)
            print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
    if is_first:
        np.savez(args.checkpoint / "weights.npz", *model.get_weights())


def main() -> None:
    """Take up the place that TF_CONFIG gives this process, and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="the folder of the caches")
    parser.add_argument("--checkpoint", required=True, type=Path, help="the folder of this run")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=4, help="steps from one checkpoint to the next")
    args = parser.parse_args()
    args.checkpoint.mkdir(parents=True, exist_ok=True)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # first of all: it meets the other workers
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())  # saves at the next step, and ends
    train(args, strategy, stopping)


if __name__ == "__main__":
    main()
