"""Run the tasks of a build on a Ray cluster."""

import concurrent.futures
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from yogadl.errors import ConfigurationError, WorkerDiedError


class RayExecutor(concurrent.futures.Executor):
    """An executor of Ray tasks: ``storage.submit(source, id, version, engine=RayExecutor(num_cpus=2))``.

    If the worker or the node of a task dies, Ray runs the task again, three times by default. If the function
    itself raises, the build fails at once with that error. If Ray is not initialized, the first submitted
    task initializes it; to choose a cluster, call ``ray.init`` before. Safe to use from several threads.

    Args:
        options: The options of ``ray.remote`` for a task: `num_cpus`, `memory`, `resources`, `max_retries`,
            `scheduling_strategy`, `runtime_env`, ...

    Raises:
        ConfigurationError: if Ray has no such option.
    """

    def __init__(self, **options: Any) -> None:
        try:
            self._remote = ray.remote(_call).options(**options) if options else ray.remote(_call)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"Ray's tasks can't have the options {options}: {error}") from error

    def submit(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> "concurrent.futures.Future[Any]":
        """Run a function with its arguments in a task."""
        return _Task(self._remote.remote(function, args, kwargs))


class _Task(concurrent.futures.Future[Any]):
    """The future of one task's result."""

    def __init__(self, ref: Any) -> None:
        super().__init__()
        self._ref = ref
        ref.future().add_done_callback(self._take)

    def cancel(self) -> bool:
        """Cancel the task, or stop its process if it runs; a build survives this."""
        if not super().cancel():
            return False
        ray.cancel(self._ref, force=True)
        return True

    def _take(self, done: "concurrent.futures.Future[Any]") -> None:
        if not self.set_running_or_notify_cancel():
            return
        error = done.exception()
        if error is None:
            self.set_result(done.result())
        else:
            self.set_exception(original(error))


def original(error: BaseException) -> BaseException:
    """Return the error that a task raised, caused by Ray's error; a WorkerDiedError if the task was lost."""
    cause = getattr(error, "cause", None)
    # An error in a user's function of a dataset arrives only as Ray's text.
    if isinstance(error, RayTaskError) and isinstance(cause, Exception) and not isinstance(cause, RayError):
        cause.__cause__ = error
        return cause
    if isinstance(error, RayError) and not isinstance(error, TaskCancelledError | RayTaskError):
        died = WorkerDiedError(f"the Ray task that wrote it is lost: {error}")
        died.__cause__ = error
        return died
    return error


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)
