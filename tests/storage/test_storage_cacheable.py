"""cacheable: built once, served ever after, and never silently out of date."""

import contextvars
import functools
import inspect
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent

import numpy as np
import pytest
from inside import Describer, difference

import yogadl
from yogadl.errors import ConfigurationError, UnsupportedDataError


def define(tmp_path, body, name="build"):
    """Return the function that `body` defines, its source on the disk as inspect needs it."""
    path = tmp_path / f"code_{len(list(tmp_path.glob('code_*')))}.py"
    path.write_text(dedent(body))
    namespace = {"__name__": "code", "np": np, "functools": functools}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    return namespace[name]


def test_it_builds_once_and_serves_ever_after(storage):
    calls = []

    @storage.cacheable("d", "1")
    def build(count, *, start=0):
        """Say how."""
        calls.append(count)
        return [{"n": n} for n in range(start, start + count)]

    first, second = build(5, start=2), build(5, start=2)
    assert calls == [5]
    assert [int(record["n"]) for record in first] == [2, 3, 4, 5, 6]
    assert first.fingerprint == second.fingerprint
    assert storage.fetch("d", "1").fingerprint == first.fingerprint
    assert storage.info("d", "1").builder["arguments"] == {"count": "5", "start": "2"}
    assert "def build" in storage.info("d", "1").builder["source"]


def test_hits_describe_the_function_once_for_the_same_plain_arguments(storage, monkeypatch):
    calls = []
    describe = Describer.call
    monkeypatch.setattr(Describer, "call", lambda self, *given: calls.append(given) or describe(self, *given))

    @storage.cacheable("d", "1")
    def build(value=1):
        return [1, 2, 3]

    for _ in range(3):
        build(1)
    assert len(calls) == 1
    with pytest.warns(UserWarning, match="built by other code or arguments"):
        build(True)  # another type
    with pytest.warns(UserWarning, match="built by other code or arguments"):
        build([1])
    build([1])  # it may have changed
    assert len(calls) == 4
    storage.delete("d", "1")
    build(1)
    build(1)
    assert len(calls) == 5


def test_the_decorated_function_keeps_its_face(storage):
    def build(count: int = 3) -> list[int]:
        """Say how."""
        return list(range(count))

    decorated = storage.cacheable("d", "1")(build)
    assert decorated.__name__ == "build"
    assert decorated.__doc__ == "Say how."
    assert decorated.__wrapped__ is build
    assert inspect.signature(decorated) == inspect.signature(build)


def generated():
    yield from (1, 2)


@pytest.mark.parametrize(
    "make",
    [lambda: [1, 2], lambda: iter([1, 2]), lambda: np.arange(2), lambda: lambda: iter([1, 2]), generated],
)
def test_any_source_may_be_returned(storage, make):
    assert len(storage.cacheable("d", "1")(make)()) == 2


def test_another_reference_may_be_returned(storage):
    @storage.cacheable("raw", "1")
    def raw():
        return np.arange(10)

    @storage.cacheable("small", "1")
    def small():
        return raw()[2:5]

    assert small().gather([0, 1, 2]).tolist() == [2, 3, 4]
    assert storage.datasets() == ["raw", "small"]


def test_a_method_may_be_a_builder(storage):
    class Project:
        count = 3

        @storage.cacheable("d", "1")
        def build(self):
            return list(range(self.count))

    assert len(Project().build()) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Project().build()) == 3


def test_a_partial_and_an_object_with_call_are_builders(storage):
    def build(count, start):
        return list(range(start, start + count))

    class Builder:
        def __call__(self, count):
            return list(range(count))

    assert len(storage.cacheable("d", "1")(functools.partial(build, 3, start=1))()) == 3
    assert storage.info("d", "1").builder["arguments"] == {"count": "3", "start": "1"}
    assert len(storage.cacheable("d", "2")(Builder())(4)) == 4


def test_a_builder_that_fails_publishes_nothing_and_may_be_called_again(storage):
    attempts = []

    @storage.cacheable("d", "1")
    def build():
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionResetError("the download broke off")
        return [1]

    with pytest.raises(ConnectionResetError, match="broke off"):
        build()
    assert storage.datasets() == []
    assert len(build()) == 1


def test_a_builder_that_asks_for_its_own_result_is_told_so(storage):
    @storage.cacheable("d", "1")
    def build():
        return build()

    @storage.cacheable("e", "1")
    def lazily():
        yield from lazily()

    @storage.cacheable("f", "1")
    def by_submit():
        storage.submit([1], "f", "1")

    for function in (build, lazily, by_submit):
        with pytest.raises(ConfigurationError, match="a function that builds a version can't read"):
            function()
    assert storage.datasets() == []


@pytest.mark.parametrize("shared", [False, True])
def test_a_builder_that_asks_for_itself_from_a_thread_of_its_own_is_warned_of(tmp_path, caplog, shared):
    storage = yogadl.open_storage(tmp_path, shared=shared)

    @storage.cacheable("d", "1")
    def build():
        thread = threading.Thread(target=build)
        thread.start()
        threads.append(thread)
        deadline = time.monotonic() + 60
        while "this very process" not in caplog.text and time.monotonic() < deadline:
            thread.join(0.01)  # where a user's would have no limit
        return [1]

    threads = []
    build()
    threads[0].join()
    assert "waiting for 'd' version '1'" in caplog.text
    assert (
        "the builder has started the thread that waits here, and waits for that thread, this never ends"
        in caplog.text
    )


def test_a_thread_that_has_the_builders_context_is_told_that_it_asks_for_its_own_result(storage):
    @storage.cacheable("d", "1")
    def build():
        with ThreadPoolExecutor() as pool:
            pool.submit(contextvars.copy_context().run, build).result()

    with pytest.raises(ConfigurationError, match="a function that builds a version can't read"):
        build()


def test_a_thread_that_outlives_the_builder_which_started_it_may_replace_the_cache(storage):
    with ThreadPoolExecutor() as pool:
        contexts = []

        @storage.cacheable("d", "1")
        def build():
            contexts.append(contextvars.copy_context())
            return [1]

        build()
        pool.submit(contexts[0].run, storage.submit, [2], "d", "1").result()
    assert storage.fetch("d", "1")[0] == 2


def test_the_options_are_those_of_submit(storage):
    said = []
    options = {"build": yogadl.BuildOptions(part_bytes=80, progress=lambda *args: said.append(args))}
    storage.cacheable("d", "1", **options)(lambda: np.arange(100))()
    assert storage.info("d", "1").parts == 10
    assert said[-1][:2] == (100, 100)
    assert storage.cacheable("p", "1", records=yogadl.RecordOptions(allow_pickle=True))(
        lambda: [None, {1}]
    )()[1] == {1}
    with pytest.raises(ConfigurationError, match="allow_pickle"):
        storage.fetch("p", "1")
    refused = storage.cacheable("q", "1")(lambda: [None])
    with pytest.raises(UnsupportedDataError, match="record 0"):
        refused()


# What changed since.

BUILD = """
def build(count=3):
    return list(range(count))
"""


def served_after(storage, tmp_path, body, *args, version="1"):
    """Build with BUILD, then call what `body` defines twice; return the warnings' texts."""
    storage.cacheable("d", version)(define(tmp_path, BUILD))()
    changed = storage.cacheable("d", version)(define(tmp_path, body))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(changed(*args)) == 3
        assert len(changed(*args)) == 3
    assert all(warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    "body",
    [
        BUILD,
        "def build( count = 3 ) :\n  # a comment\n  return (list(\n    range(count)))  # another\n",
        'def build(count=3):\n    """Say how."""\n    return list(range(count))\n',
        "@functools.lru_cache\ndef build(count=3):\n    return list(range(count))\n",
        "if True:\n    def build(count=3):\n\n        return list(range(count))\n",
    ],
    ids=["the same", "layout and comments", "a docstring", "a decorator", "indented"],
)
def test_what_builds_the_same_warns_of_nothing(storage, tmp_path, body):
    assert served_after(storage, tmp_path, body) == []


# What is called then, with which arguments, and what the warning says.
CHANGED = [
    (BUILD.replace("(count)", "(count, 0, -1)"), (), ("'d' version '1'", "return list(range(count))",
     "return list(range(count, 0, -1))", "use the version '2'", "returned as it is")),
    ("def build(count=3):\n    print(end='')\n    return list(range(count))\n", (), ("print",)),
    ("def build(count=3):\n    return list(range(count)) or [1]\n", (), ("or [1]",)),
    ("def build(count=3, extra=1):\n    return list(range(count))\n", (), ("extra",)),
    ("def build(count=3):\n    yield from range(count)\n", (), ("yield from",)),
    (BUILD, (7,), ("argument 'count': 3 -> 7",)),
]  # fmt: skip


@pytest.mark.parametrize(("body", "arguments", "says"), CHANGED)
def test_what_changed_is_served_with_one_warning_that_shows_it(storage, tmp_path, body, arguments, says):
    (text,) = served_after(storage, tmp_path, body, *arguments)
    for words in says:
        assert words in text
    assert ("source code" in text) == (not arguments)


@pytest.mark.parametrize(
    ("version", "following"),
    [("1", "2"), ("9", "10"), ("v1.9", "v1.10"), ("train", "train-2"), ("a/b3", "a/b4")],
)
def test_the_next_version_is_a_name_to_paste(storage, tmp_path, version, following):
    (text,) = served_after(storage, tmp_path, BUILD, 7, version=version)
    assert f"use the version {following!r}" in text


def test_each_kind_of_change_warns_once(storage, tmp_path):
    storage.cacheable("d", "1")(define(tmp_path, BUILD))()
    again = storage.cacheable("d", "1")(define(tmp_path, BUILD))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for count in (4, 5, 4, 5, 3):
            again(count)
    assert len(caught) == 2


def test_a_cache_that_was_submitted_is_served_without_a_word(storage):
    storage.submit([1, 2], "d", "1")

    @storage.cacheable("d", "1")
    def build():
        raise AssertionError("there is one already")

    assert len(build()) == 2


def to_json(build, value):
    return Describer(build, thorough=False).call((value,), {}).builder.to_json()


def argument_change(before, after):
    def build(value):
        """Never called."""

    return difference(to_json(build, before), to_json(build, after))


@pytest.mark.parametrize(
    "value",
    [
        lambda: np.arange(100_000), lambda: "x" * 1000, object, lambda: {"b", "a", "c"},
        lambda: frozenset("abc"), lambda: define, lambda: {"a": [1, 2]}, lambda: float("nan"),
    ],
)  # fmt: skip
def test_an_equal_argument_is_no_change(value):
    assert argument_change(value(), value()) == ""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (np.arange(100_000), np.arange(100_000)[::-1]),
        (np.zeros(3), np.zeros(3, np.float32)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        ("x" * 1000, "x" * 999 + "y"),
        ({"a", "b"}, {"a", "c"}),
        (1, 1.0),
        (1, "1"),
        (None, 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_different_argument_is_a_change(before, after):
    assert "argument 'value'" in argument_change(before, after)


def test_a_set_is_described_the_same_in_every_process():
    described = to_json(lambda value: value, {"c", "a", "b"})["arguments"]["value"]
    assert described.index("a") < described.index("b") < described.index("c")


# Sets of strings, which another hash seed puts in another order, inside of what has a `repr` of its own.
HOLDERS = """
import collections
import dataclasses
import functools
import os
import sys
import types
import warnings

import numpy as np

import yogadl

words = set(sys.argv[2].split())


@dataclasses.dataclass
class Config:
    words: object


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    words: object


class Shown:
    def __init__(self, words):
        self.words = words

    def __repr__(self):
        return f"Shown <{self.words}>"

    def method(self):
        pass


class Words(set):
    pass


Row = collections.namedtuple("Row", "words")
ring = [words]
ring.append(ring)
more = Config(words)
more.more = more
values = [
    [words, {"words": words, 1: (words, [frozenset(words)], (words,))}],
    Config(words),
    Slots(words),
    Config({"a": [(words,)]}),
    {"a": [Config(words)]},
    Config(Slots(frozenset({frozenset(words), Row(frozenset(words))}))),
    {Slots(frozenset(words)), Slots(1), Slots("b")},
    functools.partial(print, words, sep=words),
    collections.deque([words]),
    collections.defaultdict(set, a=words),
    collections.OrderedDict(a=words),
    collections.ChainMap({"a": words}),
    collections.UserList([words]),
    np.array([words, None], object),
    np.array((words, 1), [("a", object), ("b", int)]),
    types.MappingProxyType({"a": words}),
    types.SimpleNamespace(words=words),
    ValueError("no such words", words),
    Shown(words),
    Shown(words).method,
    Shown(Words(words)),
    Row(words),
    Words(words),
    Config(types.SimpleNamespace(words=collections.deque([ValueError(words)]))),
    Config({"environ": os.environ, "words": words}),
    ring,
    more,
]
storage = yogadl.open_storage(sys.argv[1])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for number, value in enumerate(values):
        storage.cacheable(f"number-{number}", "1")(lambda value: [1])(value)
print(len(values), len(caught), *(str(warning.message) for warning in caught), sep="\\n")
"""


def test_a_set_wherever_it_is_held_warns_of_nothing_in_another_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(HOLDERS)

    def warned(seed, words):
        command = [sys.executable, str(script), str(tmp_path / "caches"), words]
        environment = os.environ | {"PYTHONHASHSEED": str(seed), "SEED": str(seed)}
        child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        count, caught, *messages = child.stdout.splitlines()
        return int(caught), int(count), messages

    for seed in range(3):
        caught, count, messages = warned(seed, "rose lily iris tulip")
        assert caught == 0, messages
    caught, count, _ = warned(5, "rose lily iris poppy")
    assert caught == count


SCRIPT = """
import sys
import yogadl

FACTOR = 2


def scaled(number):
    return number * FACTOR


@yogadl.open_storage(sys.argv[1]).cacheable("numbers", "1")
def numbers(count=3):
    return [scaled(number) for number in range(count)]


print(numbers().gather([1])[0])
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("FACTOR = 2", "FACTOR = 3", "FACTOR: 2 -> 3"),
        ("number * FACTOR", "number + FACTOR", "scaled: 'return number * FACTOR' ->"),
        ("range(count)]", "range(1, count + 1)]", "its source code"),
        ("", "", ""),
    ],
)
def test_a_script_copied_to_a_file_of_another_name_is_compared_as_before(tmp_path, old, new, says):
    def run(name, text):
        script = tmp_path / name
        script.write_text(text)
        command = [sys.executable, "-W", "always", str(script), str(tmp_path / "caches")]
        child = subprocess.run(command, capture_output=True, text=True, check=True)
        assert child.stdout == "2\n"
        return child.stderr

    assert run("first.py", SCRIPT) == ""
    warning = run("second.py", SCRIPT.replace(old, new) if old else SCRIPT)
    assert ("was built by other code" in warning) == bool(says)
    assert says in warning
    assert warning.count("->") == bool(says)


def test_what_was_described_without_keys_is_compared_by_name():
    then = {"ingredients": [["global m.SIZE", "1", "1"], ["function m.f", "2", ""]]}
    now = {"ingredients": [["global m.SIZE", "3", "2", "builder  SIZE"], ["function m.f", "2", "", "f"]]}
    assert difference(then, now) == "global m.SIZE: 1 -> 2"


def test_code_written_by_another_python_in_other_quotes_is_the_same():
    assert difference({"source": "return f'{a[\"b\"]}'"}, {"source": "return f\"{a['b']}\""}) == ""
    assert difference({"source": "return f'{a}'"}, {"source": "return f'{b}'"}) != ""
    assert difference({"source": "not python ("}, {"source": "nor is ("}) != ""


def test_what_is_unknown_is_no_change(storage):
    assert difference({}, {"source": "x", "arguments": {"a": "1"}}) == ""
    assert difference({"source": None}, {"source": "x"}) == ""
