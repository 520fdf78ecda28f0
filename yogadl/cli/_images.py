"""Generate images: the source that the demo builds its cache from."""

from typing import Any

import numpy as np


class GeneratedImages:
    """Make small images of stripes, with labels: a source like those that users have, without a download.

    The same on every machine and with every numpy, since it is integer arithmetic.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        rows, columns = np.mgrid[0:32, 0:32].astype(np.uint8)
        # A label is a direction of the stripes.
        self._stripes = [
            8 * rows * np.uint8(label % 5) + 8 * columns * np.uint8(label // 5 + 1) for label in range(10)
        ]

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int) -> dict[str, Any]:
        mixed = (index + 1) * 0x9E3779B97F4A7C15 % 2**64
        label = (mixed >> 32) % 10
        color = np.array([mixed >> shift & 255 | 64 for shift in (40, 48, 56)], np.uint16)
        wave = self._stripes[label] + np.uint8(mixed >> 24 & 255)
        image = (wave[:, :, None] * color >> 8).astype(np.uint8)
        return {"id": index, "image": image, "label": label}
