"""Test whether a store honours conditional writes."""

import secrets
from typing import Final

from yogadl.errors import ConfigurationError
from yogadl.storage._buckets.bucket import Bucket

# One name for all tests, which leave one small object behind; no dataset's id begins with a dot.
PROBE: Final = ".yogadl/put-if-absent"


def check_conditions(bucket: Bucket) -> None:
    """Check that the bucket's `put_if_absent` writes only if there is no such object.

    Writes one small object, once.

    Raises:
        ConfigurationError: if it writes in any case: two builders would both win.
        StorageError: if the bucket can't be written.
    """
    if bucket.put_if_absent(PROBE, _token()) and bucket.put_if_absent(PROBE, _token()):
        raise ConfigurationError(
            f"the store of {bucket.url} ignores the condition of a write (If-None-Match in S3, "
            "ifGenerationMatch in GCS): it let two writers put the same object. So it can't keep builders on "
            "several machines apart. Use another store; or, if only one machine builds at a time, pass "
            "exclusive=False"
        )


def _token() -> bytes:
    return secrets.token_hex(16).encode()
