"""Change the library in one place after another, and see whether a test fails: how strong the suite is.

A fixed random sample of changes: a comparison flipped, a constant one more or less, a branch never taken,
an argument left out. Each is tried with tests that execute its line, as the contexts of coverage say, the
quickest of each file first, for a minute at most. By hand, in a clone, with what `tox -e coverage` installs:

    pytest --cov --cov-context=test --cov-report= --junitxml=tests.xml
    python tests/mutants.py --coverage .coverage --times tests.xml --out found.jsonl

Changes whose line no test executes count as not noticed.
"""

import argparse
import ast
import concurrent.futures
import itertools
import json
import os
import queue
import random
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
KINDS = ("comparison", "constant", "branch", "argument")
FLIPPED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
# Of the tests that execute a line.
MOST_S, MOST_TESTS = 45.0, 300
LIMIT_S = 180.0


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


def sample(seed: int, count: int) -> list[Mutant]:
    """Return as many changes of each kind, the same for the same sources."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["coverage"]["run"]
    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for path in sorted((ROOT / "yogadl").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not any(fnmatch(f"/{name}", pattern) for pattern in settings["omit"]):
            for one in Finder(name, path.read_text("utf-8")).found:
                by_kind[one.kind].append(one)
    dice = random.Random(seed)
    return [one for kind in KINDS for one in dice.sample(by_kind[kind], count // len(KINDS))]


class Chosen:
    """Says which tests to run for a line."""

    def __init__(self, coverage: str, times: str) -> None:
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
            if case.find("skipped") is None:
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


def run(mutant: Mutant, tests: list[str], clone: Path) -> str:
    """Return what became of a change: "killed", "survived", "not executed" or "too slow"."""
    if not tests:
        return "not executed"
    path = clone / mutant.path
    source = path.read_text("utf-8")
    path.write_text(source[: mutant.start] + mutant.text + source[mutant.stop :], "utf-8")
    (clone / "chosen").write_text("\n".join(tests))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=60",
               "--timeout-method=thread", "-n0", "@chosen"]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=clone, env=os.environ | {"PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        path.write_text(source, "utf-8")
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    return {0: "survived", None: "too slow"}.get(code, "killed")


def clones(count: int) -> Iterator[Path]:
    for _ in range(count):
        clone = Path(tempfile.mkdtemp(prefix="yogadl-mutants-")) / "clone"
        skipped = shutil.ignore_patterns(".git", ".tox", ".boot", "__pycache__", ".venv", ".coverage*")
        shutil.copytree(ROOT, clone, ignore=skipped)
        yield clone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--coverage", required=True)
    parser.add_argument("--times", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=240)
    parser.add_argument("--only", help="a file of an earlier run: try again what was not killed there")
    arguments = parser.parse_args()
    mutants = sample(arguments.seed, arguments.count)
    if arguments.only:
        earlier = [json.loads(line) for line in Path(arguments.only).read_text().splitlines()]
        left = {(one["path"], one["start"], one["text"]) for one in earlier if one["outcome"] != "killed"}
        mutants = [one for one in mutants if (one.path, one.start, one.text) in left]
    chosen = Chosen(arguments.coverage, arguments.times)
    work = [(one, chosen.tests(one)) for one in mutants]
    free: queue.Queue[Path] = queue.Queue()
    for clone in clones(2):
        free.put(clone)
    outcomes: Counter[str] = Counter()

    def try_one(mutant: Mutant, tests: list[str]) -> tuple[Mutant, str, int]:
        clone = free.get()
        try:
            return mutant, run(mutant, tests, clone), len(tests)
        finally:
            free.put(clone)

    with open(arguments.out, "w") as out, concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in concurrent.futures.as_completed([pool.submit(try_one, *one) for one in work]):
            mutant, outcome, count = done.result()
            outcomes[outcome] += 1
            print(json.dumps({"outcome": outcome, "tests": count, **asdict(mutant)}), file=out, flush=True)
    while not free.empty():
        shutil.rmtree(free.get().parent)
    print(dict(outcomes))


if __name__ == "__main__":
    main()
