"""The page on the command: every example runs, and prints what the page says."""

import doctest
import re
import shlex
from pathlib import Path

import pytest

from yogadl.cli import COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples():
    """Yield each command of the page, with what it is to print."""
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


@pytest.mark.usefixtures("forgets_modules")
def test_the_examples_print_what_the_page_says(yoga, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    Path("data.py").write_text(code)
    for command, expected in examples():
        name, *words = shlex.split(command)
        assert name == "yogadl"
        ended = yoga(*words).ends(0)
        printed = ended.out
        if words[0] == "bench":  # what it measured, and whether that was cold, is the machine's affair
            expected, printed = (
                re.sub(r"[0-9,.?]+( [kMG]?B)?", "#", text.strip().rpartition("\n\n")[0])
                for text in (expected, printed)
            )
        assert doctest.OutputChecker().check_output(expected, printed, OPTIONS), f"{command}\n{ended.out}"


def test_the_page_has_an_example_of_each_command():
    run = {shlex.split(command)[1] for command, _ in examples()}
    assert run == set(COMMANDS) - {"demo", "import-014", "completion"}
