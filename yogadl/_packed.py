"""Refer to records that each epoch draws anew: samples, and rows or batches of several records."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn, Self, SupportsIndex

from yogadl._core.arguments import checked_indices, explains_names, int_argument
from yogadl._core.protocols import Document, Item_co, Made
from yogadl._dataref import RecordsRef
from yogadl._order import Blocks, Drawn, draw_of
from yogadl._streamed import StreamedRef
from yogadl._views.packed import EpochRecords, packed_below
from yogadl.errors import ConfigurationError


class DrawnRef(StreamedRef[Item_co]):
    """A reference to records which each epoch draws anew, with replacement.

    `RecordsRef.sampled` returns it. It has streams, and can be a parent of `yogadl.mix`. `at` returns a
    reference of one epoch with random access.
    """

    _what: ClassVar = "sampled records have", "other records", "sampled", "sample"

    def __getitem__(self, _: Any) -> NoReturn:
        raise ConfigurationError(self._explained("[...]", "[...]"))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in vars(RecordsRef):
            advice = f"; filter, split or slice the records before you {self._what[3]} them"
            raise AttributeError(self._explained(name, f".{name}") + advice)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _explained(self, name: str, access: str) -> str:
        have, others, ref, _ = self._what
        return f"{have} no {name}: each epoch has {others}. For random access use {ref}.at(epoch){access}"

    def __iter__(self) -> Iterator[Item_co]:
        """Yield the records of the first epoch in the order of their numbers; this counts as no epoch."""
        return self.stream().at(0)

    def _order_for(self, shuffle: bool | Blocks) -> bool | Blocks | Drawn:
        if isinstance(shuffle, Blocks):
            raise ConfigurationError(
                "records that each epoch draws anew can't be read in blocks, since they lie anywhere: pass "
                "shuffle=True"
            )
        return Drawn(shuffle, steps=self._records.steps)

    def at(self, epoch: int, seed: int = 0) -> RecordsRef[Item_co]:
        """Return the records of one epoch, to be read at random.

        Args:
            epoch: The epoch.
            seed: The `shuffle_seed` of the stream whose epoch it is. (A mix draws others.)
        """
        return RecordsRef(self._epoch(epoch, seed))

    def _epoch(self, epoch: int, seed: int) -> EpochRecords:
        draw = draw_of(int_argument("seed", seed, None), int_argument("epoch", epoch), len(self))
        return EpochRecords(self._records, draw)

    @explains_names()
    def map(self, fn: Callable[[Item_co], Made], *, spec: Any = None) -> "DrawnRef[Made]":
        """Return a reference to ``fn(record)``; see `RecordsRef.map`."""
        return DrawnRef(RecordsRef(self._records).map(fn, spec=spec)._records)

    def fields(self, *names: str | int) -> Self:
        """Return a reference with just these fields; the others are not read. Cursors stay valid."""
        return type(self)(RecordsRef(self._records).fields(*names)._records)


class PackedRef(DrawnRef[Item_co]):
    """A reference to rows or batches of several records, which each epoch draws anew.

    `RecordsRef.packed` and `RecordsRef.bucketed` return it. It has streams, and can be a parent of
    `yogadl.mix`. `at` returns a reference of one epoch with random access.
    """

    _what = "packed records have", "other rows", "packed", "pack"

    def __repr__(self) -> str:
        return _shown(self)

    @property
    def padding(self) -> float:
        """The share of all tokens that are padding, if batches are padded to the longest of their class."""
        return packed_below(self._records).padding

    def at(self, epoch: int, seed: int = 0) -> "PackedEpoch[Item_co]":
        """Return the rows of one epoch, to be read at random.

        Args:
            epoch: The epoch.
            seed: The `shuffle_seed` of the stream whose epoch it is. (A mix draws other rows. What a stream
                has read is in ``iterator.last.documents``.)
        """
        return PackedEpoch(self._epoch(epoch, seed))

    @explains_names()
    def map(self, fn: Callable[[Item_co], Made], *, spec: Any = None) -> "PackedRef[Made]":
        """Return a reference to ``fn(row)``; see `RecordsRef.map`."""
        return PackedRef(super().map(fn, spec=spec)._records)


class PackedEpoch(RecordsRef[Item_co]):
    """A reference to the rows or batches of one epoch: see `PackedRef.at`."""

    def __repr__(self) -> str:
        return _shown(self)

    def documents(self, number: SupportsIndex) -> list[Document]:
        """Return the records that a row or batch is made of, in order, each with its stretch.

        Args:
            number: The number of the row or batch, as `StreamIterator.last` and errors say it.

        Raises:
            IndexError: if there is no such row.
        """
        return self._records.documents(checked_indices([number.__index__()], len(self)))[0]


def _shown(ref: PackedRef | PackedEpoch) -> str:
    what = f"{len(ref)} {packed_below(ref._records).shown}"
    return f"<{type(ref).__name__} of {what}, fingerprint {ref.fingerprint}>"
