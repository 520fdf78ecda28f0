"""JPEGs decoded by FFCV."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from data import Data
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, ToTensor
from ffcv.writer import DatasetWriter
from jpegs import SIZE
from readers import SEED, Reader

_FILE = "set.beton"


class Beton(Reader):
    """One `.beton` file of JPEGs, decoded by compiled code in 2 threads.

    Written by `RGBImageField(write_mode="jpg", jpeg_quality=90)`: FFCV encodes each picture itself. Read by
    `RandomResizedCropRGBImageDecoder`, `RandomHorizontalFlip` and `ToTensor`, with `OrderOption.RANDOM` and
    `os_cache=True`.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        self._loader = Loader(
            str(folder / _FILE),
            batch_size=data.batch,
            num_workers=workers,
            order=OrderOption.RANDOM,
            os_cache=True,
            seed=SEED,
            drop_last=False,
            pipelines={
                "image": [
                    RandomResizedCropRGBImageDecoder((SIZE, SIZE)),
                    RandomHorizontalFlip(),
                    ToTensor(),
                ],
                "id": [IntDecoder(), ToTensor()],
            },
        )

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "id": IntField()}
        DatasetWriter(str(folder / _FILE), fields, num_workers=1).from_indexed_dataset(_Pictures(data))

    def epoch(self) -> Iterator[Any]:
        for image, number in self._loader:
            yield {"image": image, "id": number}


class _Pictures:
    """The pictures as FFCV's writer asks for them: pixels, by number."""

    def __init__(self, data: Data) -> None:
        self._jpegs = data.columns["data"]

    def __len__(self) -> int:
        return len(self._jpegs)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        pixels = cv2.imdecode(np.frombuffer(self._jpegs[index], np.uint8), cv2.IMREAD_COLOR)
        return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), index
