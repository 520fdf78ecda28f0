"""Let one process at a time build or prune in a local folder, by file locks; exclude other builders."""

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from yogadl._core.frozen import frozen, parse_json
from yogadl._core.key import DatasetKey
from yogadl._core.printable import printable
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.backend import Backend, BuildExclusion
from yogadl.storage._catalogue.tags import refuse_tag
from yogadl.storage._files.folder import Folder, checked_path, storage_error
from yogadl.storage._files.locks import is_free

if TYPE_CHECKING:
    from filelock import FileLock  # loaded when first needed

_POLL_S: Final = 0.05
_LOG_AFTER_S: Final = 2.0
_LOG_EVERY_S: Final = 60.0


class BuildLock:
    """The right to build by file lock, which lasts as long as its process. Implements `BuildExclusion`."""

    term = None
    report = None

    def check(self) -> None:
        """Do nothing: a lock can't be lost."""


@frozen
class FileLocks:
    """Exclude other builders in a folder of one machine. Implements `BuildCoordinator`.

    A lock is released when its process ends, for whatever reason.
    """

    folder: Folder

    @contextlib.contextmanager
    def building(
        self, key: DatasetKey, unless: Callable[[], bool] | None = None
    ) -> Iterator["BuildExclusion | None"]:
        with self._locked(_names.lock(key), lambda: f"{key}, which {self._builder(key)}", _names.turn(key)):
            if unless is not None and unless():
                yield None
                return
            try:
                self._prepare(key)
                # Checked while this process holds its own lock: a prune that begins later sees that lock.
                self.wait_for_pruning(key.id)
                yield BuildLock()
            finally:
                self.folder.remove(_names.holder(key))

    def _prepare(self, key: DatasetKey) -> None:
        """Record the process that builds, and make the folder of the trash while there is room for it.

        On a full disk neither is done, and no error is raised: calls that free disk space, such as `delete`,
        take this lock, too.
        """
        trash = Path(checked_path(self.folder.root, _names.trashed(key, 0))).parent
        with contextlib.suppress(OSError):  # the call that needs the folder reports it
            trash.mkdir(parents=True, exist_ok=True)
        holder = {"pid": os.getpid(), "host": os.uname().nodename, "started": time.time()}
        try:
            self.folder.write(_names.holder(key), json.dumps(holder).encode())
        except StorageError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    @contextlib.contextmanager
    def pruning(self, dataset_id: str) -> Iterator["BuildExclusion | None"]:
        from filelock import Timeout

        lock = self._lock(_names.lock(_names.WholeDataset(dataset_id)))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            _warn_of_soft_lock(lock)
            yield None
            return
        except OSError as error:
            raise _not_writable(error, self.folder.root) from error
        try:
            # Checked while this process holds its own lock: builders that begin later wait for it.
            yield None if self.has_builder(dataset_id) else BuildLock()
        finally:
            lock.release()

    def wait_for_pruning(self, dataset_id: str) -> None:
        whole = _names.WholeDataset(dataset_id)
        with self._locked(_names.lock(whole), lambda: f"{whole}, which is being pruned"):
            pass

    def has_builder(self, dataset_id: str) -> bool:
        from filelock import Timeout

        for name in self.folder.names(f"{dataset_id}/locks", ".lock"):
            if name == _names.lock(_names.WholeDataset(dataset_id)):
                continue
            path = self.folder.path(name)
            with contextlib.suppress(StorageError):  # the file system has no flock
                if is_free(path):  # some versions of filelock renew the file's time, which prune compares
                    continue
            lock = _file_lock(path)
            try:
                with lock.acquire(timeout=0):
                    pass
            except Timeout:
                _warn_of_soft_lock(lock)
                return True
            except OSError as error:
                raise _not_writable(error, self.folder.root) from error
        return False

    def _lock(self, name: str) -> "FileLock":
        path = Path(checked_path(self.folder.root, name))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_writable(error, self.folder.root) from error
        return _file_lock(path)

    @contextlib.contextmanager
    def _locked(self, name: str, describe: Callable[[], str], turn: str | None = None) -> Iterator[None]:
        """Hold a lock; log a message while waiting for its holder.

        Args:
            name: The lock's name.
            describe: Returns a phrase for the message.
            turn: A second lock, which the process that is next in turn holds while it waits. A process that
                released the first lock, and requests it again at once, can't overtake that process.
        """
        lock = self._lock(name)
        with contextlib.nullcontext() if turn is None else self._locked(turn, describe):
            self._wait_for(lock, describe)
        try:
            yield
        finally:
            lock.release()

    def _wait_for(self, lock: "FileLock", describe: Callable[[], str]) -> None:
        from filelock import Timeout

        started = time.monotonic()
        log_at_s = _LOG_AFTER_S
        while True:
            try:
                lock.acquire(timeout=_LOG_AFTER_S, poll_interval=_POLL_S)
                break
            except Timeout:
                waited_s = time.monotonic() - started
                if waited_s >= log_at_s:
                    _warn("yogadl: waiting for %s", describe())
                    _warn_of_soft_lock(lock)
                    log_at_s = waited_s + _LOG_EVERY_S
            except OSError as error:
                raise _not_writable(error, self.folder.root) from error

    def _builder(self, key: DatasetKey) -> str:
        from yogadl.storage._leases.heartbeat import note_if_this_process

        try:
            holder = parse_json(self.folder.read(_names.holder(key)) or b"")
            since = time.strftime("%H:%M:%S", time.localtime(holder["started"]))
            who = f"process {holder['pid']} on {holder['host']} (since {since}) builds"
            return printable(who) + note_if_this_process(holder)
        except (ValueError, KeyError, TypeError, OverflowError, OSError, CacheFormatError):
            return "another process builds"


def _file_lock(path: Path) -> "FileLock":
    """Return a lock that takes its file anew if `prune` has removed the file since it was opened.

    filelock ensures this: it takes no lock on a file that has no name any more.
    """
    from filelock import FileLock

    return FileLock(path, is_singleton=False)


def _warn_of_soft_lock(lock: object) -> None:  # a FileLock; its class changes if there is no flock
    """Log how to clear a lock that is a mere file, which filelock uses on file systems without flock.

    The file remains if its process is killed; filelock takes over such a lock only on that process's host.
    """
    from filelock import SoftFileLock

    if not isinstance(lock, SoftFileLock):
        return
    try:
        pid, host = Path(lock.lock_file).read_text().splitlines()[:2]
        who = f"process {pid} on {host}"
    except (OSError, ValueError):
        who = "an unknown process"
    _warn(
        "yogadl: this file system has no file locks, so the file %s is used as a lock; %s created it: if "
        "that process is dead, make sure that no process builds, then delete the file",
        lock.lock_file, who,
    )  # fmt: skip


def _warn(message: str, *arguments: object) -> None:
    import logging  # not loaded by readers

    logging.getLogger("yogadl").warning(message, *arguments)


def _not_writable(error: OSError, root: Path) -> StorageError:
    if isinstance(error, StorageError):
        return error
    return storage_error(error, f"can't change {error.filename or root}")


# Raise an error at once if a builder would wait for itself.


@dataclass
class _RunningBuild:
    """A build in progress, by which code that runs inside it can be recognised."""

    location: str
    key: DatasetKey
    is_over: bool = False  # needed because a copied context may outlive the build


# The builds of this context, so that a builder that requests its own result fails instead of waiting.
_building: ContextVar[tuple[_RunningBuild, ...]] = ContextVar("building", default=())


@contextlib.contextmanager
def exclusive_build_unless(
    backend: Backend, key: DatasetKey, unless: Callable[[], bool] | None = None
) -> Iterator[BuildExclusion | None]:
    """Exclude other builders of a version, waiting for the one that builds it now.

    Args:
        backend: The storage.
        key: The version.
        unless: Called while waiting; once it returns true, the context manager gives ``None``, and the right
            to build is not taken.

    Raises:
        ConfigurationError: if this context builds the version already, or the name is a tag.
        LeaseError: if the wait takes longer than the storage allows.
    """
    outer, location = _building.get(), backend.root.location
    if any((build.location, build.key, build.is_over) == (location, key, False) for build in outer):
        raise ConfigurationError(
            f"{key} is being built by this very call: a function that builds a version can't read or replace "
            "that version; read the data there without the cache"
        )
    refuse_tag(backend.root, key)
    with backend.coordinator.building(key, unless) as exclusion:
        running = _RunningBuild(location, key)
        reset = _building.set((*outer, running))
        try:
            yield exclusion
        finally:
            running.is_over = True
            _building.reset(reset)


@contextlib.contextmanager
def exclusive_build(backend: Backend, key: DatasetKey) -> Iterator[BuildExclusion]:
    """Exclude other builders of a version, whether or not it exists; see `exclusive_build_unless`."""
    with exclusive_build_unless(backend, key) as exclusion:
        assert exclusion is not None  # it is None only if `unless` returned true
        yield exclusion
