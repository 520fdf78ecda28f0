"""Read a folder of pictures, with a folder for each class, on a disk or in a bucket."""

import concurrent.futures
import copy
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from yogadl._core.forms import Forms
from yogadl._core.printable import masked
from yogadl._sources.sources import ItemsSource, Source
from yogadl.errors import ConfigurationError
from yogadl.storage._files.listing import entries_below, is_folder, look_at, refuse_impossible
from yogadl.storage._objects.bucket import Bucket, read
from yogadl.storage._remote.urls import open_bucket

_EXTENSIONS: Final = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_READERS: Final = 16  # threads that read from a bucket, where each picture takes a round trip
_SHOWN: Final = 5


class _ImageFile(NamedTuple):
    """A picture: its path below the folder, and what changes with its content."""

    path: str
    size_bytes: int
    stamp: str


class ImageFolder:
    """Pictures in one folder for each class, as a source of records: ``cats/1.jpg``, ``dogs/old/7.png``.

    A record is a dict: ``image``, the bytes of the file as they are; ``label``, the number of its class; and
    ``file``, its path below the folder. The records are sorted by class and then by path, the same on each
    machine. A version that is built of them has the names of the classes in its metadata.

    The names are those of the folders in the folder, sorted. Links are followed; a folder that they lead to
    twice is an error, and so is one that can't be listed. Names that begin with a dot, files beside the
    class folders and files with other extensions don't count. It has a length and random access, so builds
    can use workers, continue after a kill, and leave out files that can't be read.

    ::

        storage.submit(yogadl.image_folder("photos"), "photos", "1", workers=8)
        storage.fetch("photos", "1").metadata["classes"]  # ["cats", "dogs"]

    Args:
        location: The folder's path, or a URL: ``s3://bucket/prefix`` or ``gs://bucket/prefix``.
        extensions: The extensions of the files that count, such as ``[".jpg"]``, in any case; nine kinds of
            pictures count if not given.
        classes: The names of the classes in order, if the folder may lack some.
        options: Options of the bucket, as for `open_storage`.

    Raises:
        ConfigurationError: if there is no such folder, a class has no file, a name is not in `classes`, or
            links lead to the same folder twice.
        StorageError: if a folder can't be listed.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        extensions: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        text = os.fspath(location)
        refuse_impossible(text)
        self._bucket: Bucket | None = open_bucket(text, **options) if "://" in text else None
        if self._bucket is None and options:
            raise ConfigurationError(f"{', '.join(options)}: no option of a folder")
        self._root = text
        self.location = masked(text)
        endings = _checked_extensions(extensions)
        folders: set[str] = set()
        by_class: dict[str, list[_ImageFile]] = {}
        for file in _files_below(text, endings) if self._bucket is None else _objects_in(self._bucket):
            name, separator, rest = file.path.partition("/")
            if not separator or any(part.startswith(".") for part in file.path.split("/")):
                continue
            folders.add(name)
            if rest.lower().endswith(endings):
                _check_name(file.path)
                by_class.setdefault(name, []).append(file)
        self.classes = _checked_classes(self.location, folders, by_class, classes)
        found = [
            (label, file)
            for label, name in enumerate(self.classes)
            for file in sorted(by_class.get(name, []))
        ]
        self.files = [file.path for _, file in found]
        self._labels = [label for label, _ in found]
        described = [self.classes, [(label, *file) for label, file in found]]
        # By which a build that continues knows the same files.
        self.__yogadl_version__ = hashlib.sha256(json.dumps(described).encode()).hexdigest()

    def __repr__(self) -> str:
        return f"<yogadl.image_folder {self.location!r}: {len(self)} files of {len(self.classes)} classes>"

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> dict[str, Any]:
        path = self.files[number]
        if self._bucket is None:
            content = Path(self._root, path).read_bytes()
        else:
            found = read(self._bucket, path)
            if found is None:
                raise FileNotFoundError(f"{self.location}/{path} was deleted since the files were listed")
            content = found
        return {"image": content, "label": self._labels[number], "file": path}

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__" and vars(self).get("_bucket") is not None:
            return self._read_at_once
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _read_at_once(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(self.__getitem__, numbers))

    def as_source(self, forms: Forms) -> Source:
        """Return the source that builds read."""
        return _FolderSource(self, forms)

    def _part(self, first: int, end: int) -> "ImageFolder":
        """Return the same folder with some of the files."""
        part = copy.copy(self)
        part.files, part._labels = self.files[first:end], self._labels[first:end]
        return part


class _FolderSource(ItemsSource):
    """The form of an `ImageFolder` that builds read."""

    @property
    def origin(self) -> ImageFolder:
        """The folder, or the part of it that is read."""
        folder: ImageFolder = self._data
        return folder

    @property
    def metadata(self) -> dict[str, Any]:  # type: ignore[override]
        """The values that are kept with a version."""
        return {"classes": self.origin.classes}

    def _part(self, first: int, end: int) -> ImageFolder:
        return self.origin._part(first, end)


def _checked_extensions(extensions: Any) -> tuple[str, ...]:
    given = _EXTENSIONS if extensions is None else extensions
    found = tuple(str(extension).lower() for extension in ([given] if isinstance(given, str) else given))
    if not found or not all(extension.startswith(".") and len(extension) > 1 for extension in found):
        raise ConfigurationError(f'extensions are such as [".jpg", ".png"], not {extensions!r:.100}')
    return found


def _checked_classes(
    location: str, folders: set[str], by_class: dict[str, list[_ImageFile]], given: Any
) -> list[str]:
    """Return the names of the classes, in the order of their numbers."""
    if not by_class:
        raise ConfigurationError(
            f"{location} has no folder with pictures: let it be such that the folders in it are the classes"
        )
    names = sorted(folders) if given is None else list(given)
    if given is None:
        empty = [name for name in names if name not in by_class]
        if empty:
            raise ConfigurationError(
                f"{location}: there is no picture in {_some(empty)}: remove what is empty, or pass classes="
            )
    elif isinstance(given, str) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"classes are the names of folders in order, not {given!r:.100}")
    elif len(set(names)) < len(names) or not by_class.keys() <= set(names):
        others = sorted(by_class.keys() - set(names))
        raise ConfigurationError(
            f"{location} has {_some(others)}, which classes= lacks" if others else "classes= has a name twice"
        )
    return names


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"the name of {path!r} is no UTF-8: rename the file") from None


def _files_below(root: str, endings: tuple[str, ...]) -> Iterator[_ImageFile]:
    """Yield the classes, and all files below a folder, of those that are regular or links to such.

    Raises:
        ConfigurationError: if there is no such folder, or a link in it leads to a folder that is met before,
            or to nothing, unless it has one of these endings: an error reports a picture when it is read.
        StorageError: if a folder can't be listed.
    """
    if not is_folder(root):
        raise ConfigurationError(f"there is no folder {root!r}")
    for entry in entries_below(root):
        path = os.path.relpath(entry.path, root)
        if entry.is_folder and "/" not in path:
            yield _ImageFile(f"{path}/", 0, "")  # a class, perhaps without files
        if entry.is_folder or entry.is_hidden:
            continue
        status = look_at(entry.path)
        if status is None:
            if not path.lower().endswith(endings):
                entry.refuse_if_dead()
            yield _ImageFile(path, 0, "")
        elif stat.S_ISREG(status.st_mode):  # a pipe would be waited for
            yield _ImageFile(path, status.st_size, str(status.st_mtime_ns))


def _objects_in(bucket: Bucket) -> Iterator[_ImageFile]:
    return (_ImageFile(found.name, found.size_bytes, found.tag) for found in bucket.list())


image_folder = ImageFolder
