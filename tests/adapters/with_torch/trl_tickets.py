"""Train GRPO on prompts that come as tickets, by the code of a page.

Usage: trl_tickets.py PAGE STEPS PER_GENERATION [DIES_AT], in a folder whose `runs` get the checkpoints.
Appends to `used` at each step: the step, the places whose tickets it ended, and which of these had failed.
"""

import json
import os
import sys
from pathlib import Path

import pages
from trl import GRPOConfig
from trl_trainers import PROMPTS, model, tokenizer


def fails_at_first():
    """Return a function that scores a completion; the rollouts with these numbers fail."""
    count = 0

    def score(text):
        nonlocal count
        count += 1
        return None if count in (6, 11) else float(len(text) % 7)

    return score


def train(name, steps, per_generation, dies_at=None):
    page = pages.run(name, pages.blocks(name))

    class Noted(page["Prompts"]):
        def on_step_end(self, args, state, control, **given):
            if state.global_step == dies_at:
                os._exit(3)
            opened, failed = [ticket.place for ticket in self.opened], set(self.failed)
            super().on_step_end(args, state, control, **given)
            ended = opened[: len(opened) - len(self.opened)]
            with Path("used").open("a") as file:
                line = [state.global_step, ended, [place for place in ended if place in failed]]
                file.write(json.dumps(line) + "\n")

    page["Prompts"] = Noted
    arguments = GRPOConfig(
        "runs", max_steps=steps, per_device_train_batch_size=4, gradient_accumulation_steps=1,
        num_generations=2, steps_per_generation=per_generation, max_completion_length=3,
        shuffle_dataset=False, ignore_data_skip=True, save_steps=1, save_total_limit=2, report_to=[],
        use_cpu=True, bf16=False, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    page["train"](PROMPTS, arguments, fails_at_first(), model=model(), processing_class=tokenizer())


if __name__ == "__main__":
    train(sys.argv[1], *map(int, sys.argv[2:]))
