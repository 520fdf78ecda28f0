"""What a person at a terminal meets: paths where ids belong, colours, completion, a sign of life."""

import json
import os
import pty
import re
import subprocess
import sys
import termios
import time

import pytest
from inside import _output, set_constants

COLORS = re.compile(r"\x1b\[\d[\d;]*m")
YOGADL = [sys.executable, "-m", "yogadl"]


def on_terminal(*words, **env):
    """Run the command on a terminal of its own, and return what that shows."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [*YOGADL, *map(str, words)], stdin=slave, stdout=slave, stderr=slave,
        env={**kept, "TERM": "xterm", "PYTHON_COLORS": "0", **env},
    )  # fmt: skip
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 1 << 16)
        except OSError:  # Linux: the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(master)
    process.wait()
    return shown.decode()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("{root}/squares", "yogadl head squares VERSION -s {root}"),
        ("{root}/squares/", "yogadl head squares VERSION -s {root}"),
        ("{root}/squares/2", "yogadl head squares 2 -s {root}"),
        ("{root}/squares/versions/2.json", "yogadl head squares 2 -s {root}"),
        ("{root}/squares/parts", "yogadl head squares VERSION -s {root}"),
        ("{root}/more/texts", "yogadl head texts 2024-05 -s {root}/more"),
    ],
)
def test_the_path_of_a_dataset_is_answered_with_the_command(yoga, squares, root, given, meant):
    for rest in ((), ("-s", root)):
        ended = yoga("head", given.format(root=root), *rest)
        assert ended.code == 2
        assert f"is a path, not a dataset's id; you want `{meant.format(root=root)}`" in ended.err
        assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("head {root}/squares 1", "head squares 1"),
        ("rm {root}/squares/1", "rm squares 1"),
        ("rm {root}/squares", "rm squares VERSION"),
        ("tag {root}/squares stable", "tag squares stable VERSION"),
        ("tag {root}/squares/2 stable", "tag squares stable 2"),
        ("tag {root}/squares stable 1", "tag squares stable 1"),
        ("explain {root}/squares 1 2", "explain squares 1 2"),
        ("export {root}/squares/2 out", "export squares 2 out"),
        ("export {root}/squares 2 out", "export squares 2 out"),
        ("build data.py:make {root}/squares 3", "build data.py:make squares 3"),
        ("build data.py:make {root}/squares", "build data.py:make squares VERSION"),
    ],
)
def test_a_path_in_the_place_of_an_id_is_answered_with_all_that_was_given(yoga, squares, root, words, meant):
    ended = yoga(*words.format(root=root).split())
    assert ended.code == 2
    assert f"is a path, not a dataset's id; you want `yogadl {meant} -s {root}`" in ended.err


@pytest.mark.parametrize("name", ["a\nb", "x" * 300, "x/" * 3000, "\0", ""], ids=lambda name: repr(name)[:9])
def test_what_is_neither_a_path_nor_an_id_is_one_line(yoga, squares, root, name):
    ended = yoga("info", name, "1", "-s", root)
    assert ended.code in (1, 2)
    assert ended.err.count("\n") == 1


def test_a_storage_given_to_ls_as_its_id_is_answered(yoga, squares, root, monkeypatch):
    monkeypatch.chdir(root.parent)
    assert f"`yogadl ls -s {root.name}` lists the datasets there" in yoga("ls", root.name).err


def test_a_closed_output_is_no_traceback(squares, root):
    done = subprocess.run(
        ["bash", "-c", '"$@" >&-', "bash", *YOGADL, "ls", "-s", str(root)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_that_is_answered_works(yoga, squares, root):
    answered = re.search("`yogadl (.*)`", yoga("head", f"{root}/squares/2").err)
    assert yoga(*answered[1].split()).code == 0


@pytest.mark.parametrize("command", ["info", "build", "rm", "tag", "explain"])
def test_the_path_of_a_storage_is_answered_for_every_command(yoga, squares, root, command):
    words = {"build": ["data.py:f", root, "1"], "tag": [root, "stable", "1"], "explain": [root, "1", "2"]}
    ended = yoga(command, *words.get(command, [root, "1"]))
    assert ended.code == 2
    assert (
        f"`yogadl ls -s {root}` lists the datasets there, then `yogadl {command} ID ... -s {root}`"
        in ended.err
    )


@pytest.mark.parametrize("location", ["s3://bucket/a prefix", "gs://bucket", "file:///tmp/x"])
def test_the_url_of_a_storage_is_answered_without_asking_it(yoga, location):
    ended = yoga("ls", location)
    assert ended.code == 2
    shown = f"'{location}'" if " " in location else location
    assert f"{location} is the location of a storage" in ended.err
    assert ended.err.endswith(f"`yogadl ls -s {shown}` lists the datasets there\n")


@pytest.mark.parametrize("path", ["/nowhere/at/all", "./nothing", "../nothing", "~/nothing-here/x/", "."])
def test_a_path_of_nothing_is_said(yoga, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    ended = yoga("info", path, "1")
    assert ended.code == 2 or path.startswith("~")
    assert ended.code == 1 or f"{path} is a path, not a dataset's id" in ended.err


def test_a_relative_path_is_answered_where_it_can_be_no_id(yoga, squares, root, monkeypatch):
    monkeypatch.chdir(root.parent)
    relative = f"{root.name}/squares"
    assert "you want `yogadl info squares VERSION" in yoga("info", relative).err
    monkeypatch.chdir(root)
    assert yoga("info", "more/texts", "2024-05").code == 0
    assert yoga("info", relative, "1", "-s", root).code == 1  # an id that is not there


def test_errors_are_red_and_heads_of_tables_bold_on_a_terminal(squares, root):
    assert "\x1b[1mdataset" in on_terminal("ls", "-s", root)
    assert "\x1b[1;31myogadl:\x1b[0m there is no" in on_terminal("info", "squares", "9", "-s", root)


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"NO_COLOR": "0"}, {"TERM": "dumb"}])
def test_who_wants_no_colours_gets_none(squares, root, env):
    at = ("-s", root)
    for words in (("ls", "squares", *at), ("info", "squares", "9", *at), ("doctor", "/nowhere")):
        shown = on_terminal(*words, **env)
        assert words[1] in shown
        assert not COLORS.search(shown)


def test_an_empty_no_color_says_nothing(squares, root):
    assert COLORS.search(on_terminal("ls", "-s", root, NO_COLOR=""))


def test_what_is_no_terminal_gets_no_colours(squares, root):
    for words in (("ls", "-s", root), ("info", "squares", "9", "-s", root)):
        done = subprocess.run([*YOGADL, *map(str, words)], capture_output=True, text=True)
        assert "squares" in done.stdout + done.stderr
        assert "\x1b" not in done.stdout + done.stderr


class Terminal:
    """In place of stderr: keeps what is written, and says when."""

    def __init__(self, is_terminal=True):
        self.text = ""
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_a_command_that_takes_long_shows_that_until_it_says_something(monkeypatch, capsys):
    terminal = Terminal()
    set_constants(monkeypatch, WAITING_DELAY_S=0.02, TICK_S=0.02)
    monkeypatch.setattr(sys, "stderr", terminal)
    _output.wait("yogadl ls")
    deadline = time.monotonic() + 20
    while terminal.text.count("yogadl ls: ") < 2:
        assert time.monotonic() < deadline
    _output.say("done")
    assert terminal.text.endswith("\r\x1b[K")  # the line is free again
    shown = terminal.text
    time.sleep(0.1)
    assert terminal.text == shown
    _output.stop_waiting()
    assert terminal.text == shown


@pytest.mark.parametrize(("delay_s", "is_terminal"), [(60, True), (0, False)])
def test_what_is_quick_or_seen_by_nobody_shows_nothing(monkeypatch, capsys, delay_s, is_terminal):
    terminal = Terminal(is_terminal)
    set_constants(monkeypatch, WAITING_DELAY_S=delay_s)
    monkeypatch.setattr(sys, "stderr", terminal)
    _output.wait("yogadl ls")
    _output.stop_waiting()
    assert terminal.text == ""


def completed(line, shell="bash"):
    """Ask a real bash, which has sourced what the command prints, how the line may go on."""
    script = f"""
        yogadl() {{ {sys.executable} -m yogadl "$@"; }}
        export -f yogadl
        eval "$(yogadl completion bash)"
        COMP_LINE={json.dumps(line)} COMP_POINT={len(line)} COMP_WORDBREAKS=" "
        COMP_WORDS=($COMP_LINE) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMP_TYPE=9
        _python_argcomplete yogadl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [word.strip() for word in done.stdout.split("\n") if word.strip()]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("yogadl und", ["undelete"]),
        ("yogadl info --js", ["--json"]),
        ("yogadl plan x --shuffle gl", ["global"]),
        ("yogadl info -s {root} sq", ["squares"]),
        ("yogadl info -s {root} squares st", ["stable"]),
        ("yogadl info -s s3://bucket sq", []),
        ("yogadl info -s /nowhere sq", []),
    ],
)
def test_bash_completes_commands_options_ids_and_versions(squares, root, line, words):
    pytest.importorskip("argcomplete")
    squares.tag("squares", "stable", "2")
    assert completed(line.format(root=root)) == words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_code(yoga, shell):
    pytest.importorskip("argcomplete")
    ended = yoga("completion", shell)
    assert ended.code == 0
    assert "yogadl" in ended.out


def test_without_argcomplete_the_command_says_how_to_install_it(yoga, monkeypatch):
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    ended = yoga("completion", "bash")
    assert ended.code == 1
    assert "pip install 'yogadl[completion]'" in ended.err


def test_what_changes_something_says_so_in_json(yoga, squares, root):
    tagged = json.loads(yoga("tag", "squares", "stable", "2", "-s", root, "--json").out)
    assert tagged == {"storage": str(root), "id": "squares", "tag": "stable", "version": "2"}
    untagged = json.loads(yoga("untag", "squares", "stable", "-s", root, "--json").out)
    assert untagged == {"storage": str(root), "id": "squares", "tag": "stable"}
    removed = json.loads(yoga("rm", "squares", "1", "-s", root, "--json").out)
    assert removed == {"storage": str(root), "id": "squares", "version": "1"}
    back = json.loads(yoga("undelete", "squares", "1", "-s", root, "--json").out)
    assert (back["id"], back["version"], back["records"]) == ("squares", "1", 11)


def test_the_bar_of_the_demo_reaches_the_end(tmp_path):
    assert "100% " in on_terminal("demo", "--dir", tmp_path, "--records", 1_009)
