"""The buckets in real stores keep the contract."""

import pytest
from inside import Bucket
from places import Place

from yogadl.testing import BucketContract


class TestStores(BucketContract):
    @pytest.fixture
    def bucket(self, any_place: Place) -> Bucket:
        return any_place.open()
