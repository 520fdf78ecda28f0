"""The times after which a silent builder is considered dead, and callers stop waiting for a builder."""

from typing import Final

from yogadl._core.frozen import frozen
from yogadl.errors import ConfigurationError

DEFAULT_TTL_S: Final = 300.0
_MIN_TTL_S: Final = 1.0


@frozen
class LeasePolicy:
    """The times after which a builder is considered dead, and callers stop waiting for one.

    Args:
        ttl_s: A builder without a heartbeat for this time is considered dead.
        wait_s: How long callers wait for a builder that is alive; ``None``: without limit.

    Raises:
        ConfigurationError: if either is invalid.
    """

    ttl_s: float = DEFAULT_TTL_S
    wait_s: float | None = None

    def __post_init__(self) -> None:
        ttl_s: object = self.ttl_s  # a value from the user may have any type
        wait_s: object = self.wait_s
        if not (isinstance(ttl_s, int | float) and _MIN_TTL_S <= ttl_s < float("inf")):
            raise ConfigurationError(
                f"lease_ttl_s must be a finite number of seconds, at least {_MIN_TTL_S:.0f}, "
                f"not {ttl_s!r:.100}"
            )
        if wait_s is not None and not (isinstance(wait_s, int | float) and wait_s >= 0):
            raise ConfigurationError(
                "wait_s must be a number of seconds, at least 0, or None to wait without limit, "
                f"not {wait_s!r:.100}"
            )
