"""Train with an exact Trainer, trl's for SFT and DPO, one process a rank; see `test_transformers_ranks.py`.

Usage: exact_ranks.py DATA FOLDER [STOP]. Appends the ids of its batches to FOLDER/rank-<n>, and dies
where it is to train on the batch number STOP.
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
import trl_trainers
from transformers import Trainer, TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

import yogadl
from yogadl.adapters.transformers import exact

DATA, FOLDER, *STOP = sys.argv[1:]


noted = 0


def note(ids):
    """Note the ids of a batch of this rank; die if it is the one."""
    global noted  # noqa: PLW0603
    if STOP and noted == int(STOP[0]):
        os._exit(3)
    noted += 1
    with Path(FOLDER, f"rank-{os.environ.get('RANK', '0')}").open("a") as file:
        file.write("".join(f"{int(number)}\n" for number in ids))


class Noting(torch.nn.Module):
    """A model that notes what it is trained on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, id):
        note(id)
        return {"loss": self.layer(id[:, None].float() / 50).square().mean()}


def noting_llama():
    """Return a language model that does so: a record's id is its first token, less 5."""
    model = trl_trainers.model()

    def note_tokens(_, given):
        (tokens,) = given
        rows = len(tokens) // 2 if DATA == "DPO" else len(tokens)  # the rejected come after the chosen
        note(tokens[:rows, 0] - 5)

    model.get_input_embeddings().register_forward_pre_hook(note_tokens)
    return model


def tokens(row):
    first = [5 + row["id"]]
    if DATA == "DPO":
        return {
            "prompt_ids": np.array([*first, 6]),
            "chosen_ids": np.array([7]),
            "rejected_ids": np.array([8]),
        }
    return {"input_ids": np.array([*first, 6, 7]), "labels": np.array([*first, 6, 7])}


trainer, config = {"SFT": (SFTTrainer, SFTConfig), "DPO": (DPOTrainer, DPOConfig)}.get(
    DATA, (Trainer, TrainingArguments)
)
arguments = config(
    Path(FOLDER, "runs"),
    num_train_epochs=3,
    per_device_train_batch_size=2,
    save_steps=1,
    report_to=[],
    learning_rate=0.1,
    disable_tqdm=True,
    use_cpu=True,
    bf16=False,
    remove_unused_columns=False,
)
ref = yogadl.open_storage(Path(FOLDER, "caches")).fetch("numbers", "1")
data = ref if DATA == "reference" else ref.stream(shuffle=True, shuffle_seed=7)
if trainer is Trainer:
    more = {"model": Noting()}
else:
    data = data.map(tokens)
    more = {"model": noting_llama(), "processing_class": trl_trainers.tokenizer()}
    more |= {"ref_model": trl_trainers.model()} if trainer is DPOTrainer else {}
trainer = exact(trainer)(args=arguments, train_dataset=data, **more)
trainer.train(resume_from_checkpoint=True)
print(f"epoch {trainer.state.epoch}, step {trainer.state.global_step} of {trainer.state.max_steps}")
if torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
