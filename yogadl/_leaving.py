"""End threads that still read while the interpreter is on its way out."""

import threading


def end_if_left_behind() -> None:
    """End this thread, silently, if it is a daemon and the interpreter is on its way out.

    What it reads by is gone by then, so reading raises this or that; nobody is there whom that concerns.
    To be called where a user's thread would be given an error.

    Raises:
        SystemExit: which ends a thread, and is not printed.
    """
    # The main thread counts as ended as soon as the interpreter begins to leave.
    if threading.current_thread().daemon and not threading.main_thread().is_alive():
        raise SystemExit from None
