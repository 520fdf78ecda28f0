"""Deliver the batches of a job as arrays on JAX's device."""

from collections.abc import Iterator

import jax
from job import Job

from yogadl.adapters.jax import make_jax_iterator

jax.config.update("jax_enable_x64", True)  # the ids are int64


def deliver(job: Job) -> Iterator[tuple[list[int], dict]]:
    """Yield, a batch, the ids of its records and the cursor that stands right after it."""
    batches = make_jax_iterator(job.stream(), job.batch_size, epochs=job.epochs, prefetch=job.workers)
    for batch in batches:
        yield job.ids_of(batch), batches.state_dict()
