"""Compare a build by tasks of Ray with one by two worker processes; and kill its driver.

Run ``python benchmarks/ray_builds.py`` where Ray is installed.
"""

import os
import sys
from pathlib import Path

import ray
from _measure import Settings, at_least, clear, interleave, main, ratios, say
from builds import BUSY_S, Busy, check_numbers, killed

import yogadl

SECONDS = 60


def measure(settings: Settings) -> None:
    """Print the rows of a busy loop, and of a build whose driver was killed."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])  # that of tasks
    start_ray()
    against_workers(settings)
    killed(settings, "ray_builds.build_by_ray")


def start_ray() -> None:
    """Start Ray with two processors, and its workers with a task that does nothing."""
    if not ray.is_initialized():
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    nothing = ray.remote(lambda: None)
    ray.get([nothing.remote() for _ in range(20)])


def against_workers(settings: Settings) -> None:
    """Print the row of a busy loop of 5 ms a record, by both."""
    records = settings.scaled(int(2 * SECONDS / BUSY_S))
    rounds = min(settings.rounds, 3)
    say(f"{records:,} records of 5 ms of the processor each, {rounds} rounds")
    root = settings.path("cache")

    def build(workers: int = 0, engine: str | None = None) -> None:
        options = yogadl.BuildOptions(engine=engine, progress=False)
        yogadl.open_storage(root).submit(Busy(records), "set", "1", workers=workers, build=options)
        check_numbers(root, records)
        clear(root)

    works = {
        "workers": lambda: build(workers=2),
        "ray": lambda: build(engine="ray"),
    }
    times = interleave(works, rounds, uncounted=0)
    details = "; ".join(f"{name}: {min(each):.1f} - {max(each):.1f} s" for name, each in times.items())
    what = "busy loop of 5 ms a record, Ray with 2 CPUs against workers=2"
    settings.row(what, at_least(0.8), ratios(times["workers"], times["ray"]), details)


def build_by_ray(root: str, records: int, log: str) -> None:
    """Build with Ray; say in a file what was read."""
    start_ray()
    yogadl.open_storage(root).submit(
        Busy(records, Path(log)), "set", "1", build=yogadl.BuildOptions(engine="ray", progress=False)
    )


if __name__ == "__main__":
    main(__file__, measure)
