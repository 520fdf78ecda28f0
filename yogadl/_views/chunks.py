"""Cut the values of one field, joined end to end, into pieces of one length, as language models read them."""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import bool_argument, int_argument, users_level
from yogadl._core.frozen import frozen
from yogadl._core.memory import require_memory
from yogadl._core.process import ProcessLock
from yogadl._core.protocols import Column, Indices, Memory, RandomAccess
from yogadl._core.spec import DictNode, Leaf, Spec
from yogadl._format.table import running_sums
from yogadl._order.lengths import offsets_of
from yogadl._views.lengths import (
    CHUNKED,
    check_leaf,
    checked_pad,
    lengths_by_reading,
    number_of,
    reads_of_lengths,
    stored_lengths,
)
from yogadl._views.views import MadeRecords, Needs, hash_of, hash_of_numbers
from yogadl.errors import ConfigurationError

_OFFSET_BYTES: Final = 16  # the most memory that offsets need for each document
# Documents longer than this many chunks are not announced: only a small share of each is read.
_ANNOUNCED_CHUNKS: Final = 16
_CHANNELS: Final = (1, 3, 4)  # how many values a pixel has


@frozen
class _ChunkStretches:
    """The stretches of documents that chunks consist of, in order; one entry for each stretch."""

    chunk: Indices  # position of the chunk among the requested ones
    document: Indices
    start: Indices  # along the document's first axis
    stop: Indices

    @property
    def length(self) -> Indices:
        return self.stop - self.start


class ChunkedRecords(MadeRecords):
    """Chunks of a field's values. Each value is a document, and each item along its first axis a token.

    The start of each document is computed once in each process, and takes 8 bytes a document. A
    pickled object leaves the starts out if they can be read from a cache's rows, and includes them if the
    values themselves had to be read.

    Args:
        parent: The documents.
        field: The name of the field; None if a record is a single value.
        size: How many tokens a chunk has.
        drop_remainder: Whether to leave out the tokens at the end that make no whole chunk.
        pad: The value that fills up the last chunk, if it is not left out.
        segments: The name of a second field, which numbers the documents in each chunk.

    Raises:
        ConfigurationError: if the field has no chunks, or the arguments make no sense.
    """

    spec: Spec
    record_bytes: int

    def __init__(
        self,
        parent: RandomAccess,
        field: str | int | None,
        size: int,
        *,
        drop_remainder: bool,
        pad: Any,
        segments: str | None,
    ) -> None:
        self.parent = parent
        self._size = int_argument("size", size, 1)
        self._number = number_of(parent.spec, field, CHUNKED)
        leaf = parent.spec.fields[self._number].leaf
        check_leaf(field, leaf, self._size, CHUNKED)
        if _is_picture(leaf):
            _warn_of_pixels(field, leaf, self._size)
        assert leaf.shape is not None
        self._drops = bool_argument("drop_remainder", drop_remainder)
        self._pad = _checked_pad(pad, self._drops, leaf.numpy_dtype)
        chunk = Leaf(leaf.dtype, (self._size, *leaf.shape[1:]))
        self.spec = Spec(chunk if field is None else _chunk_tree(field, chunk, segments))
        if field is None and segments is not None:
            raise ConfigurationError(
                "segments= needs records that are dicts, and these are single values: make them dicts first, "
                'ref.map(lambda tokens: {"tokens": tokens}), or store them so'
            )
        self.record_bytes = max(1, sum(field.leaf.row_bytes for field in self.spec.fields))
        self._lock = ProcessLock()
        self._offsets: Indices | None = None
        self._is_read = False  # whether the values had to be read for the offsets
        self._known: tuple[int, str, str] | None = None  # number of tokens, fingerprint and composition

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None, "_offsets": self._offsets if self._is_read else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=ProcessLock())

    def over(self, parent: RandomAccess) -> "ChunkedRecords":
        """Return the same view of the first records alone, which `parent` has."""
        other = copy.copy(self)
        other.parent, other._known = parent, None
        other._offsets = self._document_offsets()[: len(parent) + 1]
        return other

    def __len__(self) -> int:
        tokens = self._count_tokens()[0]
        return tokens // self._size if self._drops else -(-tokens // self._size)

    @property
    def fingerprint(self) -> str:
        """The hash of the documents' fingerprint, of their lengths and of the way they are cut."""
        return self._count_tokens()[1]

    @property
    def composition(self) -> str:  # type: ignore[override]
        """The hash of the documents' lengths and of the way they are cut."""
        return self._count_tokens()[2]

    def _count_tokens(self) -> tuple[int, str, str]:
        """Return the number of tokens, the fingerprint and the composition."""
        if self._known is None:
            offsets = self._document_offsets()
            # The lengths are hashed, too: the fingerprint of mapped records does not cover the functions'
            # results.
            lengths = hash_of_numbers(offsets)
            name = self.parent.spec.fields[self._number].name
            pad = None if self._pad is None else self._pad.tobytes().hex()
            parts = name, self._size, pad, lengths
            names = hash_of("chunks", self.parent.fingerprint, *parts), hash_of("chunks", *parts)
            self._known = int(offsets[-1]), *names
        return self._known

    def _document_offsets(self) -> Indices:
        """Return the start of each document, in tokens counted over all, and the end of the last one."""
        if self._offsets is None:
            with self._lock:
                if self._offsets is None:
                    offsets, self._is_read = self._measure_offsets()
                    self._offsets = offsets
        return self._offsets

    def _measure_offsets(self) -> tuple[Indices, bool]:
        """Return the offsets, and whether the values had to be read for them."""
        require_memory("chunks", len(self.parent), _OFFSET_BYTES)
        lengths = stored_lengths(self.parent, self._number)
        is_read = lengths is None
        if lengths is None:
            lengths = lengths_by_reading(self.parent, [self._number], 0, len(self.parent))
        return offsets_of(lengths), is_read

    def _stretches(self, chunks: Indices) -> _ChunkStretches:
        """Return the stretches of documents that these chunks consist of."""
        offsets = self._document_offsets()
        begin = chunks * self._size
        end = np.minimum(begin + self._size, offsets[-1])
        first = np.searchsorted(offsets, begin, side="right") - 1
        counts = np.searchsorted(offsets, end) - first
        chunk = np.repeat(np.arange(len(chunks)), counts)
        document = np.arange(len(chunk)) + np.repeat(first - running_sums(counts)[:-1], counts)
        offset = offsets[document]
        start = np.maximum(begin[chunk] - offset, 0)
        stop = np.minimum(end[chunk], offsets[document + 1]) - offset
        has_tokens = stop > start  # empty documents may lie between two others
        return _ChunkStretches(*(array[has_tokens] for array in (chunk, document, start, stop)))

    def lower(
        self, indices: Indices, fields: Sequence[int] | None
    ) -> tuple[tuple[_ChunkStretches, int], Needs]:
        """Return the stretches of documents that chunks consist of."""
        found = self._stretches(indices)
        ends = self._document_offsets()[found.document + 1]
        are_last = found.stop == ends - self._document_offsets()[found.document]
        cut = [self._number] if fields is None or 0 in fields else []
        return (found, len(indices)), Needs(found.document, (), cut, found.start, found.stop, are_last)

    def record_lengths(self) -> Indices:
        """Return the length of each document."""
        return np.diff(self._document_offsets())

    def first_lengths(self) -> Iterator[tuple[Indices, int]]:
        """Yield the documents whose lengths are read together, if these are stored."""
        self._document_offsets()
        is_varying = (self.parent.spec.fields[self._number].leaf.shape or ())[0] is None
        if is_varying and not self._is_read:
            for indices in reads_of_lengths(len(self.parent)):
                yield indices, self._number

    def announced(self, rows: tuple[_ChunkStretches, int], needs: Needs) -> Indices:
        """Return the first and the last document of each chunk: the file holds the others between these two.

        Documents that are much longer than a chunk are left out: only a small share of each is read.
        """
        is_other = np.diff(rows[0].chunk, prepend=-1, append=-1) != 0
        documents = needs.records[is_other[:-1] | is_other[1:]]
        offsets = self._document_offsets()
        are_short = offsets[documents + 1] - offsets[documents] <= _ANNOUNCED_CHUNKS * self._size
        found: Indices = documents[are_short]
        return found

    def make(
        self,
        rows: tuple[_ChunkStretches, int],
        found: Mapping[int, Any],
        fields: Sequence[int] | None,
        memory: Memory | None,
    ) -> Sequence[Column]:
        """Return chunks, one row a chunk, and for each token the number of its document in the chunk."""
        return [
            self._segments(*rows) if number else self._to_rows(found[self._number], *rows, self._pad)
            for number in (range(len(self.spec.fields)) if fields is None else fields)
        ]

    def _segments(self, stretches: _ChunkStretches, count: int) -> NDArray[np.int32]:
        """Return for each token the number of its document in its chunk, from 0; -1 for padding."""
        counts = np.bincount(stretches.chunk, minlength=count)
        numbers = np.arange(len(stretches.chunk)) - np.repeat(running_sums(counts)[:-1], counts)
        segments = np.repeat(numbers.astype(np.int32), stretches.length)
        return self._to_rows(segments, stretches, count, -1)

    def _to_rows(
        self, joined: NDArray[Any], stretches: _ChunkStretches, count: int, pad: Any
    ) -> NDArray[Any]:
        """Return the tokens of these chunks as one row a chunk; a short row is padded."""
        if len(joined) == count * self._size:
            return joined.reshape(count, self._size, *joined.shape[1:])
        rows = np.full((count, self._size, *joined.shape[1:]), pad, joined.dtype)
        lengths = np.bincount(stretches.chunk, stretches.length, count)
        rows[np.arange(self._size) < lengths[:, None]] = joined
        return rows


def _is_picture(leaf: Leaf) -> bool:
    """Return whether values are surely pictures of one size, so that the first axis is no axis of tokens."""
    shape = leaf.shape or ()
    if None in shape:
        return False
    if len(shape) == 2:
        return leaf.dtype == "uint8"
    return len(shape) == 3 and (shape[0] in _CHANNELS or shape[-1] in _CHANNELS)


def _warn_of_pixels(field: str | int | None, leaf: Leaf, size: int) -> None:
    what = "a record" if field is None else f"field {field!r}"
    warnings.warn(
        f"chunks cuts values along their first axis, and {what} has the shape {leaf.shape}, as pictures "
        f"have: a chunk would be {size} rows of pixels, not {size} pictures. For windows of {size} records: "
        f'ref.windows({{{field!r}: range({size})}}, within=None, ends="drop"). For several pieces of each '
        "picture, use ref.flat_map",
        UserWarning,
        stacklevel=users_level(),
    )


def _checked_pad(pad: Any, drops: bool, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return the padding as a value of the field's dtype."""
    if drops != (pad is None):
        raise ConfigurationError(
            "to fill up the last chunk, pass both drop_remainder=False and pad=0 (or another value); to "
            "leave it out, pass neither"
        )
    return None if pad is None else checked_pad(pad, dtype)


def _chunk_tree(field: str | int, chunk: Leaf, segments: Any) -> DictNode:  # Any: the value is checked here
    if segments is None:
        return DictNode((field,), (chunk,))
    if not isinstance(segments, str) or segments in (str(field), ""):
        raise ConfigurationError(f"segments must be the name of a second field, not {segments!r}")
    assert chunk.shape is not None
    return DictNode((field, segments), (chunk, Leaf("int32", chunk.shape[:1])))
