"""Read records forwards: ordered, sharded, batched, read ahead, and resumed exactly.

Adapters import everything they need from this module. Each module builds on the ones named before it.
Integers only: `cut` divides the rows of an epoch, `cursor` is a place in them. Reading: `run` reads rows,
`block_ahead` chooses whole blocks to hold, `items` makes records or batches of them, `prefetch` is a stage of
threads, `plan` estimates the cost. Worker processes: `worker` runs in one, `transport` is its memory,
`options` says how they are started and words their errors, `pool` sends requests to them, `workers` makes
items in them. Delivery: `recipe` combines all of these, `iterator` delivers items one by one, `stream` is for
users, `opening` opens a stream, or reads its batches by number, for callers that count.
"""

from yogadl._stream.cursor import Identity, Numbering, read_cursor, write_cursor
from yogadl._stream.cut import Cut, Flags, Point, Rows, Shard, Span, walk
from yogadl._stream.items import Batches, Finish, Pending, Read
from yogadl._stream.iterator import Restartable, StreamIterator, begin
from yogadl._stream.opening import NumberedBatches, as_order, as_stream, open_shard, open_stream
from yogadl._stream.options import WorkerErrors, WorkerOptions
from yogadl._stream.recipe import Make, MakeInWorkers, Prefetch, Recipe, Stats
from yogadl._stream.run import INDICES_PER_CHUNK, Ahead, Run
from yogadl._stream.stream import Loader, RecordStream, html_of

__all__ = [
    "Ahead",
    "Batches",
    "Cut",
    "Finish",
    "Flags",
    "INDICES_PER_CHUNK",
    "Identity",
    "Loader",
    "Make",
    "MakeInWorkers",
    "NumberedBatches",
    "Numbering",
    "Pending",
    "Point",
    "Prefetch",
    "Read",
    "Recipe",
    "RecordStream",
    "Restartable",
    "Rows",
    "Run",
    "Shard",
    "Span",
    "Stats",
    "StreamIterator",
    "WorkerErrors",
    "WorkerOptions",
    "as_order",
    "as_stream",
    "begin",
    "html_of",
    "open_shard",
    "open_stream",
    "read_cursor",
    "walk",
    "write_cursor",
]
