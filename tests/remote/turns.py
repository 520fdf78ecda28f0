"""Give the cases of a test to the stores by turns, where each case with each store would show no more.

And read on after an error, beside other tests.
"""

import time

import pytest

from yogadl.errors import StorageError

TIRED_S = 60


def by_turns(cases, first=0):
    """Return each case with S3 or Google's store: parameters of the fixture `broken` and of one more."""
    return [
        pytest.param(("s3", "gcs")[number % 2], case, id=f"{('s3', 'gcs')[number % 2]}-{name}")
        for number, (name, case) in enumerate(cases.items(), first)
    ]


def rest_of(batches):
    """Return the batches that are left in a store that is well; on a busy machine, the impatient fail."""
    found = []
    end_s = time.monotonic() + TIRED_S
    while True:
        try:
            found.extend(batches)
            return found
        except StorageError:
            if time.monotonic() > end_s:
                raise
