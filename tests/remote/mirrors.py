"""Caches in a bucket, and what tests of the mirror ask of it."""

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from inside import DatasetKey, LocalBucket
from processes import Process, mounting

import yogadl

RECORDS = 2_000
PARTS = 8


def rows(seed=0, records=RECORDS):
    """Make records; each seed has other bytes."""
    random = np.random.default_rng(seed)
    return {"i": np.arange(records), "row": random.integers(0, 255, (records, 64), np.uint8)}


MOUNTING = mounting()
needs_mount = pytest.mark.skipif(MOUNTING is None, reason="this user may not mount a small disk")


def mount(folder, size):
    """Put a small file system over a folder, or change the one there; seen by this process alone."""
    options = f"{'remount,' if folder.is_mount() else ''}size={size}"
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


def on_a_small_disk(function, *args):
    """Return what a function of a module returns in a process that may mount."""
    with Process(function, *args, prefix=MOUNTING) as child:
        return child.result()


def at_once(count, function):
    """Call a function in so many threads, and return what they return."""
    with ThreadPoolExecutor(count) as pool:
        return [one.result() for one in [pool.submit(function) for _ in range(count)]]


def bucket_with(root, *names, records=RECORDS, part_bytes=20_000):
    """Build caches, version 1 of each name, in a folder; give that as a bucket, laid out the same."""
    storage = yogadl.open_storage(root)
    for seed, name in enumerate(names):
        storage.submit(rows(seed, records), name, "1", build=yogadl.BuildOptions(part_bytes=part_bytes))
        assert storage.info(name, "1").parts >= PARTS
    return LocalBucket(root)


def manifest_of(bucket, name):
    """Return the manifest of version 1."""
    storage = yogadl.open_storage(bucket.url.removeprefix("file://"))
    return storage._backend.catalogue.published(DatasetKey(name, "1")).manifest


def open_cache(mirror, manifest, *, indexes=False):
    """Bring all of a cache to a mirror, and hold it."""
    cache = mirror.hold(manifest)
    try:
        cache.complete(range(len(cache.table)))
        if indexes:
            cache.complete_indexes(range(len(cache.table)))
    except BaseException:
        cache.close()
        raise
    return cache


def is_whole(mirror, bucket, manifest):
    """Return whether the mirror has part table and parts of a cache, with the bucket's bytes."""
    folder = Path(bucket.url.removeprefix("file://"))
    files = [path for kind in ("*.mdb", "*.parts") for path in (folder / manifest.key.id).rglob(kind)]
    return all(
        mirror.folder.path(str(path.relative_to(folder))).read_bytes() == path.read_bytes() for path in files
    )


def parts_in(mirror, name):
    """Return how many parts of a dataset the mirror has."""
    return len(mirror.folder.names(name, ".mdb"))


def litter_in(mirror):
    """Return what should not be left in a mirror."""
    hidden = [path for path in mirror.location.root.rglob(".*") if path.is_file()]
    return [str(path.relative_to(mirror.location.root)) for path in hidden]


def last_used(mirror, manifest, seconds):
    """Set when a cache was used last."""
    name = f"{manifest.key.id}/tables/{manifest.table_sha256}.parts"
    os.utime(mirror.location.reader_lock(name), (seconds, seconds))


class Watched:
    """A bucket that counts the gets of each object, and calls a function before each. Not picklable."""

    def __init__(self, bucket, on_get=lambda name: None):
        self._bucket = bucket
        self._on_get = on_get
        self._lock = threading.Lock()
        self.gets = {}

    @property
    def url(self):
        return self._bucket.url

    def __repr__(self):
        return repr(self._bucket)

    def head(self, name):
        return self._bucket.head(name)

    @contextmanager
    def get(self, name, start=0, stop=None, **more):
        with self._lock:
            self.gets[name] = self.gets.get(name, 0) + 1
        self._on_get(name)
        with self._bucket.get(name, start, stop, **more) as body:
            yield body

    def __getattr__(self, name):
        return getattr(self._bucket, name)
