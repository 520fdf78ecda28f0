"""Read records forwards: ordered, sharded, batched, read ahead, and resumed exactly.

Adapters import everything they need from this module. Each module builds on the ones named before it.
Integers only: `cut` divides the rows of an epoch, `cursor` is a place in them. Reading: `run` reads rows,
`block_ahead` chooses whole blocks to hold, `items` makes records or batches of them, `prefetch` is a stage of
threads, `recipe` combines all of these, `plan` estimates the cost. Worker processes: `worker` runs in one,
`transport` is its memory, `pool` sends requests to workers, `deaths` describes their failures, `workers`
makes items in them. Delivery: `iterator` delivers items one by one, `stream` is for users, `opening` opens a
stream, or reads its batches by number, for callers that count.
"""

from typing import TYPE_CHECKING, Any

from yogadl._stream.cursor import Identity, Numbering, read_cursor, write_cursor
from yogadl._stream.cut import Cut, Flags, Point, Rows, Shard, Span, walk
from yogadl._stream.deaths import WorkerErrors
from yogadl._stream.items import Batches, Finish, ItemStage, Pending, Read
from yogadl._stream.iterator import Restartable, StreamIterator, begin
from yogadl._stream.opening import NumberedBatches, as_order, as_stream, open_shard, open_stream
from yogadl._stream.prefetch import ForkedError, Prefetch, Stats
from yogadl._stream.recipe import Make, MakeInWorkers, Recipe
from yogadl._stream.run import INDICES_PER_CHUNK, Ahead, Counters, Run
from yogadl._stream.stream import Loader, RecordStream, html_of

if TYPE_CHECKING:
    from yogadl._stream.workers import WorkerOptions

__all__ = [
    "Ahead",
    "Batches",
    "Counters",
    "Cut",
    "Finish",
    "Flags",
    "ForkedError",
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
    "ItemStage",
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


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:  # any attribute of the module
        if name == "WorkerOptions":  # most streams have no workers
            from yogadl._stream.workers import WorkerOptions

            return WorkerOptions
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
