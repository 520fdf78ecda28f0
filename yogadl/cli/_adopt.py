"""Build versions of files of other libraries, which stay where they are."""

import argparse
import re
import time
import warnings
from typing import Any, Final

from yogadl._core.forms import EMPTY
from yogadl._core.key import DatasetKey, new_key
from yogadl._core.printable import masked
from yogadl._foreign.example import leaf_of_feature
from yogadl._format.manifest import ADOPTED, Manifest
from yogadl.cli._arguments import (
    KEY,
    TAGGED,
    WORKERS,
    Answer,
    command,
    declared,
    open_or_make,
    open_version,
    typed,
)
from yogadl.cli._build import (
    METADATA,
    REPLACE_NEW,
    TASKS,
    SharedWork,
    WrittenPartitions,
    answer_of,
    check_options,
    named_once,
    refuse_to_replace,
    run_share,
    show_log_messages,
)
from yogadl.cli._list import adopted_of, fingerprint_line, info_to_json
from yogadl.cli._output import contents, duration
from yogadl.cli._target import parse_fill
from yogadl.errors import YogaError
from yogadl.storage import CacheStorage
from yogadl.storage._builds.adopted import entry_of, source_of
from yogadl.storage._builds.adopted_files import FORMATS, checked_paths, format_named, format_of, is_read_as
from yogadl.storage._builds.options import BuildOptions, FileOptions

_DTYPE: Final = re.compile(r"([a-z0-9_]+)(?:\[([0-9, ]*)\])?")
# The options of `build` that a version of foreign files has no use for.
_NOT_OF_ADOPT: Final = {
    "codec": None, "allow_pickle": False, "part_bytes": None, "on_error": "raise", "fill": None,
}  # fmt: skip


def parse_feature(text: str) -> tuple[str, Any]:
    """Return name and description of a feature in a text such as ``label=int64``, ``boxes=float32[,4]``.

    A size that is left out varies.
    """
    name, _, described = text.rpartition("=")
    found = _DTYPE.fullmatch(described)
    if not name or found is None:
        raise argparse.ArgumentTypeError(
            f"give NAME=DTYPE, as in label=int64, row=float32[128] or tokens=int64[], not {text!r}"
        )
    dtype, sizes = found.groups()
    feature: Any = dtype
    try:
        if sizes is not None:
            shape = tuple(int(size) if size.strip() else None for size in sizes.split(","))
            feature = (dtype, shape)
        leaf_of_feature(name, feature)
    except YogaError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{sizes!r} are no sizes of {name}: {error}") from error
    return name, feature


def _parse_missing(text: str) -> str | tuple[str, Any]:
    """Return what comes in the place of missing values: of all fields, or of one with its name."""
    return text if text in ("error", EMPTY) else parse_fill(text)


@command(
    *KEY,
    *declared(
        f"""
        paths=PATH...  a file, a folder, a URL, or a pattern: 's3://bucket/raw/*.tar',
            'shards-{{000..099}}.tar'
        --format {{{",".join(FORMATS)}}}  the files' format (default: the one that their names end like)
        --read  read all files through, for checksums of what they contain (default, but of parquet)
        --no-read  trust the files' own indexes and headers, without checksums of what they contain
        --field NAME...  of webdataset, mds, arrow and parquet: only this field, or image/bytes of a struct
            of arrow
        --json-value NAME...  of parquet: a column that is a json value
        --feature NAME=DTYPE...  of tfrecord: a feature of a tf.train.Example, as bytes, str, int64, float32,
            float32[128] or, if its length varies, int64[]
        --missing empty|NAME=VALUE...  empty: a field is empty that a sample of webdataset or a record of
            tfrecord lacks, and bytes, a string or a list of arrow or parquet that are null; or of one
            field, such as text=empty or label=-1 (default: they are refused)
        --parse  of jsonl: a record is the json value of a line, not its bytes
        --base VERSION  a version whose records come first, or a tag of it
        --replace  adopt again and replace the version if it exists
        """,
        read={"default": None},
        no_read={"dest": "read", "action": "store_false", "default": None},
        feature=typed(parse_feature),
        missing=typed(_parse_missing),
        parse={"default": None},
        json_value={"default": []},
    ),
    *METADATA,
    *WORKERS,
    TASKS,
    defaults=_NOT_OF_ADOPT,
    has_bar=True,
)
def adopt(arguments: argparse.Namespace) -> Answer:
    """Build a version whose values stay in files of other libraries.

    Only an index is written, which says where each value lies; small values are copied into it. The version
    is read like any other. Each file is pinned by its size and its ETag or time of change: reading a file
    that was changed since is an error. If the version exists already, it is left as it is; --replace adopts
    the files again.

    Many tasks, such as those of a job array, can read the files together, with --task K/N and --commit: see
    `yogadl build -h`.

    Example:
      yogadl adopt train 1 's3://bucket/raw/*.tar' --format webdataset -s s3://bucket/caches
      yogadl adopt images 1 'train-*.tfrecord' --feature image=bytes --feature label=int64 -s caches
      yogadl adopt train 2 'more/*.tar' --base 1 -s caches
    """
    is_task = check_options(arguments)
    if is_task and arguments.base is not None:
        arguments.refuse("--base is for an append in one call: leave out --task and --commit")
    features = named_once(arguments, arguments.feature, "--feature names a feature")
    key = new_key(arguments.id, arguments.version)
    storage = open_or_make(arguments)
    stores = storage._backend.catalogue.opener.permitted
    format = arguments.format or format_of(stores, checked_paths(arguments.paths))
    terms = {
        "fields": arguments.field, "features": features, "missing": _missing_of(arguments),
        "parse": arguments.parse, "json": tuple(arguments.json_value) or None,
    }  # fmt: skip
    arguments.read = is_read_as(format, arguments.read)
    format_named(format, is_read=arguments.read, **terms)  # refuses an option of another format
    started = time.perf_counter()
    with show_log_messages():
        result = (_share if is_task else _adopt)(storage, key, format, terms, arguments)
    return answer_of(storage, key, result, time.perf_counter() - started, arguments)


def _adopt(
    storage: CacheStorage, key: DatasetKey, format: str, terms: dict[str, Any], arguments: argparse.Namespace
) -> bool:
    """Return whether this call built the version; False if the version exists already."""
    published = None if arguments.replace else storage._backend.catalogue.find(key)
    if published is not None:
        _warn_if_other(published.manifest, format, terms, arguments)
        return False
    storage.adopt(
        arguments.paths,
        key.id,
        key.version,
        format=format,
        fields=terms["fields"],
        parse=terms["parse"],
        workers=arguments.workers,
        missing=terms["missing"],
        build=BuildOptions(metadata=arguments.metadata and dict(arguments.metadata)),
        files=FileOptions(arguments.read, terms["features"], arguments.base, terms["json"] or ()),
    )
    return True


def _share(
    storage: CacheStorage, key: DatasetKey, format: str, terms: dict[str, Any], arguments: argparse.Namespace
) -> "bool | WrittenPartitions":
    """Adopt the files of one task, or publish the version from what all tasks have written."""
    work = SharedWork(
        lambda: source_of(storage._backend, arguments.paths, format, arguments.read, **terms),
        lambda built: _warn_if_other(built, format, terms, arguments),
    )
    return run_share(storage, key, work, arguments)


def _warn_if_other(
    built: Manifest, format: str, terms: dict[str, Any], arguments: argparse.Namespace
) -> None:
    """Warn that the version that exists was adopted from other paths, or otherwise."""
    now, then = entry_of(arguments.paths, format, arguments.read, **terms), built.builder.get(ADOPTED)
    if isinstance(then, dict) and arguments.base is not None and isinstance(then.get("paths"), list):
        then = {**then, "paths": then["paths"][-len(now["paths"]) :]}  # the base's paths come first
    if then == now:
        return
    if not isinstance(then, dict):
        what = "was not adopted from foreign files"
    else:
        names = [name for name in now if then.get(name) != now[name]]
        shown = {name: masked if name == "paths" else str for name in names}  # `paths` are as the user typed
        changes = "; ".join(
            f"{name}: {shown[name](then.get(name)):.200} -> {shown[name](now[name]):.200}" for name in names
        )
        what = f"was adopted otherwise than this call says ({changes})"
    warnings.warn(f"{built.key} {what}. It is left as it is", UserWarning, stacklevel=1)


def _missing_of(arguments: argparse.Namespace) -> Any:
    """Return what `--missing` says, once for all fields or of each by its name."""
    given = arguments.missing
    if given is None:
        return None
    if any(isinstance(each, str) for each in given):
        if len(given) > 1:
            arguments.refuse("--missing empty is about all fields: leave out the others")
        return None if given[0] == "error" else given[0]
    return named_once(arguments, given)


@command(*TAGGED, *declared("[NEW]  the version to build"), *REPLACE_NEW, *WORKERS, has_bar=True)
def refresh(arguments: argparse.Namespace) -> Answer:
    """Build a version of adopted files as they are now.

    The paths and patterns of VERSION are looked up again. Only files that are new or were changed are read,
    with those that share a part of the index with them. If nothing has changed, no version is built. If NEW
    is VERSION, the version is replaced; another version that exists is replaced only with --replace.

    Example:
      yogadl refresh train 1 2 -s /data/caches
    """
    storage = open_version(arguments, "new")
    started = time.perf_counter()
    before = storage.info(arguments.id, arguments.version)
    refuse_to_replace(storage, before, arguments)
    with show_log_messages():
        ref = storage.refresh(
            arguments.id,
            arguments.version,
            arguments.new,
            workers=arguments.workers,
            replace=arguments.replace or arguments.new == before.version,
        )
    elapsed_s = time.perf_counter() - started
    info = storage.info(arguments.id, before.version if ref.lineage is None else ref.lineage.version)
    is_new = info.digest != before.digest  # a version that is replaced keeps its name
    adopted = adopted_of(storage, info)
    document = info_to_json(storage, info, {"was_built": is_new, "elapsed_s": elapsed_s})
    document |= {"adopted": adopted and vars(adopted)}
    if not is_new:
        text = f"The files of {info.id} {info.version} are as they were: {adopted}. Nothing is built."
        return Answer(document, [text])
    files = adopted_of(storage, before) if before.version != info.version else None
    more = f"; those of {before.version} in {files}." if files else "."
    lines = [
        f"Built {info.id} {info.version} in {duration(elapsed_s)}: {contents(info)}.",
        f"Its values stay in {adopted}{more}",
        fingerprint_line(info, adopted),
    ]
    return Answer(document, lines)
