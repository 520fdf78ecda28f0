"""Make the errors of worker processes, worded with the names of the caller's arguments."""

import errno
from typing import Final, NamedTuple

from yogadl.errors import StorageError, WorkerDiedError, WorkerTimeoutError

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
