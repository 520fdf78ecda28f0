"""LanceDB's StreamingDataset."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import torch
from data import Data
from lancedb.streaming import StreamingDataset
from readers import SEED, Reader
from torch.utils.data import DataLoader


def _stacked(records: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    data = [torch.frombuffer(record["data"], dtype=torch.uint8) for record in records]
    return {"data": torch.stack(data), "id": torch.tensor([record["id"] for record in records])}


class Table(Reader):
    """A table of LanceDB in a folder, read by a StreamingDataset in a DataLoader.

    The table has a column of large binaries and one of numbers. Each epoch is a new `StreamingDataset(table,
    shuffle=True, epoch=...)`, read by `read_batch_size` of a batch or less, in a DataLoader without workers:
    the dataset reads ahead by threads of its own, and worker processes would be started anew
    for each epoch. A batch is a dict of tensors.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        self._table = lancedb.connect(str(folder)).open_table("set")
        self._epoch = 0

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        schema = pa.schema([("data", pa.large_binary()), ("id", pa.int64())])
        rows = data.batch

        def batches() -> Iterator[pa.RecordBatch]:
            for first in range(0, data.records, rows):
                records = [data.record(index) for index in range(first, min(first + rows, data.records))]
                columns = [
                    [each["data"].tobytes() for each in records],
                    [int(each["id"]) for each in records],
                ]
                arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

        lancedb.connect(str(folder)).create_table("set", batches(), schema=schema)

    def epoch(self) -> Iterator[Any]:
        self._epoch += 1
        dataset = StreamingDataset(
            self._table,
            shuffle=True,
            shuffle_seed=SEED,
            epoch=self._epoch,
            read_batch_size=min(64, self.data.batch),
        )
        return iter(DataLoader(dataset, self.data.batch, collate_fn=_stacked))
