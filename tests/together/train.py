"""Run jobs of one framework, as lines of JSON in a pipe ask for; started and killed by `trainers`.

Each rank's file gets a line a batch, written out at once: what is in there survives SIGKILL. A line
{"end": true} says that the rank has read all that it was to read.
"""

import faulthandler
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from job import Job

Deliver = Any  # a `deliver` function, see `run_core`


def main(framework: str, asking: str, answering: str) -> None:
    """Answer each request with a line once it is done."""
    faulthandler.enable()
    with Path(asking).open() as requests, Path(answering).open("w", buffering=1) as answers:
        answer(framework, requests, answers)


def answer(framework: str, requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more."""
    deliver = importlib.import_module(f"run_{framework}").deliver
    held: list[Any] = []
    print("ready", file=answers)
    for line in requests:
        request = json.loads(line)
        jobs = [Job.from_json(text) for text in request["jobs"]]
        unfinished = train(deliver, jobs, Path(request["folder"]), request["steps"])
        if request["is_held"]:
            held.append(unfinished)  # what they read ahead stays where it is
        else:
            for batches in unfinished:
                getattr(batches, "close", lambda: None)()
        print("done", file=answers)


def train(deliver: Deliver, jobs: list[Job], folder: Path, steps: int | None) -> list[Iterator[Any]]:
    """Take so many batches of each job, all ranks in step; return the iterators that have more."""
    files = [(folder / f"{job.rank}.jsonl").open("w") for job in jobs]
    running = {number: deliver(job) for number, job in enumerate(jobs)}
    step = 0
    while running and step != steps:
        for number, batches in list(running.items()):
            try:
                ids, cursor = next(batches)
            except StopIteration:
                write(files[number], {"end": True})
                del running[number]
            else:
                write(files[number], {"ids": ids, "cursor": cursor})
        step += 1
    for file in files:
        file.close()
    return list(running.values())


def write(file: TextIO, line: dict[str, Any]) -> None:
    """Hand a line over to the kernel."""
    file.write(json.dumps(line) + "\n")
    file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
