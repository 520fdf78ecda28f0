"""What several fault tests start from."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def seen_by_all() -> Iterator[Path]:
    """Give a folder that other users may look into, as they may not into pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
