"""JPEGs decoded in the workers of PyTorch's DataLoader."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data import Data
from readers import SEED, Reader
from torch.utils.data import DataLoader, Dataset


def path_of(folder: Path, index: int) -> Path:
    """Return where a picture lies: in folders of 1,000."""
    return folder / f"{index // 1000:05}" / f"{index:08}.jpg"


class Pictures(Dataset[Any]):
    """One file for each picture, decoded by simplejpeg and OpenCV."""

    def __init__(self, folder: Path, records: int) -> None:
        self._folder, self._records = folder, records

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int) -> Any:
        return {"image": self.decoded(path_of(self._folder, index).read_bytes(), index), "id": index}

    def decoded(self, jpeg: bytes, index: int) -> torch.Tensor:
        """Decode, crop and flip."""
        from jpegs import SIZE, decode_into

        image = np.empty((SIZE, SIZE, 3), np.uint8)
        decode_into(jpeg, np.random.default_rng(torch.initial_seed() + index), image)
        return torch.from_numpy(image)


class Loader(Reader):
    """`DataLoader(files, batch_size, shuffle=True, num_workers=2, persistent_workers=True)`.

    Each picture is a file of its own, decoded by simplejpeg and cropped by OpenCV.
    """

    pictures = Pictures

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        self._loader = DataLoader(
            self.pictures(folder, data.records),
            data.batch,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(SEED),
        )

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        for index, jpeg in enumerate(data.columns["data"]):
            path = path_of(folder, index)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(jpeg)

    def epoch(self) -> Iterator[Any]:
        return iter(self._loader)
