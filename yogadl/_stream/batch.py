"""Check how batches are to be made: how they are cut, of what they consist, and how many are read ahead."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from yogadl._arguments import flag, whole
from yogadl._stream.cut import Cut
from yogadl._stream.items import Batches
from yogadl._stream.prefetch import Prefetch
from yogadl._stream.recipe import Recipe
from yogadl._stream.run import Run
from yogadl.errors import ConfigurationError


def read_ahead(recipe: Recipe, depth: int, workers: int) -> Recipe:
    """Return the recipe with one more stage, which reads ahead."""
    if whole("prefetch's workers", workers):
        raise ConfigurationError("prefetch has no process workers yet: pass workers=0 for a thread")
    return replace(recipe, stages=(*recipe.stages, Prefetch(whole("prefetch's n", depth, 1))))


def make_cut(
    run: Run,
    n: int,
    drop_remainder: bool,
    epochs: int | None,
    across_epochs: bool = False,
    skip_finished_epoch: bool = False,
) -> Cut:
    """Check how the batches of a run are to be cut; warn if there are records, but no batch of them.

    Raises:
        ConfigurationError: if an argument makes no sense, or nothing would be yielded for ever.
    """
    cut = Cut(
        size=whole("batch's n", n, 1),
        drop_remainder=flag("drop_remainder", drop_remainder),
        epochs=None if epochs is None else whole("epochs", epochs, 1),
        across_epochs=flag("across_epochs", across_epochs),
        skip_finished_epoch=flag("skip_finished_epoch", skip_finished_epoch),
    )
    rows = run.shard.own(0)  # of a whole epoch: that little is left of the first one is no mistake
    if cut.epochs is None and not (rows if cut.across_epochs else cut.items(rows)):
        raise ConfigurationError(
            f"an epoch of this shard has {rows} records and makes no batch of {cut.size}, so epochs=None "
            "would never yield anything: read fewer shards, make smaller batches, or pass across_epochs=True"
        )
    in_all = rows * (cut.epochs or 1) if cut.across_epochs else rows
    if in_all and not cut.items(in_all):
        # At a place of ours, not the caller's: Python then shows it once a process.
        warnings.warn(
            f"there is no batch to read: {in_all} records make none of {cut.size}, and short ones are left "
            "out. Make smaller batches, read fewer shards, or keep the short one",
            UserWarning,
            stacklevel=1,
        )
    return cut


def make_batches(run: Run, collate: Callable[[list[Any]], Any] | None, padding_field: str | None) -> Batches:
    """Check what the batches of a run are to be made of.

    Raises:
        ConfigurationError: if an argument makes no sense, or the record has no place for the field.
    """
    if collate is not None and not callable(collate):
        raise ConfigurationError(f"collate must be a function of a list of records, not {collate!r}")
    if padding_field is not None:
        keys = run.spec.keys()
        if not isinstance(padding_field, str):
            raise ConfigurationError(f"padding_field must be the name of a field, not {padding_field!r}")
        if keys is None:
            raise ConfigurationError(
                f"padding_field={padding_field!r} needs a place in the record: make the records dicts"
            )
        if padding_field in keys:
            raise ConfigurationError(
                f"the record has a {padding_field!r} already: choose another padding_field"
            )
    return Batches(collate, padding_field)
