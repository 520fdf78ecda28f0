"""Turn a state of Grain into a cursor, if the delivered items are a prefix of the order.

Grain's states count the items that each worker took. The number of delivered items depends on the
transformations in between, so a state is refused if one of them may change the count.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import grain

from yogadl._core.arguments import int_argument
from yogadl._core.frozen import MANY_DIGITS, parse_json
from yogadl._stream import Numbering, walk
from yogadl.adapters.grain._items import (
    Assignment,
    Effect,
    StreamMapDataset,
    cursor_of,
    effect_of,
    from_json,
    length_of,
)
from yogadl.errors import CursorError

# Grain has no annotations and no public names for the stages of a pipeline: `Any` stands for its iterators,
# datasets and states, and the sets below contain the names of its classes. Other classes are refused.
_DAMAGED: Final = "the state is damaged: use a state as get_state returned it"
_RESUME: Final = "resume from Grain's own state instead (set_state, or Orbax)"
_ONE_TO_ONE: Final = frozenset(
    {
        *("_MapDatasetIterator", "_RandomMapDatasetIterator", "_MapWithIndexDatasetIterator"),
        *("_LimitDatasetIterator", "ThreadPrefetchDatasetIterator"),
        *("MapIterDataset", "RandomMapIterDataset", "MapWithIndexIterDataset", "ThreadPrefetchIterDataset"),
        *("WithOptionsIterDataset", "_WithSeedIterDataset", "_MpContextIterDataset"),
        *("ProcessPrefetchIterDataset", "_LazyWorkerSliceIterDataset"),
        *("MapMapDataset", "RandomMapMapDataset", "MapWithIndexMapDataset", "_WithSeedMapDataset"),
    }
)
_BATCHES: Final = frozenset({"_BatchDatasetIterator", "BatchIterDataset"})
_MAP_READERS: Final = frozenset({"PrefetchDatasetIterator", "PrefetchIterDataset"})
_FILTERS: Final = frozenset({"_FilterDatasetIterator", "FilterIterDataset", "FilterMapDataset"})


def cursor(iterator_or_state: Any) -> dict[str, Any]:  # Grain's iterators, or their states
    """Return the cursor after the last element that an iterator of Grain has delivered.

    A job can resume from the cursor with any number of ranks or workers, any batch size and any framework:
    pass it to ``ref.stream(cursor=...)``. Reads no records.

    Args:
        iterator_or_state: An iterator of a `grain.DataLoader`, or of datasets that begin with `map_dataset`;
            or the result of an iterator's ``get_state`` if `make_dataloader` made the loader.

    Raises:
        CursorError: if the delivered items may not be the beginning of the order, or the state belongs to
            other data.

    Example:
        >>> import yogadl
        >>> from yogadl.adapters import grain as yogadl_grain
        >>> stream = yogadl.from_source([10, 11, 12, 13, 14]).stream()
        >>> batches = iter(yogadl_grain.make_dataloader(stream, batch_size=2))
        >>> next(batches).tolist()
        [10, 11]
        >>> yogadl_grain.cursor(batches)["position"], yogadl_grain.cursor(batches.get_state())["position"]
        (2, 2)
    """
    if isinstance(iterator_or_state, grain.DataLoaderIterator):
        return _cursor_of_loader(iterator_or_state)
    if isinstance(iterator_or_state, grain.DatasetIterator):
        return _cursor_of_dataset(iterator_or_state)
    state = iterator_or_state
    if isinstance(state, bytes | str):
        try:
            state = parse_json(state, most_digits=MANY_DIGITS)
        except ValueError:
            raise CursorError(f"this is no state of Grain's, which would be JSON: {state[:60]!r}") from None
    numbering, effect = _read_sampler(state)
    if effect is None:
        raise CursorError(
            "the state does not contain the DataLoader's operations, which decide how many records were "
            "delivered: pass the iterator itself, or use make_dataloader, whose states contain them"
        )
    return _cursor_of_counts(numbering, effect, _taken_counts(state, numbering), effect.deal)


def _cursor_of_counts(numbering: Numbering, effect: Effect, taken: list[int], deal: int) -> dict[str, Any]:
    """Return the cursor from the number of items that each worker took, assigned `deal` at a time."""
    if not effect.is_known:
        raise CursorError(
            "an operation that is not one of Grain's transformations may keep records that it took, so the "
            f"number of delivered records is not known: {_RESUME}"
        )
    delivered = Assignment(len(taken), deal, length_of(numbering)).delivered(taken)
    is_short = delivered is not None and delivered % effect.deal > 0
    return _cursor(numbering, delivered, effect.is_in_step, is_short)


def _cursor(numbering: Numbering, delivered: int | None, is_in_step: bool, is_short: bool) -> dict[str, Any]:
    """Return the cursor, or raise a `CursorError` if there is none for these items."""
    if delivered is None:
        raise CursorError(
            "the workers' records are no prefix of the order, since each worker makes its own batches: use "
            "make_dataloader, which gives each worker whole batches, or batch after the workers, or "
            f"{_RESUME}"
        )
    if not is_in_step and numbering.shard.ranks > 1:
        raise CursorError(
            "a filter, or another stage that changes how many records there are, takes the shards out of "
            f"step, so no cursor is valid for all of them: {_RESUME}"
        )
    return cursor_of(numbering, delivered, is_short=is_short)


def _cursor_of_loader(iterator: Any) -> dict[str, Any]:
    loader = iterator._data_loader
    state = json.loads(iterator.get_state())
    numbering, effect = _read_sampler(state)
    taken = _taken_counts(state, numbering)
    if effect is not None:
        return _cursor_of_counts(numbering, effect, taken, effect.deal)
    shards, shard = loader._shard_options, numbering.shard
    if (shards.shard_index, shards.shard_count) != (shard.rank, shard.ranks):
        raise CursorError(
            f"the DataLoader reads shard {shards.shard_index} of {shards.shard_count} of the stream's "
            "records, but a cursor has no shard: pass the shard to ref.stream(shard_rank=..., "
            "num_shards=...) instead"
        )
    effect = effect_of(loader._operations)
    if len(taken) > 1 and effect.deal > 1:  # workers make the batches, so shards may be out of step, too
        effect = replace(effect, is_in_step=False)
    return _cursor_of_counts(numbering, effect, taken, 1)


def _read_sampler(state: Any) -> tuple[Numbering, Effect | None]:
    """Return the sampler's part of a state: the numbering, and the effect if the sampler recorded it."""
    sampler = state.get("sampler") if isinstance(state, Mapping) else None
    if not isinstance(sampler, str):
        raise CursorError(
            "the state has no sampler. The state of a grain.MapDataset or IterDataset does not identify its "
            "data: pass the iterator itself (after set_state). After a FlatMap there is no cursor: "
            f"{_RESUME}"
        )
    kind, _, text = sampler.partition("(")
    if kind not in ("yogadl.Sampler", "yogadl.ItemSampler"):
        raise CursorError(
            f"the order is that of {sampler[:80]}, but a cursor needs a sampler of yogadl: use "
            "make_dataloader"
        )
    try:
        described = parse_json(text[:-1], most_digits=MANY_DIGITS)
        numbering = from_json(described)
        if kind == "yogadl.Sampler":
            return numbering, None
        effect = Effect(**described["effect"])
        int_argument("deal", effect.deal, 1)
        return numbering, effect
    except (KeyError, TypeError, ValueError) as error:
        raise CursorError(_DAMAGED) from error


def _taken_counts(state: Any, numbering: Numbering) -> list[int]:
    """Return the number of items that each worker took, computed from the last index that it has seen."""
    rank, ranks = numbering.shard.rank, numbering.shard.ranks
    counts_and_rests = []
    try:
        workers, last = (
            max(1, int_argument("worker_count", state["worker_count"])),
            state["last_seen_indices"],
        )
        for worker in range(workers):
            first = rank + worker * ranks - workers * ranks  # Grain's value before the first item
            counts_and_rests.append(
                divmod(int_argument("last seen index", last[str(worker)] - first), workers * ranks)
            )
    except (KeyError, TypeError, ValueError) as error:
        raise CursorError(_DAMAGED) from error
    if any(rest for _, rest in counts_and_rests):
        raise CursorError(
            f"the state's 'last_seen_indices' {last!r} are not those of shard {rank} of {ranks}: use a state "
            "that this shard saved"
        )
    return [count for count, _ in counts_and_rests]


def _cursor_of_dataset(iterator: Any) -> dict[str, Any]:
    taken = _next_indices(iterator.get_state())
    delivered, size, is_in_step, is_short = None, 1, True, False
    for stage in _stages(iterator):
        name = type(stage).__name__
        if getattr(stage, "_sequential_slice", False) or getattr(stage, "part", None) is not None:
            raise CursorError(
                "with sequential_slice=True each worker reads a part of its own, so the delivered items are "
                f"no prefix of the order: {_RESUME}"
            )
        if isinstance(stage, StreamMapDataset):
            return _cursor(stage.numbering, delivered, is_in_step, is_short)
        if name in _FILTERS:
            is_in_step = False
        elif name in _BATCHES:
            size *= stage._batch_size
            is_in_step = is_in_step and (len(taken) == 1 or name != "BatchIterDataset")
        elif name in _MAP_READERS:
            delivered = Assignment(len(taken), 1, sum(taken)).delivered(taken)
            is_short = delivered is not None and delivered % size > 0
        elif name == "BatchMapDataset" and delivered:
            epoch, batches = walk(len(stage), len(stage), delivered)
            length, wanted = len(stage.parents[0]), batches * stage._batch_size
            delivered, is_short = epoch * length + min(length, wanted), is_short or wanted > length
        elif not (name in _ONE_TO_ONE or name == "BatchMapDataset" or _is_plain_repeat(stage)):
            raise CursorError(
                f"there is no cursor after a {name}, since the delivered items may be no prefix of the "
                f"order: {_RESUME}"
            )
    raise CursorError("the iterator does not read a stream of yogadl: begin with map_dataset(stream)")


def _is_plain_repeat(stage: Any) -> bool:
    return type(stage).__name__ == "RepeatMapDataset" and bool(stage._reseed_each_epoch)


def _stages(iterator: Any) -> Iterator[Any]:
    """Yield the stages of a pipeline from its end to its beginning: iterators, then their datasets."""
    stage = iterator
    while stage is not None:
        name = type(stage).__name__
        if (
            name == "InterleaveDatasetIterator"
        ):  # of mp_prefetch: a process for each of several equal datasets
            if {type(dataset).__name__ for dataset in stage._datasets} != {"ProcessPrefetchIterDataset"}:
                yield stage
                return
            stage = stage._datasets[0]
            continue
        yield stage
        if name == "PrefetchDatasetIterator":
            stage = stage._map_parent
            continue
        parents = stage._parents if isinstance(stage, grain.DatasetIterator) else stage.parents
        stage = parents[0] if len(parents) == 1 else None


def _next_indices(state: Any) -> list[int]:
    """Return the number of elements that each worker, or the only process, took of the `MapDataset`."""
    while "next_index" not in state:
        if "iterators_in_use_states" in state:
            indices, states = state["iterators_in_use_indices"], state["iterators_in_use_states"]
            found = {index: _next_indices(inner) for index, inner in zip(indices, states, strict=True)}
            return [count for index in sorted(found) for count in found[index]]
        if "parent" not in state:
            raise CursorError(f"there is no cursor for a state like {str(state)[:80]}: {_RESUME}")
        state = state["parent"]
    return [int(state["next_index"])]
