"""Group records into batches: the loader, a chain of stages over a stream."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from yogadl._stream.arguments import explains_names, flag, whole
from yogadl._stream.claims import Recipe
from yogadl._stream.items import Batches
from yogadl._stream.iterator import Restartable
from yogadl._stream.prefetch import Prefetch
from yogadl._stream.rows import Cut
from yogadl._stream.run import Run
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from yogadl._stream.stream import RecordStream


class Loader(Restartable):
    """Deliver a stream's records in batches, or what later stages make of them.

    Immutable but for its count of epochs: each `iter` claims the next ones for itself at its first
    `next`, starting where the stream starts. Thread-safe, though each iterator belongs to one thread;
    safe to carry across a fork; pickles if its source and its functions do.

    Example:
        >>> import yogadl
        >>> loader = yogadl.from_source([10, 11, 12, 13, 14]).stream().batch(2)
        >>> [batch.tolist() for batch in loader]
        [[10, 11], [12, 13], [14]]
        >>> batches = loader.at(epoch=1, position=2)
        >>> next(batches).tolist()
        [12, 13]
        >>> cursor = batches.state_dict()
        >>> cursor["epoch"], cursor["position"]
        (1, 4)

    Attributes:
        stream: The stream that it reads.
    """

    def __init__(self, stream: "RecordStream", recipe: Recipe) -> None:
        self.stream = stream
        self._read_by(recipe)

    def __len__(self) -> int:
        """Count the batches of whole epochs, however much of the first one a cursor skips.

        Raises:
            TypeError: if it is endless.
        """
        cut, rows = self._recipe.cut, len(self.stream)
        if cut.epochs is None:
            raise TypeError("an endless loader (epochs=None) has no length")
        return cut.items(rows * cut.epochs) if cut.across_epochs else cut.items(rows) * cut.epochs

    def __repr__(self) -> str:
        cut = self._recipe.cut
        return f"<Loader of {self.stream!r}, batch {cut.size}, epochs {cut.epochs}>"

    @property
    def batch_size(self) -> int:
        """How many records a full batch has."""
        return self._recipe.cut.size

    @property
    def epochs(self) -> int | None:
        """How many epochs an iterator reads; None: for ever."""
        return self._recipe.cut.epochs

    @explains_names()
    def prefetch(self, n: int, workers: int = 0) -> "Loader":
        """Return a loader that reads up to `n` batches ahead, in a thread.

        The batches, their order and every cursor stay the same: a cursor counts what was delivered.
        The thread starts at an iterator's first `next` and ends when the iterator is closed or dropped.
        An error in it comes after the batches before it.

        Args:
            n: How many batches to keep ready, at least 1.
            workers: Processes to read in; there are none yet.

        Raises:
            ConfigurationError: if one of them makes no sense.
        """
        return Loader(self.stream, read_ahead(self._recipe, n, workers))


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
        keys = run.source.spec.keys()
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
