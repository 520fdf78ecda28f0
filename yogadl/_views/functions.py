"""Call the user's functions on the records of a run, wherever the rows are read.

A function takes one record and returns another. Its result depends only on the record and, for a random
function, on the seed, the epoch and the position. Batches, shards, workers and resumption don't change it.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from yogadl._core.columns import batch_column, declaration_text, declare, size_of, split, widen
from yogadl._core.frozen import frozen
from yogadl._core.leaf import BadShapeError, BadValueError, refuse
from yogadl._core.protocols import (
    READ,
    Column,
    Indices,
    Memory,
    OnPlanned,
    RandomAccess,
    announce,
    numbers_of,
)
from yogadl._core.spec import Spec
from yogadl._views.views import origin_of
from yogadl.errors import ConfigurationError, StageError, UnsupportedDataError

# For each epoch in turn, its number and the positions at which its records come: random functions need them.
Places = Sequence[tuple[int, range | Indices]]
# Called with the title of a stage and the seconds that the stage took.
ReportDuration = Callable[[str, float], None]


def _ignore_duration(stage: str, seconds: float) -> None:
    """Do nothing: the default where durations are not collected."""


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, as messages show it."""
    name: str = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name.rpartition("<locals>.")[2]


@frozen
class Stage:
    """One function of a chain.

    Args:
        function: Takes a record and returns one; the function of a random stage also takes a generator.
        number: The number of the stage in its chain, from 0.
        seed: The seed of a random stage; its generators are made from seed, epoch, position and number.
    """

    function: Callable[..., Any]
    number: int
    seed: int | None = None

    @staticmethod
    def of(function: Callable[..., Any], number: int, seed: int | None) -> "Stage":
        """Return the stage of a function that a user gave.

        Raises:
            ConfigurationError: if it is not a function.
        """
        argument: object = function  # the caller may pass any object
        if not callable(argument):
            name, takes = (
                ("map", "one argument") if seed is None else ("random_map", "two: a record, a generator")
            )
            raise ConfigurationError(f"{name} takes a function of {takes}, not {argument!r:.100}")
        return Stage(function, number, seed)

    def __str__(self) -> str:
        return f"{'map' if self.seed is None else 'random_map'}({name_of(self.function)})"

    @cached_property
    def title(self) -> str:
        """The stage's name in the statistics of the time that each stage takes."""
        return f"{self.number + 1} {self}"

    def call(
        self,
        records: Sequence[Any],
        indices: Indices,
        places: Places,
        report_duration: ReportDuration = _ignore_duration,
        what: str = "record",
    ) -> list[Any]:
        """Return the function's results for records or other items, such as batches.

        Args:
            records: The items to call the function with.
            indices: The index of each record in the data; for an item of several records, that of the first.
            places: The epochs and positions of the items, for the generators of a random stage.
            report_duration: Called with the stage's title and the seconds that it took for all items.
            what: What an error message calls the item, before its index.

        Raises:
            StageError: if the function raises.
        """
        start_s = perf_counter()
        function = self.function
        results: list[Any] = []
        try:
            if self.seed is None:
                for record in records:
                    results.append(function(record))
            else:
                for record, rng in zip(records, self._generators(places), strict=True):
                    results.append(function(record, rng))
        except SystemExit as error:  # `sys.exit` ends the program here as anywhere else
            error.add_note(f"{self} called sys.exit at {what} {indices[len(results)]}")
            raise
        except Exception as error:
            index = int(indices[len(results)])
            text = f"{self} failed at {what} {index}: {type(error).__name__}: {error}"
            raise StageError(text, self.number, index) from error
        report_duration(self.title, perf_counter() - start_s)
        return results

    def _generators(self, places: Places) -> Iterator[np.random.Generator]:
        from yogadl._order.random import generators  # slow to import

        assert self.seed is not None
        for epoch, positions in places:
            yield from generators(self.seed, self.number, epoch, np.asarray(positions, np.int64))


@frozen
class Chain:
    """The functions that a run's records pass through, one after another.

    Args:
        source: The records that the first function gets.
        stages: The functions.
        declared_spec: The caller's declaration of the resulting records' fields; see `declare`.
    """

    source: RandomAccess
    stages: tuple[Stage, ...]
    declared_spec: Any = None

    def __str__(self) -> str:
        return ", ".join(map(str, self.stages))

    def then(self, function: Callable[..., Any], seed: int | None, declared_spec: Any) -> "Chain":
        """Return the chain with one more function."""
        stage = Stage.of(function, len(self.stages), seed)
        return Chain(self.source, (*self.stages, stage), declared_spec)

    @cached_property
    def _sample(self) -> tuple[Spec, int]:
        """The structure of a resulting record, taken from the first one, and its approximate size."""
        if isinstance(self.declared_spec, Spec):
            leaves = [field.leaf for field in self.declared_spec.fields]
            return self.declared_spec, max(1, sum(leaf.row_bytes for leaf in leaves if leaf.is_fixed))
        if not len(self.source):
            raise ConfigurationError(f"there is no record, so what {self} returns is unknown: pass its spec=")
        first_index = np.zeros(1, np.int64)
        [record] = self._call_stages(self.source.columns(first_index), first_index, ((0, first_index),))
        if record is None or isinstance(record, Iterator | Awaitable):
            hint = "does it end without `return`?" if record is None else "it must return the record itself"
            text = f"{self} returned {record!r:.100} for record 0: {hint}"
            raise StageError(text, self.stages[-1].number, 0)
        try:
            spec = Spec.of_record(record, 0, allow_pickle=True)
        except UnsupportedDataError as error:
            raise self._misfit_error(0, error) from error
        values = split(spec, [record])
        record_bytes = max(1, sum(map(size_of, values)))
        return spec if self.declared_spec is None else declare(spec, self.declared_spec)[0], record_bytes

    @property
    def spec(self) -> Spec:
        """The structure of a resulting record."""
        return self._sample[0]

    @property
    def record_bytes(self) -> int:
        """The approximate size of a record, before or after the functions, whichever is larger."""
        return max(self.source.record_bytes, self._sample[1])

    def columns(
        self, indices: Indices, places: Places, report_duration: ReportDuration = _ignore_duration
    ) -> list[Column]:
        """Read records, call the functions, and return the results as columns.

        `report_duration` is called with the duration of reading, and of each stage.

        Raises:
            StageError: if a function raises, or returns a record that does not fit the first one's structure.
        """
        start_s = perf_counter()
        columns = self.source.columns(indices)
        report_duration(READ, perf_counter() - start_s)
        indices = numbers_of(self.source, indices)
        records = self._call_stages(columns, indices, places, report_duration)
        spec = self.spec
        found: list[Column] = []
        try:
            values = split(spec, records)
        except UnsupportedDataError:
            for index, record in zip(indices.tolist(), records, strict=True):
                try:
                    split(spec, [record], index)
                except UnsupportedDataError as error:
                    raise self._misfit_error(index, error) from error
            raise
        for number, (field, field_values) in enumerate(zip(spec.fields, values, strict=True)):
            try:
                found.append(batch_column(field.leaf, field_values))
            except BadShapeError as error:
                raise self._shape_error(number, int(indices[error.position]), error) from None
            except BadValueError as error:
                index = int(indices[error.position])
                raise self._misfit_error(index, refuse(field.name, index, error.problem)) from error.__cause__
        return found

    def _call_stages(
        self,
        columns: Sequence[Column],
        indices: Indices,
        places: Places,
        report_duration: ReportDuration = _ignore_duration,
    ) -> list[Any]:
        """Return the results of all functions for records that are given as columns."""
        records = self.source.spec.records(columns, len(indices))
        try:
            for stage in self.stages:
                records = stage.call(records, indices, places, report_duration)
        except StageError as error:
            self._with_file(error)
            raise
        return records

    def file_of(self, index: int) -> str | None:
        """Return the path of the file that a record comes from, if the source lists it."""
        base, [origin], _ = origin_of(self.source, np.array([index]), 0)
        base = getattr(base, "chain", base)  # of records that other functions have changed
        return base.file_of(int(origin)) if hasattr(base, "file_of") else None

    def _with_file(self, error: StageError) -> StageError:
        """Return the error, with a note that names the record's file, if the source lists it."""
        path = None if error.record is None else self.file_of(error.record)
        if path is not None:
            error.add_note(f"the file of record {error.record} is {path}")
        return error

    def _shape_error(self, number: int, record: int, error: BadShapeError) -> StageError:
        """Return the error for a shape that a field has in this record, but not in the first one."""
        leaves, last = [field.leaf for field in self.spec.fields], self.stages[-1]
        problem = f"{error.problem}, not {leaves[number].shape}"
        leaves[number] = widen(leaves[number], error.shape)
        varying = [i for i, leaf in enumerate(leaves) if leaf.shape is None or None in leaf.shape]
        spec = declaration_text(self.spec.with_leaves(leaves), varying)
        call = f"{'map' if last.seed is None else 'random_map'}(..., spec={spec})"
        misfit = refuse(
            self.spec.fields[number].name, record, f"{problem}. If the shape varies, write {call}"
        )
        return self._misfit_error(record, misfit)

    def _misfit_error(self, record: int, error: UnsupportedDataError) -> StageError:
        """Return the error for a record that is not like the first."""
        text = f"{self} returned a result for record {record} that is not like the first one: {error}"
        return self._with_file(StageError(text, self.stages[-1].number, record))


class MappedRecords:
    """Records passed through functions; the fingerprint stays that of the parent, so cursors stay valid."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.parent = chain.source
        self.fingerprint = chain.source.fingerprint

    def __len__(self) -> int:
        return len(self.parent)

    def over(self, parent: RandomAccess) -> "MappedRecords":
        """Return the same view of the first records alone, which `parent` has."""
        return MappedRecords(Chain(parent, self.chain.stages, self.spec))

    @property
    def spec(self) -> Spec:
        """The structure of a resulting record."""
        return self.chain.spec

    @property
    def record_bytes(self) -> int:
        """The approximate size of a record."""
        return self.chain.record_bytes

    def will_need(
        self, indices: Indices, fields: Sequence[int] | None = None, on_planned: OnPlanned | None = None
    ) -> int:
        """Announce that these records will be read soon, with all their fields; see `announce`.

        The functions take whole records, so `fields` is not passed on.
        """
        return announce(self.parent, indices, on_planned=on_planned)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records in the order of `indices`."""
        found = self.chain.columns(indices, ())
        return found if fields is None else [found[number] for number in fields]


def mapped(records: RandomAccess, function: Callable[..., Any], spec: Any) -> MappedRecords:
    """Return records passed through a function, after any functions that they already pass through."""
    chain = records.chain if isinstance(records, MappedRecords) else Chain(records, ())
    return MappedRecords(chain.then(function, None, spec))
