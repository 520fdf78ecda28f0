"""Check the fields that a user chooses from foreign files."""

from typing import Any

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
