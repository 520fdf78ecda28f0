"""Show the progress of a build, a transfer, or an iterator."""

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

# Called with the number of records done, the number of all records (None if unknown), and the bytes done.
Progress = Callable[[int, int | None, int], None]

# Short builds show no bar.
_DELAY_S: Final = 2.0
_LINE_EVERY_S: Final = 10.0


def must_log(progress: bool | Progress | None) -> bool:
    """Return whether only the log can report progress.

    True if the caller has not decided whether to show it, and there is no terminal to show it on.
    """
    return progress is None and not sys.stderr.isatty()


def report_to_both(first: Progress | None, second: Progress | None) -> Progress | None:
    """Return a function that reports to both, or the one that is not None."""
    if first is None or second is None:
        return first or second

    def report(records: int, total: int | None, size_bytes: int) -> None:
        first(records, total, size_bytes)
        second(records, total, size_bytes)

    return report


class ProgressDisplay:
    """Progress as the user sees it: a bar on a terminal, a line now and then elsewhere.

    Args:
        title: The name of the work.
        bar: A tqdm bar, or ``None``.
        print_line: Prints a line, if there is no bar.
    """

    def __init__(self, title: str, bar: Any = None, print_line: Callable[[str], object] = print) -> None:
        self._title = title
        self._bar = bar
        self._print_line = print_line
        self._partitions = (0, 0)
        self._start_s = self._last_line_s = time.monotonic()
        self._last: tuple[int, int | None, int, str] | None = None

    def set_partitions(self, done: int, count: int) -> None:
        """Set the number of partitions written, and of all partitions, to show them from now on."""
        self._partitions = done, count

    def __call__(self, records: int, total: int | None, size_bytes: int, details: str = "") -> None:
        """Show the progress, and additional text."""
        now = time.monotonic()
        self._last = records, total, size_bytes, details
        if self._bar is not None or now - self._last_line_s >= _LINE_EVERY_S:
            self._show(now, *self._last)

    def end(self) -> None:
        """Show the progress once more if there is no bar: a short build has printed no line yet."""
        if self._bar is None and self._last is not None:
            self._show(time.monotonic(), *self._last)

    def _show(self, now: float, records: int, total: int | None, size_bytes: int, details: str) -> None:
        self._last_line_s, elapsed_s = now, max(now - self._start_s, 1e-6)
        done, count = self._partitions
        facts = [f"{size_bytes / 2**20:,.0f} MiB", f"{size_bytes / elapsed_s / 1e6:,.1f} MB/s"]
        if details:
            facts.append(details)
        if count:
            facts.append(f"{done} of {count} partitions")
        if self._bar is None or total is None:  # a bar with a total shows the time left itself
            share = records / total if total else done / max(1, count)
            if 0 < share < 1:
                facts.append(f"{elapsed_s / share - elapsed_s:,.0f} s left")
        if self._bar is None:
            of = "" if total is None else f" of {total:,}"
            self._print_line(f"{self._title}: {records:,}{of} records, {', '.join(facts)}")
            return
        self._bar.total = total
        self._bar.set_postfix_str(", ".join(facts), refresh=False)
        self._bar.update(records - self._bar.n)


@contextlib.contextmanager
def showing_progress(progress: bool | Progress | None, title: str) -> Iterator[Progress | None]:
    """Yield the function to report to: the caller's, a bar, lines, or None."""
    if callable(progress):
        yield progress
        return
    if progress is False or must_log(progress):
        yield None
        return
    if not sys.stderr.isatty():
        lines = ProgressDisplay(title, print_line=functools.partial(print, file=sys.stderr, flush=True))
        yield lines
        lines.end()
        return
    from tqdm import tqdm

    delay_s = 0.0 if progress else _DELAY_S
    with tqdm(desc=title, unit=" records", unit_scale=True, delay=delay_s) as bar:
        yield ProgressDisplay(title, bar)


class Tally:
    """Adds up the progress of a build's partitions, and reports it. `note` may be called from any thread.

    Args:
        title: The name of the build.
        count: The number of partitions.
        total: The number of records, if known.
        show: The function that shows the progress; ``None``: `print_line` prints it.
        report: Called with the progress as well.
        print_line: Prints a line now and then; used only if `show` is None.
    """

    def __init__(
        self,
        title: str,
        count: int,
        total: int | None,
        show: Progress | None,
        report: Progress | None,
        print_line: Callable[[str], object],
    ) -> None:
        self._count = count
        self._total = total
        self._show = show or ProgressDisplay(title, print_line=print_line)
        self._report = report
        self._written: dict[int, tuple[int, int]] = {}
        self._finished: set[int] = set()
        self._lock = threading.Lock()
        self._last_reported = (0, 0)

    def note(self, partition: int, records: int, size_bytes: int, is_whole: bool = False) -> None:
        """Set how many records and bytes of a partition are written, and whether all are."""
        with self._lock:
            if is_whole:
                self._finished.add(partition)
            if is_whole or partition not in self._finished:
                self._written[partition] = records, size_bytes

    def report_total(self) -> None:
        """Report the total; it never decreases, although a killed worker's partition is written anew."""
        with self._lock:
            records = max(self._last_reported[0], sum(records for records, _ in self._written.values()))
            size_bytes = max(
                self._last_reported[1], sum(size_bytes for _, size_bytes in self._written.values())
            )
            done = len(self._finished)
        self._last_reported = records, size_bytes
        if isinstance(self._show, ProgressDisplay):
            self._show.set_partitions(done, self._count)
        for report in filter(None, (self._report, self._show)):
            report(records, self._total, size_bytes)


@contextlib.contextmanager
def showing_bytes(
    progress: Callable[[int, int], None] | None, title: str, total_bytes: int
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield the function that a transfer reports to: the caller's, or a bar if there is a terminal."""
    if progress is not None or not sys.stderr.isatty():
        yield progress
        return
    from tqdm import tqdm

    with tqdm(desc=title, total=total_bytes, unit="B", unit_scale=True, delay=_DELAY_S) as bar:

        def show_bytes(done: int, _: int) -> None:
            bar.update(done - bar.n)  # tqdm adds the difference to what it shows

        yield show_bytes
