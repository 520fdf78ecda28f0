"""Say what reading a stream takes, before anything is read."""

from yogadl._frozen import frozen


@frozen
class Plan:
    """What a shard reads in one whole epoch, before reading anything.

    Attributes:
        records: How many records.
        bytes: About how many bytes, counted as they are in memory; exact where no field varies in length.
    """

    records: int
    bytes: int
