"""IterableDataset: shared among DataLoader's workers without repeats or gaps, an epoch after the other."""

import multiprocessing
import os
import pickle
import tempfile

import numpy as np
import pytest
import torch
from placed import PADDED, check_places, placed
from torch.utils.data import DataLoader
from torch_ids import gold, ids
from torchdata.stateful_dataloader import StatefulDataLoader

import yogadl
from yogadl.adapters import torch as adapter
from yogadl.errors import ConfigurationError, CursorError

pytestmark = [
    # torchdata 0.11 calls what torch 2.13 no longer wants called.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

RECORDS = 101


@pytest.fixture(scope="module")
def ref(tmp_path_factory):
    storage = yogadl.open_storage(tmp_path_factory.mktemp("caches"))
    storage.submit({"id": np.arange(RECORDS), "x": np.ones((RECORDS, 3), np.float32)}, "set", "1")
    return storage.fetch("set", "1")


def stream_of(ref, **options):
    return ref.stream(shuffle=True, shuffle_seed=3, **options)


@pytest.mark.parametrize(("workers", "size"), [(0, None), (3, None), (0, 7), (1, 7), (2, 1), (2, 200)])
def test_the_order_does_not_depend_on_the_number_of_workers(ref, workers, size):
    stream = stream_of(ref)
    loader = DataLoader(adapter.IterableDataset(stream, size), batch_size=None, num_workers=workers)
    assert [ids(loader) for _ in range(2)] == [gold(stream, epoch) for epoch in range(2)]
    assert len(loader) == (RECORDS if size is None else -(-RECORDS // size))


@pytest.mark.parametrize(
    ("workers", "options"),
    [(0, {"pad_shard_remainder": True}), (2, {}), (2, {"drop_shard_remainder": True})],
)
def test_shards_are_shared_among_workers_too(ref, options, workers):
    for rank in range(3):
        stream = stream_of(ref, shard_rank=rank, num_shards=3, **options)
        loader = DataLoader(adapter.IterableDataset(stream, 4), batch_size=None, num_workers=workers)
        assert ids(loader) == gold(stream, 0)


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_of_dataloaders_own_have_each_record_once(ref, workers):
    loader = DataLoader(adapter.IterableDataset(stream_of(ref)), batch_size=8, num_workers=workers)
    assert sorted(ids(loader)) == list(range(RECORDS))


@pytest.mark.parametrize(
    ("method", "is_persistent"),
    [("fork", False), ("fork", True), ("forkserver", False), ("forkserver", True)],
)
def test_every_start_method_goes_from_epoch_to_epoch(ref, method, is_persistent):
    stream = stream_of(ref)
    loader = DataLoader(
        adapter.IterableDataset(stream, 7),
        batch_size=None,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=is_persistent,
    )
    epochs = 3 if method == "fork" else 2
    assert [ids(loader) for _ in range(epochs)] == [gold(stream, epoch) for epoch in range(epochs)]


def test_iterators_that_were_left_count_once_whatever_the_seed(ref):
    stream = stream_of(ref)
    dataset = adapter.IterableDataset(stream, 7)
    found = []
    for _ in range(3):
        loader = DataLoader(
            dataset, batch_size=None, num_workers=2, generator=torch.Generator().manual_seed(1)
        )
        found.append(ids([next(iter(loader))]))
    assert found == [gold(stream, epoch)[:7] for epoch in range(3)]


def test_persistent_workers_stay_in_step_after_an_iterator_that_was_left(ref):
    """One item is asked for, so that one worker may begin the epoch and the other not."""
    stream = stream_of(ref)
    options = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 1}
    loader = DataLoader(adapter.IterableDataset(stream, 7), batch_size=None, **options)
    found = [ids([next(iter(loader))]) for _ in range(3)]
    assert found == [gold(stream, epoch)[:7] for epoch in range(3)]
    assert ids(loader) == gold(stream, 3)


def test_the_number_of_workers_may_change_between_epochs(ref):
    stream = stream_of(ref)
    dataset = adapter.IterableDataset(stream, 7)
    found = [ids(DataLoader(dataset, batch_size=None, num_workers=workers)) for workers in (2, 0, 3, 1, 0, 2)]
    assert found == [gold(stream, epoch) for epoch in range(6)]


def test_two_loaders_side_by_side_read_different_epochs(ref):
    stream = stream_of(ref)
    dataset = adapter.IterableDataset(stream, 7)
    pair = zip(*(DataLoader(dataset, batch_size=None, num_workers=2) for _ in range(2)), strict=True)
    first, second = zip(*pair, strict=True)
    assert sorted([ids(first), ids(second)]) == sorted([gold(stream, 0), gold(stream, 1)])


def child(dataset, queue):
    queue.put([ids(DataLoader(dataset, batch_size=None, num_workers=1)) for _ in range(2)])


def test_a_copy_in_another_process_counts_for_itself(ref):
    stream = stream_of(ref)
    dataset = adapter.IterableDataset(stream, 7)
    ids(DataLoader(dataset, batch_size=None, num_workers=1))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(dataset, queue))
    process.start()
    assert queue.get(timeout=60) == [gold(stream, 0), gold(stream, 1)]
    process.join()
    assert ids(DataLoader(dataset, batch_size=None, num_workers=1)) == gold(stream, 1)


def test_nothing_is_left_behind(ref):
    dataset = adapter.IterableDataset(stream_of(ref), 7)
    ids(DataLoader(dataset, batch_size=None, num_workers=1))
    path = dataset._epochs._path
    assert os.path.exists(path)
    del dataset
    assert not os.path.exists(path)
    assert path.startswith(tempfile.gettempdir())


def test_a_dataset_pickles_small(ref):
    dataset = adapter.IterableDataset(stream_of(ref), 7)
    assert len(pickle.dumps(dataset)) < 4096
    assert ids(pickle.loads(pickle.dumps(dataset))) == gold(stream_of(ref), 0)


def test_a_transform_makes_the_items(ref):
    dataset = adapter.IterableDataset(stream_of(ref), 50, transform=lambda batch: len(batch["id"]))
    assert list(dataset) == [50, 50, 1]


# torchdata's StatefulDataLoader.


def stateful(ref, size, workers, batch_size=None, **options):
    dataset = adapter.IterableDataset(stream_of(ref), size)
    return StatefulDataLoader(dataset, batch_size=batch_size, num_workers=workers, **options)


@pytest.mark.parametrize(
    ("workers", "size", "taken"),
    [(0, None, 0), (0, None, 13), (0, 8, 5), (0, 8, 13), (1, 8, 5), (2, 8, 0), (2, 8, 13), (3, None, 5)],
)
def test_a_stateful_dataloader_goes_on_exactly(ref, workers, size, taken):
    loader = stateful(ref, size, workers)
    ids(loader)
    items = iter(loader)
    first = ids(next(items) for _ in range(taken))
    state = loader.state_dict()
    cursor = adapter.cursor(state)
    resumed = stateful(ref, size, workers)
    resumed.load_state_dict(state)
    stream = stream_of(ref)
    assert first + ids(resumed) == gold(stream, 1)
    assert ids(resumed) == gold(stream, 2)
    onward = stream_of(ref, cursor=cursor)
    assert cursor["epoch"] == 1
    assert first + ids(onward.batch(7)) == gold(stream, 1)


@pytest.mark.parametrize(("workers", "is_persistent"), [(0, False), (2, False), (2, True)])
def test_a_stateful_dataloader_saved_between_epochs_goes_on_with_the_next(ref, workers, is_persistent):
    options = {"persistent_workers": True} if is_persistent and workers else {}
    loader = stateful(ref, 8, workers, **options)
    for _ in range(2):
        ids(loader)
    state = loader.state_dict()
    resumed = stateful(ref, 8, workers, **options)
    resumed.load_state_dict(state)
    assert [ids(resumed) for _ in range(2)] == [gold(stream_of(ref), epoch) for epoch in (2, 3)]
    cursor = adapter.cursor(state)
    assert (cursor["epoch"], cursor["position"]) == (2, 0)


@pytest.mark.parametrize("taken", [0, 1, 2, 5])
def test_there_is_a_cursor_where_workers_stand_at_the_same_place(ref, taken):
    """DataLoader makes batches of 8 of the records of one worker each."""
    loader = stateful(ref, None, 2, batch_size=8)
    items = iter(loader)
    first = ids(next(items) for _ in range(taken))
    if taken % 2:
        with pytest.raises(CursorError, match="not the first of the epoch"):
            adapter.cursor(loader.state_dict())
    else:
        rest = ids(stream_of(ref, cursor=adapter.cursor(loader.state_dict())).batch(7))
        assert sorted(first + rest) == list(range(RECORDS))


@pytest.mark.parametrize(("workers", "records"), [(0, 40), (0, 41), (0, 44), (0, 45), (0, 46), (1, 41)])
def test_shards_of_uneven_length_in_step_save_one_cursor(workers, records):
    """DataLoader makes the batches: of a shard that is a record shorter the last one is shorter."""
    ref = yogadl.from_source({"id": np.arange(records)})
    for taken in range(1, -(-records // 15) + 1):
        seen, cursors = [], []
        for rank in range(3):
            dataset = adapter.IterableDataset(stream_of(ref, shard_rank=rank, num_shards=3))
            loader = StatefulDataLoader(dataset, batch_size=5, num_workers=workers)
            batches = iter(loader)
            delivered = [batch for _, batch in zip(range(taken), batches, strict=False)]
            if len(delivered) == taken:  # the others are through, and wait
                cursors.append(adapter.cursor(loader.state_dict()))
            seen += ids(delivered)
            resumed = StatefulDataLoader(dataset, batch_size=5, num_workers=workers)
            resumed.load_state_dict(loader.state_dict())
            assert adapter.cursor(resumed.state_dict()) == adapter.cursor(loader.state_dict())
        assert all(cursor == cursors[0] for cursor in cursors)
        rest = ids(stream_of(ref, cursor=cursors[0]).batch(7)) if cursors[0]["epoch"] == 0 else []
        assert sorted(seen + rest) == list(range(records))


def test_the_state_of_another_batch_size_is_refused(ref):
    loader = stateful(ref, 8, 0)
    next(iter(loader))
    other = stateful(ref, 9, 0)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(CursorError, match=r"cursor\(state_dict\)"):
        next(iter(other))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [None, 8])
def test_records_are_read_with_their_places(size, workers):
    stream = placed(1_003, **PADDED, start_offset=5)
    dataset = adapter.IterableDataset(stream, size, padding_field="p")
    found = list(DataLoader(dataset, batch_size=None, num_workers=workers))
    assert found[0]["p"].dtype == torch.bool
    check_places(stream, found, (0,), "p")


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_sequences_follow_their_lanes(ref, workers):
    stream = ref.stream(shuffle=yogadl.Sequences(8, "id"))
    loader = DataLoader(adapter.IterableDataset(stream, 8), batch_size=None, num_workers=workers)
    assert ids(loader) == gold(stream, 0)
    with pytest.raises(ConfigurationError, match="its size must be 8, not 4"):
        adapter.IterableDataset(stream, 4)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_records_of_sequences_are_not_divided_among_workers(ref, workers):
    stream = ref.stream(shuffle=yogadl.Sequences(8, "id"))
    loader = DataLoader(adapter.IterableDataset(stream), batch_size=8, num_workers=workers)
    if workers < 2:
        assert ids(loader) == gold(stream, 0)
    else:
        with pytest.raises(ConfigurationError, match="divided among 2 workers"):
            list(loader)
