"""Find the sequences of tokens in the files of Megatron-LM's IndexedDataset."""

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from yogadl._core.columns import MAX_LEAF_BYTES
from yogadl._core.frozen import frozen
from yogadl._core.spec import Leaf, Spec
from yogadl._foreign.file_reader import Batch, FileReader, Format, Places

# The index: magic (9 bytes), version (8), code of the dtype (1), counts of sequences and documents (8 each),
# the tokens of each sequence (int32), its position in the .bin (int64), the first sequence of each document
# (int64), and of a multimodal dataset the mode of each sequence (int8).
_MAGIC: Final = b"MMIDIDX\x00\x00"
_LEGACY_MAGIC: Final = b"TNTIDX\x00\x00"
_HEADER_BYTES: Final = 34
_DTYPES: Final = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16",
}  # fmt: skip
_BATCH_RECORDS: Final = 2**18


@frozen
class Megatron(Format):
    """The `.bin` files of Megatron-LM, each beside its `.idx`: a record is the tokens of a sequence.

    The documents and, in a multimodal dataset, the modes of the sequences are not part of the records.

    Args:
        dtype: The dtype of the tokens, which the first file decides.
    """

    dtype: str | None = None
    suffixes: ClassVar[tuple[str, ...]] = (".bin",)
    beside: ClassVar[tuple[str, ...]] = (".idx",)

    @property
    def spec(self) -> Spec:
        """One leaf: the tokens."""
        assert self.dtype is not None, "of_first_file comes first"
        return Spec(Leaf(self.dtype, (None,)))

    def of_first_file(self, reader: FileReader) -> "Megatron":
        """Return the format with the dtype of the first file.

        Raises:
            UnsupportedDataError: if the file has no index, or a damaged one.
        """
        return Megatron(_index_of(reader)[1])

    def batches(self, reader: FileReader) -> Iterator[Batch]:
        """Yield the sequences in the order of the index.

        Raises:
            UnsupportedDataError: if the index is missing or damaged, or has another order than the sequences.
        """
        index, dtype, count = _index_of(reader)
        if dtype != self.dtype:
            index.refuse(17, f"the tokens are of dtype {dtype}, those of the first file {self.dtype}")
        item_bytes, end, stop, total = np.dtype(dtype).itemsize, 0, 0, 0
        for begin in range(0, count, _BATCH_RECORDS):
            size = min(_BATCH_RECORDS, count - begin)
            place = _HEADER_BYTES + 4 * begin
            tokens = index.array(place, "<i4", size).astype(np.int64)
            positions = index.array(_HEADER_BYTES + 4 * count + 8 * begin, "<i8", size).astype(np.int64)
            if tokens.min() < 0:
                index.refuse(place, "a sequence has a negative number of tokens: the index is damaged")
            lengths = tokens * item_bytes
            if lengths.max() > MAX_LEAF_BYTES:
                index.refuse(place, f"a sequence has more than {MAX_LEAF_BYTES:,} bytes")
            # No sum can overflow: each position is compared with the file's size first.
            if positions.min() < 0 or (positions > reader.size_bytes - lengths).any():
                index.refuse(
                    place,
                    f"a sequence ends behind the end of {reader.name}, at {reader.size_bytes}: one of the "
                    "two files is cut, or of another dataset",
                )
            if positions[0] < end or (np.diff(positions) < 0).any():
                index.refuse(
                    place,
                    f"the sequences lie in another order in {reader.name} than in the index: write them in "
                    "order with megatron.core's IndexedDatasetBuilder (add_item for each sequence)",
                )
            end, stop = int(positions[-1]), max(stop, int((positions + lengths).max()))
            total += int(lengths.sum())
            if total > reader.size_bytes:
                index.refuse(place, f"the sequences have more bytes together than {reader.name}")
            yield (Places(positions, lengths, np.stack([np.ones(size, np.int64), tokens], axis=1)),)
        if stop != reader.size_bytes:
            index.refuse(
                _HEADER_BYTES,
                f"the sequences end at {stop}, {reader.name} at {reader.size_bytes}: the index is of another "
                "file, or was written before all sequences were",
            )


def _index_of(reader: FileReader) -> tuple[FileReader, str, int]:
    """Return the reader of a file's index, the dtype, and the number of sequences.

    Raises:
        UnsupportedDataError: if there is no index, or it is of another format or cut.
    """
    if not reader.name.endswith(".bin"):
        reader.refuse(0, "give the .bin, which has the tokens; its .idx is found beside it")
    name = reader.name.removesuffix(".bin") + ".idx"
    index = reader.sibling(name)
    if index is None:
        reader.refuse(0, f"{name} is missing, the index that says where the sequences lie: copy it beside it")
    if index.size_bytes >= len(_LEGACY_MAGIC) and bytes(index.read(0, len(_LEGACY_MAGIC))) == _LEGACY_MAGIC:
        index.refuse(
            0,
            "this is the index of fairseq's old format (TNTIDX): run Megatron-LM's tools/preprocess_data.py "
            "again, which writes the format that is read here (MMIDIDX)",
        )
    if index.size_bytes < _HEADER_BYTES or bytes(index.read(0, len(_MAGIC))) != _MAGIC:
        index.refuse(0, "this is no index of Megatron-LM's IndexedDataset, whose .idx begin with MMIDIDX")
    version, dtype = int(index.array(9, "<u8", 1)[0]), _DTYPES.get(index.read(17, 1)[0])
    if version != 1 or dtype is None:
        index.refuse(
            9, f"version {version} with dtype {index.read(17, 1)[0]} is unknown, only version 1 is read"
        )
    count, documents = map(int, index.array(18, "<u8", 2))
    expected = _HEADER_BYTES + 12 * count + 8 * documents
    if index.size_bytes not in (expected, expected + count):
        index.refuse(
            18,
            f"an index of {count} sequences and {documents} documents has {expected} bytes, not "
            f"{index.size_bytes}: it is cut or damaged",
        )
    return index, dtype, count
