"""Read forwards: records in an order, sharded, batched, read ahead, and resumed exactly.

`open_stream` is the door. Below it, one idea a module: `rows` which positions are whose, `cursor` a place
as JSON, `run` which records those are, `items` reading them as records or batches, `claims` who reads
which epoch, `iterator` delivering, `stream` and `batch` what users hold, `prefetch` a stage,
`numbered` batches by number, for whoever counts by himself, `given` what adapters take for a stream.
"""

from yogadl._stream.batch import Loader
from yogadl._stream.given import as_stream
from yogadl._stream.iterator import StreamIterator
from yogadl._stream.numbered import NumberedBatches
from yogadl._stream.stream import Plan, RecordStream, open_stream

__all__ = ["Loader", "NumberedBatches", "Plan", "RecordStream", "StreamIterator", "as_stream", "open_stream"]
