"""The section about the fields of a version: their types, and the distributions of their values."""

from collections.abc import Container, Sequence
from typing import Final

from yogadl._core.leaf import Leaf
from yogadl.cli._output import counted
from yogadl.cli._report_page import charts
from yogadl.cli._report_page.markup import element, folded, note, pairs, section, table, text
from yogadl.cli._report_page.sampling import Sample
from yogadl.cli._report_page.summary import Distribution, Summary, summary_of
from yogadl.cli._values import names_of, row_of_field

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
    for (name, field), column in zip(named[:MOST_DESCRIBED], columns, strict=True):
        summary = summary_of(field.leaf, column, sample.seed)
        cards.append(_card(name, field.leaf, summary, _of(len(column), len(sample.ref))))
    left = []
    if len(fields) > MOST_DESCRIBED:
        left.append(f"{MOST_DESCRIBED} of {len(fields):,} fields are described")
    if len(fields) > MOST_LISTED:
        left.append(f"{MOST_LISTED} are listed; <code>yogadl info</code> lists them all")
    said = (
        "What is said of values is of a sample: the records that come first in a shuffle with seed "
        f"{text(sample.seed)}, as many as are read in a moment."
    )
    return section(
        "fields", "Fields", listed, note("; ".join(left)) if left else "", note(said),
        element("div", "\n".join(cards), class_="cards"),
    )  # fmt: skip


def table_of_fields(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], right: Container[int] = ()
) -> str:
    """Return a table with a row for each field, folded if it is long."""
    made = table(title, header, rows, right)
    return folded(f"{text(title)}: {len(rows):,} rows", made) if len(rows) > MOST_UNFOLDED else made


def _card(name: str, leaf: Leaf, summary: Summary, of: str) -> str:
    _, dtype, shape = row_of_field(name, leaf)
    form = f"{dtype}, {shape}" if shape else dtype
    content = [element("h3", text(name)), element("p", text(f"{form}; {of}"), class_="form")]
    content += [_drawn(name, one) for one in summary.distributions]
    content += [note(text(said)) for said in summary.notes]
    return element("article", "\n".join(content), class_="card")


def _of(looked_at: int, records: int) -> str:
    """Return the number of records in the sample, and of all if these are more."""
    every = counted(records, "record")
    return every if looked_at == records else f"{looked_at:,} of {every}"


def _drawn(name: str, one: Distribution) -> str:
    title = f"{name:.100}: {one.title}"
    content = element("h4", text(one.title))
    if one.bars is not None:
        content += charts.histogram(title, one.bars)
    if one.classes is not None:
        content += charts.classes(title, one.classes)
    return content + pairs([(text(what), text(figure)) for what, figure in one.figures], "figures")
