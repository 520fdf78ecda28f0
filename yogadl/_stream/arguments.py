"""Check the arguments a caller gives: the one place that words "must be a whole number"."""

import operator
from typing import Any

import numpy as np

from yogadl.errors import ConfigurationError


def whole(name: str, value: Any, least: int | None = 0) -> int:  # Any: what strangers pass is the point
    """Return `value` as a Python int, of at least `least` if there is one; a bool is no number here.

    Raises:
        ConfigurationError: if it is anything else; names the argument.
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        limit = "" if least is None else f" of at least {least}"
        raise ConfigurationError(f"{name} must be a whole number{limit}, not {value!r}")
    return number


def flag(name: str, value: Any) -> bool:  # Any: see above
    """Return `value` as a Python bool.

    Raises:
        ConfigurationError: if it is neither True nor False; names the argument.
    """
    if not isinstance(value, bool | np.bool_):
        raise ConfigurationError(f"{name} must be True or False, not {value!r}")
    return bool(value)
