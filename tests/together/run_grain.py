"""Deliver the batches of a job as Grain's DataLoader gives them."""

from collections.abc import Iterator

import grain
from grain_workers import fork_workers
from job import Job

from yogadl.adapters.grain import cursor, make_dataloader

fork_workers("by_range")


def deliver(job: Job) -> Iterator[tuple[list[int], dict]]:
    """Yield, a batch, the ids of its records and the cursor that stands right after it."""
    if job.epochs == 1:  # record by record, batched by Grain, in its workers if there are any
        batch = [] if job.batch_size is None else [grain.transforms.Batch(job.batch_size)]
        loader = make_dataloader(job.stream(), batch, job.workers)
    else:  # Grain would batch across epochs; whole batches end with theirs
        loader = make_dataloader(
            job.stream(), worker_count=job.workers, epochs=job.epochs, batch_size=job.batch_size
        )
    batches = iter(loader)
    for batch in batches:
        yield job.ids_of(batch), cursor(batches)
