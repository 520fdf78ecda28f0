"""Ask for a shuffle of blocks, or for a mix. What makes the order is loaded when a stream has it."""

from yogadl._frozen import frozen
from yogadl._order._check import check_count


@frozen
class Blocks:
    """Ask for a shuffle that reads whole blocks: ``shuffle=yogadl.Blocks(records=128, window=16)``.

    The data is cut into blocks of `records` neighbouring records, and the blocks are shuffled. They are
    shared out to `lanes` lanes. Each lane takes `window` blocks at a time and gives their records in a
    random order; the lanes take turns, one record each. If the number of shards divides `lanes`, each
    shard reads its own lanes: then only one shard needs a block, and only during one window. Records that
    fill no window (all of them, if there are fewer than ``records * window * lanes``) are shuffled globally.

    Args:
        records: Records in a block; choose it so that a block is about 1 MB.
        window: Blocks that a lane mixes at a time. A larger window shuffles better, and takes more memory.
        lanes: The number of lanes; choose a multiple of the number of shards. The default has many
            divisors.

    Raises:
        ConfigurationError: If one of them is not an integer, or less than 1.
    """

    records: int
    window: int
    lanes: int = 7680

    def __post_init__(self) -> None:
        for name in ("records", "window", "lanes"):
            object.__setattr__(self, name, check_count(f"Blocks: {name}", getattr(self, name)))


@frozen
class Mixture:
    """Ask for an order of several parents' records, mixed, over their concatenation; see `yogadl.mix`.

    Args:
        lengths: How many records each parent has, at least 1.
        weights: How much of each comes, in proportion; none less than 1 in 4,096.
        at_end: What happens where a parent has no more records: "stop" or "repeat".
        seed: What the places of the parents' records are made from.
        shuffle: How each parent is shuffled.
    """

    lengths: tuple[int, ...]
    weights: tuple[int, ...]
    at_end: str
    seed: int
    shuffle: bool | Blocks = False
