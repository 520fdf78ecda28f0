"""Which names a piece of code reads from outside, and which code a function has."""

import ast
import dis
import functools
import importlib
import inspect
import textwrap
import types

import pytest
from inside import CodeReader, dumped, names_read


def names(text):
    """Return the names that the first statement reads, with attributes; imported ones with their module."""
    found = names_read(ast.parse(text).body[0])
    return {".".join((*filter(None, [ref.module]), ref.name, *ref.attributes)) for ref in found}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(a, /, b, *c, d, **e): return a, b, c, d, e, g", "g"),
        ("def f(a=x, *, b=y): pass", "x y"),
        ("def f(): return a.b.c, a.b, d().e, f", "a.b.c a.b d f"),
        ("def f(): a = 1; return a", ""),
        ("def f(): print(a); a = 1", "print"),
        ("def f():\n  global a\n  a = 1\n  return a", "a"),
        ("def f():\n  global a\n  a += 1", "a"),
        ("def f():\n  nonlocal a\n  a += b", "a b"),
        ("def f():\n  a = 1\n  def g():\n    nonlocal a\n    return a\n  return g", ""),
        ("def f():\n  a = 1\n  def g():\n    global a\n    return a\n  return g", "a"),
        ("def f():\n  a = 1\n  def g(): return a, b\n  return g", "b"),
        ("def f():\n  def g(a): return a\n  return a", "a"),
        ("def f(): return [a for a in a]", "a"),
        ("def f(): return [a for b in c for a in b if a and d]", "c d"),
        ("def f(): return {a: b for a, b in c}, {d for d in e}, (g for g in h)", "c e h"),
        ("def f(): return [b := a for a in c], b", "c"),
        ("def f(): return lambda a, b=c: a + b + d", "c d"),
        ("def f():\n  for a in b: pass\n  else: return a", "b"),
        ("def f():\n  with a as b, c as (d, e): return b, d, e", "a c"),
        ("def f():\n  try: pass\n  except A as e: return e", "A"),
        ("def f():\n  match a:\n    case B(c, d=e): return c, e\n    case [*g]: return g", "a B"),
        ("def f():\n  match a:\n    case {'k': v, **w}: return v, w\n    case x: return x", "a"),
        ("def f():\n  match a:\n    case b.C: pass", "a b.C"),
        ("def f():\n  @d\n  def g(a=b): return a\n  return g", "d b"),
        ("def f():\n  class A(B, m=C):\n    x = x\n    y = x\n    def m(self): return x, y", "B C x y"),
        ("def f():\n  class A:\n    a = 1\n    b = [a for _ in c]\n  return A", "a c"),
        ("class A(B):\n  x: T = y\n  def m(self): return self.z, __class__", "B T y __class__"),
        ("def f(): del a.b, c[d]", "a.b c d"),
        ("def f(): a.b = c; a[d] = e", "a.b a c d e"),
        ("def f():\n  import a.b, c.d as e\n  return a.b.g, e.h, c", "a.a.b.g c.d.e.h c"),
        ("def f():\n  from a.b import c, d as e\n  return c.x, e, d", "a.b.c.c.x a.b.e.d d"),
        ("def f():\n  from . import a\n  from ..b import c\n  return a, c", "..a.a ..b.c.c"),
        ("def f():\n  import a\n  def g(): return a.b\n  return g", "a.a.b"),
        ("def f():\n  import a\n  def g(a): return a.b\n  return g", ""),
        ("async def f():\n  async for a in b:\n    async with c as d: yield await d(a)", "b c"),
        ("def f(): return f'{a!r:{b}}' + 'c'", "a b"),
        ("lambda a: a + b", "b"),
    ],
)  # fmt: skip
def test_names_of(text, expected):
    assert names(text) == set(expected.split())


MODULES = [
    "argparse",
    "dataclasses",
    "json.decoder",
    "functools",
    "tempfile",
    "statistics",
    "textwrap",
    "enum",
]


def functions_of(module):
    for value in vars(module).values():
        for member in vars(value).values() if isinstance(value, type) else [value]:
            if isinstance(member, types.FunctionType) and member.__module__ == module.__name__:
                yield member


def loaded(code):
    """Return the globals that compiled code loads."""
    bound = set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            bound.add(step.argval)
        elif step.opname == "LOAD_GLOBAL" or (step.opname == "LOAD_NAME" and step.argval not in bound):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from loaded(constant)


@pytest.mark.parametrize("name", MODULES)
def test_all_functions_of_the_standard_library_read_what_their_compiled_code_loads(name):
    reader, count = CodeReader(), 0
    for function in functions_of(importlib.import_module(name)):
        if function.__code__.co_filename.startswith("<"):
            continue
        code = reader.of_function(function)
        assert not code.content.startswith("compiled"), function
        found = {reference.name for reference in code.references if not reference.module}
        free = set(function.__code__.co_freevars)
        # Annotations and decorators inside of functions are left out of one, and in the other.
        assert found - free - set(loaded(function.__code__)) <= {"__debug__"}, function
        if not any(
            isinstance(node, ast.AnnAssign | ast.arg) and node.annotation for node in tree_of(function)
        ):
            assert set(loaded(function.__code__)) - {"__name__"} <= found, function
        count += 1
    assert count > 5


def tree_of(function):
    return ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function.__code__))))


def test_lambdas_on_one_line_are_told_apart():
    made = [lambda: 1, lambda: 2, lambda: lambda: 3, lambda a: [lambda: a, lambda: -a]]
    reader = CodeReader()
    functions = [*made[:3], made[2](), *made[3](1)]
    texts = [reader.of_function(function).text for function in functions]
    assert texts == [
        "lambda: 1", "lambda: 2", "lambda: lambda: 3", "lambda: 3", "lambda: a", "lambda: -a",
    ]  # fmt: skip


def test_decorators_defaults_and_docstrings_are_no_part_of_a_function():
    reader = CodeReader()

    def one(a=1, *, b=2):
        return a + b

    @functools.wraps(one)
    def two(a: int = 3, *, b: "str" = 4) -> int:
        """Say so."""
        return a + b  # so

    assert reader.of_function(one).content == reader.of_function(two).content
    assert reader.of_function(two).text == "def two(a=3, *, b=4):\n    return a + b"


def test_trees_are_written_in_a_way_that_no_version_of_python_changes():
    tree = ast.parse("def f(a, *b): return f'{a}x' 'y', [None, 1.5, -2], b'\\xff', 'ü', ...")
    assert dumped(tree.body[0]) == (
        "FunctionDef(name=str 'f', "
        "args=arguments(args=[arg(arg=str 'a')], vararg=arg(arg=str 'b')), "
        "body=[Return(value=Tuple(elts=["
        "JoinedStr(values=[FormattedValue(value=Name(id=str 'a'), conversion=int -1), "
        "Constant(value=str 'xy')]), "
        "List(elts=[Constant(value=NoneType None), Constant(value=float 1.5), "
        "UnaryOp(op=USub(), operand=Constant(value=int 2))]), "
        "Constant(value=bytes b'\\xff'), Constant(value=str '\\xfc'), "
        "Constant(value=ellipsis Ellipsis)]))])"
    )
