"""Write HTML and its charts; everything from a dataset is escaped as text."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.shown import element, table, text
from yogadl.cli._report_page.summary import Bars


def section(name: str, title: str, *content: str) -> str:
    """Return a section of the page with a heading that can be linked to."""
    heading = element("h2", text(title), id=name)
    return element("section", "\n".join([heading, *filter(None, content)]), aria_labelledby=name)


def note(content: str) -> str:
    """Return an explanatory sentence; `content` is HTML already."""
    return element("p", content, class_="note")


def folded(title: str, content: str) -> str:
    """Return content that is hidden until its title is clicked; both are HTML already."""
    return element("details", element("summary", title) + content)


def svg(width: int, height: int, title: str, description: str, content: str, **attributes: str) -> str:
    """Return a drawing that fills the available width, with a name and a description."""
    names = element("title", text(title)) + element("desc", text(description))
    return element("svg", names + content, viewBox=f"0 0 {width} {height}", role="img", **attributes)


# Draw distributions, shares and orders as SVG.


MOST_DOTS: Final = 2000
MOST_LABEL: Final = 60
_WIDTH: Final = 320
_HEIGHT: Final = 80
_SIDE: Final = 1000  # of the drawing of an order
_MARGIN: Final = 12


def histogram(title: str, bars: Bars) -> str:
    """Draw a histogram, with its first edge, the number of its highest bar, and its last edge below."""
    most, count = max(bars.counts), len(bars.counts)
    step = _WIDTH / count
    drawn = ""
    for number, found in enumerate(bars.counts):
        if found:
            height = max(1.0, found / most * _HEIGHT)
            tooltip = element("title", text(f"{found:,} {_from_to(bars, number)}"))
            drawn += element(
                "rect", tooltip, x=f"{number * step:.1f}", y=f"{_HEIGHT - height:.1f}",
                width=f"{max(1.0, step - 1):.1f}", height=f"{height:.1f}",
            )  # fmt: skip
    description = (
        f"{count} bars from {bars.edges[0]} to {bars.edges[-1]}; the highest stands for {most:,} values "
        f"{_from_to(bars, bars.counts.index(most))}"
    )
    drawing = svg(_WIDTH, _HEIGHT, title, description, drawn, class_="histogram")
    labels = bars.edges[0], f"highest bar: {most:,}", bars.edges[-1]
    ends = "".join(element("span", text(label)) for label in labels)
    return drawing + element("div", ends, class_="ends", aria_hidden="true")


def _from_to(bars: Bars, number: int) -> str:
    """Return the range of a bar; only the last bar includes its end."""
    below = "" if number + 1 == len(bars.counts) else "below "
    return f"from {bars.edges[number]} to {below}{bars.edges[number + 1]}"


def classes(title: str, counts: Sequence[tuple[str, int]]) -> str:
    """Return a table with the count of each class, and a bar for each."""
    most = max(count for _, count in counts)
    rows = [(_label(name), share(count / most), f"{count:,}") for name, count in counts]
    return table(title, ("value", "", "count"), rows, right={2})


def _label(name: str) -> str:
    """Return the name of a class, cut if it is long, since a bar stands beside it."""
    return element("span", text(name, MOST_LABEL), title=name) if len(name) > MOST_LABEL else text(name)


def share(part: float) -> str:
    """Draw a bar that is filled from 0 to `part`, at most 1; the caller writes the number beside it."""
    track = element("rect", class_="track", width=100, height=6)
    filled = element("rect", width=f"{100 * part:.2f}", height=6)
    return element(
        "svg", track + filled, viewBox="0 0 100 6", preserveAspectRatio="none", class_="share",
        aria_hidden="true",
    )  # fmt: skip


def order(records: int, positions: NDArray[np.int64], indices: NDArray[np.int64], seed: int) -> str:
    """Draw one dot for each position of an epoch, at the height of the record that comes there."""
    places = (_MARGIN + (_SIDE - 2 * _MARGIN) * (found + 0.5) / records for found in (positions, indices))
    across, down = (np.rint(place).astype(np.int64).tolist() for place in places)
    dots = "".join(f"M{x} {y}h0" for x, y in zip(across, down, strict=True))
    description = (
        f"{len(positions):,} dots. From left to right the positions of the epoch, from top to bottom the "
        f"records of the source, both from 0 to {records - 1:,}"
    )
    title = f"The order of the first epoch with seed {seed}"
    return svg(_SIDE, _SIDE, title, description, element("path", d=dots), class_="order")


def spread(records: int) -> NDArray[np.int64]:
    """Return evenly spread positions of an epoch, one for each dot to draw."""
    count = min(records, MOST_DOTS)
    return np.arange(count, dtype=np.int64) * (records // max(1, count)) + (
        np.arange(count, dtype=np.int64) * (records % max(1, count)) // max(1, count)
    )
