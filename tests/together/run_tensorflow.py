"""Deliver the batches of a job as a tf.data.Dataset gives them."""

from collections.abc import Iterator

from inside import Cut, NumberedBatches
from job import Job

from yogadl.adapters.tensorflow import make_tf_dataset


def deliver(job: Job) -> Iterator[tuple[list[int], dict]]:
    """Yield, a batch, the ids of its records and the cursor that stands right after it."""
    stream = job.stream()
    dataset = make_tf_dataset(stream, job.batch_size).repeat(job.epochs)
    if job.workers:
        dataset = dataset.prefetch(job.workers)
    # tf.data owns the iterator, so what it delivered is counted here.
    numbering = NumberedBatches(stream, Cut(job.batch_size or 1)).numbering
    for delivered, batch in enumerate(dataset, 1):
        yield job.ids_of(batch), numbering.cursor(delivered)
