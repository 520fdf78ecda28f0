"""Copy versions to other storages, to this machine's mirror, and to files of other programs.

Caches of yogadl 0.1.4 are turned into versions.
"""

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from yogadl._core.key import DatasetKey
from yogadl._core.printable import masked
from yogadl.cli._arguments import (
    MATERIALIZE,
    TAGGED,
    TARGET_BUCKET,
    Answer,
    command,
    declared,
    fetch,
    is_store,
    key_of,
    open_at,
    open_or_make,
    open_version,
    option_of,
    typed,
)
from yogadl.cli._list import adopted_of, info_to_json
from yogadl.cli._output import Bar, contents, counted, duration, picked, repair_result, size, stored
from yogadl.errors import ConfigurationError
from yogadl.storage._catalogue.export import FORMATS, NPY
from yogadl.storage._catalogue.export import export as write
from yogadl.storage._copy import copy
from yogadl.storage._remote.opener import MirrorOpener


def copy_to(location: str, arguments: argparse.Namespace, *names: str) -> Answer:
    """Copy the version that the arguments name to `location`; `names` are as for `open_version`."""
    refuse_unused_target_options(arguments, location)
    storage = open_version(arguments, *names, others=(location,))
    target = open_at(location, _for_target(storage.location, location, arguments))
    info = storage.info(arguments.id, arguments.version)
    if arguments.materialize and info.is_adopted:  # a build, which shows its own progress
        is_new = copy(storage, target, info.id, info.version, replaces=arguments.replace, materialize=True)
        info = target.info(info.id, info.version)
    else:
        with Bar("copying", info.size_bytes) as bar:

            def show(done: int, total: int) -> None:
                bar.show(info.size_bytes - total + done)

            is_new = copy(storage, target, info.id, info.version, replaces=arguments.replace, progress=show)
    document = {"storage": storage.location, "to": target.location, **picked(info, "id", "version")}
    document |= {"was_copied": is_new, **picked(info, "size_bytes", "digest")}
    when = f"now: {contents(info)}" if is_new else "already."
    return Answer(document, [f"{info.id} {info.version} is in {target.location} {when}"])


def refuse_unused_target_options(arguments: argparse.Namespace, target: str | None) -> None:
    """Print the usage and exit if an option of the target's bucket is given, but the target is no bucket."""
    if target is not None and is_store(target):
        return
    names = ("to_endpoint_url", "to_region", "to_profile", "to_anonymous")
    unused = ", ".join(option_of(name) for name in names if getattr(arguments, name))
    if unused:
        where = f"no option of {masked(target)}" if target is not None else "for the bucket that --to names"
        arguments.refuse(f"{unused}: {where}")


def _for_target(source: str, target: str, arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with the options of the target's bucket in place of the source's.

    If the source is a folder or a bucket of the same kind, an option that is not given with "to-" has the
    source's value.
    """
    target_options = {
        name: getattr(arguments, f"to_{name}") for name in ("endpoint_url", "region", "profile")
    }
    is_other_kind = "://" in source and source.partition("://")[0] != target.partition("://")[0]
    if not is_other_kind:
        target_options = {name: value or getattr(arguments, name) for name, value in target_options.items()}
    # Writing to a public bucket mostly needs credentials, even where reading needs none.
    anonymous = arguments.to_anonymous or (arguments.anonymous and "://" not in source)
    return argparse.Namespace(**(vars(arguments) | target_options | {"anonymous": anonymous}))


@command(
    *TAGGED,
    *declared(
        """
        --to STORAGE  copy it to this storage: a folder, made if missing, or a bucket
        --replace  with --to: replace a version of that name that has other content
        """
    ),
    *MATERIALIZE,
    TARGET_BUCKET,
    storage="-s --storage --from",
    has_bar=True,
)
def pull(arguments: argparse.Namespace) -> Answer:
    """Download a version from a bucket to this machine.

    Without --to the command fills this machine's mirror, from which `fetch` reads: a job that starts later
    need not wait. Files that are in the mirror already are compared with their checksums, and downloaded
    again if they are damaged. With --to the version is copied into another storage, such as a folder of
    caches; the copy has the same digest.

    Example:
      yogadl pull squares 1 --from s3://bucket/caches --mirror /nvme/mirror
      yogadl pull squares 1 --from s3://bucket/caches --to /data/caches
      yogadl pull squares 1 --from s3://bucket/caches --endpoint-url http://store:9000 --to gs://bucket/caches
    """
    if arguments.to is not None:
        return copy_to(arguments.to, arguments)
    refuse_unused_target_options(arguments, None)
    storage = open_version(arguments)
    if arguments.replace:
        arguments.refuse("--replace is for --to: a mirror has no versions of its own")
    if arguments.materialize:
        arguments.refuse("--materialize is for --to: a mirror keeps copies of the foreign files themselves")
    opener = storage._backend.catalogue.opener
    if not isinstance(opener, MirrorOpener):
        raise ConfigurationError(
            f"{storage.location} is on this machine: give --to, the storage to copy it to"
        )
    key, published = storage._backend.catalogue.named(DatasetKey(arguments.id, arguments.version))
    manifest = published.manifest
    adopted = adopted_of(storage, storage.info(key.id, key.version))
    total_bytes = manifest.size_bytes + (adopted.size_bytes if adopted else 0)
    with Bar("pulling", total_bytes) as bar:
        damaged = opener.fill(published, progress=lambda done, _: bar.show(done))
    folder = opener.mirror.location.root
    document = key_of(storage, key) | {"mirror": str(folder), **picked(manifest, "size_bytes", "parts")}
    document |= {"mended": damaged, "adopted": adopted and asdict(adopted)}
    values = f", and its values: {adopted}" if adopted else ""
    lines = [f"{key.id} {key.version} is in the mirror {folder}: {stored(manifest)}{values}"]
    if damaged:
        lines.append(f"Of what was there before, {repair_result(damaged)}.")
    return Answer(document, lines)


@command(
    *TAGGED,
    *declared(
        """
        [TARGET]  where to copy it: a bucket's URL, or a folder
        --to TO  the same as TARGET
        --replace  replace a version of that name that has other content
        """
    ),
    *MATERIALIZE,
    TARGET_BUCKET,
    storage="-s --storage --from",
    has_bar=True,
)
def push(arguments: argparse.Namespace) -> Answer:
    """Copy a version to a bucket, or to any other storage.

    Every part is compared with its checksum before it is sent. The copy can be read only when it is
    complete; the copy has the same digest. Parts that are in the target already are not sent again: after
    an interruption, run the same command again.

    Example:
      yogadl push squares 1 s3://bucket/caches -s /data/caches
      yogadl push squares 1 --from /data/caches --to gs://bucket/caches
    """
    location = arguments.to or arguments.target or arguments.version  # VERSION holds the target after ID@TAG
    if location is None or None not in (arguments.target, arguments.to):
        arguments.refuse("give one target: yogadl push ID VERSION TARGET, or ID@TAG TARGET")
    return copy_to(location, arguments, *(() if arguments.to is not None else ("target",)))


@command(
    *TAGGED,
    *declared(
        f"""
        [FOLDER]  the folder to write to: a new one, or an empty one
        --format {{{",".join(FORMATS)}}}  what to write (default: {NPY})
        --field NAME...  only this key of the records
        """,
        format={"default": NPY},
    ),
    has_bar=True,
)
def export(arguments: argparse.Namespace) -> Answer:
    """Write a version to files that other programs read.

    npy writes a .npy file for each field, and a spec.json that names the file of each field. The fields
    must not vary in length. parquet and arrow write one file with a column for each field, and need
    pyarrow. The export is atomic: the folder appears at the end, with everything in it.

    Example:
      yogadl export squares 1 out -s /data/caches
      yogadl export squares 1 out --format parquet --field number -s /data/caches
    """
    storage = open_version(arguments, "folder")
    # `fetch` allows pickled fields here, but `write` refuses them before it reads anything.
    ref = fetch(storage, arguments)
    if arguments.field:
        ref = ref.fields(*arguments.field)
    with Bar("exporting", len(ref), " records") as bar:
        done = write(ref, arguments.folder, arguments.format, progress=lambda records, _: bar.show(records))
    document = key_of(storage, arguments) | {"folder": str(done.folder), "format": arguments.format}
    document |= picked(done, "files", "records", "size_bytes")
    files = f"{counted(len(done.files), 'file')} of {size(done.size_bytes)}"
    what = f"{counted(done.records, 'record')} of {arguments.id} {arguments.version}"
    lines = [f"Wrote {what} to {files}:", *(f"  {done.folder / name}" for name in done.files)]
    return Answer(document, lines)


_FILE = "cache.mdb"


@command(
    *declared(
        f"""
        PATH  the old {_FILE}, or its folder
        --id ID  the name of the new dataset
        --version VERSION  the name of the new version
        --trust-pickle  unpickle the file, although it can run any code
        --replace  replace the version if it exists
        """,
        path=typed(Path),
    ),
    has_bar=True,
)
def import_014(arguments: argparse.Namespace) -> Answer:
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
    document = {"path": str(path), "elapsed_s": elapsed_s}
    lines = [
        f"Imported {key.id} {key.version} in {duration(elapsed_s)}: {contents(info)}.",
        f"Fingerprint, the same on every machine: {info.fingerprint}",
    ]
    return Answer(info_to_json(storage, info, document), lines)
