"""What a person at a terminal meets: paths where ids belong, colours, completion, a sign of life."""

import io
import json
import os
import pty
import re
import subprocess
import sys
import termios
import time

import pytest
from command import Terminal
from inside import _output, set_constants

import yogadl

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


def test_a_closed_output_is_no_traceback(squares, root):
    done = subprocess.run(
        ["bash", "-c", '"$@" >&-', "bash", *YOGADL, "ls", "-s", str(root)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_errors_are_red_and_heads_of_tables_bold_on_a_terminal(squares, root):
    assert "\x1b[1mdataset" in on_terminal("ls", "-s", root)
    assert "\x1b[1;31myogadl:\x1b[0m there is no" in on_terminal("info", "squares", "9", "-s", root)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NO_COLOR": "1"}, "ls squares -s {root}"),
        ({"NO_COLOR": "1"}, "info squares 1 -s {root}"),
        ({"NO_COLOR": "0"}, "info squares 9 -s {root}"),
        ({"TERM": "dumb"}, "ls squares -s {root}"),
        ({"TERM": "dumb"}, "doctor /nowhere"),
    ],
)
def test_who_wants_no_colours_gets_none(squares, root, env, words):
    shown = on_terminal(*words.format(root=root).split(), **env)
    assert words.split()[1] in shown
    assert not COLORS.search(shown)


def test_the_screen_of_commands_has_bold_titles_on_a_terminal_alone(yoga):
    shown = on_terminal()
    assert "\x1b[1mManage versions\x1b[0m" in shown
    assert COLORS.sub("", shown).splitlines() == yoga().out.splitlines()
    assert not COLORS.search(on_terminal(NO_COLOR="1"))


def test_a_bar_shows_the_rate_and_the_time_that_is_left(monkeypatch):
    terminal = Terminal()
    set_constants(monkeypatch, OUTPUT_DELAY_S=0)
    monkeypatch.setattr(sys, "stderr", terminal)
    with _output.Bar("copying", 1000) as bar:
        bar._bar.start_t -= 10  # as if it had begun 10 seconds ago
        bar._bar.last_print_t -= 10
        bar.show(500)
    assert re.search(r"copying:  50%.*500/1\.00k \[00:10<00:10, +50\.\d+?B/s\]", terminal.getvalue())


def test_an_empty_no_color_says_nothing(squares, root):
    assert COLORS.search(on_terminal("ls", "-s", root, NO_COLOR=""))


def test_a_command_that_takes_long_shows_that_until_it_says_something(monkeypatch, capsys):
    terminal = Terminal()
    set_constants(monkeypatch, WAITING_DELAY_S=0.02, TICK_S=0.02)
    monkeypatch.setattr(sys, "stderr", terminal)
    _output.wait("yogadl ls")
    deadline = time.monotonic() + 20
    while terminal.getvalue().count("yogadl ls: ") < 2:
        assert time.monotonic() < deadline
    _output.say("done")
    assert terminal.getvalue().endswith("\r\x1b[K")  # the line is free again
    shown = terminal.getvalue()
    time.sleep(0.1)
    assert terminal.getvalue() == shown
    _output.stop_waiting()
    assert terminal.getvalue() == shown


@pytest.mark.parametrize(("delay_s", "is_terminal"), [(60, True), (0, False)])
def test_what_is_quick_or_seen_by_nobody_shows_nothing(monkeypatch, capsys, delay_s, is_terminal):
    terminal = Terminal() if is_terminal else io.StringIO()
    set_constants(monkeypatch, WAITING_DELAY_S=delay_s)
    monkeypatch.setattr(sys, "stderr", terminal)
    _output.wait("yogadl ls")
    _output.stop_waiting()
    assert terminal.getvalue() == ""


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
        ("yogadl del", ["delete"]),
        ("yogadl delete -s {root} sq", ["squares"]),
        ("yogadl rm -s {root} squares st", ["stable"]),
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
    yoga("completion", shell).ends(0, "yogadl")


def test_without_argcomplete_the_command_says_how_to_install_it(yoga, monkeypatch):
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    yoga("completion", "bash").ends(1, "pip install 'yogadl[completion]'")


def test_what_changes_something_says_so_in_json(run, squares, root):
    tagged = run("tag", "squares", "stable", "2", "--json").json
    assert tagged == {"storage": str(root), "id": "squares", "tag": "stable", "version": "2"}
    untagged = run("untag", "squares", "stable", "--json").json
    assert untagged == {"storage": str(root), "id": "squares", "tag": "stable"}
    removed = run("rm", "squares", "1", "--json").json
    assert removed == {"storage": str(root), "id": "squares", "version": "1"}
    back = run("undelete", "squares", "1", "--json").json
    assert (back["id"], back["version"], back["records"]) == ("squares", "1", 11)


def test_the_bar_of_the_demo_reaches_the_end(tmp_path):
    assert "100%|" in on_terminal("demo", "--dir", tmp_path, "--records", 1_009)


def test_the_version_is_the_librarys(yoga):
    assert yoga("--version").out == f"yogadl {yogadl.__version__}\n"
