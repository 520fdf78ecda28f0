"""build: from a function in a file to a version, and what it says when that does not work."""

import importlib.util
import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest
from command import Ended
from inside import parse_argument, parse_size

pytestmark = pytest.mark.usefixtures("forgets_modules")

CODE = """
import functools
import numpy as np

def squares(count=11, *, offset=0):
    print("hello from the builder")
    for number in range(offset, offset + count):
        yield {"number": number, "square": number**2}

def table():
    return {"x": np.arange(1_000)}

def needs(count, split):
    return [{"count": count, "split": split}]

class Items:
    def __init__(self, count=100):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return {"index": index}
    @classmethod
    def few(cls):
        return cls(3)

class Called:
    def __call__(self, count=2):
        return list(range(count))

called = Called()
ten = functools.partial(squares, 10, offset=1)
"""


def test_it_builds_and_says_so(build, storage):
    ended = build("squares").ends(0)
    assert ended.err == "hello from the builder\n"
    first, second = ended.out.splitlines()
    assert first.startswith("Built d 1 in 0.")
    assert ": 11 records, " in first
    assert second.endswith(storage.fetch("d", "1").fingerprint)
    assert storage.fetch("d", "1")[3] == {"number": 3, "square": 9}


@pytest.mark.parametrize("words", [[], ["--traceback"]])
def test_an_error_of_the_library_is_said_as_it_is(build, file, words):
    file.write_text(
        "from yogadl.errors import StorageError\ndef make():\n    raise StorageError(5, 'it is away')\n"
    )
    ended = build("make", *words).ends(1)
    assert ended.err.splitlines()[-1] == "yogadl: it is away"


def test_the_folder_of_the_storage_is_made(yoga, file, tmp_path):
    assert yoga("build", f"{file}:table", "d", "1", "-s", tmp_path / "new" / "caches").code == 0
    assert yoga("verify", "d", "1", "-s", tmp_path / "new" / "caches").code == 0


def test_the_current_folder_can_be_made_a_storage(yoga, file, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert yoga("build", f"{file}:table", "d", "1").code == 1
    assert yoga("build", f"{file}:table", "d", "1", "-s", ".").code == 0
    assert yoga("build", "../data.py:table", "d", "2").code == 0
    assert yoga("ls").out.count("\n") == 3


def test_a_version_that_is_there_is_served(build, storage):
    build("squares")
    before = storage.info("d", "1")
    ended = build("squares").ends(0)
    assert ended.out.startswith("d 1 is there already, built just now: 11 records, ")
    assert ended.err == "yogadl: nothing was built; --replace builds it again\n"
    assert storage.info("d", "1") == before


@pytest.mark.filterwarnings("always")
def test_a_version_that_other_code_or_arguments_built_is_served_with_a_warning(build, storage):
    build("squares")
    ended = build("squares", "--arg", "count=5").ends(0)
    assert "yogadl: warning: 'd' version '1' was built by other code or arguments" in ended.err
    assert "argument 'count': 11 -> 5" in ended.err
    assert len(storage.fetch("d", "1")) == 11


def test_replace_builds_anew_and_can_be_undone(build, storage, run):
    build("squares")
    old = storage.fetch("d", "1")
    ended = build("squares", "--replace", "--arg", "count=5").ends(0)
    assert ended.out.startswith("Built d 1 in ")
    assert len(storage.fetch("d", "1")) == 5
    assert len(old.gather(range(11))["number"]) == 11
    run("rm", "d", "1")
    run("undelete", "d", "1")
    assert len(storage.fetch("d", "1")) == 5


@pytest.mark.parametrize("replace", [[], ["--replace"]])
def test_where_it_came_from_is_recorded_as_cacheable_does(replace, build, storage):
    build("squares", "--arg", "count=5", *replace)
    builder = storage.info("d", "1").builder
    assert builder["function"] == "data.squares"
    assert builder["source"].startswith("def squares(count")
    assert builder["arguments"] == {"count": "5", "offset": "0"}


def test_what_the_command_built_a_script_finds(build, storage, file):
    build("squares", "--arg", "count=5")
    spec = importlib.util.spec_from_file_location("elsewhere", file)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    # A warning, which is an error here, would say that other code or arguments built it.
    assert len(storage.cacheable("d", "1")(script.squares)(count=5)) == 5


def test_code_and_arguments_can_decide_the_version(run, file, storage):
    def build(*words):
        ended = run("build", f"{file}:squares", "d", "auto", *words).ends(0)
        return ended

    first = build("--json").json
    assert first["version"].startswith("auto-")
    assert first["was_built"]
    assert "is there already" in build().out
    assert build("--arg", "count=5").out.startswith("Built d auto-")
    file.write_text(CODE.replace("number**2", "number**3"))
    ended = build()
    assert ended.out.startswith("Built d auto-")
    assert "number**3" in ended.err.replace(" ", "")
    assert len(storage.versions("d")) == 3
    assert build("--replace").out.startswith("Built d auto-")
    assert len(storage.versions("d")) == 3


def test_explain_says_what_differs(run, file):
    for version, count in (("1", 5), ("2", 6)):
        run("build", f"{file}:squares", "d", version, "--arg", f"count={count}")
    ended = run("explain", "d", "1", "2")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("'d': version '1' -> '2'\n")
    assert "argument count: 5 -> 6\n" in ended.out.replace("'", "")
    document = run("explain", "d", "1", "2", "--json").json
    assert list(document) == ["storage", "id", "version", "other", "differences", "notes"]
    (difference,) = document["differences"]
    assert (difference["before"], difference["after"]) == ("5", "6")
    assert run("explain", "d", "1", "3").code == 1


@pytest.mark.parametrize(
    ("name", "records", "recorded"),
    [
        ("Items", 100, "data.Items"),
        ("Items.few", 3, "data.Items.few"),
        ("called", 2, "data.Called"),
        ("ten", 10, "data.squares"),
        ("table", 1_000, "data.table"),
    ],
)
def test_anything_that_can_be_called_is_a_builder(name, records, recorded, build, storage):
    assert build(name).code == 0
    info = storage.info("d", "1")
    assert (info.records, info.builder["function"]) == (records, recorded)
    again = build(name)
    assert "is there already" in again.out
    assert "warning" not in again.err


def test_the_result_as_json(build, storage):
    document = build("squares", "--json").json
    assert list(document)[:3] == ["storage", "was_built", "elapsed_s"]
    assert document["was_built"] is True
    assert document["fingerprint"] == storage.fetch("d", "1").fingerprint
    assert build("squares", "--json").json["was_built"] is False


def test_arguments_are_json_or_text(build, storage):
    assert build("needs", "--arg", "count=7", "--arg", "split=train").code == 0
    assert storage.fetch("d", "1")[0] == {"count": 7, "split": "train"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", 1), ("a=1.5", 1.5), ("a=true", True), ("a=[1, 2]", [1, 2]), ("a={\"b\": null}", {"b": None}),
        ("a=\"1\"", "1"), ("a=text", "text"), ("a=", ""), ("a=b=c", "b=c"), ("a=/data/x", "/data/x"),
    ],
)  # fmt: skip
def test_an_argument(text, value):
    assert parse_argument(text) == ("a", value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1), ("1000", 1_000), ("256MB", 256_000_000), ("256 mb", 256_000_000), ("1GiB", 2**30),
        ("1.5kB", 1_500), ("2M", 2_000_000), ("1TiB", 2**40), ("7B", 7), ("3k", 3_000), ("2MiB", 2**21),
        ("4G", 4 * 10**9), ("5 GB", 5 * 10**9), ("6T", 6 * 10**12), ("8TB", 8 * 10**12), ("2KiB", 2**11),
    ],
)  # fmt: skip
def test_a_size(text, size):
    assert parse_size(text) == size


def test_the_size_of_files(build, storage):
    assert build("table", "--part-bytes", "4kB").code == 0
    assert storage.info("d", "1").parts == 2


def test_no_workers_are_the_default(build, storage):
    assert build("table", "--workers=0").code == 0
    assert len(storage.fetch("d", "1")) == 1000


@pytest.mark.parametrize("name", ["data.py", "json.py"])
def test_workers_find_what_is_defined_in_the_file(name, file, root, storage):
    """Also if its name is taken: then they get the code itself."""
    path = file.rename(file.with_name(name))
    command = ["build", f"{path}:Items", "d", "1", "--workers", "2", "-s", str(root)]
    child = subprocess.run(
        [sys.executable, "-W", "error", "-m", "yogadl", *command], capture_output=True, text=True
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert storage.fetch("d", "1").gather([0, 99])["index"].tolist() == [0, 99]


def test_a_file_with_any_name(run, file):
    path = file.rename(file.with_name("my-data.py"))
    assert run("build", f"{path}:table", "d", "1").code == 0


def test_neighbours_of_the_file_can_be_imported(run, tmp_path, storage):
    (tmp_path / "broken.py").write_text("COUNT = 4")
    (tmp_path / "data.py").write_text("import broken\ndef make(): return list(range(broken.COUNT))")
    assert run("build", f"{tmp_path / 'data.py'}:make", "d", "1").code == 0
    assert len(storage.fetch("d", "1")) == 4


def test_pickling_is_by_wish_only(run, tmp_path):
    (tmp_path / "data.py").write_text("def make(): return [{'x': {1, 2}}]")
    target = f"{tmp_path / 'data.py'}:make"
    ended = run("build", target, "d", "1")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "field 'x'" in ended.err
    assert run("build", target, "d", "1", "--allow-pickle").code == 0


def test_what_the_library_says_of_a_long_build_is_shown(build, file, storage):
    file.write_text(
        dedent("""
            import logging
            def make():
                logging.getLogger("yogadl").info("yogadl: going on at record %d", 7)
                return [1]
        """)
    )
    assert build("make").err == "yogadl: going on at record 7\n"


def test_a_killed_build_goes_on_and_says_so(build, file, storage):
    code = """
        import numpy as np
        class Make:
            def __len__(self): return 1_000
            def __getitem__(self, i):
                if i == FAILS: raise RuntimeError("killed")
                return np.full(100, i)
    """
    file.write_text(dedent(code).replace("FAILS", "900"))
    assert build("Make", "--part-bytes", "100kB").code == 1
    file.write_text(dedent(code).replace("FAILS", "None"))
    ended = build("Make", "--part-bytes", "100kB").ends(0)
    assert "yogadl: 'd' version '1': continuing at record " in ended.err
    assert np.array_equal(storage.fetch("d", "1")[999], np.full(100, 999))


LATE = """
def rows(count=3):
    for number in range(count):
        yield {"label": number or None, "x": number / 2 if number else None, "a/b": "t" if number else None}
"""


def test_what_comes_in_the_place_of_missing_values(run, file, storage):
    def build(version, *words):
        return run("build", f"{file}:rows", "d", version, *words)

    file.write_text(LATE)
    assert "missing={'label': -1}" in build("1").err
    fills = ["label=-1", "x=nan", "a/b=empty"]
    assert build("1", *[word for fill in fills for word in ("--missing", fill)]).code == 0
    first, second, _ = storage.fetch("d", "1")
    assert np.isnan(first.pop("x"))
    assert first == {"label": -1, "a/b": ""}
    assert second == {"label": 1, "x": 0.5, "a/b": "t"}
    assert build("2", "--json-value", "label", "--json-value", "x", "--json-value", "a/b").code == 0
    assert storage.fetch("d", "2")[0] == {"label": None, "x": None, "a/b": None}
    assert build("3", "--missing", "x=1", "--missing", "x=2").code == 2
    assert build("3", "--missing", "x").code == 2


def test_tasks_say_it_too(build, file, storage):
    file.write_text("def rows(count):\n    return [{'label': number or None} for number in range(count)]\n")
    words = ["--arg", "count=5", "--missing", "label=-7"]
    for task in ("1/2", "2/2"):
        assert build("rows", *words, "--task", task).code == 0
    assert build("rows", "--arg", "count=5", "--missing", "label=-8", "--commit").code == 1
    assert build("rows", *words, "--commit").code == 0
    assert [record["label"] for record in storage.fetch("d", "1")] == [-7, 1, 2, 3, 4]


def test_an_interrupt_of_a_builder_ends_with_130(build, file):
    file.write_text("def make():\n    yield 1\n    raise KeyboardInterrupt")
    assert build("make") == Ended(130, "", "yogadl: interrupted\n")
