"""Adopt foreign files: a source whose records stay where they lie, and versions of what has changed."""

import hashlib
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

from yogadl._core.key import DatasetKey
from yogadl._core.spec import Leaf, Spec
from yogadl._foreign.fields import fill_of_json, fill_to_json
from yogadl._foreign.file_reader import Columns, FileReader, Format, columns_of, joined
from yogadl._format.files import ForeignFile
from yogadl._format.manifest import ADOPTED, DecodedRows, Manifest
from yogadl._sources.partitioned import Partition, PartitionedSource
from yogadl._sources.sources import NO_RECORDS, ReadOnce, Source
from yogadl.errors import CacheFormatError, ConfigurationError, UnsupportedDataError
from yogadl.storage._builds.adopted_files import (
    checked_paths,
    format_named,
    format_of,
    is_read_as,
    listed_files,
)
from yogadl.storage._builds.build import PlannedBuild, Receipt, content_of
from yogadl.storage._builds.building import build_version
from yogadl.storage._builds.growth import append, earlier_of, newest, receipts_of
from yogadl.storage._builds.options import BuildTerms
from yogadl.storage._builds.publish import Content, read_published
from yogadl.storage._catalogue.backend import Backend
from yogadl.storage._catalogue.cached import Published, open_table
from yogadl.storage._files.permitted import Permitted

# Files are adopted in groups, each by one task: of about this many groups, and of groups of such sizes.
_GROUPS: Final = 48
_LEAST_GROUP_BYTES: Final = 64 * 2**20
_MOST_GROUP_BYTES: Final = 2**30
_LEAST_UNREAD_FILES: Final = 256  # of a group whose files are not read
_READERS: Final = 16  # threads that ask a bucket whether objects are as they were
_SMALL_FILE_BYTES: Final = 2**16  # of a file that may have no records, such as an empty tar


class AdoptedSource(PartitionedSource):
    """The records of foreign files, whose values are not copied. Picklable.

    Args:
        stores: Reads the files.
        format: The format, with its fields.
        groups: The files, in the groups that tasks adopt.
        is_read: Whether all bytes are read, and hashed.
        provenance: What the manifest says of the files.
    """

    def __init__(
        self,
        stores: Permitted,
        format: Format,
        groups: Sequence[Sequence[ForeignFile]],
        *,
        is_read: bool,
        provenance: Mapping[str, Any],
    ) -> None:
        self._stores = stores
        self._format = format
        self._groups = groups
        self._is_read = is_read
        self.provenance: dict[str, Any] = dict(provenance)
        self.spec = format.spec
        self.decoded = format.decoded
        files = [[file.address, file.size_bytes, file.tag] for group in groups for file in group]
        text = json.dumps([files, repr(format), is_read])
        self.origin = hashlib.sha256(text.encode()).hexdigest()

    @property
    def files(self) -> Iterator[ForeignFile]:
        """All files, in order."""
        return itertools.chain.from_iterable(self._groups)

    @property
    def partitions(self) -> int:
        """The number of groups."""
        return len(self._groups)

    def partition(self, number: int) -> Partition:
        """Return one group."""
        return _FilesToAdopt(self._stores, self._format, self._groups[number], self._is_read)

    def check_at_end(self) -> None:
        """Make sure that no file has changed since it was listed, also after it was read.

        Raises:
            CacheFormatError: if one has.
        """
        _check_all(self._stores, self.files)


class _FilesToAdopt(Partition):
    """Some foreign files, which one task adopts."""

    def __init__(
        self, stores: Permitted, format: Format, files: Sequence[ForeignFile], is_read: bool
    ) -> None:
        self._stores = stores
        self._format = format
        self._files = files
        self._is_read = is_read
        self.spec = format.spec

    def __str__(self) -> str:
        first, others = self._files[0].address, len(self._files) - 1
        return f"{first} and {others} more" if others else first

    @property
    def stamp(self) -> str:
        """A text that differs if a file differs."""
        return hashlib.sha256("".join(file.sha256 for file in self._files).encode()).hexdigest()

    def source(self, like: Spec | None = None) -> Source | None:
        """Open the files; ``None`` if they have no records."""
        return ReadOnce.if_any(self.spec, self._columns())

    def _columns(self) -> Iterator[Columns]:
        for file in self._files:
            reader = self._stores.reader(file, is_read=self._is_read or self._format.reads_all)
            try:
                batches = self._format.batches(reader)
                for batch in batches if self._is_read else joined(batches):
                    yield from columns_of(batch, self.spec, reader, is_read=self._is_read)
            except CacheFormatError as error:
                raise _changed_meanwhile(file) from error


def _changed_meanwhile(file: ForeignFile) -> CacheFormatError:
    return CacheFormatError(
        f"{file.address} was changed while it was adopted: adopt files when nobody writes to them"
    )


def _check_all(stores: Permitted, files: Iterable[ForeignFile]) -> None:
    """Make sure that all files are as they were.

    Raises:
        CacheFormatError: if one is not.
    """

    def check(file: ForeignFile) -> None:
        try:
            stores.check(file)
        except CacheFormatError as error:
            raise _changed_meanwhile(file) from error

    far = []
    for file in files:
        if file.is_local:
            check(file)
        else:
            far.append(file)
    if far:  # each costs a request
        with ThreadPoolExecutor(_READERS) as pool:
            for _ in pool.map(check, far):
                pass


def adopt(
    backend: Backend,
    key: DatasetKey,
    paths: Any,
    format: str | None,
    options: BuildTerms,
    *,
    is_read: bool | None,
    base: DatasetKey | None = None,
    **terms: Any,
) -> Published:
    """Build a version of foreign files: see `CacheStorage.adopt`."""
    if base is None:
        return build_version(
            backend, key, lambda: source_of(backend, paths, format, is_read, **terms), options
        )
    added = partial(_added, backend, base, paths, format, is_read, **terms)
    return append(backend, key, added, base, options)


def source_of(
    backend: Backend, paths: Any, format: str | None, is_read: bool | None, **terms: Any
) -> AdoptedSource:
    """Return the source of foreign files, whose names decide the format if it is not given.

    Raises:
        ConfigurationError: if there are none, or this storage may not read there.
    """
    stores = backend.catalogue.opener.permitted
    patterns = checked_paths(paths)
    format = format_of(stores, patterns) if format is None else format
    is_read = is_read_as(format, is_read)
    made = format_named(format, is_read=is_read, **terms)
    files = listed_files(stores, patterns, made)
    return _source(stores, made, files, is_read, {ADOPTED: entry_of(patterns, format, is_read, **terms)})


def entry_of(paths: Any, format: str, is_read: bool, **terms: Any) -> dict[str, Any]:
    """Return what the manifest of a version says of how its files were adopted.

    Raises:
        ConfigurationError: if the paths are none.
    """
    said = {name: value for name, value in terms.items() if value is not None}
    if isinstance(said.get("missing"), Mapping):
        said["missing"] = {name: fill_to_json(value) for name, value in said["missing"].items()}
    options = json.loads(json.dumps(said, default=lambda leaf: leaf.to_json()))
    return {"paths": checked_paths(paths), "format": format, "read": is_read, "options": options}


def _source(
    stores: Permitted,
    format: Format,
    files: Sequence[ForeignFile],
    is_read: bool,
    provenance: Mapping[str, Any],
) -> AdoptedSource:
    if not files:
        raise UnsupportedDataError(NO_RECORDS)
    if not any(file.size_bytes for file in files):
        others = f", and so are the {len(files) - 1} others" if len(files) > 1 else ""
        raise UnsupportedDataError(f"{files[0].address} is empty{others}: there are no records")
    found = _with_fields(stores, format, files, is_read=is_read)
    return AdoptedSource(stores, found, _grouped(files, is_read), is_read=is_read, provenance=provenance)


def _with_fields(stores: Permitted, format: Format, files: Sequence[ForeignFile], *, is_read: bool) -> Format:
    """Return the format with the fields of all files, of which most formats look at the first one alone."""

    def each(look: Callable[[FileReader], Any], some: Sequence[ForeignFile]) -> Iterator[Any]:
        def look_at(file: ForeignFile) -> Any:
            try:
                # Of a local file, the headers between the values cost less than all its bytes.
                return look(stores.reader(file, is_read=is_read and not file.is_local))
            except CacheFormatError as error:
                raise _changed_meanwhile(file) from error

        if len(some) == 1 or some[0].is_local:
            yield from map(look_at, some)
            return
        with ThreadPoolExecutor(_READERS) as pool:
            yield from pool.map(look_at, some)

    return format.of_files(files, each)


def _grouped(files: Sequence[ForeignFile], is_read: bool) -> list[list[ForeignFile]]:
    """Return the files in groups that follow each other."""
    total_bytes = sum(file.size_bytes for file in files)
    size_bytes = min(max(total_bytes // _GROUPS, _LEAST_GROUP_BYTES), _MOST_GROUP_BYTES)
    count = 1 if is_read else max(_LEAST_UNREAD_FILES, len(files) // _GROUPS)
    groups: list[list[ForeignFile]] = []
    group_bytes = 0
    for file in files:
        is_full = group_bytes >= size_bytes if is_read else len(groups[-1:]) and len(groups[-1]) >= count
        if not groups or is_full:
            groups.append([])
            group_bytes = 0
        groups[-1].append(file)
        group_bytes += file.size_bytes
    return groups


def _adopted_entry(manifest: Manifest) -> dict[str, Any]:
    """Return what a manifest says of the files that its version was adopted from.

    Raises:
        ConfigurationError: if it was not adopted.
        CacheFormatError: if this is nothing that `entry_of` returns.
    """
    entry = manifest.builder.get(ADOPTED)
    if not isinstance(entry, dict):
        raise ConfigurationError(
            f"{manifest.key} was not adopted from foreign files, so there is nothing to refresh it from"
        )
    kinds = {"paths": list, "format": str, "read": bool, "options": dict}
    if {name: type(value) for name, value in entry.items()} != kinds:
        raise _damaged(manifest, f"{entry!r:.200}")
    return entry


def _damaged(manifest: Manifest, problem: str) -> CacheFormatError:
    return CacheFormatError(
        f"the manifest of {manifest.key} is damaged, as it does not say how files were adopted ({problem}): "
        "adopt the files again"
    )


def _format_of_entry(manifest: Manifest, entry: Mapping[str, Any]) -> Format:
    """Return the format that a manifest describes.

    Raises:
        CacheFormatError: if it describes none.
    """
    try:
        return format_named(entry["format"], is_read=entry["read"], **_options_of(entry))
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # whatever a foreign file may say
        raise _damaged(manifest, f"{error}"[:200]) from error


def _added(
    backend: Backend, base: DatasetKey, paths: Any, format: str | None, is_read: bool | None, **terms: Any
) -> AdoptedSource:
    """Return the source of files that are appended to a version."""
    source = source_of(backend, paths, format, is_read, **terms)
    manifest = newest(backend.catalogue, base).manifest
    before = {file.address for file in open_table(backend.root, manifest).foreign}
    for file in source.files:
        if file.address in before:
            raise ConfigurationError(
                f"{base} has the records of {file.address} already: name only other files; or make a version "
                "of all files as they are now: storage.refresh"
            )
    if isinstance(manifest.builder.get(ADOPTED), dict):
        entry, own = _adopted_entry(manifest), source.provenance[ADOPTED]
        if {**entry, "paths": 0} != {**own, "paths": 0}:
            raise ConfigurationError(
                f"{base} was adopted with {_described(entry)}, these files are with {_described(own)}: give "
                "the same, or adopt all files together"
            )
        source.provenance[ADOPTED] = {**own, "paths": [*entry["paths"], *own["paths"]]}
    return source


def _described(entry: Mapping[str, Any]) -> str:
    return (
        f"format={entry.get('format')!r:.40}, read={entry.get('read')!r:.40}, {entry.get('options')!r:.200}"
    )


def refresh(
    backend: Backend, key: DatasetKey, base: DatasetKey, options: BuildTerms, *, replaces: bool
) -> Published:
    """Build a version of a version's files as they are now: see `CacheStorage.refresh`."""
    published = newest(backend.catalogue, base)
    manifest = published.manifest
    entry = _adopted_entry(manifest)
    stores = backend.catalogue.opener.permitted
    is_read = entry["read"]
    made = _format_of_entry(manifest, entry)
    receipts = receipts_of(backend, manifest)
    _require_foreign(receipts, manifest.key)
    before, files = files_of(receipts), listed_files(stores, checked_paths(entry["paths"]), made)
    if files == before:
        return published

    def refuse_to_replace() -> None:
        if not replaces and read_published(backend.root, key) is not None:
            raise ConfigurationError(
                f"{key} exists, and refresh replaces no version unasked: give the new version another name, "
                "or replace=True (--replace)"
            )

    refuse_to_replace()  # before files are read
    same_first = made.with_spec(manifest.spec) if files[0] == before[0] else None
    made = same_first or _with_fields(stores, made, files, is_read=is_read)
    files = _with_records(stores, made, files, set(before), is_read=is_read)
    # If the first file decides on other fields now, all files are read anew.
    is_same = made.spec.is_like(manifest.stored.spec) and _decodes_as(made.decoded, manifest.decoded)
    kept = _unchanged(receipts, files) if is_same else []
    kept_files = {file for run in kept for file in files_of(run)}
    new = [file for file in files if file not in kept_files]
    was_whole = [receipt for run in kept for receipt in run] == receipts
    if not new and was_whole:
        return published
    if not new and kept:  # files were removed; a build has records of its own
        new = files_of(kept.pop(min(range(len(kept)), key=lambda number: len(kept[number]))))
    places = {file: number for number, file in enumerate(files)}
    continues = was_whole and all(places[file] >= len(files) - len(new) for file in new)

    def content(built: list[Receipt]) -> Content:
        # The objects of parts that are kept were listed with their tags: a request for each finds no more.
        _check_all(stores, filter(lambda file: file.is_local, kept_files))
        every = [receipt for run in kept for receipt in run] + built
        _require_foreign(every, base)
        every.sort(key=lambda receipt: places[receipt.part.index.files[0]])
        found = content_of(every)
        earlier = earlier_of(manifest) if continues else ()
        return replace(found, earlier=earlier, metadata=manifest.metadata, decoded=made.decoded)

    def data() -> PlannedBuild:
        refuse_to_replace()
        # No group has files from both sides of one whose part is kept.
        runs = itertools.groupby(enumerate(new), lambda each: places[each[1]] - each[0])
        grouped = [group for _, run in runs for group in _grouped([file for _, file in run], is_read)]
        provenance = {ADOPTED: entry}
        source = AdoptedSource(stores, made, grouped, is_read=is_read, provenance=provenance)
        return PlannedBuild(source, content=content)

    return build_version(backend, key, data, options)


def _decodes_as(one: DecodedRows | None, other: DecodedRows | None) -> bool:
    """Return whether rows are decoded alike from groups, if they are."""
    if one is None or other is None:
        return one is other
    return (one.spec, one.form) == (other.spec, other.form)


def _require_foreign(receipts: Iterable[Receipt], key: DatasetKey) -> None:
    """Refuse to refresh a version with a part without foreign files: nobody knows what it was made of.

    Raises:
        ConfigurationError: if there is such a part.
    """
    for receipt in receipts:
        if not receipt.part.index.files:
            first = receipt.first_record
            raise ConfigurationError(
                f"{key}: records {first} to {first + receipt.part.index.records - 1} have no values in "
                "foreign files: they come from a base version that was not adopted, or are so small that "
                "they were copied. Such a version can't be refreshed: adopt the files again"
            )


def _with_records(
    stores: Permitted,
    format: Format,
    files: Sequence[ForeignFile],
    known: Collection[ForeignFile],
    *,
    is_read: bool,
) -> list[ForeignFile]:
    """Return the files without the small ones that have no records: no version names those.

    Raises:
        UnsupportedDataError: if no file has records.
    """
    found = [
        file
        for file in files
        if file in known
        or file.size_bytes > _SMALL_FILE_BYTES
        or any(True for _ in format.batches(stores.reader(file, is_read=is_read)))
    ]
    if not found:
        raise UnsupportedDataError(NO_RECORDS)
    return found


def _options_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in entry["options"].items()
    }
    features = options.get("features")
    if isinstance(features, dict):
        options["features"] = {name: _feature_of(each) for name, each in features.items()}
    missing = options.get("missing")
    if isinstance(missing, dict):
        options["missing"] = {name: fill_of_json(each) for name, each in missing.items()}
    return options


def _feature_of(described: Any) -> Any:
    """Return a feature as a caller describes it; JSON has made a list of a pair, and a dict of a leaf."""
    if isinstance(described, dict):
        return Leaf.from_json(described)
    if isinstance(described, list) and len(described) == 2 and isinstance(described[1], list):
        return described[0], tuple(described[1])
    return described


def files_of(receipts: Iterable[Receipt]) -> list[ForeignFile]:
    """Return the foreign files of parts, in order."""
    return list(dict.fromkeys(file for receipt in receipts for file in receipt.part.index.files))


def _unchanged(receipts: Sequence[Receipt], files: Sequence[ForeignFile]) -> list[list[Receipt]]:
    """Return the runs of parts whose files are all as they were, and follow each other as they did.

    A run has no file that a part outside of it has, too.
    """
    places = {file: number for number, file in enumerate(files)}
    runs: list[list[Receipt]] = []
    for receipt in receipts:
        own = set(receipt.part.index.files)
        if runs and own & set(runs[-1][-1].part.index.files):
            runs[-1].append(receipt)
        else:
            runs.append([receipt])
    kept = []
    for run in runs:
        numbers = [places.get(file, -1) for file in files_of(run)]
        if numbers and numbers[0] >= 0 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            kept.append(run)
    return kept
