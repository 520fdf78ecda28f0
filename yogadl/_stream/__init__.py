"""Read forwards: records in an order, sharded, batched, read ahead, and resumed exactly.

The one door: adapters take all that they need from here. Behind it, one idea a module, each standing on
those before it. Integers: `shard` which positions are whose, `cut` how they make batches, `cursor` a place
as JSON, `skipped` what is left out, `numbering` items by number, `pieces` the rows of each item. Reading:
`rows` which records come where, `run` reads them and counts what that takes, `ahead` announces them, `blocks`
them in any order, `items` makes records or batches of them, `prefetch` is a stage, `stats` what it all took,
`recipe` all of it together, `plan` what it will take. Worker processes: `worker` is one, `transport` its
memory, `channel` its socket, `pool` asks them, `deaths` says how they failed, `workers` makes items so.
Delivering: `claims` who reads which epoch, `iterator` one by one, `stream` and `loader` what users hold and
adapters take, `given` what adapters check, `opening` how users get it, `numbered` batches by number, for
callers that count.
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
