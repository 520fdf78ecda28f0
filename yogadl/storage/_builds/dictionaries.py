"""Find the dictionaries that all writers of a build share, and train them on records from everywhere."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from yogadl._core.key import DatasetKey
from yogadl._format.codec import MAX_DICTIONARY_BYTES, Codec, codecs_of, name_of, trained, zstd_of
from yogadl._format.columns import FixedRows, HeapValues, StoredColumn, as_heap, joined, stored_column
from yogadl._format.writer import SAMPLE_BYTES
from yogadl._sources.partitioned import PartitionedSource
from yogadl._sources.sources import ResumableSource, SelfWritingSource, Source
from yogadl.storage import _names
from yogadl.storage._files.root import Root

_log = logging.getLogger("yogadl")

DICTIONARY: Final = ".trained"  # the suffix of a file with the dictionary of a field

# A source that can be read from anywhere is sampled at this many places: records near each other are alike.
_PLACES: Final = 32
_VISITED: Final = [
    13 * place % _PLACES for place in range(_PLACES)
]  # the first few, too, are from everywhere
_FIRST_RECORDS: Final = 32  # of the first place, which tell how large records are
_SAMPLE_S: Final = 5.0  # the records of a sample are read again for the build, and may take time
_LEAST_RECORDS: Final = 64  # `trained` returns no dictionary for fewer


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

    def train_ahead(self, source: Source, codec: Codec, *, reads_twice: bool = False) -> None:
        """Train the dictionaries on records from everywhere in a source, if it can be read so.

        Args:
            source: The source.
            codec: How values are compressed.
            reads_twice: Whether records that take time may be read for this, and again for the build.
        """
        if codec is None or not _can_be_sampled(source, reads_twice):
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


def _can_be_sampled(source: Source, reads_twice: bool) -> bool:
    """Return whether records in the middle of a source are there, and may be read for this."""
    is_readable = (reads_twice or not source.is_costly) and source.can_start_anywhere
    is_other = isinstance(source, PartitionedSource | ResumableSource | SelfWritingSource)
    return is_readable and not is_other and source.length is not None


def _sample(source: Source, fields: Mapping[int, Any]) -> dict[int, StoredColumn]:
    """Return some values of each of these fields; none if only few records can be read in the time."""
    assert source.length is not None
    found: dict[int, list[StoredColumn]] = {number: [] for number in fields}
    bounds = [source.length * place // _PLACES for place in range(_PLACES + 1)]
    end_s = time.monotonic() + _SAMPLE_S
    count = 1 if source.is_costly else _FIRST_RECORDS
    records = size_bytes = 0
    for done, place in enumerate(_VISITED, 1):
        started_s = time.monotonic()
        first = records
        try:
            for columns in _read(
                source, fields, bounds[place], min(bounds[place + 1], bounds[place] + count)
            ):
                records += len(columns[0])
                for column, of_field in zip(columns, found.values(), strict=True):
                    of_field.append(column)
                    size_bytes += column.size_bytes
                if time.monotonic() > end_s or size_bytes >= SAMPLE_BYTES:
                    break
        except Exception as error:  # noqa: BLE001  (a user's code may raise anything; the build raises it again)
            _log.debug("yogadl: record %d and later ones are no sample: %s", bounds[place], error)
        left, now_s = _PLACES - done, time.monotonic()
        if not left or now_s > end_s or size_bytes >= SAMPLE_BYTES:
            break
        if records > first:  # how many there may be at each of the others
            seconds_each = max(1e-9, (now_s - started_s) / (records - first))
            count = (SAMPLE_BYTES - size_bytes) // left * records // max(1, size_bytes)
            count = max(1, min(count, int((end_s - now_s) / left / seconds_each)))
    if records < min(_LEAST_RECORDS, source.length):
        return {}
    own = {
        number: [column for column in columns if isinstance(column, FixedRows | HeapValues)]
        for number, columns in found.items()
    }
    return {number: joined(columns) for number, columns in own.items() if columns}


def _read(source: Source, fields: Iterable[int], first: int, end: int) -> Iterator[list[StoredColumn]]:
    """Yield the columns of these fields of the records from `first` to `end`."""
    left = end - first
    for columns in source.ending_before(end).chunks(first) if left else ():
        leaves = source.spec.fields
        yield [stored_column(leaves[number].leaf, columns[number][:left]) for number in fields]
        left -= len(columns[0])
        if left <= 0:
            break
