"""What workers of tests call: a module that imports little, since each of them imports it."""

import os

import numpy as np


def doubled(record):
    return {"id": record["id"], "x": record["x"] * 2, "text": record["text"]}


def noisy(record, rng):
    return {"id": record["id"], "x": record["x"] + rng.random(2, np.float32), "text": record["text"]}


def batch_noise(batch, rng):
    return {**batch, "noise": rng.random(len(batch["id"]))}


def summed(found):
    return {"ids": [int(record["id"]) for record in found], "pads": [record.get("pad") for record in found]}


def with_pid(batch):
    return {**batch, "pid": os.getpid()}


def note_pid(path, batch):
    """Add a character to a file, and return the batch with this process's number."""
    with path.open("a") as file:
        file.write(".")
    return with_pid(batch)


def half_x(batch):
    return {**batch, "half": batch["x"] / 2}
