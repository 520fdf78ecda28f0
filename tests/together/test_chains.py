"""A run that is stopped again and again, and goes on elsewhere each time, reads each record exactly once.

Elsewhere: under another framework, on another number of ranks, in other batches, with other workers.
"""

import dataclasses
import functools
import itertools
import json
import random

import numpy as np
import pytest
from job import PADDING, SIZES, Job, documents_of
from soak import few_or_many
from trainers import FRAMEWORKS, Stop

EPOCHS = 2
LEGS = 40  # then one rank reads the rest
ALL_TOKENS = {size: np.concatenate([one["tokens"] for one in documents_of(size)]) for size in SIZES}
KINDS = ("leave", "leave", "leave", "kill", "kill running")


def drawn(dice, cursor):
    """Choose who goes on from a cursor, in which way, and where it stops."""
    ranks = dice.randint(1, 5)
    options = {"ranks": ranks, "batch_size": dice.choice([1, 3, 8, 31]), "workers": dice.choice([0, 0, 2])}
    # Two epochs in one run, where the shards stay in step.
    can_cross = cursor["position"] % ranks == 0 and cursor["records"] % ranks == 0
    can_cross = can_cross and "skip_ranges" not in cursor
    options["epochs"] = dice.randint(1, 2) if can_cross else 1
    stop = Stop(dice.choice([0, 1, 2, 3, 5, 9, None]), dice.choice(KINDS))
    return dice.choice(FRAMEWORKS), options, stop


def mostly_left(dice, made, framework, options, stop):
    """Return a leg whose processes are seldom killed, and whose batches are those of what is made."""
    options = options | ({"batch_size": None} if made in ("bucketed", "grouped") else {})
    return framework, options, stop if dice.random() < 0.1 else Stop(stop.steps)


def steps_of(delivered):
    """Yield, for each batch that all ranks have, the ids of each rank and the cursor that all have."""
    count = min([len(one.batches) for one in delivered if not one.is_finished], default=None)
    for step in itertools.zip_longest(*[one.batches[:count] for one in delivered]):
        cursors = [batch[1] for batch in step if batch is not None]
        assert all(cursor == cursors[0] for cursor in cursors), "the ranks are not in step"
        yield [[] if batch is None else batch[0] for batch in step], cursors[0]


def rows(columns):
    """Return the ids of all ranks in the order of their positions."""
    return [index for row in itertools.zip_longest(*columns) for index in row if index is not None]


class Run:
    """A run over some epochs that goes on and on: checks what every leg of it delivers."""

    def __init__(self, trainers, start):
        self.trainers, self.start = trainers, start
        self.stream = start.stream()
        self.cursor = self.stream.cursor(0)
        self.size = self.cursor["records"]
        self.seen = {}  # the ids of each epoch, in the order of their positions
        self.wanted = functools.cache(start.ids)
        self.story = []

    def go_on(self, framework, options, stop):
        """Read on up to the stop; what all ranks had by then must be what comes next in the order."""
        self.story.append((framework, options, stop))
        jobs = [
            dataclasses.replace(self.start, **options, rank=rank, cursor=self.cursor)
            for rank in range(options["ranks"])
        ]
        for columns, cursor in steps_of(self.trainers.run(framework, jobs, stop)):
            epoch, position = cursor["epoch"], cursor["position"]
            self.seen.setdefault(epoch, []).extend(rows(columns))
            kept = len(self.start.kept(0, position))
            assert self.seen[epoch] == self.wanted(epoch)[:kept], self.story
            self.cursor = json.loads(json.dumps(cursor))
        if self.cursor["position"] == self.size:  # there is nothing more in this epoch
            self.cursor = self.stream.cursor(0, epoch=self.cursor["epoch"] + 1)

    def finish(self, dice, legs=LEGS, changed=lambda *leg: leg):
        """Read all epochs in legs that dice choose; then one rank reads the rest."""
        while self.cursor["epoch"] < EPOCHS and len(self.story) < legs:
            self.go_on(*changed(*drawn(dice, self.cursor)))
        while self.cursor["epoch"] < EPOCHS:
            self.go_on("core", {"ranks": 1}, Stop(None))


@pytest.mark.parametrize("seed", range(6))
def test_any_chain_of_stops_reads_each_record_of_each_epoch_once_and_in_order(trainers, storage, seed):
    size = SIZES[seed % len(SIZES)]
    skips = ((1, 3), (5, size // 2)) if seed % 4 > 1 and size > 10 else ()
    start = Job(str(storage), "together", str(size), seed=seed, is_mapped=seed % 2 == 1, skips=skips)
    run = Run(trainers, start)
    run.finish(random.Random(seed))
    for epoch in range(EPOCHS):
        order = dataclasses.replace(start, is_mapped=False, skips=()).ids(epoch)
        left = sorted(order[position] for position in start.kept(0, size))
        assert sorted(run.start.records(run.seen[epoch])) == left, run.story


@pytest.mark.parametrize("seed", range(2))
def test_any_chain_of_stops_reads_a_mix_in_its_order(trainers, storage, seed):
    start = Job(str(storage), "together", str(SIZES[0]), seed=seed, is_mapped=seed % 2 == 1, is_mixed=True)
    run = Run(trainers, start)
    assert run.size > SIZES[0]  # some parts begin again
    run.finish(random.Random(seed))
    for epoch in range(EPOCHS):
        assert run.seen[epoch] == start.ids(epoch)
        assert set(start.records(run.seen[epoch])) == set(range(SIZES[0]))


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("kind", ["packed", "bucketed", "grouped", "mixed"])
def test_any_chain_of_stops_reads_each_token_of_each_epoch_once(trainers, storage, kind, part):
    made = "packed" if kind == "mixed" else kind
    for seed in range(part, few_or_many(34, 667), 4):
        dice = random.Random(f"{kind} {seed}")
        size = dice.choice(SIZES[1:])
        start = Job(str(storage), "documents", str(size), seed=seed, made=made, is_mixed=kind == "mixed")
        run = Run(trainers, start)
        run.finish(dice, dice.randint(1, 4), functools.partial(mostly_left, dice, made))
        rows = [run.seen[epoch] for epoch in range(EPOCHS)]
        assert rows[0] != rows[1] or len(rows[0]) < 3
        for tokens in [np.concatenate([np.ravel(row) for row in of_epoch]) for of_epoch in rows]:
            counts = np.bincount(tokens[tokens != PADDING]) / np.bincount(ALL_TOKENS[size])
            if kind == "mixed":  # parts are read again, and at the end not to their end
                for part_counts in np.split(counts, [size // 2, size - 3]):
                    assert 1 <= part_counts.min() >= part_counts.max() - 1, run.story
            else:
                assert (counts == 1).all(), run.story


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_run_that_is_killed_with_full_queues_goes_on_under_another_framework(trainers, storage, framework):
    after = FRAMEWORKS[(FRAMEWORKS.index(framework) + 1) % len(FRAMEWORKS)]
    run = Run(trainers, Job(str(storage), "together", str(SIZES[0]), seed=11))
    run.go_on(framework, {"ranks": 3, "batch_size": 8, "workers": 2}, Stop(4, "kill"))
    assert len(run.seen[0]) == 4 * 3 * 8
    run.go_on(after, {"ranks": 2, "batch_size": 31}, Stop(None))
    assert sorted(run.seen[0]) == list(range(run.size))
