"""The options of worker processes, and their errors, worded with the names of the caller's arguments."""

import errno
from collections.abc import Callable
from math import inf
from typing import Any, Final, NamedTuple

from yogadl._core.arguments import int_argument
from yogadl._core.frozen import frozen
from yogadl.errors import ConfigurationError, StorageError, WorkerDiedError, WorkerTimeoutError

_DEATH_HINT: Final = "If it was killed, the machine may lack memory: try fewer workers or smaller batches"
_TIMEOUT_HINT: Final = (
    "The source or a function is slow, or it hangs, for example on a lock that was held when the process was "
    "forked. Give it more time ({}=), or leave that argument out to wait without a limit"
)
_RETRY_HINT: Final = (
    "No item is lost: next() tries again, and state_dict() is the cursor after the last item that was "
    "delivered"
)
_NO_MORE_FILES: Final = (errno.EMFILE, errno.ENFILE)


class WorkerErrors(NamedTuple):
    """Makes these errors for one way to request workers.

    Args:
        called: The name of the function by which the caller requested workers.
        begin: The name of its argument for the function that each worker calls first.
        timeout: The name of its argument for the time-out.
        method: The name of its argument for the way to start processes.
    """

    called: str = "prefetch"
    begin: str = "worker_init"
    timeout: str = "timeout_s"
    method: str = "start_method"

    def died_error(self, how: str, where: str) -> WorkerDiedError:
        """Return the error for a worker that died at some record."""
        error = WorkerDiedError(f"a worker process of {self.called} died {how}, {where}")
        error.add_note(f"{_DEATH_HINT}. {_RETRY_HINT}")
        return error

    def timeout_error(self, timeout_s: float, where: str) -> WorkerTimeoutError:
        """Return the error for a worker that took too long at some record."""
        return self._timeout_error(f"a worker process of {self.called}", timeout_s, where)

    def init_timeout_error(self, timeout_s: float, number: int) -> WorkerTimeoutError:
        """Return the error for a worker whose first function, the argument `begin`, took too long."""
        return self._timeout_error(self.begin, timeout_s, f"in worker process {number} of {self.called}")

    def _timeout_error(self, what: str, timeout_s: float, where: str) -> WorkerTimeoutError:
        error = WorkerTimeoutError(f"{what} timed out after {timeout_s:g} seconds, {where}")
        error.add_note(f"{_TIMEOUT_HINT.format(self.timeout)}. {_RETRY_HINT}")
        return error

    def start_error(self, error: OSError) -> StorageError:
        """Return the error for a process that can't be started."""
        is_files = error.errno in _NO_MORE_FILES
        hint = "close files, or raise the limit (ulimit -n)" if is_files else "try fewer workers"
        text = f"can't start the worker processes of {self.called}: {error.strerror}; {hint}"
        return StorageError(error.errno, text)


@frozen
class WorkerOptions:
    """The way in which worker processes are started, and their settings.

    Args:
        workers: The number of processes.
        ahead: The number of items that are kept ready, besides those that the workers are making.
        begin: Called first in each worker, with its number.
        timeout_s: The longest time that an item may take.
        method: The way to start the workers, "forkserver" by default; see `yogadl._workers.server.Workers`.
        threads: The number of threads of numerical libraries in each worker.
        is_persistent: Whether the workers stay for the next iterator.
        factor: The number of requests for each worker, instead of `ahead`.
        is_begun_by_pool: Whether `begin` is called here for each pool, and returns the function that the
            workers call.
        named: The user's functions, each with the name of its argument, for messages.
        preload: Modules that the workers share.
        errors: Makes the errors of workers, with the names of the caller's arguments.

    Raises:
        ConfigurationError: if an argument makes no sense.
    """

    workers: int
    ahead: int = 1
    begin: Callable[..., Any] | None = None
    timeout_s: float | None = None
    method: str | None = None
    threads: int = 1
    is_persistent: bool = True
    factor: int | None = None
    is_begun_by_pool: bool = False
    named: tuple[tuple[str, Any], ...] = ()
    preload: tuple[str, ...] = ()
    errors: WorkerErrors = WorkerErrors()

    def __post_init__(self) -> None:
        from yogadl._workers.server import METHODS

        if self.begin is not None and not callable(self.begin):
            raise ConfigurationError(
                f"{self.errors.begin} must be a function of a worker's number, not {self.begin!r}"
            )
        limit: Any = self.timeout_s
        is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if limit is not None and not (is_number and 0 < limit < inf):
            raise ConfigurationError(
                f"{self.errors.timeout} must be a number of seconds above 0, not {limit!r}"
            )
        if self.method not in (None, *METHODS):
            raise ConfigurationError(
                f"{self.errors.method} must be one of {', '.join(METHODS)}, not {self.method!r}"
            )
        int_argument("worker_threads", self.threads, 1)

    def most(self, each: int) -> int:
        """Return the number of requests at a time, of `each` items."""
        if self.factor is not None:
            return self.factor * self.workers
        return self.workers + -(-self.ahead // each)
