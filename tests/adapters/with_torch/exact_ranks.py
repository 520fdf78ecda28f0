"""Train with an exact Trainer, one process a rank; see `test_transformers_ranks.py`.

Usage: exact_ranks.py DATA FOLDER [STOP]. Appends the ids of its batches to FOLDER/rank-<n>, and dies
where it is to train on the batch number STOP.
"""

import os
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

import yogadl
from yogadl.adapters.transformers import exact

DATA, FOLDER, *STOP = sys.argv[1:]


class Noting(torch.nn.Module):
    """A model that notes what it is trained on, and dies."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)
        self.count = 0

    def forward(self, id):
        if STOP and self.count == int(STOP[0]):
            os._exit(3)
        self.count += 1
        with Path(FOLDER, f"rank-{os.environ.get('RANK', '0')}").open("a") as file:
            file.write("".join(f"{int(number)}\n" for number in id))
        return {"loss": self.layer(id[:, None].float() / 50).square().mean()}


arguments = TrainingArguments(
    Path(FOLDER, "runs"),
    num_train_epochs=3,
    per_device_train_batch_size=2,
    save_steps=1,
    report_to=[],
    learning_rate=0.1,
    disable_tqdm=True,
    remove_unused_columns=False,
)
ref = yogadl.open_storage(Path(FOLDER, "caches")).fetch("numbers", "1")
data = ref if DATA == "reference" else ref.stream(shuffle=True, shuffle_seed=7)
trainer = exact(Trainer)(Noting(), arguments, train_dataset=data)
trainer.train(resume_from_checkpoint=True)
print(f"epoch {trainer.state.epoch}, step {trainer.state.global_step} of {trainer.state.max_steps}")
if torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
