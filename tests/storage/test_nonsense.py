"""Small documents of a storage whose content makes no sense: each is passed over, or named in one error."""

from pathlib import Path

import numpy as np
import pytest
from inside import (
    BucketRoot,
    DatasetKey,
    Lease,
    Leases,
    LocalBucket,
    MirrorLocation,
    _names,
    set_constants,
)
from nonsense import NONSENSE

import yogadl
from yogadl.errors import CacheFormatError

KEY = DatasetKey("some/data", "1/2")


def check_lease(folder, content):
    """It is taken over once it is silent, and so is one with such a heartbeat."""
    bucket, name = LocalBucket(folder), _names.lease(KEY, 1)
    bucket.put(name, content)
    bucket.put(name + _names.HEARTBEAT_SUFFIX, content)
    with Leases(BucketRoot(bucket), Lease(ttl_s=0.1)).held(KEY) as lease:
        assert lease.term == 2


def check_mirror(folder, content):
    """Settings of a mirror that say nothing are none, and are written anew."""
    location = MirrorLocation(folder, given_bytes=77)
    location.prepare()
    (folder / "mirror.json").write_bytes(content)
    assert location.limit_bytes() == 77
    location.set_limit(78)
    assert location.limit_bytes() == 78


def tagged(folder):
    storage = yogadl.open_storage(folder)
    storage.submit(np.arange(10), "d", "1")
    storage.submit(np.arange(12), "d", "2")
    storage.tag("d", "stable", "1")
    return storage


def check_tag(folder, content):
    """It is told, also of what might be deleted, and mended by tagging."""
    storage = tagged(folder)
    Path(folder, "d/tags/stable/0000000002.tag").write_bytes(content)
    for do in (
        lambda: storage.fetch("d", "stable"),
        lambda: storage.tags("d"),
        lambda: storage.delete("d", "1"),
    ):
        with pytest.raises(CacheFormatError, match=r"stable/0000000002\.tag"):
            do()
    assert len(storage.fetch("d", "1")) == 10
    storage.tag("d", "stable", "2")
    assert storage.tags("d") == {"stable": "2"}
    assert [move.version for move in storage.log("d").moves] == ["1", "2"]


def check_manifest(folder, content):
    """The version is not tagged, by its name or by its tag, and can be deleted and built again."""
    storage = tagged(folder)
    Path(folder, "d/versions/1.json").write_bytes(content)
    for name in ("1", "stable"):
        with pytest.raises(CacheFormatError, match="delete this version and build it again"):
            storage.tag("d", "new", name)
    assert (storage.tags("d"), storage.versions("d")) == ({"stable": "1"}, ["1", "2"])
    storage.untag("d", "stable")
    storage.delete("d", "1")
    storage.submit([2], "d", "1")
    assert storage.fetch("d", "1")[0] == 2


# Which documents are read how, and what else they may contain that is JSON and makes no sense.
DOCUMENTS = {
    "lease": (
        check_lease,
        [
            b'{"started": 1e300, "ttl_s": NaN}',
            b'{"started": [], "pid": {}, "host": 7, "ttl_s": "x"}',
            b'{"started": 1e999, "ttl_s": -1}',
            b'{"ttl_s": "long", "pid": null}',
        ],
    ),
    "settings of a mirror": (check_mirror, []),
    "tag": (
        check_tag,
        [
            b'{"format": 1}',
            b'{"format": 1, "version": "1"}',
            *(b'{"format": 1, "moved": 0, "version": %s}' % version for version in (b"1", b'"../1"', b'""')),
            *(
                b'{"format": 1, "version": "1", "moved": %s}' % moved
                for moved in (b'"now"', b"true", b"NaN", b"1e999", b"9" * 5_000, b"[" * 500 + b"]" * 500)
            ),
        ],
    ),
    "manifest": (check_manifest, [b"{}", b"[" * 300 + b"]" * 300]),
}


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("form", [*NONSENSE, "own"])
def test_a_document_that_says_nonsense_is_passed_over_or_named(tmp_path, monkeypatch, document, form):
    set_constants(monkeypatch, MIN_TTL_S=0.1, FIRST_PAUSE_S=0.01, LONGEST_PAUSE_S=0.05)
    check, own = DOCUMENTS[document]
    for number, content in enumerate(own if form == "own" else [NONSENSE[form]]):
        check(tmp_path / f"{number}", content)
