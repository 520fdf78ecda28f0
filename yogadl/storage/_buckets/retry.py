"""Try again what may well succeed the next time, bounded in time."""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from yogadl.errors import ConfigurationError, StorageError

_log: Final = logging.getLogger("yogadl")
_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 10.0
# Shorter troubles are a store's everyday life; longer ones somebody may be waiting on.
_WORTH_A_WORD_S: Final = 5.0
# A port that refuses, a name that nobody knows: until a store has answered once, most likely a mistake.
_MISTAKEN_S: Final = 4.0

Result = TypeVar("Result")


class TransientError(StorageError):
    """Say what just failed and may succeed the next time: a reset, a stall, a 500 or 503."""


class UnreachableError(TransientError):
    """Say that nobody was there to talk to: a port that refuses, an unknown host, one that speaks no TLS."""


class UnavailableError(StorageError):
    """Say that a store was waited for in vain."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a store.

    Args:
        silence_s: A connection on which nothing came for so long is given up, and taken up again.
        total_s: For so long one operation is tried again, from its first failure since it last came forward;
            at most for some seconds as long as the store can't even be reached and never has been.

    Raises:
        ConfigurationError: if either is not above 0.
    """

    silence_s: float = 30.0
    total_s: float = 120.0

    def __post_init__(self) -> None:
        given: dict[str, object] = {"silence_s": self.silence_s, "patience_s": self.total_s}
        for name, value in given.items():  # whatever the caller took for a number
            if isinstance(value, bool) or not (isinstance(value, int | float) and value > 0):
                raise ConfigurationError(
                    f"a store needs some time to answer: {name} must be a number of seconds above 0, not "
                    f"{value!r}"
                )


DEFAULT_RETRY: Final = RetryPolicy()
# For a question that can go without an answer.
HURRIED_RETRY: Final = RetryPolicy(silence_s=3.0, total_s=3.0)


class Retrier:
    """Whether a store has ever answered, and how long to wait for it. Safe to use from several threads.

    Args:
        patience: How long to wait for a store that has; what can't be reached and never answered is given up
            within seconds.
        answered: Set once it has; shared by all who ask the same store.
    """

    def __init__(self, patience: RetryPolicy, answered: threading.Event | None = None) -> None:
        self.patience = patience
        self.answered = answered or threading.Event()


class Attempts:
    """The trials of one operation, which end when patience does. Not for several threads."""

    def __init__(self, contact: Retrier) -> None:
        self._contact = contact
        self._patience = contact.patience
        self.restart()

    def restart(self) -> None:
        """Forget the failures so far: something came forward."""
        self._failures = 0
        self._is_said = False
        self._begun = time.monotonic()

    def failed(self, error: TransientError) -> None:
        """Sleep before the next trial, longer each time, at random: clients must not all come back at once.

        Raises:
            AwayError: if patience is at its end.
        """
        if not isinstance(error, UnreachableError):
            self._contact.answered.set()
        has_answered = self._contact.answered.is_set()
        if self._failures == 0:
            self._first_failed = time.monotonic()
        longest = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2**self._failures)
        delay = random.uniform(longest / 4, longest)
        self._failures += 1
        now = time.monotonic()
        waited = now - self._first_failed
        # What can't be reached may take its time to say so: that counts, too.
        is_mistaken = not has_answered and now - self._begun + delay > _MISTAKEN_S
        if is_mistaken or waited + delay > self._patience.total_s:
            advice = "see whether the store is up and can be reached, then try again"
            if not has_answered:
                advice = (
                    f"nothing has ever answered there: check the endpoint, its http:// or https://, {advice}"
                )
            raise UnavailableError(
                error.errno, f"{error.strerror} (tried {self._failures} times; {advice})"
            ) from error
        if waited > _WORTH_A_WORD_S and not self._is_said:
            self._is_said = True
            _log.warning("%s; trying again for up to %.0f s", error.strerror, self._patience.total_s)
        time.sleep(delay)


def persist(contact: Retrier, attempt: Callable[[], Result]) -> Result:
    """Return what `attempt` returns, called again while it raises `TransientError`.

    Raises:
        AwayError: if patience is at its end.
        StorageError: any that `attempt` raises otherwise.
    """
    trials = Attempts(contact)
    while True:
        try:
            result = attempt()
        except TransientError as error:
            trials.failed(error)
        else:
            contact.answered.set()
            return result
