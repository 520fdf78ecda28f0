"""Find the line of the user's own code that a warning should point at."""

import sys
from types import FrameType


def users_level(*libraries: str) -> int:
    """Return the `stacklevel` that makes a warning of the calling function point at the user's own line.

    The user's line is the innermost one outside of this library. The `yogadl` command counts as a user: it
    shows such warnings itself.

    Args:
        libraries: Packages through which the user may have called this library; their lines are skipped, too.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_passed_over(frame, {"yogadl", *libraries}):
        frame, level = frame.f_back, level + 1
    return level


def _is_passed_over(frame: FrameType, libraries: set[str]) -> bool:
    names = frame.f_globals.get("__name__", "").split(".")
    return names[0] in libraries and names[:2] != ["yogadl", "cli"]
