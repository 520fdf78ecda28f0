"""Write an HTML page about a version: one file, which loads nothing and runs nothing.

`report` is the command. `page_of` reads a sample of the records and makes the sections of the page. `summary`
computes statistics, histograms and images of the records; `markup` writes HTML, and charts as SVG;
`style.css` is the style of the page, light and dark, for phones and paper.
"""

import argparse
import base64
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.columns import size_of
from yogadl._core.key import library_version
from yogadl._core.protocols import Column, Locality
from yogadl._core.shown import ValueRenderer, element, lines, names_of, pairs, row_of_field, table, text
from yogadl._core.spec import OBJECT, Leaf
from yogadl._dataref import RecordsRef
from yogadl._format.manifest import ADOPTED
from yogadl._format.table import PartTable
from yogadl._order import make_order
from yogadl.cli._arguments import TAGGED, Answer, command, declared, key_of, open_version, typed
from yogadl.cli._output import counted, day_and_time, error_line, size
from yogadl.cli._output import note as print_note
from yogadl.cli._report_page import markup as charts
from yogadl.cli._report_page.markup import folded, note, section, share
from yogadl.cli._report_page.summary import Distribution, Summary, faults_of, summary_of
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError
from yogadl.storage import CacheStorage, DatasetInfo
from yogadl.storage._catalogue.log import Log, LoggedVersion
from yogadl.storage._files.folder import Folder

# Read a sample of a version: records chosen by a shuffle; few, so that time and memory stay small.


MOST_RECORDS: Final = 4096
# Each value of a record in a bucket may take a request.
_MOST_RECORDS_IN_BUCKET: Final = 128
MOST_BYTES: Final = 64 * 2**20  # of all fields together
_MOST_FIELD_BYTES: Final = 16 * 2**20
_MOST_SHOWN_BYTES: Final = 32 * 2**20
_MOST_RECORDS_PER_READ: Final = 256


@dataclass(frozen=True)
class Sample:
    """A sample of a version: the records that come first in the first epoch of a shuffle.

    Args:
        ref: The version.
        seed: The seed of the shuffle.
    """

    ref: RecordsRef
    seed: int

    def indices(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of the records at these positions of the first epoch."""
        return make_order(len(self.ref), True, self.seed).indices(positions, 0)

    def columns(self, fields: int) -> Iterator[tuple[Column, NDArray[np.int64]]]:
        """Yield the sample's values of each of the first fields, and their indices: fewer of large values.

        A pickled field yields no values, because unpickling runs code.
        """
        locality = self.ref.locality()
        most = MOST_RECORDS if locality.parts_here == locality.parts else _MOST_RECORDS_IN_BUCKET
        chosen = self.indices(np.arange(min(len(self.ref), most)))
        most_bytes = min(_MOST_FIELD_BYTES, MOST_BYTES // max(1, fields))
        for number, field in enumerate(self.ref.spec.fields[:fields]):
            if field.leaf.dtype == OBJECT:
                yield [], chosen[:0]
            elif field.leaf.is_fixed:
                first = np.sort(chosen[: max(1, most_bytes // max(1, field.leaf.row_bytes))])
                yield self.ref.columns(first, [number])[0], first
            else:
                yield self._varying(number, chosen, most_bytes)

    def _varying(
        self, number: int, chosen: NDArray[np.int64], most_bytes: int
    ) -> tuple[list[Any], NDArray[np.int64]]:
        """Read values of a field of varying length, until they reach the limit of bytes."""
        values: list[Any] = []
        read: list[NDArray[np.int64]] = []
        step = max(1, min(_MOST_RECORDS_PER_READ, most_bytes // self.ref.record_bytes))
        size_bytes = 0
        while len(values) < len(chosen) and size_bytes < most_bytes:
            read.append(np.sort(chosen[len(values) : len(values) + step]))
            (column,) = self.ref.columns(read[-1], [number])
            values += column
            size_bytes += size_of(column)
        return values, np.concatenate([chosen[:0], *read])

    def records(self, count: int, fields: int) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield the index of one record after another, and the values of its first fields.

        Fewer than `count` records are yielded if they are large, but one at least. The value of a pickled
        field is `None`.
        """
        leaves = [field.leaf for field in self.ref.spec.fields[:fields]]
        readable = [number for number, leaf in enumerate(leaves) if leaf.dtype != OBJECT]
        chosen = self.indices(np.arange(min(len(self.ref), count)))
        step = max(1, min(count, _MOST_SHOWN_BYTES // self.ref.record_bytes))
        size_bytes = 0
        for first in range(0, len(chosen), step):
            if size_bytes >= _MOST_SHOWN_BYTES:
                return
            indices = chosen[first : first + step]
            columns: list[Any] = [[None] * len(indices)] * len(leaves)
            for number, column in zip(readable, self.ref.columns(indices, readable), strict=True):
                columns[number] = column
                size_bytes += size_of(column)
            for row, index in enumerate(indices.tolist()):
                yield index, [column[row] for column in columns]


# The section with a few records: images as images, text as text, numbers as numbers.


RECORDS: Final = 6
MOST_FIELDS: Final = 40


def records_section(sample: Sample) -> str:
    """Return the section with records."""
    fields, names = sample.ref.spec.fields, names_of(sample.ref.spec)
    renderer = ValueRenderer()
    cards = []
    for index, values in sample.records(RECORDS, MOST_FIELDS):
        entries = [
            renderer.entry(name, field.leaf, index, value)
            for name, field, value in zip(names, fields, values, strict=False)
        ]
        heading = element("h3", f"Record {index:,}")
        cards.append(element("article", heading + pairs(entries, "record"), class_="card"))
    if not cards:
        return section("records", "Records", note("There are no records."))
    omitted = len(fields) - MOST_FIELDS
    caption = f"The first of a shuffle with seed {text(sample.seed)}"
    caption += f"; {omitted:,} more fields are not shown." if omitted > 0 else "."
    return section("records", "Records", note(caption), element("div", "\n".join(cards), class_="cards"))


# The section about the fields of a version: their types, and the distributions of their values.


MOST_LISTED: Final = 500
MOST_DESCRIBED: Final = 64
# A longer table of fields is folded, so that the reader finds the content below it.
MOST_UNFOLDED: Final = 32


def fields_section(sample: Sample) -> str:
    """Return the section about fields."""
    fields = sample.ref.spec.fields
    named = list(zip(names_of(sample.ref.spec), fields, strict=True))[:MOST_LISTED]
    rows = [list(map(text, row_of_field(name, field.leaf))) for name, field in named]
    listed = table_of_fields("The fields of a record", ("field", "dtype", "shape"), rows)
    cards = []
    columns = sample.columns(min(len(fields), MOST_DESCRIBED))
    for (name, field), (column, indices) in zip(named[:MOST_DESCRIBED], columns, strict=True):
        summary = summary_of(field.leaf, column, sample.seed)
        broken = faults_of(column, indices)
        sample_size = _sample_size(len(column), len(sample.ref))
        cards.append(_card(name, field.leaf, summary, sample_size, broken))
    omitted = []
    if len(fields) > MOST_DESCRIBED:
        omitted.append(f"{MOST_DESCRIBED} of {len(fields):,} fields are described")
    if len(fields) > MOST_LISTED:
        omitted.append(f"{MOST_LISTED} are listed; <code>yogadl info</code> lists them all")
    caption = (
        "Values are described from a sample: the records that come first in a shuffle with seed "
        f"{text(sample.seed)}, as many as can be read quickly."
    )
    return section(
        "fields", "Fields", listed, note("; ".join(omitted)) if omitted else "", note(caption),
        element("div", "\n".join(cards), class_="cards"),
    )  # fmt: skip


def table_of_fields(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], right: Container[int] = ()
) -> str:
    """Return a table with a row for each field, folded if it is long."""
    whole_table = table(title, header, rows, right)
    return (
        folded(f"{text(title)}: {len(rows):,} rows", whole_table)
        if len(rows) > MOST_UNFOLDED
        else whole_table
    )


def _card(name: str, leaf: Leaf, summary: Summary, sample_size: str, broken: str | None) -> str:
    _, dtype, shape = row_of_field(name, leaf)
    form = f"{dtype}, {shape}" if shape else dtype
    content = [element("h3", text(name)), element("p", text(f"{form}; {sample_size}"), class_="form")]
    if broken is not None:
        content.append(note(element("strong", text(broken))))
    content += [_distribution_html(name, one) for one in summary.distributions]
    content += [note(text(remark)) for remark in summary.notes]
    return element("article", "\n".join(content), class_="card")


def _sample_size(looked_at: int, records: int) -> str:
    """Return the number of records in the sample, and of all if these are more."""
    all_records = counted(records, "record")
    return all_records if looked_at == records else f"{looked_at:,} of {all_records}"


def _distribution_html(name: str, distribution: Distribution) -> str:
    title = f"{name:.100}: {distribution.title}"
    content = element("h4", text(distribution.title))
    if distribution.bars is not None:
        content += charts.histogram(title, distribution.bars)
    if distribution.classes is not None:
        content += charts.classes(title, distribution.classes)
    return content + pairs([(text(what), text(figure)) for what, figure in distribution.figures], "figures")


# The section about a version's files and blocks, and about the share of them on this machine.


_HEADER: Final = ("field", "stored as", "blocks", "bytes", "bytes per record", "share", "")


def storing_section(info: DatasetInfo, location: str, parts: PartTable, locality: Locality) -> str:
    """Return the section about files and blocks."""
    rows = list(_rows(info, parts))
    blocks = table_of_fields("How each field is stored", _HEADER, rows, right={2, 3, 4, 5})
    omitted = len(info.spec.fields) - len(rows)
    more = note(f"{omitted:,} more fields are not listed.") if rows and omitted else ""
    return section(
        "storing", "On disk", pairs(_facts(info, location, parts, locality)), blocks if rows else "", more
    )


def _facts(
    info: DatasetInfo, location: str, parts: PartTable, locality: Locality
) -> Iterator[tuple[str, str]]:
    yield "storage", text(location)
    files = f"{counted(info.parts, 'file')}, {size(info.size_bytes)} together"
    if info.parts > 1:
        files += f"; of {size(int(parts.size_bytes.min()))} to {size(int(parts.size_bytes.max()))}"
    yield "files", files
    if info.is_adopted:
        others = counted(len(parts.files.addressed), "other file")
        values = f"in {others}, {size(parts.files.addressed_bytes)} together"
        yield "values", f"{values}; the files above are their index"
    if "://" not in location:
        return
    on_machine = f"{locality.parts_here:,} of {counted(locality.parts, 'file')}, "
    on_machine += f"{size(locality.bytes_here)} of {size(locality.bytes)}"
    if locality.parts_here < locality.parts:
        on_machine += "; the rest is read from the bucket by range"
    yield "on this machine", on_machine + share(locality.bytes_here / max(1, locality.bytes))


def _rows(info: DatasetInfo, parts: PartTable) -> Iterator[list[str]]:
    """Yield a row for each field; no row if the version has no records, since it then has no parts."""
    counts = np.diff(parts.first_record)
    total = max(1, info.size_bytes)
    for name, stored in zip(names_of(info.spec)[:MOST_LISTED], parts.fields, strict=False):
        size_bytes, raw_bytes = stored.sizes(counts)
        blocks = len(stored.rows_position) + len(stored.heap_position)
        varying = int(stored.varying.sum())
        form = "varying" if varying == len(parts) else "both" if varying else "fixed"
        if stored.codec.any():
            form += f", compressed from {size(raw_bytes)}"
        fraction = min(1.0, size_bytes / total)
        each = size(size_bytes / max(1, info.records))
        yield [text(name), form, f"{blocks:,}", size(size_bytes), each, f"{fraction:.0%}",
               share(fraction)]  # fmt: skip


# The sections about a version's origin, the dataset's other versions, and the moves of its tags.


MOST_VERSIONS: Final = 50
_MOST_LINES: Final = 40
_MOST_ARGUMENTS: Final = 100
_MOST_CODE_CHARACTERS: Final = 20_000
_FINGERPRINT_CHARACTERS: Final = 12
_METADATA_CHARACTERS: Final = 1000
# `_provenance` hashes the source in this form, so that a change without effect does not change the version.
_SOURCE: Final = "Its source code, reformatted, without decorators, annotations, docstrings and comments"
_SOFTWARE: Final = {"yogadl": "yogadl", "python": "Python", "numpy": "numpy", "system": "system"}


def origin_section(info: DatasetInfo) -> str:
    """Return the section about the version's builder, as far as its manifest records it."""
    builder = info.builder
    entries = [("built", f"{day_and_time(info.created)} UTC")]
    if builder.get("function"):
        entries.append(("by", element("code", text(builder["function"]))))
    adopted = builder.get(ADOPTED)
    if info.is_adopted and isinstance(adopted, dict):
        was_read = "read through, with checksums" if adopted.get("read") else "pinned by size and tag"
        paths = f"{adopted.get('paths')!s:.{_METADATA_CHARACTERS}}"
        entries.append(("adopted from", f"{element('code', text(paths))}, {was_read}"))
    entries += [("with", text(", ".join(_software(builder))))] if any(_software(builder)) else []
    if info.earlier:
        last = info.earlier[-1]
        more = counted(info.records - last.records, "record")
        entries.append(("continues", f"version {text(last.version)}, with {more} more"))
    if info.metadata:
        shown = f"{json.dumps(info.metadata):.{_METADATA_CHARACTERS}}"
        entries.append(("metadata", element("code", text(shown))))
    given = builder.get("arguments")
    arguments = given if isinstance(given, dict) else {}
    rows = [[text(name), element("code", text(value))]
            for name, value in itertools.islice(arguments.items(), _MOST_ARGUMENTS)]  # fmt: skip
    source = builder.get("source")
    return section(
        "origin", "Where it came from", pairs(entries),
        table("Arguments", ("argument", "value"), rows) if rows else "",
        folded(_SOURCE, element("pre", lines(source, _MOST_CODE_CHARACTERS), tabindex=0))
        if isinstance(source, str) and source else "",
        "" if builder.get("function") or info.is_adopted else note("The code that built it is not recorded."),
    )  # fmt: skip


def _software(builder: dict[str, Any]) -> Iterator[str]:
    for name, title in _SOFTWARE.items():
        if builder.get(name):
            yield f"{title} {builder[name]!s:.100}"
    libraries = builder.get("libraries")
    for name, version in sorted(libraries.items()) if isinstance(libraries, dict) else ():
        if name not in _SOFTWARE:
            yield f"{name:.100} {version!s:.100}"


def versions_section(log: Log | str, version: str) -> str:
    """Return the section about the dataset's versions and tags; if they can't be listed, with the reason."""
    if isinstance(log, str):
        return section("versions", "Versions and tags", note(f"They can't be listed: {text(log)}"))
    newest = log.versions[::-1][:MOST_VERSIONS]
    header = ("version", "built (UTC)", "records", "files", "added", "shared", "fingerprint", "tags")
    listed = table("The versions, the newest first", header, [_row(logged, version) for logged in newest],
                   right={2, 3, 4, 5})  # fmt: skip
    omitted = len(log.versions) - len(newest)
    moves = [
        [text(move.tag), "removed" if move.version is None else f"version {text(move.version)}",
         day_and_time(move.moved)]
        for move in log.moves[::-1][:MOST_VERSIONS]
    ]  # fmt: skip
    return section(
        "versions", "Versions and tags", listed,
        note(f"{omitted:,} older versions are not listed.") if omitted else "",
        *(note(f"Version {text(name)} can't be read: {text(why)}") for name, why in log.damaged.items()),
        "\n".join(filter(None, map(_changes, newest))),
        table("The moves of tags, the newest first", ("tag", "named", "since (UTC)"), moves)
        if moves else "",
    )  # fmt: skip


def _row(logged: LoggedVersion, version: str) -> list[str]:
    name = text(logged.version)
    return [
        element("strong", f"{name} (this one)") if logged.version == version else name,
        day_and_time(logged.created),
        f"{logged.records:,}",
        f"{logged.parts:,}",
        size(logged.added_bytes),
        "" if logged.before is None else size(logged.shared_bytes),
        element("code", text(logged.fingerprint[:_FINGERPRINT_CHARACTERS])),
        text(", ".join(logged.tags)),
    ]


def _changes(logged: LoggedVersion) -> str:
    """Return the differences between a version and the one logged before it."""
    if logged.explanation is None:
        return ""
    reasons = str(logged.explanation).splitlines()[1:]
    items = "".join(element("li", text(line.strip(), 500)) for line in reasons[:_MOST_LINES])
    if len(reasons) > _MOST_LINES:
        items += element("li", f"and {len(reasons) - _MOST_LINES:,} more")
    title = f"What differs between versions {text(logged.before)} and {text(logged.version)}"
    return folded(title, element("ul", items))


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
    style = f"\n{files(__name__).joinpath('style.css').read_text('utf-8')}"
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'"
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        title,
        f"<style>{style}</style>",
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


# The command: take the parts of the page from a storage, and write it.


_STDOUT: Final = "-"


@command(
    *TAGGED,
    *declared(
        """
        -o --output FILE  the file to write, which must not exist yet; -: stdout
        --seed SEED  the seed of the shuffle that is drawn and that chooses the sample (default: 0)
        """,
        output={"required": True},
        seed=typed(int, 0),
    ),
)
def report(arguments: argparse.Namespace) -> Answer:
    """Write a page about a version: its records, how it is stored, how it was built.

    The page is one HTML file: it loads nothing, runs no script, and can be mailed or printed. Values are
    described from a sample, the records that come first in a shuffle. A large version takes no longer than a
    small one. Pickled fields are not opened, since unpickling runs code.

    Example:
      yogadl report squares 1 -o squares.html -s /data/caches
    """
    if arguments.json and arguments.output == _STDOUT:
        arguments.refuse("--json writes to stdout, so the page can't be written there: give -o a file")
    path = None if arguments.output == _STDOUT else Path(arguments.output).expanduser().absolute()
    if path is not None and os.path.lexists(path):
        raise _exists_error(path)
    storage = open_version(arguments)
    subject = _subject(storage, arguments)
    page = page_of(subject)
    problems = _problems(subject.log)
    for problem in problems:
        print_note(f"{arguments.id} {problem}")
    code = int(bool(problems))
    if path is None:
        sys.stdout.write(page.decode("ascii"))
        return Answer(code=code)
    if not Folder(path.parent).write_if_absent(path.name, page):
        raise _exists_error(path)
    return Answer(
        key_of(storage, arguments) | {"file": str(path), "size_bytes": len(page), "seed": arguments.seed},
        [f"Wrote a page of {size(len(page))} on {arguments.id} {arguments.version}:", f"  {path}"],
        code,
    )


def _subject(storage: CacheStorage, arguments: argparse.Namespace) -> Subject:
    info = storage.info(arguments.id, arguments.version)
    arguments.version = info.version  # the arguments may name the version by a tag
    # `fetch` allows pickled fields here, but the page does not read them.
    ref = storage.fetch(info.id, info.version, digest=info.digest, allow_pickle=True)
    cache: Any = ref._records  # the cache has its part table in memory since `fetch`, and may be in a bucket
    return Subject(info, storage.location, ref, cache.table, _log(storage, info.id), arguments.seed)


def _log(storage: CacheStorage, dataset_id: str) -> Log | str:
    """Return the dataset's history, or the error that reading it raised: the page does without it."""
    try:
        return storage.log(dataset_id)
    except (CacheFormatError, StorageError) as error:
        return error_line(error)


def _problems(log: Log | str) -> list[str]:
    if isinstance(log, str):
        return [f"has versions and tags that can't be listed: {log}"]
    return [f"{version}: {problem}" for version, problem in log.damaged.items()]


def _exists_error(path: Path) -> ConfigurationError:
    return ConfigurationError(f"{path} is there already; give another name, or remove it first")
