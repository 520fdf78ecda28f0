"""Write HTML, its style and its charts; everything from a dataset is escaped as text."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.shown import element, table, text
from yogadl.cli._report_page.summary import Bars

# The CSS of the page: light and dark, for phones and paper.


STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #fdfdfc; --card: #ffffff; --ink: #1f2328; --soft: #5d666f; --line: #e3e5e8; --accent: #2b6f8a;
  --track: #e9edf0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181b; --card: #1c2024; --ink: #e4e7ea; --soft: #a0a9b1; --line: #30363c; --accent: #74bdd8;
    --track: #2b3137;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 68rem; padding: 3rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
h1, h2, h3, h4, p, dl, dd, figure, pre, ul { margin: 0; }
h1, h2, h3, h4, p, dt, dd, td, th, li, code, summary { overflow-wrap: anywhere; unicode-bidi: isolate; }
td { overflow-wrap: break-word; }
h1 { font-size: 2rem; font-weight: 650; line-height: 1.2; letter-spacing: -0.01em; }
h2 { font-size: 1.25rem; font-weight: 650; margin-bottom: 1rem; }
h3 { font-size: 1rem; font-weight: 650; }
h4 { font-size: 0.8125rem; font-weight: 500; color: var(--soft); margin: 1rem 0 0.375rem; }
section { margin-top: 3.5rem; }
section > * + * { margin-top: 1rem; }
a { color: var(--accent); text-decoration-thickness: 1px; text-underline-offset: 0.2em; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
code, pre, .hash {
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 0.875em;
}
small, .note, .form, .version { color: var(--soft); }
.note, .form, small { font-size: 0.875rem; }
.version { font-size: 1.125rem; margin-top: 0.25rem; }
nav { display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; margin-top: 1.5rem; font-size: 0.9375rem; }
.facts {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: 1.25rem; margin-top: 2rem;
}
.facts dt { font-size: 0.8125rem; color: var(--soft); }
.facts dd { font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.pairs { display: grid; gap: 0.375rem; }
header .pairs { margin-top: 1.75rem; }
.pairs > div { display: grid; grid-template-columns: 8rem minmax(0, 1fr); gap: 1rem; }
.pairs dt { color: var(--soft); }
.figures { display: flex; flex-wrap: wrap; gap: 0.125rem 1.25rem; margin-top: 0.5rem; font-size: 0.875rem; }
.figures > div { display: flex; gap: 0.375rem; }
.figures dt { color: var(--soft); white-space: nowrap; }
.figures dd { font-variant-numeric: tabular-nums; }
.cards { columns: 19rem; column-gap: 1.25rem; }
.card {
  break-inside: avoid;
  margin-bottom: 1.25rem;
  background: var(--card);
  border: 1px solid var(--line);
  border-radius: 0.5rem;
  padding: 1.125rem 1.25rem;
  min-width: 0;
}
.card .note { margin-top: 0.75rem; }
.record > div { margin-top: 0.75rem; }
.record dt { font-size: 0.8125rem; color: var(--soft); }
.text {
  white-space: pre-wrap; overflow-wrap: anywhere; max-height: 12rem; overflow-y: auto;
  /* A line at the end that has more to scroll to: the covers move with the text, the lines do not. */
  background:
    linear-gradient(var(--card) 40%, transparent) top / 100% 1.5rem no-repeat local,
    linear-gradient(transparent, var(--card) 60%) bottom / 100% 1.5rem no-repeat local,
    linear-gradient(var(--soft), var(--soft)) top / 100% 2px no-repeat scroll,
    linear-gradient(var(--soft), var(--soft)) bottom / 100% 2px no-repeat scroll;
}
img { display: block; max-width: 100%; height: auto; border-radius: 0.25rem; background: var(--track); }
img.pixels { image-rendering: pixelated; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg rect { fill: var(--accent); }
svg .track { fill: var(--track); }
.histogram { border-bottom: 1px solid var(--line); }
.share { width: 100%; min-width: 4rem; height: 0.5rem; margin-top: 0.5rem; }
.order { max-width: 32rem; background: var(--card); border: 1px solid var(--line); border-radius: 0.5rem; }
.order path { fill: none; stroke: var(--accent); stroke-width: 7; stroke-linecap: round; }
.ends { display: flex; justify-content: space-between; gap: 1rem; margin-top: 0.25rem; }
.ends { font-size: 0.8125rem; color: var(--soft); overflow-wrap: anywhere; }
.ends span:last-child { text-align: right; }
figure { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; }
figure svg { flex: 1 1 32rem; }
figcaption { flex: 1 1 14rem; font-size: 0.875rem; color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9375rem; }
caption {
  position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap;
}
th, td {
  text-align: left;
  vertical-align: top;
  padding: 0.4375rem 1.25rem 0.4375rem 0;
  border-bottom: 1px solid var(--line);
}
th:last-child, td:last-child { padding-right: 0; }
thead th { font-size: 0.8125rem; font-weight: 500; color: var(--soft); white-space: nowrap; }
tbody th { font-weight: 500; min-width: 7.5rem; }
tbody tr:last-child > * { border-bottom: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.card table { font-size: 0.875rem; }
.card thead { display: none; }
.card th, .card td { padding: 0.1875rem 0.75rem 0.1875rem 0; border: 0; vertical-align: middle; }
.card tbody th { font-weight: 400; min-width: 2rem; }
.card td:last-child { padding-right: 0; }
.card td:nth-child(2) { width: 50%; }
.card .share { margin: 0; }
details { border-top: 1px solid var(--line); padding: 0.625rem 0; }
summary { cursor: pointer; }
details[open] summary { margin-bottom: 0.625rem; }
details ul { padding-left: 1.25rem; }
pre {
  overflow-x: auto;
  padding: 1rem;
  background: var(--card);
  border: 1px solid var(--line);
  border-radius: 0.5rem;
}
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--line); }
@media (max-width: 36rem) {
  body { padding: 1.75rem 1rem 3rem; }
  h1 { font-size: 1.625rem; }
  .pairs > div { grid-template-columns: minmax(0, 1fr); gap: 0; }
  .pairs dt { font-size: 0.8125rem; }
}
@media print {
  :root {
    --paper: #ffffff; --card: #ffffff; --ink: #000000; --soft: #444444; --line: #bbbbbb; --accent: #2b6f8a;
    --track: #e5e5e5;
  }
  body {
  max-width: none; padding: 0; font-size: 10pt; print-color-adjust: exact; -webkit-print-color-adjust: exact;
}
  nav { display: none; }
  section { margin-top: 2rem; }
  .card, figure, tr { break-inside: avoid; }
  h2, h3, h4 { break-after: avoid; }
  .text { max-height: none; overflow: visible; background: none; }
  .wide { overflow: visible; }
}
"""


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
