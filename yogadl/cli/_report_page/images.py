"""Recognise images among values, shrink them, and write them as files for a browser."""

import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.leaf import Leaf

# The sides of an image of an array, in pixels; larger images are shrunk.
MOST_SIDE: Final = 256
# The size of an image file in the dataset; a larger one is left out, since shrinking it would need a decoder.
MOST_FILE_BYTES: Final = 2**19
_MOST_FILE_PIXELS: Final = 2**22
_MOST_AVERAGED: Final = 4
_COLOURS: Final = {1: 0, 3: 2, 4: 6}  # channels -> PNG's colour type: grey, RGB, RGB with transparency
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8\xff"
_NO_SIZE: Final = {0xC4, 0xC8, 0xCC}  # segments of JPEG without a size, between the numbers of those with one


@dataclass(frozen=True)
class Image:
    """An image for a browser.

    Attributes:
        kind: PNG or JPEG.
        content: The file's bytes.
        width: The number of pixels in a row.
        height: The number of rows.
    """

    kind: str
    content: bytes
    width: int
    height: int


def is_image(leaf: Leaf, value: Any) -> bool:
    """Return whether an array is an image: HxW, HxWx1, HxWx3 or HxWx4 of uint8, not empty."""
    return (
        leaf.dtype == "uint8"
        and isinstance(value, np.ndarray)
        and value.size > 0
        and (value.ndim == 2 or (value.ndim == 3 and value.shape[2] in _COLOURS))
    )


def image_of_array(array: NDArray[Any]) -> Image:
    """Return an array for which `is_image` holds as a PNG, shrunk if it is large."""
    small = _shrunk(array if array.ndim == 3 else array[:, :, np.newaxis])
    height, width, channels = small.shape
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # each row begins with its filter: 0, none
    lines[:, 1:] = small.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return Image("PNG", _PNG + b"".join(_chunk(*chunk) for chunk in chunks), width, height)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _shrunk(image: NDArray[Any]) -> NDArray[Any]:
    """Return a smaller image whose pixels are means; of a very large image not all pixels are read."""
    step = max(1, max(image.shape[:2]) // (_MOST_AVERAGED * MOST_SIDE))
    image = image[::step, ::step]
    step = -(-max(image.shape[:2]) // MOST_SIDE)
    if step == 1:
        return image
    rows, columns = (np.arange(0, size, step) for size in image.shape[:2])
    sums = np.add.reduceat(np.add.reduceat(image.astype(np.uint32), rows, axis=0), columns, axis=1)
    heights, widths = (
        np.diff(np.append(starts, size))
        for starts, size in zip((rows, columns), image.shape[:2], strict=True)
    )
    return (sums // (heights[:, None, None] * widths[None, :, None]).astype(np.uint32)).astype(np.uint8)


def kind_of(content: bytes) -> str | None:
    """Return the kind of an image file by its first bytes, PNG or JPEG, else None."""
    return "PNG" if content.startswith(_PNG) else "JPEG" if content.startswith(_JPEG) else None


def image_of_file(kind: str, content: bytes) -> Image | str:
    """Return an image file unchanged, or the reason why the page leaves it out.

    Only the file's header is read: the browser finds out whether the rest can be decoded.
    """
    width, height = (_size_of_png(content) if kind == "PNG" else _size_of_jpeg(content)) or (0, 0)
    if not width * height:
        return f"begins as a {kind}, but can't be read"
    if len(content) > MOST_FILE_BYTES or width * height > _MOST_FILE_PIXELS:
        return f"a {kind}, too large for this page"
    return Image(kind, content, width, height)


def _size_of_png(content: bytes) -> tuple[int, int] | None:
    header = content[12:29]
    if header[:4] != b"IHDR" or content[29:33] != struct.pack(">I", zlib.crc32(header)):
        return None
    width, height = struct.unpack(">II", header[4:12])
    return width, height


def _size_of_jpeg(content: bytes) -> tuple[int, int] | None:
    """Return width and height from the first segment that has a size, or None."""
    place = 2
    while place + 10 <= len(content) and content[place] == 0xFF:
        marker, length = content[place + 1], int.from_bytes(content[place + 2 : place + 4], "big")
        if marker == 0xFF:  # padding bytes before a marker
            place += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            height, width, channels = struct.unpack(">HHB", content[place + 5 : place + 10])
            return (width, height) if length == 8 + 3 * channels else None
        place += 2 + length
    return None
