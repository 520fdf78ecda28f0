"""Combine several references: their records one after another, or mixed."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import gcd, lcm
from typing import Any, Final

from yogadl._core.arguments import explains_names, fraction_argument, int_argument
from yogadl._core.protocols import Item_co, Made, RandomAccess
from yogadl._dataref import DrawnRef, PackedRef, RecordsRef
from yogadl._order import GROUPS, Blocks, DrawnMixture, Mixture, Sequences, make_order
from yogadl._order.mix import MOST_BITS, RUN
from yogadl._streamed import StreamedRef
from yogadl._views.joined import JoinedRecords
from yogadl.errors import ConfigurationError

_STREAMS_ALONE: Final = (
    "it has only streams. For random access use yogadl.concat of the same references; filter or slice the "
    "references before you mix them"
)
_AT_ENDS: Final = ("stop", "repeat")


class MixedRef(StreamedRef[Item_co]):
    """A reference to the records of several references, mixed by weight: see `mix`.

    A mix has only streams. To read records at random, use `yogadl.concat` of the same references: the indices
    that a stream of the mix reports are indices of that concatenation.

    Args:
        records: The concatenation, or a view of it.
        mixture: The weights and the other settings of the mix.
    """

    def __init__(self, records: RandomAccess, mixture: Mixture) -> None:
        super().__init__(records)
        self._mixture = mixture
        self._length = make_order(0, mixture, 0).records

    def __len__(self) -> int:
        """Return the number of records of an epoch, the same in each."""
        return self._length

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in vars(RecordsRef):
            raise AttributeError(f"a mix has no {name}: {_STREAMS_ALONE}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __iter__(self) -> Iterator[Item_co]:
        """Yield the records of the first epoch, each parent's in source order; this counts as no epoch."""
        return self.stream().at(0)

    def _order_for(self, shuffle: bool | Blocks | Sequences) -> Mixture:
        if isinstance(shuffle, Sequences):
            raise ConfigurationError(
                "a mix can't be read in Sequences, since its parents take turns in each lane: open a stream "
                "of yogadl.concat([...]) of the parents, or one of each parent"
            )
        if isinstance(shuffle, Blocks) and shuffle.records == GROUPS:
            raise ConfigurationError(
                'a mix can\'t be read in Blocks(records="groups"): give a number of records, or shuffle=True'
            )
        if isinstance(shuffle, Blocks) and self._mixture.is_drawn:
            raise ConfigurationError(
                "a mix with records that each epoch draws anew can't be read in blocks, since they lie "
                "anywhere: pass shuffle=True"
            )
        return replace(self._mixture, shuffle=shuffle)

    @explains_names()
    def map(self, fn: Callable[[Item_co], Made], *, spec: Any = None) -> "MixedRef[Made]":
        """Return a mix of ``fn(record)``; see `RecordsRef.map`."""
        return MixedRef(_records_of(RecordsRef(self._records).map(fn, spec=spec)), self._mixture)

    def fields(self, *names: str | int) -> "MixedRef":
        """Return a mix with just these fields; the others are not read. Cursors stay valid."""
        return MixedRef(_records_of(RecordsRef(self._records).fields(*names)), self._mixture)


def concat(refs: Iterable[RecordsRef[Made]]) -> RecordsRef[Made]:
    """Return a `DataRef` over the records of several references, one after another; nothing is copied.

    Args:
        refs: The references. Their records must be alike: the same fields in the same order, with the same
            dtypes and the same shapes (a size that varies in one varies in all).

    Raises:
        ConfigurationError: if the records are not alike; the error names the field that differs.

    Example:
        >>> import yogadl
        >>> both = yogadl.concat([yogadl.from_source([10, 11]), yogadl.from_source([20, 21, 22])])
        >>> len(both), both.gather([0, 4, 1]).tolist()
        (5, [10, 22, 11])
    """
    return RecordsRef(JoinedRecords([_records_of(ref) for ref in refs]))


@explains_names()
def mix(
    parents: Mapping[str, tuple[RecordsRef[Made] | DrawnRef[Made], float]],
    *,
    seed: int = 0,
    at_end: str = "stop",
) -> MixedRef[Made]:
    """Return a `DataRef` whose streams mix the records of several references by weight; nothing is copied.

    In each run of 4,096 positions of an epoch, the counts of the parents follow the weights exactly: after
    any number of runs, each parent's count differs from its weight by less than one record. The places of a
    parent within a run depend on the seed, the epoch and the run. The records of each parent come in the
    parent's own order for that epoch: with ``shuffle=True``, in its own shuffle.

    A stream can continue from a cursor of a mix with other weights: see `docs/howto/mixes.md`.

    Args:
        parents: Each reference, which may be packed, and its weight, by name. The weights can have any sum,
            but none may be less than 1 in 4,096 of it. A float means the decimal that Python prints: 0.7 is
            7/10.
        seed: The seed of the places in the runs: any integer. (The parents' shuffles depend on the stream's
            `shuffle_seed`.)
        at_end: "stop": an epoch ends before a parent would need more records than it has. "repeat": a parent
            without more records begins again, in a new shuffle, until each parent was read once.

    Raises:
        ConfigurationError: if an argument makes no sense, or the records are not alike (see `concat`).

    Example:
        >>> import yogadl
        >>> web, code = yogadl.from_source(range(700)), yogadl.from_source(range(1000, 1300))
        >>> mixed = yogadl.mix({"web": (web, 0.7), "code": (code, 0.3)}, seed=1)
        >>> len(mixed), sum(int(record) >= 1000 for record in mixed.stream(shuffle=True))
        (1000, 300)
    """
    unchecked: Any = parents  # from the user: any object is possible
    pairs = unchecked.values() if isinstance(unchecked, Mapping) else ()
    if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ConfigurationError(
            'mix takes references and weights by name: yogadl.mix({"web": (web, 0.7), "code": (code, 0.3)})'
        )
    if at_end not in _AT_ENDS:
        raise ConfigurationError(f'at_end must be "stop" or "repeat", not {at_end!r}')
    records_of = {
        name: ref._records if isinstance(ref, DrawnRef) else _records_of(ref)
        for name, (ref, _) in parents.items()
    }
    for name, records in records_of.items():
        if not len(records):
            raise ConfigurationError(f"{name!r} has no records to mix: leave it out")
    is_any_drawn = any(records.is_drawn for records in records_of.values())
    mixture = (DrawnMixture if is_any_drawn else Mixture)(
        lengths=tuple(map(len, records_of.values())),
        weights=_whole_weights({name: weight for name, (_, weight) in parents.items()}),
        at_end=at_end,
        seed=int_argument("seed", seed, None),
    )
    return MixedRef(JoinedRecords(list(records_of.values())), mixture)


def _whole_weights(weights_by_name: Mapping[str, Any]) -> tuple[int, ...]:
    """Return weights as the least whole numbers of their proportions.

    Raises:
        ConfigurationError: if a value is no weight, or too small beside the others.
    """
    fractions = [
        fraction_argument(f"the weight of {name!r}", weight) for name, weight in weights_by_name.items()
    ]
    scale = lcm(*(weight.denominator for weight in fractions))
    weights = [int(weight * scale) for weight in fractions]
    least = gcd(*weights)
    weights = [weight // least for weight in weights]
    for name, weight in zip(weights_by_name, weights, strict=True):
        if weight * RUN < sum(weights):
            raise ConfigurationError(
                f"the weight of {name!r} is less than 1 in {RUN} of all: make it larger, or join {name!r} "
                "with another one by yogadl.concat"
            )
        if weight.bit_length() > MOST_BITS:
            raise ConfigurationError(
                "the proportions of the weights have too many digits: round them, for example to 0.333"
            )
    return tuple(weights)


def _records_of(value: Any) -> RandomAccess:  # Any: the value is checked here
    """Return the records below a reference.

    Raises:
        ConfigurationError: if it is not a reference that can be read at random.
    """
    if isinstance(value, MixedRef):
        raise ConfigurationError(
            "a mix can't be mixed or joined again: pass all its parents to one yogadl.mix, with their weights"
        )
    if isinstance(value, DrawnRef):
        what, made = ("packed", "pack") if isinstance(value, PackedRef) else ("sampled", "sample")
        raise ConfigurationError(
            f"{what} records can't be joined, since each epoch has others: join the records before you "
            f"{made} them, or pass {what}.at(epoch)"
        )
    if not isinstance(value, RecordsRef):
        raise ConfigurationError(
            f"a {type(value).__name__} can't be joined or mixed with others: pass what storage.fetch(...), "
            "yogadl.from_source(...) or a view of such returned"
        )
    return value._records
