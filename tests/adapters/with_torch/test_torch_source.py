"""PyTorch's datasets as sources: map-style, iterable, by column, tensors of every kind."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from inside import open_source
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)

import yogadl
from yogadl.adapters import torch as adapter
from yogadl.errors import UnsupportedDataError

Pair = namedtuple("Pair", "x y")


class MapStyle(Dataset):
    def __init__(self, count=20, make=lambda i: {"x": torch.full((3,), i, dtype=torch.float32), "y": i}):
        self.count, self.make = count, make

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.make(index)


class Batched(MapStyle):
    def __getitems__(self, indices):
        return [(torch.tensor(i), "batched") for i in indices]


class Streaming(IterableDataset):
    def __iter__(self):
        return ({"x": torch.arange(i), "name": str(i)} for i in range(20))


def stored(storage, data):
    storage.submit(data, "set", "1")
    return storage.fetch("set", "1")


def test_a_map_style_dataset(storage):
    ref = stored(storage, MapStyle())
    assert len(ref) == 20
    assert ref[7]["x"].tolist() == [7, 7, 7]
    assert ref[7]["y"] == 7


class Endless(Dataset):
    def __getitem__(self, index):
        return index


class Numbers(MapStyle):
    """Like `MapStyle`, and can go to other processes."""

    def __init__(self, count=20):
        self.count = count

    def __getitem__(self, index):
        return {"y": torch.tensor(index)}


def test_an_iterable_dataset(storage):
    ref = stored(storage, Streaming())
    assert len(ref) == 20
    assert ref[4]["x"].tolist() == [0, 1, 2, 3]
    assert ref[4]["name"] == "4"


X, Y = torch.arange(60, dtype=torch.float32).reshape(20, 3), torch.arange(20)
OTHERS = {
    "by batches": (Batched(), {}, [(i, "batched") for i in range(20)]),
    "by workers": (Numbers(), {"workers": 2}, [{"y": i} for i in range(20)]),
    "combined": (ConcatDataset([Numbers(3), Numbers(2)]), {}, [{"y": i} for i in (0, 1, 2, 0, 1)]),
    "subset": (Subset(Numbers(), [5, 2, 5]), {}, [{"y": i} for i in (5, 2, 5)]),
    "ours": (adapter.Dataset(yogadl.from_source({"y": np.arange(5)})), {}, [{"y": i} for i in range(5)]),
    "loader of records": (DataLoader(Numbers(), batch_size=None), {}, [{"y": i} for i in range(20)]),
}


@pytest.mark.parametrize(("data", "options", "records"), OTHERS.values(), ids=OTHERS)
def test_records_come_in_the_order_of_the_dataset(storage, data, options, records):
    assert list(storage.submit(data, "set", "1", **options)) == records


def test_random_split_gives_both_parts(storage):
    parts = random_split(TensorDataset(Y), [15, 5], torch.Generator().manual_seed(1))
    found = [int(record[0]) for part in parts for record in stored(storage, part)]
    assert sorted(found) == list(range(20))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataLoader(MapStyle(), batch_size=4), r"loader\.dataset"),
        (Endless(), "Endless has no __len__"),
        *(
            (data, "no records")
            for data in (TensorDataset(Y[:0]), Subset(TensorDataset(Y), []), MapStyle(0), X[:0])
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_source_is_refused(storage, data, words):
    with pytest.raises(UnsupportedDataError, match=words):
        storage.submit(data, "set", "1")


BY_COLUMN = {
    "TensorDataset": (TensorDataset(X, Y), lambda i: (X[i], Y[i])),
    "tuple StackDataset": (StackDataset(X, Y), lambda i: (X[i], Y[i])),
    "dict StackDataset": (StackDataset(x=X, y=Y), lambda i: {"x": X[i], "y": Y[i]}),
    "tensor": (X, lambda i: X[i]),
    "Subset": (Subset(TensorDataset(X, Y), [4, 1, 4]), lambda i: (X[[4, 1, 4][i]], Y[[4, 1, 4][i]])),
    "Subset of a Subset": (
        Subset(Subset(TensorDataset(Y), [4, 1, 19]), [2, 0]),
        lambda i: (Y[[19, 4][i]],),
    ),
}


@pytest.mark.parametrize("name", BY_COLUMN)
def test_tensors_are_read_by_column(storage, name, monkeypatch):
    data, wanted = BY_COLUMN[name]

    def read(*_):
        raise AssertionError("a record was read alone")

    monkeypatch.setattr(TensorDataset, "__getitem__", read)
    monkeypatch.setattr(Subset, "__getitem__", read)
    monkeypatch.setattr(StackDataset, "__getitem__", read)
    ref = stored(storage, data)
    assert len(ref) == len(data)
    for number, record in zip(range(len(data)), ref, strict=True):
        found, expected = values(record), values(wanted(number))
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def values(record):
    if isinstance(record, dict):
        return list(record.values())
    return list(record) if isinstance(record, tuple) else [record]


def test_a_large_subset_is_read_piece_by_piece(storage):
    data = torch.arange(50_000)
    chosen = torch.randperm(50_000, generator=torch.Generator().manual_seed(1)).tolist()
    ref = stored(storage, Subset(TensorDataset(data), chosen))
    assert np.array_equal(ref.gather(range(50_000))[0], chosen)


def test_a_dataset_is_shuffled_without_a_cache():
    ref = yogadl.from_source(MapStyle())
    assert sorted(int(record["y"]) for record in ref.stream(shuffle=True)) == list(range(20))
    columns = yogadl.from_source(TensorDataset(X, Y))
    assert columns.gather([3, 1])[1].tolist() == [3, 1]


def test_namedtuples_keep_their_names(storage):
    ref = stored(storage, MapStyle(3, lambda i: Pair(torch.tensor(i), [torch.ones(2)])))
    assert ref[2].x == 2
    assert ref[2].y[0].tolist() == [1, 1]


STRANGE = {
    "with a gradient": torch.ones(3, requires_grad=True) * 2,
    "a conjugated view": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "transposed": torch.arange(6).reshape(2, 3).T,
    "strided": torch.arange(10)[::3],
    "broadcast": torch.ones(1).expand(4),
    "empty": torch.empty(0, 3),
    "bfloat16, strided": torch.arange(10, dtype=torch.bfloat16)[::3],
}


@pytest.mark.parametrize("name", STRANGE)
def test_views_are_stored_as_what_they_show(storage, name):
    tensor = STRANGE[name]
    ref = stored(storage, MapStyle(2, lambda i: {"t": tensor}))
    assert torch.equal(adapter.Dataset(ref)[1]["t"], tensor.detach().resolve_conj())


REFUSED = {
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "torch.complex32": lambda: torch.ones(2, dtype=torch.complex32),
    "a quantized tensor": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "a nested tensor": lambda: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    ),
    "is None": lambda: None,
}


@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::DeprecationWarning"
)  # all of these are experimental
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_stored_form_is_refused_by_field_and_record(storage, name):
    value = REFUSED[name]()
    data = MapStyle(5, lambda i: {"a": {"b": torch.ones(2) if i < 3 else value}})
    with pytest.raises(UnsupportedDataError, match=rf"record 3: field 'a/b' .*{name}"):
        storage.submit(data, "set", "1")


def test_what_is_none_of_torchs_is_left_to_others():
    assert adapter.source([1, 2]) is None
    assert open_source(TensorDataset(Y)).length == 20


@pytest.mark.parametrize("files", ["", ", images/11.png"])
def test_an_error_names_the_record_and_the_file_that_a_folder_of_images_lists(storage, files):
    def fails_at_11(index):
        if index == 11:
            raise OSError("unreadable")
        return {"n": index}

    data = MapStyle(make=fails_at_11)
    if files:
        data.samples = [
            (f"images/{index}.png", 0) for index in range(20)
        ]  # as torchvision's ImageFolder has it
    with pytest.raises(OSError, match="unreadable") as caught:
        storage.submit(data, "d", "1")
    assert caught.value.__notes__ == [f"while reading record 11 of the source{files}"]
