"""The section with a few records: images as images, text as text, numbers as numbers."""

import base64
from typing import Any, Final

import numpy as np

from yogadl._core.leaf import OBJECT, Leaf
from yogadl.cli._output import size
from yogadl.cli._report_page.images import Image, image_of_array, image_of_file, is_image, kind_of
from yogadl.cli._report_page.markup import element, lines, note, pairs, section, text
from yogadl.cli._report_page.sampling import Sample
from yogadl.cli._values import names_of, text_of

RECORDS: Final = 6
MOST_FIELDS: Final = 40
# The limit of all images together. The page holds them as base64, which takes a third more.
MOST_IMAGE_BYTES: Final = 4 * 2**20
_MOST_TEXT: Final = 600
_FEW_NUMBERS: Final = 8
_LEAST_SIDE: Final = 96  # smaller images are shown larger


def records_section(sample: Sample) -> str:
    """Return the section with records."""
    fields, names = sample.ref.spec.fields, names_of(sample.ref.spec)
    drawer = _Drawer()
    cards = []
    for index, values in sample.drawn(RECORDS, MOST_FIELDS):
        entries = [
            drawer.entry(name, field.leaf, index, value)
            for name, field, value in zip(names, fields, values, strict=False)
        ]
        heading = element("h3", f"Record {index:,}")
        cards.append(element("article", heading + pairs(entries, "record"), class_="card"))
    if not cards:
        return section("records", "Records", note("There are none."))
    left = len(fields) - MOST_FIELDS
    said = f"The first of a shuffle with seed {text(sample.seed)}"
    said += f"; {left:,} more fields are not shown." if left > 0 else "."
    return section("records", "Records", note(said), element("div", "\n".join(cards), class_="cards"))


class _Drawer:
    """Show values as HTML, with images up to `MOST_IMAGE_BYTES` on a page."""

    def __init__(self) -> None:
        self._left_bytes = MOST_IMAGE_BYTES

    def entry(self, name: str, leaf: Leaf, index: int, value: Any) -> tuple[str, str]:
        """Return name and value of one field of a record, as HTML."""
        return text(name), self._value(leaf, value, f"{name:.100} of record {index:,}")

    def _value(self, leaf: Leaf, value: Any, what: str) -> str:
        if leaf.dtype == OBJECT:
            return "pickled"
        if is_image(leaf, value):
            shape = " x ".join(map(str, value.shape))
            return self._image(image_of_array(value), what, f"uint8, {shape}")
        kind = kind_of(value) if isinstance(value, bytes) else None
        if kind is not None:
            image = image_of_file(kind, value)
            said = size(len(value))
            return (
                f"{said}: {image}" if isinstance(image, str) else self._image(image, what, f"{kind}, {said}")
            )
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, np.ndarray) and value.ndim == 1 and 0 < len(value) <= _FEW_NUMBERS:
            return ", ".join(text(text_of(leaf, item), 60) for item in value)
        return text(text_of(leaf, value))

    def _image(self, image: Image, what: str, said: str) -> str:
        if len(image.content) > self._left_bytes:
            return f"{said}: this page has enough images"
        self._left_bytes -= len(image.content)
        content = base64.b64encode(image.content).decode()
        scale = max(1, _LEAST_SIDE // max(image.width, image.height))
        drawn = element(
            "img", src=f"data:image/{image.kind.lower()};base64,{content}",
            alt=f"{what}: an image, {said}",
            width=image.width * scale, height=image.height * scale,
            **({"class_": "pixels"} if scale > 1 else {}),
        )  # fmt: skip
        return drawn + element("small", text(said))


def _text(value: str) -> str:
    if not value:
        return element("small", "empty")
    shown = element("div", lines(value, _MOST_TEXT), class_="text", dir="auto")
    if len(value) <= _MOST_TEXT:
        return shown
    return shown + element("small", f"{len(value):,} characters")
