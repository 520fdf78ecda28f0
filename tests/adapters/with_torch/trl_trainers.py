"""Train with exact Trainers, most of them trl's.

Usage: trl_trainers.py KIND [STEP], in a folder whose `runs` get the checkpoints. Writes `weights.npz`. Dies
where a step is to begin, unless it has resumed.
"""

import os
import sys

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)  # fmt: skip
from transformers.utils import logging
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)  # fmt: skip

import yogadl
from yogadl.adapters.torch import make_dataloader
from yogadl.adapters.transformers import exact

logging.set_verbosity_error()
RECORDS, BATCH, EPOCHS = 7, 2, 2
STEPS = 4  # in an epoch
WORDS = [f"w{number}" for number in range(40)]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ' ' + message['content'] + ' ' }}"
    "{% if message['role'] == 'assistant' %}{{ '<eos> ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
)


def tokenizer():
    words = ["<pad>", "<eos>", "<unk>", "user", "assistant", *WORDS]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    fast.chat_template = TEMPLATE
    return fast


def model(kind=LlamaForCausalLM, **options):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, attention_dropout=0.1, pad_token_id=0, bos_token_id=None, eos_token_id=1,
        **options,
    )  # fmt: skip
    return kind(config)


def words(number, count):
    drawn = np.random.default_rng([number, count]).choice(WORDS, count)
    return " ".join(drawn)


def ids(number, count):
    return np.random.default_rng([number, count]).integers(5, 45, count)


CHATS = yogadl.from_source(
    [
        {
            "messages": [
                {"role": "user", "content": words(number, 3)},
                {"role": "assistant", "content": words(number, 1 + number % 5)},
            ]
        }
        for number in range(RECORDS)
    ]
)
PAIRS = yogadl.from_source(
    [
        {"prompt": words(number, 3), "chosen": " " + words(number, 4), "rejected": " " + words(number, 2)}
        for number in range(RECORDS)
    ]
)
LABELLED = yogadl.from_source(
    [
        {"prompt": words(number, 3), "completion": " " + words(number, 4), "label": bool(number % 2)}
        for number in range(RECORDS)
    ]
)
PROMPTS = yogadl.from_source([{"prompt": words(number, 3)} for number in range(RECORDS)])
TOKENS = yogadl.from_source(
    [
        {"input_ids": ids(number, 4 + number % 5), "labels": ids(number, 4 + number % 5)}
        for number in range(RECORDS)
    ]
)
PAIRS_OF_TOKENS = yogadl.from_source(
    [
        {
            "prompt_ids": ids(number, 3),
            "chosen_ids": ids(number, 1 + number % 5),
            "rejected_ids": ids(number, 2),
        }
        for number in range(RECORDS)
    ]
)


def stream(ref):
    return ref.stream(shuffle=True, shuffle_seed=3)


def rows_of_one_length(batch):
    return {
        "position_ids": torch.arange(4).repeat(len(batch["labels"]), 1),
        "input_ids": torch.stack([torch.as_tensor(row[:4]) for row in batch["input_ids"]]),
        "labels": torch.stack([torch.as_tensor(row[:4]) for row in batch["labels"]]),
    }


def cut(record):
    return {name: values[:4] for name, values in record.items()}


def reward(completions, **_):
    return [float(len(text) % 7) for text in completions]


GRPO = {"num_generations": 2, "max_completion_length": 3, "num_iterations": 2, "temperature": 1.0}
KINDS = {
    "Trainer": (Trainer, TrainingArguments, lambda: stream(TOKENS).map(cut), {}),
    "SFT": (SFTTrainer, SFTConfig, lambda: CHATS, {}),
    "SFT of a stream": (SFTTrainer, SFTConfig, lambda: stream(TOKENS), {}),
    "SFT of a loader": (
        SFTTrainer,
        SFTConfig,
        lambda: make_dataloader(stream(TOKENS), BATCH, transform=rows_of_one_length),
        {},
    ),
    "DPO": (DPOTrainer, DPOConfig, lambda: PAIRS, {}),
    "DPO of a stream": (DPOTrainer, DPOConfig, lambda: stream(PAIRS_OF_TOKENS), {}),
    "KTO": (KTOTrainer, KTOConfig, lambda: LABELLED, {}),
    "Reward": (RewardTrainer, RewardConfig, lambda: PAIRS, {}),
    "GRPO": (GRPOTrainer, GRPOConfig, lambda: PROMPTS, GRPO),
    "GRPO of a stream": (GRPOTrainer, GRPOConfig, lambda: stream(PROMPTS), GRPO),
}


def train(folder, kind, resume=None, callbacks=(), **more):
    trainer, config, data, options = KINDS[kind]
    arguments = config(
        folder, num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, report_to=[], disable_tqdm=True,
        logging_strategy="no", use_cpu=True, bf16=False, save_steps=1, learning_rate=0.05, **options | more,
    )  # fmt: skip
    given = {"reward_funcs": reward} if trainer is GRPOTrainer else {}
    given |= {"ref_model": model()} if trainer in (DPOTrainer, KTOTrainer) else {}
    net = model(LlamaForSequenceClassification, num_labels=1) if trainer is RewardTrainer else model()
    made = exact(trainer)(
        net,
        args=arguments,
        train_dataset=data(),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
        **given,
    )
    made.train(resume_from_checkpoint=resume)
    return made


def weights(made):
    return [weight.detach().clone() for weight in made.model.parameters()]


class DiesAt(TrainerCallback):
    """Ends this process where a step is to begin, unless the Trainer has resumed."""

    def __init__(self, step):
        self.step, self.begun = step, None

    def on_step_begin(self, args, state, control, **_):
        self.begun = state.global_step if self.begun is None else self.begun
        if (self.begun, state.global_step) == (0, self.step):
            os._exit(3)


if __name__ == "__main__":
    KIND, *STEP = sys.argv[1:]
    MADE = train("runs", KIND, True, [DiesAt(int(step)) for step in STEP], save_total_limit=2)
    np.savez("weights.npz", *[weight.numpy() for weight in weights(MADE)])
