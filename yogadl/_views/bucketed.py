"""Make batches of records of like length, or of one value, anew in each epoch.

Which records a batch has is known from its number and the epoch's draw alone: see `yogadl._order.buckets`. As
for packed records, the index of a batch has both.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import int_argument
from yogadl._core.memory import require_memory
from yogadl._core.protocols import Column, Document, Indices, Memory, RandomAccess
from yogadl._core.spec import BYTES, JSON, OBJECT, STR, DictNode, Leaf, Spec
from yogadl._order.buckets import MOST_GROUPS, BatchPlan, Bucketed, BucketPlan, GroupPlan
from yogadl._order.lengths import offsets_of
from yogadl._views.chosen import by_workers, results_of, seen_fields
from yogadl._views.lengths import (
    PACKED,
    PLAN_BYTES,
    PlannedRecords,
    check_leaf,
    checked_pad,
    lengths_of,
    number_of,
)
from yogadl._views.packed import is_name
from yogadl._views.shares import read_field
from yogadl._views.stages import name_of
from yogadl._views.views import Needs, ProjectedRecords, SelectedRecords, SlicedRecords
from yogadl.errors import ConfigurationError, StageError, UnsupportedDataError


class Bucketing(NamedTuple):
    """How batches are made: the arguments of `RecordsRef.bucketed`, not checked yet."""

    by: Any
    tokens: Any
    max_records: Any
    pad_to: Any
    long: Any
    pad: Any
    lengths: Any
    classes: Any
    ranks: Any


AnyPlan = TypeVar("AnyPlan", bound=BatchPlan)


class BatchedRecords(PlannedRecords[AnyPlan]):
    """Batches whose records are whole records of a parent, as a plan says."""

    def _require_flat(self) -> None:
        tree = self.parent.spec.tree
        if not isinstance(tree, DictNode) or not all(isinstance(child, Leaf) for child in tree.children):
            raise ConfigurationError("batches are made of records that are dicts without others inside")

    def _identify_batches(self, ranks: int, padding: float, *parts: Any) -> None:
        """Set what all batches have, of which the plan is known by now."""
        plan = self.plan
        self._batches = plan.batches_per_epoch
        self.steps = (plan.steps_of_one_class, ranks)
        self.parents_a_record = plan.records / max(1, self._batches)
        a_batch = self.parent.record_bytes * self.parents_a_record * (1 + max(0.0, padding))
        self.record_bytes = max(1, int(a_batch))
        self._parts = *parts, self._digest
        self._identify()

    def __len__(self) -> int:
        return self._batches

    def _find(self, indices: Indices) -> Bucketed:
        """Return the records of batches, in the order of their indices, which have the draws."""
        draws, numbers = np.divmod(indices, self._batches)
        plan = self.plan
        if not len(draws) or (draws == draws[0]).all():
            return plan.batches(numbers, int(draws[0]) if len(draws) else 0, 0)
        found = [
            plan.batches(numbers[i : i + 1], draw, 0) for i, draw in enumerate(draws.tolist())
        ]  # several epochs at once are rare
        counts = np.array([len(one.records) for one in found], np.int64)
        records, longest = (np.concatenate(column) for column in list(zip(*found, strict=True))[1:])
        return Bucketed(offsets_of(counts), records, longest)

    def _parent_numbers(self, fields: Sequence[int] | None) -> list[int]:
        """Return the parent's fields that some fields of a batch are made of."""
        return list(range(len(self.parent.spec.fields)) if fields is None else fields)

    def lower(self, indices: Indices, fields: Sequence[int] | None) -> tuple[Bucketed, Needs]:
        """Return the records of batches, whole."""
        batches = self._find(indices)
        return batches, Needs(batches.records, self._parent_numbers(fields))


class BucketedRecords(BatchedRecords[BucketPlan]):
    """Batches of records of like length; see `RecordsRef.bucketed`.

    Args:
        parent: The records.
        bucketing: How batches are made of them.
        workers: How many processes read the lengths, if these are not stored.

    Raises:
        ConfigurationError: if an argument makes no sense.
    """

    def __init__(self, parent: RandomAccess, bucketing: Bucketing, workers: int = 0) -> None:
        self.parent = parent
        self._number = number_of(parent.spec, bucketing.by, PACKED)
        self._require_flat()
        check_leaf(bucketing.by, parent.spec.fields[self._number].leaf, 1, PACKED)
        if bucketing.pad_to not in ("longest", "class"):
            raise ConfigurationError(f'pad_to must be "longest" or "class", not {bucketing.pad_to!r:.100}')
        self._pads_to_class = bucketing.pad_to == "class"
        tokens, ranks = int_argument("tokens", bucketing.tokens, 1), int_argument("ranks", bucketing.ranks, 1)
        most, classes = (
            None if given is None else int_argument(name, given, 1)
            for name, given in (("max_records", bucketing.max_records), ("classes", bucketing.classes))
        )
        self._options = {
            "max_records": most, "long": bucketing.long, "classes": classes, "ranks": ranks,
        }  # fmt: skip
        self._tokens = tokens
        self._pads = self._checked_pads(bucketing.pad)
        what = ["buckets-1", bucketing.by, tokens, list(self._options.values())]
        self._take_plan(what, [self._number], workers)
        self._lengths_name = bucketing.lengths if is_name("lengths", bucketing.lengths) else None
        self.spec = self._make_spec()
        pads = {name: pad.tobytes().hex() for name, pad in self._pads.items()}
        parts = "bucketed", what, pads, bucketing.pad_to, self._lengths_name
        self._identify_batches(ranks, self.plan.padding, *parts)

    def _make_spec(self) -> Spec:
        fields = self.parent.spec.fields
        leaves = []
        for name, leaf in fields_of(self.parent.spec):
            if leaf.is_numeric and leaf.shape is not None and None not in leaf.shape[1:]:
                leaves.append(Leaf(leaf.dtype, (None, *leaf.shape)))
                continue
            if leaf.dtype == JSON:  # a batch's value is the list of its records' values
                leaves.append(leaf)
                continue
            raise ConfigurationError(
                f"field {name!r} is {leaf}, which can't be padded along its first axis: leave it out, "
                f"ref.fields(...), or make it numbers by map; there are {[field.name for field in fields]}"
            )
        names = self.parent.spec.keys() or []
        if self._lengths_name is not None:
            if self._lengths_name in names:
                raise ConfigurationError(
                    f"the record has a field {self._lengths_name!r}: pass another name as lengths, or None"
                )
            names, leaves = [*names, self._lengths_name], [*leaves, Leaf("int32", (None,))]
        return Spec(DictNode(tuple(names), tuple(leaves)))

    def _checked_pads(self, pad: Any) -> dict[str, NDArray[Any]]:
        given = {} if pad is None else pad
        dtypes = {name: leaf.numpy_dtype for name, leaf in fields_of(self.parent.spec) if leaf.is_numeric}
        if not isinstance(given, Mapping) or not given.keys() <= dtypes.keys():
            raise ConfigurationError(f"pad is a dict of values by field, not {given!r:.100}")
        return {
            name: checked_pad(given[name], dtype) if name in given else np.zeros((), dtype)
            for name, dtype in dtypes.items()
        }

    @property
    def padding(self) -> float:
        """The share of all tokens that are padding, if batches are padded to the longest of their class."""
        plan = self.plan
        return 1 - plan.tokens / plan.padded_tokens if plan.padded_tokens else 0.0

    @property
    def shown(self) -> str:
        """What the batches are, in words."""
        plan = self.plan
        return (
            f"batches of at most {plan.budget} tokens, {plan.records} records, {len(plan.longest)} classes "
            f"of lengths, at most {self.padding:.2%} padding"
        )

    def _open_plan(self, content: Any) -> tuple[BucketPlan, bool]:
        plan = BucketPlan.from_buffer(content)
        wanted = len(self.parent), self._tokens, self._options["ranks"]
        return plan, (plan.records, plan.budget, plan.ranks) == wanted

    def _make_plan(self, lengths: Indices) -> BucketPlan:
        options: Any = self._options
        return BucketPlan.make(lengths, self._tokens, **options)

    def documents_of(self, indices: Indices) -> list[list[Document]]:
        """Return the records of batches, whole."""
        offsets, records, _ = self._find(indices)
        lengths = lengths_of(SelectedRecords(self.parent, records), [self._number], 0)
        found = list(map(Document, records.tolist(), [0] * len(records), lengths.tolist()))
        return [found[begin:end] for begin, end in pairwise(offsets.tolist())]

    def _parent_numbers(self, fields: Sequence[int] | None) -> list[int]:
        """Return the parent's fields that some fields of a batch are made of."""
        count = len(self.parent.spec.fields)
        numbers = range(count) if fields is None else [number for number in fields if number < count]
        return sorted({*numbers, self._number})

    def make(
        self, rows: Bucketed, found: Mapping[int, Any], fields: Sequence[int] | None, memory: Memory | None
    ) -> Sequence[Column]:
        """Return batches."""
        numbers = range(len(self.spec.fields)) if fields is None else fields
        bounds = rows.offsets.tolist()
        made: dict[int, list[Any]] = {number: [] for number in numbers}
        for begin, end, longest in zip(bounds[:-1], bounds[1:], rows.longest.tolist(), strict=True):
            lengths = np.array([len(value) for value in found[self._number][begin:end]], np.int32)
            if int(lengths.max(initial=0)) > longest:
                self._refuse(int(rows.records[begin + int(lengths.argmax())]), int(lengths.max()), longest)
            for number, column in made.items():
                if number == len(self.parent.spec.fields):
                    column.append(lengths)
                else:
                    column.append(self._stack(number, found[number][begin:end], lengths, longest))
        return [made[number] for number in numbers]

    def _refuse(self, record: int, length: int, longest: int) -> NoReturn:
        name = self.parent.spec.fields[self._number].name
        raise UnsupportedDataError(
            f"record {record} has {length} values in field {name!r}, but had {longest} or fewer when the "
            "batches were planned: a function of map must return the same each time"
        )

    def _stack(self, number: int, values: Any, lengths: NDArray[np.int32], longest: int) -> Any:
        """Return the values of one field of a batch as one array, padded if their lengths vary; or as a list.

        Json values are in a list.
        """
        field = self.parent.spec.fields[number]
        if field.leaf.dtype == JSON:
            return values
        if isinstance(values, np.ndarray):
            return values.copy()
        own = np.fromiter(map(len, values), np.int32, len(values))
        size = int(own.max())
        # A field whose lengths are those of the field that counts, such as a mask, is padded alike.
        if self._pads_to_class and (own == lengths).all():
            size = max(size, longest)
        assert field.leaf.shape is not None
        shape = len(values), size, *(inner or 0 for inner in field.leaf.shape[1:])
        stacked = np.full(shape, self._pads[field.name], field.leaf.numpy_dtype)
        for row, value in zip(stacked, values, strict=True):
            row[: len(value)] = value
        return stacked


def fields_of(spec: Spec) -> list[tuple[str, Leaf]]:
    """Return the fields of a record, by name."""
    return [(field.name, field.leaf) for field in spec.fields]


class GroupedRecords(BatchedRecords[GroupPlan]):
    """Batches of records of one value; see `RecordsRef.grouped`.

    Args:
        parent: The records.
        by, records, fields, ranks, workers: Those of `RecordsRef.grouped`, not checked yet.

    Raises:
        ConfigurationError: if an argument makes no sense.
    """

    def __init__(
        self, parent: RandomAccess, by: Any, *, records: Any, fields: Any, ranks: Any, workers: Any
    ) -> None:
        self.parent = parent
        self._require_flat()
        self.spec = self._make_spec()
        self._by = by
        is_function, self._number = callable(by), -1
        if is_function:
            self._seen = seen_fields("grouped", parent, by, fields)
        elif fields is not None:
            raise ConfigurationError("fields= says what a function takes, and by is none: leave fields out")
        else:
            self._number = _number_of_group(parent, by)
            self._seen = ProjectedRecords(parent, *parent.spec.project((by,)))
        self._per_batch = _checked_sizes(records)
        self._ranks = int_argument("ranks", ranks, 1)
        sizes = self._per_batch
        shown = sizes if isinstance(sizes, int) else sorted(map(repr, sizes.items()))
        what = ["groups-1", None if is_function else by, shown, self._ranks]
        self._take_plan(what, [], workers, self._seen, [by] if is_function else [])
        if is_function:  # it may not pickle, so that the plan is pickled
            self._by = self._kept = None
            self._seen = parent
        self._identify_batches(self._ranks, 0.0, "grouped", what)

    def _make_spec(self) -> Spec:
        leaves = []
        for name, leaf in fields_of(self.parent.spec):
            if leaf.shape is None or leaf.dtype == OBJECT:
                raise ConfigurationError(
                    f"field {name!r} is {leaf}, which can't be stacked: leave it out, ref.fields(...), or "
                    "make it an array by map"
                )
            leaves.append(leaf if leaf.dtype == JSON else Leaf(leaf.dtype, (None, *leaf.shape)))
        return Spec(DictNode(tuple(self.parent.spec.keys() or []), tuple(leaves)))

    @property
    def padding(self) -> float:
        """The share of the values that are padding: none are."""
        return 0.0

    @property
    def shown(self) -> str:
        """What the batches are, in words."""
        plan = self.plan
        return f"batches of records of one value, {plan.records} records, {plan.groups} values"

    def _open_plan(self, content: Any) -> tuple[GroupPlan, bool]:
        plan = GroupPlan.from_buffer(content)
        return plan, (plan.records, plan.ranks) == (len(self.parent), self._ranks)

    def _make_plan_by(self, workers: int) -> GroupPlan:
        kinds, values = _kinds_of(self._seen, self._by, workers)
        sizes = self._per_batch
        if isinstance(sizes, int):
            return GroupPlan.make(kinds, [sizes] * len(values), self._ranks)
        missing = next((value for value in values if value not in sizes), None)
        if missing is not None:
            record = int((kinds == values.index(missing)).argmax())
            raise ConfigurationError(
                f"records= has no size for {missing!r:.100}, the value of record {record}: it has "
                f"{list(sizes)!r:.200}"
            )
        return GroupPlan.make(kinds, [sizes[value] for value in values], self._ranks)

    def documents_of(self, indices: Indices) -> list[list[Document]]:
        """Return the records of batches, whole: each counts as one value."""
        offsets, records, _ = self._find(indices)
        found = [Document(record, 0, 1) for record in records.tolist()]
        return [found[begin:end] for begin, end in pairwise(offsets.tolist())]

    def make(
        self, rows: Bucketed, found: Mapping[int, Any], fields: Sequence[int] | None, memory: Memory | None
    ) -> Sequence[Column]:
        """Return batches."""
        bounds = list(pairwise(rows.offsets.tolist()))
        return [
            [self._stack(number, found[number][begin:end], rows.records[begin:end]) for begin, end in bounds]
            for number in self._parent_numbers(fields)
        ]

    def _stack(self, number: int, values: Any, records: Indices) -> Any:
        """Return the values of one field of a batch as one array; json values as a list."""
        name, leaf = fields_of(self.parent.spec)[number]
        if leaf.dtype == JSON:
            return values
        if isinstance(values, np.ndarray):
            stacked = values.copy()
        elif leaf.shape == ():
            stacked = np.array(values, object)
        else:
            shapes = [np.shape(value) for value in values]
            if other := _first_other(shapes):
                raise UnsupportedDataError(
                    f"field {name!r} has the shape {shapes[0]} in record {records[0]} and {shapes[other]} in "
                    f"record {records[other]} of one batch: make them of one shape by map, group by what "
                    "tells them apart, or leave the field out, ref.fields(...)"
                )
            stacked = np.stack(values)
        # As a list, since numpy compares bytes without the zeros at their end.
        if number == self._number and (other := _first_other(stacked.tolist())):
            raise UnsupportedDataError(
                f"records {records[0]} and {records[other]} have different values in field {name!r}, but had "
                "equal ones when they were planned: a function of map must return the same each time"
            )
        return stacked


def _first_other(values: list[Any]) -> int:
    """Return the place of the first value that differs from the one at 0; 0 if none does."""
    return next((place for place, value in enumerate(values) if value != values[0]), 0)


def _number_of_group(records: RandomAccess, by: Any) -> int:
    """Return the number of a field whose values make groups.

    Raises:
        ConfigurationError: if they make none, or there is no such field.
    """
    names: list[Any] = records.spec.keys() or []
    if by not in names:
        raise ConfigurationError(
            f"by is a function of a record, or one of the fields {names}, not {by!r:.100}"
        )
    leaf, _ = read_field(records, by, "by")
    if leaf.dtype not in (STR, BYTES) and (not leaf.is_numeric or leaf.numpy_dtype.kind not in "biu"):
        raise ConfigurationError(
            f"by={by!r} is {leaf.dtype}: records are grouped by an integer, a bool, a str or bytes, or by a "
            "function that returns one"
        )
    return names.index(by)


def _checked_sizes(given: Any) -> int | dict[Any, int]:
    """Return how many records a batch has, or how many it has of each value."""
    if isinstance(given, Mapping):
        return {value: int_argument(f"records[{value!r}]", size, 1) for value, size in given.items()}
    return int_argument("records", given, 1)


def _kinds_of(records: RandomAccess, by: Any, workers: int) -> tuple[NDArray[np.uint16], list[Any]]:
    """Return the number of each record's value, and the values, in the order in which they come first."""
    require_memory("grouped", len(records), PLAN_BYTES)
    if workers:
        name = name_of(by) if callable(by) else "a function"
        parts = by_workers("grouped", name, records, by, _kinds_by_reading, workers)
    else:
        parts = [_kinds_by_reading(records, by, 0, len(records))]
    values: dict[Any, int] = {}
    found = [_numbered(own, values)[kinds] for kinds, own in parts]
    return np.concatenate([np.empty(0, np.uint16), *found]), list(values)


def _kinds_by_reading(
    records: RandomAccess, by: Any, first: int, end: int
) -> tuple[NDArray[np.uint16], list[Any]]:
    """Return the same of the records from `first` to `end`.

    Raises:
        StageError: if the function raises, or returns no such value; the error names the first such record.
    """
    values: dict[Any, int] = {}
    kinds = np.empty(end - first, np.uint16)
    if callable(by):
        called = f"grouped({name_of(by)})"
        for indices, results in results_of(called, by, records, first, end):
            wrong = next((place for place, value in enumerate(results) if not _tells(value)), None)
            if wrong is not None:
                index = int(indices[wrong])
                returned = f"but for record {index} it returned {results[wrong]!r:.100}"
                must = f"{called} must return an integer, a bool, a str, bytes or a tuple of these"
                raise StageError(f"{must}, {returned}", 0, index)
            kinds[indices - first] = _numbered(results, values)
    else:
        for indices, column in read_field(SlicedRecords(records, range(first, end)), by, "by")[1]:
            kinds[indices] = _numbered(column, values)
    return kinds, list(values)


def _numbered(column: Any, values: dict[Any, int]) -> NDArray[np.uint16]:
    """Return the number of each value, and add those that are new."""
    if isinstance(column, np.ndarray):
        found, firsts, which = np.unique(column, return_index=True, return_inverse=True)
        order = np.argsort(firsts)
        numbers = np.empty(len(found), np.uint16)
        numbers[order] = _numbered(found[order].tolist(), values)
        return numbers[which.reshape(-1)]
    numbers_of_each = [values.setdefault(value, len(values)) for value in column]
    if len(values) > MOST_GROUPS:
        raise UnsupportedDataError(
            f"the records have more than {MOST_GROUPS} values to group by: take a field or a function that "
            "tells fewer apart"
        )
    return np.array(numbers_of_each, np.uint16)


def _tells(value: Any) -> bool:
    """Return whether a function's result is one that records can be grouped by."""
    if isinstance(value, tuple):
        return all(map(_tells, value))
    return isinstance(value, int | str | bytes | np.integer | np.bool_)
