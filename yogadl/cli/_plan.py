"""Estimate what reading a version takes and costs, in advance.

For a cache in a bucket the command compares two ways to read it: each record by range, or a download of all
of it to this machine. For each way the plan shows the requests, the bytes, the disk space and the price for
one process, and the plan names the way that yogadl takes. Only the part table is read for this. A cache of up
to 64 MiB is downloaded at once, as whenever such a cache is opened.

Example:
  yogadl plan squares 1 --shards 8 --records-per-s 20000 -s s3://bucket/caches
"""

import argparse
from dataclasses import asdict
from typing import Final

from yogadl._core.protocols import Prices
from yogadl._order import Blocks
from yogadl.cli._arguments import add_batch, add_json, add_storage, add_tagged, fetch, number_of, open_version
from yogadl.cli._output import say, say_json

_BLOCK_BYTES: Final = 2**20
_WINDOW: Final = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tagged(parser)
    add_storage(parser)
    parser.add_argument(
        "--shuffle",
        choices=("global", "blocks", "no"),
        default="global",
        help="the order: a global shuffle (the default), a shuffle of blocks of about 1 MB, or none",
    )
    parser.add_argument(
        "--shards", metavar="N", type=number_of("shards"), default=1, help="how many processes share an epoch"
    )
    add_batch(parser)
    parser.add_argument(
        "--epochs",
        metavar="N",
        type=number_of("epochs"),
        default=1,
        help="how many epochs are read (default: 1)",
    )
    parser.add_argument("--fields", metavar="A,B", help="only these fields are read (default: all)")
    parser.add_argument(
        "--records-per-s",
        metavar="N",
        type=number_of("records a second", float, 0.001),
        help="how fast each process reads: adds how many requests it makes a second",
    )
    parser.add_argument(
        "--price",
        metavar="DOLLARS",
        type=number_of("dollars", float, 0),
        help="the price of 1,000 requests (default: that of S3 or Google Cloud Storage)",
    )
    parser.add_argument(
        "--price-per-gb",
        metavar="DOLLARS",
        type=number_of("dollars", float, 0),
        help="the price of a GB that leaves the store (default: 0, as in the store's own region)",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    storage = open_version(arguments)
    ref = fetch(storage, arguments)
    if arguments.fields is not None:
        ref = ref.fields(*arguments.fields.split(","))
    blocks = Blocks(records=max(1, _BLOCK_BYTES // max(1, ref.record_bytes)), window=_WINDOW)
    orders: dict[str, bool | Blocks] = {"global": True, "blocks": blocks, "no": False}
    stream = ref.stream(shuffle=orders[arguments.shuffle], num_shards=arguments.shards)
    prices = None
    if (arguments.price, arguments.price_per_gb) != (None, None):
        prices = Prices(arguments.price or 0.0, arguments.price_per_gb or 0.0)
    plan = stream.batch(arguments.batch).plan(
        epochs=arguments.epochs, records_per_s=arguments.records_per_s, prices=prices
    )
    if arguments.json:
        say_json(storage=storage.location, id=arguments.id, version=arguments.version, **asdict(plan))
        return 0
    share = f", of which a process reads one in {arguments.shards}" if arguments.shards > 1 else ""
    say(f"{arguments.id} {arguments.version}: {len(ref):,} records{share}.")
    say()
    for line in str(plan).splitlines():
        say(line)
    return 0
