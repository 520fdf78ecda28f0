"""Find, list and read foreign files: local files, and objects of the buckets that a storage may read."""

import itertools
import math
import os
import re
import stat
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from yogadl._core.frozen import frozen
from yogadl._core.printable import masked
from yogadl._foreign.file_reader import FileReader
from yogadl._format.files import File, FileId, Files, ForeignFile, read_at
from yogadl.errors import ConfigurationError, StorageError
from yogadl.storage._files.folder import folder_at
from yogadl.storage._files.listing import EVERYTHING, Pattern, before_wild, entries_below, is_folder, is_wild
from yogadl.storage._objects.bucket import Bucket, ReplacedError

# The bytes that are fetched at once, of files that are read whole and of others: from a disk, from a bucket.
# Smaller windows of a disk would be faster to read, but each window makes a batch (benchmarks/adopt.py).
_LOCAL_WINDOW_BYTES: Final = 8 * 2**20
_FAR_WINDOW_BYTES: Final = 4 * 2**20
_LOCAL_HEADER_BYTES: Final = 16 * 2**10
_FAR_HEADER_BYTES: Final = 2**20
_UNREAD_BATCH_BYTES: Final = 2**30
_BRACES: Final = re.compile(r"\{([0-9]{1,18})\.\.([0-9]{1,18})\}")
_MOST_EXPANDED: Final = 10**6


@frozen
class Place:
    """Where a file lies that is an object elsewhere, not one of the cache's own.

    Args:
        bucket: Its bucket.
        name: The name of the object there.
        file: The file.
    """

    bucket: Bucket
    name: str
    file: File

    def fetch(self, position: int, length: int) -> bytes | memoryview:
        """Return bytes of the object, if it is still this file.

        Raises:
            CacheFormatError: if it was replaced or removed.
        """
        file, stop = self.file, position + length
        try:
            piece = self.bucket.fetch_range(self.name, position, stop, tag=file.tag)
        except ReplacedError as error:
            raise file.changed("it was replaced") from error
        if piece is None:
            raise file.changed("it is missing")
        found = piece.object.tag, piece.object.size_bytes, len(piece.content)
        if found != (file.tag, file.size_bytes, length):
            raise file.changed("it was replaced")
        return piece.content


# Where the objects lie that are not the cache's own, by the number of the file.
Places = Mapping[FileId, Place]


@frozen
class Permitted:
    """The places that a storage may read besides its own: where its foreign files may lie. Picklable.

    Args:
        has_local: Whether they may be files of this machine.
        buckets: The prefixes of permitted URLs, each with a bucket whose objects they name.
    """

    has_local: bool
    buckets: tuple[tuple[str, Bucket], ...] = ()

    def place(self, address: str) -> tuple[Bucket, str] | None:
        """Return bucket and name of an object; ``None`` for a file of this machine.

        Raises:
            ConfigurationError: if this storage may not read there.
        """
        if "://" not in address:
            if self.has_local:
                return None
            raise ConfigurationError(
                f"{masked(address)} is a file of a machine, which a version in a bucket may not name: use a "
                "storage in a folder, or give the URL of an object"
            )
        for prefix, bucket in self.buckets:
            if address.startswith(f"{prefix}/"):
                self._require_inside(address)
                return bucket, address[len(prefix) + 1 :]
        scheme = address.partition("://")[0]
        if scheme == "file" and self.has_local:
            raise ConfigurationError(f"{masked(address)}: give the path of a local file, without file://")
        if scheme not in ("s3", "gs", "file"):
            raise ConfigurationError(
                f"{masked(address)}: files of {masked(scheme)}:// can't be adopted: copy them to this "
                "machine, or to a bucket of S3 or GCS"
            )
        raise ConfigurationError(
            f"{masked(address)} lies outside of what this storage may read: open it with "
            f"open_storage(..., foreign={masked({address.rpartition('/')[0]: {}})}), with the options of "
            "that bucket in the inner dict; the command takes --foreign URL"
        )

    def places(self, files: Files) -> Places:
        """Return where those of these files lie that have the URL of an object.

        Raises:
            ConfigurationError: if this storage may not read where one lies.
        """
        numbered = ((number, files[number]) for number in files.addressed)
        found = ((number, file, self.place(file.address)) for number, file in numbered)
        return {number: Place(*place, file) for number, file, place in found if place is not None}

    def _require_inside(self, address: str) -> None:
        """Refuse a file whose path has a link that leads out of what this storage may read."""
        path = folder_at(address)
        if path is not None and not self.permits(found := Path(os.path.realpath(path))):
            raise ConfigurationError(
                f"{masked(address)} is a link to {masked(str(found))}, outside of what this storage may "
                f"read: if that is meant, add file://{masked(str(found.parent))} to foreign= of open_storage"
            )

    def permits(self, path: Path) -> bool:
        """Return whether a ``file://`` prefix of this storage has a path of this machine, without links."""
        folders = (folder_at(prefix) for prefix, _ in self.buckets)
        return any(path.is_relative_to(os.path.realpath(folder)) for folder in folders if folder is not None)

    def reader(self, file: ForeignFile, *, is_read: bool) -> FileReader:
        """Return a reader of a file, which raises an error if the file is not the one that is meant.

        Args:
            file: The file.
            is_read: Whether most of its bytes are going to be read.
        """
        place = self.place(file.address)
        fetch: Callable[[int, int], bytes | memoryview]
        if place is None:
            fetch, sizes = _LocalFile(file), (_LOCAL_WINDOW_BYTES, _LOCAL_HEADER_BYTES)
        else:
            fetch, sizes = Place(*place, file).fetch, (_FAR_WINDOW_BYTES, _FAR_HEADER_BYTES)
        window_bytes, batch_bytes = (sizes[0], None) if is_read else (sizes[1], _UNREAD_BATCH_BYTES)
        sibling = partial(self._sibling, file)
        return FileReader(file, fetch, window_bytes=window_bytes, sibling=sibling, batch_bytes=batch_bytes)

    def _sibling(self, file: ForeignFile, name: str) -> FileReader | None:
        found = self.look_up(f"{file.address.rpartition('/')[0]}/{name}")
        return None if found is None else self.reader(found, is_read=True)

    def look_up(self, address: str) -> ForeignFile | None:
        """Return a file as it is now, or ``None`` if there is none."""
        place = self.place(address)
        if place is None:
            return _local_file(address)
        bucket, name = place
        found = bucket.head(name)
        return None if found is None else ForeignFile(address, found.size_bytes, found.tag)

    def check(self, file: ForeignFile) -> None:
        """Make sure that a file is as it was.

        Raises:
            CacheFormatError: if it was changed or removed.
        """
        if self.place(file.address) is None:
            os.close(file.open(file.address))
            return
        now = self.look_up(file.address)
        if now != file:
            raise file.changed("it is missing" if now is None else "it was changed since")

    def listed(
        self, pattern: str, matches: Callable[[str], bool], left_out: list[str] | None = None
    ) -> list[ForeignFile]:
        """Return the files that a path, a folder or a pattern names, in the order of their addresses.

        Args:
            pattern: A path or URL; a folder stands for its files of the format that are not hidden; ``*``,
                ``?`` and ``[...]`` match in one segment, ``**`` any number of them, ``{000..099}`` counts.
            matches: Whether a file of this name is of the format.
            left_out: To which the addresses are added of what in a folder is hidden, or not of the format.

        Raises:
            ConfigurationError: if there is no such file.
            StorageError: if a folder can't be listed.
        """
        found: list[ForeignFile] = []
        for one in _expanded(pattern):
            others: list[str] = []
            some = list(self._listed(one, matches, others))
            if not some and others:
                raise ConfigurationError(
                    f"there is no file of the format in {masked(one)}, only {len(others)} that are "
                    f"hidden or end otherwise, such as {min(others)!r:.200}: name those by a pattern"
                )
            if not some:
                raise ConfigurationError(f"there is no file {masked(one)}: check the path")
            if left_out is not None:
                left_out += others
            for file in some:
                if not file.is_sound:
                    raise ConfigurationError(
                        f"{masked(file.address, quoted=True)} has a name that no version can keep: with "
                        "characters that can't be printed, a '.' or '..' as a segment, or too long; rename it"
                    )
            found += some
        return found

    def _listed(
        self, pattern: str, matches: Callable[[str], bool], left_out: list[str]
    ) -> Iterator[ForeignFile]:
        is_local = "://" not in pattern
        has_wild = is_wild(pattern)
        names_folder = pattern.endswith("/") or any(pattern == prefix for prefix, _ in self.buckets)
        # A name may have such characters. In a bucket, each question costs a request.
        is_name = not has_wild or "[" in pattern or is_local
        if is_name and not names_folder and (whole := self._whole(pattern)) is not None:
            yield whole
            return
        if is_local:
            yield from _listed_locally(pattern, matches, left_out)
            return
        above, segments = _split(pattern, lambda path: False)
        place = self.place(f"{above}/")
        assert place is not None
        bucket, below = place[0], place[1].rstrip("/")
        prefix = above[: len(above) - len(below)] if below else f"{above}/"
        expected = Pattern(segments) if segments else EVERYTHING
        differs: bool | None = None
        for found in bucket.list(f"{below}/" if below else ""):
            address = f"{prefix}{found.name}"
            if not expected.matches(address[len(above) + 1 :]) or not (segments or matches(address)):
                if not segments:
                    left_out.append(address)
                continue
            if differs is None:  # some stores list other tags than they send
                first = bucket.head(found.name)
                differs = first is None or first.tag != found.tag
            tag = found.tag
            if differs and (again := bucket.head(found.name)) is not None:
                tag = again.tag
            yield ForeignFile(address, found.size_bytes, tag)

    def _whole(self, address: str) -> ForeignFile | None:
        """Return the file of that name, if it is one."""
        return self.look_up(address if "://" in address else os.path.realpath(os.path.expanduser(address)))


def local_place(pattern: str) -> Path | None:
    """Return the file or folder of this machine, without links, that a path, pattern or URL names.

    ``None`` for what lies elsewhere. For a pattern it is the folder below which it can match.
    """
    folder = folder_at(before_wild(pattern) if "://" in pattern else os.path.abspath(pattern))
    if folder is None:
        return None
    path = os.fspath(folder)
    whole = before_wild(path)
    has_wild = len(whole) < len(path) or is_wild(pattern)
    return Path(os.path.realpath(whole.rpartition("/")[0] or "/" if has_wild else path))


def wild_segments(pattern: str) -> list[str]:
    """Return the segments of a pattern from the first one on that matches several names; none of a path."""
    if "://" in pattern:
        return _split(pattern, lambda path: False)[1]
    return _split(pattern, os.path.lexists)[1]


def _split(pattern: str, is_there: Callable[[str], bool]) -> tuple[str, list[str]]:
    """Return the folder in which a pattern begins to match, and its segments from there on; none of a folder.

    Args:
        pattern: The pattern.
        is_there: Whether there is a folder of that name, whatever its characters.
    """
    segments = pattern.rstrip("/").split("/")
    for number, segment in enumerate(segments):
        if is_wild(segment) and not is_there("/".join(segments[: number + 1])):
            return "/".join(segments[:number]), segments[number:]
    return "/".join(segments), []


def _listed_locally(
    pattern: str, matches: Callable[[str], bool], left_out: list[str]
) -> Iterator[ForeignFile]:
    folder, segments = _split(os.path.abspath(os.path.expanduser(pattern)), is_folder)
    if not is_folder(folder or "/"):
        return
    paths = []
    for entry in entries_below(folder or "/", Pattern(segments) if segments else EVERYTHING):
        entry.refuse_if_dead()
        if entry.is_folder:
            continue
        if not entry.is_hidden and (segments or matches(entry.path)):
            paths.append(entry.path)
        elif not segments:
            left_out.append(entry.path)
    for path in sorted(paths):
        found = _local_file(os.path.realpath(path))
        if found is not None:
            yield found


def _local_file(path: str) -> ForeignFile | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(error.errno, f"can't read a foreign file: {error.strerror}", path) from error
    if not stat.S_ISREG(status.st_mode):
        return None
    return ForeignFile(path, status.st_size, str(status.st_mtime_ns))


class _LocalFile:
    """Reads a local file, which is opened at the first read, and stays open as long as this object lives.

    It is read, not mapped: somebody may cut it meanwhile, which would end a process that maps it.
    """

    def __init__(self, file: ForeignFile) -> None:
        self._file = file
        self._descriptor: int | None = None

    def __call__(self, position: int, length: int) -> bytes | memoryview:
        """Return bytes of the file.

        Raises:
            CacheFormatError: if the file was changed since.
        """
        file = self._file
        if self._descriptor is None:
            self._descriptor = file.open(file.address)
            weakref.finalize(self, os.close, self._descriptor)
        try:
            content = read_at(self._descriptor, position, length)
            status = os.fstat(self._descriptor)  # after the read, so that no change goes unnoticed
        except OSError as error:
            problem = f"can't read a foreign file: {error.strerror}"
            raise StorageError(error.errno, problem, file.address) from error
        if not file.is_unchanged(status) or len(content) != length:
            raise file.changed("it was written since")
        return content


def _expanded(pattern: str) -> Iterator[str]:
    """Yield the patterns that one with ``{000..099}`` stands for; a local file of that very name is one."""
    if "://" not in pattern and os.path.lexists(os.path.expanduser(pattern)):
        yield pattern
        return
    matches = list(_BRACES.finditer(pattern))
    counts = [range(int(match[1]), int(match[2]) + 1) for match in matches]
    for match, count in zip(matches, counts, strict=True):
        if not count:
            raise ConfigurationError(f"{match[0]} in {masked(pattern, quoted=True)} counts no files")
    if math.prod(map(len, counts)) > _MOST_EXPANDED:
        raise ConfigurationError(f"{masked(pattern, quoted=True)} counts more than {_MOST_EXPANDED:,} files")
    for numbers in itertools.product(*counts):
        text, end = "", 0
        for match, number in zip(matches, numbers, strict=True):
            text += f"{pattern[end : match.start()]}{number:0{len(match[1])}d}"
            end = match.end()
        yield text + pattern[end:]
