"""What each script of examples/ shows, stopped again and again, each time on another number of processes."""

import functools
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import numpy as np
import pytest
from example_jobs import EXAMPLES, Job, Printed, largest_difference
from killed_saves import killed

# Gradients of two halves or of three thirds of a batch are added up in another order: some units in the last
# place of float32, 1e-7 of weights of about 1. `with_torch` shows how much more one wrong record is.
TOLERANCE = 1e-5
STEPS = 15  # of 96 records each, in an epoch of 1,527, of which the last 87 fill no batch
WITHOUT_END = 1_000_000
SELDOM = 1000  # steps from save to save


@dataclass(frozen=True)
class Stop:
    """A job on so many processes, and the signal that all of them get once they have trained for an epoch.

    What it says first may be of an epoch that it found at its end: hence the number of epochs to wait for.
    """

    ranks: int
    save_every: int
    epochs: int = 1
    signal: Signals = SIGKILL


@dataclass(frozen=True)
class Runs:
    """A job that was stopped and came to its end in the last part, and one that was not stopped."""

    parts: list[Printed]
    weights: list[np.ndarray]
    whole: Printed
    whole_weights: list[np.ndarray]


class ExampleContract:
    """Run one script; a subclass says which.

    The first stop leaves a checkpoint of an epoch's very end, as none is saved before. The second leaves one
    within an epoch, which is saved in between but not at its end.
    """

    script: str
    framework: str  # see `programs`
    points: tuple[str, ...]  # of its saves: "half a file", "rename" and so on, as killed_saves.py calls them
    whole_ranks = 2
    last_ranks = 1
    stops = (Stop(2, save_every=STEPS), Stop(3, save_every=4, epochs=2))

    @pytest.fixture(scope="class")
    @classmethod
    def runs(cls, tmp_path_factory: pytest.TempPathFactory) -> Runs:
        """Run the job in parts, and once more as one."""
        folder: Path = tmp_path_factory.mktemp("example")
        parts = []
        for stop in cls.stops:
            job = Job(cls.script, cls.framework, folder / "parts", stop.ranks, WITHOUT_END, stop.save_every)
            is_ready = functools.partial(cls.is_ready, stop, folder / "parts")
            parts.append(job.run(stop.signal, stop.epochs, is_ready))
        epochs = max(epoch for part in parts for epoch in part.epochs) + 2
        last = Job(cls.script, cls.framework, folder / "parts", cls.last_ranks, epochs, SELDOM)
        parts.append(last.run())
        whole = Job(cls.script, cls.framework, folder / "whole", cls.whole_ranks, epochs, SELDOM)
        return Runs(parts, last.weights(), whole.run(), whole.weights())

    @classmethod
    def is_ready(cls, stop: Stop, folder: Path) -> bool:
        """Return whether the checkpoint is where that stop shall leave it, if more than its steps decide."""
        return True

    def test_it_goes_on_at_an_epochs_end_and_within_one(self, runs: Runs) -> None:
        first, second, third = runs.parts[:3]
        assert (first.epoch, first.record) == (0, 0)
        assert second.record == STEPS * 96
        assert third.record in (4 * 96, 8 * 96, 12 * 96)

    def test_it_ends_with_the_weights_of_a_job_that_was_not_stopped(self, runs: Runs) -> None:
        assert largest_difference(runs.weights, runs.whole_weights) < TOLERANCE

    def test_it_has_learned_what_a_digit_looks_like(self, runs: Runs) -> None:
        (first_loss, _), *_, (last_loss, accuracy) = runs.whole.epochs.values()
        assert last_loss < first_loss / 2
        assert accuracy > 0.9

    def test_each_epoch_is_as_good_as_without_the_stops(self, runs: Runs) -> None:
        assert list(runs.whole.epochs) == list(range(len(runs.whole.epochs)))
        for part in runs.parts:
            for epoch, found in part.epochs.items():
                if epoch in runs.whole.epochs:
                    assert found == pytest.approx(runs.whole.epochs[epoch], abs=0.01)

    def test_killed_inside_its_saves_it_goes_on_with_weights_and_cursor_of_one_step(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = Job(self.script, self.framework, Path(), ranks=1, epochs=1, save_every=8)
        ((arguments, variables),) = job.places()
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "start").mkdir()
        points = killed(
            tmp_path / "start",
            EXAMPLES / self.script,
            [*job.arguments(), *arguments],
            result="checkpoint/weights.npz",
            watched="checkpoint",
            framework=self.framework,
        )
        assert points >= set(self.points)


class StoppableContract(ExampleContract):
    """The same, with a third stop: asked to end, a job saves at once. It would not have saved otherwise."""

    stops = (*ExampleContract.stops, Stop(2, save_every=SELDOM, signal=SIGTERM))

    def test_asked_to_stop_it_saves(self, runs: Runs) -> None:
        before, after = runs.parts[-2:]
        assert (after.epoch, after.record) > (max(before.epochs), 0)
