"""What several fault tests start from."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """Give a folder in memory if there is one, for tests that write many times and are not of the disk."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or shutil.disk_usage(shared).free < 2**28:
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="yogadl-", dir=shared))
    yield made
    shutil.rmtree(made, ignore_errors=True)
