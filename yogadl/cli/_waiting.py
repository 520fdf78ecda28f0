"""Show on the terminal that a command is at work, while it has no other output."""

import sys
import threading
import time
from typing import Final

_DELAY_S: Final = 2.0
_TICK_S: Final = 1.0
_CLEAR: Final = "\r\x1b[K"


class Waiting:
    """A line on the terminal that shows how long a command has run, after two seconds, until it prints.

    Args:
        title: The text before the seconds.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._is_shown = False
        self._began = time.monotonic()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start to show the line, if stderr is a terminal."""
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._tick, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Stop, and clear the line for the next output."""
        with self._lock:
            self._over.set()
            if self._is_shown:
                self._write(_CLEAR)
            self._is_shown = False

    def _tick(self) -> None:
        wait_s = _DELAY_S
        while not self._over.wait(wait_s):
            wait_s = _TICK_S
            with self._lock:
                if not self._over.is_set():
                    self._is_shown = True
                    self._write(f"{_CLEAR}{self._title}: {time.monotonic() - self._began:.0f} s")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
