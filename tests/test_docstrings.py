"""What docstrings say of arguments is about arguments that there are."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import yogadl

LIBRARY = Path(yogadl.__file__).parent


def arguments_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {argument.arg for argument in every if argument is not None}


def unknown_arguments(path: Path) -> Iterator[str]:
    """Return what docstrings say of arguments that their function or class does not have."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef):
            known = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}  # type: ignore[union-attr]
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name in ("__init__", "__new__"):
                    known |= arguments_of(item)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            known = arguments_of(node)
        else:
            continue
        section = re.search(r"^Args:\n((?:    .*\n?)+)", ast.get_docstring(node) or "", re.MULTILINE)
        for names in re.findall(r"^ {4}([\w*]+(?:, [\w*]+)*):", section[1] if section else "", re.MULTILINE):
            for name in names.split(", "):
                if name.lstrip("*") not in known:
                    yield f"{path.relative_to(LIBRARY)}: {node.name} has no argument {name!r}"


@pytest.mark.parametrize("room", sorted({p.relative_to(LIBRARY).parts[0] for p in LIBRARY.rglob("*.py")}))
def test_each_argument_that_is_described_is_one(room):
    paths = [LIBRARY / room] if room.endswith(".py") else sorted((LIBRARY / room).rglob("*.py"))
    assert [line for path in paths for line in unknown_arguments(path)] == []
