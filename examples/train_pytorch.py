"""Train on handwritten digits with PyTorch, on any number of ranks; stopped, it goes on where it was.

The global batch is the same for any number of ranks, so each step sees the same records on one, two or three.
"""

import argparse
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import yogadl
from yogadl.adapters import torch as yogadl_torch

GLOBAL_BATCH = 96  # shared out among the ranks


def open_digits(folder: str) -> yogadl.DataRef:
    """Return the data set: whoever comes first builds its cache, the others wait for that."""
    storage = yogadl.open_storage(folder)

    @storage.cacheable("digits", "1")
    def digits() -> dict[str, np.ndarray]:
        found = load_digits()
        return {"image": found.images.astype(np.uint8), "label": found.target.astype(np.int32)}

    return digits()


def to_floats(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch's pixels and its labels, as PyTorch wants them."""
    return batch["image"].flatten(1).float() / 16, batch["label"].long()


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint: after a kill there is the old one or the new one, and never half of one."""
    temporary = path.with_suffix(".new")
    torch.save(state, temporary)
    os.replace(temporary, path)


def evaluate(model: torch.nn.Module, held_out: yogadl.DataRef) -> tuple[float, float]:
    """Return loss and accuracy over what is not trained on; any number of ranks counts each record once."""
    sums = torch.zeros(2)
    with torch.no_grad():
        for batch in yogadl_torch.make_dataloader(held_out.stream(**yogadl_torch.shards()), 64):
            pixels, labels = to_floats(batch)
            found = model(pixels)
            sums[0] += cross_entropy(found, labels, reduction="sum")
            sums[1] += (found.argmax(1) == labels).sum()
    dist.all_reduce(sums)
    loss, accuracy = (sums / len(held_out)).tolist()
    return loss, accuracy


def train(args: argparse.Namespace, stopping: threading.Event) -> None:
    """Train until so many epochs are done, or until it is asked to stop."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    training, held_out = open_digits(args.data).split(0.85, seed=1)
    stream = training.stream(shuffle=True, shuffle_seed=7, drop_shard_remainder=True, **yogadl_torch.shards())
    loader = yogadl_torch.make_dataloader(stream, GLOBAL_BATCH // ranks, drop_remainder=True)

    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parts = {"model": layers, "optimizer": optimizer, "data": loader}

    checkpoint = args.checkpoint / "checkpoint.pt"
    if checkpoint.exists():
        for name, state in torch.load(checkpoint).items():
            parts[name].load_state_dict(state)
    at = loader.state_dict()
    if rank == 0:
        print(f"starts at epoch {at['epoch']}, record {at['position']}", flush=True)
    for epoch in range(at["epoch"], args.epochs):
        for batch in loader:
            pixels, labels = to_floats(batch)
            optimizer.zero_grad()
            cross_entropy(model(pixels), labels).backward()
            optimizer.step()
            is_stopping = torch.tensor(stopping.is_set())
            dist.all_reduce(is_stopping, dist.ReduceOp.MAX)  # so that all ranks stop at the same step
            steps = loader.state_dict()["position"] // GLOBAL_BATCH  # of this epoch, on all ranks
            if rank == 0 and (is_stopping or steps % args.save_every == 0):
                save(checkpoint, {name: part.state_dict() for name, part in parts.items()})
            if is_stopping:
                return
        loss, accuracy = evaluate(layers, held_out)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
    if rank == 0:
        save(checkpoint, {name: part.state_dict() for name, part in parts.items()})
        np.savez(args.checkpoint / "weights.npz", *[weight.detach() for weight in layers.parameters()])


def main() -> None:
    """Take up the place that torchrun gives this process, and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="the folder of the caches")
    parser.add_argument("--checkpoint", required=True, type=Path, help="the folder of this run")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=4, help="steps from one checkpoint to the next")
    args = parser.parse_args()
    args.checkpoint.mkdir(parents=True, exist_ok=True)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())  # saves at the next step, and ends
    dist.init_process_group("gloo")
    train(args, stopping)
    dist.barrier()  # nobody leaves while another saves, or while Gloo still has a tensor of the last step
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
