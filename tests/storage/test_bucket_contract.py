"""The buckets that need no store keep the contract."""

import re

import pytest
from inside import LocalBucket
from inside import bucket as module

from yogadl.testing import BucketContract, MemoryBucket


def test_a_bucket_has_the_verbs_that_its_module_says():
    said = module.__doc__ or ""
    methods = {name for name in vars(module.Bucket) if not name.startswith("_")}
    verbs = methods - {"url", "origin", "hurried"}  # which ask the store nothing
    assert set(re.findall(r"`(\w+)`", said)) == verbs
    assert f"{['five', 'six', 'seven'][len(verbs) - 5]} verbs" in said


class TestLocalBucket(BucketContract):
    @pytest.fixture
    def bucket(self, tmp_path):
        return LocalBucket(tmp_path / "root")


class TestMemoryBucket(BucketContract):
    is_shared = False

    @pytest.fixture
    def bucket(self):
        return MemoryBucket()


class Careless(MemoryBucket):
    """One that looks at no object for a range of nothing."""

    def fetch_range(self, name, start, stop, *, tag=None):
        return super().fetch_range(name, start, stop, tag=None if start == stop else tag)


def test_who_looks_at_no_object_for_a_range_of_nothing_does_not_keep_it():
    BucketContract().test_a_tag_pins_a_fetched_range(MemoryBucket())
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        BucketContract().test_a_tag_pins_a_fetched_range(Careless())
