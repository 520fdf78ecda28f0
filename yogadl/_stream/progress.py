"""Count what an iterator has delivered of what it claimed."""

from dataclasses import dataclass

from yogadl._stream.cut import Span


@dataclass(slots=True)
class Progress:
    """What was delivered of a span; without a span, nothing was claimed yet.

    The consumer's own thread counts here, never a thread that reads ahead.
    """

    span: Span | None = None
    items: int = 0
    is_finished: bool = False
