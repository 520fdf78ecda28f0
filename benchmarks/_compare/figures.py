"""Numbers of what was found, and how they are written."""

import statistics
from typing import Any

Found = dict[str, Any]


def rates_of(of: Found) -> tuple[float, float]:
    """Return records a second without and with two workers, 0 where there are none."""
    rates = [of.get(f"records_per_s_{workers}") for workers in (0, 2)]
    without, with_two = (
        statistics.median(rate) if isinstance(rate, list) and rate else 0.0 for rate in rates
    )
    return without, with_two


def shown_number(value: float) -> str:
    """Return a number with two or three digits that count."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if value >= limit:
            short = value / limit
            return f"{short:.0f}{unit}" if short >= 99.5 else f"{short:.3g}{unit}"
    return f"{value:.3g}"
