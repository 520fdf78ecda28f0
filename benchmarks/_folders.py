"""A folder to work in. Nothing but Python's own library."""

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def temporary_folder(below: Path | None) -> Iterator[Path]:
    """Make a folder that is gone afterwards, whatever happens short of SIGKILL."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if below is not None:
        below.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="yogadl-benchmark-", dir=below, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)
