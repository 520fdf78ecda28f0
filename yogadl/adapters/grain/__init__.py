"""Hand streams to Grain, record by record or in whole batches, and read Grain's data into caches.

The names of this module need Grain. Its own guide, page by page over a cache: docs/grain.md.
"""

from collections.abc import Sequence
from typing import Any

from yogadl._arguments import names_of
from yogadl._dataref import takes_a_stream
from yogadl._sources import Source
from yogadl._stream import RecordStream
from yogadl.errors import MissingDependencyError

try:
    import grain
except ImportError as error:
    raise MissingDependencyError(
        "Grain's loaders and datasets need Grain: pip install 'yogadl[grain]'"
    ) from error

from yogadl.adapters.grain import _loader as loader
from yogadl.adapters.grain import _read as read
from yogadl.adapters.grain import _state as state
from yogadl.adapters.grain._dataset import StreamMapDataset
from yogadl.adapters.grain._sampler import Sampler
from yogadl.adapters.grain._sources import DataSource

__all__ = ["DataSource", "Sampler", "cursor", "make_dataloader", "map_dataset", "source"]


def source(data: Any, allow_pickle: bool = False) -> Source | None:  # any object of Grain's
    """Return the source in Grain's data, or ``None`` if it is read by position, as any list is.

    Args:
        data: A `grain.MapDataset`, `grain.IterDataset` or `grain.DataLoader`, of single records.
        allow_pickle: Whether leaves that have no stored form may be pickled.

    Raises:
        UnsupportedDataError: if it never ends, or a record can't be stored.
    """
    return read.source(data, allow_pickle)


def make_dataloader(
    stream: RecordStream,
    operations: Sequence[Any] = (),  # Grain's transformations: they share no type
    worker_count: int | None = 0,
    *,
    epochs: int | None = 1,
    batch_size: int | None = None,
    drop_remainder: bool = False,
    padding_field: str | None = None,
    skip_finished_epoch: bool = False,
    **options: Any,  # those of `grain.DataLoader`
) -> grain.DataLoader:
    """Return a `grain.DataLoader` that reads a stream, from its start on, each time that it is iterated over.

    What comes out is in the stream's order, with any number of workers: each is dealt whole batches, where
    ``grain.transforms.Batch`` follows on nothing but maps. A random map's generator is keyed by the stream's
    seed, the epoch and the record's position, whoever reads it. `cursor` takes its iterators and states.

    Args:
        stream: Which records, from where on, in which order, and whose share.
        operations: What to do with each record (with each batch, if `batch_size` is given).
        worker_count: How many processes do so; 0 for none, ``None`` for one a CPU.
        epochs: How many epochs to read; ``None``: without end.
        batch_size: Read whole batches of so many records, each in one step; ``None`` for single records.
        drop_remainder: Whether to leave out an epoch's last batch if it is short.
        padding_field: The name under which a bool a record says what repeats a record to fill the shard.
        skip_finished_epoch: Go on from a cursor that leaves no item of its epoch with the next epoch, and not
            by yielding nothing; see docs/cursors.md.
        **options: The other arguments of `grain.DataLoader`. ``read_options`` is no threads by default, since
            they slow down what needs no waiting; ``shard_options`` must say what the stream says.

    Raises:
        ConfigurationError: if the arguments make no sense, or the stream is a loader already.

    Example:
        >>> import grain, numpy as np, yogadl
        >>> from yogadl.adapters import grain as yogadl_grain
        >>> ref = yogadl.from_source({"x": np.arange(6)})
        >>> loader = yogadl_grain.make_dataloader(ref.stream(), [grain.transforms.Batch(4)])
        >>> [batch["x"].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]
        >>> [batch["x"].tolist() for batch in yogadl_grain.make_dataloader(ref.stream(), batch_size=4)]
        [[0, 1, 2, 3], [4, 5]]
    """
    loader.check_options(options, names_of(make_dataloader))
    numbering, items = loader.items_of(
        stream, epochs, batch_size, drop_remainder, padding_field, skip_finished_epoch
    )
    return loader.make_loader(numbering, items, list(operations), worker_count, options)


@takes_a_stream
def map_dataset(
    stream: RecordStream,
    batch_size: int | None = None,
    *,
    epochs: int | None = 1,
    drop_remainder: bool = False,
    padding_field: str | None = None,
    skip_finished_epoch: bool = False,
) -> StreamMapDataset:
    """Return a stream as a `grain.MapDataset`, of records or of batches, for the Dataset API.

    Element 0 is where the stream starts. ``.repeat()`` goes on with the stream's next epochs, each in its own
    order. Where the stream starts within an epoch, give `epochs` instead of ``.repeat(n)``, which would take
    that rest of an epoch for the length of all. Pass ``grain.ReadOptions(0, 0)`` to ``to_iter_dataset``:
    Grain's default, 16 threads and 500 elements held, is made for slow reads.

    Args:
        stream: Which records, from where on, in which order, and whose share.
        batch_size: Read whole batches of so many records, each in one step; ``None`` for single records.
        epochs: How many epochs its length stands for; ``None``: without end.
        drop_remainder: Whether to leave out an epoch's last batch if it is short.
        padding_field: The name under which a bool a record says what repeats a record to fill the shard.
        skip_finished_epoch: Start with the next epoch if a cursor leaves no item of its own: ``.repeat()``,
            which asks for the next epoch, needs it, since nothing can't be repeated.

    Raises:
        ConfigurationError: if the arguments make no sense, or the stream is a loader already.

    Example:
        >>> import numpy as np, yogadl
        >>> from yogadl.adapters import grain as yogadl_grain
        >>> ref = yogadl.from_source({"x": np.arange(6)})
        >>> dataset = yogadl_grain.map_dataset(ref.stream(), batch_size=4).map(lambda batch: batch["x"] * 10)
        >>> [batch.tolist() for batch in dataset]
        [[0, 10, 20, 30], [40, 50]]
    """
    loader.allow_workers()
    found = loader.items_of(stream, epochs, batch_size, drop_remainder, padding_field, skip_finished_epoch)
    return StreamMapDataset(*found)


def cursor(iterator_or_state: Any) -> dict[str, Any]:  # Grain's iterators, or their states
    """Return the cursor that stands behind what an iterator of Grain's has delivered.

    It resumes on any number of ranks or workers, with any batch size, in any framework: pass it to
    ``ref.stream(cursor=...)``. Reads nothing.

    Args:
        iterator_or_state: An iterator of a `grain.DataLoader`, or of datasets that begin with `map_dataset`;
            or what an iterator's ``get_state`` returned if `make_dataloader` made the loader.

    Raises:
        CursorError: if what was delivered may be no prefix of the order, or the state is of something else.

    Example:
        >>> import yogadl
        >>> from yogadl.adapters import grain as yogadl_grain
        >>> stream = yogadl.from_source([10, 11, 12, 13, 14]).stream()
        >>> batches = iter(yogadl_grain.make_dataloader(stream, batch_size=2))
        >>> next(batches).tolist()
        [10, 11]
        >>> yogadl_grain.cursor(batches)["position"], yogadl_grain.cursor(batches.get_state())["position"]
        (2, 2)
    """
    return state.cursor(iterator_or_state)
