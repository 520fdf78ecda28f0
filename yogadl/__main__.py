"""Run the `yogadl` command as `python -m yogadl`."""

import sys

from yogadl.cli import main

if __name__ == "__main__":
    sys.exit(main())
