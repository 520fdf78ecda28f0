"""A process that imports this reads even small caches record by record, and fills their mirrors meanwhile."""

import pytest
from inside import set_constants

set_constants(
    pytest.MonkeyPatch(),
    REMOTE_OPENING_AT_ONCE_BYTES=0,
    KEPT_BYTES=2_000,  # the ids of the cache in a bucket, which are read in pages
    FIRST_READS=1,
    LOOK_INTERVAL_S=0.01,
)
