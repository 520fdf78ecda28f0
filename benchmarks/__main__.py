"""Run one of these scripts: ``python -m benchmarks NAME [OPTIONS]``."""

import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> int:
    """Run the script that is named."""
    scripts = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name not in scripts:
        print(f"usage: python -m benchmarks {{{','.join(scripts)}}} [OPTIONS]", file=sys.stderr)
        return 0 if name in ("-h", "--help") else 2
    script = str(FOLDER / f"{name}.py")
    sys.argv[:] = [script, *sys.argv[2:]]
    sys.path.insert(0, str(FOLDER))
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
