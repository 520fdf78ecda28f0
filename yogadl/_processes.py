"""Start processes that do work for this one, and end when it ends, however that comes about."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection  # loaded when first needed

# So often a worker looks whether what started it lives.
_LOOK_EVERY_S: Final = 0.5


@contextlib.contextmanager
def worker_pool(workers: int, given: bytes) -> Iterator[concurrent.futures.Executor]:
    """Give an executor of so many processes, which are gone afterwards; at an error, at once.

    They are spawned, not forked: this process may have threads, or a framework's locks held.

    Args:
        workers: How many.
        given: What each of them needs, pickled; `given_to_worker` returns it there. Tasks are to be small:
            the pool can't end while a large one is on its way that no worker is left to take.
    """
    require_main()
    context = multiprocessing.get_context("spawn")
    is_over, end = context.Pipe(duplex=False)
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=(is_over, given)
    )
    with is_over, end, pool:
        try:
            yield pool
        except BaseException:
            end.send(None)  # else the pool waits until all have done their tasks
            raise


def require_main() -> None:
    """Refuse to start workers in one that is still importing the script that started it.

    Raises:
        ConfigurationError: if so; where the script waits for its parent, it would wait for ever.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigurationError(
            "a script that starts worker processes is imported by each of them: put what it does under "
            '`if __name__ == "__main__":`'
        )


def given_to_worker() -> bytes:
    """Return what this worker was started with."""
    return _given


_given = b""  # of a worker


def _begin(is_over: "Connection", given: bytes) -> None:
    """Begin a worker, and see to it that it ends soon after the work, or its parent, however that ended.

    It would go on else, and then wait for its next task, to whose queue the workers hold both ends. The
    parent's id is looked at, not its sentinel: a child that the parent has forked may keep that from us.

    Args:
        is_over: Has something to read, which is never read, when the work has failed.
        given: Unpickled by the first task, whose error that may be.
    """
    global _given  # noqa: PLW0603  (of a process that is a worker and nothing else)
    _given = given
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        while os.getppid() == parent.pid and not is_over.poll(_LOOK_EVERY_S):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="yogadl-watch", daemon=True).start()
