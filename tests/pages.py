"""Run the examples of the pages of docs/ and of docstrings: what needs a framework runs in its own tests."""

import doctest
import re
import socket
import sys
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]


def blocks(page: str, *texts: str) -> list[str]:
    """Return the Python examples of a page of docs/: all of them, or the first after each of these texts."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    found = [
        re.findall(r"^```python\n(.*?)^```", part, re.M | re.S)
        for part in ([text.split(after, 1)[1] for after in texts] or [text])
    ]
    assert all(found), f"{page} has no examples"
    assert texts or len(found[0]) == text.count("```python\n"), f"{page} has an example that is indented"
    return [one[0] for one in found] if texts else found[0]


def run(page: str, code: list[str], **names: object) -> dict[str, object]:
    """Run examples one after another; return the names that are there in the end."""
    names.setdefault("__name__", page)
    exec(compile("\n".join(code), page, "exec"), names)
    return names


def run_by(server: Any, command: list[str], *, check: bool = False) -> CompletedProcess[str]:
    """Run a Python script as `subprocess.run` does, but as forks of a server of `warm`.

    For what `torch.distributed.run` is to start, each rank gets the variables that it sets.
    """
    assert command[0] == sys.executable
    places, given = [dict[str, str]()], command[1:]
    if given[:2] == ["-m", "torch.distributed.run"]:
        standalone, ranks, *given = given[2:]
        assert standalone == "--standalone"
        count = ranks.removeprefix("--nproc-per-node=")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = {
                "WORLD_SIZE": count,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": f"{free.getsockname()[1]}",
            }
        places = [{**place, "RANK": str(rank)} for rank in range(int(count))]
    script, *arguments = given
    started = [server.start(Path(script), *arguments, variables=place) for place in places]
    try:
        ended = [one.ended() for one in started]
    finally:
        for one in started:
            one.kill()
    codes = [one.returncode for one in ended]
    assert not check or not any(codes), "\n".join(one.stderr for one in ended)
    return CompletedProcess(command, next(filter(None, codes), 0))


def run_docstrings(*modules: ModuleType) -> int:
    """Run the examples of modules' docstrings, all of which must succeed; return how many there are."""
    results = [doctest.testmod(module) for module in modules]
    assert not any(result.failed for result in results)
    return sum(result.attempted for result in results)
