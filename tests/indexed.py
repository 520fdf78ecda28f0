"""Sources with random access that note what is read of them."""

from collections.abc import Sequence
from typing import Any


class Items:
    """Random access over a list; fails at one record if asked to."""

    def __init__(self, records: Sequence[Any], fails_at: int | None = None) -> None:
        self.records, self.fails_at = records, fails_at
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        if index == self.fails_at:
            raise OSError("no such file")
        self.read.append(index)
        return self.records[index]


class Batched(Items):
    """The same, read many at a time, as PyTorch's datasets may be."""

    def __init__(self, records: Sequence[Any]) -> None:
        super().__init__(records)
        self.asked: list[list[int]] = []

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        self.asked.append(list(indices))
        return [self[index] for index in indices]
