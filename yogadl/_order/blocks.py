"""The parameters of a shuffle of blocks, and of a mix. The orders themselves are imported only when used."""

from typing import Any, ClassVar, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl._order.keys import check_count
from yogadl.errors import ConfigurationError

# The size of blocks that are groups of records, as the data has them.
GROUPS: Final = "groups"
_LANES: Final = 7680


@frozen
class Blocks:
    """A shuffle that reads whole blocks: ``shuffle=yogadl.Blocks(records=128, window=16)``.

    The data is cut into blocks of `records` neighbouring records. The blocks are shuffled and dealt out to
    `lanes` lanes. Each lane takes `window` blocks at a time and gives their records in a random order; the
    lanes take turns, one record each. If the number of shards divides `lanes`, each shard reads its own
    lanes: then only one shard needs a block, and only during one window. Records that fill no window (all
    of them, if there are fewer than ``records * window * lanes``) are shuffled globally.

    With ``records="groups"`` the blocks are the row groups of Parquet files, whatever their sizes. Lanes are
    then equal shares of all records; a group at a border of two is read by both.

    Args:
        records: Records in a block; choose it so that a block is about 1 MB. ``"groups"``: those of the row
            groups of a version that was adopted from Parquet files.
        window: Blocks that a lane mixes at a time. A larger window shuffles better, and takes more memory.
        lanes: The number of lanes; choose a multiple of the number of shards. The default is 7,680, which
            has many divisors; with ``"groups"`` it is 1.

    Raises:
        ConfigurationError: If a parameter is not an integer, or less than 1.
    """

    records: int | Literal["groups"]
    window: int
    lanes: int = cast("int", None)  # stands for the default

    def __post_init__(self) -> None:
        if cast("int | None", self.lanes) is None:
            object.__setattr__(self, "lanes", 1 if self.records == GROUPS else _LANES)
        if isinstance(self.records, str) and self.records != GROUPS:
            raise ConfigurationError(
                f'Blocks: records must be an integer, or "groups", not {self.records!r}.'
            )
        names = ("window", "lanes") if self.records == GROUPS else ("records", "window", "lanes")
        for name in names:
            object.__setattr__(self, name, check_count(f"Blocks: {name}", getattr(self, name)))

    @property
    def size(self) -> int:
        """The number of records in a block, if that is a number."""
        assert self.records != GROUPS
        return self.records


class BlocksOfGroups:
    """A shuffle of groups of neighbouring records: `Blocks` with ``records="groups"``, and the groups.

    Args:
        blocks: Window and lanes.
        ends: The record after the last one of each group.
    """

    def __init__(self, blocks: Blocks, ends: NDArray[np.int64]) -> None:
        self.blocks = blocks
        self.ends = ends


@frozen
class Sequences:
    """A shuffle of whole episodes, for what has a state in time: ``shuffle=yogadl.Sequences(64, "episode")``.

    Each of the `lanes` rows of a batch follows one episode, a step a batch, from its first step on, and then
    another episode. So a recurrent policy goes on with a row's state, and sets it to zero where the row is
    marked in the field `first`. Each record comes once an epoch.

    In each epoch the episodes come in another order and in other lanes, which have equal shares of the
    records. Where a lane has more than its share, the end of an episode is cut off, and read by another lane:
    such a piece begins in the middle of the episode, and its first step is marked, too. If there are many
    episodes, few are cut. One that is longer than a share is cut into several pieces.

    Args:
        lanes: The records of a batch, counted over all shards; a multiple of the number of shards.
        within: The field that numbers the episode of each record: one integer, date, str or bytes. It is read
            once, and what was found is kept next to the cache. None: the episodes are those of
            `RecordsRef.windows`.
        first: The name of the bool field that marks first steps, which is added to each record; None: no
            field is added.

    Raises:
        ConfigurationError: If an argument makes no sense.
    """

    lanes: int
    within: str | int | None = None
    first: str | None = "is_first"

    def __post_init__(self) -> None:
        object.__setattr__(self, "lanes", check_count("Sequences: lanes", self.lanes))
        first: Any = self.first  # from the user: any object is possible
        if first is not None and not (isinstance(first, str) and first):
            raise ConfigurationError(f"Sequences: first must be the name of a field, or None, not {first!r}")


class SequencesOfEpisodes:
    """A shuffle of episodes: `Sequences`, and the episodes.

    Args:
        sequences: The lanes.
        ends: The place after the last one of each episode.
        order: The record at each place; None: its number is the place.
    """

    def __init__(
        self, sequences: Sequences, ends: NDArray[np.int64], order: NDArray[np.int64] | None = None
    ) -> None:
        self.sequences = sequences
        self.ends = ends
        self.order = order


@frozen
class Drawn:
    """An order whose records are drawn anew in each epoch: the index of a record also has the epoch's draw.

    Args:
        shuffle: The shuffle of the records.
        total: The number of records that indices count; 0 is the order's own.
        steps: The number of steps that the records begin with, and how many records each has; steps are
            shuffled as they are. The other records come after them.
    """

    shuffle: bool = False
    total: int = 0
    steps: tuple[int, int] = (0, 1)


@frozen
class Mixture:
    """An order that mixes several parents' records, over their concatenation; see `yogadl.mix`.

    Args:
        lengths: The number of records of each parent, at least 1.
        weights: The proportions of the parents, each at least 1 in 4,096 of their sum.
        at_end: The action when a parent has no more records: "stop" or "repeat".
        seed: The seed that decides at which positions each parent's records come.
        shuffle: The shuffle of each parent.
    """

    is_drawn: ClassVar[bool] = False  # whether some parent's records are drawn anew in each epoch
    lengths: tuple[int, ...]
    weights: tuple[int, ...]
    at_end: str
    seed: int
    shuffle: bool | Blocks = False


class DrawnMixture(Mixture):
    """A mixture of parents of which some have records that are drawn anew in each epoch; see `Drawn`."""

    is_drawn = True
