"""List files of this machine, below a folder or named by a pattern.

A folder that can't be listed ends the list with an error: a file left out silently is missing data.
"""

import contextlib
import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from yogadl._core.printable import masked
from yogadl.errors import ConfigurationError, StorageError

_WILD: Final = re.compile(r"[*?\[]")
_ANY_FOLDERS: Final = "**"
_ABSENT: Final = (FileNotFoundError, NotADirectoryError)


def is_wild(path: str) -> bool:
    """Return whether a path has a character that a pattern gives a meaning."""
    return _WILD.search(path) is not None


def before_wild(path: str) -> str:
    """Return a path up to its first character that a pattern gives a meaning."""
    return _WILD.split(path, maxsplit=1)[0]


def refuse_impossible(path: str) -> None:
    """Refuse a path that no file can have, about which the functions of the system raise errors of their own.

    Raises:
        ConfigurationError: if it has a zero byte, or is no UTF-8.
    """
    try:
        is_possible = b"\0" not in path.encode()
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise ConfigurationError(
            f"{masked(path, quoted=True)} has characters that no path may have: correct it, or rename what "
            "has it"
        )


class Pattern:
    """Segments of paths: ``*``, ``?`` and ``[...]`` match in one, ``**`` is any number of folders.

    A path is compared segment by segment; the state is how many segments of the pattern may be used up. Only
    a segment that begins with a dot matches a name that does, as in a shell.

    Args:
        segments: The segments; as the last one, ``**`` stands for all files.
    """

    def __init__(self, segments: Sequence[str]) -> None:
        self._segments = segments
        self._matchers: list[Callable[[str], object]] = [
            re.compile(fnmatch.translate(one)).match if is_wild(one) else one.__eq__ for one in segments
        ]
        self._leaves_out_hidden = [is_wild(one) and not one.startswith(".") for one in segments]
        self.start = self._opened({0})

    def after(self, states: frozenset[int], name: str) -> frozenset[int]:
        """Return the states after one more segment of a path, or none if no longer path matches."""
        found: set[int] = set()
        for number in states:
            if number == len(self._segments):
                continue
            if name.startswith(".") and self._leaves_out_hidden[number]:
                continue
            if self._segments[number] == _ANY_FOLDERS:
                found.add(number)
                if number + 1 == len(self._segments):
                    found.add(number + 1)
            elif self._matchers[number](name):
                found.add(number + 1)
        return self._opened(found)

    def is_whole(self, states: frozenset[int]) -> bool:
        """Return whether a path that ends in these states matches."""
        return len(self._segments) in states

    def goes_on(self, states: frozenset[int]) -> bool:
        """Return whether a longer path can match."""
        return min(states) < len(self._segments)

    def names(self, states: frozenset[int]) -> list[str] | None:
        """Return the only names that can come next, None if there may be others."""
        following = [self._segments[number] for number in states if number < len(self._segments)]
        return None if any(map(is_wild, following)) else sorted(set(following))

    def matches(self, path: str) -> bool:
        """Return whether a path matches, whose segments are separated by slashes."""
        states = self.start
        for name in path.split("/"):
            states = self.after(states, name)
            if not states:
                return False
        return self.is_whole(states)

    def _opened(self, states: set[int]) -> frozenset[int]:
        """Return the states with those behind a ``**`` that matches no folder."""
        for number in sorted(states):
            while number + 1 < len(self._segments) and self._segments[number] == _ANY_FOLDERS:
                number += 1
                states.add(number)
        return frozenset(states)


EVERYTHING: Final = Pattern((_ANY_FOLDERS,))


class FoundPath(NamedTuple):
    """What was found.

    Args:
        path: Its path.
        is_folder: Whether it is a folder, or a link to one. Else it is a file, a pipe, or a link to nothing.
        is_hidden: Whether it is left out, with all below it, because its name begins with a dot.
        is_dead: Whether it is a link to nothing, which may have been a folder with files that match.
    """

    path: str
    is_folder: bool
    is_hidden: bool = False
    is_dead: bool = False

    def refuse_if_dead(self) -> None:
        """Refuse a link to nothing: without it, files of a folder might be missing without a word.

        Raises:
            ConfigurationError: if it is one.
        """
        if self.is_dead:
            raise ConfigurationError(
                f"{self.path} is a link to what is not there: restore that, or remove the link"
            )


def entries_below(top: str, pattern: Pattern = EVERYTHING) -> Iterator[FoundPath]:
    """Yield what in a folder matches a pattern, and the hidden files and folders that were left out.

    Links are followed.

    Raises:
        ConfigurationError: if a link leads to a folder that it lies in, or a folder is met a second time: its
            files would come twice, and links that lead to each other would have no end.
        StorageError: if a folder can't be listed, or is not there, or a path can't be looked at.
    """
    met = _Met(top)
    waiting = [(top, pattern.start)]
    while waiting:
        folder, states = waiting.pop()
        met.enter(folder)
        below = []
        for name, is_there in _listed(folder, pattern.names(states)):
            path, now = os.path.join(folder, name), pattern.after(states, name)
            if not now:
                if name.startswith("."):
                    yield FoundPath(path, False, is_hidden=True)
                continue
            if is_there is None:  # a link, perhaps
                status = look_at(path)
                if status is None:
                    yield FoundPath(path, False, is_dead=True)
                    continue
                is_there = stat.S_ISDIR(status.st_mode)
            if pattern.is_whole(now):
                yield FoundPath(path, is_there)
            if is_there and pattern.goes_on(now):
                below.append((path, now))
        waiting += reversed(below)


class _Met:
    """The folders that were entered, by device and inode, and those that the first one lies in."""

    def __init__(self, top: str) -> None:
        self._paths: dict[object, str] = {}
        self._above: set[object] = set()
        folder = os.path.realpath(top)
        while (above := os.path.dirname(folder)) != folder:
            folder = above
            with contextlib.suppress(OSError):  # folders above are not listed
                found = _identity(os.stat(folder), folder)
                self._paths[found] = folder
                self._above.add(found)

    def enter(self, folder: str) -> None:
        """Note a folder.

        Raises:
            ConfigurationError: if it was met before.
        """
        try:
            status = os.stat(folder)
        except OSError as error:
            raise unlistable(error, folder) from error
        identity = _identity(status, folder)
        before = self._paths.setdefault(identity, folder)
        if before is folder:
            return
        if identity in self._above or folder.startswith(f"{before.rstrip('/')}/"):
            raise ConfigurationError(
                f"{folder} is a link to {before}, in which it lies: following it would not end. Remove the "
                "link; or, to adopt files, name them by patterns that it does not match"
            )
        raise ConfigurationError(
            f"{folder} and {before} are the same folder, so its files would come twice: remove the link; "
            "or, to adopt files, name them by patterns that match only one of the two"
        )


def _identity(status: os.stat_result, folder: str) -> object:
    """Return what two paths of the same folder have in common."""
    # Some file systems have no inodes.
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(folder)


def _listed(folder: str, names: Sequence[str] | None) -> Iterator[tuple[str, bool | None]]:
    """Yield the names in a folder, sorted, and whether each is a folder, or None if not known yet.

    Args:
        folder: The folder.
        names: The only names that matter, for which the folder need not be listed; None for all.
    """
    if names is None:
        try:
            with os.scandir(folder) as entries:
                yield from sorted(
                    (each.name, None if each.is_symlink() else each.is_dir()) for each in entries
                )
        except OSError as error:
            raise unlistable(error, folder) from error
    else:
        for name in names:
            if look_at(os.path.join(folder, name), os.lstat) is not None:
                yield name, None


def is_folder(path: str) -> bool:
    """Return whether there is such a folder, or a link to one.

    Raises:
        StorageError: if nobody can tell.
    """
    status = look_at(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def look_at(path: str, look: Callable[[str], os.stat_result] = os.stat) -> os.stat_result | None:
    """Return the status of a path, None if there is nothing."""
    try:
        return look(path)
    except _ABSENT:
        return None
    except OSError as error:
        raise unlistable(error, path) from error


def unlistable(error: OSError, path: str) -> StorageError:
    """Return the error of a path at which files are looked for and can't be."""
    return StorageError(error.errno, f"can't look for files: {error.strerror}", path)
