"""Repeat operations on a store that failed for a transient reason, with backoff and a limit in time.

An SDK's time limits apply between two bytes: one byte each second keeps a request alive for ever. Attempts
are therefore made in threads of their own, and abandoned if they make too little progress.
"""

import errno
import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from yogadl._core.process import ProcessLock, operation_start_s
from yogadl.errors import ConfigurationError, StorageError

_log: Final = logging.getLogger("yogadl")
_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 10.0
# If an operation succeeds within this time, its failures are not logged.
_LOG_AFTER_S: Final = 5.0
# Operations on a store that has never answered fail after this time: most likely the endpoint is mistyped.
_NEVER_ANSWERED_LIMIT_S: Final = 4.0
# An operation continues as long as this many bytes arrive, or are sent, within its policy's time.
PROGRESS_BYTES: Final = 2**16
# The last attempt gets this time, even if less of the policy's time is left.
_LEAST_ATTEMPT_S: Final = 1.0

Result = TypeVar("Result")


class TransientError(StorageError):
    """A failure after which a new attempt may succeed: a reset connection, a stall, a 500 or 503.

    Attributes:
        after_s: The seconds to wait before the next request, from the Retry-After of the store's answer.
    """

    after_s: float = 0.0


class UnreachableError(TransientError):
    """No connection could be made: a refused port, an unknown host, a server without TLS."""


class UnavailableError(StorageError):
    """The store did not answer within the time of its `RetryPolicy`."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a store.

    Args:
        silence_s: A connection on which nothing arrives for this time is closed, and the request repeated.
        total_s: One operation continues for this time without progress, which is 64 KiB sent or received. If
            no connection to this store was ever made, the operation fails after a few seconds.

    Raises:
        ConfigurationError: if either is not above 0.
    """

    silence_s: float = 30.0
    total_s: float = 120.0

    def __post_init__(self) -> None:
        # Users name the second one patience_s.
        times: dict[str, object] = {"silence_s": self.silence_s, "patience_s": self.total_s}
        for name, value in times.items():  # values from the user, of any type
            if isinstance(value, bool) or not (isinstance(value, int | float) and value > 0):
                raise ConfigurationError(
                    f"a store needs some time to answer: {name} must be a number of seconds above 0, not "
                    f"{value!r}"
                )


DEFAULT_RETRY: Final = RetryPolicy()
# For callers that have a fallback.
HURRIED_RETRY: Final = RetryPolicy(silence_s=3.0, total_s=3.0)


class Presence:
    """Whether a store answers, shared by all its users in this process. Safe for threads.

    While a store does not answer, many operations fail: one warning is logged then, and one when it answers.

    Attributes:
        answered: Set once the store has answered anything.
    """

    def __init__(self) -> None:
        self.answered = threading.Event()
        self._lock = ProcessLock()
        self._away_since_s: float | None = None  # the time of the first failure, if it was logged
        self._logged_s = -math.inf

    def note_failures(self, since_s: float, error: TransientError, total_s: float) -> None:
        """Note that an operation has failed since `since_s`, and is repeated for up to `total_s`."""
        now = time.monotonic()
        with self._lock:
            if self._away_since_s is not None or now - self._logged_s < total_s:
                return
            self._away_since_s, self._logged_s = since_s, now
        _log.warning("%s; trying again for up to %.0f s", error.strerror, total_s)

    def note_success(self) -> None:
        """Note that an operation has succeeded."""
        self.answered.set()
        if self._away_since_s is None:
            return
        with self._lock:
            since_s, self._away_since_s = self._away_since_s, None
        if since_s is not None:
            _log.warning("yogadl: the store answers again, after %.0f s", time.monotonic() - since_s)


class Retrier:
    """Run operations on one store under a `RetryPolicy`. Safe to use from several threads.

    Attributes:
        presence: Whether the store answers; shared by all users of the same store.
        given_up_s: When a request was last given up, of the monotonic clock, or ``None`` if one was answered
            since.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self.presence = Presence()
        self.given_up_s: float | None = None

    def note_success(self) -> None:
        """Note that a request was answered."""
        self.given_up_s = None
        self.presence.note_success()

    def call(self, attempt: Callable[[], Result], what: str = "use the store") -> Result:
        """Return the result of `attempt`; see `Attempts.call`."""
        return Attempts(self, what).call(attempt)


class Attempts:
    """The attempts at one operation. One thread makes them; any thread may report progress.

    Args:
        retrier: The policy and the presence of the store.
        what: The operation, for messages.
    """

    def __init__(self, retrier: Retrier, what: str = "use the store") -> None:
        self._retrier = retrier
        self._policy = retrier.policy
        self._what = what
        # When these attempts end at the latest, if a request of the same operation was given up before.
        self._hurried_end_s: float | None = None
        self._sent_bytes = 0  # the most that one attempt sent
        self.restart()
        given_up_s = retrier.given_up_s
        if given_up_s is not None and given_up_s > operation_start_s():
            self._hurried_end_s = given_up_s + min(_LEAST_ATTEMPT_S, self._policy.total_s / 4)

    @property
    def is_hurried(self) -> bool:
        """Whether a request of the same operation was given up before, so this one waits but a moment."""
        return self._hurried_end_s is not None

    def restart(self) -> None:
        """Start the policy's time and the count of failures again, since the operation has made progress."""
        self._hurried_end_s = None
        self._failures = 0
        self._last: TransientError | None = None
        self._bytes = 0
        self._begun = time.monotonic()

    def moved(self, size_bytes: int) -> None:
        """Note that bytes have arrived, or were sent."""
        self._bytes += size_bytes
        if self._bytes >= PROGRESS_BYTES:
            self.restart()

    def sends_anew(self) -> Callable[[int], None]:
        """Return `moved` for an attempt that sends all again, in which bytes sent before are no progress."""
        sent_bytes = 0

        def moved(size_bytes: int) -> None:
            nonlocal sent_bytes
            sent_bytes += size_bytes
            if sent_bytes > self._sent_bytes:
                more, self._sent_bytes = sent_bytes - self._sent_bytes, sent_bytes
                self.moved(more)

        return moved

    def answered(self) -> None:
        """Note that the store has done the operation."""
        self._hurried_end_s = None
        self._retrier.note_success()

    def call(self, attempt: Callable[[], Result]) -> Result:
        """Return the result of `attempt`, called again while it raises `TransientError`.

        Raises:
            UnavailableError: if the policy's time is over.
            StorageError: any other that `attempt` raises.
        """
        while True:
            try:
                result = self.run(attempt)
            except TransientError as error:
                self.failed(error)
            else:
                self.answered()
                return result

    def run(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, called in a thread, which is abandoned if it makes no progress.

        Raises:
            UnavailableError: if the policy's time is over.
        """
        if self._hurried_end_s is not None and time.monotonic() >= self._hurried_end_s:
            raise self._unavailable()
        done = threading.Event()
        results: list[Result] = []
        errors: list[BaseException] = []

        def call() -> None:
            try:
                results.append(work())
            except BaseException as error:  # noqa: BLE001  (raised by the waiting thread)
                errors.append(error)
            done.set()

        try:
            threading.Thread(target=call, name="yogadl-request", daemon=True).start()
        except RuntimeError:  # the system has no more threads, or the interpreter shuts down
            return work()
        least_s = time.monotonic() + _LEAST_ATTEMPT_S
        while not done.is_set():
            end_s = self._hurried_end_s or max(self._begun + self._policy.total_s, least_s)
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise self._unavailable()
            done.wait(left_s)
        if errors:
            try:
                raise errors[0]
            finally:
                errors.clear()  # otherwise the traceback and this list would form a reference cycle
        return results[0]

    def failed(self, error: TransientError) -> None:
        """Sleep before the next attempt, longer each time, at random, so that clients do not retry in step.

        The sleep is at least the store's Retry-After, but is cut so that one more attempt fits into the
        policy's time.

        Raises:
            UnavailableError: if the policy's time is over.
        """
        if not isinstance(error, UnreachableError):
            self._retrier.presence.answered.set()
        has_answered = self._retrier.presence.answered.is_set()
        longest = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2**self._failures)
        delay = random.uniform(longest / 4, longest)
        self._failures += 1
        self._last = error
        waited = time.monotonic() - self._begun
        left_s = self._policy.total_s - waited
        if error.after_s > delay:
            most_s = left_s - min(_LEAST_ATTEMPT_S, self._policy.total_s / 4)
            delay = min(error.after_s, most_s) if most_s > 0 else error.after_s
        # The next attempt to connect may take long itself.
        is_endpoint_wrong = not has_answered and waited + delay > _NEVER_ANSWERED_LIMIT_S
        if is_endpoint_wrong or delay > left_s or self.is_hurried:
            raise self._unavailable() from error
        if waited > _LOG_AFTER_S:
            self._retrier.presence.note_failures(self._begun, error, self._policy.total_s)
        time.sleep(delay)

    def _unavailable(self) -> UnavailableError:
        if not self.is_hurried:
            self._retrier.given_up_s = time.monotonic()
        advice = "see whether the store is up and can be reached, then try again"
        if not self._retrier.presence.answered.is_set():
            advice = (
                "this endpoint has never answered: check its host and port, its http:// or https://, "
                f"{advice}"
            )
        if self._last is not None:
            number, problem = self._last.errno, self._last.strerror
        else:
            least = f"{PROGRESS_BYTES // 1024} KiB were sent or received"
            limit = f"{self._policy.total_s:g} s (patience_s)"
            number, problem = errno.EAGAIN, f"can't {self._what}: fewer than {least} in {limit}"
        return UnavailableError(number, f"{problem} (tried {max(1, self._failures)} times; {advice})")
