"""Check what a user says of the fields of foreign files."""

from collections.abc import Collection
from typing import Any

from yogadl._foreign.file_reader import FileReader
from yogadl.errors import ConfigurationError


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


def check_missing(missing: Any) -> None:
    """Refuse what does not say how a value that is missing is read.

    Raises:
        ConfigurationError: if it does not.
    """
    if missing not in ("error", "empty"):
        raise ConfigurationError(f'missing is "error" or "empty", not {missing!r:.100}')


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
