"""Declare `DataRef`, `Stream` and `Storage`, the interface of random access beneath them, and prices."""

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl._core.spec import Spec
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:  # type checkers have this package; the default makes `Stream` mean `Stream[Any]`
    from typing_extensions import TypeVar

    Item_co = TypeVar("Item_co", covariant=True, default=Any)  # a record, or a batch
    Made = TypeVar("Made", default=Any)  # the result of a function of a record
else:
    from typing import TypeVar

    Item_co, Made = TypeVar("Item_co", covariant=True), TypeVar("Made")

# The name of the stage that reads records, in the statistics of stages.
READ: Final = "read"

# One field of a batch: rows stacked in an array, or a list if the length varies.
Column = NDArray[Any] | list[Any]
Int64s = NDArray[np.int64]
Indices = Int64s  # the numbers of records


class Stream(Generic[Item_co]):
    """One epoch of records that can only be read forwards.

    Users may construct this class with an iterator function of their own. `DataRef.stream` of this
    library returns a subclass that can also be batched, resumed and read from any position.

    Args:
        iterator_fn: Called without arguments, returns an iterator over the records of one epoch.
        length: How many records one epoch has.
        output_types: The dtypes, as the framework that receives the stream needs them; not used here.
        output_shapes: The same for shapes.
    """

    def __init__(
        self,
        iterator_fn: Callable[[], Iterator[Item_co]],
        length: int,
        output_types: Any = None,  # a framework's own tree of types
        output_shapes: Any = None,  # a framework's own tree of shapes
    ) -> None:
        self.iterator_fn = iterator_fn
        self.length = length
        self.output_types = output_types
        self.output_shapes = output_shapes

    def __iter__(self) -> Iterator[Item_co]:
        return self.iterator_fn()

    def __len__(self) -> int:
        return self.length


class DataRef(abc.ABC, Generic[Item_co]):
    """A reference to a dataset whose records can be streamed in any order.

    `CacheStorage.fetch` and `yogadl.from_source` return a `yogadl.RecordsRef`, which also has random access,
    shares, filters, functions and more: ``help(yogadl.RecordsRef)`` describes its methods.

    Users may subclass this: `stream` and ``__len__`` are all that a `DataRef` of their own must have.
    """

    @abc.abstractmethod
    def stream(
        self,
        start_offset: int = 0,
        shuffle: Any = False,  # bool, or a named order such as yogadl.Blocks
        skip_shuffle_at_epoch_end: bool = False,
        shuffle_seed: int | None = None,
        shard_rank: int = 0,
        num_shards: int = 1,
        drop_shard_remainder: bool = False,
    ) -> Stream[Item_co]:
        """Return the records of this reader's share, in the order that `shuffle` chooses."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of records of the dataset."""


class Storage(abc.ABC):
    """Builds datasets once, keeps them, and returns references to them."""

    @abc.abstractmethod
    def submit(self, data: Any, dataset_id: str, dataset_version: str) -> DataRef | None:
        """Build a cache from any source and publish it, replacing an existing version atomically.

        Returns:
            A `DataRef` to the cache; a storage of your own may return ``None``, as those of yogadl 0.1.4.
        """

    @abc.abstractmethod
    def fetch(self, dataset_id: str, dataset_version: str) -> DataRef:
        """Return a `DataRef` to a published cache."""

    @abc.abstractmethod
    def cacheable(
        self, dataset_id: str, dataset_version: str
    ) -> Callable[[Callable[..., Any]], Callable[..., DataRef]]:
        """Decorate a function that returns a source, so that it returns a `DataRef`, built once."""


@frozen
class Earlier:
    """A version whose records a later version begins with.

    Args:
        version: The name of the version.
        records: The number of its records.
        fingerprint: The hash of its content.
    """

    version: str
    records: int
    fingerprint: str


@frozen
class Lineage:
    """The dataset version that records belong to.

    Args:
        id: The name of the dataset.
        version: The name of the version.
        tag: The tag by which the version was requested, if any.
        earlier: The versions that this one begins with, the oldest first.
    """

    id: str
    version: str
    tag: str | None = None
    earlier: tuple[Earlier, ...] = ()

    def to_json(self) -> dict[str, str]:
        """Return id and version, and the tag if there is one."""
        document = {"id": self.id, "version": self.version}
        return document if self.tag is None else document | {"tag": self.tag}


class Memory(Protocol):
    """Allocates the arrays that batches are gathered into.

    Attributes:
        joins: Whether long bytes are gathered as `JoinedValues`, into one array.
    """

    joins: bool

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array of undefined content that nothing else refers to."""


class RandomAccess(Protocol):
    """Reads records at any indices, as columns.

    A cache, any object with ``__len__`` and ``__getitem__`` and every view implement this; the stream layer
    uses no other interface to read records. Implementations are safe to call from several threads at once,
    and picklable.
    """

    @property
    def spec(self) -> Spec:
        """The structure of a record."""

    @property
    def fingerprint(self) -> str:
        """The hash of the content, the same on every machine."""

    def __len__(self) -> int:
        """Return the number of records."""

    @property
    def record_bytes(self) -> int:
        """The approximate size of a record, from which readers choose how many to read at a time."""

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read the records in the order of `indices`: one column a field, in `spec.fields` order.

        `fields` chooses among the fields by number, in the order given. If `memory` is given, arrays that can
        be filled in place are allocated from it. `indices` is a one-dimensional int64 array whose values lie
        in ``range(len(self))``; any value may repeat. Every array returned is new, writable, C-contiguous
        memory.
        """


class Stretches(NamedTuple):
    """Which parts of the values of one field are announced, for a plan.

    Args:
        starts: The first byte of each.
        stops: The byte after the last.
        by: The view that reads them. Its `stored_lengths` returns the elements of each value of the cache,
            -1 where that is unknown; ``None``: of no value.
        number: The number of the field there.
        item_bytes: The bytes of an element.
    """

    starts: Indices
    stops: Indices
    by: Any
    number: int
    item_bytes: int


# Called instead of a cache's announcement, with the cache, the announced indices, the fields' numbers, and
# the stretches if only these are announced.
OnPlanned = Callable[[Any, Indices, Sequence[int] | None, Stretches | None], None]


def announce(
    records: RandomAccess,
    indices: Indices,
    fields: Sequence[int] | None = None,
    on_planned: OnPlanned | None = None,
) -> int:
    """Announce that these records will be read soon, if `records` has a `will_need`.

    Args:
        records: The records to read from.
        indices: The indices of the records.
        fields: The numbers of the fields; all if not given.
        on_planned: Called instead of each cache's announcement, if nothing will be read; see `stream.plan`.

    Returns:
        The number of following records that need no announcement, since the announced ones were in memory.
    """
    will_need = getattr(records, "will_need", None)
    if will_need is None:
        return 0
    exempt = will_need(indices, fields) if on_planned is None else will_need(indices, fields, on_planned)
    return exempt or 0


@frozen
class Locality:
    """How much of a cache is on this machine, and how much of the rest was read by range.

    Attributes:
        parts: The number of parts of the cache.
        parts_here: The number of parts on this machine.
        bytes: The size of all parts.
        bytes_here: The size of the parts on this machine.
        ranges: The number of requests by which this process read ranges.
        range_bytes: The number of bytes received by these requests.
    """

    parts: int = 0
    parts_here: int = 0
    bytes: int = 0
    bytes_here: int = 0
    ranges: int = 0
    range_bytes: int = 0

    def __add__(self, other: "Locality") -> "Locality":
        return Locality(*(mine + its for mine, its in zip(self.values(), other.values(), strict=True)))

    def values(self) -> tuple[int, ...]:
        """Return all values in the order of the attributes."""
        return tuple(vars(self).values())


def will_read(records: Any, count: int, *, held_bytes: int | None, is_scattered: bool) -> None:
    """Announce that a stream of this process is going to read `count` of these records in each epoch.

    `held_bytes` is the memory needed to hold the stream's blocks, if its order is of blocks. `is_scattered`
    tells whether it shuffles all records.
    """
    for view, its_count in reads_of(records, count):
        if hasattr(view, "will_read"):
            view.will_read(its_count, held_bytes=held_bytes, is_scattered=is_scattered)


def reads_of(records: Any, count: int) -> Iterator[tuple[Any, int]]:
    """Yield records, and all that they are views of, each with how many are read for `count` of the first."""
    count = min(count, len(records))
    yield records, count
    # A row of several documents is made of so many of its parent's records, on average.
    for parent in parents_of(records):
        yield from reads_of(parent, math.ceil(count * getattr(records, "parents_a_record", 1)))


def received_by(records: Any) -> tuple[int, int]:
    """Return how many requests for ranges of these records this process made, and the bytes it received."""
    received = [view.received for view in each_once(records) if hasattr(view, "received")]
    return sum(requests for requests, _ in received), sum(size_bytes for _, size_bytes in received)


def locality_of(records: Any) -> Locality:
    """Return how much of these records, and of all records below their views, is on this machine."""
    return sum((view.locality for view in each_once(records) if hasattr(view, "locality")), Locality())


def lineage_of(records: Any) -> Lineage | None:
    """Return the dataset version whose records these are; None unless they are all records of one version."""
    views = (view for view in views_of(records) if getattr(view, "lineage", None) is not None)
    return next((view.lineage for view in views if view.fingerprint == records.fingerprint), None)


def metadata_of(records: Any) -> dict[str, Any]:
    """Return the metadata of the version that these records are a view of; empty unless it is one version."""
    found = getattr(records, "metadata", None)
    parents = list(parents_of(records))
    if isinstance(found, dict) or len(parents) != 1:
        return found if isinstance(found, dict) else {}
    return metadata_of(parents[0])


def grown_versions(records: Any) -> list[Lineage]:
    """Return the versions that begin with others, of these records and of the records that they are views of.

    Below a slice that is an earlier version, there is a later one, whose other records are not read.
    """
    lineage: Lineage | None = getattr(records, "lineage", None)
    found = (each for parent in parents_of(records) for each in grown_versions(parent))
    grown = found if lineage is None else [lineage]
    return list(dict.fromkeys(each for each in grown if each.earlier))


def each_once(records: Any) -> Iterator[Any]:
    """Yield records, and all records that they are views of, each once: a cache may be joined with itself."""
    yield from {id(view): view for view in views_of(records)}.values()


def views_of(records: Any) -> Iterator[Any]:
    """Yield records, and all records that they are views of."""
    yield records
    for parent in parents_of(records):
        yield from views_of(parent)


def parents_of(records: Any) -> Sequence[Any]:
    """Return the records that these are a view of; none if they are no view."""
    parents = getattr(records, "parents", None) or (getattr(records, "parent", None),)
    return [parent for parent in parents if parent is not None]


def is_drawn(records: Any) -> bool:
    """Return whether an index of these records also has an epoch's draw; see `yogadl._order`."""
    drawn = drawn_below(records)
    return drawn is not None and bool(drawn.is_drawn)


def drawn_below(records: Any) -> Any:
    """Return the records below functions and a choice of fields that know whether they are drawn, or None."""
    while records is not None and not hasattr(records, "is_drawn"):
        records = getattr(records, "parent", None)
    return records


def numbers_of(records: RandomAccess, indices: Indices) -> Indices:
    """Return the numbers of records by which users know them: their indices without a draw.

    Of records that are drawn from others as they are, these are the indices in the others.
    """
    if not is_drawn(records):
        return indices
    drawn = drawn_below(records)
    return drawn.in_parent(indices) if hasattr(drawn, "in_parent") else indices % max(1, len(records))


def numbered(records: RandomAccess) -> RandomAccess:
    """Return the records that `numbers_of` counts."""
    if not is_drawn(records):
        return records
    drawn: Any = drawn_below(records)
    found: RandomAccess = drawn.parent if hasattr(drawn, "in_parent") else drawn
    return found


def prepare(records: Any, indices: Indices) -> None:
    """Have drawn records compute what many of them are made of, before they are read a few at a time."""
    while is_drawn(records):
        if hasattr(records, "prepare"):
            records.prepare(indices)
            return
        records = records.parent  # a view of the same indices


class Document(NamedTuple):
    """A stretch of a record in a row: all of the record, unless it is longer than a row and was cut.

    Attributes:
        record: The index of the record among those that were packed.
        start: The first of the record's values.
        stop: The value to stop before.
    """

    record: int
    start: int
    stop: int


def documents_of(records: Any, indices: Indices) -> list[list[Document]]:
    """Return for each index the records that it is made of; nothing if no record is made of several."""
    while is_drawn(records) and not hasattr(records, "documents"):
        records = records.parent  # a view of the same indices
    found: list[list[Document]] = records.documents(indices) if is_drawn(records) else []
    return found


@frozen
class Prices:
    """The prices of a store for reading, in dollars or any other currency.

    Args:
        per_1000_requests: The price of a thousand requests that get bytes of an object. Add other costs of
            each request, such as those of an audit log or of a key service.
        per_gb: The price of a GB (1e9 bytes) that leaves the store: to another region, through a NAT, or to
            the internet.

    Raises:
        ConfigurationError: if a price is no number, or below 0.

    Example:
        >>> import yogadl
        >>> abroad = yogadl.Prices(per_1000_requests=0.0004, per_gb=0.02)
        >>> abroad.of(requests=1_000_000, size_bytes=8e9)
        0.56
    """

    per_1000_requests: float = 0.0
    per_gb: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value < math.inf:
                raise ConfigurationError(f"Prices: {name} must be a number, 0 or more, not {value!r}")

    def of(self, requests: float, size_bytes: float) -> float:
        """Return the cost of a number of requests that receive a number of bytes in total."""
        return requests / 1000 * self.per_1000_requests + size_bytes / 1e9 * self.per_gb


# As of November 2026, for the standard class, read from the store's own region, where bytes are free. S3: GET
# in us-east-1; Google: class B operations in one region.
_PRICES: Final = {"s3": Prices(0.0004), "gs": Prices(0.0004)}


def usual_prices(url: str) -> Prices:
    """Return the usual prices of the store of a URL; 0 for an unknown store."""
    return _PRICES.get(url.partition("://")[0], Prices())
