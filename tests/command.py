"""Run the `yogadl` command inside the test's process, and say how it ended."""

import io
import json
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

    @property
    def json(self) -> Any:
        """What it printed, as JSON that strict readers take."""
        return json.loads(self.out, parse_constant=pytest.fail)

    def ends(self, code: int, *says: str) -> "Ended":
        """Check the exit code, and that each text is said: in the error, or if all is well in the output."""
        assert self.code == code, self
        assert [text for text in says if text not in (self.err if code else self.out)] == [], self
        return self


def run_command(capsys: pytest.CaptureFixture[str], *words: Any) -> Ended:
    """Run the command with these words, and take what it prints."""
    capsys.readouterr()
    try:
        code = main([str(word) for word in words])
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    return Ended(code, *capsys.readouterr())


class Terminal(io.StringIO):
    """In place of stderr: keeps what is written, as a terminal."""

    def isatty(self) -> bool:
        """Say that it is one."""
        return True
