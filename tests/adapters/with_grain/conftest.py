"""How Grain's workers start here; `test_grain_workers.py` has a program in which they start as elsewhere."""

import pytest
from grain_workers import fork_workers


@pytest.fixture(scope="session", autouse=True)
def workers_are_forked():
    fork_workers()
