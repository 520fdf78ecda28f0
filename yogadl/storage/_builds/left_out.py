"""Leave out records that can't be read, and list them in the version's metadata, which are joined here."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from yogadl._core.key import DatasetKey
from yogadl._format.manifest import LEFT_OUT, MAX_METADATA_BYTES
from yogadl._sources.sources import RecordsSource, Source
from yogadl.errors import CacheFormatError, ConfigurationError
from yogadl.storage._builds.build import WrittenParts
from yogadl.storage._builds.publish import Content

# The most records that are listed, and the most characters of each reason.
MOST_LISTED: Final = 1000
_REASON_CHARACTERS: Final = 300


class LeftOut:
    """The records that were left out: how many, and a list of the first ones.

    Args:
        count: How many.
        records: Of the first ones the index, the reason, and the file if it is known.
    """

    def __init__(self, count: int = 0, records: list[dict[str, Any]] | None = None) -> None:
        self.count = count
        self.records = [] if records is None else records

    @staticmethod
    def of(facts: Any) -> "LeftOut":
        """Return what `to_json` has returned; nothing for anything else."""
        if not isinstance(facts, dict) or type(facts.get("count")) is not int:
            return LeftOut()
        records = facts.get("records")
        return LeftOut(facts["count"], list(records) if isinstance(records, list) else [])

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON."""
        return {"count": self.count, "records": self.records}

    def note(self, index: int, reason: str, file: str | None) -> None:
        """Add a record."""
        entry = {"index": index, "reason": f"{reason:.{_REASON_CHARACTERS}}"}
        self.add(LeftOut(1, [entry if file is None else entry | {"file": file}]))

    def add(self, others: "LeftOut") -> None:
        """Add those of another list."""
        self.count += others.count
        self.records += others.records[: MOST_LISTED - len(self.records)]


def all_left_out(written: Sequence[WrittenParts | None]) -> LeftOut:
    """Return the records that all partitions of a build have left out."""
    every = LeftOut()
    for one in written:
        every.add(LeftOut.of(None if one is None else one.facts.get(LEFT_OUT)))
    return every


def refuse_other_metadata(source: Source, known: dict[str, Any]) -> None:
    """Refuse a source whose metadata, such as the names of classes, differ from those of a base or a user.

    Raises:
        ConfigurationError: if they differ.
    """
    for name, value in source.metadata.items():
        if known.get(name, value) != value:
            raise ConfigurationError(
                f"metadata: {name!r} of these records is {value!r:.100}, but of those before or as given "
                f"{known[name]!r:.100}: let them be the same"
            )


def with_metadata(
    content: Content,
    given: dict[str, Any] | None,
    source: Source,
    key: DatasetKey,
    left_out: LeftOut | None = None,
) -> Content:
    """Return the content with the metadata of this build, and what a copy has of its source.

    A copy has all records of a version, unchanged and in order: it begins with the versions that this one
    begins with, so it is split as this one, and it has its metadata if the user gives none.

    Args:
        content: The content, perhaps with the metadata of a base.
        given: The user's metadata; None: those of the base, or of the version that is copied.
        source: The source, which may have `metadata`, such as the names of classes.
        key: The version.
        left_out: The records that this build left out.

    Raises:
        CacheFormatError: if the records are not those that a version had which is copied.
    """
    is_copy = content.run.records == source.length and not (left_out and left_out.count)
    if is_copy:  # else there are a base's records, too, or not all of the source
        content = content.with_aliases(source.fingerprints)
        if isinstance(source, RecordsSource):
            kept = content.metadata or source.metadata_of_copy
            content = replace(content, earlier=content.earlier or source.earlier, metadata=kept)
        if source.content_fingerprint not in (None, content.fingerprint):
            raise CacheFormatError(
                f"{key}: the records that were read do not have the fingerprint of the version that they "
                "come from: bytes were changed since it was built. Find out which by verify, and restore "
                "them, or build that version again"
            )
    if content.decoded is None:
        content = replace(content, decoded=source.decoded)
    base = content.metadata
    metadata = {**source.metadata, **(base if given is None else given)}
    listed = LeftOut.of(base.get(LEFT_OUT))
    if left_out is not None:
        versioned = [{**entry, "version": key.version} for entry in left_out.records]
        listed.add(LeftOut(left_out.count, versioned))
    if listed.count:
        metadata[LEFT_OUT] = listed.to_json() | {"records": []}
        room = MAX_METADATA_BYTES - len(json.dumps(metadata))
        sizes = itertools.accumulate(len(json.dumps(entry)) + 2 for entry in listed.records)
        fit = sum(size <= room for size in sizes)
        metadata[LEFT_OUT]["records"] = listed.records[:fit]
    return content if metadata == base else replace(content, metadata=metadata)
