"""Run a trainer's script out of docs/howto/pytorch.md, one process a rank; see `test_torch_trainers.py`.

Usage: torch_trainers.py TRAINER FOLDER [STOP]. Appends the ids of the batches that it trains on to
FOLDER/rank-<n>, and dies where it is to train on the batch number STOP. Before that the ranks evaluate. A
single rank that comes to its end writes FOLDER/weights.npz.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pages
import torch

import yogadl
from yogadl.adapters import torch as yogadl_torch

TRAINER, FOLDER, *STOP = sys.argv[1:]
FOLDER = Path(FOLDER)


def watched(model):
    """Return the page's model as one that notes what it is trained on: a record's id is its first pixel."""

    class Watched(model):
        count = 0

        def forward(self, image, label):
            if self.training:
                if STOP and self.count == int(STOP[0]):
                    os._exit(3)
                self.count += 1
                with (FOLDER / f"rank-{os.environ.get('RANK', '0')}").open("a") as file:
                    file.write("".join(f"{int(number)}\n" for number in image[:, 0, 0]))
            return super().forward(image, label)

    return Watched


os.chdir(FOLDER)
Path(f"rank-{os.environ.get('RANK', '0')}").touch()  # empty if it dies at its first step
ref = yogadl.open_storage("caches").fetch("digits", "1")
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
common = pages.blocks("howto/pytorch.md", "**Evaluating**", "All of them train this model")
names = pages.run("howto/pytorch.md", common, torch=torch, yogadl_torch=yogadl_torch, ref=ref, Path=Path)
names["Classifier"] = watched(names["Classifier"])
torch.manual_seed(0)
names = pages.run("howto/pytorch.md", pages.blocks("howto/pytorch.md", f"**{TRAINER}.**"), **names)
if "RANK" not in os.environ:
    model = names["model"] if TRAINER == "Accelerate" else names["trainer"].model
    np.savez("weights.npz", *[weight.detach().numpy() for weight in model.parameters()])
if torch.distributed.is_initialized():
    torch.distributed.barrier()  # Gloo may still have a tensor of the last step
    torch.distributed.destroy_process_group()
