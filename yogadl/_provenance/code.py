"""Read the code of functions, classes and modules as text to hash, and find the names that it reads.

The text is of the code's syntax tree, without all that has no effect, such as comments and annotations. The
names are the globals and closure variables that the code reads, and the modules that it imports.
"""

import __future__

import ast
import copy
import dis
import functools
import linecache
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Final

from yogadl._core.process import ProcessLock
from yogadl._provenance.members import functions_of, is_generated, is_made_by_call

# Find the names that a piece of code reads from outside of itself.


@dataclass(frozen=True, order=True)
class Reference:
    """A name that is read from outside, with the attributes taken of it.

    Args:
        name: The name; ``np`` for ``np.linalg.norm``.
        attributes: The attributes; ``("linalg", "norm")`` for the same.
        module: The module of an import statement inside of the code; empty for a global or closure variable.
    """

    name: str
    attributes: tuple[str, ...] = ()
    module: str = ""


@dataclass
class _Scope:
    """The names that a function, lambda, comprehension or class binds."""

    is_class: bool
    bound: set[str] = field(default_factory=set)
    imported: dict[str, Reference] = field(default_factory=dict)
    declared_global: set[str] = field(default_factory=set)


def names_read(node: ast.AST) -> tuple[Reference, ...]:
    """Return the names that a normalised function or class reads from outside, in alphabetical order.

    A local name that equals a global is not included, nor are names in a string given to ``eval``.
    """
    finder = _NameFinder()
    finder.visit(node)
    return tuple(sorted(finder.found))


class _NameFinder(ast.NodeVisitor):
    """Collects the names that a tree reads and that no scope inside of the tree binds."""

    def __init__(self) -> None:
        self.found: set[Reference] = set()
        self._scopes: list[_Scope] = []

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Store):
            self._read(node.id, ())

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id, ())  # `total += 1` also reads a global
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        attributes: list[str] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            attributes.insert(0, base.attr)
            base = base.value
        if isinstance(base, ast.Name):
            self._read(base.id, tuple(attributes))
        else:
            self.visit(base)

    def _read(self, name: str, attributes: tuple[str, ...]) -> None:
        for depth, scope in enumerate(reversed(self._scopes)):
            if scope.is_class and depth:
                continue  # methods don't see the names of their class
            if name in scope.imported:
                found = scope.imported[name]
                self.found.add(Reference(name, found.attributes + attributes, found.module))
                return
            if name in scope.bound:
                return
            if name in scope.declared_global:
                break
        self.found.add(Reference(name, attributes))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        body: Sequence[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._visit_all(getattr(node, "decorator_list", []))
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        scope = _scope_of(body)
        every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        scope.bound |= {argument.arg for argument in (*every, node.args.vararg, node.args.kwarg) if argument}
        self._visit_in_scope(scope, body)

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
        scope = _Scope(is_class=True)
        scope.bound |= {parameter.name for parameter in getattr(node, "type_params", [])}
        self._scopes.append(scope)
        for statement in node.body:
            # In order, since `x = x` reads the outer x first.
            self.visit(statement)
            added = _scope_of([statement])
            scope.bound |= added.bound
            scope.imported |= added.imported
        self._scopes.pop()

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)
        scope = _scope_of([generator.target for generator in node.generators])
        inside = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for number, generator in enumerate(node.generators):
            inside += [generator.target, *generator.ifs, *([generator.iter] if number else [])]
        self._visit_in_scope(scope, inside)

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def _visit_in_scope(self, scope: _Scope, nodes: Iterable[ast.AST]) -> None:
        self._scopes.append(scope)
        self._visit_all(nodes)
        self._scopes.pop()

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)


def _scope_of(nodes: Iterable[ast.AST]) -> _Scope:
    """Return the names that these statements bind in their own scope."""
    scope = _Scope(is_class=False)
    nonlocals: set[str] = set()
    for node in _nodes_of_scope(nodes):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                scope.bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                scope.bound.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                scope.bound.add(name)
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                scope.bound.add(name)
            case ast.Global(names=names):
                scope.declared_global |= set(names)
            case ast.Nonlocal(names=names):
                nonlocals |= set(names)
            case ast.Import() | ast.ImportFrom():
                scope.imported |= _imported(node)
    scope.bound -= scope.declared_global | nonlocals
    return scope


def _imported(node: ast.Import | ast.ImportFrom) -> dict[str, Reference]:
    references = {}
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            references[alias.asname or alias.name] = Reference(alias.name, (alias.name,), module)
        elif alias.asname:
            references[alias.asname] = Reference(alias.name, (), alias.name)
        else:
            name = alias.name.partition(".")[0]
            references[name] = Reference(name, (), name)
    return references


def _nodes_of_scope(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield these nodes and all nodes below them that are not in an inner scope."""
    for node in nodes:
        yield node
        inner: Iterable[ast.AST]
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
                continue
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                # `:=` binds outside of a comprehension; its other targets are bound inside.
                inner = [named.target for named in ast.walk(node) if isinstance(named, ast.NamedExpr)]
            case _:
                inner = ast.iter_child_nodes(node)
        yield from _nodes_of_scope(inner)


# Read the code of functions, classes and modules.
#
# The tree is normalised first: comments, layout and docstrings are removed, and so are the annotations of
# functions, which have no effect at run time (a class keeps its own, since they make the fields of a
# dataclass). The decorators and defaults of the function itself are removed, too, since `ingredients` adds
# their values.


_FUTURE_FLAGS: Final = functools.reduce(
    lambda flags, name: flags | getattr(__future__, name).compiler_flag, __future__.all_feature_names, 0
)
# Two threads must not parse at once: CPython counts the depth of all their trees in one variable, and fails
# if the count is wrong at the end: "AST constructor recursion depth mismatch" (seen with 3.11.7).
_PARSE_LOCK: Final = ProcessLock()
_PARSE_ATTEMPTS: Final = 5
_UNHASHED_FIELDS: Final = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Code:
    """The code of one function, class or module.

    Args:
        content: The text to hash: the same in every version of Python, unless it is of compiled code.
        text: The text to show.
        references: The names that the code reads from outside, in order.
    """

    content: str
    text: str
    references: tuple[Reference, ...]


class CodeReader:
    """Finds the source of code objects, parsing each file once. Safe to use from several threads.

    The source of a file that was edited after its import differs from the running code. Therefore the source
    is compiled and compared with the running code. If they differ, or there is no source (``exec``, ``python
    -c``), the running code itself is hashed, which is also exact, but differs by version of Python.
    """

    def __init__(self) -> None:
        self._files: dict[tuple[str, int], _CodeFile | None] = {}
        self._known: dict[tuple[str, CodeType], Code] = {}

    def of_function(self, function: FunctionType) -> Code:
        """Return the code of a function, without its decorators and defaults."""
        key = _filename(function), function.__code__
        known = self._known.get(key)
        if known is None:
            node = self._node_of(function)
            known = _compiled(function.__code__) if node is None else _of_node(node)
            self._known[key] = known
        return known

    def of_class(self, cls: type) -> list[Code]:
        """Return a class's code: an empty list without source, several if the class may be any of them."""
        module = sys.modules.get(cls.__module__)
        names = vars(module) if module else {}
        if is_made_by_call(cls):
            return []  # a class of the same name in the file is another one
        methods = [method for method in functions_of(cls) if not is_generated(method)]
        # The methods' files are not enough: all methods of a dataclass may have been made by exec.
        files = [names.get("__file__"), *map(_filename, methods)]
        for filename in dict.fromkeys(filter(None, files)):
            own = [method for method in methods if _filename(method) == filename]
            for fresh in (False, True):
                file = self._file(filename, 0, names, fresh)
                nodes = file.classes_of(cls, own) if file else []
                inside = [method for node in nodes for method in own if _contains(node, method)]
                # If a method has no node, the file was edited and now defines another class.
                if nodes and all(map(self._node_of, inside)):
                    return list(map(_of_node, nodes))
        return []

    def of_module(self, module: Any) -> Code | None:
        """Return the code of a whole module, without following its names, or ``None`` without source."""
        file = self._file(getattr(module, "__file__", None) or "", 0, vars(module), False)
        if file is None:
            return None
        tree = _normalised(file.tree)
        return Code(dumped(tree), ast.unparse(tree), ())

    def _node_of(self, function: FunctionType) -> _Function | None:
        code = function.__code__
        for fresh in (False, True):
            flags = code.co_flags & _FUTURE_FLAGS
            file = self._file(_filename(function), flags, function.__globals__, fresh)
            node = None if file is None else file.function_of(code)
            if node is not None:
                return node
        return None

    def _file(
        self, filename: str, flags: int, module_globals: Mapping[str, Any], fresh: bool
    ) -> "_CodeFile | None":
        """Return a file as it was at the first use, or, if `fresh`, as it is now (after a reload)."""
        key = filename, flags
        if fresh or key not in self._files:
            linecache.checkcache(filename)
            # The loader of a zip file's module, which is in its globals, can read its source.
            lines = linecache.getlines(filename, dict(module_globals))
            try:
                self._files[key] = _cached_code_file("".join(lines), filename, flags) if lines else None
            except (SyntaxError, ValueError):
                self._files[key] = None  # not Python, such as a page whose examples are run
        return self._files[key]


def _filename(function: FunctionType) -> str:
    """Return the file of a function's code, which cloudpickle may have left out."""
    name = function.__code__.co_filename
    return function.__globals__.get("__file__", name) if name == "<dynamic-code>" else name


class _CodeFile:
    """One source file: its tree, and its compiled code."""

    def __init__(self, text: str, filename: str, flags: int) -> None:
        self.tree = parsed(text, filename)
        self._functions: dict[tuple[int, str], list[_Function]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, _Function):
                decorators = getattr(node, "decorator_list", [])
                line = min(n.lineno for n in (node, *decorators))
                self._functions.setdefault((line, getattr(node, "name", "<lambda>")), []).append(node)
        compiled = compile(text, filename, "exec", flags, dont_inherit=True)
        self._compiled: dict[tuple[int, str], list[CodeType]] = {}
        for code in _code_objects_in(compiled):
            self._compiled.setdefault((code.co_firstlineno, code.co_name), []).append(code)

    def function_of(self, code: CodeType) -> _Function | None:
        """Return the node that compiles to this code, if any."""
        key = code.co_firstlineno, code.co_name
        if code not in self._compiled.get(key, ()):
            return None
        nodes = self._functions.get(key, [])
        if len(nodes) > 1:  # lambdas on one line: the innermost whose body has all instructions
            positions = _positions(code)
            nodes = [
                node for node in nodes if (_is_around(node, positions) if positions else _returns(node, code))
            ]
            nodes.sort(key=lambda node: (-node.lineno, -node.col_offset))
        return nodes[0] if nodes else None

    def classes_of(self, cls: type, methods: Iterable[FunctionType]) -> list[ast.ClassDef]:
        """Return the definitions of a class by its name: the one that has the methods, else all."""
        found: list[ast.AST] = [self.tree]
        for name in cls.__qualname__.split("."):
            if name != "<locals>":
                found = [inner for outer in found for inner in _definitions(outer, name)]
        classes = [node for node in found if isinstance(node, ast.ClassDef)]
        holding = [node for node in classes if any(_contains(node, method) for method in methods)]
        return holding if len(holding) == 1 else classes


# Kept, since a large file takes long to parse, and the builders of a process are in a few files.
_cached_code_file = functools.lru_cache(maxsize=4)(_CodeFile)


def _contains(node: ast.ClassDef, method: FunctionType) -> bool:
    """Return whether a function of the same file is defined inside of a class."""
    return node.lineno <= method.__code__.co_firstlineno <= (node.end_lineno or 0)


def parsed(text: str, filename: str = "<code>") -> ast.Module:
    """Return the tree of a text; a `SyntaxError` or `ValueError` means that it is not Python."""
    with _PARSE_LOCK:
        for _ in range(_PARSE_ATTEMPTS - 1):
            try:
                return ast.parse(text, filename)
            except SystemError:
                pass  # another thread is parsing without this lock
        return ast.parse(text, filename)


def _definitions(outer: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield the definitions of this name inside, except those inside of other definitions."""
    for node in ast.iter_child_nodes(outer):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == name:
                yield node
        else:
            yield from _definitions(node, name)


def _code_objects_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_objects_in(constant)


def _positions(code: CodeType) -> list[tuple[int, int]]:
    """Return line and column of a function's instructions, without those that Python adds at its start."""
    start = code.co_firstlineno, 0
    positions = ((line, column) for line, _, column, _ in code.co_positions() if line and column is not None)
    return [position for position in positions if position != start]


def _is_around(node: _Function, positions: Iterable[tuple[int, int]]) -> bool:
    """Return whether the body of a function has all these positions of the source."""
    nodes: list[Any] = node.body if isinstance(node.body, list) else [node.body]
    start = nodes[0].lineno, nodes[0].col_offset
    end = nodes[-1].end_lineno, nodes[-1].end_col_offset
    return all(start <= position < end for position in positions)


def _returns(node: _Function, code: CodeType) -> bool:
    """Return whether a lambda returns a constant of this code, for which Python 3.12 stores no position."""
    if not isinstance(node.body, ast.Constant):
        return False
    names = tuple(argument.arg for argument in (*node.args.posonlyargs, *node.args.args))
    constant = node.body.value
    return names == code.co_varnames[: code.co_argcount] and any(
        type(constant) is type(held) and constant == held for held in code.co_consts
    )


def _of_node(node: ast.AST) -> Code:
    tree = _normalised(node)
    shown = ast.unparse(tree)
    if isinstance(tree, _Function):
        tree.args.defaults = []
        tree.args.kw_defaults = [None] * len(tree.args.kwonlyargs)
    references = names_read(tree)
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        tree.name = "_"  # the name is in the code of its callers
    return Code(dumped(tree), shown, references)


class _Normaliser(ast.NodeTransformer):
    """Removes code without an effect at run time."""

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        if hasattr(node, "type_params"):
            node.type_params = []
        node.body = _without_annotations(node.body)
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, _effective_statements(block, may_be_empty=name != "body"))
        return node


def _without_annotations(body: list[ast.stmt]) -> list[ast.stmt]:
    """Turn ``x: int = 3`` into an assignment in every block of a function, but not in a class inside."""

    class Assign(ast.NodeTransformer):
        def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
            return node

        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
            assignment = ast.Pass() if node.value is None else ast.Assign([node.target], node.value)
            return ast.copy_location(assignment, node)

    return [Assign().visit(statement) for statement in body]


def _effective_statements(block: list[Any], may_be_empty: bool) -> list[Any]:
    """Return a block without docstrings, other constant expressions, and ``pass``."""
    kept = [
        node
        for node in block
        if not isinstance(node, ast.Pass)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    if kept or may_be_empty or not block or not isinstance(block[0], ast.stmt):
        return kept
    return [ast.Pass()]


def _normalised(node: ast.AST) -> ast.AST:
    copied = copy.deepcopy(node)
    if isinstance(copied, ast.FunctionDef | ast.AsyncFunctionDef):
        copied.decorator_list = []
    return ast.fix_missing_locations(_Normaliser().visit(copied))  # type: ignore[no-any-return]


def dumped(node: Any) -> str:
    """Return a tree as text that is the same in every version of Python, unlike `ast.dump` and `unparse`."""
    if isinstance(node, ast.AST):
        fields = []
        for name, value in ast.iter_fields(node):
            is_value = isinstance(node, ast.Constant) and name == "value"  # and a None there is a value
            if name in _UNHASHED_FIELDS or (not is_value and (value is None or value == [])):
                continue
            if isinstance(node, ast.JoinedStr):
                value = [part for part in value if not (isinstance(part, ast.Constant) and part.value == "")]
            fields.append(f"{name}={dumped(value)}")
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(dumped, node))}]"
    return f"{type(node).__name__} {node!a}"  # the escapes of repr depend on the version of Unicode


def _compiled(code: CodeType) -> Code:
    content = f"compiled by {sys.implementation.cache_tag}: {_code_text(code)}"
    references = sorted(set(_references_of(code, frozenset(code.co_freevars))))
    return Code(content, "", tuple(references))


def _code_text(code: CodeType) -> str:
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_code_text(constant))
        elif isinstance(constant, frozenset):
            constants.append(f"set {sorted(map(ascii, constant))}")
        else:
            constants.append(f"{type(constant).__name__} {constant!a}")
    sizes = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return f"{sizes} {code.co_code.hex()} {names!a} [{', '.join(constants)}]"


def _references_of(code: CodeType, free: frozenset[str]) -> Iterable[Reference]:
    """Yield the names that compiled code reads from outside: globals, imports, and the `free` variables."""
    name, module = "", ""
    attributes: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        operation, value = step.opname, step.argval
        if operation in ("LOAD_ATTR", "LOAD_METHOD") and name:
            attributes = (*attributes, value)
            continue
        if operation in ("EXTENDED_ARG", "PRECALL", "CACHE"):
            continue
        if name:
            yield Reference(name, attributes)
            name, attributes = "", ()
        if operation in ("LOAD_GLOBAL", "LOAD_NAME") or (operation == "LOAD_DEREF" and value in free):
            name = value
        elif operation == "IMPORT_NAME":
            module = value
            yield Reference(value.partition(".")[0], (), value)
        elif operation == "IMPORT_FROM":
            yield Reference(value, (value,), module)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _references_of(constant, free & set(constant.co_freevars))
