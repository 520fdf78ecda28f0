"""Make the backend of a storage in a folder: of one machine, or shared by several."""

import os
import stat
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yogadl._core.arguments import users_level
from yogadl._core.frozen import frozen
from yogadl._core.key import DatasetKey
from yogadl.errors import ConfigurationError
from yogadl.storage import _names
from yogadl.storage._catalogue.backend import Backend, BuildCoordinator, Lease
from yogadl.storage._catalogue.cached import (
    REMEDY,
    Opener,
    PartPaths,
    Published,
    RecordReader,
    can_map,
    checksums,
    new_reader,
    read_index,
    table_of_whole,
)
from yogadl.storage._catalogue.catalogue import Catalogue
from yogadl.storage._files.folder import Folder, network_file_system, storage_error
from yogadl.storage._files.root import Root

if TYPE_CHECKING:
    from yogadl._format.files import PartFiles
    from yogadl._format.rows import Parts
    from yogadl.storage._files.bucket_root import SharedRoot
    from yogadl.storage._files.permitted import Permitted
    from yogadl.storage._objects.bucket import Bucket
    from yogadl.storage._remote.planning import Planner


@frozen
class FolderOpener(Opener):
    """Open caches in place, in a folder. `here` returns ``None``: reading the folder is as quick.

    Args:
        root: Reads and writes the folder's small files.
        folder: The folder.
        mapped: Whether files may be mapped.
        buckets: See `Permitted`.
    """

    root: Root
    folder: Folder
    mapped: bool
    buckets: tuple[tuple[str, "Bucket"], ...] = ()

    @property
    def permitted(self) -> "Permitted":
        from yogadl.storage._files.permitted import Permitted  # only adopted versions need it

        return Permitted(True, self.buckets)

    def manifest(self, key: DatasetKey, digest: str | None = None) -> bytes | None:
        return self.root.read(_names.manifest(key))

    def reader(self, published: Published, *, check: bool = False) -> RecordReader:
        manifest, folder = published.manifest, self.folder
        table = table_of_whole(folder, manifest)
        files: PartFiles = PartPaths(folder, manifest.key.id, table)
        if not table.files.are_here:
            from yogadl.storage._remote.ranged_cache import files_with_addressed

            files = files_with_addressed(manifest, table, files, self.permitted.places(table.files))
        index_of = partial(read_index, folder, manifest.key, table)
        sums = checksums(manifest, table, index_of, REMEDY) if check else None
        return new_reader(manifest, table, files, sums, maps=self.mapped and can_map(folder))

    def planner(self, parts: "Parts") -> "Planner":
        from yogadl.storage._remote.planning import Planner  # only `plan` needs it

        return Planner(parts, self)

    def read(self, name: str, most_bytes: int) -> bytes | None:
        return self.root.read(name, most_bytes)

    def write(self, name: str, content: bytes) -> None:
        self.root.write(name, content)

    def map(self, name: str) -> Any:
        return self.folder.map(name) if self.mapped and can_map(self.folder) else self.root.view(name)

    def tagged_version(self, key: DatasetKey, *, is_away: bool = False) -> str | None:
        from yogadl.storage._catalogue.tags import version_of  # fetching by version does not need it

        return None if is_away else version_of(self.root, key)

    def note_opened(self, published: Published) -> None:
        """Do nothing."""


def local_backend(path: Path, mapped: bool = True, buckets: "tuple[tuple[str, Bucket], ...]" = ()) -> Backend:
    """Return the backend of a storage in a folder of this machine; warn about a network file system."""
    folder = _folder_at(path)
    _warn_of_network(folder.root)
    return Backend(
        Catalogue(folder, FolderOpener(folder, folder, mapped, buckets)), partial(_file_locks, folder)
    )


def _file_locks(folder: Folder) -> BuildCoordinator:
    from yogadl.storage._leases.locks import FileLocks  # only what builds or prunes needs it

    return FileLocks(folder)


def shared_backend(
    path: Path, policy: Lease, mapped: bool = True, buckets: "tuple[tuple[str, Bucket], ...]" = ()
) -> Backend:
    """Return the backend of a storage in a folder that several machines share; leases exclude builders.

    The file locks of a network file system may not hold between machines. Files lie as in a local folder, and
    each kind of storage can be opened as the other, as long as no process builds.
    """
    from yogadl.storage._files.bucket_root import SharedRoot

    folder = _folder_at(path)
    root = SharedRoot(folder)
    opener = FolderOpener(root, folder, mapped, buckets)
    return Backend(Catalogue(root, opener), partial(_leases, root, policy))


def _leases(root: "SharedRoot", policy: Lease) -> BuildCoordinator:
    from yogadl.storage._leases.lease import LeaseCoordinator, Leases

    return LeaseCoordinator(root, Leases(root, policy))


def user_cache_folder() -> Path:
    """Return this library's folder among the caches of the user, which may not exist.

    Raises:
        RuntimeError: if the user has no home folder.
    """
    caches = "~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME")
    return Path(caches or "~/.cache").expanduser() / "yogadl"


def _folder_at(path: Path) -> Folder:
    """Return a storage's folder, which is made at the first write.

    Raises:
        ConfigurationError: if it is a file.
        StorageError: if there can't be such a folder.
    """
    root = path.expanduser().absolute()
    try:
        is_folder = stat.S_ISDIR(os.stat(root).st_mode)
    except FileNotFoundError:
        if root.is_symlink():
            raise ConfigurationError(
                f"{root} is a link to a folder that is not there: make that folder, or remove the link"
            ) from None
        return Folder(root)
    except OSError as error:
        raise storage_error(error, f"can't open the folder {root}") from error
    if not is_folder:
        raise ConfigurationError(f"{root} is a file; give the path of a folder for caches")
    return Folder(root)


def _warn_of_network(root: Path) -> None:
    network = network_file_system(root)
    if network is not None:
        warnings.warn(
            f"{root} is on a network file system ({network}): reading at random is slow there, and its file "
            "locks may not keep two machines from building the same version. Give open_storage shared=True "
            "if several machines build there. A folder on a local disk of each machine is faster: copy "
            "the dataset's folder there as it is",
            UserWarning,
            stacklevel=users_level(),
        )
