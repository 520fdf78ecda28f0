"""Crowds of processes that want one dataset at once: what the tests and the benchmark of the cluster do."""

import os
import secrets
import signal
import time

import numpy as np
from inside import DatasetKey
from processes import Process, processes, wait_until

import yogadl

KEY = DatasetKey("some/data", "1")
RECORDS = 3_001
PART_BYTES = 4_096


def opened(place, root, host, ttl_s=600.0):
    """Open the storage as a machine of that name would, with a mirror of its own."""
    return place.storage(mirror=root / f"mirror-{host}", lease=yogadl.Lease(ttl_s=ttl_s))


def ask(place, root, host, ttl_s=600.0, slowly=0.0):
    """Ask for the dataset; return its fingerprint and some records. Each build leaves a file."""
    storage = opened(place, root, host, ttl_s)

    @storage.cacheable(KEY.id, KEY.version, build=yogadl.BuildOptions(part_bytes=PART_BYTES, progress=False))
    def data():
        (root / f"built-{secrets.token_hex(8)}").write_text("")
        for number in range(RECORDS):
            if number % 500 == 0:
                time.sleep(slowly)
            yield number * 3

    ref = data()
    return ref.fingerprint, ref.gather([0, 1_500, RECORDS - 1]).tolist()


def assert_sound(place, root, fingerprints):
    """Check that there is one manifest, that it is what all were served, and that every byte is sound."""
    storage = opened(place, root, "checker")
    assert storage.versions(KEY.id) == [KEY.version]
    assert fingerprints == {storage.info(KEY.id, KEY.version).fingerprint}
    assert storage.verify(KEY.id, KEY.version).records == RECORDS
    ref = storage.fetch(KEY.id, KEY.version)
    assert np.array_equal(ref.gather(range(RECORDS)), np.arange(RECORDS) * 3)


def killed_and_stopped(place, root, rng):
    """Let some ask, kill one and stop another at random moments; return what the survivors were served."""
    ttl_s = 2.0
    with processes(ask, [(place, root, f"host-{n}", ttl_s, 0.1) for n in range(3)]) as crowd:
        wait_until(lambda: list(root.glob("built-*")), "somebody to build")
        time.sleep(rng.uniform(0.0, 0.8))
        killed, stopped, _ = rng.sample(crowd, 3)
        killed.kill()
        os.kill(stopped.pid, signal.SIGSTOP)
        with Process(ask, place, root, "late", ttl_s, 0.1) as late:
            answers = [late.result()]
        os.kill(stopped.pid, signal.SIGCONT)
        answers += [process.result() for process in crowd if process is not killed]
    return {fingerprint for fingerprint, _ in answers}
