"""Run several pytests, three at a time, and print what each said when it has ended; fail if one fails.

Usage: side_by_side.py OPTION ... + [NAME=VALUE ...] FILE ... [+ [NAME=VALUE ...] FILE ...] ...

Before the first + is what all of them have; after each + the environment's variables and the files of one.
They begin in this order, so those that take long come first.
"""

import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

AT_ONCE = 3
# What pytest and tests/hangs.py say if all tests have passed, and the process does not end though the
# interpreter has: a framework's destructors wait for its threads. How scripts end has tests of its own.
PASSED_AND_HUNG = re.compile(
    rb"\n=+ \d+ passed(, \d+ (skipped|deselected|xfailed))* in [^\n]* =+\n"
    rb"Timeout \([\d:.]+\)!\nThread \w+ \(most recent call first\):\n  <no Python frame>\n*\Z"
)


def run(options: list[str], words: list[str]) -> int:
    """Run one of them, and return its exit code."""
    variables = list(itertools.takewhile(re.compile("[A-Z_]+=").match, words))
    begun = time.monotonic()
    with tempfile.TemporaryFile() as said:  # no pipe, which a process that was left behind would keep open
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *words[len(variables) :]],
            env=os.environ | dict(word.split("=", 1) for word in variables),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
        )
        said.seek(0)
        output = said.read()
    code = 0 if PASSED_AND_HUNG.search(output) else done.returncode
    title = f"{' '.join(words)}: {code} after {time.monotonic() - begun:.0f} s"
    sys.stdout.buffer.write(b"%s\n%s\n" % (title.encode(), output))
    sys.stdout.flush()
    return code


def main(given: list[str]) -> int:
    """Run all of them; return 0 if all succeed, or the first other exit code."""
    options, *groups = (list(words) for is_plus, words in itertools.groupby(given, "+".__eq__) if not is_plus)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return next(filter(None, pool.map(run, itertools.repeat(options), groups)), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
