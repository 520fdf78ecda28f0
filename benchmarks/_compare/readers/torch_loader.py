"""PyTorch's own DataLoader, as torchdata's StatefulDataLoader."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data import Data
from readers import SEED, Stateful
from torch.utils.data import Dataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader


class _Files(Dataset[dict[str, Any]]):
    """Reads one record at a time: rows of mapped arrays, and a file for each byte string."""

    def __init__(self, folder: Path, data: Data) -> None:
        self._records = data.records
        self._fixed = {
            name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in data.fixed
        }
        self._varying = data.varying
        self._folder = str(folder)

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int) -> dict[str, Any]:
        record: dict[str, Any] = {
            name: torch.from_numpy(column[index]) if column.ndim > 1 else column[index].item()
            for name, column in self._fixed.items()
        }
        if self._varying is not None:
            with open(_path(self._folder, index), "rb") as file:
                record[self._varying] = file.read()
        return record


def _path(folder: str, index: int) -> str:
    return f"{folder}/{index // 1000:05}/{index:08}.bin"


class _Tensors(Dataset[dict[str, Any]]):
    """Reads a whole batch at a time from tensors in RAM: an index is the indices of a batch."""

    def __init__(self, folder: Path, data: Data) -> None:
        tensors = torch.load(folder / "set.pt")
        if data.varying is not None:
            self._bytes, self._starts = tensors.pop(data.varying).numpy(), tensors.pop("starts").tolist()
        self._varying = data.varying
        self._fixed = {name: tensor.numpy() for name, tensor in tensors.items()}

    def __getitem__(self, chosen: torch.Tensor) -> dict[str, Any]:
        rows = chosen.numpy()
        batch: dict[str, Any] = {
            name: torch.from_numpy(column.take(rows, axis=0)) for name, column in self._fixed.items()
        }
        if self._varying is not None:
            batch[self._varying] = [
                self._bytes[self._starts[index] : self._starts[index + 1]].tobytes()
                for index in rows.tolist()
            ]
        return batch


class _Batches(Sampler[torch.Tensor]):
    """Shuffles, and cuts into batches; each iterator is the next epoch and says where it is."""

    def __init__(self, data: Data) -> None:
        self._records, self._batch = data.records, data.batch
        self._epoch = self._given = self._first = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._epoch, self._given, self._first = self._epoch + 1, self._first, 0
        random = torch.Generator().manual_seed(SEED + self._epoch)
        for chosen in torch.randperm(self._records, generator=random).split(self._batch)[self._given :]:
            self._given += 1
            yield chosen

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "given": self._given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._epoch, self._first = state["epoch"] - 1, state["given"]


class _Loaded(Stateful):
    """What the rows have in common: a StatefulDataLoader."""

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        self._loader = StatefulDataLoader(
            **self._options(), num_workers=workers, persistent_workers=workers > 0
        )

    def _options(self) -> dict[str, Any]:
        raise NotImplementedError


class Files(_Loaded):
    """A map-style dataset over plain files, read by a DataLoader with its own shuffling and collating.

    Fixed fields are .npy files, mapped into memory; a record's arrays are views of them, as tensors, and
    its numbers are Python's. Each byte string is a file of its own, in folders of 1,000, as folders of
    images are. The loader is torchdata's StatefulDataLoader, which the documentation of torchdata names for
    checkpoints within an epoch; its rates are those of DataLoader, with which it shares its options:
    `batch_size`, `shuffle=True` with a seeded generator, the default collate function, `num_workers`, and
    `persistent_workers=True` where there are workers. Resume is its `state_dict` and `load_state_dict`. A
    batch is a dict of tensors, and a list of bytes.
    """

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        for name, column in data.fixed.items():
            np.save(folder / f"{name}.npy", column)
        if data.varying is not None:
            for index, value in enumerate(data.columns[data.varying]):
                path = Path(_path(str(folder), index))
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(value)

    def _options(self) -> dict[str, Any]:
        return {
            "dataset": _Files(self.folder, self.data),
            "batch_size": self.data.batch,
            "shuffle": True,
            "generator": torch.Generator().manual_seed(SEED),
        }


class Tensors(_Loaded):
    """Whole batches out of tensors in RAM: the fastest form of a DataLoader that we know.

    One file of `torch.save` holds a tensor a field; byte strings are joined to one tensor, with another
    that says where each begins. All of it is loaded when the process starts. The sampler shuffles
    (`torch.randperm`) and yields the indices of a whole batch, with `batch_size=None`, so that the dataset
    gathers a batch at once and nothing is collated. It gathers through numpy's view of the tensors:
    `index_select` is as fast in one thread, and slower in several where other processes are busy. The
    loader is torchdata's StatefulDataLoader, whose `state_dict` keeps the sampler's own. A batch is a dict
    of tensors, and a list of bytes.
    """

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        tensors = {name: torch.from_numpy(np.array(column)) for name, column in data.fixed.items()}
        if data.varying is not None:
            values = data.columns[data.varying]
            tensors[data.varying] = torch.frombuffer(bytearray(b"".join(values)), dtype=torch.uint8)
            tensors["starts"] = torch.tensor([0, *map(len, values)]).cumsum(0)
        torch.save(tensors, folder / "set.pt")

    def _options(self) -> dict[str, Any]:
        return {
            "dataset": _Tensors(self.folder, self.data),
            "batch_size": None,
            "sampler": _Batches(self.data),
        }
