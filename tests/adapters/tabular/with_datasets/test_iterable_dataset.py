"""A stream as a datasets.IterableDataset: its order, epochs, states, workers and nodes."""

import pickle
from collections import Counter

import datasets
import pytest
from datasets.distributed import split_dataset_by_node
from inside import set_constants
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import yogadl
from yogadl.adapters.datasets import make_iterable_dataset
from yogadl.errors import ConfigurationError, CursorError

# Of torch: more workers than cores, and its own use of what it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:(This DataLoader|'set_vital'):UserWarning")
RECORDS = 1031  # several blocks
REF = yogadl.from_source(
    [{"n": number, "text": f"é{number}", "tags": list(range(number % 3))} for number in range(RECORDS)]
)


def stream_of(**options):
    return REF.stream(shuffle=True, shuffle_seed=5, **options)


@pytest.fixture
def dataset():
    return make_iterable_dataset(stream_of())


def order(epoch, **options):
    return stream_of(**options).indices(epoch).tolist()


def numbers(rows):
    return [int(row["n"]) for row in rows]


def test_the_rows_are_those_of_a_dataset_in_the_streams_order(dataset):
    plain = REF.to_hf()
    assert isinstance(dataset, datasets.IterableDataset)
    assert list(dataset) == [plain[index] for index in order(0)]
    assert dataset.features == plain.features
    assert dataset.column_names == ["n", "text", "tags"]
    assert len(dataset) == RECORDS


def test_a_named_epoch_is_read(dataset):
    for epoch in (0, 2, 2, 1):
        dataset.set_epoch(epoch)
        assert numbers(dataset) == order(epoch)
        assert numbers(dataset) == order(epoch)
        mapped = dataset.map(lambda row: {"n": row["n"] + 1})
        mapped.set_epoch(epoch)
        assert numbers(mapped) == [number + 1 for number in order(epoch)]


@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("read", [0, 1, 255, 256, 257, 1030, 1031])
def test_a_state_goes_on_at_the_next_record(dataset, epoch, read):
    dataset.set_epoch(epoch)
    rows = iter(dataset)
    for _ in range(read):
        next(rows)
    state = dataset.state_dict()
    other = make_iterable_dataset(stream_of())
    other.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert numbers(other) == order(epoch)[read:]
    other.set_epoch(epoch + 1)
    assert numbers(other) == order(epoch + 1)
    mapped = make_iterable_dataset(stream_of()).map(lambda row: row)
    mapped.set_epoch(epoch)
    rows = iter(mapped)
    for _ in range(read):
        next(rows)
    again = make_iterable_dataset(stream_of()).map(lambda row: row)
    again.set_epoch(epoch)
    again.load_state_dict(mapped.state_dict())
    assert numbers(again) == order(epoch)[read:]


@pytest.mark.parametrize(("records", "size_bytes"), [(1, 10**6), (256, 200), (5000, 10**6)])
def test_it_reads_so_many_at_a_time(dataset, records, size_bytes, monkeypatch):
    set_constants(monkeypatch, HF_AT_ONCE_RECORDS=records, HF_AT_ONCE_BYTES=size_bytes)
    dataset.load_state_dict(stream_of().at(1, 3).state_dict())
    assert numbers(dataset) == order(1)[3:]


def test_a_cursor_is_a_state(dataset):
    cursor = stream_of().at(2, 700).state_dict()
    dataset.load_state_dict(cursor)
    assert numbers(dataset) == order(2)[700:]
    assert numbers(DataLoader(dataset, batch_size=None, num_workers=3)) == order(2)[700:]
    with pytest.raises(CursorError):
        dataset.load_state_dict(REF.stream(shuffle=True, shuffle_seed=6).cursor(delivered=3))
    other = make_iterable_dataset(REF.stream())
    with pytest.raises(CursorError):
        dataset.load_state_dict(other.state_dict())
    mapped = other.map(lambda row: row)
    mapped.load_state_dict(dataset.map(lambda row: row).state_dict())
    with pytest.raises(CursorError):
        next(iter(mapped))


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("epoch", [0, 1])
def test_workers_share_the_order(dataset, workers, epoch):
    dataset.set_epoch(epoch)
    assert numbers(DataLoader(dataset, batch_size=None, num_workers=workers)) == order(epoch)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on(dataset, workers):
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=workers)
    dataset.set_epoch(1)
    rows = iter(loader)
    seen = numbers(next(rows) for _ in range(301))
    other = make_iterable_dataset(stream_of())
    other.set_epoch(1)
    resumed = StatefulDataLoader(other, batch_size=None, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    assert seen + numbers(resumed) == order(1)


@pytest.mark.parametrize(("nodes", "workers"), [(2, 0), (3, 0), (11, 0), (13, 0), (64, 0), (2, 2), (11, 2)])
def test_nodes_share_the_order(dataset, nodes, workers):
    for epoch in (0, 1):
        found = []
        for node in range(nodes):
            part = split_dataset_by_node(dataset, node, nodes)
            part.set_epoch(epoch)
            rows = DataLoader(part, batch_size=None, num_workers=workers) if workers else part
            found.append(numbers(rows))
        if nodes == 2 or not workers:
            assert found == [order(epoch)[node::nodes] for node in range(nodes)]
        assert sorted(number for part in found for number in part) == list(range(RECORDS))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_sequences_are_divided_among_nodes_alone(nodes, workers):
    sequences = REF.stream(shuffle=yogadl.Sequences(8, "n", first=None))
    dataset = make_iterable_dataset(sequences)
    if nodes == 3:
        with pytest.raises(ConfigurationError, match="can't be divided among 3 shards"):
            split_dataset_by_node(dataset, 0, nodes)
        return
    part = split_dataset_by_node(dataset, 0, nodes)
    rows = DataLoader(part, batch_size=None, num_workers=workers) if workers else part
    if workers:
        with pytest.raises(ConfigurationError, match="can't be divided among"):
            list(rows)
    else:
        assert numbers(rows) == sequences.indices().tolist()[::nodes]


def test_a_shard_is_its_own(dataset):
    shard = make_iterable_dataset(stream_of(shard_rank=1, num_shards=3))
    shard.set_epoch(1)
    assert numbers(shard) == order(1, shard_rank=1, num_shards=3)
    assert len(shard) == 344


def test_a_copy_goes_on(dataset):
    dataset.load_state_dict(stream_of().at(1, 9).state_dict())
    assert numbers(pickle.loads(pickle.dumps(dataset))) == order(1)[9:]


def test_what_it_is_not_says_what_to_write(dataset):
    with pytest.raises(ConfigurationError, match="shuffle_seed"):
        dataset.shuffle(seed=3)
    with pytest.raises(ConfigurationError, match="load_state_dict"):
        make_iterable_dataset(stream_of(cursor=stream_of().cursor(delivered=3)))
    with pytest.raises(ConfigurationError, match="pass a stream"):
        make_iterable_dataset(REF)


@pytest.mark.parametrize("workers", [0, 3])
def test_datasets_are_joined_and_mixed(dataset, workers):
    other = make_iterable_dataset(REF.stream())
    joined = datasets.concatenate_datasets([dataset, other])
    mixed = datasets.interleave_datasets([dataset, other.map(lambda row: row)])
    buffered = dataset.map(lambda row: row).shuffle(seed=1, buffer_size=5)
    for made, least in ((joined, 2 * RECORDS), (mixed, 2 * RECORDS - 2 * workers - 1), (buffered, RECORDS)):
        rows = DataLoader(made, batch_size=None, num_workers=workers) if workers else made
        found = Counter(numbers(rows))
        assert set(found.values()) <= {1, 2}
        assert least <= found.total() <= 2 * RECORDS


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_what_is_made_of_it_has_the_epoch(dataset, epoch, workers):
    kept = order(epoch)
    mapped = dataset.map(lambda row: row)
    for made, expected in [
        (dataset.shard(3, 1), kept[1::3]),
        (mapped.shard(2, 1), kept[1::2]),
        (mapped.shard(2, 1).map(lambda row: row), kept[1::2]),
        (dataset.skip(5), kept[5:]),
        (mapped.shard(2, 1).take(9), kept[1:19:2]),
        (mapped.take(9), kept[:9]),
        (mapped.shuffle(seed=1, buffer_size=5).shard(2, 1), kept[1::2]),
    ]:
        made.set_epoch(epoch)
        rows = DataLoader(made, batch_size=None, num_workers=workers) if workers else made
        assert sorted(numbers(rows)) == sorted(expected)
