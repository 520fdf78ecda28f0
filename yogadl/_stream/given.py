"""Check the streams that callers pass to adapters."""

from typing import Any

from yogadl._core.protocols import DataRef, Stream
from yogadl._stream.loader import Loader
from yogadl._stream.stream import RecordStream
from yogadl.errors import ConfigurationError


def as_stream(given: Any) -> RecordStream:  # Any: the value is checked here
    """Return the argument, if it is a stream of this library.

    Raises:
        ConfigurationError: if it is anything else; the error tells what to pass instead.
    """
    if isinstance(given, RecordStream):
        return given
    kind = type(given).__name__
    if isinstance(given, Loader):
        raise ConfigurationError("pass the stream itself, and batch_size=, instead of stream.batch(...)")
    if isinstance(given, DataRef):
        raise ConfigurationError(
            f"a {kind} says which records there are, but in no order yet: pass a stream of it, such as "
            "ref.stream(shuffle=True)"
        )
    if isinstance(given, Stream):
        raise ConfigurationError(
            f"a {kind} of your own can only be read forwards, once: pass what DataRef.stream of this library "
            "returned; yogadl.from_source(...) makes a DataRef of anything with a length and items"
        )
    raise ConfigurationError(
        f"a {kind} is no stream: pass what ref.stream(...) returned, where ref comes from storage.fetch(...) "
        "or yogadl.from_source(...)"
    )


def as_order(given: Any) -> RecordStream:  # Any: the value is checked here
    """Return the argument, if it is a stream of which only the indices will be used.

    Raises:
        ConfigurationError: if it is no stream, or has functions, which would never be called.
    """
    stream = as_stream(given)
    if stream.run.chain is not None:
        raise ConfigurationError(
            f"a sampler gives only indices, so {stream.run.chain} would not be called: pass the "
            "stream itself to make_dataloader, or let the DataLoader read ref.map(...)"
        )
    return stream
