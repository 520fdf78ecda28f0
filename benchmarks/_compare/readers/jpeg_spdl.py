"""JPEGs decoded in the threads of SPDL."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from data import Data
from jpegs import SIZE, decode_into
from readers import SEED, jpeg_torch
from readers.jpeg_torch import path_of
from spdl.pipeline import PipelineBuilder


class Pipeline(jpeg_torch.Loader):
    """`PipelineBuilder().add_source(indices).pipe(decode, concurrency=2).aggregate(n).pipe(stack)`.

    Each picture is a file of its own, decoded by simplejpeg and cropped by OpenCV: the decoder of SPDL needs
    the libraries of FFmpeg, which no wheel has.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        self.data, self.folder, self.workers = data, folder, workers
        self._rng = np.random.default_rng(SEED)

    def _decoded(self, index: int) -> Any:
        image = np.empty((SIZE, SIZE, 3), np.uint8)
        decode_into(path_of(self.folder, index).read_bytes(), np.random.default_rng(index), image)
        return image

    @staticmethod
    def _stacked(images: list[Any]) -> dict[str, Any]:
        return {"image": np.stack(images)}

    def epoch(self) -> Iterator[Any]:
        pipeline = (
            PipelineBuilder()
            .add_source(self._rng.permutation(self.data.records).tolist())
            .pipe(self._decoded, concurrency=self.workers)
            .aggregate(self.data.batch)
            .pipe(self._stacked)
            .add_sink(4)
            .build(num_threads=self.workers)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()
