"""Describe what a cache was built from, and say how that differs from what would build it now."""

import ast
import functools
import hashlib
import inspect
import platform
import re
import textwrap
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_SHOWN: Final = 120


def describe_machine(library_version: str) -> dict[str, Any]:
    """Return which software built a cache."""
    return {
        "yogadl": library_version,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "started": time.time(),
    }


def describe_builder(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the builder's name, source code and arguments, as JSON."""
    partial: Any = function
    while isinstance(partial, functools.partial):
        function, args, kwargs = partial.func, partial.args + args, partial.keywords | kwargs
        partial = function
    named = function if hasattr(function, "__qualname__") else type(function)
    return {
        "function": f"{named.__module__}.{named.__qualname__}",
        "source": _source_of(function),
        "arguments": _arguments_of(function, args, kwargs),
    }


def difference(then: dict[str, Any], now: dict[str, Any]) -> str:
    """Say what differs between two builders; nothing if they are the same or one is unknown."""
    changes = []
    if then.get("source") and now.get("source") and not _is_same_code(then["source"], now["source"]):
        changes.append("its source code: " + _changed_line(then["source"], now["source"]))
    before, after = then.get("arguments"), now.get("arguments")
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                changes.append(
                    f"argument {name!r}: {before.get(name, 'absent')} -> {after.get(name, 'absent')}"
                )
    return "; ".join(changes)


def _is_same_code(then: str, now: str) -> bool:
    """Compare what the text means: another version of Python writes the same tree in other quotes."""
    if then == now:
        return True
    try:
        return ast.dump(ast.parse(then)) == ast.dump(ast.parse(now))
    except SyntaxError:
        return False


def _changed_line(then: str, now: str) -> str:
    before, after = then.splitlines(), now.splitlines()
    for old, new in zip(before, after, strict=False):
        if old != new:
            return f"{_shown(old.strip())!r} -> {_shown(new.strip())!r}"
    longer, verb = (before, "removed") if len(before) > len(after) else (after, "added")
    return f"{verb} {_shown(longer[min(len(before), len(after))].strip())!r}"


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _source_of(function: Callable[..., Any]) -> str | None:
    """Return the code without decorators, docstring, comments and layout, which build nothing."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return None  # typed at a prompt, or a lambda inside a longer line
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.decorator_list = []
            body = node.body
            if len(body) > 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
                node.body = body[1:]
    return ast.unparse(tree)


def _arguments_of(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, str]:
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {str(name): _value(value) for name, value in [*enumerate(args), *kwargs.items()]}
    bound.apply_defaults()
    return {name: _value(value) for name, value in bound.arguments.items()}


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.dtype != object:
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        return f"array {value.dtype}{list(value.shape)} {content}"
    if isinstance(value, set | frozenset):
        value = sorted(map(repr, value))  # a set of strings has another order in every process
    text = _ADDRESS.sub("", repr(value))
    return (
        text
        if len(text) <= _SHOWN
        else f"{text[:_SHOWN]}... {hashlib.sha256(text.encode()).hexdigest()[:16]}"
    )
