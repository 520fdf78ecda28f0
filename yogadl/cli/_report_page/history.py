"""The sections about a version's origin, the dataset's other versions, and the moves of its tags."""

import itertools
from collections.abc import Iterator
from typing import Any, Final

from yogadl.cli._output import counted, day_and_time, size
from yogadl.cli._report_page.markup import element, folded, lines, note, pairs, section, table, text
from yogadl.storage import DatasetInfo
from yogadl.storage._catalogue.log import Log, LoggedVersion

MOST_VERSIONS: Final = 50
_MOST_LINES: Final = 40
_MOST_ARGUMENTS: Final = 100
_MOST_CODE: Final = 20_000
_HASH: Final = 12
# `_provenance` hashes the source in this form, so that a change without effect makes no other version.
_SOURCE: Final = "Its source code, laid out anew, without decorators, annotations, docstrings and comments"
_SOFTWARE: Final = {"yogadl": "yogadl", "python": "Python", "numpy": "numpy", "system": "system"}


def origin_section(info: DatasetInfo) -> str:
    """Return the section about the version's builder, as far as its manifest records it."""
    builder = info.builder
    entries = [("built", f"{day_and_time(info.created)} UTC")]
    if builder.get("function"):
        entries.append(("by", element("code", text(builder["function"]))))
    entries += [("with", text(", ".join(_software(builder))))] if any(_software(builder)) else []
    if info.earlier:
        last = info.earlier[-1]
        more = counted(info.records - last.records, "record")
        entries.append(("continues", f"version {text(last.version)}, with {more} more"))
    given = builder.get("arguments")
    arguments = given if isinstance(given, dict) else {}
    rows = [[text(name), element("code", text(value))]
            for name, value in itertools.islice(arguments.items(), _MOST_ARGUMENTS)]  # fmt: skip
    source = builder.get("source")
    return section(
        "origin", "Where it came from", pairs(entries),
        table("Arguments", ("argument", "value"), rows) if rows else "",
        folded(_SOURCE, element("pre", lines(source, _MOST_CODE), tabindex=0))
        if isinstance(source, str) and source else "",
        "" if builder.get("function") else note("Of the code that built it nothing is recorded."),
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
    listed = table("The versions, the newest first", header, [_row(one, version) for one in newest],
                   right={2, 3, 4, 5})  # fmt: skip
    left = len(log.versions) - len(newest)
    moves = [
        [text(move.tag), "taken away" if move.version is None else f"version {text(move.version)}",
         day_and_time(move.moved)]
        for move in log.moves[::-1][:MOST_VERSIONS]
    ]  # fmt: skip
    return section(
        "versions", "Versions and tags", listed,
        note(f"{left:,} older versions are not listed.") if left else "",
        *(note(f"Version {text(name)} can't be read: {text(why)}") for name, why in log.damaged.items()),
        "\n".join(filter(None, map(_changes, newest))),
        table("What tags were made to name, the newest first", ("tag", "named", "since (UTC)"), moves)
        if moves else "",
    )  # fmt: skip


def _row(one: LoggedVersion, version: str) -> list[str]:
    name = text(one.version)
    return [
        element("strong", f"{name} (this one)") if one.version == version else name,
        day_and_time(one.created),
        f"{one.records:,}",
        f"{one.parts:,}",
        size(one.added_bytes),
        "" if one.before is None else size(one.shared_bytes),
        element("code", text(one.fingerprint[:_HASH])),
        text(", ".join(one.tags)),
    ]


def _changes(one: LoggedVersion) -> str:
    """Return the differences between a version and the one before."""
    if one.explanation is None:
        return ""
    said = str(one.explanation).splitlines()[1:]
    items = "".join(element("li", text(line.strip(), 500)) for line in said[:_MOST_LINES])
    if len(said) > _MOST_LINES:
        items += element("li", f"and {len(said) - _MOST_LINES:,} more")
    title = f"What differs between versions {text(one.before)} and {text(one.version)}"
    return folded(title, element("ul", items))
