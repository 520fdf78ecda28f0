"""Count what an iterator has delivered of what it claimed."""

from yogadl._stream.cut import Span


class Progress:
    """What was delivered of a span; without a span, nothing was claimed yet.

    The consumer's own thread counts here, never a thread that reads ahead.
    """

    __slots__ = ("is_finished", "items", "span")

    def __init__(self, span: Span | None = None) -> None:
        self.span = span
        self.items = 0
        self.is_finished = False
