"""Find the records of TFRecord files, and the features of those that are a tf.train.Example."""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from struct import Struct
from typing import Any, ClassVar, Final

import numpy as np

from yogadl._core.columns import MAX_LEAF_BYTES
from yogadl._core.frozen import frozen
from yogadl._core.protocols import Int64s
from yogadl._core.spec import BYTES, DictNode, Leaf, Spec
from yogadl._foreign.compressed import refuse_compressed
from yogadl._foreign.crc32c import crc32c_of_each, crc32c_of_rows, extend, masked
from yogadl._foreign.example import ExampleReader, leaf_of_feature
from yogadl._foreign.fields import Missing, MissingArgument, refuse_unknown
from yogadl._foreign.file_reader import Batch, FileReader, Format, Places
from yogadl.errors import ConfigurationError

# A record: its length, the CRC of these 8 bytes, the data, the CRC of the data.
_HEADER_BYTES: Final = 12
_FOOTER_BYTES: Final = 4
_LENGTH: Final = Struct("<Q").unpack_from
_ZLIB_FIRST_BYTE: Final = 0x78
# Names such as `train.tfrecord-00000-of-01024`.
_NAME: Final = re.compile(r".*\.(tfrecords?|tfrec)(-[0-9]+-of-[0-9]+)?", re.DOTALL)


@frozen
class TFRecord(Format):
    """TFRecord files. A record is its bytes, or, if features are given, a dict of them.

    Args:
        features: Of records that are each a ``tf.train.Example``, the features that are taken: the dtype of
            each (``"bytes"``, ``"str"``, ``"int64"`` or ``"float32"``), or the dtype and the shape, such as
            ``("float32", (128,))`` and ``("int64", (None,))``, or a `yogadl.Leaf`.
        missing: ``None``: a record without one of the features is refused; ``"empty"``: the feature is
            empty, if it is bytes, a str, or an array of varying size; or by the names of features
            ``"empty"`` or, for a number, the number in its place.
        checks_data: Whether the bytes of each record are compared with their checksum, for which they must be
            read. The checksum of a record's length is always compared.

    Raises:
        ConfigurationError: if a feature has another dtype, or a shape that its values can't tell.
    """

    features: Mapping[str, Any] | None = None  # what a caller wrote for a leaf
    missing: MissingArgument = None
    checks_data: bool = True
    suffixes: ClassVar[tuple[str, ...]] = (".tfrecord", ".tfrecords", ".tfrec")

    def __post_init__(self) -> None:
        missing = Missing(self.missing)
        if self.features is None and self.missing is not None:
            raise ConfigurationError("missing is about features: give these, too")
        if self.features is not None:
            object.__setattr__(self, "features", _leaves_of(self.features))
            missing.check(self.features)

    def matches(self, name: str) -> bool:
        """Return whether a name has one of the suffixes, with or without the number of its shard."""
        return _NAME.fullmatch(name) is not None

    @cached_property
    def spec(self) -> Spec:
        """One leaf of bytes, or the dict of the features."""
        if self.features is None:
            return Spec(Leaf(BYTES))
        return Spec(DictNode(tuple(self.features), tuple(self.features.values())))

    def of_first_file(self, reader: FileReader) -> "TFRecord":
        """Return the format: the first file decides nothing.

        Raises:
            UnsupportedDataError: if none of its records has a feature that may be missing: its name is likely
                to be wrong.
        """
        if self.features is not None:
            missing, position = Missing(self.missing), 0
            examples = ExampleReader(reader, self.features, missing)
            unseen = [name for name, leaf in self.features.items() if missing.fill(name, leaf) is not None]
            while unseen and position < reader.size_bytes:
                positions, lengths, position = _records_of_window(reader, position)
                unseen = examples.unseen(unseen, positions, lengths)
            refuse_unknown(reader, "record", unseen)
        return self

    def batches(self, reader: FileReader) -> Iterator[Batch]:
        """Yield the records that begin in a window, then those of the next.

        Raises:
            UnsupportedDataError: if the file is compressed or damaged, or a record has other features.
        """
        examples = (
            None if self.features is None else ExampleReader(reader, self.features, Missing(self.missing))
        )
        position = number = 0
        while position < reader.size_bytes:
            positions, lengths, position = _records_of_window(reader, position)
            if self.checks_data:
                _check_data(reader, positions, lengths)
            if examples is None:
                yield (Places(positions, lengths),)
            else:
                yield examples.batch(positions, lengths, number)
            number += len(positions)


def _leaves_of(features: Any) -> dict[str, Leaf]:
    """Return the leaf of each feature that a caller has described."""
    if not isinstance(features, Mapping) or not features:
        raise ConfigurationError(f'features are a dict such as {{"image": "bytes"}}, not {features!r}')
    return {name: leaf_of_feature(name, feature) for name, feature in features.items()}


def _records_of_window(reader: FileReader, position: int) -> tuple[Int64s, Int64s, int]:
    """Return where the data lies of the records that begin in a window, and where the next one begins.

    Raises:
        UnsupportedDataError: if the checksum of a length differs, or the file ends in a record.
    """
    start = position
    window_end = min((start // reader.window_bytes + 1) * reader.window_bytes, reader.size_bytes)
    content = reader.read(start, window_end - start)
    last_whole = window_end - _HEADER_BYTES
    headers: list[bytes | memoryview] = []
    positions: list[int] = []
    lengths: list[int] = []
    problem = None
    while position < window_end:
        if position <= last_whole:
            header = content[position - start : position - start + _HEADER_BYTES]
        elif position + _HEADER_BYTES <= reader.size_bytes:
            header = reader.read(position, _HEADER_BYTES)
        else:
            problem = f"{reader.size_bytes - position} bytes are left, less than a record"
            break
        length = _LENGTH(header)[0]
        headers.append(header)
        positions.append(position + _HEADER_BYTES)
        lengths.append(min(length, reader.size_bytes))
        following = position + _HEADER_BYTES + length + _FOOTER_BYTES
        if following > reader.size_bytes or length > MAX_LEAF_BYTES:
            problem = f"a record of {length} bytes begins there, but the file ends at {reader.size_bytes}"
            if following <= reader.size_bytes:
                problem = f"a record has {length} bytes, more than {MAX_LEAF_BYTES}"
            break
        position = following
    # A length that differs from its checksum is the cause of what comes after it.
    rows = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, _HEADER_BYTES)
    stored = np.ascontiguousarray(rows[:, 8:]).view("<u4").reshape(-1)
    wrong = np.flatnonzero(masked(crc32c_of_rows(np.ascontiguousarray(rows[:, :8]))) != stored)
    if len(wrong):
        _refuse_length(reader, positions[wrong[0]] - _HEADER_BYTES)
    if problem is not None:
        reader.refuse(position, f"{problem}: the file is cut or damaged")
    return np.array(positions, np.int64), np.array(lengths, np.int64), position


def _refuse_length(reader: FileReader, position: int) -> None:
    if position == 0:
        library = "tf.data.TFRecordDataset(compression_type=...)"
        refuse_compressed(reader, library)
        head = reader.read(0, 2)
        if head[0] == _ZLIB_FIRST_BYTE and (head[0] << 8 | head[1]) % 31 == 0:
            reader.refuse(
                0,
                "the file is compressed by zlib, and can be read only from its front: decompress it first "
                f"(zlib.decompress), or read it with {library} and submit the records",
            )
        reader.refuse(0, "this is no TFRecord file: the checksum of the first record's length differs")
    reader.refuse(position, "the checksum of a record's length differs: the file is damaged")


def _check_data(reader: FileReader, positions: Int64s, lengths: Int64s) -> None:
    """Compare the data of records with their checksums.

    Raises:
        UnsupportedDataError: if one differs.
    """
    values: list[memoryview] = []
    stored: list[memoryview] = []
    start = int(positions[0])
    window_end = min((start // reader.window_bytes + 1) * reader.window_bytes, reader.size_bytes)
    content = reader.read(start, window_end - start)
    for position, length in zip(positions.tolist(), lengths.tolist(), strict=True):
        end = position + length
        if end + _FOOTER_BYTES <= window_end:
            values.append(content[position - start : end - start])
            stored.append(content[end - start : end - start + _FOOTER_BYTES])
        elif length > reader.window_bytes:
            _check_large(reader, position, length)
        else:
            whole = reader.read(position, length + _FOOTER_BYTES)
            values.append(whole[:length])
            stored.append(whole[length:])
    is_small = lengths <= reader.window_bytes
    crcs = masked(crc32c_of_each(values))
    wrong = np.flatnonzero(crcs != np.frombuffer(b"".join(stored), "<u4"))
    if len(wrong):
        _refuse_data(reader, int(positions[is_small][wrong[0]]))


def _check_large(reader: FileReader, position: int, length: int) -> None:
    crc = 0
    for begin in range(0, length, reader.window_bytes):
        crc = extend(crc, reader.read(position + begin, min(reader.window_bytes, length - begin)))
    stored = reader.array(position + length, "<u4", 1)
    if masked(np.array([crc], np.uint32))[0] != stored[0]:
        _refuse_data(reader, position)


def _refuse_data(reader: FileReader, position: int) -> None:
    reader.refuse(
        position,
        "the bytes of a record differ from their checksum: the file is damaged. Copy it again from where it "
        "came from, or leave it out",
    )
