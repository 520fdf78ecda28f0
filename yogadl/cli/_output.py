"""Output of the command: tables, sizes, times and messages for people, JSON for scripts, progress bars."""

import json
import math
import os
import shutil
import sys
import threading
import time
import unicodedata
from collections.abc import Container, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from yogadl._core.arguments import in_words
from yogadl._core.printable import printable

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
        self._has_ended = threading.Event()
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
            self._has_ended.set()
            if self._is_shown:
                self._write(_CLEAR)
            self._is_shown = False

    def _tick(self) -> None:
        wait_s = _DELAY_S
        while not self._has_ended.wait(wait_s):
            wait_s = _TICK_S
            with self._lock:
                if not self._has_ended.is_set():
                    self._is_shown = True
                    self._write(f"{_CLEAR}{self._title}: {time.monotonic() - self._began:.0f} s")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


_GAP: Final = "  "
_COLORS: Final = {"bold": "1", "red": "1;31", "yellow": "33"}

size = in_words  # `size(5000)`: a number of bytes as text


# The line on the terminal that shows how long the command has run, or None before `wait`.
_waiting: Waiting | None = None


def wait(title: str) -> None:
    """Show how long the command has run, until the first output."""
    global _waiting  # noqa: PLW0603 (a process has one terminal)
    _waiting = Waiting(title)
    _waiting.begin()


def stop_waiting() -> None:
    """Remove the line that shows how long the command has run."""
    if _waiting is not None:
        _waiting.end()


def say(text: str = "", color: str = "") -> None:
    """Print a line for people, with the control characters of a terminal escaped."""
    stop_waiting()
    print(_colored(printable(text), color, sys.stdout))


def note(text: str, color: str = "") -> None:
    """Print a line on stderr, which scripts do not read; `color` is the colour of the prefix "yogadl:"."""
    stop_waiting()
    print(f"{_colored('yogadl:', color, sys.stderr)} {printable(text)}", file=sys.stderr)


def say_table(lines: Sequence[str]) -> None:
    """Print the lines of `table`, the header in bold."""
    for number, line in enumerate(lines):
        say(line, "" if number else "bold")


def say_json(**document: Any) -> None:  # any value that json can write
    """Print one JSON document with these keys, in this order."""
    stop_waiting()
    print(json.dumps(document, indent=1, allow_nan=False))


def picked(what: Any, *names: str) -> dict[str, Any]:  # any object that has these attributes
    """Return some attributes of an object by their names, for JSON."""
    return {name: getattr(what, name) for name in names}


def _colored(text: str, color: str, stream: TextIO) -> str:
    """Return a text in a colour if the stream is a terminal and NO_COLOR (https://no-color.org) is unset."""
    if not color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\x1b[{_COLORS[color]}m{text}\x1b[0m"


def error_line(error: BaseException) -> str:
    """Return an error's message as one line, without the number at the start of an OSError's message."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return " ".join(text.split())


def width() -> int:
    """Return the number of columns of a line."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Return the lines of a table; the columns numbered in `right` are aligned to the right."""
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(columns_of, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = []
        for number, (cell, column_width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (column_width - columns_of(cell))
            padded.append(space + cell if number in right else cell + space)
        lines.append(_GAP.join(padded).rstrip())
    return lines


def columns_of(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def cut(text: str, columns: int) -> str:
    """Return the text, or its beginning and three dots if the text takes more columns than `columns`."""
    if columns_of(text) <= columns:
        return text
    kept: list[str] = []
    columns_left = columns - 3
    for character in text:
        columns_left -= columns_of(character)
        if columns_left < 0:
            break
        kept.append(character)
    return "".join(kept) + "..."


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, which gets an s unless the number is 1."""
    return f"{count:,} {noun}" + "s" * (count != 1)


def contents(version_info: Any) -> str:  # as in `stored`
    """Return a version's number of records, its size and its number of files."""
    return f"{counted(version_info.records, 'record')}, {stored(version_info)}"


def stored(version_info: Any) -> str:  # a DatasetInfo or a Manifest: the help must not import their modules
    """Return a version's size and its number of files."""
    return f"{size(version_info.size_bytes)} in {counted(version_info.parts, 'file')}"


def repair_result(names: Sequence[str]) -> str:
    """Return the result of checking files in a mirror: all sound, or the names of those that were damaged."""
    if not names:
        return "all sound"
    was = "was" if len(names) == 1 else "were"
    return f"{counted(len(names), 'file')} {was} damaged, and downloaded again ({', '.join(names)})"


def moment(seconds: float | None) -> str | None:
    """Return a time as ISO 8601 in UTC, or None for an invalid time, as in a damaged file."""
    found = _utc(seconds)
    return None if found is None else found.isoformat(timespec="seconds").replace("+00:00", "Z")


def day_and_time(seconds: float | None) -> str:
    """Return a time as date, hour and minute in UTC."""
    found = _utc(seconds)
    return "?" if found is None else found.strftime("%Y-%m-%d %H:%M")


def _utc(seconds: float | None) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds or math.nan, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def ago(seconds: float, now: float | None = None) -> str:
    """Return how long ago a time was, in its largest unit."""
    if _utc(seconds) is None:
        return "at an unknown time"
    elapsed_s = (time.time() if now is None else now) - seconds
    for unit, length_s in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if elapsed_s >= length_s:
            return f"{counted(int(elapsed_s // length_s), unit)} ago"
    return "just now"


def duration(elapsed_s: float) -> str:
    """Return a duration in seconds."""
    return f"{elapsed_s:.2f} s" if elapsed_s < 10 else f"{elapsed_s:,.0f} s"


class Bar:
    """A progress bar on stderr, with the rate and the time left; it appears only if stderr is a terminal.

    Args:
        title: The text before the bar.
        total: The number at the end, or ``None`` if it is unknown.
        unit: The unit of the numbers.
        stays: Whether it appears at once and stays; else it appears after two seconds, and is cleared.
    """

    def __init__(self, title: str, total: float | None, unit: str = "B", *, stays: bool = False) -> None:
        from tqdm import tqdm

        shape: dict[str, Any] = {"desc": title, "total": total, "unit": unit, "unit_scale": True}
        delay_s = 0.0 if stays else _DELAY_S
        self._bar = tqdm(**shape, delay=delay_s, disable=None, leave=stays, file=sys.stderr)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def show(self, done: float) -> None:
        """Move the bar to `done`."""
        self.add(done - self._bar.n)

    def add(self, done: float) -> None:
        """Advance the bar by `done`, but not beyond the end: a sum of seconds may exceed it by rounding."""
        total = self._bar.total
        self._bar.update(done if total is None else min(done, total - self._bar.n))

    def clear(self) -> None:
        """Clear the bar's line for a line of text; the next move draws the bar again."""
        self._bar.clear()
