"""Write versions to files of other programs, and turn caches of yogadl 0.1.4 into versions."""

import argparse
import time
from pathlib import Path

from yogadl._core.key import DatasetKey
from yogadl.cli._arguments import add_json, add_storage, add_tagged, fetch, open_or_make, open_version
from yogadl.cli._list import info_to_json
from yogadl.cli._output import Bar, contents, counted, duration, say, say_json, size
from yogadl.errors import ConfigurationError
from yogadl.storage import export
from yogadl.storage._catalogue.export import FORMATS, NPY


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    add_tagged(parser, folder="the folder to write to: a new one, or an empty one")
    add_storage(parser)
    parser.add_argument("--format", choices=FORMATS, default=NPY, help=f"what to write (default: {NPY})")
    parser.add_argument(
        "--field", metavar="NAME", action="append", help="only this key of the records; may be repeated"
    )
    add_json(parser)


def run_export(arguments: argparse.Namespace) -> int:
    """Write a version to files that other programs read.

    npy writes a .npy file for each field, and a spec.json that names the file of each field. The fields
    must not vary in length. parquet and arrow write one file with a column for each field, and need
    pyarrow. The export is atomic: the folder appears at the end, with everything in it.

    Example:
      yogadl export squares 1 out -s /data/caches
      yogadl export squares 1 out --format parquet --field number -s /data/caches
    """
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


_FILE = "cache.mdb"


def add_import_014_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=Path, help=f"the old {_FILE}, or its folder")
    parser.add_argument("--id", metavar="ID", help="the name of the new dataset")
    parser.add_argument("--version", metavar="VERSION", help="the name of the new version")
    parser.add_argument(
        "--trust-pickle", action="store_true", help="unpickle the file, although it can run any code"
    )
    parser.add_argument("--replace", action="store_true", help="replace the version if it exists")
    add_storage(parser)
    add_json(parser)


def run_import_014(arguments: argparse.Namespace) -> int:
    """Turn a cache of yogadl 0.1.4 into a new one.

    PATH is the old cache.mdb, or its folder, STORAGE/ID/VERSION. The dataset and the version get the names of
    those folders; --id and --version give other names. The old cache is not changed.

    Old caches hold pickled records. Unpickling a file runs any code of its author, with your rights.
    Therefore --trust-pickle is required: give it only for files that you made, or whose authors you trust.
    The new cache holds no pickles.

    Example:
      yogadl import-014 /old/caches/mnist/1.0 --trust-pickle -s /data/caches
    """
    path: Path = arguments.path
    if path.is_dir():
        path = path / _FILE
    if not path.is_file():
        raise ConfigurationError(
            f"there is no old cache at {path}: give a {_FILE}, or the folder that has it"
        )
    if not arguments.trust_pickle:
        raise ConfigurationError(
            f"the records in {path} are pickled, and unpickling can run any code of the file's author with "
            "your rights: if you trust the author, add --trust-pickle"
        )
    folder = path.absolute().parent
    key = DatasetKey(arguments.id or folder.parent.name, arguments.version or folder.name)
    storage = open_or_make(arguments)
    if key.version in storage.versions(key.id) and not arguments.replace:
        raise ConfigurationError(
            f"there is {key} in {storage.location} already: give another --version, or --replace"
        )
    from yogadl._format.old_cache import OldCache  # loads lmdb

    started = time.perf_counter()
    storage.submit(OldCache(path), key.id, key.version)
    info = storage.info(key.id, key.version)
    elapsed_s = time.perf_counter() - started
    if arguments.json:
        say_json(storage=storage.location, path=str(path), elapsed_s=elapsed_s, **info_to_json(info))
        return 0
    say(f"Imported {key.id} {key.version} in {duration(elapsed_s)}: {contents(info)}.")
    say(f"Fingerprint, the same on every machine: {info.fingerprint}")
    return 0
