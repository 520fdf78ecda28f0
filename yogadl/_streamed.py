"""Refer to records that are read as a stream: what all references of this library have."""

import copy
from collections.abc import Sequence
from typing import Any

from yogadl._core.arguments import explains_names, in_words
from yogadl._core.protocols import (
    Column,
    DataRef,
    Indices,
    Item_co,
    Lineage,
    Memory,
    RandomAccess,
    lineage_of,
    metadata_of,
    views_of,
)
from yogadl._core.spec import Spec
from yogadl._order import GROUPS, Blocks, BlocksOfGroups, Drawn, Mixture, Sequences, SequencesOfEpisodes
from yogadl._stream import RecordStream, html_of, open_shard, open_stream
from yogadl.errors import ConfigurationError


class _GivenRecords(RandomAccess):
    """Records of a class of the user's, which has what `RandomAccess` lists and is no subclass of it."""

    def __init__(self, records: Any) -> None:
        self._given = records

    @property
    def spec(self) -> Spec:
        """The structure of a record."""
        found: Spec = self._given.spec
        return found

    @property
    def fingerprint(self) -> str:
        """The hash of the content."""
        return str(self._given.fingerprint)

    @property
    def record_bytes(self) -> int:
        """The approximate size of a record."""
        return int(self._given.record_bytes)

    def __len__(self) -> int:
        return len(self._given)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read the records in the order of `indices`."""
        found: Sequence[Column] = self._given.columns(indices, fields, memory)
        return found


class StreamedRef(DataRef[Item_co]):
    """A reference to records that are read as a stream.

    Immutable, safe to use from several threads, usable after a fork, and picklable: a reference to a
    cache pickles as its location and name, in well under a kilobyte.

    Args:
        records: Where the records are read from: a `RandomAccess`, or any object that has what it has.
    """

    def __init__(self, records: RandomAccess) -> None:
        given: Any = records  # the caller may pass any object
        self._records: RandomAccess = given if isinstance(given, RandomAccess) else _GivenRecords(given)

    @property
    def spec(self) -> Spec:
        """The structure of a record, with dtype and shape per field."""
        return self._records.spec

    @property
    def fingerprint(self) -> str:
        """The hash of the content, the same on every machine."""
        return self._records.fingerprint

    @property
    def record_bytes(self) -> int:
        """The approximate size of a record."""
        return self._records.record_bytes

    @property
    def lineage(self) -> Lineage | None:
        """The dataset version of these records and the earlier versions it begins with.

        None if the records are not all those of one version.
        """
        return lineage_of(self._records)

    @property
    def metadata(self) -> dict[str, Any]:
        """A copy of the facts that were given to the build of this version; views have those of their source.

        Empty if none were given, and if the records are not of one version alone.
        """
        return copy.deepcopy(metadata_of(self._records))

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        lineage = self.lineage
        index_bytes = sum(view.index_bytes for view in views_of(self._records))
        index = f", an index of {in_words(index_bytes)} in memory" * bool(index_bytes)
        what = f"{len(self)} records{index}, fingerprint {self.fingerprint}"
        if lineage is not None and lineage.tag is not None:
            what = f"{lineage.id!r} version {lineage.version!r} (tag {lineage.tag!r}): {what}"
        return f"<{type(self).__name__} of {what}>"

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows: the fields and the first records."""
        return html_of(self, self.stream)

    @explains_names(
        {"ref.stream(...).batch": RecordStream.batch, "ref.stream(...).prefetch": RecordStream.prefetch},
        "RecordsRef.stream",  # the name in the reference
    )
    def stream(
        self,
        start_offset: int = 0,
        shuffle: bool | Blocks | Sequences = False,
        skip_shuffle_at_epoch_end: bool = False,
        shuffle_seed: int | None = None,
        shard_rank: int = 0,
        num_shards: int = 1,
        drop_shard_remainder: bool = False,
        *,
        pad_shard_remainder: bool = False,
        cursor: dict[str, Any] | None = None,
        rebind: bool = False,
    ) -> RecordStream[Item_co]:
        """Return this reader's share of the records, in the order that `shuffle` chooses.

        Args:
            start_offset: How many records of the share are left out at the start of the first epoch.
            shuffle: ``True`` for a true global shuffle, or a named order such as `yogadl.Blocks` or
                `yogadl.Sequences`.
            skip_shuffle_at_epoch_end: Whether every epoch has the order of the first.
            shuffle_seed: The seed of the shuffle; 0 if not given, never a random one.
            shard_rank: The number of this reader's share, from 0.
            num_shards: How many shares.
            drop_shard_remainder: Whether to leave out the last records that don't divide evenly among the
                shards.
            pad_shard_remainder: Whether to repeat records of the epoch's start, so that they divide evenly.
            cursor: The place to continue from, as returned by `state_dict` of any iterator of this dataset.
            rebind: Whether to accept a cursor of other data with as many records. Rows that are made of
                several records, or of a part of one, need data of which each record is as long as before.

        Raises:
            ConfigurationError: if the arguments make no sense.
            CursorError: if the cursor belongs to other data or is no cursor.
        """
        shard = open_shard(
            len(self),
            shard_rank=shard_rank,
            num_shards=num_shards,
            drop_shard_remainder=drop_shard_remainder,
            pad_shard_remainder=pad_shard_remainder,
        )
        records, order = self._records, self._order_for(shuffle)
        if isinstance(shuffle, Sequences) and shuffle.first is not None:
            from yogadl._views.sequences import MarkedRecords  # not imported for other orders

            records = MarkedRecords(records, shuffle.first)
        return open_stream(
            records,
            shard,
            start_offset=start_offset,
            shuffle=order,
            skip_shuffle_at_epoch_end=skip_shuffle_at_epoch_end,
            shuffle_seed=shuffle_seed,
            cursor=cursor,
            rebind=rebind,
        )

    def _order_for(
        self, shuffle: bool | Blocks | Sequences
    ) -> bool | Blocks | BlocksOfGroups | SequencesOfEpisodes | Drawn | Mixture:
        """Return the order of this reference's streams for the argument `shuffle` of `stream`."""
        if isinstance(shuffle, Sequences):
            from yogadl._views.sequences import sequences_of  # not imported for other orders

            return sequences_of(self._records, shuffle)
        if not (isinstance(shuffle, Blocks) and shuffle.records == GROUPS):
            return shuffle
        ends = self._records.group_ends
        if ends is None:
            raise ConfigurationError(
                'Blocks(records="groups") is for the rows of Parquet files as they lie, perhaps mapped, '
                "or of some fields: give a number of records, or shuffle=True"
            )
        return BlocksOfGroups(shuffle, ends)
