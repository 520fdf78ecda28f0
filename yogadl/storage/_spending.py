"""Count the cost of reading by range, and enforce limits."""

import errno
import time
from typing import Any

from yogadl._core.arguments import above_zero, in_words
from yogadl._core.process import ProcessLock
from yogadl._core.protocols import Prices
from yogadl.errors import ConfigurationError, SpendingError


class Spending:
    """The ranges that one process reads from one storage. Thread-safe; a pickled or forked copy begins at 0.

    Args:
        max_requests: The number of requests that may be made.
        max_requests_per_s: The number of requests that may be made each second.
        max_price: The price that requests and bytes may cost.
        prices: The prices of the store.

    Raises:
        ConfigurationError: if an argument is no number above 0, or `max_price` is given and all prices are 0.

    Attributes:
        prices: The prices of the store.
    """

    def __init__(
        self,
        max_requests: int | None = None,
        max_requests_per_s: float | None = None,
        max_price: float | None = None,
        prices: Prices | None = None,
    ) -> None:
        given = {
            "max_requests": max_requests,
            "max_requests_per_s": max_requests_per_s,
            "max_price": max_price,
        }
        for name, value in given.items():
            above_zero(name, value)
        if not isinstance(prices, Prices | None):
            raise ConfigurationError(f"prices must be yogadl.Prices(...), not {prices!r}")
        self.prices = prices or Prices()
        if max_price is not None and not self.prices.of(1, 1):
            raise ConfigurationError(
                "max_price: no price is known of this store; give prices=yogadl.Prices(...)"
            )
        self._max_requests, self._max_price = max_requests, max_price
        self._per_s = max_requests_per_s
        self._lock = ProcessLock()
        self._requests = self._bytes = 0
        self._next_s = 0.0

    def __reduce__(self) -> Any:
        # Pickled as plain numbers, because each reference to a cache pickles this, too.
        limits = self._max_requests, self._per_s, self._max_price
        return _limited, (*limits, *vars(self.prices).values())

    def take_request(self) -> None:
        """Count the next request, after a wait if there are too many each second.

        Raises:
            SpendingError: if the request would exceed a limit.
        """
        with self._lock:
            limit = self._reached()
            if limit is not None:
                which = "which is max_requests, " if limit == "max_requests" else ""
                received = f"{in_words(self._bytes)} received{'' if which else ', which is max_price'}"
                raise SpendingError(
                    errno.EDQUOT,
                    f"{self._requests} requests were made, {which}and {received}: raise {limit}, or fill a "
                    "mirror first (mirror_fill='always', `yogadl pull`)",
                )
            self._requests += 1
            now = time.monotonic()
            begins = now if self._per_s is None else max(now, self._next_s)
            self._next_s = begins + (0.0 if self._per_s is None else 1 / self._per_s)
        if begins > now:
            time.sleep(begins - now)

    def _reached(self) -> str | None:
        """Return the name of the limit that one more request would exceed."""
        if self._max_requests is not None and self._requests >= self._max_requests:
            return "max_requests"
        if self._max_price is None or self.prices.of(self._requests + 1, self._bytes) <= self._max_price:
            return None
        return "max_price"

    def add_bytes(self, size_bytes: int) -> None:
        """Count bytes that were received."""
        with self._lock:
            self._bytes += size_bytes


def _limited(
    max_requests: int | None,
    max_requests_per_s: float | None,
    max_price: float | None,
    per_1000_requests: float,
    per_gb: float,
) -> Spending:
    return Spending(max_requests, max_requests_per_s, max_price, Prices(per_1000_requests, per_gb))
