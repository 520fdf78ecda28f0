"""Read a page of HTML as strictly as a page may be written that loads and runs nothing."""

import html.parser
import itertools
import re
import struct
import zlib
from dataclasses import dataclass, field

import numpy as np

TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "main", "footer", "nav", "section",
    "article", "figure", "figcaption", "div", "span", "p", "h1", "h2", "h3", "h4", "dl", "dt", "dd",
    "ul", "li", "details", "summary", "table", "caption", "thead", "tbody", "tr", "th", "td", "code",
    "pre", "small", "strong", "a", "img", "svg", "desc", "rect", "path",
}  # fmt: skip
ATTRIBUTES = {
    "alt", "aria-hidden", "aria-label", "aria-labelledby", "charset", "class", "content", "d", "dir",
    "height", "href", "http-equiv", "id", "lang", "name", "preserveaspectratio", "role", "scope", "src",
    "tabindex", "title", "viewbox", "width", "x", "y",
}  # fmt: skip
ALONE = {"meta", "img"}


@dataclass
class Element:
    """An element, with the text in it and in all that it has."""

    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Page(html.parser.HTMLParser):
    """A page: its elements in order."""

    elements: list[Element] = field(default_factory=list)
    _open: list[Element] = field(default_factory=list)

    def __post_init__(self):
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag, pairs):
        attributes = dict(pairs)
        assert len(attributes) == len(pairs), f"an attribute of {tag} twice"
        assert tag in TAGS, tag
        assert attributes.keys() <= ATTRIBUTES, attributes
        assert attributes.get("href", "#").startswith("#")
        if tag == "img":
            assert re.match(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/]+=*$", attributes["src"])
            assert attributes["alt"]
        if tag == "svg":
            assert attributes["role" if "aria-hidden" not in attributes else "aria-hidden"] in ("img", "true")
        self.elements.append(Element(tag, attributes))
        if tag not in ALONE:
            self._open.append(self.elements[-1])

    def handle_endtag(self, tag):
        assert self._open.pop().tag == tag

    def handle_data(self, data):
        for element in self._open:
            element.text += data

    def all(self, tag, kind=None):
        """Return the elements of a tag, and of a class."""
        return [
            one for one in self.elements if one.tag == tag and kind in (None, one.attributes.get("class"))
        ]

    def rows(self, title):
        """Return the cells of the table of that title."""
        content = self.elements
        start = next(n for n, one in enumerate(content) if one.tag == "caption" and one.text == title)
        found = []
        for one in content[start:]:
            if one.tag == "table":
                break
            if one.tag == "tr":
                found.append([])
            elif one.tag in ("th", "td"):
                found[-1].append(one.text)
        return found

    def cards(self, section):
        """Return name and text of each card of a section."""
        names = [one.attributes["id"] for one in self.all("h2")]
        (text,) = [one.text for one in self.all("section") if one.attributes["aria-labelledby"] == section]
        assert section in names
        return [(one.text.partition("\n")[0], one.text) for one in self.all("article") if one.text in text]


def read_page(content: bytes) -> Page:
    """Return a page; fail if it is not as it should be."""
    text = content.decode("ascii")
    assert text.startswith("<!DOCTYPE html>\n")
    for number in re.findall(r"&#([0-9]+);", text):
        assert int(number) >= 0xA0 or int(number) in (34, 39)
        assert not 0xD800 <= int(number) < 0xE000
    assert re.fullmatch(r"[\t\n -~]*", text)
    page = Page()
    page.feed(text)
    page.close()
    assert page._open == []
    ids = [one.attributes["id"] for one in page.elements if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    assert {one.attributes["href"][1:] for one in page.all("a")} <= set(ids)
    levels = [int(one.tag[1]) for one in page.elements if re.fullmatch("h[1-6]", one.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    return page


def pixels_of(png: bytes):
    """Return the pixels of a PNG that uses no filters."""
    width, height, depth, colour = struct.unpack(">IIBB", png[16:26])
    channels = {0: 1, 2: 3, 6: 4}[colour]
    assert (png[:8], depth) == (b"\x89PNG\r\n\x1a\n", 8)
    content, place = b"", 8
    while place < len(png):
        (size,) = struct.unpack(">I", png[place : place + 4])
        chunk = png[place + 4 : place + 8 + size]
        assert struct.pack(">I", zlib.crc32(chunk)) == png[place + 8 + size : place + 12 + size]
        content += chunk[4:] if chunk[:4] == b"IDAT" else b""
        place += 12 + size
    rows = np.frombuffer(zlib.decompress(content), np.uint8).reshape(height, 1 + width * channels)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels)
