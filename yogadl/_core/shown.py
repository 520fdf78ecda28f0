"""Show values in a few words, in JSON, and as HTML with images; text of a dataset is always shown as text."""

import base64
import html
import itertools
import math
import struct
import unicodedata
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import in_words
from yogadl._core.json_value import encode
from yogadl._core.protocols import Column
from yogadl._core.spec import JSON, OBJECT, Leaf, Spec

# Describe values in a few words, and in JSON.


# The limits of what is shown of a string or of bytes: in text, and in JSON. In brief text, a value that is
# longer than the first of two limits is cut to the second.
_SHOWN: Final = 40
_WHOLE_BRIEFLY: Final = 24
_SHOWN_BRIEFLY: Final = 12
_SHOWN_JSON: Final = 200


def names_of(spec: Spec) -> list[str]:
    """Return the fields' names to show: a record of a single value has no name, and a key may be empty."""
    if isinstance(spec.tree, Leaf):
        return ["(the record)"]
    return [field.name or '""' for field in spec.fields]


def row_of_field(name: str, leaf: Leaf) -> list[str]:
    """Return a field's name, dtype and shape as a row of a table."""
    if leaf.shape is None:
        shape = "varies"
    else:
        shape = " x ".join("varies" if count is None else str(count) for count in leaf.shape)
    return [name, "pickled" if leaf.dtype == OBJECT else leaf.dtype, shape]


def values_of(spec: Spec, read: Callable[[list[int]], Sequence[Column]], count: int) -> list[list[Any]]:
    """Return the values of records; the value of a pickled field is None, because unpickling runs code.

    Args:
        spec: The structure of a record.
        read: Returns one column for each of the fields with these numbers.
        count: The number of records that `read` returns.
    """
    readable = [number for number, field in enumerate(spec.fields) if field.leaf.dtype != OBJECT]
    columns: list[Any] = [[None] * count] * len(spec.fields)
    for number, column in zip(readable, read(readable), strict=True):
        columns[number] = column
    return list(map(list, zip(*columns, strict=True)))


def text_of(leaf: Leaf, value: Any, is_brief: bool = False) -> str:  # any value of a batch
    """Return a value in a few words: a scalar as it is, an array as dtype, shape, least, greatest, NaNs."""
    if leaf.dtype == OBJECT:
        return "pickled"
    if isinstance(value, np.ndarray) and value.ndim:
        shape = "x".join(map(str, value.shape))
        bounds = _bounds(value)
        between = "" if bounds is None else f" {_number(bounds[0])} to {_number(bounds[1])}"
        missing = 0 if value.dtype.kind in "Oc" else np.count_nonzero(value != value)
        without = f", {missing:,} {'NaT' if value.dtype.kind in 'mM' else 'NaN'}" if missing else ""
        return f"{leaf.dtype}[{shape}]{between}{without}"
    if leaf.dtype == JSON:
        return _cut_json(encode(value).decode(), is_brief)
    if isinstance(value, str | bytes):
        return _cut_value(value, is_brief)
    return _number(_plain(value))


def _cut_json(value: str, is_brief: bool) -> str:
    whole, most = (_WHOLE_BRIEFLY, _SHOWN_BRIEFLY) if is_brief else (_SHOWN, _SHOWN)
    if len(value) <= whole:
        return value
    return f"{value[:most]}..." if is_brief else f"{len(value):,} characters: {value[:most]}..."


def _cut_value(value: str | bytes, is_brief: bool) -> str:
    whole, most = (_WHOLE_BRIEFLY, _SHOWN_BRIEFLY) if is_brief else (_SHOWN, _SHOWN)
    if len(value) <= whole and len(repr(value)) <= whole + len("b''"):
        return repr(value)
    kept = value[:most]
    while len(repr(kept)) > most + len("b''"):  # some characters are escaped
        kept = kept[:-1]
    if isinstance(value, bytes):
        return f"{len(value):,} bytes: {kept!r}..."
    return f"{kept!r}..." if is_brief else f"{len(value):,} characters: {kept!r}..."


def json_of(leaf: Leaf, value: Any) -> dict[str, Any]:  # any value of a batch
    """Return a value as JSON; the keys are the same for every value.

    `value` is set for scalars, strings, bytes (in hexadecimal) and json values (their text), `min` and `max`
    for arrays of numbers, `length` for strings, bytes and texts, of which `value` may be just the beginning.
    """
    facts: dict[str, Any] = {
        "dtype": leaf.dtype, "shape": [], "value": None, "min": None, "max": None, "length": None
    }  # fmt: skip
    if leaf.dtype == OBJECT:
        return facts | {"shape": None}
    if leaf.dtype == JSON:
        value = encode(value).decode()
    if isinstance(value, np.ndarray) and value.ndim:
        low, high = _bounds(value) or (None, None)
        return facts | {"shape": list(value.shape), "min": _json(low), "max": _json(high)}
    if isinstance(value, bytes):
        return facts | {"value": value[:_SHOWN_JSON].hex(), "length": len(value)}
    if isinstance(value, str):
        return facts | {"value": value[:_SHOWN_JSON], "length": len(value)}
    return facts | {"value": _json(_plain(value))}


def _bounds(array: NDArray[Any]) -> tuple[Any, Any] | None:
    """Return the least and the greatest value, without NaN and NaT, or None without values or an order."""
    if array.dtype.kind in "Oc" or not array.size:
        return None
    if array.dtype.kind not in "biufmM":
        array = array.astype(np.float64)  # bfloat16 and other dtypes of ml_dtypes
    if array.dtype.kind in "fmM":
        array = array[~np.isnan(array)]
        if not array.size:
            return None
    return _plain(array.min()), _plain(array.max())


def _plain(value: Any) -> Any:  # a numpy scalar, or an array without dimensions
    """Return a number as a Python number, and a date as text."""
    kinds = {"m": str, "M": str, "b": bool, "i": int, "u": int, "c": complex}
    return kinds.get(np.asarray(value).dtype.kind, float)(value)


def _number(value: Any) -> str:  # what `_plain` returns
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:.4g}" if isinstance(value, complex) else str(value)


def _json(value: Any) -> Any:  # what `_plain` returns
    if isinstance(value, complex):
        return [_json(value.real), _json(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # "nan", "inf", "-inf": JSON has no numbers for them
    return value


# Recognise images among values, shrink them, and write them as files for a browser.


# The greatest width and height of an image on the page that is made of an array, in pixels. Larger ones are
# shrunk.
MOST_SIDE: Final = 256
# An image file in the dataset that is larger is left out, since shrinking it would need a decoder.
MOST_FILE_BYTES: Final = 2**19
_MOST_FILE_PIXELS: Final = 2**22
# An image is shrunk by averaging squares of pixels. Of a very large image, rows and columns are skipped
# first, to save time; the squares of what is left still have at least this side, in pixels.
_LEAST_AVERAGED_SIDE: Final = 4
_COLOURS: Final = {1: 0, 3: 2, 4: 6}  # channels -> PNG's colour type: grey, RGB, RGB with transparency
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PNG_END: Final = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_JPEG: Final = b"\xff\xd8\xff"
_JPEG_END: Final = b"\xff\xd9"
_JPEG_PIXELS: Final = 0xDA  # the marker before them
# The markers 0xC0 to 0xCF begin segments of JPEG that have the image's size, except these.
_JPEG_SEGMENTS_WITHOUT_SIZE: Final = {0xC4, 0xC8, 0xCC}


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
    return Image("PNG", _PNG + b"".join(_png_chunk(*chunk) for chunk in chunks), width, height)


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _shrunk(image: NDArray[Any]) -> NDArray[Any]:
    """Return a smaller image whose pixels are means; of a very large image not all pixels are read."""
    step = max(1, max(image.shape[:2]) // (_LEAST_AVERAGED_SIDE * MOST_SIDE))
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

    Only the file's header and its end are looked at: the browser finds out whether the rest can be decoded.
    """
    fault = fault_of(kind, content)
    if fault is not None:
        return f"begins as a {kind}, but {fault}"
    width, height = _size_of(kind, content)
    if len(content) > MOST_FILE_BYTES or width * height > _MOST_FILE_PIXELS:
        return f"a {kind}, too large for this page"
    return Image(kind, content, width, height)


def fault_of(kind: str, content: bytes) -> str | None:
    """Return what is wrong with an image file, by its header and its end: pixels are not decoded."""
    if 0 in _size_of(kind, content):
        return "can't be read"
    if kind == "PNG":
        is_whole = _PNG_END in content
    else:
        pixels = next((offset for marker, offset in _segments(content) if marker == _JPEG_PIXELS), None)
        is_whole = pixels is not None and content.find(_JPEG_END, pixels) >= 0
    return None if is_whole else "is cut short"


def _size_of(kind: str, content: bytes) -> tuple[int, int]:
    """Return width and height, 0 if the header is damaged."""
    return _size_of_png(content) if kind == "PNG" else _size_of_jpeg(content)


def _size_of_png(content: bytes) -> tuple[int, int]:
    header = content[12:29]
    if header[:4] != b"IHDR" or content[29:33] != struct.pack(">I", zlib.crc32(header)):
        return 0, 0
    width, height = struct.unpack(">II", header[4:12])
    return width, height


def _size_of_jpeg(content: bytes) -> tuple[int, int]:
    """Return width and height from the first segment that has a size."""
    for marker, offset in _segments(content):
        if 0xC0 <= marker <= 0xCF and marker not in _JPEG_SEGMENTS_WITHOUT_SIZE:
            if offset + 10 > len(content):
                break
            length, height, width, channels = struct.unpack(">HxHHB", content[offset + 2 : offset + 10])
            return (width, height) if length == 8 + 3 * channels else (0, 0)
    return 0, 0


def _segments(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield the marker of each segment of a JPEG, and where it is, up to its first pixels."""
    offset = 2
    while offset + 4 <= len(content) and content[offset] == 0xFF:
        marker, length = content[offset + 1], int.from_bytes(content[offset + 2 : offset + 4], "big")
        if marker == 0xFF:  # padding bytes before a marker
            offset += 1
            continue
        yield marker, offset
        if marker == _JPEG_PIXELS:
            return
        offset += 2 + length


# Write HTML in which everything from a dataset is escaped as text.


_MOST_CHARACTERS: Final = 300
_VOID_ELEMENTS: Final = {"img", "meta"}  # elements without an end tag
# Joiners combine letters and emojis; harmless, and some languages can't be read without them.
_JOINERS: Final = {"\u200c", "\u200d"}


def text(value: Any, most: int = _MOST_CHARACTERS) -> str:  # a manifest may hold any value
    """Return a value as HTML text on one line, cut if it is long."""
    found = value if isinstance(value, str) else str(value)
    return html.escape(_escape_unreadable(_cut(found, most)))


def lines(value: str, most: int) -> str:
    """Return a text of several lines as HTML text, cut if it is long."""
    return html.escape(_escape_unreadable(_cut(value, most), kept="\n\t"))


def _cut(value: str, most: int) -> str:
    return value if len(value) <= most else f"{value[:most]}..."


def _escape_unreadable(value: str, kept: str = "") -> str:
    """Escape unreadable characters as Python does; some of them could reverse the text that follows."""
    if value.isprintable():
        return value
    return "".join(c if _is_readable(c) or c in kept else _code(c) for c in value)


def _is_readable(character: str) -> bool:
    return character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs"


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode()


def element(name: str, content: str = "", /, **attributes: str | int) -> str:
    """Return an element of HTML or SVG; `content` is HTML already, attributes may be any text.

    In the name of an attribute, an underscore at the end is dropped, and any other becomes a dash.
    """
    attributes_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_escape_unreadable(str(value)))}"'
        for key, value in attributes.items()
    )
    return (
        f"<{name}{attributes_text}>"
        if name in _VOID_ELEMENTS
        else f"<{name}{attributes_text}>{content}</{name}>"
    )


def pairs(entries: Iterable[tuple[str, str]], kind: str = "pairs") -> str:
    """Return names with their values, both HTML already, as a list; an empty string if there are none."""
    found = "".join(element("div", element("dt", name) + element("dd", value)) for name, value in entries)
    return element("dl", found, class_=kind) if found else ""


def table(
    title: str, header: Sequence[str], rows: Iterable[Sequence[str]], right: Container[int] = ()
) -> str:
    """Return a table of cells that are HTML already, in a box that scrolls if the page is narrow.

    Args:
        title: The table's content in words, for screen readers.
        header: The columns' names.
        rows: The cells; the first cell of each row is the row's name.
        right: The numbers of the columns that are aligned to the right.
    """

    def row(cells: Sequence[str], names: Sequence[str], scopes: Iterable[str]) -> str:
        content = ""
        for number, (cell, name, scope) in enumerate(zip(cells, names, scopes, strict=False)):
            aligned = {"class_": "number"} if number in right else {}
            content += element(name, cell, **aligned, **({"scope": scope} if scope else {}))
        return element("tr", content)

    head = row(header, ["th"] * len(header), itertools.repeat("col"))
    body = "\n".join(
        row(cells, ["th"] + ["td"] * len(cells), itertools.chain(["row"], itertools.repeat("")))
        for cells in rows
    )
    content = element("caption", text(title)) + element("thead", head) + element("tbody", body)
    content = element("table", content)
    return element("div", content, class_="wide", role="region", tabindex=0, aria_label=title)


# Show values as HTML: images as images, text as text, numbers as numbers.


# The limit of all images together. The page holds them as base64, which takes a third more.
MOST_IMAGE_BYTES: Final = 4 * 2**20
_MOST_TEXT_CHARACTERS: Final = 600
_FEW_NUMBERS: Final = 8
_LEAST_SIDE: Final = 96  # smaller images are shown larger


class ValueRenderer:
    """Show values as HTML; images only until a page has `MOST_IMAGE_BYTES` of them."""

    def __init__(self) -> None:
        self._image_bytes_left = MOST_IMAGE_BYTES

    def entry(self, name: str, leaf: Leaf, index: int, value: Any) -> tuple[str, str]:
        """Return name and value of one field of a record, as HTML."""
        return text(name), self.value(leaf, value, f"{name:.100} of record {index:,}")

    def value(self, leaf: Leaf, value: Any, what: str) -> str:
        """Return a value as HTML; the description `what` is for readers who don't see the image."""
        if leaf.dtype == OBJECT:
            return "pickled"
        if leaf.dtype == JSON:
            return _text(encode(value).decode())
        if is_image(leaf, value):
            shape = " x ".join(map(str, value.shape))
            return self._image(image_of_array(value), what, f"uint8, {shape}")
        kind = kind_of(value) if isinstance(value, bytes) else None
        if kind is not None:
            image = image_of_file(kind, value)
            caption = in_words(len(value))
            return (
                f"{caption}: {image}"
                if isinstance(image, str)
                else self._image(image, what, f"{kind}, {caption}")
            )
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, np.ndarray) and value.ndim == 1 and 0 < len(value) <= _FEW_NUMBERS:
            return ", ".join(text(text_of(leaf, item), 60) for item in value)
        return text(text_of(leaf, value))

    def _image(self, image: Image, what: str, caption: str) -> str:
        if len(image.content) > self._image_bytes_left:
            return f"{caption}: this page has enough images"
        self._image_bytes_left -= len(image.content)
        content = base64.b64encode(image.content).decode()
        scale = max(1, _LEAST_SIDE // max(image.width, image.height))
        drawing = element(
            "img", src=f"data:image/{image.kind.lower()};base64,{content}",
            alt=f"{what}: an image, {caption}",
            width=image.width * scale, height=image.height * scale,
            **({"class_": "pixels"} if scale > 1 else {}),
        )  # fmt: skip
        return drawing + element("small", text(caption))


def _text(value: str) -> str:
    if not value:
        return element("small", "empty")
    shown = element("div", lines(value, _MOST_TEXT_CHARACTERS), class_="text", dir="auto")
    if len(value) <= _MOST_TEXT_CHARACTERS:
        return shown
    return shown + element("small", f"{len(value):,} characters")


_NOTEBOOK_FIELDS: Final = 30
_NOTEBOOK_STYLE: Final = (
    ".yogadl td, .yogadl th { text-align: left; vertical-align: top; } .yogadl caption { display: none; } "
    ".yogadl td, .yogadl th, .yogadl code { overflow-wrap: anywhere; white-space: normal; } "
    ".yogadl .wide { overflow-x: auto; } .yogadl img { max-width: 11rem; height: auto; } "
    ".yogadl .text { white-space: pre-wrap; max-height: 12rem; max-width: 11rem; overflow: auto; } "
    ".yogadl small { display: block; } .yogadl .pixels { image-rendering: pixelated; }"
)


def notebook_html(title: str, spec: Spec, indices: Sequence[int], records: Sequence[Sequence[Any]]) -> str:
    """Return what a notebook shows of records: a row for each field, with the values of these records."""
    renderer = ValueRenderer()
    rows = []
    for number, (name, field) in enumerate(zip(names_of(spec), spec.fields, strict=True)):
        if number == _NOTEBOOK_FIELDS:
            rows.append([f"{len(spec.fields) - number:,} more fields"])
            break
        values = [
            renderer.value(field.leaf, record[number], f"{name:.100} of record {index:,}")
            for index, record in zip(indices, records, strict=True)
        ]
        rows.append([*map(text, row_of_field(name, field.leaf)), *values])
    header = ["field", "dtype", "shape", *(f"record {index:,}" for index in indices)]
    content = element("style", _NOTEBOOK_STYLE) + element("p", element("code", text(title)))
    return element("div", content + table("Fields and first records", header, rows), class_="yogadl")
