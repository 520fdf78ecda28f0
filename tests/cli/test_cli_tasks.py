"""`yogadl build --task K/N` and `--commit`: a version built by tasks that know nothing of each other."""

import itertools
import os
import re
import subprocess
import sys

import pytest

CODE = """
import functools

import yogadl

FACTOR = 1

def read(number, factor=1):
    return [{"n": (number * 10 + n) * FACTOR * factor} for n in range(10)]

def numbers(count=7, factor=1):
    return yogadl.partitioned.of(range(count), functools.partial(read, factor=factor))

class Items:
    def __init__(self, factor):
        self.factor = factor
    def __len__(self):
        return 200
    def __getitem__(self, index):
        return {"n": index * FACTOR * self.factor}

def items(factor=1):
    return Items(factor)

def one(number):
    return read(number)[number:7]

def fewer():
    return yogadl.partitioned.of(range(8), one)
"""


pytestmark = pytest.mark.usefixtures("forgets_modules")


def numbers(storage):
    ref = storage.fetch("d", "1")
    return ref.gather(range(len(ref)))["n"].tolist()


@pytest.mark.parametrize(
    ("name", "records", "tasks"),
    [("numbers", 70, 1), ("numbers", 70, 3), ("numbers", 70, 11),  # more than partitions
     ("items", 200, 1), ("items", 200, 3), ("items", 200, 100)],
)  # fmt: skip
def test_tasks_in_any_order_build_what_one_would(build, storage, name, records, tasks):
    for task in reversed(range(tasks)):
        ended = build(name, "--task", f"{task + 1}/{tasks}")
        assert ended.out.startswith(f"Task {task + 1} of {tasks} has written "), ended.err
        assert storage.versions("d") == []
    ended = build(name, "--commit").ends(0)
    assert ended.out.startswith("Built d 1 in ")
    assert numbers(storage) == list(range(records))
    built = storage.info("d", "1")
    assert built.builder["function"] == f"data.{name}"
    storage.submit([{"n": n} for n in range(records)], "d", "2")
    assert storage.info("d", "2").fingerprint == built.fingerprint


def test_tasks_that_are_repeated_or_late_do_no_harm(build, storage):
    for task in (1, 1, 2, 1, 2):
        build("numbers", "--task", f"{task}/2")
    assert build("numbers", "--commit").code == 0
    digest = storage.info("d", "1").digest
    for words in (["--commit"], ["--task", "1/2"]):
        ended = build("numbers", *words).ends(0)
        assert ended.out.startswith("d 1 is there already, ")
    assert storage.info("d", "1").digest == digest
    assert storage.unfinished() == []


def test_tasks_run_in_processes_of_their_own_all_at_once(file, root, storage):
    command = [sys.executable, "-m", "yogadl", "build", f"{file}:items", "d", "1", "-s", str(root)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    tasks = [["--task", f"{number}/3"] for number in (1, 2, 3, 2)]
    running = [subprocess.Popen([*command, *task], env=environment) for task in tasks]
    assert [process.wait(200) for process in running] == [0] * 4
    subprocess.run([*command, "--commit"], env=environment, check=True, timeout=200)
    assert numbers(storage) == list(range(200))


@pytest.mark.parametrize(
    ("done", "missing"),
    [
        (["1/2"], "3 of 7 partitions are not written yet: run the tasks 2/2"),
        (["2/3"], "run the tasks 1/3, 3/3"),
        (["1/3", "3/4"], "run the tasks 1/4, 2/4"),  # as the last one counted
        (["1/100"], "run the tasks 2/100, 3/100, 4/100, 5/100, 6/100, 7/100"),
        ([], "none of 7 partitions is written yet"),  # nobody said how many there are
    ],
)
def test_the_tasks_that_are_to_be_run_again_are_named_as_they_are_typed(build, storage, done, missing):
    for task in done:
        build("numbers", "--task", task)
    ended = build("numbers", "--commit").ends(1, missing)
    for task in re.findall(r"\d+/\d+", ended.err):
        build("numbers", "--task", task)
    assert build("numbers", "--commit").code == (0 if done else 1)


@pytest.mark.filterwarnings("always::UserWarning")
@pytest.mark.parametrize("words", [["--task", "1/2"], ["--commit"]])
def test_a_version_of_other_code_is_served_with_a_warning(build, file, words):
    build("numbers")
    file.write_text(CODE.replace("count=7", "count=8"))
    ended = build("numbers", *words).ends(0)
    assert "warning: 'd' version '1' was built by other code or arguments" in ended.err
    assert "argument 'count': 7 -> 8" in ended.err
    assert "--replace builds it again" in ended.err


@pytest.mark.parametrize("other", ["code", "arguments"])
def test_a_task_of_other_code_is_named_and_has_no_part_in_what_is_published(build, file, storage, other):
    build("numbers", "--task", "1/2")
    if other == "code":
        file.write_text(CODE.replace("(number * 10 + n)", "(number * 10 + n + 1000)"))
    words = ["--arg", "count=8"] if other == "arguments" else []
    ended = build("numbers", "--task", "2/2", *words).ends(0)
    assert "other tasks of 'd' version '1' have other code, arguments or source" in ended.err
    build("numbers", "--commit", *words).ends(
        1, "not written yet: run the tasks 1/2;", "written by tasks of other code, arguments or source"
    )
    build("numbers", "--task", "1/2", *words)
    assert build("numbers", "--commit", *words).code == 0
    assert len(numbers(storage)) == (80 if words else 70)
    assert numbers(storage)[0] == (1000 if other == "code" else 0)


def test_a_version_is_replaced_by_the_tasks_of_a_run(build, storage):
    storage.submit([1], "d", "1")
    ended = build("numbers", "--task", "1/1", "--replace").ends(2, "--replace by tasks needs --run")
    assert build("numbers", "--task", "1/1", "--replace", "--run", "job-7").code == 0
    again = ["--replace", "--run", "job-7"]
    assert "Built d 1 in " in build("numbers", "--commit", *again).out
    for words in (["--commit"], ["--task", "1/1"]):
        ended = build("numbers", *words, *again).ends(0)
        assert "what the run job-7 has built; --replace with another --run builds it again" in ended.err
    assert numbers(storage) == list(range(70))
    assert storage.unfinished() == []


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([], "none of 7 partitions is written yet"),
        (["2/2"], "4 of 7 partitions are not written yet: run the tasks 1/2"),
    ],
)
def test_what_another_run_has_built_of_the_same_is_not_what_this_one_has(build, storage, tasks, says):
    for run in ("j1", "j2", "j3"):
        again = ["--replace", "--run", run]
        for task in tasks if run == "j2" else ["1/1"]:
            build("numbers", "--task", task, *again)
        ended = build("numbers", "--commit", *again)
        assert ended.code == (1 if run == "j2" else 0)
        assert (says in ended.err) == (run == "j2")
    build("numbers", "--commit", "--replace", "--run", "j1").ends(1)
    assert "it is what the run j3 has built" in build("numbers", "--commit", *again).err
    assert storage.info("d", "1").builder["run"] == "j3"


@pytest.mark.filterwarnings("always::UserWarning")
def test_a_run_that_is_published_is_served_with_a_warning_if_its_code_is_another_now(build, file):
    again = ["--replace", "--run", "job-7"]
    build("numbers", "--task", "1/1", *again)
    build("numbers", "--commit", *again)
    assert "warning" not in build("numbers", "--commit", *again).err
    file.write_text(CODE.replace("count=7", "count=8 - 1"))
    assert "was built by other code or arguments" in build("numbers", "--commit", *again).err


@pytest.mark.parametrize("words", [[], ["--commit"]])
def test_what_tasks_left_of_a_version_that_is_there_is_told_as_that(build, storage, run, days_go_by, words):
    build("numbers", "--task", "1/2", "--run", "other")
    build("numbers", "--task", "1/1")
    assert "d 1 is not finished: its builds use" in run("ls").err
    build("numbers", *words)
    shown = run("ls").err
    assert "d 1 is there; builds of it that were not published use" in shown
    assert "not finished" not in shown
    assert "those that tasks wrote within a day" in shown
    freed = run("prune", "--unfinished")
    assert freed.out.startswith("Nothing is removed: files that tasks wrote stay for a day")
    days_go_by(1.1)
    assert run("prune", "--unfinished").out.startswith("Removed ")
    assert run("prune", "--unfinished").out.startswith("Unfinished builds hold no files")
    assert run("ls").err == ""
    assert numbers(storage) == list(range(70))


@pytest.mark.parametrize(("name", "task"), [("numbers", "8/8"), ("fewer", "8/8"), ("fewer", "9/9")])
def test_of_which_version_a_task_is_that_has_nothing_to_write_is_known(build, storage, name, task):
    build(name, "--task", task)
    assert [left.version for left in storage.unfinished()] == ["1"]


def test_tasks_work_out_the_same_automatic_version(run, file, storage):
    for words in (["--task", "1/2"], ["--task", "2/2"], ["--commit"]):
        assert run("build", f"{file}:numbers", "d", "auto", *words).code == 0
    (version,) = storage.versions("d")
    assert version.startswith("auto-")


def test_a_task_says_as_json_what_it_has_written(build):
    found = build("numbers", "--task", "2/3", "--json").json
    assert found.pop("run")
    assert found == {
        "id": "d", "version": "1", "task": 2, "tasks": 3, "partitions": 7, "written": 2, "records": 20,
    }  # fmt: skip


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 3]))[:2])
def test_a_name_of_a_run_keeps_builds_apart(build, storage, order):
    for task in order:
        build("numbers", "--task", f"{task}/3", "--run", "a")
    assert "none of 7 partitions is written yet" in build("numbers", "--commit", "--run", "b").err
    assert build("numbers", "--commit", "--run", "a").code == 0
    assert numbers(storage) == list(range(70))


@pytest.mark.parametrize("name", ["numbers", "items"])
@pytest.mark.parametrize("other", ["code", "arguments", "values"])
def test_a_run_never_publishes_records_of_other_code_together(build, file, storage, name, other):
    run = ["--run", "job-7"]
    build(name, "--task", "1/2", *run)
    words = ["--arg", "factor=10"] if other == "arguments" else []
    if other == "code":
        file.write_text(CODE.replace("* FACTOR *", "* 10 * FACTOR *"))
    elif other == "values":
        file.write_text(CODE.replace("FACTOR = 1", "FACTOR = 10"))
    assert build(name, "--task", "2/2", *run, *words).code == 0
    build(name, "--commit", *run, *words).ends(
        1, "written by other code, arguments or values than the commit has: run the tasks 1/2, "
    )
    assert storage.versions("d") == []
    for task in (1, 2):
        again = build(name, "--task", f"{task}/2", *run, *words)
        assert again.code == 0
        assert ("it is written again" in again.err) == (task == 1)
    assert build(name, "--commit", *run, *words).code == 0
    assert numbers(storage) == [10 * n for n in range(70 if name == "numbers" else 200)]


def test_a_commit_of_other_code_than_all_tasks_had_is_refused(build, file, storage):
    run = ["--run", "job-7"]
    for task in ("1/2", "2/2"):
        build("numbers", "--task", task, *run)
    file.write_text(CODE.replace("FACTOR = 1", "FACTOR = 10"))
    assert "run the tasks 1/2, 2/2, then commit" in build("numbers", "--commit", *run).err
    file.write_text(CODE)
    assert build("numbers", "--commit", *run).code == 0
    assert numbers(storage) == list(range(70))


STRANGE = {
    "nested": b"[" * 100_000,
    "nested parts": b'{"stamp": "", "parts": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "long integer": b'{"stamp": "", "parts": [["", "", {}, [[' + b"9" * 100_000 + b", 1, 1]]]]}",
    "list": b"[]",
    "number": b"7",
    "numbers": b'{"stamp": 7, "parts": []}',
    "no hash": b'{"stamp": "", "parts": [[7, null, {}, []]]}',
    "not a spec": b'{"stamp": "", "parts": [["' + b"0" * 64 + b'", "' + b"0" * 64 + b'", 7, []]]}',
    "empty": b"",
    "many": b"[" + b"0," * 2**21 + b"0]",
}


@pytest.mark.parametrize(
    ("content", "run"), list(zip(STRANGE.values(), [[], ["--run", "j"]] * 5, strict=True)), ids=STRANGE
)
def test_a_receipt_that_says_nonsense_is_written_again(build, yoga, root, storage, content, run):
    for task in ("1/2", "2/2"):
        build("numbers", "--task", task, *run)
    receipt = sorted(root.glob("d/builds/*/run-*/*.json"))[2]
    receipt.write_bytes(content)
    assert yoga("ls", "-s", root).code == yoga("prune", "-s", root).code == 0
    build("numbers", "--commit", *run).ends(1, "1 of 7 partitions are not written yet: run the tasks 1/2")
    build("numbers", "--task", "1/2", *run)
    assert build("numbers", "--commit", *run).code == 0
    assert numbers(storage) == list(range(70))


@pytest.mark.parametrize("content", [b"0", b"00", b"9" * 5_000, b"-1", b"", b"x", b"\xff", "²".encode()])
def test_a_note_of_tasks_that_says_nonsense_names_partitions_instead(build, root, content):
    build("numbers", "--task", "1/2")
    [note] = root.glob("d/builds/*/run-*/tasks")
    note.write_bytes(content)
    build("numbers", "--commit").ends(1, "3 of 7 partitions are not written yet: [1, 3, 5]")
