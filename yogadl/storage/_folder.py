"""Keep files below one folder: written whole or not at all, and found again by name."""

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from yogadl.errors import CacheFormatError, StorageError
from yogadl.storage import _names
from yogadl.storage._root import MAX_READ_BYTES, Entry


class Folder:
    """Keep files by name, written atomically and durably. Implements `Root`. Safe for processes and threads.

    Args:
        root: The folder; made when something is first written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def location(self) -> str:
        """The folder's path."""
        return str(self.root)

    def path(self, name: str) -> Path:
        """Return where the file of that name lies."""
        return self.root / name

    def where(self, name: str) -> str:
        """Return where the file of that name lies, as text."""
        return str(self.path(name))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or ``None`` if there is none."""
        try:
            with self.path(name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > MAX_READ_BYTES:
                    raise OSError(errno.EFBIG, f"it has {size} bytes, far more than any such file of ours")
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, f"can't read {self.path(name)}") from error

    def view(self, name: str, most_bytes: int = MAX_READ_BYTES) -> bytes | None:
        """Return the content of a file that may be large, but no more than `most_bytes`; ``None`` if none."""
        try:
            with self.path(name).open("rb") as file:
                return file.read(min(most_bytes, os.fstat(file.fileno()).st_size))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, f"can't read {self.path(name)}") from error

    def size(self, name: str) -> int | None:
        """Return how many bytes a file has, or ``None`` if there is none."""
        try:
            return self.path(name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, f"can't read {self.path(name)}") from error

    def write(self, name: str, content: bytes) -> None:
        """Put a file in place of any other of that name: readers see the old one or the new one."""
        with self.written(name, content) as temporary:
            temporary.replace(self.path(name))

    def write_if_absent(self, name: str, content: bytes) -> bool:
        """Put a file unless there is one; return whether this call did."""
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
        """Give a finished temporary file with this content, or a file's, beside where it is to go."""
        path = self.path(name)
        temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("wb") as file:
                    if isinstance(content, Path):
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
        except OSError as error:
            raise storage_error(error, f"can't write {path}") from error

    def adopt(self, files: Mapping[str, Path]) -> None:
        """Move finished files, on the same file system, to their names, in this order."""
        target = self.root
        try:
            for name, path in files.items():
                target = self.path(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
            for folder in {self.path(name).parent for name in files}:
                sync_folder(folder)
        except OSError as error:
            raise storage_error(error, f"can't write {target}") from error

    def adopt_part(self, dataset_id: str, sha256: str, part: Path, index: Path) -> None:
        """Move a finished part and its index to their places; the part last."""
        self.adopt({_names.index(dataset_id, sha256): index, _names.part(dataset_id, sha256): part})

    def rename(self, name: str, new_name: str) -> bool:
        """Move a file; return whether there was one."""
        if self.size(name) is None:
            return False  # else the new name's folder would be made for nothing
        target = self.path(new_name)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self.path(name).replace(target)
            sync_folder(target.parent)
            sync_folder(self.path(name).parent)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_error(error, f"can't move {self.path(name)}") from error
        return True

    def names(self, below: str, suffix: str = "") -> list[str]:
        """Return the names of all finished files below a folder, with that ending, in order."""
        found = []
        for folder, _, files in os.walk(self.path(below)):
            for file in files:
                if file.endswith(suffix) and not file.endswith(".tmp"):
                    found.append(os.path.relpath(os.path.join(folder, file), self.root))
        return sorted(found)

    def entries(self, below: str) -> Iterator[Entry]:
        """Yield what is known of all files below a folder, the unfinished ones, too."""
        for folder, _, files in os.walk(self.path(below)):
            for file in files:
                path = os.path.join(folder, file)
                with contextlib.suppress(OSError):  # removed meanwhile
                    found = os.stat(path)
                    yield Entry(os.path.relpath(path, self.root), found.st_size, found.st_mtime)

    def folders_with(self, *names: str) -> list[str]:
        """Return every folder, at any depth, that has a folder of one of these names inside."""
        found = []
        for folder, folders, _ in os.walk(self.root):
            if not set(names).isdisjoint(folders):
                found.append(os.path.relpath(folder, self.root))
        return sorted(found)

    def now(self) -> float:
        """Return the time by this machine's clock, which the disk goes by."""
        return time.time()

    def age_s(self, name: str, now: float) -> float:
        """Return how long ago a file or folder was last changed; 0 if it is gone."""
        try:
            return now - self.path(name).stat().st_mtime
        except OSError:
            return 0.0

    def keep(self, name: str) -> bool:
        """Make a file young again, so that pruning leaves it alone; ``False`` if it is gone."""
        try:
            os.utime(self.path(name))
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def workplace(self, below: str) -> Iterator[Path]:
        """Give the folder itself: whoever builds there has locked out all others."""
        path = self.path(below)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, f"can't make the folder {path}") from error
        yield path

    @contextlib.contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """Give the path of a file."""
        if self.size(name) is None:
            raise CacheFormatError(f"{self.path(name)} is missing; build the dataset again, or restore it")
        yield self.path(name)

    def remove(self, name: str) -> int:
        """Remove a file if it is there; return how many bytes it had."""
        path = self.path(name)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise storage_error(error, f"can't remove {path}") from error
        return size

    def remove_folder(self, name: str) -> None:
        """Remove a folder and all below it, if it is there."""
        try:
            shutil.rmtree(self.path(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise storage_error(error, f"can't remove {self.path(name)}") from error


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def storage_error(error: OSError, what: str) -> StorageError:
    """Translate an error of the file system."""
    hint = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "; the disk is full: make room and try again"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "; it is not writable for this user"
    return StorageError(error.errno or errno.EIO, f"{what}: {error.strerror or error}{hint}")
