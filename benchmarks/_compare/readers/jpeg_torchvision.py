"""JPEGs decoded by torchvision in the workers of PyTorch's DataLoader."""

from typing import Any

import torch
from jpegs import SIZE
from readers import jpeg_torch
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2


class _Pictures(jpeg_torch.Pictures):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        torch.set_num_threads(1)
        self._transform = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])

    def decoded(self, jpeg: bytes, index: int) -> torch.Tensor:
        whole = decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8), ImageReadMode.RGB)
        made: torch.Tensor = self._transform(whole)
        return made


class Loader(jpeg_torch.Loader):
    """The same with torchvision's `decode_jpeg` and `v2` transforms, its own best for processors."""

    pictures = _Pictures
