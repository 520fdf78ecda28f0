"""Make an HTML page about a version: one file, which loads nothing and runs nothing.

`page_of` is the only entry. `fields` reads a sample of the records and makes the sections of the page;
`summary` computes their statistics, histograms and images; `markup` writes HTML, and charts as SVG.
"""

import base64
import hashlib
import time
from dataclasses import dataclass
from typing import Final

from yogadl._core.key import library_version
from yogadl._dataref import RecordsRef
from yogadl._format.table import PartTable
from yogadl.cli._output import counted, day_and_time, size
from yogadl.cli._report_page import markup as charts
from yogadl.cli._report_page.fields import (
    Sample,
    fields_section,
    origin_section,
    records_section,
    storing_section,
    versions_section,
)
from yogadl.cli._report_page.markup import STYLE, element, note, pairs, section, text
from yogadl.storage import DatasetInfo
from yogadl.storage._catalogue.log import Log

_PARTS: Final = {
    "fields": "Fields", "records": "Records", "order": "Shuffle", "storing": "On disk",
    "origin": "Where it came from", "versions": "Versions and tags",
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """The version that a page describes.

    Args:
        info: The version's info.
        location: The location of its storage.
        ref: Its records.
        parts: Its part table.
        log: The dataset's history, or the error that reading it raised.
        seed: The seed of the shuffle that chooses the sample.
    """

    info: DatasetInfo
    location: str
    ref: RecordsRef
    parts: PartTable
    log: Log | str
    seed: int


def page_of(subject: Subject) -> bytes:
    """Return the page in ASCII, so that a browser that guesses the encoding shows the right characters."""
    info, sample = subject.info, Sample(subject.ref, subject.seed)
    sections = [
        _header(info),
        fields_section(sample),
        records_section(sample),
        _order_section(sample),
        # Locality is read after the records, because reading them may bring parts to this machine.
        storing_section(info, subject.location, subject.parts, subject.ref.locality()),
        origin_section(info),
        versions_section(subject.log, info.version),
        element("footer", note(f"Written by yogadl {library_version()}, {day_and_time(time.time())} UTC.")),
    ]
    title = element("title", f"{text(info.id)} {text(info.version)} - yogadl")
    # If content of the dataset is taken for HTML in spite of the escaping, this policy keeps that HTML from
    # running or loading anything.
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'"
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        title,
        f"<style>{STYLE}</style>",
    ]
    body = "\n".join([sections[0], element("main", "\n".join(sections[1:-1])), sections[-1]])
    page = element("html", "\n".join([element("head", "\n".join(head)), element("body", body)]), lang="en")
    return f"<!DOCTYPE html>\n{page}\n".encode("ascii", "xmlcharrefreplace")


def _header(info: DatasetInfo) -> str:
    facts = [
        ("records", f"{info.records:,}"),
        ("fields", f"{len(info.spec.fields):,}"),
        ("size", size(info.size_bytes)),
        ("a record", size(info.size_bytes / info.records) if info.records else "-"),
        ("files", f"{info.parts:,}"),
        ("built", day_and_time(info.created).partition(" ")[0]),
    ]
    hashes = [(name, element("span", text(value), class_="hash"))
              for name, value in (("fingerprint", info.fingerprint), ("digest", info.digest))]  # fmt: skip
    links = "".join(element("a", title, href=f"#{name}") for name, title in _PARTS.items())
    content = [
        element("h1", text(info.id)),
        element("p", f"version {text(info.version)}", class_="version"),
        pairs(facts, "facts"),
        pairs(hashes),
        element("nav", links, aria_label="Parts of this page"),
    ]
    return element("header", "\n".join(content))


def _order_section(sample: Sample) -> str:
    records = len(sample.ref)
    if not records:
        return section("order", "Shuffle", note("There is nothing to shuffle."))
    positions = charts.spread(records)
    chart = charts.order(records, positions, sample.indices(positions), sample.seed)
    caption = (
        f"The first epoch of a global shuffle with seed {text(sample.seed)}: from left to right the "
        "positions of the epoch, from top to bottom the records of the source. "
    )
    caption += f"{len(positions):,} of {counted(records, 'position')}, evenly spread, a dot for each."
    return section("order", "Shuffle", element("figure", chart + element("figcaption", caption)))
