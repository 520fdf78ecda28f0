"""Dataset: the records as samples of tensors, by number."""

import pickle

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import yogadl
from yogadl.adapters import torch as adapter
from yogadl.errors import ConfigurationError

NUMPY_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
ML_DTYPES = (
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


def stored(storage, data):
    storage.submit(data, "set", "1")
    return storage.fetch("set", "1")


def records(count=10):
    return {
        "id": np.arange(count),
        "x": np.eye(count, 3, dtype=np.float32),
        "name": [f"r{i}" for i in range(count)],
    }


def test_a_sample_is_the_record_with_tensors(storage):
    dataset = adapter.Dataset(stored(storage, records()))
    assert len(dataset) == 10
    sample = dataset[1]
    assert sample["id"].shape == ()
    assert sample["id"].dtype == torch.int64
    assert torch.equal(sample["x"], torch.tensor([0.0, 1.0, 0.0]))
    assert sample["name"] == "r1"
    assert dataset[-1]["name"] == "r9"
    assert dataset[torch.tensor(3)]["name"] == "r3"


def test_several_samples_are_read_at_once_in_the_order_asked_for(storage):
    samples = adapter.Dataset(stored(storage, records())).__getitems__([3, 1, 3])
    assert [int(sample["id"]) for sample in samples] == [3, 1, 3]


def test_a_number_out_of_range_is_an_index_error(storage):
    with pytest.raises(IndexError, match="record 10 is out of range: there are 10"):
        adapter.Dataset(stored(storage, records()))[10]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_dataloader_collates_it(storage, workers):
    dataset = adapter.Dataset(stored(storage, records()))
    batches = list(DataLoader(dataset, batch_size=4, num_workers=workers))
    assert torch.cat([batch["id"] for batch in batches]).tolist() == list(range(10))
    assert batches[0]["x"].shape == (4, 3)
    assert batches[2]["name"] == ["r8", "r9"]


def test_the_reference_itself_is_a_dataset_of_arrays(storage):
    ref = stored(storage, records())
    assert type(ref[0]["x"]) is np.ndarray
    batch = next(iter(DataLoader(ref, batch_size=4)))
    assert torch.equal(batch["id"], torch.arange(4))


def test_samples_are_the_readers_own(storage):
    dataset = adapter.Dataset(stored(storage, records()))
    first, second = dataset.__getitems__([0, 1])
    first["x"].fill_(9)
    assert second["x"].tolist() == [0, 1, 0]
    assert dataset[0]["x"].tolist() == [1, 0, 0]


def test_a_transform_makes_the_samples(storage):
    dataset = adapter.Dataset(
        stored(storage, records()), transform=lambda record: (record["x"], record["id"])
    )
    x, number = dataset[2]
    assert (x.tolist(), int(number)) == ([0, 0, 1], 2)


def test_trees_keep_their_form(storage):
    data = [{"a": [np.int32(i), (np.float64(i), b"b")], "b": {"c": np.arange(i)}} for i in range(4)]
    sample = adapter.Dataset(stored(storage, data))[3]
    assert sample["a"] == [torch.tensor(3, dtype=torch.int32), (torch.tensor(3.0, dtype=torch.float64), b"b")]
    assert sample["b"]["c"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", NUMPY_DTYPES + ML_DTYPES)
@pytest.mark.parametrize("workers", [0, 1])
def test_every_dtype_comes_and_goes(storage, name, workers):
    dtype = np.dtype(getattr(ml_dtypes, name) if name in ML_DTYPES else name)
    values = np.arange(1, 25).reshape(6, 4).astype(dtype)
    tensor = (
        torch.from_numpy(values.view(f"V{dtype.itemsize}").view(f"u{dtype.itemsize}"))
        if name in ML_DTYPES
        else (torch.from_numpy(values))
    )
    tensor = tensor.view(getattr(torch, name)) if name in ML_DTYPES else tensor
    ref = stored(storage, torch.utils.data.TensorDataset(tensor, tensor[:, 0]))
    assert ref.spec.fields[0].leaf.dtype == name
    assert ref[5][0].tobytes() == values[5].tobytes()
    row, scalar = adapter.Dataset(ref)[5]
    assert (row.dtype, scalar.dtype, scalar.shape) == (getattr(torch, name), getattr(torch, name), ())
    rows, scalars = next(iter(adapter.make_dataloader(ref.stream(), 6, workers)))
    for found, wanted in ((rows, tensor), (scalars, tensor[:, 0]), (row, tensor[5])):
        assert found.dtype == wanted.dtype
        assert torch.equal(found.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8))


@pytest.mark.parametrize("workers", [0, 1])
def test_dates_stay_arrays(storage, workers):
    dates = np.array(["2020-01-01", "2021-02-03"], "datetime64[s]")
    ref = stored(storage, {"when": dates})
    batch = next(iter(adapter.make_dataloader(ref.stream(), 2, workers)))
    assert batch["when"].dtype == dates.dtype
    assert batch["when"].tolist() == dates.tolist()
    assert adapter.Dataset(ref)[1]["when"] == dates[1]


def test_a_dataset_pickles_small(storage):
    dataset = adapter.Dataset(stored(storage, records()))
    assert len(pickle.dumps(dataset)) < 1024
    assert pickle.loads(pickle.dumps(dataset))[3]["name"] == "r3"


def test_a_reference_without_random_access_is_refused():
    class Own(yogadl.DataRef):
        def stream(self, *_, **__):
            return yogadl.Stream(lambda: iter([1]), 1)

        def __len__(self):
            return 1

    with pytest.raises(ConfigurationError, match="random access"):
        adapter.Dataset(Own())
