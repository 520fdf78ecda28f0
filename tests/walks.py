"""See which modules of the library run on the way of some data, and which docs/architecture.md says do."""

import contextlib
import gc
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from inside import Run

import yogadl

LIBRARY = Path(yogadl.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


class Walk:
    """The modules whose functions are called while `is_on`, in the order of their first calls."""

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self.is_on and event == "call" and code.co_filename.startswith(f"{LIBRARY}/"):
            module = str(Path(code.co_filename).relative_to(LIBRARY))
            self.modules.setdefault(module, code.co_qualname)

    def __str__(self) -> str:
        return "\n".join(f"{module}: {function}" for module, function in self.modules.items())

    @contextlib.contextmanager
    def watching(self) -> Iterator["Walk"]:
        """Look at this thread, and at those that are started meanwhile.

        The garbage collector waits: it closes what other tests have left, in the middle of anything.
        """
        gc.collect()
        gc.disable()
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            gc.enable()


def of_a_batch(monkeypatch: pytest.MonkeyPatch, batches: Iterable[object]) -> Walk:
    """Return the walk of the read of a second batch: at the first one, things are loaded or made once."""
    walk, read = Walk(), Run.read

    def reading(run: Run, *arguments: Any) -> Any:
        walk.is_on = True
        try:
            return read(run, *arguments)
        finally:
            walk.is_on = False

    monkeypatch.setattr(Run, "read", reading)
    iterator = iter(batches)
    next(iterator)
    walk.modules.clear()
    with walk.watching():
        next(iterator)
    return walk


def documented(title: str) -> list[str]:
    """Return the modules in the first column of the table below a heading of the page."""
    section = re.split(r"\n##+ ", PAGE.read_text("utf-8").partition(f"# {title}\n")[2])[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return [module for row in rows for module in re.findall(r"`([\w/]+\.py)`", row)]
