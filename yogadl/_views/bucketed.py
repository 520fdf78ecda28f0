"""Make batches of records of like length, anew in each epoch.

Which records a batch has is known from its number and the epoch's draw alone: see `yogadl._order.buckets`. As
for packed records, the index of a batch has both.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import int_argument
from yogadl._core.protocols import Column, Document, Indices, Memory, RandomAccess
from yogadl._core.spec import JSON, DictNode, Leaf, Spec
from yogadl._order.buckets import Bucketed, BucketPlan
from yogadl._order.lengths import offsets_of
from yogadl._views.lengths import PACKED, PlannedRecords, check_leaf, checked_pad, lengths_of, number_of
from yogadl._views.packed import is_name
from yogadl._views.views import Needs, SelectedRecords
from yogadl.errors import ConfigurationError, UnsupportedDataError


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


class BucketedRecords(PlannedRecords[BucketPlan]):
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
        if not isinstance(parent.spec.tree, DictNode) or not all(
            isinstance(child, Leaf) for child in parent.spec.tree.children
        ):
            raise ConfigurationError("batches are made of records that are dicts without others inside")
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
        plan = self.plan
        self._batches = plan.batches_per_epoch
        self.steps = (plan.steps_of_one_class, ranks)
        self.parents_a_record = plan.records / max(1, self._batches)
        self._lengths_name = bucketing.lengths if is_name("lengths", bucketing.lengths) else None
        self.spec = self._make_spec()
        a_batch = parent.record_bytes * self.parents_a_record * (1 + max(0.0, plan.padding))
        self.record_bytes = max(1, int(a_batch))
        pads = {name: pad.tobytes().hex() for name, pad in self._pads.items()}
        self._parts = "bucketed", what, pads, bucketing.pad_to, self._lengths_name, self._digest
        self._identify()

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

    def __len__(self) -> int:
        return self._batches

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
        count = len(self.parent.spec.fields)
        numbers = range(count) if fields is None else [number for number in fields if number < count]
        return sorted({*numbers, self._number})

    def lower(self, indices: Indices, fields: Sequence[int] | None) -> tuple[Bucketed, Needs]:
        """Return the records of batches, whole."""
        batches = self._find(indices)
        return batches, Needs(batches.records, self._parent_numbers(fields))

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
