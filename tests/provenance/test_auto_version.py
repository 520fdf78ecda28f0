"""version="auto": it changes with whatever decides what is built, and with nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from versioned_project import DATA, auto, grown

CHANGES = {
    "an operator of the builder": ("data", "np.array(load_all) * scale", "np.array(load_all) + scale"),
    "a number in it": ("data", "len(shown) > 10_000", "len(shown) > 10_001"),
    "a statement taken out": ("data", "    log.info(", "    print('', end='') if False else log.info("),
    "a message of an error": ("data", '"too long: "', '"far too long: "'),
    "a default that is used": ("data", "def build(n=3,", "def build(n=4,"),
    "a default by way of a global": ("data", "SCALE = 2", "SCALE = 3"),
    "a default of a keyword": ("data", "color=Color.RED", "color=Color.BLUE"),
    "a function that it calls": ("work", "return decode(i) * depth", "return decode(i) + depth"),
    "a function that that calls": ("work", "return v * 2", "return v * 3"),
    "a default of a function": ("work", "def decode(v, shift=0)", "def decode(v, shift=1)"),
    "a default of a function, by a global": ("work", "DEPTH = 4", "DEPTH = 5"),
    "a function imported by another name": ("work", "n if n < 1", "n if n < 2"),
    "a function that calls back": ("work", "2 * repeat(n)", "3 * repeat(n)"),
    "a function imported when it runs": ("work", "def late(v):\n    return v", "def late(v):\n    return -v"),
    "a method": ("work", "self.shift(v) * self.amount", "self.shift(v) - self.amount"),
    "a method of a base class": ("work", "return v + self.bias", "return v - self.bias"),
    "an attribute of a base class": ("work", "bias = 7", "bias = 8"),
    "a field of a dataclass": ("work", "amount: int", "amount: int = 0\n    more: int = 0"),
    "a decorator of a class": ("work", "@dataclass\n", "@dataclass(order=True)\n"),
    "the state of an object": ("data", "Augment(3,", "Augment(4,"),
    "a set": ("data", '"lily", "iris"', '"lily", "tulip"'),
    "a dict's value": ("data", '"y": 2', '"y": 3'),
    "the order of a dict, which may be that of fields": ("data", '"x": 1, "y": 2', '"y": 2, "x": 1'),
    "an array's content": ("data", "[0.5, 0.25]", "[0.5, 0.125]"),
    "an array's dtype": ("data", "0.25])", "0.25], np.float32)"),
    "a path": ("data", 'Path("raw")', 'Path("cooked")'),
    "a partial's argument": ("data", "decode, shift=1", "decode, shift=2"),
    "a partial's function": ("data", "partial(decode, shift=1)", "partial(load, depth=1)"),
    "a lambda": ("data", "lambda v: v + 1)", "lambda v: v + 2)"),
    "which of two lambdas": ("data", "ADD, TAKE =", "TAKE, ADD ="),
    "a closure's variable": ("data", "counter(5)", "counter(6)"),
    "a closure's code": ("data", "return v * step", "return v / step"),
    "a nested function": ("data", "return unused * settings.SIZE", "return unused + settings.SIZE"),
    "a constant of another module": ("settings", "SIZE = 32", "SIZE = 64"),
    "a setting that is read": ("settings", "depth=3", "depth=4"),
    "an enum's value": ("work", "RED = 1", "RED = 3"),
    "a global bound to another function": ("data", "decode, load, rep", "decode, decode as load, rep"),
    "a library's other function": ("data", "sorted(NAMES)", "list(NAMES)"),
    "int for float": ("settings", "SIZE = 32", "SIZE = 32.0"),
    "an assertion": ("work", "def helper(v):\n", "def helper(v):\n    assert v >= 0\n"),
}  # fmt: skip


@pytest.mark.parametrize("edit", CHANGES.values(), ids=CHANGES)
def test_an_edit_that_may_change_the_records_changes_the_version(storage, load, edit):
    assert grown(storage, (load(*edits).build for edits in ([], [edit]))) == [1, 2]


REPEAT = "def repeat(n):\n    return n if n < 1 else twice(n - 1)\n\n\n"
TWICE = "def twice(n):\n    return 2 * repeat(n)\n\n\n"
STAYS = {
    "nothing but the folder": (),
    "a comment": ("data", "# as they come", "# one by one"),
    "the docstring": ("data", '"""Return the records."""', '"""Return all\n    of the records."""'),
    "the docstring of the module": ("data", '"""Build the flowers."""', ""),
    "a docstring of a method": ("work", '        """Apply it."""\n', ""),
    "a docstring where none was": ("work", "def helper(v):\n", 'def helper(v):\n    "Help."\n'),
    "layout": ("data", "[load(i) for i in range(n)]", "[\n  load(i)\n  for i in range( n )]"),
    "lines added above": ("work", "import enum\n", "import enum\n\n\n# Some colours.\n\n"),
    "quotes": ("data", '"too long: "', "'too long: '"),
    "a number's spelling": ("data", "10_000", "10000"),
    "an annotation of an argument": ("data", "def inner(v: float) -> float", "def inner(v: int) -> int"),
    "an annotation of a result": ("work", "def load(i, depth=DEPTH):", "def load(i, depth=DEPTH) -> int:"),
    "an annotation of a variable": ("data", "total: float =", "total ="),
    "a variable that is only annotated": ("work", "def twice(n):\n", "def twice(n):\n    m: int\n"),
    "a pass": ("work", "def twice(n):\n", "def twice(n):\n    pass\n"),
    "a global that nothing reads": ("data", "UNUSED = 1", "UNUSED = 2"),
    "a function not called": ("work", "nobody_calls(v):\n    return v", "nobody_calls(v):\n    return 0"),
    "a function whose name is shadowed": ("data", "return v + UNUSED", "return v - UNUSED"),
    "a lambda beside": ("data", "lambda v: v - 1", "lambda v: v - 2"),
    "a setting that is not read": ("settings", "depth=3, rate=0.1", "depth=3, rate=0.2"),
    "a constant beside": ("settings", "RATE = 0.1\n", "RATE = 0.2\n"),
    "the order of a set": ("data", '{"rose", "lily", "iris"}', '{"iris", "rose", "lily"}'),
    "a value worked out in another way": ("data", "SCALE = 2", "SCALE = 1 + 1"),
    "a path spelt in another way": ("data", 'Path("raw") / "flowers"', 'Path("raw/flowers")'),
    "an array made in another way": ("data", "([0.5, 0.25])", "([2.0, 1.0]) / 4"),
    "a logger's name": ("data", "logging.getLogger(__name__)", 'logging.getLogger("flowers")'),
    "a default spelt in another way": ("work", "def decode(v, shift=0)", "def decode(v, shift=1 - 1)"),
    "functions in another order": ("work", REPEAT + TWICE, TWICE + REPEAT),
    "a cache around a function": ("work", "def helper(", "import functools\n@functools.cache\ndef helper("),
    "an import that nothing uses": ("data", "import functools\n", "import functools\nimport decimal\n"),
    "the builder's own name": ("data", "def build(", "def build(): ...\n\n\ndef make("),
}  # fmt: skip


@pytest.mark.parametrize("edit", STAYS.values(), ids=STAYS)
def test_an_edit_that_changes_no_record_does_not_change_the_version(storage, load, edit):
    assert len(auto(storage, load().build)) == 1
    module = load(*([edit] if edit else []))
    versions = auto(storage, getattr(module, "make", module.build))
    assert len(versions) == 1, str(storage.explain("d", *versions))


def test_the_version_is_the_same_for_ever(storage, load):
    """On every machine, with every version of Python and numpy: else everybody would build anew."""
    assert auto(storage, load().build) == ["auto-2474aa96a01d86ed"]


SCRIPT = """\
import sys
import yogadl

storage = yogadl.open_storage(sys.argv[1])
{import_line}

if __name__ == "__main__":
    storage.cacheable("d", "auto")({function})()
"""


def run(folder, *arguments, seed="0", **environment):
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(path), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_it_is_the_same_in_every_process_however_it_was_started(storage, load, tmp_path):
    module = load()
    folder, root = Path(module.__file__).parent, Path(storage.location)
    auto(storage, module.build)
    (folder / "imports.py").write_text(SCRIPT.format(import_line="import data", function="data.build"))
    # The very same function, but of __main__.
    (folder / "runs.py").write_text(DATA + SCRIPT.format(import_line="", function="build"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in folder.glob("*.py"):
        (elsewhere / path.name).write_text(path.read_text())
    run(folder, "imports.py", root, seed="1")
    run(folder, "runs.py", root, seed="2")
    run(folder, "-O", "-m", "runs", root, seed="3")
    run(elsewhere, "imports.py", root, PYTHONDONTWRITEBYTECODE="1")
