"""JPEGs decoded by SPDL, in threads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import spdl.io
from data import Data
from jpegs import HEIGHT, SIZE, WIDTH, crop
from readers import SEED, jpeg_torch
from readers.jpeg_torch import path_of
from spdl.pipeline import PipelineBuilder


class Pipeline(jpeg_torch.Loader):
    """`PipelineBuilder().add_source(indices).pipe(decode, concurrency=2).aggregate(n).pipe(stack)`.

    `decode` is `spdl.io.decode_packets` of FFmpeg, with crop, scale and flip as its filters.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        self.data, self.folder, self.workers = data, folder, workers
        self._rng = np.random.default_rng(SEED)

    def _decoded(self, index: int) -> Any:
        rng = np.random.default_rng(index)
        top, left, high, wide = crop(rng, HEIGHT, WIDTH)
        flip = ",hflip" if rng.random() < 0.5 else ""
        described = f"crop={wide}:{high}:{left}:{top},scale={SIZE}:{SIZE}:flags=bilinear{flip},format=rgb24"
        packets = spdl.io.demux_image(path_of(self.folder, index).read_bytes())
        return spdl.io.decode_packets(packets, filter_desc=described)

    @staticmethod
    def _stacked(frames: list[Any]) -> dict[str, Any]:
        return {"image": spdl.io.to_numpy(spdl.io.convert_frames(frames))}

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
