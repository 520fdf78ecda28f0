"""Call the user's functions on the records of a run, wherever the rows are read.

A function takes one record and returns another, or fills one. Its result depends only on the record and, for
a random function, on the seed, the epoch and the position. Batches, shards, workers and resumption don't
change it. Nor do they change which record comes in the place of one for which the function raises.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.advice import of_function
from yogadl._core.columns import batch_column, declaration_text, declare, refuse_value, split, widen
from yogadl._core.forms import Forms
from yogadl._core.frozen import frozen
from yogadl._core.infer import infer, size_of_record
from yogadl._core.json_value import JsonText
from yogadl._core.printable import error_text
from yogadl._core.protocols import (
    READ,
    Announced,
    Column,
    Indices,
    Memory,
    Numbers,
    OnPlanned,
    RandomAccess,
)
from yogadl._core.spec import JSON, BadShapeError, BadValueError, Leaf, Spec, refuse
from yogadl._views.stages import (
    Places,
    Rejected,
    Replace,
    ReportDuration,
    Stage,
    StageOptions,
    Substitutes,
    ignore_duration,
    with_options,
)
from yogadl._views.views import SameNumbers
from yogadl.errors import ConfigurationError, StageError, UnsupportedDataError, YogaError

_MOST_ATTEMPTS: Final = 100  # to replace one record


class _Replacing:
    """Replaces those of some records for which a function raises.

    Args:
        chain: The functions.
        records: What the next function takes; changed here.
        indices: The index of each record, with its draw.
        places: Their epochs and positions.
        substitutes: The records that come in the place of others.

    Attributes:
        numbers: The number of each record, in the end of the one that is delivered.
        replaced: By epoch and position, the records that others replaced.
    """

    def __init__(
        self, chain: "Chain", records: list[Any], indices: Indices, places: Places, substitutes: Substitutes
    ) -> None:
        self._chain = chain
        self._records, self._places = records, places
        self.numbers = Numbers(chain.source.user_numbers(indices).copy())
        self._drawn = indices.copy()  # the same, each with its draw
        self._substitutes = substitutes
        self.replaced: dict[tuple[int, int], list[Rejected]] = {}

    def of(self, stage: Stage, arrays: Sequence[NDArray[Any]] = ()) -> Replace | None:
        """Return what replaces records of a stage, which fills `arrays`; None if the stage raises errors."""
        return partial(self._replace, stage, arrays) if stage.is_replacing else None

    def _replace(self, stage: Stage, arrays: Sequence[NDArray[Any]], number: int, error: StageError) -> Any:
        places = ((epoch, int(position)) for epoch, positions in self._places for position in positions)
        epoch, position = next(islice(places, number, None))
        own = slice(number, number + 1)
        drawn, failures = self._drawn[own], self.replaced.setdefault((epoch, position), [])
        while True:
            attempt, index = len(failures), int(self.numbers[number])
            cause = error.__cause__
            reason = "" if cause is None else error_text(cause)
            rejected = Rejected(index, epoch, position, reason, self._chain.file_of(index, drawn))
            failures.append(rejected)
            self._substitutes.reject(rejected, attempt, stage)
            if attempt == _MOST_ATTEMPTS:
                text = f"{error}; so did {_MOST_ATTEMPTS} records that were to come in its place"
                raise StageError(text, error.stage, error.record) from cause
            drawn[:] = self._substitutes.index(epoch, position, attempt)
            self.numbers[own] = self._chain.source.user_numbers(drawn)
            for array in arrays:
                array[own] = np.zeros((), array.dtype)
            try:
                place = ((epoch, np.array([position])),)
                record = self._chain.first_stages(stage, drawn, place)
                slots = stage.slots([array[own] for array in arrays]) if arrays else None
                [result] = stage.call(record, Numbers(self.numbers[own]), place, slots=slots)
            except StageError as failed:
                if not self._chain.stages[failed.stage or 0].is_replacing or failed.__cause__ is None:
                    raise
                error = failed
            else:
                self._records[own] = record
                return result


def _is_same_tree(value: Any, tree: Any) -> bool:
    """Return whether a value is this json value, or a copy of it."""
    if value is tree:
        return True
    try:
        return type(value) is type(tree) and JsonText(value).data == JsonText(tree).data
    except BadValueError:
        return False


class _Varying:
    """The arrays of varying shape that functions were given, to find those that they passed through.

    Such an array shows one of the shapes that its field has; the structure of what was given tells all.
    """

    def __init__(self) -> None:
        self._leaves: dict[int, tuple[Any, Leaf]] = {}  # by the value's id; with it, so that it keeps the id
        self._trees: dict[str, Any] = {}  # json values, by their fields

    def note(self, spec: Spec, record: Any) -> None:
        """Note the arrays of a record, before a function may change the record."""
        for field, [value] in zip(spec.fields, split(spec, [record]), strict=True):
            if field.leaf.dtype == JSON:
                self._trees[field.name] = value
            if field.leaf.shape is None or None in field.leaf.shape or type(value) in (dict, list):
                self._leaves[id(value)] = value, field.leaf

    def leaf_of(self, path: str, value: Any) -> Leaf | None:
        """Return the leaf that a value was given with; ``None`` if it was not."""
        if path in self._trees and _is_same_tree(value, self._trees[path]):
            return Leaf(JSON)
        return self._leaves[id(value)][1] if id(value) in self._leaves else None

    def note_declared(self, record: Any, declaration: Any) -> None:
        """Note the arrays of a record that a function returned, whose fields the user has declared."""
        with contextlib.suppress(UnsupportedDataError):  # not the last function: it may return anything
            self.note(self.spec_of(record, 0, declaration), record)

    def spec_of(self, record: Any, number: int, declaration: Any) -> Spec:
        """Return the structure of results, given the first one, its number, and what the user declared."""
        forms = Forms(allow_pickle=True, like=declaration)
        found = infer([record], forms, [number], lists_vary=True, known=self.leaf_of)
        return found if declaration is None else declare(found, declaration)[0]


@frozen
class Chain:
    """The functions that a run's records pass through, one after another.

    Args:
        source: The records that the first function gets.
        stages: The functions.
        declared_spec: The caller's declaration of the resulting records' fields; see `declare`.
        is_skipping: Whether the structure may be that of any record for which no function raises.
        declared_before: The declarations of what the functions before the last one return.
    """

    source: RandomAccess
    stages: tuple[Stage, ...]
    declared_spec: Any = None
    is_skipping: bool = False
    declared_before: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return ", ".join(map(str, self.stages))

    def then(
        self,
        function: Callable[..., Any],
        seed: int | None,
        declared_spec: Any,
        options: StageOptions | None = None,
    ) -> "Chain":
        """Return the chain with one more function.

        Raises:
            ConfigurationError: if an argument makes no sense.
        """
        stage = Stage.of(function, len(self.stages), seed)
        if options is not None:
            stage = with_options(stage, options, lambda: (self if self.stages else self.source).spec)
        if stage.out is not None and declared_spec is not None:
            raise ConfigurationError("out= says what the function makes: leave out spec=")
        before = (*self.declared_before, self.declared_spec) if self.stages else ()
        declared = stage.made or declared_spec
        return Chain(self.source, (*self.stages, stage), declared, declared_before=before)

    @cached_property
    def _sample(self) -> tuple[Spec, int]:
        """The structure of a resulting record, taken from the first one, and its approximate size."""
        if isinstance(self.declared_spec, Spec):
            leaves = [field.leaf for field in self.declared_spec.fields]
            return self.declared_spec, max(1, sum(leaf.row_bytes for leaf in leaves if leaf.is_fixed))
        if not len(self.source):
            raise ConfigurationError(f"there is no record, so what {self} returns is unknown: pass its spec=")
        index, record, varying = self._first_result()
        if record is None or isinstance(record, Iterator | Awaitable):
            hint = "does it end without `return`?" if record is None else "it must return the record itself"
            text = f"{self} returned {record!r:.100} for record {index}: {hint}"
            raise StageError(text, self.stages[-1].number, index)
        try:
            spec = varying.spec_of(record, index, self.declared_spec)
        except UnsupportedDataError as error:
            raise self._misfit_error(index, error) from error
        return spec, max(1, size_of_record(record))

    def _first_result(self) -> "tuple[int, Any, _Varying]":
        """Return the index and the result of the first record, or of the first that is not left out.

        The third value knows the arrays in it that were passed through.
        """
        last = 0
        if self.is_skipping:
            last = len(self.source) - 1
        elif any(stage.is_replacing for stage in self.stages):
            last = min(_MOST_ATTEMPTS, len(self.source)) - 1
        for number in range(last + 1):
            index = np.array([number])
            try:
                record, varying = self._followed(index)
            except StageError as error:
                if number == last or isinstance(error.__cause__, YogaError | None):
                    self._with_file(error).add_note(
                        "the structure of the results is that of the first record: if this one is broken, "
                        "say it by spec="
                    )
                    raise
            else:
                break
        return number, record, varying

    def _followed(self, index: Indices) -> "tuple[Any, _Varying]":
        """Return the result of a record, and the arrays of varying shape that the functions were given."""
        records = self.source.records(index)
        varying = _Varying()
        varying.note(self.source.spec, records[0])
        numbers = self.source.user_numbers(index)
        for stage in self.stages:
            if stage.number and self.declared_before[stage.number - 1] is not None:
                varying.note_declared(records[0], self.declared_before[stage.number - 1])
            records = self._pass(stage, records, numbers, ((0, index),))
        return records[0], varying

    @property
    def spec(self) -> Spec:
        """The structure of a resulting record."""
        return self._sample[0]

    @property
    def record_bytes(self) -> int:
        """The approximate size of a record, before or after the functions, whichever is larger."""
        return max(self.source.record_bytes, self._sample[1])

    def columns(
        self,
        indices: Indices,
        places: Places,
        report_duration: ReportDuration = ignore_duration,
        memory: Memory | None = None,
        substitutes: Substitutes | None = None,
    ) -> list[Column]:
        """Read records, call the functions, and return the results as columns.

        Args:
            indices: The indices of the records.
            places: Their epochs and positions.
            report_duration: Called with the duration of reading, and of each stage.
            memory: Makes the arrays that the last function fills.
            substitutes: The records that come in the place of others, if some stage replaces records.

        Raises:
            StageError: if a function raises, or returns a record that does not fit the first one's structure.
        """
        start_s = perf_counter()
        records = self.source.records(indices)
        report_duration(READ, perf_counter() - start_s)
        numbers = self.source.user_numbers(indices)
        replacing = None
        if substitutes is not None and any(stage.is_replacing for stage in self.stages):
            replacing = _Replacing(self, records, indices, places, substitutes)
            numbers = replacing.numbers
        last = self.stages[-1]
        arrays: list[NDArray[Any]] = []
        try:
            for stage in self.stages if last.out is None else self.stages[:-1]:
                of_stage = None if replacing is None else replacing.of
                records[:] = self._pass(stage, records, numbers, places, report_duration, of_stage)
            if last.out is not None:
                arrays = last.arrays(len(records), memory)
                replace = None if replacing is None else replacing.of(last, arrays)
                slots = last.slots(arrays)
                last.call(records, numbers, places, report_duration, slots=slots, replace=replace)
        except StageError as error:
            self._with_file(error)
            raise
        if replacing is not None and substitutes is not None:
            substitutes.settle(places, replacing.replaced)
        if last.out is None:
            return self._columns_of(self.spec, records, numbers)
        found: list[Column] = [*arrays]
        if last.kept is not None:
            found += self._columns_of(last.kept, last.kept_of(records), numbers)
        return found

    def first_stages(self, stage: Stage | None, indices: Indices, places: Places) -> list[Any]:
        """Return records as a stage takes them, or, without one, as the last stage returns them."""
        records = self.source.records(indices)
        numbers = self.source.user_numbers(indices)
        for each in self.stages if stage is None else self.stages[: stage.number]:
            records = self._pass(each, records, numbers, places)
        return records

    def _pass(
        self,
        stage: Stage,
        records: list[Any],
        numbers: Numbers,
        places: Places,
        report_duration: ReportDuration = ignore_duration,
        replacing: Callable[[Stage, Sequence[NDArray[Any]]], Replace | None] | None = None,
    ) -> list[Any]:
        """Return what a stage makes of records, as records."""
        arrays = [] if stage.out is None else stage.arrays(len(records), None)
        replace = None if replacing is None else replacing(stage, arrays)
        slots = None if stage.out is None else stage.slots(arrays)
        results = stage.call(records, numbers, places, report_duration, slots=slots, replace=replace)
        if stage.out is None:
            return results
        filled = stage.out.records(arrays, len(records))
        if stage.kept is None:
            return filled
        return [{**record, **kept} for record, kept in zip(filled, stage.kept_of(records), strict=True)]

    def _columns_of(self, spec: Spec, records: list[Any], numbers: Numbers) -> list[Column]:
        """Return results as columns of their fields; see `columns`."""
        found: list[Column] = []
        try:
            values = split(spec, records)
        except UnsupportedDataError:
            for index, record in zip(numbers.tolist(), records, strict=True):
                try:
                    split(spec, [record], index, of_function)
                except UnsupportedDataError as error:
                    raise self._misfit_error(index, error) from error
            raise
        for number, (field, field_values) in enumerate(zip(spec.fields, values, strict=True)):
            try:
                found.append(batch_column(field.leaf, field_values))
            except BadShapeError as error:
                raise self._shape_error(spec, number, int(numbers[error.position]), error) from None
            except BadValueError as error:
                index = int(numbers[error.position])
                error.problem += self._advice_for_json(spec, number)
                misfit = refuse_value(field, error, field_values, index, of_function)
                raise self._misfit_error(index, misfit) from error.__cause__
        return found

    def file_of(self, index: int, drawn: Indices | None = None) -> str | None:
        """Return the path of the file that a record comes from, if the source lists it.

        Given the record's index with its draw, the record's field "file" may tell it, too.
        """
        found = self.source.numbered.file_of(index)
        names = [field.name for field in self.source.spec.fields]
        if found is None and drawn is not None and "file" in names:
            number = names.index("file")
            if self.source.spec.fields[number].leaf == Leaf("str"):
                # A function of the reference's that fails was the reason, and that is known.
                with contextlib.suppress(YogaError):
                    found = self.source.columns(drawn, [number])[0][0]
        return found

    def _with_file(self, error: StageError) -> StageError:
        """Return the error, with a note that names the record's file, if the source lists it."""
        path = None if error.record is None else self.file_of(error.record)
        if path is not None:
            error.add_note(f"the file of record {error.record} is {path}")
        return error

    def _shape_error(self, made: Spec, number: int, record: int, error: BadShapeError) -> StageError:
        """Return the error for a shape that a field has in this record, but not in the first one."""
        leaves, last = [field.leaf for field in made.fields], self.stages[-1]
        problem = f"{error.problem}, not {leaves[number].shape}"
        leaves[number] = widen(leaves[number], error.shape)
        varying = [i for i, leaf in enumerate(leaves) if leaf.shape is None or None in leaf.shape]
        spec = declaration_text(made.with_leaves(leaves), varying)
        call = f"{str(last).partition('(')[0]}(..., spec={spec})"
        misfit = refuse(made.fields[number].name, record, f"{problem}. If the shape varies, write {call}")
        return self._misfit_error(record, misfit)

    def _advice_for_json(self, made: Spec, number: int) -> str:
        """Return how to declare a field that may have json values of the source under another name."""
        leaves = [field.leaf for field in made.fields]
        has_json = any(field.leaf.dtype == JSON for field in self.source.spec.fields)
        if not has_json or leaves[number].shape != () or leaves[number].dtype == JSON:
            return ""
        leaves[number] = Leaf(JSON)
        spec = declaration_text(made.with_leaves(leaves), [number])
        return f". If it is a json value, write {str(self.stages[-1]).partition('(')[0]}(..., spec={spec})"

    def _misfit_error(self, record: int, error: UnsupportedDataError) -> StageError:
        """Return the error for a record that is not like the first."""
        text = f"{self} returned a result for record {record} that is not like the first one: {error}"
        return self._with_file(StageError(text, self.stages[-1].number, record))


class MappedRecords(SameNumbers):
    """Records passed through functions; the fingerprint stays that of the parent, so cursors stay valid."""

    fingerprint: str

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.parent = chain.source
        self.fingerprint = chain.source.fingerprint

    def over(self, parent: RandomAccess) -> "MappedRecords":
        """Return the same view of the first records alone, which `parent` has."""
        return MappedRecords(replace(self.chain, source=parent, declared_spec=self.spec))

    @property
    def spec(self) -> Spec:
        """The structure of a resulting record."""
        return self.chain.spec

    @property
    def record_bytes(self) -> int:
        """The approximate size of a record."""
        return self.chain.record_bytes

    @property
    def stages(self) -> Sequence[Stage]:
        """The functions."""
        return self.chain.stages

    def file_of(self, index: int) -> str | None:
        """Return the path of the file that a record comes from, if the source lists it."""
        return self.chain.file_of(index)

    def will_need(
        self, indices: Indices, fields: Sequence[int] | None = None, on_planned: OnPlanned | None = None
    ) -> Announced:
        """Announce that these records will be read soon, with all their fields.

        The functions take whole records, so `fields` is not passed on.
        """
        return self.parent.will_need(indices, on_planned=on_planned)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records in the order of `indices`."""
        found = self.chain.columns(indices, ())
        return found if fields is None else [found[number] for number in fields]


def with_found_spec(records: Any) -> Any:
    """Return records whose structure is that of the first record for which no function raises."""
    if not isinstance(records, MappedRecords):
        return records
    return MappedRecords(replace(records.chain, is_skipping=True))
