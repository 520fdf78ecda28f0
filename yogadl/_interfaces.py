"""Declare the wall: what a `DataRef`, a `Stream` and a `Storage` are, and what lies beneath them."""

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

import numpy as np
from numpy.typing import NDArray

from yogadl._frozen import frozen
from yogadl._spec import Spec

if TYPE_CHECKING:  # whoever checks types has it; with the default, `Stream` alone is `Stream[Any]`
    from typing_extensions import TypeVar

    Item_co = TypeVar("Item_co", covariant=True, default=Any)  # a record, or a batch
    Made = TypeVar("Made", default=Any)  # what a function makes of one
else:
    from typing import TypeVar

    Item_co, Made = TypeVar("Item_co", covariant=True), TypeVar("Made")

# One field of a batch: rows stacked in an array, or a list where the length varies.
READ: Final = "read"  # what getting records from where they are is called, where stages are counted

Column = NDArray[Any] | list[Any]
Indices = NDArray[np.int64]


class Stream(Generic[Item_co]):
    """Hold one epoch's worth of records that can only be read forwards.

    Users may construct this class with an iterator function of their own; `DataRef.stream` of this
    library returns a subclass that can also be batched, resumed and read from any position.

    Args:
        iterator_fn: Called without arguments, returns an iterator over the records of one epoch.
        length: How many records one epoch has.
        output_types: What the framework hand-off needs to know about dtypes; opaque here.
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
    """Refer to a dataset whose records can be streamed in any order.

    Users subclass this: `stream` and ``__len__`` are all that an own `DataRef` must have.
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
        """Return the records of this reader's share, in the order asked for."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return how many records the dataset has."""


class Storage(abc.ABC):
    """Build datasets once, keep them, and hand out references to them."""

    @abc.abstractmethod
    def submit(self, data: Any, dataset_id: str, dataset_version: str) -> None:
        """Build a cache from any source and publish it, replacing an existing version atomically."""

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
    """A version whose records others begin with.

    Args:
        version: What it was called.
        records: How many it has.
        fingerprint: The hash of its content.
    """

    version: str
    records: int
    fingerprint: str


@frozen
class Lineage:
    """Which version of a dataset records are.

    Args:
        id: What the dataset is called.
        version: Which version it is.
        tag: By which tag it was asked for, if by one.
        earlier: The versions that it begins with, the oldest first.
    """

    id: str
    version: str
    tag: str | None = None
    earlier: tuple[Earlier, ...] = ()

    def to_json(self) -> dict[str, str]:
        """Return id and version, and the tag if there is one."""
        found = {"id": self.id, "version": self.version}
        return found if self.tag is None else found | {"tag": self.tag}


class Memory(Protocol):
    """Make the arrays that batches are gathered into."""

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array of undefined content that nothing else refers to."""


class RandomAccess(Protocol):
    """Answer "give me records 17, 4 and 9001", column by column.

    A cache, any ``__len__`` + ``__getitem__`` object and every derived view implement this; the
    stream layer knows nothing else of where records come from. Implementations are safe to call from
    several threads at once, and picklable.
    """

    @property
    def spec(self) -> Spec:
        """The structure of a record."""

    @property
    def fingerprint(self) -> str:
        """The content's hash, the same on every machine."""

    def __len__(self) -> int:
        """How many records there are."""

    @property
    def record_bytes(self) -> int:
        """About how large a record is, to choose how many to read at a time."""

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read the records, in the order asked for: one column a field, in `spec.fields` order.

        `fields` chooses among them by number, in the order given. Where an array can be filled in place,
        it comes from `memory`, if that is given.
        `indices` is a one-dimensional int64 array whose values lie in ``range(len(self))``; any
        value may repeat. Every array that comes back is new, writable, C-contiguous memory.
        """


# Called in a cache's place: with the cache, which of its records are announced, and which of their fields.
Planned = Callable[[Any, Indices, Sequence[int] | None], None]


def announce(
    records: RandomAccess,
    indices: Indices,
    fields: Sequence[int] | None = None,
    planned: Planned | None = None,
) -> int:
    """Say that these records will be read soon, if `records` has a `will_need` that can make use of it.

    Args:
        records: What will be read from.
        indices: Which records.
        fields: Which of their fields, by number; all if not given.
        planned: Who is told in place of caches, where nothing will be read; see `stream.plan`.

    Returns:
        For how many records after them that need not be said, since these were found in memory.
    """
    will_need = getattr(records, "will_need", None)
    if will_need is None:
        return 0
    found = will_need(indices, fields) if planned is None else will_need(indices, fields, planned)
    return found or 0


@frozen
class Locality:
    """Where the bytes of a cache are, and what was read of those that are not on this machine.

    Attributes:
        parts: How many parts the cache has.
        parts_here: How many of them are on this machine.
        bytes: The size of all parts.
        bytes_here: The size of those that are here.
        ranges: How many requests this process made to read by range.
        range_bytes: How many bytes it received by them.
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
        """Return all of it, in order."""
        return tuple(vars(self).values())


def will_read(records: Any, count: int, *, held_bytes: int | None) -> None:
    """Say that a stream of this process is going to read so many of these records an epoch.

    `held_bytes` is what it takes to hold its blocks, if its order is of blocks.
    """
    for view in views_of(records):
        if hasattr(view, "will_read"):
            view.will_read(min(count, len(view)), held_bytes=held_bytes)


def received_by(records: Any) -> tuple[int, int]:
    """Return how many requests this process made for ranges of these records, and how many bytes came."""
    found = [view.received for view in _each_once(records) if hasattr(view, "received")]
    return sum(requests for requests, _ in found), sum(size_bytes for _, size_bytes in found)


def locality_of(records: Any) -> Locality:
    """Return where the bytes of these records, and of all that they are views of, are."""
    return sum((view.locality for view in _each_once(records) if hasattr(view, "locality")), Locality())


def lineage_of(records: Any) -> Lineage | None:
    """Return which version of a dataset these are all the records of, if they are of one."""
    fingerprint = records.fingerprint
    for view in views_of(records):
        if hasattr(view, "lineage") and view.fingerprint == fingerprint:
            found: Lineage = view.lineage
            return found
    return None


def _each_once(records: Any) -> Iterator[Any]:
    """Yield records, and all that they are views of, each once: one cache may be joined with itself."""
    yield from {id(view): view for view in views_of(records)}.values()


def views_of(records: Any) -> Iterator[Any]:
    """Yield records, and all that they are views of."""
    yield records
    below = getattr(records, "parents", None) or (getattr(records, "parent", None),)
    for parent in below:
        if parent is not None:
            yield from views_of(parent)
