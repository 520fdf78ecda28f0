"""Whatever framework reads a cache: the same batches in the same order, and the same cursor after each."""

import dataclasses

import pytest
from job import BROKEN, Job
from trainers import FRAMEWORKS, Stop

WORKERS = (0, 2)
SHARES = {
    "whole": {"workers": 1},
    "uneven": {"ranks": 3},
    "drop": {"ranks": 3, "drop_shard_remainder": True, "epochs": 2},
    "pad": {"ranks": 3, "pad_shard_remainder": True, "epochs": 2, "workers": 2},
}


def run(trainers, framework, job):
    """Run every rank of a job to its end; return the batches of each, with the cursors."""
    jobs = [dataclasses.replace(job, rank=rank) for rank in range(job.ranks)]
    delivered = trainers.run(framework, jobs, Stop(steps=None))
    assert all(one.is_finished for one in delivered)
    return [one.batches for one in delivered]


def expected(job):
    """Return what the order itself says that each rank gets: the ids of each batch, and its cursor."""
    found = []
    for rank in range(job.ranks):
        share = dataclasses.replace(job, rank=rank)
        stream = share.stream()
        batches = []
        first = stream.start.epoch
        for epoch in range(first, first + job.epochs):
            ids = share.ids(epoch)
            rows = stream.shard.rows(stream.run.origin(epoch))
            size = job.batch_size or 1
            for start in range(0, len(ids), size):
                done = min(rows, start + size)
                batches.append((ids[start : start + size], stream.cursor(done, epoch=epoch)))
        found.append(batches)
    return found


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_epochs_come_in_the_order_that_the_seed_decides(trainers, storage, framework, workers):
    job = Job(str(storage), "together", "503", batch_size=32, workers=workers, seed=7, epochs=2)
    batches = run(trainers, framework, job)
    order = [*job.stream().indices(0).tolist(), *job.stream().indices(1).tolist()]
    assert [index for ids, _ in batches[0] for index in ids] == order
    assert batches == expected(job)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(("made", "batch_size"), [("packed", 8), ("bucketed", None), ("grouped", None)])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_rows_of_documents_are_those_of_each_epoch(trainers, storage, framework, made, batch_size, workers):
    job = Job(str(storage), "documents", "503", batch_size=batch_size, workers=workers, seed=7, epochs=2)
    job = dataclasses.replace(job, made=made)
    assert run(trainers, framework, job) == expected(job)
    rows = job.ref().at(0, seed=7)
    assert job.ids(0) == [rows[number]["id"].tolist() for number in job.stream().indices(0).tolist()]


@pytest.mark.parametrize(("made", "workers"), [("sampled", 0), ("flat", 2)])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_samples_and_pieces_are_those_of_each_epoch(trainers, storage, framework, made, workers):
    job = Job(str(storage), "together", "120", batch_size=9, workers=workers, seed=5, epochs=2, made=made)
    assert run(trainers, framework, job) == expected(job)
    rest = dataclasses.replace(job, cursor=job.stream().cursor(delivered=31))
    found = expected(job), run(trainers, framework, rest)
    whole, after = ([number for ids, _ in batches[0] for number in ids] for batches in found)
    assert after == whole[31:]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_rows_of_batches_follow_their_episodes(trainers, storage, framework, share):
    job = Job(str(storage), "together", "503", batch_size=8, seed=4, made="sequences", **SHARES[share])
    if framework == "grain" and job.ranks > 1:
        job = dataclasses.replace(job, workers=0)
    batches = run(trainers, framework, job)
    assert batches == expected(job)
    for of_rank in batches:
        before = [None] * 8
        for ids, _ in of_rank:
            for row, number in enumerate(ids):
                record, is_first = divmod(number, 2)
                assert is_first or (record > before[row] and (record - before[row]) % 31 == 0)
                before[row] = record


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_rank_gets_its_share_of_the_order(trainers, storage, framework, share):
    job = Job(str(storage), "together", "503", batch_size=8, seed=-3, **SHARES[share])
    if framework == "grain" and job.ranks > 1:  # each worker loads all of it: the next test has some
        job = dataclasses.replace(job, workers=0)
    assert run(trainers, framework, job) == expected(job)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_rest_of_an_epoch_and_the_next_one_come_after_a_cursor(trainers, storage, framework):
    start = Job(str(storage), "together", "120", batch_size=5, workers=2, seed=1)
    cursor = start.stream().cursor(delivered=120 + 24)
    job = dataclasses.replace(start, ranks=2, epochs=2, cursor=cursor)
    assert run(trainers, framework, job) == expected(job)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_functions_of_records_have_the_same_results_everywhere(trainers, storage, framework, workers):
    job = Job(str(storage), "together", "120", batch_size=7, workers=workers, seed=3, is_mapped=True)
    start = dataclasses.replace(job, skips=((0, 2), (9, 31), (118, 120)) if workers else ())
    assert run(trainers, framework, start) == expected(start)
    cursor = start.stream().cursor(delivered=len(start.kept(0, 120)) + 24)
    if framework == "grain":  # each worker of each rank loads all of it
        start = dataclasses.replace(start, workers=0)
    job = dataclasses.replace(start, ranks=3, epochs=2, pad_shard_remainder=True, cursor=cursor)
    assert run(trainers, framework, job) == expected(job)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_functions_that_fill_the_batch_have_the_same_results_everywhere(
    trainers, storage, framework, workers
):
    job = Job(
        str(storage), "together", "120", batch_size=7, workers=workers, seed=3, is_filled=True, epochs=2
    )
    assert run(trainers, framework, job) == expected(job)
    mapped = dataclasses.replace(job, is_mapped=True, is_filled=False)
    order = job.stream().indices(0).tolist()
    differ = [at for at, pair in enumerate(zip(job.ids(0), mapped.ids(0), strict=True)) if len(set(pair)) > 1]
    assert [order[at] for at in differ] == [record for record in order if record % BROKEN == BROKEN - 1] != []
