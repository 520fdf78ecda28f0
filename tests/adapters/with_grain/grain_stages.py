"""Grain's kinds of transformations, and what else the tests of its adapter share.

A module of its own, and classes, because worker processes import what they are to run.
"""

import grain
import numpy as np

import yogadl

NO_THREADS = grain.ReadOptions(0, 0)


def numbered(count):
    """Return records whose ids are their indices."""
    rows = np.arange(count)
    return yogadl.from_source({"id": rows, "x": rows[:, None] + np.linspace(0, 0.5, 3)})


def golden(stream, epochs=1):
    """Return the indices of a stream's first epochs, from where it begins."""
    first = stream.start.epoch
    return [int(i) for epoch in range(first, first + epochs) for i in stream.indices(epoch)]


def ids(elements):
    """Return the ids of records or batches, in order."""
    return [int(number) for element in elements for number in np.atleast_1d(element["id"])]


def sizes(batches):
    return [len(batch["id"]) for batch in batches]


class Double(grain.transforms.Map):
    def map(self, element):
        return {**element, "x": 2 * element["x"]}


class Noise(grain.transforms.RandomMap):
    def random_map(self, element, rng):
        return {**element, "noise": rng.random()}


class OddOnly(grain.transforms.Filter):
    def filter(self, element):
        return bool(element["id"] % 2)


class Twice(grain.experimental.FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, element):
        return [element, element]
