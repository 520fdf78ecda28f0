"""Take the examples out of the pages of docs/: they are what the tests of the adapters run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def blocks(page: str, *texts: str) -> list[str]:
    """Return the Python examples of a page: all of them, or the first one after each of these texts."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    if not texts:
        return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    return [re.findall(r"^```python\n(.*?)^```", text.split(after, 1)[1], re.M | re.S)[0] for after in texts]


def run(page: str, code: list[str], **names: object) -> dict[str, object]:
    """Run examples one after another; return the names that are there in the end."""
    names.setdefault("__name__", page)
    exec(compile("\n".join(code), page, "exec"), names)
    return names
