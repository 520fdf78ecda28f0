"""End daemon threads that still read while the interpreter exits."""

import threading


def end_if_left_behind() -> None:
    """End this thread silently, if it is a daemon and the interpreter is exiting.

    The objects that reading needs are gone by then, so reading raises arbitrary errors that are of no use to
    the user. Call this function where an error would reach a user's thread.

    Raises:
        SystemExit: ends the thread, and is not printed.
    """
    # The main thread counts as ended as soon as the interpreter begins to exit.
    if threading.current_thread().daemon and not threading.main_thread().is_alive():
        raise SystemExit from None
