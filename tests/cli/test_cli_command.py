"""What all sub-commands have in common: help, errors, exit codes, where the storage is."""

import argparse
import os
import re
import subprocess
import sys
import warnings

import pytest
from cli_files import tree_of
from command import Ended

from yogadl.cli import COMMANDS, NAMES, Exit, command_named
from yogadl.errors import StorageError
from yogadl.storage import CacheStorage

LOOKS = [["ls"], ["info", "squares", "1"], ["head", "squares", "1"], ["verify", "squares", "1"]]
JSON = [*LOOKS, ["prune", "--dry-run"], ["verify", "--all"]]


def test_the_help_is_short_and_names_all(yoga):
    ended = yoga("-h").ends(0)
    lines = ended.out.splitlines()
    assert len(lines) <= 49
    assert max(map(len, lines)) <= 80
    assert re.findall(r"^    ([a-z0-9-]+) ", ended.out, re.MULTILINE) == list(COMMANDS)
    assert "Example" in ended.out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_help_is_the_start_of_the_docstring(name):
    first = command_named(name).help.splitlines()[0]
    assert first.startswith(COMMANDS[name].line.removesuffix("."))


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_that_fits(name, yoga):
    ended = yoga(name, "--help").ends(0)
    assert ended.out.startswith(f"usage: yogadl {name} ")
    assert max(map(len, ended.out.splitlines())) <= 110


@pytest.mark.parametrize("name", COMMANDS)
def test_each_argument_has_help_and_each_without_an_option_a_name_to_show(name):
    parser = argparse.ArgumentParser()
    command_named(name).add_arguments(parser)
    assert [action.dest for action in parser._actions if not action.help] == []
    by_place = [action for action in parser._actions if not action.option_strings and not action.choices]
    assert [action.dest for action in by_place if not action.metavar] == []


def test_without_arguments_all_commands_fit_on_one_screen(yoga):
    ended = yoga()
    lines = ended.out.splitlines()
    assert (ended.code, ended.err) == (Exit.USAGE, "")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert [word for line in lines if line.startswith("  ") for word in line.split()] == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_takes_json_exactly_if_it_is_one_of_a_storage(name):
    parser = argparse.ArgumentParser()
    command_named(name).add_arguments(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    assert ("--json" in options) == ("--storage" in options) == (name not in ("demo", "completion"))


def test_a_command_may_have_two_names(run, squares, root):
    assert command_named("rm") is command_named("delete")
    assert set(NAMES) - set(COMMANDS) == {"rm"}
    first, other = run("delete", "squares", "1"), run("rm", "squares", "2")
    assert first.out.replace("squares 1", "squares 2") == other.out
    assert [entry["version"] for entry in run("ls", "--json").json["versions"]] == ["2024-05"]


def test_the_methods_of_a_storage_that_are_commands_have_one_name():
    of_storage = {"adopt", "append", "delete", "explain", "info", "log", "prune", "recompress", "refresh",
                  "tag", "tags", "undelete", "untag", "verify"}  # fmt: skip
    assert of_storage <= set(COMMANDS)
    assert [name for name in of_storage if not callable(getattr(CacheStorage, name))] == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["ls"], Exit.DONE),
        (["info", "squares", "9"], Exit.FAILED),
        (["verify", "squares", "1"], Exit.FAILED),
        (["info"], Exit.USAGE),
        (["bogus"], Exit.USAGE),
    ],
)
def test_the_exit_code_says_how_it_ended(words, code, run, squares, root):
    if words[0] == "verify":
        for part in (root / "squares").rglob("*.mdb"):
            part.write_bytes(b"")
    assert run(*words).code == code


def test_the_exit_codes_are_those_of_the_page(yoga):
    assert [int(code) for code in Exit] == [0, 1, 2, 130]
    for code in Exit:
        assert f" {int(code)} " in yoga("-h").out


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"demo", "completion"}))
def test_each_command_but_the_demo_has_an_example_and_the_same_option_for_the_storage(name, yoga):
    out = yoga(name, "--help").out
    assert re.search(rf"^Example:\n  yogadl {name} ", out, re.MULTILINE)
    assert re.search("-s( STORAGE)?, --storage", out)  # Python 3.13 says the name once


def loaded_by(*words):
    code = (
        "import sys; from yogadl.cli import main\n"
        f"try: main({list(words)!r})\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    child = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    return set(child.stderr.split())


def commands(loaded):
    """Return the modules of the command among those that are loaded."""
    return {name.removeprefix("yogadl.cli.") for name in loaded if name.startswith("yogadl.cli.")}


def test_the_help_loads_no_storage_and_no_command(squares):
    loaded = loaded_by("--help")
    assert "yogadl.cli" in loaded
    assert "yogadl.storage" not in loaded
    assert {name for name in loaded if name.startswith("yogadl.cli.")} <= {"yogadl.cli._output", "yogadl.cli"}


def test_a_command_loads_no_other(squares, root):
    loaded = loaded_by("ls", "-s", str(root))
    assert commands(loaded) == {"_arguments", "_list", "_output"}
    assert {"tqdm", "cloudpickle"} & loaded == set()


def test_the_current_folder_is_the_default(yoga, run, squares, root, monkeypatch):
    monkeypatch.chdir(root)
    ended = yoga("ls").ends(0)
    assert ended.out == run("ls").out
    assert "squares" in ended.out


def test_a_current_folder_whose_caches_are_all_in_the_trash_still_counts(yoga, squares, root, monkeypatch):
    for key in (("squares", "1"), ("squares", "2"), ("more/texts", "2024-05")):
        squares.delete(*key)
    monkeypatch.chdir(root)
    assert yoga("undelete", "more/texts", "2024-05").code == 0


@pytest.mark.parametrize("words", [["ls"], ["build", "data.py:make", "a", "1"], ["prune"]])
def test_another_current_folder_is_an_error_that_says_what_to_do(words, yoga, tmp_path, monkeypatch):
    (tmp_path / "versions").mkdir()
    (tmp_path / "parts").mkdir()
    monkeypatch.chdir(tmp_path)
    ended = yoga(*words).ends(1)
    assert ended.err.count("\n") == 1
    assert "-s STORAGE" in ended.err
    assert "-s . to begin here" in ended.err


@pytest.mark.parametrize("below", ["", "one"])
def test_a_current_folder_above_or_inside_a_storage_is_none(below, yoga, squares, root, monkeypatch):
    """Taken for one, every manifest in it would be called damaged."""
    monkeypatch.chdir(root.parent / below if not below else root / "more")
    ended = yoga("ls").ends(1)
    if not below:
        assert ended.err.endswith("e.g. -s caches\n")


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (PermissionError(13, "Permission denied", "/data/squares"), 1, "Permission denied: /data/squares"),
        (StorageError(30, "can't move it: Read-only file system"), 1, "can't move it: Read-only file system"),
        (StorageError(28, "no room:\nmake some", "/data/part"), 1, "no room: make some: /data/part"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_of_the_disk_or_an_interrupt_is_told(run, squares, monkeypatch, error, code, says):
    def refuse(*_):
        raise error

    monkeypatch.setattr(type(squares), "info", refuse)
    assert run("info", "squares", "1") == Ended(code, "", f"yogadl: {says}\n")


def test_a_mistake_that_is_not_the_users_is_not_hidden(run, squares, monkeypatch):
    monkeypatch.setattr(type(squares), "info", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        run("info", "squares", "1")


@pytest.mark.parametrize("words", [*LOOKS, ["bench", "squares", "1", "--seconds", "0.01"]])
def test_looking_writes_nothing(words, run, squares, root):
    before = tree_of(root)
    assert run(*words).code == 0
    assert tree_of(root) == before


def test_a_read_only_storage_is_readable_by_a_user_without_rights(squares, root):
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    becomes_nobody = "os.setgroups([]); os.setuid(65534)" if os.geteuid() == 0 else "pass"
    # What is read later is opened or imported before, since folders above it may be closed to nobody.
    code = (
        "import os, sys; os.chdir(sys.argv[1])\n"
        "import importlib, pkgutil, yogadl.cli, yogadl.storage, yogadl._format, yogadl._stream\n"
        "for package in (yogadl.cli, yogadl.storage, yogadl._format, yogadl._stream):\n"
        "    for _, module, _ in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(module)\n"
        "import filelock, tqdm, _strptime, encodings.idna; yogadl.__version__\n"
        f"{becomes_nobody}\n"
        "os.getcwd = lambda: '.'\n"
        "from yogadl.cli import main\n"
        "codes = [main([*words, '-s', '.']) for words in eval(sys.argv[2])]\n"
        "print(codes, main(['rm', 'squares', '1', '-s', '.']))"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(root), repr(LOOKS)]
    child = subprocess.run(command, capture_output=True, text=True)
    assert child.stdout.splitlines()[-1:] == ["[0, 0, 0, 0] 1"], child.stderr
    assert re.search(r"^yogadl: can't .*squares.*denied.*$", child.stderr, re.MULTILINE)


@pytest.mark.parametrize("words", JSON)
def test_json_is_one_document_and_nothing_else(words, run, squares, root):
    ended = run(*words, "--json").ends(0)
    assert ended.err == ""
    document = ended.json
    assert document["storage"] == str(root)


@pytest.mark.parametrize("words", [["ls"], ["head", "squares", "2", "-n", "500"]])
def test_a_reader_that_leaves_gets_no_traceback(words, squares, root):
    command = [sys.executable, "-m", "yogadl", *words, "-s", str(root), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        child.stdout.close()
        assert child.stderr.read() == ""
    assert child.returncode == 1


def test_a_name_that_the_terminal_can_not_show_is_no_error(squares, root):
    squares.submit([{"größe": 1}], "größen", "1")
    command = [sys.executable, "-m", "yogadl", "head", "größen", "1", "-s", str(root)]
    child = subprocess.run(command, capture_output=True, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"})
    assert child.returncode == 0
    assert b"\\xf6" in child.stdout


def test_a_warning_of_ours_is_one_line(run, squares, monkeypatch):
    def warn(*_):
        warnings.warn("this folder\nis on NFS", UserWarning, stacklevel=2)
        return []

    monkeypatch.setattr(type(squares), "datasets", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        ended = run("ls")
    assert "yogadl: warning: this folder is on NFS\n" in ended.err


def test_whether_a_mirror_is_filled_can_be_said(yoga, squares, root, tmp_path):
    words = ["info", "squares", "1", "-s", f"file://{root}", "--mirror", tmp_path / "mirror"]
    assert yoga("head", *words[1:], "--mirror-fill", "never").code == 0
    assert not list((tmp_path / "mirror").rglob("*.mdb"))
    assert yoga("head", *words[1:], "--mirror-fill", "always").code == 0
    assert list((tmp_path / "mirror").rglob("*.mdb"))
    ended = yoga(*words[:-1], "none", "--mirror-fill", "always")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "Mirror(None) keeps nothing: leave out limit and fill" in ended.err
    yoga(*words, "--mirror-fill", "some").ends(2, "--mirror-fill")


def test_a_current_folder_may_be_shared(yoga, squares, root, monkeypatch):
    monkeypatch.chdir(root)
    assert yoga("rm", "squares", "1", "--shared").code == 0
    assert list(root.rglob("leases/*/*.end"))
