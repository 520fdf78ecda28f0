"""Refer to rows or batches that are made of several records, anew in each epoch."""

from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, SupportsIndex

from yogadl._core.arguments import checked_indices, explains_names, int_argument
from yogadl._core.protocols import Document, Item_co, Made
from yogadl._dataref import RecordsRef, StreamedRef
from yogadl._order import Blocks, Drawn, draw_of
from yogadl._views.packed import EpochRecords, packed_below
from yogadl.errors import ConfigurationError

_AT_RANDOM: Final = "For random access use packed.at(epoch)"


class PackedRef(StreamedRef[Item_co]):
    """A reference to rows or batches of several records, which each epoch draws anew.

    `RecordsRef.packed` and `RecordsRef.bucketed` return it. It has streams, and can be a parent of
    `yogadl.mix`. `at` returns a reference of one epoch with random access.
    """

    def __repr__(self) -> str:
        return _shown(self)

    def __getitem__(self, _: Any) -> NoReturn:
        raise ConfigurationError(
            f"packed records have no [...]: each epoch has other rows. {_AT_RANDOM}[...]"
        )

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(RecordsRef, name):
            raise AttributeError(
                f"packed records have no {name}: each epoch has other rows. {_AT_RANDOM}.{name}; filter, "
                "split or slice the records before you pack them"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __iter__(self) -> Iterator[Item_co]:
        """Yield the rows of the first epoch in the order of their numbers; this counts as no epoch."""
        return self.stream().at(0)

    def _order_for(self, shuffle: bool | Blocks) -> bool | Blocks | Drawn:
        if isinstance(shuffle, Blocks):
            raise ConfigurationError(
                "rows of several records can't be read in blocks, since their records lie anywhere: pass "
                "shuffle=True"
            )
        return Drawn(shuffle, steps=packed_below(self._records).steps)

    @property
    def padding(self) -> float:
        """The share of all tokens that are padding, if batches are padded to the longest of their class."""
        found: float = packed_below(self._records).padding
        return found

    def at(self, epoch: int, seed: int = 0) -> "PackedEpoch[Item_co]":
        """Return the rows of one epoch, to be read at random.

        Args:
            epoch: The epoch.
            seed: The `shuffle_seed` of the stream whose epoch it is. (A mix draws other rows. What a stream
                has read is in ``iterator.last.documents``.)
        """
        draw = draw_of(int_argument("seed", seed, None), int_argument("epoch", epoch), len(self))
        return PackedEpoch(EpochRecords(self._records, draw))

    @explains_names()
    def map(self, fn: Callable[[Item_co], Made], *, spec: Any = None) -> "PackedRef[Made]":
        """Return a reference to ``fn(row)``; see `RecordsRef.map`."""
        return PackedRef(RecordsRef(self._records).map(fn, spec=spec)._records)

    def fields(self, *names: str | int) -> "PackedRef":
        """Return a reference with just these fields; the others are not made. Cursors stay valid."""
        return PackedRef(RecordsRef(self._records).fields(*names)._records)


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
        [checked] = checked_indices([number.__index__()], len(self)).tolist()
        records: Any = self._records
        found: list[Document] = records.documents(checked)
        return found


def _shown(ref: PackedRef | PackedEpoch) -> str:
    what = f"{len(ref)} {packed_below(ref._records).shown}"
    return f"<{type(ref).__name__} of {what}, fingerprint {ref.fingerprint}>"
