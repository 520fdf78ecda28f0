"""Give the cases of a test to the stores by turns, where each case with each store would show no more."""

from collections.abc import Mapping
from typing import Any

import pytest


def by_turns(cases: Mapping[str, Any], first: int = 0) -> list[Any]:
    """Return each case with S3 or Google's store: parameters of the fixture `broken` and of one more."""
    return [
        pytest.param(("s3", "gcs")[number % 2], case, id=f"{('s3', 'gcs')[number % 2]}-{name}")
        for number, (name, case) in enumerate(cases.items(), first)
    ]
