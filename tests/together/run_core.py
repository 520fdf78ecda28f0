"""Deliver the batches of a job by the core alone."""

from collections.abc import Iterator

from job import Job


def deliver(job: Job) -> Iterator[tuple[list[int], dict]]:
    """Yield, a batch, the ids of its records and the cursor that stands right after it."""
    loader = job.stream().batch(job.batch_size, epochs=job.epochs)
    if job.workers:
        loader = loader.prefetch(job.workers)
    batches = iter(loader)
    for batch in batches:
        yield job.ids_of(batch), batches.state_dict()
