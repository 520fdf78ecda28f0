"""The buckets in real stores keep the contract."""

import pytest

from yogadl.testing import BucketContract


class TestStores(BucketContract):
    @pytest.fixture
    def bucket(self, any_place):
        return any_place.open()
