"""Count the requests of each order of reading from a bucket, and write the tables of a page about it.

Run ``python -m benchmarks order_costs``; with ``--write``, it writes the tables of
``docs/howto/bigger-than-disk.md`` anew. The numbers are those of `plan`, which reads no records: they are the
same on every machine.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import yogadl

RECORDS, RECORD_BYTES = 20_000, 8192
PAGE = Path(__file__).parent.parent / "docs" / "howto" / "bigger-than-disk.md"
NARROW = yogadl.Blocks(records=128, window=8, lanes=1)
WIDE = yogadl.Blocks(records=128, window=16, lanes=96)
# Title, mixing, order, shards, and whether blocks are held as a whole.
ORDERS = (
    ("`shuffle=True`", "perfectly: any record may come after any", True, 1, False),
    (f"`{NARROW}`", "among 1,024 records at a time; blocks anywhere", NARROW, 1, True),
    (
        f"`{WIDE}`", "among 200,000 records at a time, if there is room for two windows", WIDE, 1, True,
    ),
    ("no shuffle", "not at all", False, 1, False),
    ("no shuffle, 8 shards", "each shard reads every eighth record", False, 8, False),
)  # fmt: skip


def cache_in(folder: Path) -> str:
    """Build the cache, and return the URL of its storage."""
    records = {"image": np.zeros((RECORDS, RECORD_BYTES), np.uint8)}
    yogadl.open_storage(folder / "bucket").submit(records, "images", "1")
    return f"file://{folder / 'bucket'}"


def cost(
    url: str, order: bool | yogadl.Blocks, shards: int, way: str | None, verify: str | None = None
) -> tuple[int, int]:
    """Return the requests and bytes of a shard's epoch, in a way of reading, or that of the plan."""
    options = {} if verify is None else {"verify": verify}
    storage = yogadl.open_storage(url, mirror=None, **options)
    stream = storage.fetch("images", "1").stream(shuffle=order, num_shards=shards)
    plan = stream.batch(32).plan()
    found = plan.way(way or plan.chosen)
    return found.requests, found.bytes


def costs_table(url: str) -> str:
    """Return the table of what each order costs a record."""
    lines = ["| order | how well it mixes | requests (8 KB records, 1 process) |", "|---|---|---|"]
    for title, mixing, order, shards, are_blocks in ORDERS:
        requests, _ = cost(url, order, shards, "blocks" if are_blocks else "ranges")
        lines.append(f"| {title} | {mixing} | {requests / (RECORDS // shards):.2g} a record |")
    return "\n".join(lines)


def checked_table(url: str) -> str:
    """Return the table of what comparing whole blocks costs."""
    data = f"{RECORDS * RECORD_BYTES / 1e6:.0f} MB of 8 KB records, 1 process"
    lines = [f'| order | requests without | with `verify="block"` ({data}) |', "|---|---|---|"]
    for title, order in (("no shuffle", False), (f"`{NARROW}`", NARROW), ("`shuffle=True`", True)):
        without, with_ = cost(url, order, 1, None), cost(url, order, 1, None, "block")
        cells = [f"{requests:,}, {size / 1e6:,.0f} MB" for requests, size in (without, with_)]
        if with_[1] > 10 * without[1]:
            cells[1] += ": a block for each record whose block is not held"
        lines.append(f"| {title} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def page_with_tables(page: str, url: str) -> str:
    """Return the page with both tables, each between its comments."""
    for name, table in (("costs", costs_table(url)), ("checked", checked_table(url))):
        begin, end = (
            f"<!-- benchmarks order_costs: {name} -->",
            f"<!-- end of benchmarks order_costs: {name} -->",
        )
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        if not after:
            raise ValueError(f"the page has no {begin} ... {end}")
        page = f"{before}{begin}\n{table}\n{end}{after}"
    return page


def main() -> None:
    """Print the tables, or write them."""
    with tempfile.TemporaryDirectory() as folder:
        url = cache_in(Path(folder))
        if "--write" in sys.argv:
            PAGE.write_text(page_with_tables(PAGE.read_text("utf-8"), url), "utf-8")
        else:
            print(costs_table(url), checked_table(url), sep="\n\n")


if __name__ == "__main__":
    main()
