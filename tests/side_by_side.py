"""Run several pytests, three at a time, and print what each said when it has ended; fail if one fails.

Usage: side_by_side.py OPTION ... + [NAME=VALUE ...] FILE ... [+ [NAME=VALUE ...] FILE ...] ...

Before the first + is what all of them have; after each + the environment's variables and the files of one.
They begin in this order, so those that take long come first. What one alone says is printed as it comes.

Tests that kill, wait and count seconds share a machine with others. A few that fail are tried once more, one
at a time and with nothing beside them; what they said in both runs is printed, and one that fails there has
failed.
"""

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

AT_ONCE = 3
FEW = 4
TESTS_FAILED = 1
# What pytest and tests/hangs.py say if all tests have passed, and the process does not end though the
# interpreter has: a framework's destructors wait for its threads. How scripts end has tests of its own.
PASSED_AND_HUNG = re.compile(
    rb"\n=+ \d+ passed(, \d+ (skipped|deselected|xfailed))* in [^\n]* =+\n"
    rb"Timeout \([\d:.]+\)!\nThread \w+ \(most recent call first\):\n  <no Python frame>\n*\Z"
)


class Pytest:
    """One of them, and the tests of it that failed."""

    def __init__(self, options: list[str], words: list[str], is_alone: bool):
        variables = list(itertools.takewhile(re.compile("[A-Z_]+=").match, words))
        self._environ = os.environ | dict(word.split("=", 1) for word in variables)
        self._options, self._words, self._files = options, words, words[len(variables) :]
        self._is_alone = is_alone
        self.failed: list[str] = []

    def run(self) -> int:
        """Run it beside others, and return its exit code."""
        with tempfile.TemporaryDirectory(prefix="yogadl-tests-") as cache:
            code = self._run(f"-ocache_dir={cache}", *self._files)
            kept = Path(cache, "v", "cache", "lastfailed")
            if code == TESTS_FAILED and kept.exists():
                self.failed = list(json.loads(kept.read_text("utf-8")))
        return code

    def run_again(self) -> int:
        """Run those tests that failed, one at a time."""
        processes = ["-n0"] if any(option.startswith("-n") for option in self._options) else []
        return self._run(*processes, "-pno:cacheprovider", *self.failed)

    def _run(self, *words: str) -> int:
        begun = time.monotonic()
        with (
            tempfile.TemporaryFile() as said
        ):  # no pipe, which a process that was left behind would keep open
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *self._options, *words],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            shown = 0
            while self._is_alone and process.poll() is None:
                time.sleep(0.1)
                shown += _print(_read_from(said, shown))
            code = process.wait()
            if PASSED_AND_HUNG.search(_read_from(said, 0)):
                code = 0
            title = f"{' '.join(self._words)}: {code} after {time.monotonic() - begun:.0f} s"
            _print(title.encode() + b"\n" + _read_from(said, shown))
        return code


def _read_from(said: BinaryIO, start: int) -> bytes:
    return os.pread(said.fileno(), os.fstat(said.fileno()).st_size - start, start)


def _print(output: bytes) -> int:
    sys.stdout.buffer.write(output)
    sys.stdout.flush()
    return len(output)


def main(given: list[str]) -> int:
    """Run all of them; return 0 if all succeed, or the first other exit code."""
    first = given.index("+")  # an error if there is nothing to run
    groups = [list(words) for is_plus, words in itertools.groupby(given[first:], "+".__eq__) if not is_plus]
    pytests = [Pytest(given[:first], words, is_alone=len(groups) == 1) for words in groups]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        codes = list(pool.map(Pytest.run, pytests))
    again = [one for one in pytests if one.failed]
    if any(code != 0 and not one.failed for one, code in zip(pytests, codes, strict=True)):
        return next(filter(None, codes))
    if sum(len(one.failed) for one in again) > (0 if "--soak" in given else FEW):
        return TESTS_FAILED
    for one in again:
        if (code := one.run_again()) != 0:
            return code
        print("Failed beside others, passed alone:", *one.failed, sep="\n  ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
