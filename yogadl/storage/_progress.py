"""Show how far a build is, or a transfer."""

import contextlib
import sys
from collections.abc import Callable, Iterator

Progress = Callable[[int, int | None, int], None]

# Short builds show no bar.
_DELAY_S = 2.0


def is_shown(progress: bool | Progress | None) -> bool:
    """Return whether a build's progress can be seen, or is not wanted: else a log has to say it."""
    return progress is not None or sys.stderr.isatty()


def both(one: Progress | None, other: Progress | None) -> Progress | None:
    """Return what reports to both of them, as far as there are any."""
    if one is None or other is None:
        return one or other

    def report(records: int, total: int | None, size_bytes: int) -> None:
        one(records, total, size_bytes)
        other(records, total, size_bytes)

    return report


@contextlib.contextmanager
def shown(progress: bool | Progress | None, title: str) -> Iterator[Progress | None]:
    """Give what a build reports to: the caller's function, a bar, or nothing."""
    if callable(progress):
        yield progress
        return
    if progress is False or not is_shown(progress):
        yield None
        return
    from tqdm import tqdm

    delay_s = 0.0 if progress else _DELAY_S
    with tqdm(desc=f"building {title}", unit=" records", unit_scale=True, delay=delay_s) as bar:

        def report(records: int, total: int | None, size_bytes: int) -> None:
            bar.total = total
            bar.set_postfix_str(f"{size_bytes / 2**20:.0f} MiB", refresh=False)
            bar.update(records - bar.n)

        yield report


@contextlib.contextmanager
def shown_bytes(
    progress: Callable[[int, int], None] | None, title: str, total_bytes: int
) -> Iterator[Callable[[int, int], None] | None]:
    """Give what a transfer reports to: the caller's function, or a bar if there is a terminal."""
    if progress is not None or not sys.stderr.isatty():
        yield progress
        return
    from tqdm import tqdm

    with tqdm(desc=title, total=total_bytes, unit="B", unit_scale=True, delay=_DELAY_S) as bar:
        yield lambda done, total: bar.update(done - bar.n) and None
