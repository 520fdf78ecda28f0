"""Write a version to files that other programs read.

npy writes a .npy file for each field, and a spec.json that names the file of each field. The fields must not
vary in length. parquet and arrow write one file with a column for each field, and need pyarrow. The export is
atomic: the folder appears at the end, with everything in it.

Example:
  yogadl export squares 1 out -s /data/caches
  yogadl export squares 1 out --format parquet --field number -s /data/caches
"""

import argparse

from yogadl.cli._arguments import add_json, add_storage, add_tagged, fetch, open_version
from yogadl.cli._output import Bar, counted, say, say_json, size
from yogadl.storage import export
from yogadl.storage._catalogue.export import FORMATS, NPY


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tagged(parser, folder="the folder to write to: a new one, or an empty one")
    add_storage(parser)
    parser.add_argument("--format", choices=FORMATS, default=NPY, help=f"what to write (default: {NPY})")
    parser.add_argument(
        "--field", metavar="NAME", action="append", help="only this key of the records; may be repeated"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    storage = open_version(arguments, "folder")
    # `fetch` allows pickled fields here, but `export` refuses them before it reads anything.
    ref = fetch(storage, arguments)
    if arguments.field:
        ref = ref.fields(*arguments.field)
    with Bar("exporting", len(ref), " records") as bar:
        done = export(ref, arguments.folder, arguments.format, progress=lambda records, _: bar.show(records))
    if arguments.json:
        found = {"files": done.files, "records": done.records, "size_bytes": done.size_bytes}
        key = {"storage": storage.location, "id": arguments.id, "version": arguments.version}
        say_json(**key, folder=str(done.folder), format=arguments.format, **found)
        return 0
    files = f"{counted(len(done.files), 'file')} of {size(done.size_bytes)}"
    say(f"Wrote {counted(done.records, 'record')} of {arguments.id} {arguments.version} to {files}:")
    for name in done.files:
        say(f"  {done.folder / name}")
    return 0
