"""Find the lines of text files, such as JSON Lines."""

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from yogadl._core.columns import MAX_LEAF_BYTES
from yogadl._core.frozen import frozen
from yogadl._core.protocols import Int64s
from yogadl._core.spec import BYTES, JSON, Leaf, Spec
from yogadl._foreign.compressed import refuse_compressed
from yogadl._foreign.file_reader import Batch, FileReader, Format, Places

_LINE_FEED: Final = 10
_CARRIAGE_RETURN: Final = 13
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")


@frozen
class Lines(Format):
    r"""Files of lines. A record is the bytes of a line without its end, which is ``\n`` or ``\r\n``.

    Empty lines are left out. The last line may lack its end.

    Args:
        parse: Whether a record is the json value that a line holds.
    """

    parse: bool = False

    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")
    reads_all: ClassVar[bool] = True

    @property
    def spec(self) -> Spec:
        """One leaf of bytes, or a json value."""
        return Spec(Leaf(JSON if self.parse else BYTES))

    def of_first_file(self, reader: FileReader) -> "Lines":
        """Return the format: all files have the same field."""
        return self

    def batches(self, reader: FileReader) -> Iterator[Batch]:
        """Yield the lines that begin in a window, then those of the next.

        Raises:
            UnsupportedDataError: if the file is compressed or UTF-16, or a line is too long.
        """
        refuse_compressed(reader, "gzip.open or the like")
        if bytes(reader.read(0, min(2, reader.size_bytes))) in _UTF_16:
            reader.refuse(0, "the file is UTF-16, in which lines end otherwise: convert it to UTF-8 (iconv)")
        position = 0
        while position < reader.size_bytes:
            starts, ends, position = _lines_of_window(reader, position)
            is_kept = ends > starts
            starts, ends = starts[is_kept], ends[is_kept]
            if len(starts):
                yield (Places(starts, ends - starts),)


def _lines_of_window(reader: FileReader, position: int) -> tuple[Int64s, Int64s, int]:
    """Return where the lines from here to the window's end begin and end, and where the next one begins."""
    window_end = min((position // reader.window_bytes + 1) * reader.window_bytes, reader.size_bytes)
    content = reader.array(position, "u1", window_end - position)
    feeds = np.flatnonzero(content == _LINE_FEED)
    has_return = content[feeds - 1] == _CARRIAGE_RETURN  # feeds - 1 may be -1, which is sorted out below
    starts = np.concatenate((np.zeros(1, np.int64), feeds + 1))
    has_return &= feeds > starts[:-1]
    ends = feeds - has_return
    starts += position
    ends += position
    if starts[-1] == window_end:
        return starts[:-1], ends, window_end
    feed = _next_feed(reader, int(starts[-1]), window_end)
    has_its_end = feed < reader.size_bytes
    end = feed - (has_its_end and feed > starts[-1] and reader.read(feed - 1, 1)[0] == _CARRIAGE_RETURN)
    return starts, np.append(ends, end), feed + has_its_end


def _next_feed(reader: FileReader, start: int, position: int) -> int:
    """Return where the line that begins at `start` has its line feed, at `position` or later, or the end."""
    while position < reader.size_bytes:
        window_end = min((position // reader.window_bytes + 1) * reader.window_bytes, reader.size_bytes)
        is_feed = reader.array(position, "u1", window_end - position) == _LINE_FEED
        first = int(is_feed.argmax())
        if is_feed[first]:
            window_end = position + first
        if window_end - start > MAX_LEAF_BYTES:
            reader.refuse(start, f"a line is longer than {MAX_LEAF_BYTES} bytes: is this a file of lines?")
        if is_feed[first]:
            return window_end
        position = window_end
    return position
