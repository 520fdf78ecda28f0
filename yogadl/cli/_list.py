"""List datasets and versions, and show one."""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from yogadl._core.key import DatasetKey
from yogadl._core.printable import printable
from yogadl._core.shown import names_of, row_of_field
from yogadl._format.codec import RAW, codec_in_words
from yogadl._format.manifest import ADOPTED, CODEC, LEFT_OUT
from yogadl.cli._arguments import ID, TAGGED, Answer, command, declared, key_of, open_existing, open_version
from yogadl.cli._output import (
    ago,
    counted,
    cut,
    day_and_time,
    error_line,
    moment,
    note,
    size,
    stored,
    table,
    width,
)
from yogadl.errors import CacheFormatError, DatasetNotFoundError
from yogadl.storage import CacheStorage, DatasetInfo, FieldSizes, LoggedVersion, TagMove
from yogadl.storage._catalogue.cached import open_table

if TYPE_CHECKING:
    from yogadl.storage import Unfinished


@command(*TAGGED)
def info(arguments: argparse.Namespace) -> Answer:
    """Show the size, the fields and the origin of a version.

    The fingerprint is a hash of the content: the same records have the same fingerprint on every machine. The
    digest is a hash of these files: `storage.fetch(..., digest=...)` refuses any others.

    Example:
      yogadl info squares 1 -s /data/caches
    """
    storage = open_version(arguments)
    info = storage.info(arguments.id, arguments.version)
    _key, published = storage._backend.catalogue.named(DatasetKey(info.id, info.version), info.digest)
    sizes = storage._sizes_in_order(published.manifest)
    adopted = adopted_of(storage, info)
    has_codec = any(found.codec != RAW for found in sizes)
    rows = []
    for name, field, found in zip(names_of(info.spec), info.spec.fields, sizes, strict=True):
        of_codec = [found.codec, size(found.stored_bytes), size(found.raw_bytes)]
        rows.append(row_of_field(name, field.leaf) + (of_codec if has_codec else of_codec[1:2]))
    names = ["codec", "stored", "of"] if has_codec else ["stored"]
    fields = [cut(line, width()) for line in table(["field", "dtype", "shape", *names], rows)]
    facts = [f"{name:<12} {text}" for name, text in _lines(info, adopted)]
    return Answer(
        info_to_json(storage, info, sizes=sizes) | {"adopted": adopted and asdict(adopted)},
        [*facts, "", fields],
    )


@dataclass(frozen=True)
class Adopted:
    """Facts about the foreign files of a version.

    Args:
        format: Their format, if the manifest says it.
        paths: The paths and patterns that were adopted.
        files: The number of files.
        size_bytes: Their size.
        is_read: Whether they were read through.
    """

    format: str | None
    paths: list[str]
    files: int
    size_bytes: int
    is_read: bool

    def __str__(self) -> str:
        kind = f" ({_text(self.format)})" if self.format else ""
        return f"{counted(self.files, 'file')} of {size(self.size_bytes)}{kind}"


def fingerprint_line(info: DatasetInfo, adopted: Adopted | None) -> str:
    """Return the line that says the fingerprint of a version that was built."""
    is_weak = adopted is not None and not adopted.is_read
    what = "made of the sizes and tags of the files" if is_weak else "the same on every machine"
    return f"Fingerprint, {what}: {info.fingerprint}"


def adopted_of(storage: CacheStorage, info: DatasetInfo) -> Adopted | None:
    """Return the facts about a version's foreign files, or ``None`` if it has none."""
    if not info.is_adopted:
        return None
    catalogue = storage._backend.catalogue
    manifest = catalogue.published(DatasetKey(info.id, info.version), info.digest).manifest
    files = open_table(catalogue.root, manifest).files
    entry = info.builder.get(ADOPTED)
    format = entry.get("format") if isinstance(entry, dict) else None
    paths = entry.get("paths") if isinstance(entry, dict) else None
    return Adopted(
        format if isinstance(format, str) else None,
        list(map(str, paths)) if isinstance(paths, list) else [],
        len(files.addressed),
        files.addressed_bytes,
        not manifest.is_weak,
    )


def info_to_json(
    storage: CacheStorage,
    info: DatasetInfo,
    more: Mapping[str, Any] | None = None,
    sizes: Sequence[FieldSizes] = (),
) -> dict[str, Any]:
    """Return all facts about a version, as JSON.

    Args:
        storage: The storage that has it.
        info: The version.
        more: Further facts, which come first.
        sizes: The sizes of its fields, if they are looked up.
    """
    each = [dict(vars(found)) for found in sizes] or [{} for _ in info.spec.fields]
    return {
        "storage": storage.location,
        **(more or {}),
        "id": info.id,
        "version": info.version,
        **_facts(info),
        "fields": [
            {"name": field.name, "dtype": field.leaf.dtype, "shape": field.leaf.shape, **found}
            for field, found in zip(info.spec.fields, each, strict=True)
        ],
        "spec": info.spec.to_json(),
        "builder": _builder_to_json(info.builder),
        "earlier": [dict(vars(earlier)) for earlier in info.earlier],
        "metadata": _finite(info.metadata),
        "is_adopted": info.is_adopted,
    }


def _facts(info: DatasetInfo | None) -> dict[str, Any]:
    """Return the facts about a version that a list of versions has, too; if it is damaged, each is None."""
    names = ("records", "size_bytes", "parts", "created", "fingerprint", "digest")
    facts = {name: getattr(info, name, None) for name in names}
    return facts | {"created": moment(facts["created"])}


def _builder_to_json(builder: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _finite(builder)
    if isinstance(found.get("started"), int | float):
        found["started"] = moment(found["started"])
    return found


def _finite(value: Any) -> Any:  # any JSON value
    """Return JSON with None for NaN and infinity, which a manifest may hold and JSON can't express."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lines(info: DatasetInfo, adopted: Adopted | None) -> list[tuple[str, str]]:
    each = f", {size(info.size_bytes / info.records)} a record" if info.records else ""
    lines = [
        ("dataset", info.id),
        ("version", info.version),
        ("records", f"{info.records:,}"),
        ("size", f"{stored(info)}{each}" if adopted is None else f"{stored(info)}, the index alone"),
    ]
    if CODEC in info.builder:
        lines.append(("codec", cut(_text(codec_in_words(info.builder[CODEC])), width() - 13)))
    if adopted is not None:
        lines.append(("adopted", f"{adopted}; its values stay there"))
        lines.append(("read", "yes, with checksums" if adopted.is_read else "no: pinned by size and tag"))
        lines += [("from", cut(_text(", ".join(adopted.paths)), width() - 13))] if adopted.paths else []
    lines.append(("built", f"{day_and_time(info.created)} UTC, {ago(info.created)}"))
    if info.earlier:
        last = info.earlier[-1]
        more = info.records - last.records
        lines.append(("continues", _text(f"version {last.version}, with {counted(more, 'record')} more")))
    if info.metadata:
        lines.append(("metadata", cut(_text(json.dumps(info.metadata)), width() - 13)))
    builder = info.builder
    if builder.get("function"):
        lines.append(("from", _text(builder["function"])))
    arguments = builder.get("arguments")
    if isinstance(arguments, dict) and arguments:
        said = ", ".join(f"{name}={value}" for name, value in arguments.items())
        lines.append(("arguments", cut(_text(said), width() - 13)))
    names = {"yogadl": "yogadl", "python": "Python", "numpy": "numpy"}
    software = ", ".join(f"{names[name]} {builder[name]}" for name in names if builder.get(name))
    if software:
        lines.append(("with", _text(software)))
    return [*lines, ("fingerprint", info.fingerprint), ("digest", info.digest)]


def _text(value: object) -> str:
    """Return a value as text, cut if it is long, because a manifest may hold any value."""
    return printable(f"{value!s:.1000}")


@dataclass(frozen=True)
class _Version:
    """One version, with its info, or with the error that reading its manifest raised."""

    id: str
    version: str
    info: DatasetInfo | None
    tags: list[str]
    error: str | None = None
    shared_bytes: int = 0
    shared_with: tuple[str, ...] = ()


_MOST_NAMED: Final = 5


@command(*declared("[ID]  list only this dataset, and those below it (ID/...)"))
def ls(arguments: argparse.Namespace) -> Answer:
    """List the datasets and their versions.

    Example:
      yogadl ls -s /data/caches
      yogadl ls squares -s /data/caches --json
    """
    storage = open_existing(arguments)
    problems: list[str] = []
    versions = _find(storage, arguments.id, problems)
    for problem in problems:
        note(problem)
    unfinished = _unfinished(storage, arguments.id)
    if arguments.id is not None and not versions and not unfinished:
        raise storage._backend.catalogue.no_dataset(arguments.id)
    if arguments.json:
        _note_unfinished(versions, unfinished)
    document = {
        "storage": storage.location,
        "versions": [_to_json(entry) for entry in versions],
        "unfinished": [asdict(entry) | {"written": moment(entry.written)} for entry in unfinished],
    }
    return Answer(document, _listed(storage, versions, unfinished), int(bool(problems)))


def _listed(
    storage: CacheStorage, versions: "list[_Version]", unfinished: "list[Unfinished]"
) -> Iterator[str | list[str]]:
    """Yield the table of versions, and note what it has no column for."""
    if versions:
        header = ("dataset", "version", "records", "size", "files", "built (UTC)", "tags")
        columns = len(header) if any(entry.tags for entry in versions) else 6
        yield table(header[:columns], [_row(entry)[:columns] for entry in versions], right=(2, 3, 4))
        _note_more(versions)
    else:
        note(f"there are no datasets in {storage.location}")
    _note_unfinished(versions, unfinished)


def _note_unfinished(versions: "list[_Version]", unfinished: "list[Unfinished]") -> None:
    listed = {(entry.id, entry.version) for entry in versions}
    for build in unfinished:
        version = build.version or "(of a version that is not known)"
        what = f"use {size(build.size_bytes)}, last written {day_and_time(build.written)} UTC"
        if (build.id, build.version) in listed:
            note(f"{build.id} {version} is there; builds of it that were not published {what}")
        else:
            note(f"{build.id} {version} is not finished: its builds {what}")
    if unfinished:
        note(
            "`yogadl prune --unfinished` removes these files, but not those of a build that is running, or "
            "those that tasks wrote within a day"
        )


def _note_more(versions: list[_Version]) -> None:
    """Note what the table of versions has no column for."""
    for entry in versions:
        if entry.shared_bytes:
            others = ", ".join(entry.shared_with)
            more = f"has {size(entry.shared_bytes)} more, which it shares with {others}"
            note(f"{entry.id} {entry.version} {more}")
    adopted = [f"{entry.id} {entry.version}" for entry in versions if entry.info and entry.info.is_adopted]
    if adopted:
        shown = ", ".join(adopted[:_MOST_NAMED]) + (", ..." if len(adopted) > _MOST_NAMED else "")
        note(f"adopted, so that values lie in other files (see `yogadl info`): {shown}")


def _unfinished(storage: CacheStorage, dataset_id: str | None) -> "list[Unfinished]":
    if dataset_id is None:
        return storage.unfinished()
    ids = {dataset_id, *storage._backend.catalogue.ids_with("builds", below=dataset_id)}
    return [build for name in sorted(ids) for build in storage.unfinished(name)]


def _find(storage: CacheStorage, dataset_id: str | None, problems: list[str]) -> list[_Version]:
    if dataset_id is None:
        ids = storage.datasets()
    else:
        DatasetKey(dataset_id, "any")
        ids = storage._backend.catalogue.datasets(below=dataset_id) or [dataset_id]
    versions = []
    for name in ids:
        tagged: dict[str, str] = {}
        try:
            tagged = storage.tags(name)
        except CacheFormatError as error:
            problems.append(error_line(error))
        for version in storage.versions(name):
            tags = [tag for tag, tagged_version in tagged.items() if tagged_version == version]
            try:
                # The description of the builder is not shown, and may be long.
                versions.append(
                    _Version(name, version, replace(storage.info(name, version), builder={}), tags)
                )
            except CacheFormatError as error:
                problems.append(error_line(error))
                versions.append(_Version(name, version, None, tags, problems[-1]))
            except DatasetNotFoundError:
                pass  # deleted just now
    return _with_shared_bytes(storage, versions, problems)


def _with_shared_bytes(
    storage: CacheStorage, versions: list[_Version], problems: list[str]
) -> list[_Version]:
    """Add to each version the number of bytes that it shares with earlier versions of its dataset."""
    continued = {entry.id for entry in versions if entry.info is not None and entry.info.earlier}
    catalogue = storage._backend.catalogue
    holders: dict[tuple[str, str], str] = {}  # (id, sha256 of a part) -> the first version that has the part
    shared: dict[tuple[str, str], _Version] = {}
    for entry in sorted(versions, key=lambda entry: entry.info.created if entry.info else 0.0):
        if entry.info is None or entry.id not in continued:
            continue
        try:
            manifest = catalogue.published(DatasetKey(entry.id, entry.version), entry.info.digest).manifest
            parts = open_table(catalogue.root, manifest)
        except (CacheFormatError, DatasetNotFoundError) as error:
            problems.append(error_line(error))
            continue
        size_bytes, others = 0, set()
        for sha256, part_bytes in zip(parts.sha256, parts.size_bytes.tolist(), strict=True):
            holder = holders.setdefault((entry.id, sha256), entry.version)
            if holder != entry.version:
                size_bytes += part_bytes
                others.add(holder)
        shared[entry.id, entry.version] = replace(
            entry, shared_bytes=size_bytes, shared_with=tuple(sorted(others))
        )
    return [shared.get((entry.id, entry.version), entry) for entry in versions]


def _row(entry: _Version) -> list[str]:
    info, tags = entry.info, ", ".join(entry.tags)
    if info is None:
        return [entry.id, entry.version, "damaged", "", "", "", tags]
    built = day_and_time(info.created)
    return [
        entry.id,
        entry.version,
        f"{info.records:,}",
        size(info.size_bytes - entry.shared_bytes),
        f"{info.parts:,}",
        built,
        tags,
    ]


def _to_json(entry: _Version) -> dict[str, Any]:
    return {
        "id": entry.id,
        "version": entry.version,
        **_facts(entry.info),
        "is_adopted": None if entry.info is None else entry.info.is_adopted,
        "shared_bytes": entry.shared_bytes,
        "shared_with": list(entry.shared_with),
        "tags": entry.tags,
        "error": entry.error,
    }


@command(*ID)
def log(arguments: argparse.Namespace) -> Answer:
    """Show the history of a dataset: its versions and its tags.

    Each version is listed with the changes since the previous version, and each move of a tag with the
    version that the tag named afterwards. The oldest entry comes first. Files that two versions share are
    on the disk only once: see `storage.append`.

    Example:
      yogadl log squares -s /data/caches
    """
    storage = open_existing(arguments)
    log = storage.log(arguments.id)
    for version, problem in log.damaged.items():
        note(f"{log.id} {version}: {problem}")
    document = {
        "storage": storage.location,
        "id": log.id,
        "versions": [_logged_to_json(one) for one in log.versions],
        "tags": [vars(one) | {"moved": moment(one.moved)} for one in log.moves],
        "damaged": log.damaged,
    }
    events = [(one.created, list(_history_lines(one))) for one in log.versions]
    events += [(move.moved, [_line_of(move)]) for move in log.moves]
    lines = [line for _, lines in sorted(events, key=lambda event: event[0]) for line in lines]
    return Answer(document, lines, int(bool(log.damaged)))


def _history_lines(logged: LoggedVersion) -> Iterator[str]:
    tags = f"  ({', '.join(logged.tags)})" if logged.tags else ""
    yield f"{day_and_time(logged.created)}  version {logged.version}{tags}"
    what = f"{counted(logged.records, 'record')} in {counted(logged.parts, 'file')}"
    if logged.foreign_files:
        what += f", adopted from {counted(logged.foreign_files, 'file')}"
    metadata = dict(logged.metadata or {})
    left_out = metadata.pop(LEFT_OUT, None)
    about = (
        [f"    left out {counted(left_out['count'], 'record')} that could not be read"] if left_out else []
    )
    if metadata:
        about.append(f"    metadata {cut(_text(json.dumps(metadata)), width() - 13)}")
    if logged.before is None:
        yield f"    {what}, {size(logged.added_bytes)}"
    else:
        shared = f"{size(logged.shared_bytes)} shared with {logged.before}"
        yield f"    {what}; {size(logged.added_bytes)} added, {shared}"
    yield from about
    if logged.explanation is not None:
        yield from (f"  {line}" for line in str(logged.explanation).splitlines()[1:])


def _line_of(move: TagMove) -> str:
    what = "removed" if move.version is None else f"-> version {move.version}"
    return f"{day_and_time(move.moved)}  tag {move.tag} {what}"


def _logged_to_json(logged: LoggedVersion) -> dict[str, Any]:
    document = {name: value for name, value in vars(logged).items() if name not in ("explanation", "earlier")}
    document["created"], document["metadata"] = moment(logged.created), _finite(logged.metadata)
    document["earlier"] = [dict(vars(earlier)) for earlier in logged.earlier]
    explanation = logged.explanation
    document["differences"] = [asdict(each) for each in explanation.differences] if explanation else []
    document["notes"] = list(explanation.notes) if explanation else []
    return document


@command(*TAGGED, *declared("[OTHER]  the version to compare it with, or a tag"))
def explain(arguments: argparse.Namespace) -> Answer:
    """Say what differs in how two versions of a dataset were built.

    For a function the command shows the lines that changed, for a value or an argument the old and the new
    value. Lines in parentheses have no influence on the version, but may explain a difference: another
    version of a library, for example.

    Example:
      yogadl explain squares 1 2 -s /data/caches
    """
    storage = open_version(arguments, "other")
    found = storage.explain(arguments.id, arguments.version, arguments.other)
    differences = {"differences": [asdict(one) for one in found.differences], "notes": found.notes}
    document = key_of(storage, found) | {"other": found.other} | differences
    return Answer(document, str(found).splitlines())
