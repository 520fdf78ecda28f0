"""A folder of files: a write is complete or leaves nothing, and links inside a dataset are refused.

A storage's folder and the whole folder of a dataset may be links. The files in a dataset's folder may come
from any user: a link there would make yogadl read its target as a file of the storage, and prune it
although others need it; a pipe would block for ever. docs/explanation/format.md tells users about this.

At the end: whether a folder lies on a network file system, as Linux's list of mounts tells.
"""

import contextlib
import errno
import mmap
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from yogadl._core.key import RESERVED_NAMES
from yogadl._format.files import NOT_A_FILE
from yogadl._format.manifest import MAX_MANIFEST_BYTES
from yogadl.errors import CacheFormatError, StorageError
from yogadl.storage._files.root import MAX_READ_BYTES, Entry, Promises, Root, too_large

_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def checked_path(root: Path, name: str) -> str:
    """Return the path of a file, if no folder between it and its dataset's is a link.

    Args:
        root: The storage's folder.
        name: The file's name; with a slash at its end, a folder's name, which must not be a link either.

    Raises:
        CacheFormatError: if one of these is a link.
    """
    return _path(root, name)[0]


def _path(root: Path, name: str) -> tuple[str, bool]:
    """Return the path of a file, and whether it is inside a dataset."""
    folders = _folders_inside(name)
    for folder in folders:
        if os.path.islink(f"{root}/{folder}"):
            raise _link_error(f"{root}/{folder}")
    return f"{root}/{name}", bool(folders)


def open_file(root: Path, name: str) -> BinaryIO:
    """Open a file for reading.

    Raises:
        CacheFormatError: if it is a link inside a dataset, a pipe, a device or a socket.
        OSError: if it is a folder, or does not exist.
    """
    path, is_inside = _path(root, name)
    try:
        descriptor = os.open(path, _FLAGS | (os.O_NOFOLLOW if is_inside else 0))
    except OSError as error:
        if error.errno in NOT_A_FILE:
            raise (_link_error(path) if os.path.islink(path) else _not_regular_error(path)) from error
        raise
    try:
        _refuse_irregular(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def stat_file(root: Path, name: str) -> os.stat_result:
    """Return the status of a file, under the same conditions as `open_file`."""
    status = stat_any(root, name)
    _refuse_irregular(f"{root}/{name}", status)
    return status


def stat_any(root: Path, name: str) -> os.stat_result:
    """Return the status of a path; inside a dataset, that of a link itself."""
    path, is_inside = _path(root, name)
    return os.lstat(path) if is_inside else os.stat(path)


def files_below(root: Path, below: str, onerror: Callable[[OSError], object] | None = None) -> Iterator[str]:
    """Yield the names of all files below a folder, or none if the folder does not exist.

    Args:
        root: The storage's folder.
        below: The folder's name; empty for the storage's folder.
        onerror: Called with the error of a folder that can't be listed.

    Raises:
        CacheFormatError: if a folder inside a dataset is a link: its files must neither be listed nor count
            as absent. Other links are not followed.
    """
    top, is_inside = _path(root, f"{below}/")
    for path, folders, files in os.walk(top, onerror=onerror):
        for folder in folders if is_inside else ():
            if os.path.islink(os.path.join(path, folder)):
                raise _link_error(os.path.join(path, folder))
        prefix = os.path.relpath(path, root)
        yield from files if prefix == "." else (f"{prefix}/{file}" for file in files)


def _link_error(path: str) -> CacheFormatError:
    """Return the error about a link inside a dataset."""
    return CacheFormatError(
        f"{path} is a link, and links inside a dataset's folder are not followed: replace it by a copy of "
        "what it leads to (cp -RL); only the whole folder of a dataset may be a link"
    )


def _refuse_irregular(path: str, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise _link_error(path)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        raise _not_regular_error(path)


def _not_regular_error(path: str) -> CacheFormatError:
    return CacheFormatError(
        f"{path} is not a file, but a pipe, a device or a socket: remove it, or restore the file"
    )


def _folders_inside(name: str) -> list[str]:
    """Return the folders of a file's path that lie inside a dataset's folder, outermost first."""
    segments = name.split("/")
    for first, segment in enumerate(segments):
        if segment in RESERVED_NAMES:  # no segment of a dataset's id is one of these
            return ["/".join(segments[: end + 1]) for end in range(first, len(segments) - 1)]
    return []


# The errors of a full disk, and of a quota that is used up.
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
# How often a folder is made again that another process removes at the same time.
_TRIES: Final = 100


def folder_at(location: str) -> Path | None:
    """Return the folder that a path or a ``file://`` URL names, or ``None`` for any other URL."""
    if "://" not in location:
        return Path(location)
    host, _, path = location.removeprefix("file://").partition("/")
    if not location.startswith("file://") or host not in ("", "localhost"):
        return None
    from urllib.parse import unquote  # most readers do not need it

    return Path("/" + unquote(path))


class Folder(Root):
    """A folder of files, written atomically and durably. Safe for processes and threads.

    Args:
        root: The folder; made at the first write.
    """

    promises = Promises(renames=True, has_locks=True)

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def location(self) -> str:
        return str(self.root)

    def path(self, name: str) -> Path:
        """Return the path of the file of that name."""
        return self.root / name

    def where(self, name: str) -> str:
        return str(self.path(name))

    def read(self, name: str, most_bytes: int = MAX_MANIFEST_BYTES) -> bytes | None:
        try:
            with open_file(self.root, name) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                content = file.read(size_bytes + 1) if size_bytes <= most_bytes else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, f"can't read {self.path(name)}", reads=True) from error
        if content is None:
            raise too_large(self.where(name), most_bytes)
        return content

    def view(self, name: str, most_bytes: int = MAX_READ_BYTES) -> bytes | None:
        try:
            with open_file(self.root, name) as file:
                return file.read(min(most_bytes, os.fstat(file.fileno()).st_size))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, f"can't read {self.path(name)}", reads=True) from error

    def map(self, name: str) -> mmap.mmap | bytes | None:
        """Map a file for reading, or return ``None`` if it does not exist."""
        try:
            with open_file(self.root, name) as file:
                if not os.fstat(file.fileno()).st_size:
                    return b""
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, f"can't read {self.path(name)}", reads=True) from error

    def size(self, name: str) -> int | None:
        try:
            return stat_file(self.root, name).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, f"can't read {self.path(name)}", reads=True) from error

    def sizes(self, below: str, files: Iterable[str]) -> Iterator[int]:
        """Yield the size of each of these files of a folder, -1 for a missing one; faster than `size`."""
        with self._open_folder(below) as folder:
            for file in files:
                try:
                    found = None if folder is None else os.stat(file, dir_fd=folder, follow_symlinks=False)
                except FileNotFoundError:
                    found = None
                yield found.st_size if found is not None and stat.S_ISREG(found.st_mode) else -1

    def exist(self, below: str, files: Iterable[str]) -> Iterator[bool]:
        """Yield for each of these names whether a folder has it; takes half the time of `sizes`."""
        with self._open_folder(below) as folder:
            for file in files:
                yield folder is not None and os.access(file, os.F_OK, dir_fd=folder, follow_symlinks=False)

    @contextlib.contextmanager
    def _open_folder(self, name: str) -> Iterator[int | None]:
        """Open a folder, to look for files in it; gives ``None`` if there is none."""
        folder = None
        try:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path = checked_path(self.root, f"{name}/")
                folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
            yield folder
        except OSError as error:
            raise storage_error(error, f"can't read {self.path(name)}", reads=True) from error
        finally:
            if folder is not None:
                os.close(folder)

    def write(self, name: str, content: bytes) -> None:
        """Write a file, replacing any of that name: readers see the old content or the new."""
        with self.written(name, content) as temporary:
            temporary.replace(self.path(name))

    def write_if_absent(self, name: str, content: bytes) -> bool:
        with self.written(name, content) as temporary:
            try:
                os.link(temporary, self.path(name))
            except FileExistsError:
                return False
            finally:
                temporary.unlink()
        return True

    @contextlib.contextmanager
    def written(self, name: str, content: bytes | Path) -> Iterator[Path]:
        """Give the path of a durable temporary file in the folder of `name`.

        It has this content, or is a copy of this file. The caller moves or removes it.
        """
        path = Path(checked_path(self.root, name))
        temporary = path.with_name(f".{os.urandom(8).hex()}.tmp")
        with translated(f"can't write {path}"):
            try:
                with _open_new(temporary) as file:
                    if isinstance(content, Path):
                        import shutil  # most readers do not need it

                        with content.open("rb") as source:
                            shutil.copyfileobj(source, file, 2**20)
                    else:
                        file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                yield temporary
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            sync_folder(path.parent)

    def adopt(self, files: Mapping[str, Path]) -> None:
        target = self.root
        try:
            for name, path in files.items():
                target = Path(checked_path(self.root, name))
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
            for folder in {self.path(name).parent for name in files}:
                sync_folder(folder)
        except OSError as error:
            raise storage_error(error, f"can't write {target}") from error

    def rename(self, name: str, new_name: str, check: Callable[[], None] = lambda: None) -> bool:
        path, target = Path(checked_path(self.root, name)), Path(checked_path(self.root, new_name))
        if not os.path.lexists(path):
            return False  # without a useless folder for the new name
        check()
        is_moved = False
        with translated(f"can't move {self.path(name)}", unless=FileNotFoundError):
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
            sync_folder(target.parent)
            sync_folder(path.parent)
            is_moved = True
        return is_moved

    def names(self, below: str, suffix: str = "") -> list[str]:
        found = files_below(self.root, below, refuse_unlisted)
        return sorted(name for name in found if name.endswith(suffix) and not name.endswith(".tmp"))

    def entries(self, below: str) -> Iterator[Entry]:
        for name in files_below(self.root, below, refuse_unlisted):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found = os.lstat(self.path(name))
                yield Entry(name, found.st_size, changed(found))

    def folders_with(
        self, *names: str, most_files: int | None = None, below: str = ""
    ) -> tuple[list[str], bool]:
        """Return every folder that has a folder of one of these names inside, and whether all were looked at.

        Folders that this user may not list are left out: these may belong to other users.
        """
        result, count = [], 0
        top = checked_path(self.root, f"{below}/") if below else self.root
        for folder, folders, files in os.walk(top, onerror=_refuse_unless_forbidden):
            if not set(names).isdisjoint(folders):
                result.append(os.path.relpath(folder, self.root))
            count += len(folders) + len(files)
            if most_files is not None and count >= most_files:
                return sorted(result), False
        return sorted(result), True

    def now(self) -> float:
        """Return the time by this machine's clock, which the disk's file times follow."""
        return time.time()

    def age_s(self, name: str, now: float) -> float:
        """Return the time since a file or folder was last changed; 0 if it does not exist."""
        try:
            return now - changed(self.path(name).stat())
        except OSError:
            return 0.0

    def keep(self, name: str) -> bool:
        """Renew a file's time, so that pruning leaves it alone; ``False`` if it does not exist."""
        try:
            os.utime(self.path(name))
        except OSError:
            return False
        return True

    def with_room(self, dry_run: bool = False) -> contextlib.AbstractContextManager[None]:
        """Do nothing: on a local disk, renaming and removing take no room."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def workplace(self, below: str) -> Iterator[Path]:
        """Give the folder `below` itself: only one build at a time has the right to use it."""
        yield made_folder(Path(checked_path(self.root, f"{below}/")))

    @contextlib.contextmanager
    def local(self, name: str) -> Iterator[Path]:
        if self.size(name) is None:
            raise CacheFormatError(f"{self.path(name)} is missing; build the dataset again, or restore it")
        yield self.path(name)

    def remove(self, name: str) -> int:
        path, size_bytes = Path(checked_path(self.root, name)), 0
        with translated(f"can't remove {path}", unless=FileNotFoundError):
            found = path.lstat()
            path.unlink()
            size_bytes = found.st_size
        return size_bytes

    def remove_folder(self, name: str) -> None:
        import shutil

        with translated(f"can't remove {self.path(name)}", unless=FileNotFoundError):
            shutil.rmtree(checked_path(self.root, f"{name}/"))


def refuse_unlisted(error: OSError) -> None:
    """Raise the error of a folder that can't be listed: its files must not count as missing."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise storage_error(error, f"can't list {error.filename}", reads=True) from error


def _refuse_unless_forbidden(error: OSError) -> None:
    if not isinstance(error, PermissionError):
        refuse_unlisted(error)


def made_folder(path: Path) -> Path:
    """Make a folder if it is missing; return its path."""
    with translated(f"can't make the folder {path}"):
        path.mkdir(parents=True, exist_ok=True)
    return path


def changed(status: os.stat_result) -> float:
    """Return the time when a file got its current content or place in this folder.

    The modification time may be that of an original that was copied; the time of the inode is this folder's
    own.
    """
    return max(status.st_mtime, status.st_ctime)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def translated(what: str, *, unless: type[OSError] | tuple[()] = ()) -> Iterator[None]:
    """Raise errors of the file system as a `StorageError`, except `unless`, which end the block silently."""
    try:
        yield
    except StorageError:
        raise  # it is a translated error already
    except unless:
        pass
    except OSError as error:
        raise storage_error(error, what) from error


def storage_error(error: OSError, what: str, *, reads: bool = False) -> StorageError:
    """Translate an error of the file system; `reads` tells whether reading or writing failed."""
    hint = ""
    if error.errno in FULL:
        hint = "; the disk is full: make room and try again"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = f"; it is not {'readable' if reads else 'writable'} for this user"
    return StorageError(error.errno or errno.EIO, f"{what}: {error.strerror or error}{hint}")


def _open_new(path: Path) -> BinaryIO:
    """Open a new file for writing; make its folder, again if another process removes it while it is empty."""
    for retries in reversed(range(_TRIES)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("wb")
        except FileNotFoundError:
            if not retries:
                raise
    raise AssertionError


# File systems that cache files on each machine without seeing changes of other machines, and whose locks may
# not hold between machines. Lustre, GPFS, BeeGFS and CephFS are left out: these keep both, as a disk does.
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "davfs", "ncpfs", "coda"})
# The name that the kernel appends to "fuse."; most others are local: ntfs-3g, fuse-overlayfs, mergerfs,
# gocryptfs.
_NETWORK_FUSE: Final = frozenset(
    {
        "sshfs", "s3fs", "gcsfuse", "goofys", "rclone", "mount-s3", "mountpoint-s3", "blobfuse", "blobfuse2",
        "glusterfs", "juicefs", "davfs", "davfs2", "smbnetfs", "curlftpfs", "seaweedfs", "alluxio-fuse",
        "cvmfs2", "mfs", "mfsmount", "lizardfs", "ossfs", "cosfs", "obsfs",
    }
)  # fmt: skip
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_MOUNTINFO: Final = Path("/proc/self/mountinfo")


def network_file_system(folder: Path) -> str | None:
    """Return the name of the network file system that a folder lies on, ``None`` for a disk or unknown.

    On systems other than Linux the result is always ``None``.
    """
    name = file_system(folder)
    return name if is_network(name) else None


def file_system(folder: Path) -> str:
    """Return the name of the file system that a folder lies on; empty if it is unknown."""
    try:
        mounts = _MOUNTINFO.read_text(errors="surrogateescape")
    except OSError:
        return ""  # macOS, or a hidden /proc
    return file_system_of(mounts, os.path.realpath(folder))


def is_network(name: str) -> bool:
    """Return whether a file system of this name in mountinfo is read over the network."""
    kind, _, subtype = name.partition(".")
    return name in _NETWORK or (kind in ("fuse", "fuseblk") and subtype in _NETWORK_FUSE)


def file_system_of(mountinfo: str, path: str) -> str:
    """Return the type of the file system that an absolute path lies on; empty if none is found.

    Args:
        mountinfo: The content of ``/proc/self/mountinfo``: see proc(5).
        path: The path, without symbolic links.
    """
    kind_found, longest = "", -1
    for line in mountinfo.splitlines():
        # id, parent, device, root, mount point, options, any number of optional fields, -, type, ...
        fields, _, described = line.partition(" - ")
        columns, kind = fields.split(" "), described.partition(" ")[0]
        if len(columns) < 6 or not kind:
            continue
        # mountinfo has \040 for a space in a name.
        point = _ESCAPED.sub(lambda escape: chr(int(escape[1], 8)), columns[4]).rstrip("/")
        # A later mount over the same folder hides the earlier one.
        if (path == point or path.startswith(point + "/")) and len(point) >= longest:
            kind_found, longest = kind, len(point)
    return kind_found
