"""HF datasets."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import datasets  # reads the environment when it is imported
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from data import Data
from readers import SEED, Reader
from torch.utils.data import BatchSampler, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

datasets.disable_progress_bars()


class MapStyle(Reader):
    """A map-style `Dataset`, by `save_to_disk` and `load_from_disk`: Arrow files that are mapped.

    Nothing is compressed. Arrays are stored flat, as `List(Value(dtype), length=size)`, and each batch is
    reshaped, which copies nothing; the documented `Array3D` was tried: small images came at a tenth of
    the speed, and took 2.3 times the disk. Byte strings are `Value("binary")`. All else of `save_to_disk`
    is left as it is: 1,000 records to an Arrow batch, files of 500 MB. The format is
    `with_format("torch", dtype=None)`, which keeps uint8 (without `dtype=None` all integers become
    int64). Byte strings stay outside it (`output_all_columns=True`) and come as a list of bytes, since
    the formats of numpy and torch strip the zero bytes at their ends.

    Without workers: `dataset.shuffle(seed=..., keep_in_memory=True).iter(batch)`, with another seed each
    epoch. That is a global shuffle by a mapping of indices; `flatten_indices`, which copies all data into
    the new order, is not used. A checkpoint is the epoch and the number of batches read, and `skip` goes on
    there: it cuts the mapping, reads nothing, and is exact.

    With workers: torchdata's `StatefulDataLoader`, which the documentation names for checkpoints, over the
    dataset without a mapping; `sampler=BatchSampler(RandomSampler(dataset))` with `batch_size=None` and
    `persistent_workers=True`, so that a worker makes a batch in one step. The more usual `batch_size=` with
    `shuffle=True` makes it of records by `__getitems__` and the default collation, and was a fifth slower.
    A checkpoint is the epoch, which seeds the sampler, and the loader's `state_dict`: it is exact and skips
    indices, not records. Batches are torch tensors.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        kept: dict[str, Any] = (
            {"columns": list(data.fixed), "output_all_columns": True} if data.varying else {}
        )
        self._dataset = self._load(folder).with_format("torch", dtype=None, **kept)
        self._shapes = {
            name: (-1, *column.shape[1:]) for name, column in data.fixed.items() if column.ndim > 2
        }
        self._epoch = self._read = 0
        self._generator = torch.Generator()
        self._loader = self._made() if workers else None

    def _made(self) -> Any:
        order = RandomSampler(self._dataset, generator=self._generator)
        return StatefulDataLoader(
            self._dataset,
            sampler=BatchSampler(order, self.data.batch, drop_last=False),
            batch_size=None,
            num_workers=self.workers,
            persistent_workers=True,
        )

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        columns: dict[str, Any] = {}
        features: dict[str, Any] = {}
        for name, column in data.columns.items():
            if name == data.varying:
                columns[name], features[name] = list(column), datasets.Value("binary")
            elif column.ndim == 1:
                columns[name], features[name] = column, datasets.Value(str(column.dtype))
            else:
                size = column[0].size
                columns[name] = pa.FixedSizeListArray.from_arrays(column.reshape(-1), size)
                features[name] = datasets.List(datasets.Value(str(column.dtype)), length=size)
        cls._write(datasets.Dataset.from_dict(columns, features=datasets.Features(features)), folder)

    @staticmethod
    def _write(made: Any, folder: Path) -> None:
        made.save_to_disk(str(folder))

    @staticmethod
    def _load(folder: Path) -> Any:
        return datasets.load_from_disk(str(folder))

    def epoch(self) -> Iterator[Any]:
        self._epoch += 1
        return self._batches(self._epoch - 1, 0)

    def _batches(self, epoch: int, first: int) -> Iterator[Any]:
        if self._loader is None:
            shuffled = self._dataset.shuffle(seed=SEED + epoch, keep_in_memory=True)
            batches = shuffled.skip(first * self.data.batch).iter(self.data.batch)
        else:
            self._generator.manual_seed(SEED + epoch)
            batches = iter(self._loader)
        self._read = first
        for batch in batches:
            self._read += 1
            yield {
                name: column.reshape(self._shapes[name]) if name in self._shapes else column
                for name, column in batch.items()
            }

    def state(self) -> Any:
        return [self._epoch - 1, self._read if self._loader is None else self._loader.state_dict()]

    def resume(self, state: Any, batches: int) -> Iterator[Any]:
        epoch, place = state
        self._epoch = epoch + 1
        if self._loader is None:
            return self._batches(epoch, place)
        self._loader.load_state_dict(place)
        return self._batches(epoch, 0)

    def close(self) -> None:
        self._loader = None


class Parquet(MapStyle):
    """The same out of a Parquet file: pyarrow writes it with zstd, `Dataset.from_parquet` reads it.

    pyarrow's own `write_table(compression="zstd")` with row groups of 1,000 records, since `to_parquet` of
    datasets 5.2.0 chooses the compression itself and refuses the argument. When it is loaded, the file is
    decompressed to an Arrow file beside it, once, which is mapped: nothing is decompressed while it is read.
    """

    @staticmethod
    def _write(made: Any, folder: Path) -> None:
        table = made.with_format("arrow")[:]
        pq.write_table(table, folder / "set.parquet", compression="zstd", row_group_size=1_000)

    @staticmethod
    def _load(folder: Path) -> Any:
        return datasets.Dataset.from_parquet(str(folder / "set.parquet"), cache_dir=str(folder / "arrow"))
