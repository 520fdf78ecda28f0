"""Repeat operations on a store that failed for a passing reason, with backoff and a limit in time."""

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from yogadl._lock import ProcessLock
from yogadl.errors import ConfigurationError, StorageError

_log: Final = logging.getLogger("yogadl")
_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 10.0
# Failures that pass sooner are not logged.
_LOG_AFTER_S: Final = 5.0
# A refused port or an unknown host is most likely a mistyped endpoint, until the store has answered once.
_MISTAKEN_S: Final = 4.0

Result = TypeVar("Result")


class TransientError(StorageError):
    """A failure after which a new attempt may succeed: a reset connection, a stall, a 500 or 503."""


class UnreachableError(TransientError):
    """No connection could be made: a refused port, an unknown host, a server without TLS."""


class UnavailableError(StorageError):
    """The store did not answer within the time of its `RetryPolicy`."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a store.

    Args:
        silence_s: A connection on which nothing arrives for so long is closed, and the request repeated.
        total_s: One operation is repeated for so long, counted from its first failure since it last made
            progress; only for some seconds while no connection could ever be made to this store.

    Raises:
        ConfigurationError: if either is not above 0.
    """

    silence_s: float = 30.0
    total_s: float = 120.0

    def __post_init__(self) -> None:
        given: dict[str, object] = {"silence_s": self.silence_s, "patience_s": self.total_s}
        for name, value in given.items():  # not checked by a type before: it comes from the user
            if isinstance(value, bool) or not (isinstance(value, int | float) and value > 0):
                raise ConfigurationError(
                    f"a store needs some time to answer: {name} must be a number of seconds above 0, not "
                    f"{value!r}"
                )


DEFAULT_RETRY: Final = RetryPolicy()
# For a question to which there is another answer.
HURRIED_RETRY: Final = RetryPolicy(silence_s=3.0, total_s=3.0)


class Presence:
    """What is known of whether a store answers, by all who ask it in this process. Safe for threads.

    A store that is away fails many operations: that is logged once, and once that it is back.

    Attributes:
        answered: Set once it has answered anything.
    """

    def __init__(self) -> None:
        self.answered = threading.Event()
        self._lock = ProcessLock()
        self._away_since_s: float | None = None  # since when operations failed, if that was logged
        self._logged_s = -math.inf

    def is_away(self, since_s: float, error: TransientError, total_s: float) -> None:
        """Note that an operation has failed since then, and is repeated for so long."""
        now = time.monotonic()
        with self._lock:
            if self._away_since_s is not None or now - self._logged_s < total_s:
                return
            self._away_since_s, self._logged_s = since_s, now
        _log.warning("%s; trying again for up to %.0f s", error.strerror, total_s)

    def is_here(self) -> None:
        """Note that an operation was done."""
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
        presence: Whether the store answers; shared by all who ask the same store.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self.presence = Presence()

    def call(self, attempt: Callable[[], Result]) -> Result:
        """Return what `attempt` returns, called again while it raises `TransientError`.

        Raises:
            UnavailableError: if the policy's time is over.
            StorageError: any other that `attempt` raises.
        """
        attempts = Attempts(self)
        while True:
            try:
                result = attempt()
            except TransientError as error:
                attempts.failed(error)
            else:
                self.presence.is_here()
                return result


class Attempts:
    """The attempts at one operation. Not for several threads."""

    def __init__(self, retrier: Retrier) -> None:
        self._retrier = retrier
        self._policy = retrier.policy
        self.restart()

    def restart(self) -> None:
        """Forget the failures so far, since the operation has made progress."""
        self._failures = 0
        self._begun = time.monotonic()

    def failed(self, error: TransientError) -> None:
        """Sleep before the next attempt, longer each time; at random, so that clients do not return in step.

        Raises:
            UnavailableError: if the policy's time is over.
        """
        if not isinstance(error, UnreachableError):
            self._retrier.presence.answered.set()
        has_answered = self._retrier.presence.answered.is_set()
        if self._failures == 0:
            self._first_failed = time.monotonic()
        longest = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2**self._failures)
        delay = random.uniform(longest / 4, longest)
        self._failures += 1
        now = time.monotonic()
        waited = now - self._first_failed
        # Counted from the beginning of the attempt: to fail to connect may itself take long.
        is_mistaken = not has_answered and now - self._begun + delay > _MISTAKEN_S
        if is_mistaken or waited + delay > self._policy.total_s:
            advice = "see whether the store is up and can be reached, then try again"
            if not has_answered:
                advice = (
                    f"nothing has ever answered there: check the endpoint, its http:// or https://, {advice}"
                )
            raise UnavailableError(
                error.errno, f"{error.strerror} (tried {self._failures} times; {advice})"
            ) from error
        if waited > _LOG_AFTER_S:
            self._retrier.presence.is_away(self._first_failed, error, self._policy.total_s)
        time.sleep(delay)
