"""Let peers take turns at every task, and gather what was found."""

import datetime
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from _compare.peers import PEERS, Peer
from _compare.sets import Set
from _compare.venvs import InstallError, Venvs

_CHILD: Final = Path(__file__).resolve().with_name("child.py")
# A task that takes longer is given up.
_TASK_S: Final = 180
# What took longer than this once is not measured again.
_ONCE_S: Final = 10
# The set at which orders and checkpoints are looked at, record by record.
_EXAMINED_SET: Final = "small_images"
_WORKERS: Final = (0, 2)

Found = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Args:
        folder: Where data are made.
        venvs: Where peers are installed.
        count: How many rounds.
        seconds: How long each reading is timed.
        part: One of how many records of each set is made.
    """

    folder: Path
    venvs: Venvs
    count: int
    seconds: float
    part: int


class TaskError(Exception):
    """A task came to nothing; its text says why."""


def measure(peers: Sequence[Peer], sets: Sequence[Set], settings: Settings) -> Found:
    """Return all that was found, as JSON can hold it."""
    found: Found = {"is_quick": settings.part > 1, "peers": {}, "sets": []}
    makers = [peer for peer in PEERS if peer.needs == ("numpy",)]
    ready = []
    for peer in peers:
        try:
            versions = run_task(settings, peer, "versions", packages=[_package(need) for need in peer.needs])
            found["peers"][peer.key] = {"name": peer.name, "versions": versions}
            ready.append(peer)
        except (InstallError, TaskError) as error:
            found["peers"][peer.key] = {"name": peer.name, "versions": {}, "why": str(error)}
    for each in sets:
        data = settings.folder / each.maker
        records = each.records // settings.part
        run_task(
            settings, makers[0], "make",
            name=each.name, records=records, batch=each.batch, maker=each.maker, folder=str(data),
        )  # fmt: skip
        payload = sum(path.stat().st_size for path in data.glob("*.npy"))
        turns = [Turn(peer, each, settings) for peer in ready]
        for number in range(settings.count):
            for turn in turns[number:] + turns[:number]:
                turn.take(is_first=number == 0)
        found["sets"].append(
            {
                "name": each.name,
                "records": records,
                "batch": each.batch,
                "bytes": payload,
                "date": datetime.date.today().isoformat(),
                "machine": f"{machine()}, Python {platform.python_version()}",
                "rounds": settings.count,
                "peers": {turn.peer.key: turn.found for turn in turns},
            }
        )
        shutil.rmtree(data)
        for turn in turns:
            shutil.rmtree(turn.made, ignore_errors=True)
    return found


class Turn:
    """One peer at one set.

    Attributes:
        found: A list of numbers for each metric, or why there are none.
    """

    def __init__(self, peer: Peer, each: Set, settings: Settings) -> None:
        self.peer = peer
        self.made = settings.folder / f"{each.maker}-{peer.key}"
        self.found: Found = {}
        self._set = each
        self._settings = settings
        self._places = {
            "reader": peer.reader,
            "data": str(settings.folder / each.maker),
            "folder": str(self.made),
        }

    def take(self, is_first: bool) -> None:
        """Do all tasks, those of the first round only there."""
        began = time.monotonic()
        built = self.found.get("build_s", [])
        if is_first or (isinstance(built, list) and built[-1] < _ONCE_S):
            shutil.rmtree(self.made, ignore_errors=True)
            self._note("build")
        if isinstance(self.found.get("build_s"), str):
            return
        for workers in _WORKERS:
            self._note("read", f"_{workers}", workers=workers, begun=True, seconds=self._settings.seconds)
            if is_first and isinstance(self.found[f"records_per_s_{workers}"], list):
                self._look(workers)
        resumed = self.found.get("resume_s", [])
        if isinstance(resumed, list) and (not resumed or resumed[-1] < _ONCE_S):
            self._resume(0, ids=False)
        if is_first and self._set.maker == _EXAMINED_SET:
            self._note("shuffle")
        print(
            f"  {self._set.maker}: {self.peer.key}, {time.monotonic() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )

    def _look(self, workers: int) -> None:
        """Make the checkpoint that is resumed from; where records are looked at, see what follows it."""
        ids = self._set.maker == _EXAMINED_SET
        if workers and not ids:
            return
        self._note("stop", f"_{workers}", workers=workers, saved=self._saved(workers), ids=ids)
        if ids:
            self._resume(workers, ids=True)

    def _resume(self, workers: int, ids: bool) -> None:
        if not isinstance(self.found.get(f"is_checkpoint_{workers}"), list):
            return
        suffix = f"_{workers}" if ids else ""
        self._note("resume", suffix, workers=workers, begun=True, saved=self._saved(workers), ids=ids)

    def _saved(self, workers: int) -> str:
        return f"{self.made}.saved{workers}"

    def _note(self, task: str, suffix: str = "", **arguments: Any) -> None:
        """Do a task and keep what it found, a number more for each metric; or why it found nothing."""
        try:
            answer: Mapping[str, Any] = run_task(self._settings, self.peer, task, **self._places, **arguments)
        except TaskError as error:
            answer = dict.fromkeys(_METRICS[task], str(error))
        for metric, value in answer.items():
            kept = self.found.setdefault(f"{metric}{suffix}", [])
            if isinstance(value, str):
                self.found[f"{metric}{suffix}"] = value
            elif isinstance(kept, list):
                kept.append(value)


_METRICS: Final = {
    "build": ("build_s", "bytes"),
    "read": ("first_s", "records_per_s", "memory_mib"),
    "stop": ("is_checkpoint",),
    "resume": ("resume_s", "is_exact"),
    "shuffle": ("clumping",),
}


def run_task(
    settings: Settings, peer: Peer, task: str, *, limit_s: float | None = None, **arguments: Any
) -> Mapping[str, Any]:
    """Run a task in a process of its own.

    Raises:
        TaskError: if it failed, or takes too long.
    """
    limit_s = limit_s or _TASK_S
    python = settings.venvs.python(peer)
    request, answer, log = (settings.folder / f"{peer.key}.{kind}" for kind in ("request", "answer", "log"))
    answer.unlink(missing_ok=True)
    if arguments.get("begun"):
        arguments["begun"] = time.monotonic()  # one clock for all processes of a machine
    request.write_text(json.dumps({"task": task, **arguments}))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(python), str(_CHILD), str(request), str(answer)],
            stdout=output, stderr=output, start_new_session=True, cwd=settings.folder, env=_environment(),
        )  # fmt: skip
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise TaskError(f"more than {limit_s} s") from None
        finally:
            _end(process)
    if code or not answer.exists():
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise TaskError(f"failed: {said[-1][:200] if said else code}")
    found = json.loads(answer.read_text())
    if "why" in found:
        raise TaskError(found["why"])
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONDONTWRITEBYTECODE": ""}


def _package(need: str) -> str:
    return "yogadl" if need.startswith(".") else re.split(r"[=<>\[ ;~!]", need)[0]


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, Linux"
