"""Refer to records that can be read in any order: the interface between random access and streams."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self, SupportsIndex, overload

import numpy as np

from yogadl._core.arguments import (
    as_array,
    bool_argument,
    checked_indices,
    explains_names,
    int_argument,
    value_argument,
)
from yogadl._core.process import end_daemon_at_exit
from yogadl._core.protocols import (
    Column,
    Document,
    Indices,
    Item_co,
    Locality,
    Made,
    Memory,
    RandomAccess,
    locality_of,
    views_of,
)
from yogadl._order import Blocks, Drawn, Sequences, draw_of
from yogadl._removed import missing as removed
from yogadl._streamed import StreamedRef
from yogadl._views.views import ProjectedRecords, SelectedRecords, SlicedRecords
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from yogadl._views.lengths import PlannedRecords
    from yogadl._views.packed import EpochRecords, PackFields

_ITERATION_BYTES: Final = 2**20


class RecordsRef(StreamedRef[Item_co]):
    """A reference to a dataset whose records can be read one by one, by the batch, or as a stream."""

    def __new__(cls, *records: Any, **options: Any) -> Self:  # arguments of __init__, or of 0.1.4
        """Refuse the file path from which yogadl 0.1.4 made an `LMDBDataRef`."""
        if "cache_filepath" in options or (records and isinstance(records[0], str | os.PathLike)):
            raise removed("yogadl.dataref", "LMDBDataRef(cache_filepath=...)")
        return super().__new__(cls)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records that are known to be in range, as one column a field."""
        return self._records.columns(indices, fields, memory)

    def gather(self, indices: Any) -> Any:
        """Read one batch: the record's tree, its leaves stacked.

        Args:
            indices: The records, in any order; negative ones count from the end, any may repeat.

        Returns:
            A tree of new, writable arrays; a leaf of varying length is a list.

        Raises:
            IndexError: if an index is out of range.
        """
        return self.spec.assemble(self._read(checked_indices(indices, len(self))))

    def __getitems__(self, indices: Any) -> list[Item_co]:
        """Return a list of records, read at once; PyTorch's fetcher calls this."""
        checked = checked_indices(indices, len(self))
        return self.spec.records(self._read(checked), len(checked))

    def _read(self, indices: Indices) -> Sequence[Column]:
        try:
            return self._records.columns(indices)
        except BaseException:
            end_daemon_at_exit()
            raise

    @overload
    def __getitem__(self, index: SupportsIndex) -> Item_co: ...
    @overload
    def __getitem__(self, index: slice) -> "RecordsRef[Item_co]": ...
    def __getitem__(self, index: Any) -> Any:
        """Return a copy of one record, or a view for a slice; ``ref[:]`` has the same fingerprint."""
        if isinstance(index, slice):
            every = range(len(self))
            is_all = every[index] == every
            return RecordsRef(self._records if is_all else SlicedRecords(self._records, every[index]))
        try:
            number = index.__index__()
        except (AttributeError, TypeError):
            raise ConfigurationError(
                f"a record is chosen by an integer or a slice, not by a {type(index).__name__}; "
                "for several use gather"
            ) from None
        if not -len(self) <= number < len(self):
            raise IndexError(f"record {number} is out of range: there are {len(self)}")
        return self.__getitems__([number])[0]

    def __iter__(self) -> Iterator[Item_co]:
        """Yield every record in source order; this does not count as an epoch of a stream."""
        if not len(self):
            return  # the size of no record may be unknown
        count = max(1, min(1024, _ITERATION_BYTES // max(1, self.record_bytes)))
        for start in range(0, len(self), count):
            yield from self.__getitems__(range(start, min(start + count, len(self))))

    def locality(self) -> Locality:
        """Return how much of the cache is on this machine, and how much this process has read by range.

        The parts here are those that any process has downloaded; the ranges of worker processes are in
        `Loader.stats`.

        Example:
            >>> import yogadl
            >>> storage = yogadl.open_storage("caches")
            >>> found = storage.submit([1, 2, 3], "numbers", "1").locality()
            >>> found.parts, found.parts_here, found.ranges
            (1, 1, 0)
        """
        return locality_of(self._records)

    def select(self, indices: Any) -> "RecordsRef[Item_co]":
        """Return a view of these records, in this order; a mask of booleans also does."""
        array = as_array(indices, len(self))
        if array.dtype == bool:
            if array.shape != (len(self),):
                raise ConfigurationError(
                    f"a mask needs one boolean per record, {len(self)}, not {array.shape}"
                )
            array = np.flatnonzero(array)
        return RecordsRef(SelectedRecords(self._records, checked_indices(array, len(self))))

    @explains_names()
    def split(
        self,
        *shares: float,
        seed: int = 0,
        by: str | int | None = None,
        grows: bool | None = None,
        key: str | int | None = None,
    ) -> "tuple[RecordsRef[Item_co], ...]":
        """Return views of the records, shuffled first: ``train, rest = ref.split(0.8, seed=1)``.

        Each record is in exactly one view. The sizes are exact, but for rounding to whole records; the order
        is shuffled. The split is the same on every machine, for ever; it takes 8 bytes of memory a record.

        Args:
            shares: The fraction of the records for each view. If their sum is less than 1, one more view has
                the rest. A float means the decimal that Python prints: 0.7 is 7/10.
            seed: The seed of the shuffle: any integer.
            by: A field to stratify by, of one number, date, str or bytes a record: each view has its share
                of the records of each value, to within one record (with three or four views, two). All
                values are read.
            grows: Must be given for a version that continues others. ``True`` divides the records of each
                added version separately, so that each view begins with the same view of the version before;
                sizes are exact for each version. ``False`` divides all records anew.
            key: A field of one integer, date, str or bytes a record, whose hash alone chooses the view: a
                record stays in its view whatever is added, and those of one key stay together, in their
                order. So sizes are only near the shares. "file" also means the file that a source lists.
                Not with `by`, which counts records, nor with `grows`.

        Raises:
            ConfigurationError: if an argument makes no sense, or `grows` is missing.
        """
        from yogadl._views.shares import split  # imported only when splitting

        grows = None if grows is None else bool_argument("grows", grows)
        chosen = split(self._records, shares, int_argument("seed", seed, None), by, grows, key)
        return tuple(RecordsRef(SelectedRecords(self._records, indices)) for indices in chosen)

    @explains_names()
    def map(
        self, fn: Callable[[Item_co], Made], *, spec: Any = None, on_error: str = "raise", workers: int = 0
    ) -> "RecordsRef[Made]":
        """Return a view of ``fn(record)``, called whenever a record is read; see `RecordStream.map`.

        Cursors stay valid. A stream's own `RecordStream.map` and `RecordStream.random_map` come after it.

        Args:
            fn: Takes a record and returns one.
            spec: The shapes that vary; see `RecordStream.map`.
            on_error: "skip": the function is called once with every record now, and the view is without the
                records for which it raises. Which these are is kept as the selection of `filter` is.
            workers: How many processes call the function then.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        from yogadl._views.chosen import mapped  # imported only when mapping

        return RecordsRef(mapped(self._records, fn, spec, on_error, workers))

    @explains_names()
    def flat_map(
        self,
        fn: Callable[[Any], Sequence[Made]],
        fields: Sequence[str | int] | None = None,
        count: Callable[[Any], int] | None = None,
        *,
        workers: int = 0,
        spec: Any = None,
    ) -> "RecordsRef[Made]":
        """Return a view of all records in ``fn(record)``, a list, one list after the other.

        The function is called once with every record now, to count. The counts are kept next to the cache, as
        the selection of `filter` is. After that, a record is made when it is read; for those of one list that
        are read together, the function is called once.

        Args:
            fn: Takes a record, and returns a list of records, which may be empty, or another sequence.
            fields: The fields that the functions take, and the only ones that are read; all if not given.
            count: Takes a record, and returns how many records `fn` makes of it; called instead, if given.
            workers: How many processes count; without any, this one does.
            spec: The shapes that vary; see `RecordStream.map`.

        Raises:
            StageError: if a function raises, or returns no such thing; the error names the first such record.
                When records are read, also if there are more or fewer than were counted.
            ConfigurationError: if a field does not exist, or something can't be sent to the workers.

        Example:
            >>> import yogadl
            >>> texts = yogadl.from_source([{"text": "a b"}, {"text": ""}, {"text": "c"}])
            >>> words = texts.flat_map(lambda record: record["text"].split())
            >>> len(words), words[2]
            (3, 'c')
        """
        from yogadl._views.flat import flat_mapped

        return RecordsRef(flat_mapped(self._records, fn, fields, count, workers, spec))

    def sampled(
        self, weights: Any = None, *, by: str | int | None = None, records: int | None = None
    ) -> "DrawnRef[Item_co]":
        """Return as many records, drawn with replacement, anew in each epoch.

        Args:
            weights: How often each record is drawn, in proportion: numbers, or the name of a field that has
                them. All alike if not given.
            by: A field of one number, date, str or bytes a record, whose values are drawn equally often.
            records: How many are drawn in an epoch; as many as there are, if not given.

        Raises:
            ConfigurationError: if an argument makes no sense.

        Example:
            >>> import yogadl
            >>> ref = yogadl.from_source([{"label": n == 99} for n in range(100)])
            >>> sum(bool(record["label"]) for record in ref.sampled(by="label", records=1000))
            510
        """
        from yogadl._views.shares import SampledRecords

        return DrawnRef(SampledRecords(self._records, weights, by, records))

    @explains_names()
    def filter(
        self,
        fn: Callable[[Any], "bool | np.bool_"],
        fields: Sequence[str | int] | None = None,
        *,
        workers: int = 0,
        on_error: str = "raise",
    ) -> "RecordsRef[Item_co]":
        """Return a view of the records for which ``fn(record)`` is true, in their order.

        Every record is read now, once. The selection is stored next to the cache: a later call finds it
        there, in any process, if the function has the same code and values and the records the same
        fingerprint. If the storage can't be written, the selection is kept in memory, as long as this
        reference or a view of it is in use. If there is no storage, or the function can't be described (it
        uses an open file, for example), only the view that is returned keeps the selection, and the next
        call computes it again.

        Args:
            fn: Takes a record, and returns True or False; the result must depend on nothing else. How the
                function is described: docs/howto/versions.md.
            fields: The fields that the function takes, and the only ones that are read; all if not given.
            workers: How many processes call the function; without any, this one does.
            on_error: "skip": a record for which the function raises is left out, and their number logged.

        Raises:
            StageError: if the function raises, or returns no bool; the error names the first such record.
            ConfigurationError: if a field does not exist, or something can't be sent to the workers.
        """
        from yogadl._views.chosen import filtered

        return RecordsRef(filtered(self._records, fn, fields, workers, on_error))

    @explains_names()
    def chunks(
        self,
        field: str | int | None,
        size: int,
        *,
        drop_remainder: bool = True,
        pad: Any = None,
        segments: str | None = None,
    ) -> "RecordsRef":
        """Return chunks of `size` tokens, cut from the values of a field joined end to end.

        For training language models: `size` may change without a new build. A record is a dict with only that
        field, and with `segments`, if that is given. There is a warning for a field of pictures of one size:
        it would be cut into rows of pixels.

        Args:
            field: The name of a field of numbers, whose first size may vary; a slash leads to a nested field.
                None if a record is a single value; then each chunk is a single value, too.
            size: How many tokens a chunk has: items along the first axis.
            drop_remainder: Whether to leave out the last tokens, which make no whole chunk.
            pad: The value that fills up the last chunk, with `drop_remainder=False`.
            segments: The name of a second field, int32 of `size`, with the number of each token's document:
                counted from 0 in each chunk, and -1 for padding.

        Raises:
            ConfigurationError: if there is no such field or it can't be cut, or an argument is invalid.

        Example:
            >>> import numpy as np, yogadl
            >>> texts = [{"tokens": np.arange(1 + n % 3)} for n in range(9)]
            >>> ref = yogadl.from_source(texts)
            >>> ref.chunks("tokens", 4, segments="document")[1]
            {'tokens': array([1, 2, 0, 0]), 'document': array([0, 0, 1, 2], dtype=int32)}
        """
        from yogadl._views.chunks import ChunkedRecords  # imported only when cutting chunks

        cut = ChunkedRecords(
            self._records, field, size, drop_remainder=drop_remainder, pad=pad, segments=segments
        )
        return RecordsRef(cut)

    @explains_names()
    def windows(
        self,
        offsets: Mapping[Any, Sequence[float]],
        within: str | int | None,
        *,
        stride: int = 1,
        ends: str = "repeat",
        masks: str | bool | None = True,
        drop_first: int = 0,
        drop_last: int = 0,
        time: str | int | None = None,
        fps: float | None = None,
        tolerance_s: float = 1e-4,
    ) -> "RecordsRef":
        """Return windows of time: each record, the window's anchor, with some before and after it.

        No window goes beyond its anchor's episode. The episodes follow one another in the order in which they
        begin. The field `within` is read once, now, and what was found is kept next to the cache; it takes 16
        bytes of memory an episode, and 8 bytes a record if the records of an episode do not lie side by side.

        Args:
            offsets: For each field, which records a window has its values of, counted from the anchor:
                numbers of one shape get a new first axis of that length; of bytes, str, json and values of
                varying shape there is a list. Of other fields a window has the anchor's value. A slash leads
                to a nested field.
            within: The field that numbers the episode of each record: one integer, date, str or bytes. None:
                all records are one episode.
            stride: Only every so manyth record of an episode, from its first one, is an anchor.
            ends: "repeat": beyond an end of the episode, the record at this end is repeated. "drop": there
                are only windows that lie within the episode.
            masks: With "repeat", the name of a further field for each field of `offsets`: whether each value
                is a repeated one. True: "{}_is_pad"; with "drop" there is none. None: no such fields.
            drop_first: How many records at the beginning of an episode are no anchors.
            drop_last: How many at its end are none.
            time: The field of each record's time in seconds, one number. All times are read now, once, and
                compared with those that the offsets want.
            fps: How many records a second there are: offsets are seconds, and the record that many seconds
                from the anchor is ``round(seconds * fps)`` records from it.
            tolerance_s: By how much the time of a record of a window may differ from the wanted one.

        Raises:
            ConfigurationError: if there is no such field or it makes no windows, there is no window, a time
                differs by more than the tolerance, or an argument makes no sense.

        Example:
            >>> import yogadl
            >>> steps = [{"episode": n // 3, "x": n} for n in range(6)]
            >>> windows = yogadl.from_source(steps).windows({"x": [-1, 0, 1]}, "episode")
            >>> windows[3]["x"].tolist(), windows[3]["x_is_pad"].tolist()
            ([3, 3, 4], [True, False, False])
        """
        from yogadl._views.windows import WindowedRecords, Windowing  # imported only when making windows

        ticks = time, fps, tolerance_s
        windowing = Windowing(offsets, within, stride, ends, masks, drop_first, drop_last, *ticks)
        return RecordsRef(WindowedRecords(self._records, windowing))

    @explains_names()
    def packed(
        self,
        capacity: int,
        *,
        fields: str | Sequence[str],
        long: str = "cut",
        shuffle_within: bool = True,
        round_to: int = 1,
        pad: Mapping[str, Any] | None = None,
        values: str | Sequence[str] = (),
        extra: "PackFields | None" = None,
        workers: int = 0,
    ) -> "PackedRef":
        """Return rows of `capacity` tokens that are made of several whole records each, anew in each epoch.

        Each token comes once in an epoch, but those of records that are dropped. The number of rows is the
        same in every epoch. Which lengths share a row is planned now; the plan is kept next to the cache, and
        found there by any process. If the lengths are stored, no value is read for it; otherwise every record
        is read once.

        A row is a dict of the packed fields, of "segments" and "positions" unless `extra` says otherwise, and
        of `values`.

        Args:
            capacity: How many tokens a row has: items along the first axis of each packed field.
            fields: The fields to pack, of numbers and of one length in each record.
            long: What becomes of a record that is longer than a row. "cut": pieces of `capacity` tokens, and
                a rest. "drop": it is left out, and counted. "raise": a ConfigurationError.
            shuffle_within: Whether the records of a row come in a random order; else the longest comes first.
            round_to: Lengths that are equal when rounded up to a multiple of this are drawn from together;
                otherwise records of a rare length share a row again and again. A record takes the rounded
                length, so rows have more padding: about half of `round_to` for each record.
            pad: The padding of each field; 0 if not given.
            values: Fields of one value a record: a row has an array of its records' values. Of json values
                it has a list.
            extra: The names of the fields that say which record a token belongs to, and where it ends there.
            workers: How many processes read the records, if lengths are not stored.

        Raises:
            ConfigurationError: if an argument makes no sense.
            UnsupportedDataError: if the packed fields of a record differ in length.

        Example:
            >>> import numpy as np, yogadl
            >>> texts = [{"tokens": np.full(n, n)} for n in (3, 1, 2, 4)]
            >>> packed = yogadl.from_source(texts).packed(5, fields="tokens", shuffle_within=False)
            >>> len(packed), packed.padding
            (2, 0.0)
            >>> row = packed.at(epoch=0)[1]
            >>> row["tokens"].tolist(), row["segments"].tolist(), row["positions"].tolist()
            ([4, 4, 4, 4, 1], [1, 1, 1, 1, 2], [0, 1, 2, 3, 0])
            >>> packed.at(epoch=0).documents(1)
            [Document(record=3, start=0, stop=4), Document(record=1, start=0, stop=1)]
        """
        from yogadl._views.packed import PackedRecords, PackFields, Packing  # imported only when packing

        more = value_argument("extra", extra, PackFields)
        packing = Packing(capacity, fields, long, shuffle_within, round_to, pad, values, more)
        return PackedRef(PackedRecords(self._records, packing, workers))

    @explains_names()
    def bucketed(
        self,
        by: str,
        *,
        tokens: int,
        max_records: int | None = None,
        pad_to: str = "longest",
        long: str = "alone",
        pad: Mapping[str, Any] | None = None,
        lengths: str | None = "lengths",
        classes: int | None = None,
        ranks: int = 1,
        workers: int = 0,
    ) -> "PackedRef":
        """Return batches of records of like length, each of at most `tokens` tokens with its padding.

        One record of the result is one batch: a dict of all fields, stacked, those of varying length padded
        along their first axis. Json values are in a list. So a stream of it needs no `batch`. The number of
        batches is the same in every epoch, each record comes once in it, and which records share a batch is
        drawn anew. One batch of an epoch is short. The plan is kept next to the cache, as that of `packed`.

        Args:
            by: The field whose length counts.
            tokens: The most tokens of a batch: its records times the longest of its class of lengths.
            max_records: The most records of a batch.
            pad_to: "longest": as long as the longest record of a batch. "class": as long as any record of the
                class, so that there are as few shapes as classes.
            long: What becomes of a record that has more tokens: "alone" in a batch, or "raise".
            pad: The padding of each field; 0 if not given.
            lengths: The name of a field for the records' lengths; None: no such field.
            classes: The most classes of lengths; by default as few as pad at most 3 %. If there are few
                batches, those that pad least, which may be a fifth; see `PackedRef.padding`.
            ranks: How many neighbouring batches have one class if possible: those of one step of a job with
                so many ranks. The number of batches is a multiple of it.
            workers: How many processes read the records, if lengths are not stored.

        Raises:
            ConfigurationError: if an argument makes no sense.

        Example:
            >>> import numpy as np, yogadl
            >>> texts = [{"tokens": np.full(n, n)} for n in (3, 1, 2, 3, 2, 1, 1)]
            >>> batches = yogadl.from_source(texts).bucketed("tokens", tokens=6, pad_to="class")
            >>> [batch["tokens"].shape for batch in batches.stream()]
            [(3, 2), (2, 3), (2, 3)]
        """
        from yogadl._views.bucketed import BucketedRecords, Bucketing

        bucketing = Bucketing(by, tokens, max_records, pad_to, long, pad, lengths, classes, ranks)
        return PackedRef(BucketedRecords(self._records, bucketing, workers))

    @explains_names()
    def grouped(
        self,
        by: str | Callable[[Any], Any],
        *,
        records: int | Mapping[Any, int],
        fields: Sequence[str] | None = None,
        ranks: int = 1,
        workers: int = 0,
    ) -> "PackedRef":
        """Return batches of `records` records each, which share one value, such as the size of a picture.

        One record of the result is one batch: a dict of all fields, stacked. Within a batch, all records must
        have one shape of each field. Json values are in a list. The number of batches is the same in every
        epoch, each record comes once in it, and which records share a batch is drawn anew. The last batch of
        each value is short if the value's records do not fill it. Every value is read now, once, and the plan
        is kept next to the cache, as that of `bucketed`.

        Args:
            by: The name of a field of one integer, bool, str or bytes a record; or a function that takes a
                record and returns such a value, or a tuple of several. There can be 65,536 different ones.
            records: How many records a batch has; or a dict that says how many for each value.
            fields: The fields that the function takes, and the only ones that are read now; all if not given.
            ranks: How many neighbouring batches have one value if possible: see `bucketed`. The number of
                batches is a multiple of it, for which some batches may be smaller.
            workers: How many processes read the values, or call the function.

        Raises:
            StageError: if the function raises, or returns no such value; it names the first such record.
            UnsupportedDataError: if there are more values. When batches are read, if shapes differ in one.
            ConfigurationError: if an argument makes no sense.

        Example:
            >>> import numpy as np, yogadl
            >>> sizes = [32, 48, 32, 48, 32]
            >>> pictures = [{"image": np.zeros((size, size, 3), np.uint8)} for size in sizes]
            >>> batches = yogadl.from_source(pictures).grouped(lambda one: len(one["image"]), records=2)
            >>> [batch["image"].shape for batch in batches.stream()]
            [(2, 32, 32, 3), (1, 32, 32, 3), (2, 48, 48, 3)]
        """
        from yogadl._views.bucketed import GroupedRecords

        options: dict[str, Any] = {"records": records, "fields": fields, "ranks": ranks, "workers": workers}
        return PackedRef(GroupedRecords(self._records, by, **options))

    def to_hf(self) -> Any:
        """Return the records as a ``datasets.Dataset``; see `yogadl.adapters.datasets.to_hf`."""
        from importlib import import_module  # no module imports a higher one

        return import_module("yogadl.adapters.datasets").to_hf(self)

    def fields(self, *names: str | int) -> "RecordsRef":
        """Return a view with just these fields; the others are not read. Cursors stay valid."""
        first: Any = names[0] if names else None  # the caller may pass any object
        if isinstance(first, tuple | list):
            each = ", ".join(map(repr, first))
            raise ConfigurationError(
                f"fields takes names, not a {type(first).__name__}: write fields({each})"
            )
        spec, numbers = self.spec.project(names)
        return RecordsRef(ProjectedRecords(self._records, spec, numbers))


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

    def _order_for(self, shuffle: bool | Blocks | Sequences) -> bool | Drawn:
        if isinstance(shuffle, Sequences):
            raise ConfigurationError(
                "records that each epoch draws anew make no sequences: pass shuffle=True, or open the stream "
                "of the records themselves with Sequences"
            )
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

    def _epoch(self, epoch: int, seed: int) -> "EpochRecords":
        from yogadl._views.packed import EpochRecords

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

    `RecordsRef.packed`, `RecordsRef.bucketed` and `RecordsRef.grouped` return it. It has streams, and can be
    a parent of `yogadl.mix`. `at` returns a reference of one epoch with random access.
    """

    _what = "packed records have", "other rows", "packed", "pack"

    def __repr__(self) -> str:
        return _shown(self)

    @property
    def padding(self) -> float:
        """The share of all tokens that are padding, if batches are padded to the longest of their class."""
        return _planned_below(self._records).padding

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
        return self._records.documents_of(checked_indices([number.__index__()], len(self)))[0]


def _planned_below(records: RandomAccess) -> "PlannedRecords[Any]":
    """Return the packed, bucketed or grouped records below functions and a choice of fields."""
    from yogadl._views.lengths import PlannedRecords

    return next(view for view in views_of(records) if isinstance(view, PlannedRecords))


def _shown(ref: PackedRef | PackedEpoch) -> str:
    what = f"{len(ref)} {_planned_below(ref._records).shown}"
    return f"<{type(ref).__name__} of {what}, fingerprint {ref.fingerprint}>"


# Decorates functions that take a stream: an error about a reading option says that `ref.stream` takes it.
takes_a_stream = explains_names({"ref.stream": RecordsRef.stream})


def as_ref(value: Any) -> RecordsRef:  # Any: the value is checked here
    """Return the argument of an adapter as a `DataRef`, if its records can be read at random.

    Raises:
        ConfigurationError: if it is anything else; the error tells what to pass instead.
    """
    if not hasattr(value, "__getitems__") or not hasattr(value, "columns"):
        raise ConfigurationError(
            f"a {type(value).__name__} has no random access: pass what storage.fetch(...) or "
            "yogadl.from_source(...) returned, and yogadl.concat of its parents instead of a mix"
        )
    ref: RecordsRef = value  # or an object with the same reading methods
    return ref


@takes_a_stream
def from_source(
    data: Any,
    fingerprint: str | None = None,
    *,
    spec: Any = None,
    json: Sequence[str] = (),
    missing: Mapping[str, Any] | None = None,
) -> RecordsRef:
    """Return a `DataRef` over an object with ``__len__`` and ``__getitem__``, or arrays, without any cache.

    Args:
        data: The object; a dict or tuple of arrays is read by column.
        fingerprint: A name for this content, by which cursors recognise it. The default is made from the
            length and a sample of the records, and marked weak.
        spec: The shapes that vary, which a sample of 16 records may not show: a tree like the record's with a
            `yogadl.Leaf` for each such field, or the spec of another `DataRef`. Fields that a dict leaves out
            are as in the sample. If a record does not fit, the error gives the `spec` to pass.
        json: As for `CacheStorage.submit`: the names of fields that are json values.
        missing: As for `CacheStorage.submit`: what comes in the place of missing values.

    Raises:
        UnsupportedDataError: if `data` has no random access or a record can't be read.
        ConfigurationError: if `spec` is not of this form, or the sampled records don't fit it.

    Example:
        >>> import numpy as np, yogadl
        >>> texts = [{"tokens": np.arange(1 + n % 5), "label": n} for n in range(100)]
        >>> ref = yogadl.from_source(texts, spec={"tokens": yogadl.Leaf("int64", (None,))})
        >>> [len(tokens) for tokens in ref.gather([0, 4])["tokens"]]
        [1, 5]
    """
    from yogadl._core.forms import forms_of  # not imported for reading a cache
    from yogadl._views.records import SourceRecords

    return RecordsRef(SourceRecords(data, fingerprint, spec, forms_of(json, missing, spec)))
