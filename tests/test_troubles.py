"""Each message that `docs/troubles.md` quotes begins so in the source."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUOTED = re.findall(r"^- `([^`]+)` [A-Z]", (ROOT / "docs/troubles.md").read_text("utf-8"), re.M)


def template(node):
    """Return a text of the source with `...` in the place of each value, as the page writes it."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    texts = [part.value if isinstance(part, ast.Constant) else "..." for part in parts]
    return re.sub(r"(\.\.\.)+", "...", re.sub(r"%[.\d]*[sdrf]", "...", "".join(texts)))


@pytest.fixture(scope="module")
def messages():
    return {
        template(node)
        for path in (ROOT / "yogadl").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    }


def test_the_page_has_the_messages_that_users_meet_most():
    assert 20 <= len(QUOTED) == len(set(QUOTED))
    assert len(QUOTED) == (ROOT / "docs/troubles.md").read_text("utf-8").count("\n- ")


@pytest.mark.parametrize("quote", QUOTED)
def test_each_message_that_is_quoted_begins_so_in_the_source(quote, messages):
    assert any(message.startswith(quote) for message in messages)


def test_a_text_that_no_message_has_is_found(messages):
    assert not any(message.startswith("the cursor is of another kind") for message in messages)
