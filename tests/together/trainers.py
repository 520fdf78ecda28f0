"""Keep processes that train with a framework each, run jobs in them, and kill them for real."""

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from job import Job
from programs import OURS
from warm import warm

HERE = Path(__file__).parent
PACKAGES = {
    "core": ["yogadl"],
    "tensorflow": ["tensorflow"],
    "torch": ["torch"],
    "jax": ["jax"],
    "grain": ["grain"],
    "keras": ["keras", "jax"],
}
FRAMEWORKS = [
    name
    for name, packages in PACKAGES.items()
    if (HERE / f"run_{name}.py").exists() and all(map(importlib.util.find_spec, packages))
]
SDKS = [name for name in ("boto3", "obstore") if importlib.util.find_spec(name)]
PROCESSES = 2  # of one framework at a time; ranks share them
TIMEOUT_S = 200


@dataclass(frozen=True)
class Stop:
    """How a run ends.

    Args:
        steps: After how many batches of every rank; ``None``: when there are no more.
        kind: "leave": the iterators are closed. "kill": SIGKILL while they are held, with all that they read
            ahead. "kill running": SIGKILL while they read on, once every rank has so many batches.
    """

    steps: int | None
    kind: str = "leave"


@dataclass(frozen=True)
class Delivered:
    """What is left of one rank's run: its batches as (ids, cursor), and whether it came to its end."""

    batches: list[tuple[list[int], dict[str, Any]]]
    is_finished: bool


class Trainer:
    """A process that runs jobs of one framework, see `train`."""

    def __init__(self, framework: str, log: Path) -> None:
        self._log = log
        folder = Path(tempfile.mkdtemp(dir=log.parent))
        asking, answering = folder / "asked", folder / "answered"
        os.mkfifo(asking)
        os.mkfifo(answering)
        # In a session of its own, so that its worker processes can be killed with it.
        self._process = warm(
            *OURS,
            *SDKS,
            "numpy",
            "job",
            "by_range",
            f"run_{framework}",
            TF_CPP_MIN_LOG_LEVEL="2",
            KERAS_BACKEND="jax",
        ).start(
            HERE / "train.py",
            framework,
            asking,
            answering,
            variables={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # for a server of forks
            output=log,
            errors=log,
        )
        self._asked = asking.open("w", buffering=1)
        self._answers = answering.open()
        self._owed = 1  # answers that are still to come: the first says that it has started

    def ask(self, **request: Any) -> None:
        """Hand a request over, without waiting for anything."""
        try:
            print(json.dumps(request), file=self._asked, flush=True)
        except BrokenPipeError:
            self._fail()
        self._owed += 1

    def wait(self) -> None:
        """Wait until all that was asked for is done."""
        while self._owed:
            if not self._answers.readline():
                self._fail()
            self._owed -= 1

    def kill(self) -> None:
        """End it and its workers as a machine that dies would."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._asked.close()
        self._answers.close()

    def is_alive(self) -> bool:
        """Return whether it has not ended by itself."""
        return self._process.poll() is None

    def check(self) -> None:
        """Fail if it has ended by itself."""
        if not self.is_alive():
            self._fail()

    def _fail(self) -> None:
        code = self._process.wait()
        raise AssertionError(f"the process ended with {code}:\n{self._log.read_text()}")


class Trainers:
    """The processes of all frameworks, started when first needed, and again after each kill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[tuple[str, int], Trainer] = {}
        self._runs = 0

    def start(self, framework: str) -> list[Trainer]:
        """Return the processes of a framework; they may still be busy starting."""
        for slot in range(PROCESSES):
            found = self._running.get((framework, slot))
            if found is not None and not found.is_alive():
                found.kill()
                found = None
            if found is None:
                log = self._folder / f"{framework}-{slot}.log"
                self._running[framework, slot] = Trainer(framework, log)
        return [self._running[framework, slot] for slot in range(PROCESSES)]

    def run(self, framework: str, jobs: Sequence[Job], stop: Stop) -> list[Delivered]:
        """Run the jobs of all ranks up to the stop; return what is left of each."""
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        folder.mkdir()
        trainers = self.start(framework)
        is_running = stop.kind == "kill running"
        for slot, trainer in enumerate(trainers):
            share = [job.to_json() for job in jobs[slot::PROCESSES]]
            steps = None if is_running else stop.steps
            trainer.ask(jobs=share, folder=str(folder), steps=steps, is_held=stop.kind == "kill")
        if is_running:
            self._wait_for(folder, trainers, len(jobs), stop.steps or 1)
        else:
            for trainer in trainers:
                trainer.wait()
        if stop.kind != "leave":
            self._kill(framework)
        return [read(folder / f"{job.rank}.jsonl") for job in jobs]

    def _wait_for(self, folder: Path, trainers: Sequence[Trainer], ranks: int, steps: int) -> None:
        """Wait until every rank has so many batches, or has come to its end."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            found = [read(folder / f"{rank}.jsonl") for rank in range(ranks)]
            if all(one.is_finished or len(one.batches) >= steps for one in found):
                return
            for trainer in trainers:
                trainer.check()
            time.sleep(0.001)
        raise AssertionError(f"waited {TIMEOUT_S} s for {steps} batches of {ranks} ranks")

    def _kill(self, framework: str) -> None:
        for slot in range(PROCESSES):
            self._running.pop((framework, slot)).kill()
        self.start(framework)  # while others run, it starts

    def close(self) -> None:
        """Kill them all."""
        for trainer in self._running.values():
            trainer.kill()
        self._running.clear()


def read(path: Path) -> Delivered:
    """Read what a rank has written; a last line that is not whole does not count."""
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    is_finished = bool(lines) and "end" in lines[-1]
    return Delivered([(line["ids"], line["cursor"]) for line in lines if "ids" in line], is_finished)
