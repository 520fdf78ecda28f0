"""Check what a user says of the fields of foreign files."""

import datetime
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np

from yogadl._core.advice import fill_of
from yogadl._core.forms import EMPTY
from yogadl._core.spec import Leaf
from yogadl._foreign.file_reader import FileReader
from yogadl.errors import ConfigurationError

_NUMBERS: Final = (bool, int, float, np.generic, datetime.date, datetime.timedelta)


def check_fields(fields: Any) -> None:
    """Refuse fields that are no tuple of different names.

    Raises:
        ConfigurationError: if they are none.
    """
    if fields is None:
        return
    if not isinstance(fields, tuple) or not fields or not all(type(name) is str for name in fields):
        raise ConfigurationError(
            f'fields are a tuple of names, such as ("image", "label"), not {fields!r:.200}'
        )
    if len(set(fields)) != len(fields):
        raise ConfigurationError(f"a field is named twice: {fields!r:.200}")


# How a caller says what comes in the place of missing values.
MissingArgument = str | Mapping[str, Any] | None


class Missing:
    """What comes in the place of values that files lack.

    Args:
        said: ``None``: they are refused; ``"empty"``: all that can be empty are; or by the names of fields
            ``"empty"`` or, in a field of numbers, a number.

    Raises:
        ConfigurationError: if it is none of these.
    """

    def __init__(self, said: MissingArgument) -> None:
        are_names = isinstance(said, Mapping) and all(isinstance(name, str) for name in said)
        if not are_names and not (said is None or (isinstance(said, str) and said == EMPTY)):
            raise ConfigurationError(
                f'missing is "empty", or a dict such as {{"label": -1, "text": "empty"}}, not {said!r:.100}'
            )
        self._said = said

    def fill(self, name: str, leaf: Leaf) -> Any:
        """Return what comes where a field has no value: ``"empty"``, a number, or ``None``: it is refused.

        Raises:
            ConfigurationError: if the field can't have what was said.
        """
        can_be_empty = not leaf.is_numeric or not leaf.is_fixed
        if isinstance(self._said, str):
            return EMPTY if can_be_empty else None
        value = (self._said or {}).get(name)
        if value is None:
            return None
        if isinstance(value, str) and value == EMPTY and can_be_empty:
            return EMPTY
        if leaf.is_numeric and leaf.shape == () and isinstance(value, _NUMBERS):
            found = _as_number(value, leaf.numpy_dtype)
            if found is not None:
                return found
        raise ConfigurationError(
            f"missing={{{name!r}: {value!r:.100}}}: the field is {leaf}; its values stay in the files, so in "
            'the place of missing ones come "empty" values, of bytes, text and arrays of any length, or, of '
            "numbers without a shape, a number of that type"
        )

    def check(self, leaves: Mapping[str, Leaf]) -> None:
        """Refuse what was said about other fields than these, or what they can't have.

        Raises:
            ConfigurationError: if there is any.
        """
        for name in self._said if isinstance(self._said, Mapping) else ():
            if name not in leaves:
                raise ConfigurationError(
                    f"missing={{{name!r}: ...}}: there is no such field; there are {', '.join(leaves)}"
                )
            self.fill(name, leaves[name])


def _as_number(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number as one of a field; ``None`` if the field can't have it."""
    if isinstance(value, bool | np.bool_) != (dtype.kind == "b"):
        return None
    if dtype.kind in "mM":
        time = np.asarray(value, None if isinstance(value, np.generic) else dtype)[()]
        is_exact = time.dtype.kind == dtype.kind and time.astype(dtype) == time
        return time.astype(dtype) if is_exact else None
    try:
        with np.errstate(all="ignore"):
            found = np.array(value).astype(dtype)[()]
        if dtype.kind == "f":  # the nearest one will do
            return found if np.isfinite(found) == np.isfinite(value) else None
        return found if found.item() == value else None
    except (OverflowError, ValueError, TypeError):
        return None


def missing_line(name: str, leaf: Leaf) -> str:
    """Return the argument that lets a field be read whose values are missing; empty if there is none."""
    if not (leaf.is_numeric and leaf.is_fixed):
        return 'missing="empty"'
    return f"missing={{{name!r}: {fill_of(leaf)}}}" if leaf.shape == () else ""


def refuse_unknown(reader: FileReader, what: str, names: Collection[str]) -> None:
    """Refuse names that nothing in the first file has, though they may be missing: they would all be empty.

    Raises:
        UnsupportedDataError: if there are any.
    """
    if names:
        reader.refuse(
            0,
            f"no {what} of this first file has {', '.join(map(repr, names))}: correct the name, or let a "
            "file come first that has it",
        )


def fill_to_json(value: Any) -> Any:
    """Return what comes in the place of missing values, without what JSON lacks.

    A float is a text, and a time a list of its dtype and its integer.
    """
    if isinstance(value, datetime.timedelta):
        value = np.timedelta64(value)
    elif isinstance(value, datetime.date):
        value = np.datetime64(value)
    if isinstance(value, np.datetime64 | np.timedelta64):
        return [str(value.dtype), int(value.astype(np.int64))]
    value = value.item() if isinstance(value, np.generic) else value
    return repr(value) if isinstance(value, float) else value


def fill_of_json(described: Any) -> Any:
    """Return the value that `fill_to_json` has described."""
    if isinstance(described, list) and len(described) == 2:
        return np.array(described[1], np.int64).view(described[0])[()]
    return described if described == EMPTY or not isinstance(described, str) else float(described)
