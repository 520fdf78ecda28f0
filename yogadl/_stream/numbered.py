"""Read a stream's batches by number, for frameworks that own the iterator.

tf.data, Keras, Grain and the worker processes of PyTorch request batches by number, and count them
themselves.
"""

from functools import partial
from typing import Any

from yogadl._core.protocols import Column, Memory
from yogadl._stream.cut import Cut
from yogadl._stream.items import Batches
from yogadl._stream.rows import Flags, Rows
from yogadl._stream.run import RowBlocks
from yogadl._stream.stream import RecordStream


class NumberedBatches:
    """Reads the batches of a stream in any order: batch j of epoch e, from the stream's start in that epoch.

    Safe to use from any number of threads and after a fork; pickles if the stream does, without the rows that
    it keeps ready. It claims no epochs.

    Args:
        stream: The stream.
        cut: How the stream is cut into batches; if it skips finished epochs, the batches start with the next
            epoch if none is left from the stream's start on.
        padding_field: The name of a field to add to each batch: a bool for each record, true for padding.

    Attributes:
        stream: The stream, from where the batches start.
        numbering: The numbers of the batches.
        padding_field: The name of the padding field, if any.

    Raises:
        ConfigurationError: if the arguments make no sense.

    Example:
        >>> import yogadl
        >>> from yogadl._stream import Cut, NumberedBatches
        >>> batches = NumberedBatches(yogadl.from_source([10, 11, 12, 13, 14]).stream(), Cut(2))
        >>> batches.count(epoch=0), batches.batch(epoch=1, number=1).tolist()
        (3, [12, 13])
    """

    def __init__(self, stream: RecordStream, cut: Cut, *, padding_field: str | None = None) -> None:
        self.size = cut.size
        self.stream = stream = stream.past_finished(cut)
        self._run = run = stream.run
        self.numbering = run.numbering(cut)
        self._finish = Batches(run, padding_field=padding_field).finish()
        self.padding_field = padding_field
        self._blocks = RowBlocks(run, self.size)

    def __reduce__(self) -> Any:
        make = partial(NumberedBatches, padding_field=self.padding_field)
        return make, (self.stream, self.numbering.cut)

    def count(self, epoch: int) -> int:
        """Return the number of batches in an epoch; in the stream's first epoch, from its start on."""
        return self.numbering.count(epoch)

    def batch(self, epoch: int, number: int) -> Any:  # a tree like the record's
        """Read one batch.

        Raises:
            IndexError: if the epoch has no such batch.
        """
        return self._finish(*self.read(epoch, number))

    def read(self, epoch: int, number: int, memory: Memory | None = None) -> tuple[list[Column], Flags]:
        """Read one batch: one column a field, and its padding flags.

        Raises:
            IndexError: if the epoch has no such batch.
        """
        rows = self.rows(epoch, number)
        return list(self._run.read(rows, None, memory)), rows.padding

    def rows(self, epoch: int, number: int) -> Rows:
        """Return the rows of one batch, and announce the rows that follow.

        Raises:
            IndexError: if the epoch has no such batch.
        """
        count = self.numbering.count(epoch)
        if not 0 <= number < count:
            raise IndexError(f"epoch {epoch} has no batch {number}: it has {count}")
        origin = self._run.origin(epoch)
        first = number * self.size
        last = min(first + self.size, self._run.shard.own(origin))
        return self._blocks.rows(epoch, origin, first, last)
