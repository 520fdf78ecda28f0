"""The section about a version's files and blocks, and about the share of them on this machine."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from yogadl._core.protocols import Locality
from yogadl._format.table import PartTable
from yogadl.cli._output import counted, size
from yogadl.cli._report_page.charts import share
from yogadl.cli._report_page.fields import MOST_LISTED, table_of_fields
from yogadl.cli._report_page.markup import note, pairs, section, text
from yogadl.cli._values import names_of
from yogadl.storage import DatasetInfo

_HEADER: Final = ("field", "kept as", "blocks", "bytes", "a record", "share", "")


def storing_section(info: DatasetInfo, location: str, parts: PartTable, locality: Locality) -> str:
    """Return the section about files and blocks."""
    rows = list(_rows(info, parts))
    blocks = table_of_fields("How each field is stored", _HEADER, rows, right={2, 3, 4, 5})
    left = len(info.spec.fields) - len(rows)
    more = note(f"{left:,} more fields are not listed.") if rows and left else ""
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
    if "://" not in location:
        return
    here = f"{locality.parts_here:,} of {counted(locality.parts, 'file')}, "
    here += f"{size(locality.bytes_here)} of {size(locality.bytes)}"
    if locality.parts_here < locality.parts:
        here += "; the rest is read from the bucket by range"
    yield "on this machine", here + share(locality.bytes_here / max(1, locality.bytes))


def _rows(info: DatasetInfo, parts: PartTable) -> Iterator[list[str]]:
    """Yield a row for each field; no row if the version has no records, since it then has no parts."""
    counts = np.diff(parts.first_record)
    total = max(1, info.size_bytes)
    for name, lies in zip(names_of(info.spec)[:MOST_LISTED], parts.fields, strict=False):
        size_bytes = int(lies.rows_length(counts).sum()) + int(lies.heap_length.sum())
        blocks = len(lies.rows_position) + len(lies.heap_position)
        varying = int(lies.varying.sum())
        kept = "varying" if varying == len(parts) else "both" if varying else "fixed"
        part = min(1.0, size_bytes / total)
        each = size(size_bytes / max(1, info.records))
        yield [text(name), kept, f"{blocks:,}", size(size_bytes), each, f"{part:.0%}",
               share(part)]  # fmt: skip
