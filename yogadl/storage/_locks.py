"""Let one process at a time build or prune in a local folder, by file locks."""

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from yogadl._frozen import frozen
from yogadl._json import parse_json
from yogadl._key import DatasetKey
from yogadl._printable import printable
from yogadl.errors import CacheFormatError, StorageError
from yogadl.storage import _names
from yogadl.storage._flock import is_free
from yogadl.storage._folder import Folder, storage_error
from yogadl.storage._links import checked_path

if TYPE_CHECKING:
    from filelock import FileLock  # loaded when first needed

    from yogadl.storage._exclusion import BuildExclusion

_POLL_S: Final = 0.05
_SAY_AFTER_S: Final = 2.0
_SAY_EVERY_S: Final = 60.0


class BuildLock:
    """An exclusive build by file lock, which lasts as long as its process. Implements `BuildExclusion`."""

    term = None
    report = None

    def check(self) -> None:
        """Do nothing: a lock can't be lost."""


@frozen
class FileLocks:
    """Exclude other builders in a folder of one machine. Implements `BuildCoordinator`.

    A lock ends with its process, however that ends.
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
                # Checked while holding our lock, which a later prune finds held.
                self.wait_for_pruning(key.id)
                yield BuildLock()
            finally:
                self.folder.remove(_names.holder(key))

    def _prepare(self, key: DatasetKey) -> None:
        """Note which process builds, and make the folder of the trash while there is room for it.

        On a full disk neither is done: what frees it holds this lock, too.
        """
        trash = Path(checked_path(self.folder.root, _names.trashed(key, 0))).parent
        with contextlib.suppress(OSError):  # reported when it is needed
            trash.mkdir(parents=True, exist_ok=True)
        this = {"pid": os.getpid(), "host": os.uname().nodename, "started": time.time()}
        try:
            self.folder.write(_names.holder(key), json.dumps(this).encode())
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
            _say_if_soft(lock)
            yield None
            return
        except OSError as error:
            raise _not_writable(error, self.folder.root) from error
        try:
            # Checked while holding our lock, for which later builders wait.
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
            with contextlib.suppress(StorageError):  # without flock
                if is_free(path):  # some versions of filelock would make the file young, by which prune goes
                    continue
            lock = _file_lock(path)
            try:
                with lock.acquire(timeout=0):
                    pass
            except Timeout:
                _say_if_soft(lock)
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
    def _locked(self, name: str, what: Callable[[], str], turn: str | None = None) -> Iterator[None]:
        """Hold a lock, waiting for its holder and logging what for.

        Args:
            name: The lock's.
            what: Returns what is waited for.
            turn: The lock that the next in turn holds meanwhile, so that the last holder, coming back at
                once, can't overtake those that wait.
        """
        lock = self._lock(name)
        with contextlib.nullcontext() if turn is None else self._locked(turn, what):
            self._wait_for(lock, what)
        try:
            yield
        finally:
            lock.release()

    def _wait_for(self, lock: "FileLock", what: Callable[[], str]) -> None:
        from filelock import Timeout

        started = time.monotonic()
        say_at_s = _SAY_AFTER_S
        while True:
            try:
                lock.acquire(timeout=_SAY_AFTER_S, poll_interval=_POLL_S)
                break
            except Timeout:
                waited_s = time.monotonic() - started
                if waited_s >= say_at_s:
                    _warn("yogadl: waiting for %s", what())
                    _say_if_soft(lock)
                    say_at_s = waited_s + _SAY_EVERY_S
            except OSError as error:
                raise _not_writable(error, self.folder.root) from error

    def _builder(self, key: DatasetKey) -> str:
        from yogadl.storage._leases.waiting import if_this_process

        try:
            holder = parse_json(self.folder.read(_names.holder(key)) or b"")
            since = time.strftime("%H:%M:%S", time.localtime(holder["started"]))
            who = f"process {holder['pid']} on {holder['host']} (since {since}) builds"
            return printable(who) + if_this_process(holder)
        except (ValueError, KeyError, TypeError, OverflowError, OSError, CacheFormatError):
            return "another process builds"


def _file_lock(path: Path) -> "FileLock":
    """Return a lock that takes its file anew if `prune` has removed that since it was opened.

    filelock sees to it: it takes no lock on a file that has no name any more.
    """
    from filelock import FileLock

    return FileLock(path, is_singleton=False)


def _say_if_soft(lock: object) -> None:  # a FileLock, whose class changes when it finds no flock
    """Say how to clear a lock that is a file's mere existence, as filelock has it where there is no flock.

    That of a dead process is taken over only on that process's own host.
    """
    from filelock import SoftFileLock

    if not isinstance(lock, SoftFileLock):
        return
    try:
        pid, host = Path(lock.lock_file).read_text().splitlines()[:2]
        who = f"process {pid} on {host}"
    except (OSError, ValueError):
        who = "a process that is not named"
    _warn(
        "yogadl: this file system has no file locks, and the file %s stands for one, made by %s: if that "
        "process is dead, make sure that nobody builds, then delete the file",
        lock.lock_file, who,
    )  # fmt: skip


def _warn(message: str, *arguments: object) -> None:
    import logging  # not loaded by readers

    logging.getLogger("yogadl").warning(message, *arguments)


def _not_writable(error: OSError, root: Path) -> StorageError:
    if isinstance(error, StorageError):
        return error
    return storage_error(error, f"can't change {error.filename or root}")
