"""Say what reading a stream takes, before anything is read."""

from yogadl._frozen import frozen


@frozen
class Plan:
    """What a shard reads in one whole epoch, before reading anything.

    Attributes:
        records: How many records.
        bytes: About how many bytes, counted as they are in memory; exact where no field varies in length.
        requests: How many requests to a store; a local source makes none.
        disk: How many bytes of local disk are filled.
        price: What the requests cost in dollars; None where nobody charges.
    """

    records: int
    bytes: int
    requests: int = 0
    disk: int = 0
    price: float | None = None
