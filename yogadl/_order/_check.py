"""Check the integer arguments of an order."""

import operator

import numpy as np
from numpy.typing import NDArray

from yogadl.errors import ConfigurationError

RECORDS_LIMIT = 1 << 62


def check_records(records: int) -> None:
    """Raise ConfigurationError unless an order can have this many records."""
    if not 0 <= records <= RECORDS_LIMIT:
        raise ConfigurationError(f"An order can't have {records} records; it takes from 0 to 2**62.")


def check_count(name: str, count: int) -> int:
    """Return a count of at least 1 as a Python int, or raise ConfigurationError."""
    try:
        value = operator.index(count)
    except TypeError as error:
        raise ConfigurationError(f"{name} must be an integer, not {count!r}.") from error
    if not 1 <= value <= RECORDS_LIMIT:
        raise ConfigurationError(f"{name} must be from 1 to 2**62, not {value}.")
    return value


def check_within(numbers: NDArray[np.int64], records: int, noun: str) -> NDArray[np.int64]:
    """Return the numbers in one dimension, or raise IndexError if one is not in ``range(records)``."""
    flat = np.ascontiguousarray(numbers, dtype=np.int64).reshape(-1)
    # As unsigned integers, negative numbers are huge, so one maximum finds both errors (0.1 ns an index).
    if flat.size and int(flat.view(np.uint64).max()) >= records:
        wrong = int(flat[(flat < 0) | (flat >= records)][0])
        raise IndexError(f"There is no {noun} {wrong} in an order of {records} records.")
    return flat
