"""How much tests try that have a long form: little in the suite, much with `--soak`, as in `tox -m soak`."""

from typing import Final, TypeVar

Amount = TypeVar("Amount")
_OPTIONS: Final = {"is_long": False}  # set by `conftest.py`, before test modules are imported


def set_long(is_long: bool) -> None:
    """Note whether this run of pytest is a long one."""
    _OPTIONS["is_long"] = is_long


def few_or_many(few: Amount, many: Amount) -> Amount:
    """Return what the suite tries, or what the long form tries."""
    return many if _OPTIONS["is_long"] else few
