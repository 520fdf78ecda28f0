"""A whole cluster on one machine: four hosts of four processes, a mirror each, one bucket, one host lost."""

import contextlib
import itertools
import json
import secrets
import time
from collections import Counter

import numpy as np
from processes import Process, processes, wait_until

import yogadl

HOSTS, PROCESSES = 4, 4
RECORDS, BATCH, EPOCHS = 5_003, 16, 2
# Of each process, before a host is lost: in the midst of the second epoch.
BATCHES = 27


def train(place, root, host, rank, ranks, cursor, stops_at):
    """Train as one process of a job, noting each batch and its cursor; return the dataset's fingerprint."""
    storage = place.storage(mirror=root / f"mirror-{host}", lease=yogadl.Lease(ttl_s=60))

    @storage.cacheable("some/data", "1", build=yogadl.BuildOptions(part_bytes=8_192, progress=False))
    def data():
        (root / f"built-{secrets.token_hex(8)}").write_text("")
        return {"id": np.arange(RECORDS)}

    ref = data()
    stream = ref.stream(shuffle=True, shuffle_seed=7, shard_rank=rank, num_shards=ranks, cursor=cursor)
    loader = stream.batch(BATCH)
    count = 0
    with (root / f"{ranks}-{rank}").open("w") as notes:
        for _ in range(EPOCHS if cursor is None else EPOCHS - cursor["epoch"]):
            batches = iter(loader)
            for batch in batches:
                state = batches.state_dict()
                notes.write(json.dumps([state["epoch"], batch["id"].tolist(), state]) + "\n")
                notes.flush()
                count += 1
                while count == stops_at:  # as in a collective operation, whose other members are gone
                    time.sleep(0.1)
    return ref.fingerprint


def notes_of(root, ranks):
    """Return what each process noted; a line that a kill cut short does not count."""
    found = []
    for rank in range(ranks):
        with contextlib.suppress(FileNotFoundError):
            text = (root / f"{ranks}-{rank}").read_text()
            found.append([json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")])
    return found


def tasks(place, root, hosts, cursor, stops_at):
    numbered = enumerate(itertools.product(hosts, range(PROCESSES)))
    ranks = len(hosts) * PROCESSES
    return [(place, root, host, rank, ranks, cursor, stops_at) for rank, (host, _) in numbered]


def lose_a_host(place, root):
    """Begin the job on all hosts, kill one of them and then the rest of the job; return what was noted."""
    ranks = HOSTS * PROCESSES
    with processes(train, tasks(place, root, list(range(HOSTS)), None, BATCHES)) as job:

        def is_under_way():
            for process in job:
                process.check()
            notes = notes_of(root, ranks)
            return len(notes) == ranks and min(map(len, notes)) >= BATCHES - 3

        wait_until(is_under_way, "all processes to train", 200)
        for process in job[-PROCESSES:]:
            process.kill()
    return notes_of(root, ranks)


def test_a_job_that_loses_a_host_goes_on_with_the_rest_and_sees_each_record_once(s3_place, tmp_path):
    before = lose_a_host(s3_place, tmp_path)
    assert len(list(tmp_path.glob("built-*"))) == 1
    # A checkpoint is what all processes have saved.
    steps = min(map(len, before))
    (cursor,) = {json.dumps(notes[steps - 1][2]) for notes in before}
    left = [1, 2, 3]
    with processes(train, tasks(s3_place, tmp_path, left, json.loads(cursor), None)) as job:
        fingerprints = {process.result() for process in job}
    after = notes_of(tmp_path, len(left) * PROCESSES)

    seen = Counter(
        (epoch, record)
        for notes in [*(notes[:steps] for notes in before), *after]
        for epoch, records, _ in notes
        for record in records
    )
    assert seen == Counter(itertools.product(range(EPOCHS), range(RECORDS)))
    assert len(list(tmp_path.glob("built-*"))) == 1
    with Process(fingerprint_of, s3_place, tmp_path) as process:
        assert fingerprints == {process.result()}


def fingerprint_of(place, root):
    storage = place.storage(mirror=root / "mirror-of-another")
    storage.verify("some/data", "1")
    return storage.fetch("some/data", "1").fingerprint
