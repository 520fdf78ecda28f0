"""Change the library in one place after another, and see whether a test fails: how strong the suite is.

A fixed random sample of changes: a comparison flipped, a constant one more or less, a branch never taken,
an argument left out. Each is tried with tests that execute its line, as the contexts of coverage say, the
quickest of each file first, for half a minute at most. By hand, in a clone, with what `tox -e coverage` has:

    pytest --cov --cov-context=test --cov-report= --junitxml=tests.xml
    python tests/mutants.py --coverage .coverage --times tests.xml --out found.jsonl

Changes whose line no test executes count as not noticed. A run that was cut goes on with its file: what
that has is not tried again. After new tests, `--again --tests tests/stream tests/test_order.py` tries what
lives in the file with all tests of these places; the last outcome of a change counts. `mutants.toml` lists
changes that may live, each with its reason. The exit status is 0 if nothing else lives and each entry of that
list is a change of the library.
"""

import argparse
import ast
import compileall
import concurrent.futures
import itertools
import json
import os
import py_compile
import queue
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path

from coverage.numbits import numbits_to_nums

ROOT = Path(__file__).parents[1]
REASONS = Path(__file__).with_suffix(".toml")
KINDS = ("comparison", "constant", "branch", "argument")
FLIPPED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
# Of the tests that execute a line.
MOST_S, MOST_TESTS = 20.0, 300
LIMIT_S = 180.0
LIMIT_OF_PLACES_S = 1800.0


@dataclass(frozen=True)
class Mutant:
    """A change: the text of `path` from `start` to `stop`, in characters, becomes `text`."""

    path: str
    line: int
    kind: str
    start: int
    stop: int
    text: str
    shown: str

    @property
    def key(self) -> tuple[str, int, str]:
        return self.path, self.start, self.text


class Finder(ast.NodeVisitor):
    """Find all that can be changed in a module."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.source, self.found = path, source, []
        self._starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
        self._lines = source.splitlines(keepends=True)
        self.visit(ast.parse(source))

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _add(self, kind: str, line: int, span: tuple[int, int], text: str) -> None:
        shown = f"{self.source[slice(*span)].strip()} -> {text.strip() or 'nothing'}"
        same = sum(one.line == line and one.shown.partition(" [")[0] == shown for one in self.found)
        shown += f" [{same + 1}]" * bool(same)  # the second of its line, and so on
        self.found.append(Mutant(self.path, line, kind, *span, text, shown))

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            span = self._span(node.left)[1], self._span(node.comparators[0])[0]
            operator = self.source[slice(*span)]
            if "(" not in operator and ")" not in operator and "#" not in operator:
                self._add("comparison", node.lineno, span, f" {FLIPPED[type(node.ops[0])]} ")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            for step in (1, -1):
                self._add("constant", node.lineno, self._span(node), f"({node.value + step})")

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            for text in ("False",) if not node.orelse else ("False", "True"):
                self._add("branch", node.test.lineno, self._span(node.test), text)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        for keyword in node.keywords:
            if keyword.arg is None:
                continue
            start, stop = self._span(keyword)
            before = max((self._span(one)[1] for one in given if self._span(one)[1] <= start), default=None)
            if before is not None and self.source[before:start].strip() == ",":
                self._add("argument", keyword.lineno, (before, stop), "")
            elif self.source[start - 1] == "(" and self.source[stop] == ")":
                self._add("argument", keyword.lineno, (start, stop), "")
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave out messages."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in (*node.defaults, *filter(None, node.kw_defaults)):
            self.visit(default)


def every() -> list[Mutant]:
    """Return all changes of what coverage measures."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["coverage"]["run"]
    found: list[Mutant] = []
    for path in sorted((ROOT / "yogadl").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not any(fnmatch(f"/{name}", pattern) for pattern in settings["omit"]):
            found += Finder(name, path.read_text("utf-8")).found
    return found


def sample(mutants: list[Mutant], seed: int, count: int) -> list[Mutant]:
    """Return as many changes of each kind, the same for the same sources."""
    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for one in mutants:
        by_kind[one.kind].append(one)
    dice = random.Random(seed)
    return [one for kind in KINDS for one in dice.sample(by_kind[kind], count // len(KINDS))]


class Reasons:
    """Says why a change may live: by the text of its line, which most edits of a file leave as it is."""

    def __init__(self, mutants: list[Mutant]) -> None:
        self._lines = {
            path: (ROOT / path).read_text("utf-8").splitlines() for path in {one.path for one in mutants}
        }
        self._reasons = {
            (path, entry["line"], shown): entry["reason"]
            for path, entries in tomllib.loads(REASONS.read_text("utf-8")).items()
            for entry in entries
            for shown in entry["changes"]
        }
        self.unmatched = sorted(self._reasons.keys() - {self._name(one) for one in mutants})

    def _name(self, mutant: Mutant) -> tuple[str, str, str]:
        return mutant.path, self._lines[mutant.path][mutant.line - 1].strip(), mutant.shown

    def get(self, mutant: Mutant) -> str | None:
        return self._reasons.get(self._name(mutant))


class Chosen:
    """Says which tests to run for a line."""

    def __init__(self, coverage: str, times: str, present: set[str]) -> None:
        self._database = sqlite3.connect(coverage)
        self._files = {}
        for number, path in self._database.execute("select id, path from file"):
            self._files["yogadl/" + path.rpartition("/yogadl/")[2]] = number
        self._contexts = dict(self._database.execute("select id, context from context"))
        self._seconds: dict[str, float] = {}
        for case in ElementTree.parse(times).iter("testcase"):
            parts = case.get("classname", "").split(".")
            for cut in range(len(parts), 0, -1):
                file = "/".join(parts[:cut]) + ".py"
                if (ROOT / file).exists() or cut == 1:
                    break
            node = "::".join([file, *parts[cut:], case.get("name", "")])
            if case.find("skipped") is None and node in present:
                self._seconds[node] = float(case.get("time", 0))

    def tests(self, mutant: Mutant) -> list[str]:
        """Return tests that execute a line, or its file if that is only executed at import."""
        rows = self._arcs(mutant.path)
        on_line = {context for context, lines in rows if mutant.line in lines}
        if not on_line - {""}:
            if "" not in on_line:
                return []
            on_line = {context for context, _ in rows}
        nodes = {context.rpartition("|")[0] for context in on_line if context}
        by_file: dict[str, list[str]] = defaultdict(list)
        for node in sorted(nodes & self._seconds.keys(), key=lambda node: (self._seconds[node], node)):
            by_file[node.partition("::")[0]].append(node)
        chosen: list[str] = []
        spent_s = 0.0
        for node in filter(None, itertools.chain(*itertools.zip_longest(*by_file.values()))):
            if spent_s + self._seconds[node] <= MOST_S and len(chosen) < MOST_TESTS:
                chosen.append(node)
                spent_s += self._seconds[node]
        return chosen

    def _arcs(self, path: str) -> list[tuple[str, set[int]]]:
        if path not in self._files:
            return []
        found: dict[str, set[int]] = defaultdict(set)
        query = "select context_id, {} where file_id = ?"
        number = (self._files[path],)
        for context, first, last in self._database.execute(query.format("fromno, tono from arc"), number):
            found[self._contexts[context]] |= {abs(first), abs(last)}
        for context, bits in self._database.execute(query.format("numbits from line_bits"), number):
            found[self._contexts[context]] |= set(numbits_to_nums(bits))
        return list(found.items())


def pytest_in(
    clone: Path, options: list[str], limit_s: float, *, is_first: bool = False
) -> tuple[int | None, str]:
    """Run pytest in a clone; return its status, None if it took too long, and what it printed.

    The first run keeps the tests as pytest compiles them, for all others: that takes longer than most tests.
    """
    changes = {"PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "" if is_first else "1"}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", *options],
            cwd=clone, env=os.environ | changes,
            stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        code = None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        said.seek(0)
        return code, said.read()


def present(clone: Path) -> set[str]:
    """Return the tests that there are: for pytest's status one that is missing is one that fails."""
    options = ["--collect-only", "tests", "--ignore=tests/compare"]
    code, said = pytest_in(clone, options, LIMIT_S, is_first=True)
    if code != 0:
        raise SystemExit(f"the tests can't be collected:\n{said}")
    return {line for line in said.splitlines() if "::" in line}


def run(mutant: Mutant, tests: list[str], clone: Path, limit_s: float) -> tuple[str, str]:
    """Return "killed", "survived", "not executed" or "too slow", and the test that failed."""
    if not tests:
        return "not executed", ""
    path = clone / mutant.path
    source = path.read_text("utf-8")
    path.write_text(source[: mutant.start] + mutant.text + source[mutant.stop :], "utf-8")
    (clone / "chosen").write_text("\n".join(tests))
    try:
        code, said = pytest_in(clone, ["-x", "--timeout=60", "--timeout-method=thread", "@chosen"], limit_s)
    finally:
        path.write_text(source, "utf-8")
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", said, re.MULTILINE)
    return {0: "survived", None: "too slow"}.get(code, "killed"), failed[1] if failed else ""


def clones(count: int) -> Iterator[Path]:
    for _ in range(count):
        clone = Path(tempfile.mkdtemp(prefix="yogadl-mutants-")) / "clone"
        skipped = shutil.ignore_patterns(".git", ".tox", ".boot", "__pycache__", ".venv", ".coverage*")
        shutil.copytree(ROOT, clone, ignore=skipped)
        # By hashes of the sources: a change may leave a file its size, and perhaps its second.
        by_hash = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(clone / "yogadl", quiet=1, invalidation_mode=by_hash)
        yield clone


def read(out: Path, mutants: list[Mutant]) -> dict[tuple[str, int, str], str]:
    """Return the last outcome of each change that a file of an earlier run has."""
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()] if out.exists() else []
    known = {(row["path"], row["start"], row["text"]): row["outcome"] for row in rows}
    if not known.keys() <= {one.key for one in mutants}:
        raise SystemExit(f"{out} is of another sample, or of other sources: begin a new file")
    return known


def report(mutants: list[Mutant], known: dict[tuple[str, int, str], str], reasons: Reasons) -> int:
    """Print what lives without a reason, and entries of the list without a change; return their number."""
    outcomes = Counter(known.values())
    lives = [one for one in mutants if known.get(one.key, "killed") != "killed"]
    unexplained = [one for one in lives if reasons.get(one) is None]
    for one in sorted(unexplained, key=lambda one: (one.path, one.line)):
        print(f"{one.path}:{one.line}: {one.kind}: {one.shown}: {known[one.key]}")
    for entry in reasons.unmatched:
        print(f"no change of the library: {' | '.join(entry)}")
    tried = f"{len(known)} of {len(mutants)} tried: {dict(outcomes)}"
    print(f"{tried}; {len(lives) - len(unexplained)} live with a reason, {len(unexplained)} without")
    return len(unexplained) + len(reasons.unmatched)


def try_all(
    work: list[tuple[Mutant, list[str]]], free: "queue.Queue[Path]", out: Path, limit_s: float
) -> None:
    """Try each change with its tests, and add its outcome to the file."""

    def try_one(mutant: Mutant, tests: list[str]) -> dict[str, object]:
        clone = free.get()
        try:
            outcome, failed = run(mutant, tests, clone, limit_s)
        finally:
            free.put(clone)
        return {"outcome": outcome, "tests": len(tests), "failed": failed, **asdict(mutant)}

    with open(out, "a") as file, concurrent.futures.ThreadPoolExecutor(free.qsize()) as pool:
        for done in concurrent.futures.as_completed([pool.submit(try_one, *one) for one in work]):
            print(json.dumps(done.result()), file=file, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--coverage", help="needed unless --tests is given")
    parser.add_argument("--times", help="needed unless --tests is given")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=240)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--most", type=int, help="try so many and stop: a part")
    parser.add_argument("--again", action="store_true", help="try what lives in --out without a reason")
    parser.add_argument("--under", default="", help="only changes of files whose path begins so")
    parser.add_argument("--tests", nargs="+", help="instead of the tests of each line: files or folders")
    arguments = parser.parse_args()
    found = every()
    reasons, mutants = Reasons(found), sample(found, arguments.seed, arguments.count)
    known = read(arguments.out, mutants)
    if arguments.again:
        left = [
            one for one in mutants if known.get(one.key, "killed") != "killed" and reasons.get(one) is None
        ]
    else:
        left = [one for one in mutants if one.key not in known]
    left = [one for one in left if one.path.startswith(arguments.under)][: arguments.most]
    if left:
        free: queue.Queue[Path] = queue.Queue()
        for clone in clones(arguments.jobs):
            free.put(clone)
        if arguments.tests:
            try_all([(one, arguments.tests) for one in left], free, arguments.out, LIMIT_OF_PLACES_S)
        else:
            names = [present(clone) for clone in free.queue]
            chosen = Chosen(arguments.coverage, arguments.times, names[0])
            try_all([(one, chosen.tests(one)) for one in left], free, arguments.out, LIMIT_S)
        while not free.empty():
            shutil.rmtree(free.get().parent)
    sys.exit(report(mutants, read(arguments.out, mutants), reasons) > 0)


if __name__ == "__main__":
    main()
