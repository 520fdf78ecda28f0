"""Call one function of the user's with records or batches, and say what it takes and makes."""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import int_argument
from yogadl._core.columns import split
from yogadl._core.frozen import frozen
from yogadl._core.printable import error_text
from yogadl._core.protocols import Int64s, Memory, Numbers
from yogadl._core.spec import DictNode, Leaf, Spec, node_of
from yogadl.errors import ConfigurationError, StageError, UnsupportedDataError

# For each epoch in turn, its number and the positions at which its records come: random functions need them.
Places = Sequence[tuple[int, range | Int64s]]
# Called with the title of a stage and the seconds that the stage took.
ReportDuration = Callable[[str, float], None]


_WRITE: Final = "write into the array that is there"


def ignore_duration(stage: str, seconds: float) -> None:
    """Do nothing: the default where durations are not collected."""


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, as messages show it."""
    name: str = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name.rpartition("<locals>.")[2]


class StageOptions(NamedTuple):
    """What a user asks of a function besides calling it, not checked yet: see `RecordStream.map`."""

    out: Any = None
    keep: Any = ()
    on_error: Any = "raise"
    max_errors: Any = None


class Slots(NamedTuple):
    """Records for a function to fill, and the arrays of each field that they were made of."""

    records: list[Any]
    arrays: list[list[Any]]


@frozen
class Stage:
    """One function of a chain.

    Args:
        function: Takes a record and returns one. That of a random stage also takes a generator. One with
            `out` also takes a record that it fills, and returns None.
        number: The number of the stage in its chain, from 0.
        seed: The seed of a random stage; its generators are made from seed, epoch, position and number.
        out: The structure of the record that the function fills.
        kept: The structure of the fields that the result has in addition, from the record that is taken.
        is_replacing: Whether another record replaces one for which the function raises.
        max_errors: How many may be replaced; None: any number.
    """

    function: Callable[..., Any]
    number: int
    seed: int | None = None
    out: Spec | None = None
    kept: Spec | None = None
    is_replacing: bool = False
    max_errors: int | None = None

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

    @property
    def made(self) -> Spec | None:
        """The structure of a result; None without `out`."""
        if self.out is None or self.kept is None:
            return self.out
        out, kept = self.out.tree, self.kept.tree
        assert isinstance(out, DictNode)
        assert isinstance(kept, DictNode)
        return Spec(DictNode((*out.keys, *kept.keys), (*out.children, *kept.children)))

    def call(
        self,
        records: Sequence[Any],
        numbers: Numbers,
        places: Places,
        report_duration: ReportDuration = ignore_duration,
        what: str = "record",
        *,
        slots: Slots | None = None,
        replace: "Replace | None" = None,
    ) -> list[Any]:
        """Return the function's results for records or other items, such as batches.

        Args:
            records: The items to call the function with.
            numbers: The number of each record in the data; for an item of several records, that of the first.
            places: The epochs and positions of the items, for the generators of a random stage.
            report_duration: Called with the stage's title and the seconds that it took for all items.
            what: What an error message calls the item, before its index.
            slots: The records that the function fills, if the stage has `out`.
            replace: Returns the result for an item for which the function raises. Without it, a StageError is
                raised.

        Raises:
            StageError: if the function raises.
        """
        start_s = perf_counter()
        function = self.function
        results: list[Any] = []
        arguments: list[Iterable[Any]] = [records]
        if self.seed is not None:
            arguments.append(self._generators(places))
        if slots is not None:
            arguments.append(slots.records)
        calls = zip(*arguments, strict=True)
        while len(results) < len(records):
            try:
                for each in calls:
                    results.append(function(*each))
            except SystemExit as error:  # `sys.exit` ends the program here as anywhere else
                error.add_note(f"{self} called sys.exit at {what} {numbers[len(results)]}")
                raise
            except Exception as error:
                index = int(numbers[len(results)])
                text = f"{self} failed at {what} {index}: {error_text(error)}"
                failed = StageError(text, self.number, index)
                failed.__cause__ = error
                if replace is None:
                    raise failed from error
                results.append(replace(len(results), failed))
                if slots is not None and self.out is not None:  # it may have been changed before the error
                    rows = [arrays[len(results) - 1] for arrays in slots.arrays]
                    slots.records[len(results) - 1] = self.out.assemble(rows)
        if slots is not None:
            self._check_filled(results, slots, numbers)
        report_duration(self.title, perf_counter() - start_s)
        return results

    def _check_filled(self, results: list[Any], slots: Slots, numbers: Numbers) -> None:
        """Refuse results, and records that have other objects than the arrays that were to be filled."""
        if any(result is not None for result in results):
            place = next(place for place, result in enumerate(results) if result is not None)
            raise self._filling_error(
                f"returned {results[place]!r:.100}",
                "with out=, it fills the record that it is given last, and returns None",
                numbers[place],
            )
        assert self.out is not None
        try:
            found = split(self.out, slots.records)
        except UnsupportedDataError:
            for number, slot in zip(numbers, slots.records, strict=True):
                try:
                    split(self.out, [slot], int(number))
                except UnsupportedDataError as error:
                    raise self._filling_error("changed what out= has", f"{error}; {_WRITE}", number) from None
            raise
        for field, ours, theirs in zip(self.out.fields, slots.arrays, found, strict=True):
            if not all(map(operator.is_, ours, theirs)):
                place = list(map(operator.is_, ours, theirs)).index(False)
                keys = field.name.split("/")
                path = "".join(f"[{key}]" if key.isdigit() else f'["{key}"]' for key in keys)
                raise self._filling_error(
                    f"put another object into field {field.name!r} of out",
                    f"{_WRITE}, out{path}[...] = value",
                    numbers[place],
                )

    def _filling_error(self, what: str, advice: str, number: Any) -> StageError:
        return StageError(f"{self} {what} for record {number}: {advice}", self.number, int(number))

    def _generators(self, places: Places) -> Iterator[np.random.Generator]:
        from yogadl._order.random import generators  # slow to import

        assert self.seed is not None
        for epoch, positions in places:
            yield from generators(self.seed, self.number, epoch, np.asarray(positions, np.int64))

    def arrays(self, count: int, memory: Memory | None) -> list[NDArray[Any]]:
        """Return zeros for the fields of `out`, of many records."""
        assert self.out is not None
        found: list[NDArray[Any]] = []
        for leaf in (field.leaf for field in self.out.fields):
            shape: Any = (count, *(leaf.shape or ()))  # no size of a fixed leaf is None
            if memory is None:
                found.append(np.zeros(shape, leaf.numpy_dtype))
            else:
                found.append(memory.array(shape, leaf.numpy_dtype))  # may have been used before
                found[-1][...] = np.zeros((), leaf.numpy_dtype)
        return found

    def slots(self, arrays: Sequence[NDArray[Any]]) -> Slots:
        """Return the records whose fields are the rows of arrays, and can be written to."""
        assert self.out is not None
        count = len(arrays[0])
        # Iterating over an array of one dimension gives copies of its values.
        rows = [
            list(array) if array.ndim > 1 else [array[row, ...] for row in range(count)] for array in arrays
        ]
        return Slots(self.out.records(rows, count), rows)

    def kept_of(self, records: Sequence[Any]) -> list[Any]:
        """Return what the results have of the records that are taken."""
        names = self.kept.keys() or [] if self.kept else []
        return [{name: record[name] for name in names} for record in records]


# Returns the result in the place of an item, given its number and the error that its function raised.
Replace = Callable[[int, StageError], Any]


def with_options(stage: Stage, options: StageOptions, taken: Callable[[], Spec]) -> Stage:
    """Return a stage with what a user asked for; `taken` returns the structure of the records that it takes.

    Raises:
        ConfigurationError: if an option makes no sense.
    """
    if options.on_error not in ("raise", "substitute"):
        raise ConfigurationError(f'on_error must be "raise" or "substitute", not {options.on_error!r:.100}')
    is_replacing = options.on_error == "substitute"
    most = options.max_errors
    if most is not None:
        most = int_argument("max_errors", most)
        if not is_replacing:
            raise ConfigurationError(
                'max_errors counts the records that on_error="substitute" replaces: pass both'
            )
    out = None if options.out is None else _filled_spec(options.out)
    names = (options.keep,) if isinstance(options.keep, str) else tuple(options.keep)
    if not names:
        return replace(stage, out=out, is_replacing=is_replacing, max_errors=most)
    filled, before = (None if spec is None else spec.tree for spec in (out, taken() if out else None))
    if not isinstance(filled, DictNode) or not isinstance(before, DictNode):
        raise ConfigurationError(
            "keep= takes fields of the record over into what out= declares: let both be dicts"
        )
    children = dict(zip(before.keys, before.children, strict=True))
    for name in names:
        if name in filled.keys or name not in children or names.count(name) > 1:
            raise ConfigurationError(
                f"keep= has {name!r}: it takes fields of the record, {list(children)}, each once, that are "
                f"not in out=, {list(filled.keys)}"
            )
    kept = Spec(DictNode(names, tuple(children[name] for name in names)))
    return replace(stage, out=out, kept=kept, is_replacing=is_replacing, max_errors=most)


def _filled_spec(out: Any) -> Spec:
    """Return the structure of the records that a function fills."""

    def leaf(value: Any, path: str, _: Any) -> Leaf:
        if isinstance(value, Leaf) and value.is_fixed:
            return value
        raise ConfigurationError(
            f"out= has {value!r:.100}{f' for field {path!r}' if path else ''}: a function fills arrays of "
            'one shape, declared such as yogadl.Leaf("uint8", (224, 224, 3))'
        )

    if isinstance(out, Spec):
        for field in out.fields:
            leaf(field.leaf, field.name, ())
        return out
    spec = Spec(node_of(out, leaf, has_lists=True))
    if not spec.fields:
        raise ConfigurationError(f"out= has no fields: {out!r:.100}")
    return spec


@frozen
class Rejected:
    """A record for which a function raised, so that another one came in its place.

    Attributes:
        index: The index of the record in the data.
        epoch: The epoch.
        position: The position at which the other record came.
        reason: The error.
        file: The path of the record's file, if the source lists files or the record has a field "file".
    """

    index: int
    epoch: int
    position: int
    reason: str
    file: str | None


# The records that others replaced at a place, an epoch and a position: one for each attempt.
Replaced = Mapping[tuple[int, int], Sequence[Rejected]]


class Substitutes(Protocol):
    """Finds the records that come in the place of others, and counts those."""

    def index(self, epoch: int, position: int, attempt: int) -> int:
        """Return the index of the record that an attempt puts in the place of that at a position."""

    def reject(self, rejected: Rejected, attempt: int, stage: Stage) -> None:
        """Count a record.

        Raises:
            StageError: if that is one too many.
        """

    def settle(self, places: Places, replaced: Replaced) -> None:
        """Note at which of the places that were read another record came, and in place of which ones."""
