"""Measure fairly and say it in one table row: what all benchmarks share.

Works that are compared take turns, round by round, so that what disturbs the machine disturbs all of them.
A ratio is the median of the rounds' ratios, with the least and the greatest. Two rounds that nobody counts
come first: they fault the pages of both sides in.
"""

import argparse
import gc
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from _folders import temporary_folder

HEADER: Final = "| what | bar | measured | rounds from - to | | details |\n|---|---|---|---|---|---|"
_UNCOUNTED: Final = 2
_CHILD: Final = "--child"


@dataclass(frozen=True)
class Bar:
    """What a number has to be, at least or at most."""

    limit: float
    unit: str
    is_most: bool = False

    def __str__(self) -> str:
        return f"{'<=' if self.is_most else '>='} {self.limit:,.15g}{self.unit}"

    def holds(self, value: float) -> bool:
        """Return whether a number passes."""
        return value <= self.limit if self.is_most else value >= self.limit


def at_least(limit: float, unit: str = " x") -> Bar:
    """Return a bar that numbers must reach."""
    return Bar(limit, unit)


def at_most(limit: float, unit: str = " x") -> Bar:
    """Return a bar that numbers must not pass."""
    return Bar(limit, unit, is_most=True)


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Args:
        rounds: How many rounds count.
        is_quick: Whether to take less data, to see that the script works; the numbers mean little.
        folder: Where files may be made; it is removed at the end.
    """

    rounds: int
    is_quick: bool
    folder: Path

    def scaled(self, count: int) -> int:
        """Return a count of records, a tenth of it if quick."""
        return max(1, count // 10) if self.is_quick else count

    def path(self, name: str) -> Path:
        """Return a path in the folder."""
        return self.folder / name

    def row(
        self, what: str, bar: Bar | None, values: Sequence[float], details: str = "", unit: str = ""
    ) -> None:
        """Print a row of the table: the median of `values` against the bar, if there is one."""
        middle = statistics.median(values)
        shown = f"{_number(middle)}{bar.unit if bar else unit}"
        spread = f"{_number(min(values))} - {_number(max(values))}" if len(values) > 1 else ""
        verdict = "" if bar is None else "PASS" if bar.holds(middle) else "**MISS**"
        if self.is_quick:
            what, verdict = f"(quick) {what}", verdict and f"({verdict.strip('*').lower()})"
        print(f"| {what} | {bar or ''} | {shown} | {spread} | {verdict} | {details} |", flush=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def say(text: str) -> None:
    """Say on stderr what is going on, so that stdout stays a table."""
    print(f"  {text}", file=sys.stderr, flush=True)


def interleave(
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    uncounted: int = _UNCOUNTED,
    before: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Return the seconds that each work took in each round; they take turns, and so does who begins.

    What is done `before` each of them is not timed.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for number in range(uncounted + rounds):
        for name in names:
            before()
            gc.collect()
            gc.disable()
            started = time.perf_counter()
            works[name]()
            elapsed_s = time.perf_counter() - started
            gc.enable()
            if number >= uncounted:
                times[name].append(elapsed_s)
        names.append(names.pop(0))
    return times


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Divide round by round."""
    return [a / b for a, b in zip(over, under, strict=True)]


def rate(records: int, times: Sequence[float]) -> str:
    """Return records per second, as text."""
    per_s = records / statistics.median(times)
    return f"{per_s / 1e6:.2f} M/s" if per_s >= 1e6 else f"{per_s / 1e3:.1f} k/s"


def drain(items: Iterator[Any]) -> None:
    """Read to the end, holding one item at a time."""
    for _ in items:
        pass


def batches_of(indices: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut indices into batches."""
    return [indices[first : first + size] for first in range(0, len(indices), size)]


def check_equal(found: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    """Stop the benchmark if a batch is not what it must be: numbers about wrong data are worth nothing."""
    for name, column in expected.items():
        ours = found[name]
        same = ours == column if isinstance(column, list) else np.array_equal(ours, column)
        if not same or (isinstance(column, np.ndarray) and ours.dtype != column.dtype):
            sys.exit(f"{what}: field {name!r} of a batch is not what the source has")


def private_bytes() -> int:
    """Return this process's private memory: what nobody else has in memory too.

    Clean pages of a file count as private while no other process maps them, so the parent keeps the cache
    mapped and touched while a child is measured.
    """
    return sum(_kib("/proc/self/smaps_rollup", name) for name in ("Private_Clean:", "Private_Dirty:"))


def anonymous_bytes() -> int:
    """Return this process's memory that is of no file."""
    return _kib("/proc/self/smaps_rollup", "Anonymous:")


def peak_bytes() -> int:
    """Return the most memory that this process has had, without that of the process which started it."""
    return _kib("/proc/self/status", "VmHWM:")


def page_table_bytes() -> int:
    """Return what the kernel holds to map this process's memory."""
    return _kib("/proc/self/status", "VmPTE:")


def _kib(path: str, name: str) -> int:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(f"{path} has no {name}; these benchmarks need Linux")


def in_child(script: str, task: str, **arguments: Any) -> Any:
    """Run a task of a script in a fresh process and return what it returned, by way of JSON."""
    command = [sys.executable, script, _CHILD, task, json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{Path(script).name}: the child for {task} ended with {done.returncode}")
    return json.loads(done.stdout)


def main(
    script: str, measure: Callable[[Settings], None], tasks: Mapping[str, Callable[..., Any]] | None = None
) -> None:
    """Run a benchmark from the command line: print the table's header, then its rows.

    Args:
        script: The script's ``__file__``.
        measure: Measures everything and prints the rows.
        tasks: What `in_child` may run.
    """
    if sys.argv[1:2] == [_CHILD]:
        task, arguments = sys.argv[2:4]
        print(json.dumps((tasks or {})[task](**json.loads(arguments))))
        return
    parser = argparse.ArgumentParser(description=measure.__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="how many rounds count (default: 7)")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the data and 3 rounds: does it work at all?"
    )
    parser.add_argument(
        "--dir", type=Path, help="where to make the files, on the disk to measure (default: /tmp or so)"
    )
    options = parser.parse_args()
    with temporary_folder(options.dir) as folder:
        print(f"{Path(script).name}: {machine(folder)}", file=sys.stderr)
        print(HEADER, flush=True)
        measure(Settings(min(options.rounds, 3) if options.quick else options.rounds, options.quick, folder))


def clear(folder: Path) -> None:
    """Remove a folder, and wait until the disk is done with that."""
    shutil.rmtree(folder, ignore_errors=True)
    os.sync()


def machine(folder: Path) -> str:
    """Describe where this runs, in a line."""
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?"
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    free = shutil.disk_usage(folder).free / 1e9
    return (
        f"{os.cpu_count()} CPUs ({model}), {memory:.0f} GiB RAM, {free:.0f} GB free in {folder.parent}, "
        f"Python {platform.python_version()}, numpy {np.__version__}, Linux {platform.release()}"
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
