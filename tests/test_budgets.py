"""No file, function or list of parameters is too long, and no module too small: see CONTRIBUTING.md."""

import ast
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import yogadl

LIBRARY = Path(yogadl.__file__).parent
FILE_LINES = 800
FUNCTION_LINES = 60  # without its docstring
PARAMETERS = 8
MOST_PARAMETERS = 10  # of what users call, too

# A smaller module that only one other imports is a chapter of that one, and belongs into its file.
MODULE_LINES = 100  # without docstrings, comments and empty lines

# Modules that may be smaller, with the reason.
SMALLER_MODULES = {
    "_format.old_cache": "only the command reads caches of yogadl 0.1.4",
    "_order.random": "loads numpy.random, which takes longer than all else that a hit loads",
    "_views.sequences": "loads windows, which no other stream needs",
    "adapters.dataflow": "every adapter is a module that users import",
    "adapters.sql": "every adapter is a module that users import",
    "adapters.tfds": "every adapter is a module that users import",
    "adapters.grain._source": "every adapter reads its framework's data in a module of this name",
    "adapters.keras._source": "every adapter reads its framework's data in a module of this name",
    "adapters.tensorflow._cache": "the function of 0.1.4, and nothing else uses it",
    "cli._completion": "a sub-command",
    "cli._report_page.markup": "how HTML and SVG are written, apart from what a page says",
    "dataref": "a module of yogadl 0.1.4",
    "tensorflow": "a module of yogadl 0.1.4",
}

# Where an object may be asked what it has, as it is a user's or of another library, or as the reason says.
# All others declare what they are.
GUESSING_ROOMS = (
    "_core", "_views", "_stream", "_order", "_format", "_dataref", "_streamed", "_mix", "storage/_builds",
)  # fmt: skip
GUESSES = {
    "_core/infer.py: nbytes": "a record may have a tensor of any library",
    "_core/json_value.py: tolist": "a record may have a tensor of any library",
    "_core/spec.py: __array__": "a record may have a tensor of any library",
    "_core/spec.py: _fields": "a namedtuple is a tuple of any class that has them",
    "_dataref.py: __getitems__": "an adapter takes a user's own reference",
    "_dataref.py: columns": "an adapter takes a user's own reference",
    "_stream/iterator.py: close": "items may be a generator, or an iterator of Python's",
    "_views/flat.py: __getitem__": "a user's function returns any sequence",
    "_views/records.py: columns": "an adapter makes a source of any class",
    "_views/stages.py: __qualname__": "a user's function may be any object that is called",
    "storage/_builds/growth.py: kind": "a node that is no leaf has a kind",
    "storage/_builds/options.py: submit": "a user's executor may be of any class",
}

# Functions that may have more parameters, with the reason.
MORE_PARAMETERS = {
    "_dataref.py: RecordsRef.bucketed": "what a batch is is said by one call",
    "_dataref.py: RecordsRef.packed": "what a row has is named alike for all kinds of training",
    "_dataref.py: RecordsRef.windows": "what a window is is said by one call, as robotics names it",
    "_streamed.py: StreamedRef.stream": "the seven of yogadl 0.1.4 stay, and resuming needs three more",
    "adapters/grain/_loader.py: make_dataloader": "what shapes batches is named alike in all adapters",
    "adapters/jax.py: make_jax_iterator": "what shapes batches is named alike in all adapters",
    "adapters/torch/_loader.py: make_dataloader": "what shapes batches is named alike in all adapters",
    "storage/__init__.py: open_storage": "folders and buckets are opened by one function, by keywords",
    "storage/_storage.py: CacheStorage.adopt": "those of submit, and how files are read",
    "storage/_storage.py: CacheStorage.append": "those of submit, and what is appended to",
    "storage/_storage.py: CacheStorage.begin": "what submit says of the source, and of tasks",
    "storage/_storage.py: CacheStorage.cacheable": "how a source is read is said beside it, by keywords",
    "storage/_storage.py: CacheStorage.cached": "those of submit and fetch",
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


def test_no_function_has_more_than_ten_parameters():
    counts = {name: parameter_count(function) for name, function in functions()}
    counts["storage/__init__.py: open_storage"] -= 1  # the options of buckets
    assert {name: count for name, count in counts.items() if count > MOST_PARAMETERS} == {}


def modules() -> dict[str, ast.Module]:
    """Return the trees of all modules, by their names within the library."""
    names = {path: path.relative_to(LIBRARY).with_suffix("").as_posix() for path in LIBRARY.rglob("*.py")}
    return {
        name.replace("/", ".").removesuffix("__init__").rstrip("."): ast.parse(path.read_text("utf-8"))
        for path, name in names.items()
    }


def imported_by(tree: ast.Module, names: Collection[str]) -> set[str]:
    """Return the modules of the library that a module imports, at any time and for annotations."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "yogadl":
            package = node.module.removeprefix("yogadl").lstrip(".")
            for alias in node.names:
                inner = f"{package}.{alias.name}".lstrip(".")
                found.add(inner if inner in names else package)
    return found


def code_lines(tree: ast.Module) -> int:
    """Count the lines on which a statement or an expression begins."""
    return len({node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr)})


def test_no_module_is_a_chapter_of_another_but_those_with_a_reason():
    trees = modules()
    importers = Counter(name for tree in trees.values() for name in imported_by(tree, trees))
    packages = {name for name in trees if any(other.startswith(f"{name}.") for other in trees)}
    small = {
        name
        for name, tree in trees.items()
        if importers[name] == 1 and name not in packages and code_lines(tree) < MODULE_LINES
    }
    assert small - SMALLER_MODULES.keys() == set(), "merge each with the module that imports it"
    assert SMALLER_MODULES.keys() - small == set(), "these need no exception any more: take it away"


def guesses() -> Iterator[str]:
    """Yield each attribute that an object is asked for by name, with its file."""
    for name in GUESSING_ROOMS:
        room = LIBRARY / name
        for path in sorted(room.rglob("*.py")) if room.is_dir() else [room.with_suffix(".py")]:
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
                    name = node.args[1]
                    if node.func.id in ("hasattr", "getattr") and isinstance(name, ast.Constant):
                        yield f"{path.relative_to(LIBRARY).as_posix()}: {name.value}"


def test_objects_declare_what_they_are():
    found = list(guesses())
    assert [each for each in found if each not in GUESSES] == [], "declare it in a base class"
    assert sorted(found) == sorted(GUESSES), "each exception is needed once"


def class_names() -> dict[str, list[str]]:
    """Return the files that define each class, by its name without leading underscores."""
    files: dict[str, list[str]] = {}
    for path in sorted(LIBRARY.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                name = node.name.lstrip("_")
                files.setdefault(name, []).append(path.relative_to(LIBRARY).as_posix())
    return files


def test_no_two_classes_have_one_name():
    assert {name: files for name, files in class_names().items() if len(files) > 1} == {}
