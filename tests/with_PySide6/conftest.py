"""A real Chromium for the tests that look at pages."""

from contextlib import ExitStack

import pytest
from chromium import NoBrowserError, open_installed, open_qt


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Start PySide6's Chromium, or else the machine's."""
    reasons = []
    with ExitStack() as stack:
        for opened in (open_qt, lambda: open_installed(tmp_path_factory.mktemp("profile"))):
            try:
                yield stack.enter_context(opened())
                return
            except NoBrowserError as error:
                reasons.append(str(error))
        pytest.skip("no Chromium starts here: " + "; ".join(reasons))
