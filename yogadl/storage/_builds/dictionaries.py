"""Find the dictionaries that all writers of a build share, and train them on records from everywhere."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from yogadl._core.key import DatasetKey
from yogadl._core.leaf import BadValueError
from yogadl._format.codec import MAX_DICTIONARY_BYTES, Codec, codecs_of, name_of, trained, zstd_of
from yogadl._format.columns import StoredColumn, as_heap, joined, stored_column
from yogadl._format.writer import SAMPLE_BYTES
from yogadl._sources.partitioned import PartitionedSource
from yogadl._sources.sources import Resumable, Source
from yogadl.storage import _names
from yogadl.storage._builds.receipts import DICTIONARY, ending_before
from yogadl.storage._files.root import Root

# A source that can be read from anywhere is sampled at this many places: records near each other are alike.
_PLACES: Final = 32
_FIRST_RECORDS: Final = 32  # of the first place, which tell how large records are


@dataclass(frozen=True)
class Dictionaries:
    """The dictionaries of a build, noted in a folder that all its writers share.

    Args:
        root: The storage's root.
        key: The version.
        folder: The folder.
    """

    root: Root
    key: DatasetKey
    folder: str

    def find(self, number: int, train: Callable[[], bytes]) -> bytes:
        """Return the dictionary of a field, which the first writer to need it has trained; b"" for none."""
        note = self._note(number)
        found = self.root.read(note, MAX_DICTIONARY_BYTES)
        if found is None:
            self.root.write_if_absent(note, train())
            found = self.root.read(note, MAX_DICTIONARY_BYTES) or b""
        if found:
            # Each writer writes it: a prune spares files for a time after their last write.
            self.root.write(_names.dictionary(self.key.id, name_of(found)), found)
        return found

    def train_ahead(self, source: Any, codec: Codec) -> None:  # a source, or what only yields partitions
        """Train the dictionaries on records from everywhere in a source, if it can be read so for little."""
        if codec is None or not _can_be_sampled(source):
            return
        fields = source.spec.fields
        how = dict(enumerate(codecs_of(codec, [field.name for field in fields])))
        wanted = {
            number: zstd_of(one)
            for number, one in how.items()
            if one is not None and not fields[number].leaf.is_fixed
        }
        wanted = {number: one for number, one in wanted.items() if one.dictionary and self._is_new(number)}
        for number, column in _sample(source, wanted).items() if wanted else ():
            values, one = as_heap(column), wanted[number]
            self.root.write_if_absent(self._note(number), trained(one, values.data, values.lengths))

    def _note(self, number: int) -> str:
        return f"{self.folder}/{number:04d}{DICTIONARY}"

    def _is_new(self, number: int) -> bool:
        return self.root.size(self._note(number)) is None


def _can_be_sampled(source: Any) -> bool:
    """Return whether records in the middle of a source cost no more than the first ones, and are there."""
    is_cheap = not getattr(source, "is_costly", False) and not hasattr(source, "write_partitions")
    is_other = isinstance(source, PartitionedSource | Resumable)
    return is_cheap and not is_other and bool(source.can_start_anywhere) and source.length is not None


def _sample(source: Source, fields: Mapping[int, Any]) -> dict[int, StoredColumn]:
    """Return some values of each of these fields; none if the source is small, or can't be stored."""
    assert source.length is not None
    found: dict[int, list[StoredColumn]] = {number: [] for number in fields}
    step = source.length // _PLACES
    count = min(step, _FIRST_RECORDS)
    for start in range(0, step * _PLACES, step) if step else ():
        taken = 0
        for columns in ending_before(source, start + count).chunks(start):
            left = count - taken
            try:
                for number in fields:
                    leaf = source.spec.fields[number].leaf
                    found[number].append(stored_column(leaf, columns[number][:left]))
            except BadValueError:  # the writer says which record it is
                return {}
            taken += len(columns[0])
            if taken >= count:
                break
        if not start:  # how many there may be at each place
            size_bytes = sum(column.size_bytes for columns in found.values() for column in columns)
            count = max(1, min(step, SAMPLE_BYTES // _PLACES * count // max(1, size_bytes)))
    return {number: joined(columns) for number, columns in found.items() if columns}
