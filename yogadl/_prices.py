"""Define the prices of a store for reading."""

import math
from typing import Final

from yogadl._frozen import frozen
from yogadl.errors import ConfigurationError


@frozen
class Prices:
    """The prices of a store for reading, in dollars or any other currency.

    Args:
        per_1000_requests: The price of a thousand requests that get bytes of an object. Add other costs of
            each request, such as those of an audit log or of a key service.
        per_gb: The price of a GB (1e9 bytes) that leaves the store: to another region, through a NAT, or to
            the internet.

    Raises:
        ConfigurationError: if a price is no number, or below 0.

    Example:
        >>> import yogadl
        >>> abroad = yogadl.Prices(per_1000_requests=0.0004, per_gb=0.02)
        >>> abroad.of(requests=1_000_000, size_bytes=8e9)
        0.56
    """

    per_1000_requests: float = 0.0
    per_gb: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value < math.inf:
                raise ConfigurationError(f"Prices: {name} must be a number, 0 or more, not {value!r}")

    def of(self, requests: float, size_bytes: float) -> float:
        """Return the cost of a number of requests that receive a number of bytes in total."""
        return requests / 1000 * self.per_1000_requests + size_bytes / 1e9 * self.per_gb


# As of November 2026, for the standard class, read from the store's own region, where bytes are free. S3: GET
# in us-east-1; Google: class B operations in one region.
_PRICES: Final = {"s3": Prices(0.0004), "gs": Prices(0.0004)}


def usual_prices(url: str) -> Prices:
    """Return the usual prices of the store of a URL; 0 for an unknown store."""
    return _PRICES.get(url.partition("://")[0], Prices())
