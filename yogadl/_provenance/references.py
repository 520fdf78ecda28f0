"""Find the names that a piece of code reads from outside of itself."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field


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
    finder = _Finder()
    finder.visit(node)
    return tuple(sorted(finder.found))


class _Finder(ast.NodeVisitor):
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
        self._inside(scope, body)

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
        scope = _Scope(is_class=True)
        scope.bound |= {parameter.name for parameter in getattr(node, "type_params", [])}
        self._scopes.append(scope)
        for statement in node.body:
            # In order, since `x = x` reads the outer x first.
            self.visit(statement)
            made = _scope_of([statement])
            scope.bound |= made.bound
            scope.imported |= made.imported
        self._scopes.pop()

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)
        scope = _scope_of([generator.target for generator in node.generators])
        inside = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for number, generator in enumerate(node.generators):
            inside += [generator.target, *generator.ifs, *([generator.iter] if number else [])]
        self._inside(scope, inside)

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def _inside(self, scope: _Scope, nodes: Iterable[ast.AST]) -> None:
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
    for node in _own_nodes(nodes):
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
    found = {}
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found[alias.asname or alias.name] = Reference(alias.name, (alias.name,), module)
        elif alias.asname:
            found[alias.asname] = Reference(alias.name, (), alias.name)
        else:
            name = alias.name.partition(".")[0]
            found[name] = Reference(name, (), name)
    return found


def _own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes below that are not in an inner scope."""
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
        yield from _own_nodes(inner)
