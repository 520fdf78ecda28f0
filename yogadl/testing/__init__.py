"""Contracts as test suites: with pytest, inherit one and give it what is to be tested.

Example:
    A bucket of your own keeps what `yogadl` expects of it if this passes::

        from yogadl.testing import BucketContract

        class TestMyBucket(BucketContract):
            @pytest.fixture
            def bucket(self):
                return MyBucket()  # an empty one
"""

from yogadl.storage._buckets.memory import MemoryBucket
from yogadl.testing._bucket import BucketContract
from yogadl.testing._storage import StorageContract

__all__ = ["BucketContract", "MemoryBucket", "StorageContract"]
