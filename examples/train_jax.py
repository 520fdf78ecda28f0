"""Train on handwritten digits with JAX, in one process or many; stopped, it goes on where it was.

A batch is one global array, whose rows lie on all devices: the same records on any number of them.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

import yogadl
from yogadl.adapters.jax import make_jax_iterator, shards

GLOBAL_BATCH = 96  # shared out among the devices


def open_digits(folder: str) -> yogadl.DataRef:
    """Return the data set: whoever comes first builds its cache, the others wait for that."""
    storage = yogadl.open_storage(folder)

    @storage.cacheable("digits", "1")
    def digits() -> dict[str, np.ndarray]:
        found = load_digits()
        return {"image": found.images.astype(np.uint8), "label": found.target.astype(np.int32)}

    return digits()


def first_weights() -> dict[str, np.ndarray]:
    """Return the weights of a small network, the same in every process."""
    random = np.random.default_rng(0)
    sizes = {"hidden": (64, 32), "output": (32, 10)}
    weights = {name: random.normal(0, size[0] ** -0.5, size) for name, size in sizes.items()}
    biases = {f"{name} bias": np.zeros(size[1]) for name, size in sizes.items()}
    return jax.tree.map(np.float32, weights | biases)


def log_odds(weights: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    """Return the log of the probability of each digit, for each image."""
    pixels = batch["image"].reshape(-1, 64).astype(np.float32) / 16
    hidden = jax.nn.relu(pixels @ weights["hidden"] + weights["hidden bias"])
    return jax.nn.log_softmax(hidden @ weights["output"] + weights["output bias"])


def losses(weights: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    """Return the loss of each record."""
    return -jax.numpy.take_along_axis(log_odds(weights, batch), batch["label"][:, None], 1)


@jax.jit
def update(state: dict[str, Any], batch: dict[str, Any]) -> dict[str, Any]:
    """Take a step of gradient descent, with momentum."""
    gradients = jax.grad(lambda weights: losses(weights, batch).mean())(state["weights"])
    momentum = jax.tree.map(lambda old, new: 0.9 * old + new, state["momentum"], gradients)
    weights = jax.tree.map(lambda old, step: old - 0.1 * step, state["weights"], momentum)
    return {"weights": weights, "momentum": momentum}


def evaluate(weights: dict[str, Any], held_out: yogadl.DataRef) -> tuple[float, float]:
    """Return loss and accuracy over what is not trained on; all processes together count each record once."""
    weights, sums = jax.device_get(weights), np.zeros(2, np.float32)
    for batch in make_jax_iterator(held_out.stream(**shards()), 64):
        is_right = log_odds(weights, batch).argmax(1) == batch["label"]
        sums += [losses(weights, batch).sum(), is_right.sum()]
    loss, accuracy = multihost_utils.process_allgather(sums).reshape(-1, 2).sum(0) / len(held_out)
    return float(loss), float(accuracy)


def train(args: argparse.Namespace, manager: ocp.CheckpointManager) -> None:
    """Train until so many epochs are done, or until it is asked to stop."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["data"], []))
    training, held_out = open_digits(args.data).split(0.85, seed=1)
    batches = make_jax_iterator(
        training.stream(shuffle=True, shuffle_seed=7), GLOBAL_BATCH, rows, epochs=None
    )
    weights = first_weights()
    momentum = jax.tree.map(np.zeros_like, weights)
    state = jax.device_put({"weights": weights, "momentum": momentum}, everywhere)

    if (latest := manager.latest_step()) is not None:
        wanted = {"model": ocp.args.StandardRestore(state), "data": ocp.args.JsonRestore()}
        restored = manager.restore(latest, args=ocp.args.Composite(**wanted))
        state = restored.model
        batches.load_state_dict(restored.data)
    at, is_first = batches.state_dict(), jax.process_index() == 0
    if is_first:
        print(f"starts at epoch {at['epoch']}, record {at['position']}", flush=True)

    steps_per_epoch = len(training) // GLOBAL_BATCH
    first = at["epoch"] * steps_per_epoch + at["position"] // GLOBAL_BATCH
    for step in range(first + 1, args.epochs * steps_per_epoch + 1):
        state = update(state, next(batches))
        at = batches.state_dict()
        steps = at["position"] // GLOBAL_BATCH  # of this epoch
        is_stopping = multihost_utils.reached_preemption_sync_point(step)  # by SIGTERM
        is_end = step == args.epochs * steps_per_epoch
        if is_stopping or is_end or steps % args.save_every == 0:
            parts = {"model": ocp.args.StandardSave(state), "data": ocp.args.JsonSave(at)}
            manager.save(step, args=ocp.args.Composite(**parts), force=True)
        if is_stopping:
            return
        if steps == steps_per_epoch:
            loss, accuracy = evaluate(state["weights"], held_out)
            if is_first:
                print(f"epoch {at['epoch']}: loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
    if is_first:
        np.savez(args.checkpoint / "weights.npz", **jax.device_get(state["weights"]))


def main() -> None:
    """Meet the other processes, and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="the folder of the caches")
    parser.add_argument("--checkpoint", required=True, type=Path, help="the folder of this run")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=4, help="steps from one checkpoint to the next")
    parser.add_argument("--coordinator", default="127.0.0.1:7000", help="where the processes meet")
    parser.add_argument("--processes", type=int, default=1, help="how many there are")
    parser.add_argument("--process", type=int, default=0, help="which of them this is")
    args = parser.parse_args()
    jax.distributed.initialize(args.coordinator, args.processes, args.process)
    folder = (args.checkpoint / "steps").absolute()
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    with ocp.CheckpointManager(folder, options=options) as manager:
        train(args, manager)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
