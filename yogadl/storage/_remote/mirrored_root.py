"""Keep the files of a storage in a bucket; parts that are built here stay in the mirror, too."""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from yogadl.errors import CacheFormatError
from yogadl.storage._files.bucket_root import BucketRoot
from yogadl.storage._files.folder import translated
from yogadl.storage._files.locks import scratch_folder
from yogadl.storage._objects.bucket import Bucket
from yogadl.storage._remote.download import upload
from yogadl.storage._remote.mirror import Mirror


class MirroredRoot(BucketRoot):
    """A bucket whose parts are written, and kept, in this machine's mirror. Implements `Root`."""

    def __init__(self, bucket: Bucket, mirror: Mirror) -> None:
        super().__init__(bucket)
        self._mirror = mirror

    def __reduce__(self) -> Any:
        return MirroredRoot, (self._bucket, self._mirror)

    @property
    def bucket(self) -> Bucket:
        """The bucket: parts are uploaded to it; the mirror keeps those that it has room for."""
        return self._bucket

    def adopt(self, files: Mapping[str, Path]) -> None:
        """Upload finished files, in this order; keep them in the mirror if there is room."""
        for name, path in files.items():
            upload(self._bucket, name, path)
        self._mirror.adopt(files)
        for path in files.values():
            path.unlink()

    def with_room(self, dry_run: bool = False) -> AbstractContextManager[None]:
        """Remove the files of killed builds from the mirror; a bucket itself needs no room."""
        if not dry_run:
            self._mirror.sweep()
        return contextlib.nullcontext()

    def make_room(self, size_bytes: int) -> None:
        self._mirror.make_room(size_bytes)

    @contextlib.contextmanager
    def workplace(self, below: str) -> Iterator[Path]:
        with self._mirror.building(), scratch_folder(self._mirror.scratch()) as folder:
            yield folder

    @contextlib.contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """Give the path of a new copy of an object from the bucket, even if the mirror has one."""
        with scratch_folder(self._mirror.scratch()) as folder:
            path = folder / "copy"
            with self._bucket.get(name) as body:
                if body is None:
                    raise CacheFormatError(f"{self.where(name)} is missing; build the dataset again")
                self.make_room(body.object.size_bytes)
                with translated(f"can't write {path}"), path.open("wb") as file:
                    file.writelines(body.chunks)
            yield path
