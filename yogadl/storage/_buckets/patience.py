"""Try again what may well succeed the next time, bounded in time."""

import logging
import random
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

Result = TypeVar("Result")


class TryAgainError(StorageError):
    """Say what just failed and may succeed the next time: a reset, a stall, a 500 or 503."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for a store.

    Args:
        silence_s: A connection on which nothing came for so long is given up, and taken up again.
        total_s: For so long one operation is tried again, from its first failure since it last came forward.

    Raises:
        ConfigurationError: if either is not above 0.
    """

    silence_s: float = 30.0
    total_s: float = 120.0

    def __post_init__(self) -> None:
        if not (self.silence_s > 0 and self.total_s > 0):
            raise ConfigurationError(
                f"a store needs some time to answer: silence_s and total_s are above 0, not {self.silence_s} "
                f"and {self.total_s}"
            )


PATIENCE: Final = Patience()


class Trials:
    """The trials of one operation, which end when patience does. Not for several threads."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self.restart()

    def restart(self) -> None:
        """Forget the failures so far: something came forward."""
        self._failures = 0
        self._is_said = False

    def failed(self, error: TryAgainError) -> None:
        """Sleep before the next trial, longer each time, at random: clients must not all come back at once.

        Raises:
            StorageError: if patience is at its end.
        """
        if self._failures == 0:
            self._first_failed = time.monotonic()
        longest = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2**self._failures)
        delay = random.uniform(longest / 4, longest)
        self._failures += 1
        waited = time.monotonic() - self._first_failed
        if waited + delay > self._patience.total_s:
            raise StorageError(
                error.errno,
                f"{error.strerror} (tried {self._failures} times; see whether the store is "
                "up and can be reached, then try again)",
            ) from error
        if waited > _WORTH_A_WORD_S and not self._is_said:
            self._is_said = True
            _log.warning("%s; trying again for up to %.0f s", error.strerror, self._patience.total_s)
        time.sleep(delay)


def persist(patience: Patience, attempt: Callable[[], Result]) -> Result:
    """Return what `attempt` returns, called again while it raises `TryAgainError`.

    Raises:
        StorageError: if patience is at its end, or any that `attempt` raises otherwise.
    """
    trials = Trials(patience)
    while True:
        try:
            return attempt()
        except TryAgainError as error:
            trials.failed(error)
