"""Deliver the batches of a job as PyTorch's tensors, from worker processes if it has some."""

from collections.abc import Iterator

from job import Job

from yogadl.adapters.torch import make_dataloader


def deliver(job: Job) -> Iterator[tuple[list[int], dict]]:
    """Yield, a batch, the ids of its records and the cursor that stands right after it."""
    batches = iter(make_dataloader(job.stream(), job.batch_size, job.workers, epochs=job.epochs))
    for batch in batches:
        yield job.ids_of(batch), batches.state_dict()
