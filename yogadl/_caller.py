"""Find the line of the user's own that led here: what a warning points at."""

import sys


def users_level(*libraries: str) -> int:
    """Return the `stacklevel` by which a warning of the calling function points at the user's own line.

    That is the innermost one outside of this library.

    Args:
        libraries: Packages through which the user may have called us; their lines are passed over, too.
    """
    others = {"yogadl", *libraries}
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in others:
        frame, level = frame.f_back, level + 1
    return level
