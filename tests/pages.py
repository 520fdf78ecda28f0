"""Run the examples of the pages of docs/ and of docstrings: what needs a framework runs in its own tests."""

import doctest
import re
from pathlib import Path
from types import ModuleType

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


def run_docstrings(*modules: ModuleType) -> int:
    """Run the examples of modules' docstrings, all of which must succeed; return how many there are."""
    results = [doctest.testmod(module) for module in modules]
    assert not any(result.failed for result in results)
    return sum(result.attempted for result in results)
