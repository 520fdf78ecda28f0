"""Train with Accelerate, Lightning or the HF Trainer: run by `test_torch_trainers.py`, one process a rank.

Usage: torch_trainers.py FRAMEWORK FOLDER STEPS [resume]. Appends the ids of its batches to FOLDER/rank-<n>.
"""

import os
import sys
from pathlib import Path

import torch

import yogadl
from yogadl.adapters import torch as yogadl_torch

FRAMEWORK, FOLDER, STEPS, *RESUME = sys.argv[1:]
FOLDER, STEPS = Path(FOLDER), int(STEPS)
BATCH = 4


def make_loader(workers=0):
    """Give this rank its share, and no framework a reason to share it out again."""
    ref = yogadl.open_storage(FOLDER / "caches").fetch("set", "1")
    stream = ref.stream(shuffle=True, shuffle_seed=3, pad_shard_remainder=True, **yogadl_torch.shards())
    return yogadl_torch.make_dataloader(stream, BATCH, workers, padding_field="is_padding")


def note(batch):
    with (FOLDER / f"rank-{os.environ.get('RANK', '0')}").open("a") as file:
        file.write("".join(f"{int(i)}\n" for i in batch["id"][~batch["is_padding"]]))


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(3, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = make_loader(workers=1)  # not prepared: its stream is this rank's already
    accelerator.register_for_checkpointing(loader)
    if RESUME:
        accelerator.load_state(FOLDER / "checkpoint")
    for number, batch in enumerate(loader, 1):
        note(batch)
        accelerator.backward(model(batch["x"].to(accelerator.device)).sum())
        optimizer.step()
        optimizer.zero_grad()
        if number == STEPS:
            break
    accelerator.save_state(FOLDER / "checkpoint")
    accelerator.end_training()


def lightning():
    from lightning import LightningModule, Trainer

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, number):
            note(batch)
            return self.layer(batch["x"]).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def train_dataloader(self):  # called once the ranks know each other; its state is in the checkpoint
            return make_loader(workers=1)

    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        max_steps=STEPS,
        use_distributed_sampler=False,  # the stream is this rank's already
        default_root_dir=FOLDER,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    path = FOLDER / "last.ckpt"
    trainer.fit(Model(), ckpt_path=path if RESUME else None)
    trainer.save_checkpoint(path)


def transformers():
    import json

    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, **batch):
            note(batch)
            return {"loss": self.layer(batch["x"]).sum()}

    class StreamTrainer(Trainer):
        def get_train_dataloader(self):  # as it is, not by way of accelerator.prepare
            return self.train_dataset

    class SaveCursor(TrainerCallback):
        def on_save(self, args, state, control, **_):
            if state.is_world_process_zero:  # all ranks have the same
                path = Path(args.output_dir, f"checkpoint-{state.global_step}", "cursor.json")
                path.write_text(json.dumps(loader.state_dict()))

    arguments = TrainingArguments(
        str(FOLDER / "run"),
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        save_steps=STEPS,
        ignore_data_skip=True,  # the cursor stands there already
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    loader = make_loader(workers=1)  # after the arguments, which start torch.distributed
    path = None
    if RESUME:
        path = max((FOLDER / "run").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
        loader.load_state_dict(json.loads((path / "cursor.json").read_text()))
    trainer = StreamTrainer(Model(), arguments, train_dataset=loader, callbacks=[SaveCursor()])
    trainer.train(resume_from_checkpoint=path and str(path))


{"accelerate": accelerate, "lightning": lightning, "transformers": transformers}[FRAMEWORK]()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
