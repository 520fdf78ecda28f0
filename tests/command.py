"""Run the `yogadl` command inside the test's process, and say how it ended."""

from dataclasses import dataclass
from typing import Any

import pytest

from yogadl.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def run_command(capsys: pytest.CaptureFixture[str], *words: Any) -> Ended:
    """Run the command with these words, and take what it prints."""
    capsys.readouterr()
    try:
        code = main([str(word) for word in words])
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    return Ended(code, *capsys.readouterr())
