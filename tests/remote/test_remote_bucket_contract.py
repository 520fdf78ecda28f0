"""The buckets in real stores keep the contract."""

import pytest
from places import Place

from yogadl.storage._buckets.bucket import Bucket
from yogadl.testing import BucketContract


class TestStores(BucketContract):
    @pytest.fixture
    def bucket(self, any_place: Place) -> Bucket:
        return any_place.open()
