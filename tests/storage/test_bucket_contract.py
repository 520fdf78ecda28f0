"""The buckets that need no store keep the contract."""

from pathlib import Path

import pytest

from yogadl.storage._buckets.local import LocalBucket
from yogadl.testing import BucketContract, MemoryBucket


class TestLocalBucket(BucketContract):
    @pytest.fixture
    def bucket(self, tmp_path: Path) -> LocalBucket:
        return LocalBucket(tmp_path / "root")


class TestMemoryBucket(BucketContract):
    is_shared = False

    @pytest.fixture
    def bucket(self) -> MemoryBucket:
        return MemoryBucket()
