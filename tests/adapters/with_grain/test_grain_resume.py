"""Stopped at any batch of three epochs, each way of iterating with Grain goes on with what is left."""

import itertools

import pytest
from grain_stages import NO_THREADS, ids, numbered

from yogadl.adapters import grain as yogadl_grain

EPOCHS, BATCH, RECORDS = 3, 4, 11
REF = numbered(RECORDS)
DROPS = pytest.mark.parametrize("drop", [False, True])


def shuffled(**options):
    return REF.stream(shuffle=True, shuffle_seed=5, **options)


def make_loader(stream, drop, **options):
    return yogadl_grain.make_dataloader(stream, batch_size=BATCH, drop_remainder=drop, **options)


def make_dataset(stream, drop, **options):
    return yogadl_grain.map_dataset(stream, BATCH, drop_remainder=drop, **options)


def endless(dataset):
    return dataset.repeat().to_iter_dataset(NO_THREADS)


def all_batches(drop):
    """Return what is read without a stop, from the core itself."""
    loader = shuffled().batch(BATCH, drop_remainder=drop, epochs=EPOCHS)
    return [batch["id"].tolist() for batch in loader]


def stops(make):
    """Yield what was delivered and the iterator: before, between and after all batches of three epochs."""
    delivered, iterator = [], iter(make())
    yield delivered, iterator
    while (batch := next(iterator, None)) is not None:
        delivered.append(ids([batch]))
        yield delivered, iterator


def taken(iterable, count):
    return [ids([batch]) for batch in itertools.islice(iterable, count)]


def loader_of_all(drop):
    return make_loader(shuffled(), drop, epochs=EPOCHS)


@DROPS
def test_a_cursor_goes_on_in_a_loop_that_counts_its_own_epochs(drop):
    whole = all_batches(drop)
    for delivered, iterator in stops(lambda: loader_of_all(drop)):
        cursor = yogadl_grain.cursor(iterator)
        rest = []
        for epoch in range(cursor["epoch"], EPOCHS):
            start = cursor if epoch == cursor["epoch"] else shuffled().cursor(0, epoch=epoch)
            rest += taken(make_loader(shuffled(cursor=start), drop), 99)
        assert delivered + rest == whole
        left = EPOCHS - cursor["epoch"]
        assert delivered + taken(make_loader(shuffled(cursor=cursor), drop, epochs=left), 99) == whole


@DROPS
def test_a_cursor_goes_on_in_what_has_no_end(drop):
    whole = all_batches(drop)
    for delivered, iterator in stops(lambda: loader_of_all(drop)):
        stream, left = shuffled(cursor=yogadl_grain.cursor(iterator)), len(whole) - len(delivered)
        assert delivered + taken(make_loader(stream, drop, epochs=None), left) == whole
        repeated = endless(make_dataset(stream, drop, skip_finished_epoch=True))
        assert delivered + taken(repeated, left) == whole
