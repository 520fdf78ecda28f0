"""Kill a training script inside its saves, at one point after another, and start it again each time.

Usage: killed_saves.py SCRIPT RESULT WATCHED FRAMEWORK STEP [ARGUMENT ...], in a folder that has what the
script reads. Each start is a fork of this process, which has loaded FRAMEWORK, in a copy of that folder. It
is killed at every STEP-th point (as the saves are alike, each of them has another one), and
at one of each kind at least.

A point of a save is where a file whose path begins with WATCHED is about to be opened for writing, has been
opened and is still empty, or is about to be renamed or removed (folders, too). It is also where a function
that writes in C++ is about to begin, or has written half a file. After each kill the script must
come to its end, and RESULT, an .npz file, must be that of a script that was not killed.
Prints each of these points.
"""

import functools
import importlib
import os
import re
import runpy
import shutil
import signal
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from programs import MODULES, programs
from soak import few_or_many

FEW = 10_000  # more than there are: the first point, and one of each other kind
MANY = 3  # one of so many points
WRITES = os.O_WRONLY | os.O_RDWR
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
WRITERS = (  # and which argument is the file
    ("torch", "save", 1),
    ("torch._C", "PyTorchFileWriter", 0),
    ("safetensors.torch", "save_file", 1),
    ("tensorflow.python.ops.io_ops", "save_v2", None),
    ("tensorflow.python.ops.gen_io_ops", "merge_v2_checkpoints", None),
    ("tensorflow.python.lib.io.file_io", "atomic_write_string_to_file", None),
    ("tensorflow.python.lib.io.file_io", "delete_file_v2", None),
)


class Points:
    """Counts the points of saves, and ends this process at one of them."""

    def __init__(self) -> None:
        self.watched: str | None = None
        self.kill_at, self.is_inside = 0, False
        self.reached: list[str] = []

    def reach(self, point: str, before_the_end: Callable[[], object] = lambda: None) -> None:
        self.reached.append(point)
        if len(self.reached) == self.kill_at:
            self.is_inside = True
            before_the_end()
            os.write(1, f"\nkilled at: {point}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def is_watched(self, path: Any) -> bool:
        if self.watched is None or self.is_inside or not isinstance(path, str | bytes | os.PathLike):
            return False
        return os.path.abspath(os.fsdecode(path)).startswith(self.watched)

    def audit(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and given[2] & WRITES and self.is_watched(given[0]):
            self.reach("no file")
            self.reach("empty file", lambda: Path(os.fsdecode(given[0])).write_bytes(b""))
        elif event in CHANGES and any(self.is_watched(path) for path in given[:2]):
            self.reach(event.removeprefix("os."))

    def wrap(self, module: str, name: str, place: int | None) -> None:
        """Make points of what a function in C++ does."""
        if module.partition(".")[0] not in sys.modules:
            return
        owner = importlib.import_module(module)
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **options: Any) -> Any:
            path = args[place] if place is not None and place < len(args) else options.get("filename")
            if self.watched is None or (place is not None and not self.is_watched(path)):
                return original(*args, **options)
            self.reach(f"before {name}")
            found = original(*args, **options)
            if place is not None and os.path.isfile(path):
                self.reach("half a file", lambda: os.truncate(path, os.path.getsize(path) // 2))
            return found

        if not isinstance(original, type):
            setattr(owner, name, wrapped)


POINTS = Points()


def start(script: Path, folder: Path, watched: str, kill_at: int, arguments: list[str]) -> int:
    """Run the script in a fork of this process, and in that folder; return how it ended."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        try:
            os.chdir(folder)
            sys.argv = [str(script), *arguments]
            POINTS.watched, POINTS.kill_at = str(folder / watched), kill_at
            runpy.run_path(str(script), run_name="__main__")
            folder.with_suffix(".points").write_text("\n".join(POINTS.reached))
        except BaseException:  # noqa: BLE001  (whatever it is, this process ends here)
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def weights_of(path: Path) -> list[np.ndarray]:
    with np.load(path) as file:
        return [file[name] for name in file.files]


def chosen(points: list[str], step: int) -> list[int]:
    """Return each STEP-th point, counted from 1, and one of each kind that is not among these."""
    numbers = set(range(1, len(points) + 1, step))
    for kind in set(points) - {points[number - 1] for number in numbers}:
        same = [number for number, point in enumerate(points, 1) if point == kind]
        numbers.add(same[len(same) // 2])
    return sorted(numbers)


def killed(
    folder: Path,
    script: str | Path,
    arguments: list[str] | None = None,
    *,
    result: str,
    watched: str,
    framework: str,
    step: int | None = None,
) -> set[str]:
    """Kill a script (a file, or its text) in copies of a folder; return at what kinds of points."""
    if isinstance(script, str):
        text, script = script, folder.with_name("script.py")
        script.write_text(textwrap.dedent(text))
    step = step or few_or_many(FEW, MANY)
    given = [script, result, watched, framework, step, *(arguments or [])]
    # Each point is a start of the script, and one more to its end.
    done = programs(framework).start(Path(__file__), *given, folder=folder).ended(few_or_many(240, 1500))
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return set(re.findall(r"^killed at: (.*)$", done.stdout, re.M))


def main(script: str, result: str, watched: str, framework: str, step: str, *arguments: str) -> None:
    warnings.simplefilter("ignore")
    code, here = Path(script).absolute(), Path.cwd()
    for module in MODULES[framework]:
        importlib.import_module(module)
    sys.addaudithook(POINTS.audit)
    for writer in WRITERS:
        POINTS.wrap(*writer)

    def fresh(name: str) -> Path:
        return Path(shutil.copytree(here, here.with_name(f"{here.name}-{name}")))

    whole = fresh("whole")
    assert start(code, whole, watched, 0, list(arguments)) == 0, "the script fails without a kill"
    expected = weights_of(whole / result)
    for kill_at in chosen(whole.with_suffix(".points").read_text().splitlines(), int(step)):
        folder = fresh(f"killed-{kill_at}")
        code_of_death = start(code, folder, watched, kill_at, list(arguments))
        assert code_of_death == -signal.SIGKILL, f"{code_of_death} at point {kill_at}"
        assert start(code, folder, watched, 0, list(arguments)) == 0, f"no restart after point {kill_at}"
        found = weights_of(folder / result)
        assert all(map(np.array_equal, found, expected)), f"other weights after point {kill_at}"
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
