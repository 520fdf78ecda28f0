"""Keep caches in a folder that several machines share, such as one on NFS."""

import contextlib
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from yogadl.storage._buckets.local import LocalBucket
from yogadl.storage._folder import Folder
from yogadl.storage._remote import BucketRoot
from yogadl.storage._reserve import given_up_if_full, make_reserve
from yogadl.storage._root import MAX_READ_BYTES, Root


class SharedRoot(BucketRoot, Root):
    """A folder that several machines share, such as one on NFS.

    Small files are read and written as in a bucket, which minds what other machines' caches remember; parts
    are made in the folder and renamed.
    """

    def __init__(self, folder: Folder) -> None:
        super().__init__(LocalBucket(folder.root))
        self._folder = folder

    def __reduce__(self) -> Any:
        return SharedRoot, (self._folder,)

    @property
    def location(self) -> str:
        return self._folder.location

    def where(self, name: str) -> str:
        return self._folder.where(name)

    def view(self, name: str, most_bytes: int = MAX_READ_BYTES) -> bytes | None:
        return self._folder.view(name, most_bytes)

    def adopt(self, files: Mapping[str, Path]) -> None:
        self._folder.adopt(files)

    def folders_with(self, *names: str, most_files: int | None = None) -> tuple[list[str], bool]:
        return self._folder.folders_with(*names, most_files=most_files)

    def remove_folder(self, name: str) -> None:
        self._folder.remove_folder(name)

    def with_room(self, dry_run: bool = False) -> AbstractContextManager[None]:
        """Give up some of the reserve where the disk is full, to free which takes room, too."""
        return given_up_if_full(self._folder, dry_run=dry_run)

    @contextlib.contextmanager
    def workplace(self, below: str) -> Iterator[Path]:
        """Give a new folder, which is gone afterwards: a builder that lost its lease may still be at work."""
        make_reserve(self._folder)
        name = f"{below}/{secrets.token_hex(8)}"
        try:
            with self._folder.workplace(name) as path:
                yield path
        finally:
            shutil.rmtree(self._folder.path(name), ignore_errors=True)

    def local(self, name: str) -> AbstractContextManager[Path]:
        return self._folder.local(name)
