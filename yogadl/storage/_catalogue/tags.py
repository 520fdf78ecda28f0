"""Keep tags: names for versions, which can be moved to other versions.

Each move of a tag is a small numbered file of its own, written only if the name is free. The file with the
highest number contains the version that the tag names now; the others are its history. Two processes
that move a tag at the same time thus both succeed, one after the other, without a lock.
"""

import errno
import json
import logging
import re
from collections.abc import Iterator
from typing import Any, Final

from yogadl._core.frozen import frozen, parse_json
from yogadl._core.key import DatasetKey, check_name, is_version, new_key
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError
from yogadl.storage import _names
from yogadl.storage._files.root import Root

_log = logging.getLogger("yogadl")

# The largest size of a move's file: no version's name needs more, however it is escaped.
MAX_TAG_BYTES: Final = 2**13
_FORMAT: Final = 1
_MOST_REFUSALS: Final = 20  # attempts to write one number, each after listing the files again


@frozen
class TagMove:
    """One move of a tag.

    Args:
        tag: The tag.
        version: The version that it named from then on, or ``None`` if the tag was removed.
        moved: The time, in seconds since 1970.
    """

    tag: str
    version: str | None
    moved: float

    def to_bytes(self) -> bytes:
        """Return the content of the move's file."""
        return json.dumps({"format": _FORMAT, "version": self.version, "moved": self.moved}).encode()


def check_tag(dataset_id: str, tag: str) -> None:
    """Refuse a name that a tag can't have.

    Raises:
        ConfigurationError: if a version can't have that name either, or it has an ``@``.
    """
    check_name("tag", tag)
    if "@" in tag:
        raise ConfigurationError(
            f"the tag {tag!r:.100} has an '@', which separates a dataset's id from a tag (ID@TAG): "
            "leave it out"
        )
    new_key(dataset_id, tag)


def move_tag(root: Root, dataset_id: str, move: TagMove) -> None:
    """Write a move of a tag as its newest one.

    Raises:
        StorageError: if the same number is refused again and again.
    """
    refused_numbers: list[int] = []
    while refused_numbers.count(max(refused_numbers, default=0)) < _MOST_REFUSALS:
        newest = max(_numbers(root, dataset_id, move.tag), default=0)
        if newest >= _names.MAX_TERM_OR_MOVE:
            where = root.where(_names.tag(dataset_id, move.tag, newest))
            raise CacheFormatError(
                f"{where} has the highest possible number, which yogadl never reaches: another program "
                "wrote it. Delete it, then tag again"
            )
        name = _names.tag(dataset_id, move.tag, newest + 1)
        if root.write_if_absent(name, move.to_bytes()):
            return
        # If another process has written this number first, the next listing has a higher one.
        refused_numbers.append(newest + 1)
    raise StorageError(
        errno.EEXIST,
        f"{root.where(name)} can't be written: something else has that name, although no list of files shows "
        "it; remove it, then tag again",
    )


def version_of(root: Root, key: DatasetKey) -> str | None:
    """Return the version that the tag `key.version` names, ``None`` if there is no such tag.

    Raises:
        CacheFormatError: if the file of its last move is damaged.
    """
    numbers = _numbers(root, key.id, key.version)
    return _read(root, key.id, key.version, max(numbers)).version if numbers else None


def current_tags(root: Root, dataset_id: str) -> dict[str, str]:
    """Return the version that each tag of a dataset names.

    Raises:
        CacheFormatError: if the file of a last move is damaged.
    """
    versions = {}
    for tag, numbers in _tags(root, dataset_id):
        version = _read(root, dataset_id, tag, max(numbers)).version
        if version is not None:
            versions[tag] = version
    return versions


def moves_of_tags(root: Root, dataset_id: str) -> list[TagMove]:
    """Return all moves of all tags of a dataset, the oldest first; damaged moves are logged as warnings."""
    moves: list[tuple[float, TagMove]] = []
    for tag, numbers in _tags(root, dataset_id):
        when = 0.0
        for number in sorted(numbers):
            try:
                move = _read(root, dataset_id, tag, number)
            except CacheFormatError as error:
                _log.warning("yogadl: skipped a damaged move of a tag: %s", error)
                continue
            when = max(when, move.moved)  # a clock may have been set back; numbers only grow
            moves.append((when, move))
    return [move for _, move in sorted(moves, key=lambda each: each[0])]


def refuse_tag(root: Root, key: DatasetKey) -> None:
    """Refuse to build, replace or delete a version whose name is a tag.

    Raises:
        ConfigurationError: if there is a tag of that name.
    """
    if not _numbers(root, key.id, key.version):
        return
    version = version_of(root, key)
    if version is not None:
        raise ConfigurationError(
            f"{key.version!r} is a tag of {key.id!r}, for its version {version!r}: only versions can be "
            "built or deleted; name a version, or first remove the tag (untag)"
        )


def refuse_tagged(root: Root, key: DatasetKey) -> None:
    """Refuse to delete a version that a tag names.

    Raises:
        ConfigurationError: if a tag names it.
    """
    tags = sorted(tag for tag, version in current_tags(root, key.id).items() if version == key.version)
    if tags:
        raise ConfigurationError(
            f"{key} has the tags {tags}: move them to another version (tag), or remove them (untag), then "
            "delete it"
        )


def _numbers(root: Root, dataset_id: str, tag: str) -> list[int]:
    """Return the numbers of a tag's moves."""
    below = f"{_names.tags(dataset_id)}/{tag}/"
    return [number for name in root.names(below[:-1]) if (number := _number(name[len(below) :]))]


def _tags(root: Root, dataset_id: str) -> Iterator[tuple[str, list[int]]]:
    """Yield each tag that was ever set, and the numbers of its moves."""
    below = _names.tags(dataset_id)
    found: dict[str, list[int]] = {}
    for name in root.names(below):
        tag, _, last = name[len(below) + 1 :].rpartition("/")
        number = _number(last)
        if number and is_version(tag):
            found.setdefault(tag, []).append(number)
    yield from sorted(found.items())


def _number(name: str) -> int:
    """Return the number in the name of a move's file; 0 if the name has another form."""
    return int(name[:10]) if re.fullmatch(rf"[0-9]{{10}}{re.escape(_names.TAG_SUFFIX)}", name) else 0


def _read(root: Root, dataset_id: str, tag: str, number: int) -> TagMove:
    name = _names.tag(dataset_id, tag, number)
    content = root.read(name, MAX_TAG_BYTES)
    try:
        document: Any = parse_json(content or b"")
        version, moved = document["version"], document["moved"]
        is_newer = document["format"] != _FORMAT
    except (ValueError, KeyError, TypeError):
        is_newer, version, moved = False, "", None
    if is_newer:
        raise CacheFormatError(
            f"{root.where(name)} has a newer format than this yogadl can read: upgrade yogadl"
        )
    is_time = type(moved) in (int, float) and abs(moved) < 2**63
    if not is_time or not (version is None or (isinstance(version, str) and is_version(version))):
        raise CacheFormatError(
            f"{root.where(name)} is damaged, so the tag {tag!r} names nothing: tag a version again"
        )
    return TagMove(tag, version, float(moved))
