"""Write HTML in which everything from a dataset is escaped as text."""

import html
import itertools
import unicodedata
from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

_CUT: Final = 300
_ALONE: Final = {"img", "meta"}  # elements without an end tag
# Joiners combine letters and emojis; harmless, and some languages can't be read without them.
_JOINERS: Final = {"\u200c", "\u200d"}


def text(value: Any, most: int = _CUT) -> str:  # a manifest may hold any value
    """Return a value as HTML text on one line, cut if it is long."""
    found = value if isinstance(value, str) else str(value)
    return html.escape(_shown(_cut(found, most)))


def lines(value: str, most: int) -> str:
    """Return a text of several lines as HTML text, cut if it is long."""
    return html.escape(_shown(_cut(value, most), kept="\n\t"))


def _cut(value: str, most: int) -> str:
    return value if len(value) <= most else f"{value[:most]}..."


def _shown(value: str, kept: str = "") -> str:
    """Escape, as Python does, characters that can't be read: one of them may reverse text or end the page."""
    if value.isprintable():
        return value
    return "".join(c if _is_shown(c) or c in kept else _code(c) for c in value)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in _JOINERS or unicodedata.category(character) == "Zs"


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode()


def element(name: str, content: str = "", /, **attributes: str | int) -> str:
    """Return an element of HTML or SVG; `content` is HTML already, attributes may be any text.

    In the name of an attribute, an underscore at the end is dropped, and any other becomes a dash.
    """
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_shown(str(value)))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{said}>" if name in _ALONE else f"<{name}{said}>{content}</{name}>"


def section(name: str, title: str, *content: str) -> str:
    """Return a section of the page with a heading that can be linked to."""
    heading = element("h2", text(title), id=name)
    return element("section", "\n".join([heading, *filter(None, content)]), aria_labelledby=name)


def note(content: str) -> str:
    """Return an explanatory sentence; `content` is HTML already."""
    return element("p", content, class_="note")


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
        found = ""
        for number, (cell, name, scope) in enumerate(zip(cells, names, scopes, strict=False)):
            aligned = {"class_": "number"} if number in right else {}
            found += element(name, cell, **aligned, **({"scope": scope} if scope else {}))
        return element("tr", found)

    head = row(header, ["th"] * len(header), itertools.repeat("col"))
    body = "\n".join(
        row(cells, ["th"] + ["td"] * len(cells), itertools.chain(["row"], itertools.repeat("")))
        for cells in rows
    )
    content = element("caption", text(title)) + element("thead", head) + element("tbody", body)
    found = element("table", content)
    return element("div", found, class_="wide", role="region", tabindex=0, aria_label=title)


def folded(title: str, content: str) -> str:
    """Return content that is hidden until its title is clicked; both are HTML already."""
    return element("details", element("summary", title) + content)


def svg(width: int, height: int, title: str, description: str, content: str, **attributes: str) -> str:
    """Return a drawing that fills the available width, with a name and a description."""
    said = element("title", text(title)) + element("desc", text(description))
    return element("svg", said + content, viewBox=f"0 0 {width} {height}", role="img", **attributes)
