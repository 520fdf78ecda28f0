"""Recognise images among values, shrink them, and write them as files that a browser shows."""

import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._leaf import Leaf

# Larger ones are shrunk to that many pixels a side.
MOST_SIDE: Final = 256
# Of what is an image file already, and can't be shrunk without decoding it.
MOST_FILE_BYTES: Final = 2**19
_MOST_FILE_PIXELS: Final = 2**22
_MOST_AVERAGED: Final = 4
_COLOURS: Final = {1: 0, 3: 2, 4: 6}  # PNG's numbers for grey, RGB, RGB with transparency, by channels
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8\xff"
_NO_SIZE: Final = {0xC4, 0xC8, 0xCC}  # JPEG's segments that lie among the ones that say a size


@dataclass(frozen=True)
class Image:
    """An image that a browser shows.

    Attributes:
        kind: PNG or JPEG.
        content: The file.
        width: How many pixels it has in a row.
        height: How many rows.
    """

    kind: str
    content: bytes
    width: int
    height: int


def is_image(leaf: Leaf, value: Any) -> bool:
    """Return whether an array is one of an image: HxW, HxWx1, HxWx3 or HxWx4 of uint8, not empty."""
    return (
        leaf.dtype == "uint8"
        and isinstance(value, np.ndarray)
        and value.size > 0
        and (value.ndim == 2 or (value.ndim == 3 and value.shape[2] in _COLOURS))
    )


def image_of_array(array: NDArray[Any]) -> Image:
    """Return an array that `is_image` as a PNG, shrunk if it is large."""
    small = _shrunk(array if array.ndim == 3 else array[:, :, np.newaxis])
    height, width, channels = small.shape
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with its filter: 0, none
    lines[:, 1:] = small.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return Image("PNG", _PNG + b"".join(_chunk(*chunk) for chunk in chunks), width, height)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _shrunk(image: NDArray[Any]) -> NDArray[Any]:
    """Return an image whose pixels are means of those of a larger one, not all of which are looked at."""
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
    """Return which image file this is, by how it begins: PNG or JPEG."""
    return "PNG" if content.startswith(_PNG) else "JPEG" if content.startswith(_JPEG) else None


def image_of_file(kind: str, content: bytes) -> Image | str:
    """Return a file of a kind that `kind_of` found as it is, or why it is not part of a page.

    Only its header is read; whether the rest can be decoded is for the browser to find out.
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
    """Return the size that one of the first segments says."""
    place = 2
    while place + 10 <= len(content) and content[place] == 0xFF:
        marker, length = content[place + 1], int.from_bytes(content[place + 2 : place + 4], "big")
        if marker == 0xFF:  # any number of these may come before a marker
            place += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            height, width, channels = struct.unpack(">HHB", content[place + 5 : place + 10])
            return (width, height) if length == 8 + 3 * channels else None
        place += 2 + length
    return None
