"""Contracts as test suites for pytest: inherit a suite, and define a fixture that returns the tested object.

Example:
    A bucket of your own fulfils the contract of `yogadl` if this passes::

        from yogadl.testing import BucketContract

        class TestMyBucket(BucketContract):
            @pytest.fixture
            def bucket(self):
                return MyBucket()  # an empty one
"""

from yogadl.storage._objects.bucket import MemoryBucket
from yogadl.testing._adapter import AdapterContract
from yogadl.testing._bucket import BucketContract
from yogadl.testing._storage import StorageContract

__all__ = ["AdapterContract", "BucketContract", "MemoryBucket", "StorageContract"]
