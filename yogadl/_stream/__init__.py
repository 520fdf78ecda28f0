"""Read records forwards: ordered, sharded, batched, read ahead, and resumed exactly.

Adapters import everything they need from this module. Each module has one job and builds on the ones
named before it. Integers only: `shard` computes the positions of a shard, `cut` groups rows into batches,
`cursor` stores a place as JSON, `skipped` leaves positions out, `numbering` numbers items, `pieces` lists the
rows of each item. Reading: `rows` holds records and their positions, `run` reads them and counts the time,
`ahead` announces them, `blocks` reads them in any order, `items` makes records or batches of them, `prefetch`
is a stage, `stats` adds up times and counts, `recipe` combines all of these, `plan` estimates the cost.
Worker processes: `worker` runs in one, `transport` is its memory, `channel` its socket, `pool` sends requests
to workers, `deaths` describes their failures, `workers` makes items in them. Delivery: `claims` assigns
epochs to iterators, `iterator` delivers items one by one, `stream` and `loader` are for users and adapters,
`given` checks the arguments of adapters, `opening` opens a stream for users, `numbered` reads batches by
number, for callers that count.
"""

from yogadl._stream.ahead import Ahead
from yogadl._stream.claims import Claims
from yogadl._stream.cursor import Identity, read_cursor, write_cursor
from yogadl._stream.cut import Cut, Span
from yogadl._stream.deaths import Names
from yogadl._stream.given import as_order, as_stream
from yogadl._stream.items import Batches, Finish, Pending, Read
from yogadl._stream.iterator import Restartable, StreamIterator, begin
from yogadl._stream.loader import Loader
from yogadl._stream.numbered import NumberedBatches
from yogadl._stream.numbering import Numbering
from yogadl._stream.opening import open_shard, open_stream
from yogadl._stream.prefetch import ForkedError, Prefetch
from yogadl._stream.recipe import ItemStage, Make, Progress, Recipe
from yogadl._stream.rows import Flags, Rows
from yogadl._stream.run import INDICES, Counters, Run
from yogadl._stream.shard import Point, Shard, walk
from yogadl._stream.stats import Stats
from yogadl._stream.stream import RecordStream
from yogadl._stream.workers import InWorkers, WorkerOptions

__all__ = [
    "Ahead",
    "Batches",
    "Claims",
    "Counters",
    "Cut",
    "Finish",
    "Flags",
    "ForkedError",
    "INDICES",
    "InWorkers",
    "Identity",
    "Loader",
    "Make",
    "Names",
    "NumberedBatches",
    "Numbering",
    "Pending",
    "Point",
    "Prefetch",
    "Progress",
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
    "WorkerOptions",
    "as_order",
    "as_stream",
    "begin",
    "open_shard",
    "open_stream",
    "read_cursor",
    "walk",
    "write_cursor",
]
