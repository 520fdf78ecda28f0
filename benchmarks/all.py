"""Run every benchmark that has a bar, one process each, and print their rows as one table.

Run ``python benchmarks/all.py``, on a machine that does nothing else; options as for each of them.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

from _measure import HEADER

SCRIPTS = (
    "gather",
    "prefetch",
    "parts",
    "blocks",
    "start",
    "memory",
    "build",
    "builds",
    "growth",
    "stages",
    "tickets",
    "windows",
    "packing",
)
# These need a framework's packages, and are run where they are installed.
OPTIONAL = {
    "columns": "datasets",
    "datasets_loader": "datasets",
    "decode": "simplejpeg",
    "grain_loader": "grain",
    "map": "grain",
    "jax_loader": "jax",
    "keras_loader": "keras",
    "many_parts": "boto3",
    "plans": "obstore",
    "ray_builds": "ray",
    "records": "orjson",
    "tf_data": "tensorflow",
    "torch_loader": "torch",
    "workers": "grain",
    "transfer": "boto3",
}


def main() -> int:
    """Print the table; return 1 if a script failed. A missed bar is a row, not a failure."""
    folder = Path(__file__).parent
    rows, failed = [], []
    installed = [name for name, package in OPTIONAL.items() if importlib.util.find_spec(package)]
    for name in (*SCRIPTS, *installed):
        command = [sys.executable, str(folder / f"{name}.py"), *sys.argv[1:]]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if "--help" in sys.argv or "-h" in sys.argv:
            print(done.stdout, end="")
            return done.returncode
        rows += [line for line in done.stdout.splitlines() if line.startswith("|") and line not in HEADER]
        if done.returncode:
            failed.append(name)
    print(HEADER)
    print(*rows, sep="\n")
    missed = sum("**MISS**" in line for line in rows)
    held = sum("| PASS |" in line for line in rows)
    print(f"\n{held} bars held, {missed} missed" + "".join(f", {name}.py FAILED" for name in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
