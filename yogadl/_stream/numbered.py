"""Read a stream's batches by number, for frameworks that own the iterator and ask for one after another.

tf.data, Keras, Grain and the worker processes of PyTorch say which batch they want; nothing here keeps count.
"""

from functools import partial
from typing import Any

from yogadl._interfaces import Column, Memory
from yogadl._stream.blocks import RowBlocks
from yogadl._stream.cut import Cut
from yogadl._stream.items import Batches
from yogadl._stream.rows import Flags, Rows
from yogadl._stream.stream import RecordStream


class NumberedBatches:
    """Read the batches of a stream in any order: the j-th of epoch e, from the stream's start in that epoch.

    Safe to use from any number of threads and after a fork; pickles if the stream does, without what it
    holds ready. It claims no epochs.

    Args:
        stream: Whose records.
        size: How many make a batch.
        drop_remainder: Leave out an epoch's last batch if it is short.
        padding_field: The name under which each batch says what is padding, by a bool a record.
        skip_finished_epoch: Start with the next epoch if no batch is left of the one that the stream starts
            in.

    Attributes:
        stream: Whose records, from the start on.
        numbering: Which batches there are.
        padding_field: The name of the field that says what is padding, if there is one.

    Raises:
        ConfigurationError: if the arguments make no sense.

    Example:
        >>> import yogadl
        >>> from yogadl._stream import NumberedBatches
        >>> batches = NumberedBatches(yogadl.from_source([10, 11, 12, 13, 14]).stream(), 2)
        >>> batches.count(epoch=0), batches.batch(epoch=1, number=1).tolist()
        (3, [12, 13])
    """

    def __init__(
        self,
        stream: RecordStream,
        size: int,
        drop_remainder: bool = False,
        *,
        padding_field: str | None = None,
        skip_finished_epoch: bool = False,
    ) -> None:
        cut = Cut(size, drop_remainder, skip_finished_epoch=skip_finished_epoch)
        self.size = cut.size
        self.stream = stream = stream.past_finished(cut)
        self._run = run = stream.run
        self.numbering = run.numbering(cut)
        self._finish = Batches(run, padding_field=padding_field).finish()
        self.padding_field = padding_field
        self._blocks = RowBlocks(run, self.size)

    def __reduce__(self) -> Any:
        make = partial(NumberedBatches, padding_field=self.padding_field)
        return make, (self.stream, self.size, self.numbering.cut.drop_remainder)

    def count(self, epoch: int) -> int:
        """Count the batches of an epoch; of the one that the stream starts in, those from there on."""
        return self.numbering.count(epoch)

    def batch(self, epoch: int, number: int) -> Any:  # a tree like the record's
        """Read one batch.

        Raises:
            IndexError: if the epoch has no such batch.
        """
        return self._finish(*self.read(epoch, number))

    def read(self, epoch: int, number: int, memory: Memory | None = None) -> tuple[list[Column], Flags]:
        """Read one batch, as one column a field, and which of its records are padding.

        Raises:
            IndexError: if the epoch has no such batch.
        """
        rows = self.rows(epoch, number)
        return list(self._run.read(rows, None, memory)), rows.padding

    def rows(self, epoch: int, number: int) -> Rows:
        """Return the rows of one batch; those to come are announced.

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
