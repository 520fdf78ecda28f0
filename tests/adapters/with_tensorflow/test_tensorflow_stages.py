"""Checkpoints of tf.data between any stages of the user's: what comes after is the same as without a stop."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import yogadl
from yogadl.adapters import tensorflow as adapter

RECORDS = 7  # in batches of 2: four elements an epoch

STAGES = {
    "map": lambda dataset: dataset.map(lambda record: {"id": record["id"] + 0}),
    "parallel map": lambda dataset: dataset.map(
        lambda record: {"id": record["id"] + 0}, num_parallel_calls=2
    ),
    "prefetch": lambda dataset: dataset.prefetch(3),
    "batch": lambda dataset: dataset.ragged_batch(3).map(lambda batch: {"id": flat(batch["id"])}),
    "batch of records": lambda dataset: dataset.unbatch().batch(3),
    "shuffle": lambda dataset: dataset.shuffle(3, seed=5, reshuffle_each_iteration=False),
    "take": lambda dataset: dataset.take(3),
    "skip": lambda dataset: dataset.skip(1),
    "filter": lambda dataset: dataset.filter(lambda record: tf.reduce_sum(record["id"]) > 1),
    "interleave": lambda dataset: dataset.interleave(tf.data.Dataset.from_tensors, cycle_length=2),
    "enumerate": lambda dataset: dataset.enumerate().map(lambda _, record: record),
    "apply": lambda dataset: dataset.apply(lambda given: given.take_while(lambda _: True).prefetch(1)),
    "concatenate": lambda dataset: dataset.concatenate(dataset.take(1)),
}


def flat(values):
    return values.flat_values if isinstance(values, tf.RaggedTensor) else tf.reshape(values, [-1])


def stream(**options):
    ref = yogadl.from_source({"id": np.arange(RECORDS)}, fingerprint="seven")
    return ref.stream(shuffle=True, **options)


def ids(element):
    return np.atleast_1d(element["id"].numpy()).tolist()


def require_exact(make):
    """Stop after every element, and compare what comes then with what comes without a stop."""
    iterator, saved, whole = iter(make()), [], []
    while True:
        saved.append(iterator._serialize_to_tensors())  # as tf.train.Checkpoint does
        element = next(iterator, None)
        if element is None:
            break
        whole.append(ids(element))
    iterator = iter(make())
    for done, state in enumerate(saved):
        iterator._restore_from_tensors(state)
        assert [ids(element) for element in iterator] == whole[done:], done
    return whole


def made(before, after=(), repeat=3):
    def make():
        dataset = adapter.make_tf_dataset(stream(), 2)
        for name in before:
            dataset = STAGES[name](dataset)
        dataset = dataset.repeat(repeat)
        for name in after:
            dataset = STAGES[name](dataset)
        return dataset

    return make


@pytest.mark.parametrize("name", STAGES)
def test_a_stop_is_not_seen_whatever_stage_comes_before_repeat(name):
    assert require_exact(made([name]))


chains = st.lists(st.sampled_from(list(STAGES)), max_size=3)


@settings(max_examples=12)
@given(before=chains, after=chains)
def test_a_stop_is_not_seen_in_any_order_of_stages(before, after):
    require_exact(made(before, after, repeat=2))


@pytest.mark.parametrize("size", [None, 2])
def test_a_stop_is_not_seen_by_stateless_augmentation_and_epochs_differ(size):
    images = {"id": np.arange(RECORDS), "image": np.tile([0, 1], (RECORDS, 1)).reshape(-1, 1, 2, 1)}
    stream = yogadl.from_source(images, fingerprint="images").stream(shuffle=True)

    def flipped(number, record):
        image = tf.image.stateless_random_flip_left_right(record["image"], seed=tf.stack([number, 42]))
        return {"id": 100 * image[..., 0, 0, 0] + record["id"]}

    def make():
        dataset = adapter.make_tf_dataset(stream, size).prefetch(1).repeat(3)
        return dataset.enumerate().map(flipped, num_parallel_calls=2).prefetch(2)

    require_exact(make)
    found = [i for element in make() for i in ids(element)]
    epochs = [sorted(found[i : i + RECORDS], key=lambda i: i % 100) for i in range(0, 3 * RECORDS, RECORDS)]
    assert [[i % 100 for i in epoch] for epoch in epochs] == [list(range(RECORDS))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


# What functions of tf.data combine, and no methods of ours, has tf.data's own state alone in its checkpoints.


def batches():
    return adapter.make_tf_dataset(stream(), 2)


def zipped(dataset):
    return tf.data.Dataset.zip((dataset, tf.data.Dataset.range(12))).map(lambda record, _: record)


def sampled():
    choice = tf.data.Dataset.range(2).repeat(5)
    return tf.data.Dataset.choose_from_datasets([batches().repeat(), batches().repeat()], choice)


def interleaved():
    dataset = batches().prefetch(3)
    return tf.data.Dataset.range(3).interleave(lambda _: dataset, cycle_length=1).prefetch(1)


def rests(make):
    """Yield, for each stop, what is read after a restart, or the error; and what should be."""
    iterator, saved, whole = iter(make()), [], []
    while True:
        saved.append(iterator._serialize_to_tensors())
        element = next(iterator, None)
        if element is None:
            break
        whole.append(ids(element))
    for done, state in enumerate(saved):
        iterator = iter(make())
        iterator._restore_from_tensors(state)
        try:
            yield [ids(element) for element in iterator], whole[done:]
        except tf.errors.OpError as error:
            yield error, whole[done:]


@pytest.mark.parametrize(
    ("make", "count"),
    [(lambda: zipped(batches().repeat(3)).prefetch(2), 12), (sampled, 10), (interleaved, 12)],
    ids=["zip", "choose", "interleave"],
)
def test_a_stop_is_not_seen_where_tf_data_combines_datasets(make, count):
    found = list(rests(make))
    assert len(found) == count + 1
    for rest, expected in found:
        assert rest == expected


def test_where_the_epoch_is_not_in_the_checkpoint_it_is_refused_by_name():
    found = list(rests(lambda: STAGES["batch"](zipped(batches())).prefetch(3).repeat(3)))
    errors = [rest for rest, _ in found if isinstance(rest, tf.errors.OpError)]
    assert 0 < len(errors) < len(found)
    assert all("CursorError: the checkpoint that the iterator was" in str(error) for error in errors)
    assert all(rest == expected for rest, expected in found if rest not in errors)
