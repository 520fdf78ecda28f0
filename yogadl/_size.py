"""Read and write sizes with units, such as 256MB."""

import re
from typing import Final

from yogadl.errors import ConfigurationError

_UNITS: Final = {
    "": 1, "B": 1,
    "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([A-Za-z]*)")


def bytes_of(size: int | str) -> int:
    """Return the number of bytes in a size such as ``5000``, ``"256MB"`` or ``"1GiB"``.

    Raises:
        ConfigurationError: if it is no size.
    """
    if isinstance(size, str):
        found = _SIZE.fullmatch(size.strip())
        unit = _UNITS.get(found[2].upper()) if found else None
        count = 0 if not found or unit is None else int(float(found[1]) * unit)
    else:
        count = size if type(size) is int else 0
    if count < 1:
        raise ConfigurationError(f"give a size such as 256MB or 1GiB, not {size!r}")
    return count


def in_words(size_bytes: float) -> str:
    """Return a number of bytes as text with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 999.5:
            is_whole = unit == "B" or size_bytes >= 99.95
            return f"{size_bytes:.{0 if is_whole else 1}f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.1f} TB"
