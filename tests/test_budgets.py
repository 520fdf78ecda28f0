"""No file, function or list of parameters of the library is longer than agreed; see CONTRIBUTING.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

import yogadl

LIBRARY = Path(yogadl.__file__).parent
FILE_LINES = 600
FUNCTION_LINES = 60  # without its docstring
PARAMETERS = 8

# Functions that may have more, with the reason.
MORE_PARAMETERS = {
    "_dataref.py: RecordsRef.stream": "the seven of yogadl 0.1.4 stay, and resuming needs three more",
    "adapters/grain/_loader.py: make_dataloader": "what shapes batches is named alike in all adapters",
    "adapters/jax/_loader.py: make_jax_iterator": "what shapes batches is named alike in all adapters",
    "adapters/torch/_loader.py: make_dataloader": "what shapes batches is named alike in all adapters",
    "storage/__init__.py: open_storage": "folders and buckets are opened by one function, by keywords",
    "storage/_storage.py: CacheStorage.append": "those of submit, and what is appended to",
    "storage/_storage.py: CacheStorage.cacheable": "how a source is read is said beside it, by keywords",
    "storage/_storage.py: CacheStorage.submit": "how a source is read is said beside it, by keywords",
    "storage/_classic.py: S3Configurations.__init__": "the arguments of yogadl 0.1.4 stay",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    """Yield each function of the library with the name of its file, and its own within that."""
    for path in sorted(LIBRARY.rglob("*.py")):
        for name, function in functions_in(ast.parse(path.read_text("utf-8"))):
            yield f"{path.relative_to(LIBRARY).as_posix()}: {name}", function


def functions_in(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        name = f"{prefix}{child.name}" if isinstance(child, Function | ast.ClassDef) else prefix
        if isinstance(child, Function):
            yield name, child
        yield from functions_in(child, f"{name}." if isinstance(child, Function | ast.ClassDef) else prefix)


def line_count(function: Function) -> int:
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is not None:
        lines -= function.body[0].end_lineno - function.body[0].lineno + 1
    return lines


def parameter_count(function: Function) -> int:
    """Count what a caller may give: not `self` or `cls`."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return len([item for item in every if item is not None and item.arg not in ("self", "cls")])


def test_no_file_is_too_long():
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in LIBRARY.rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > FILE_LINES} == {}


def test_no_function_is_too_long():
    lines = {name: line_count(function) for name, function in functions()}
    assert {name: count for name, count in lines.items() if count > FUNCTION_LINES} == {}


def test_no_function_has_too_many_parameters_but_those_with_a_reason():
    counts = {name: parameter_count(function) for name, function in functions()}
    found = {name for name, count in counts.items() if count > PARAMETERS}
    assert found - MORE_PARAMETERS.keys() == set(), f"more than {PARAMETERS} parameters"
    assert MORE_PARAMETERS.keys() - found == set(), "these need no exception any more: take it away"
