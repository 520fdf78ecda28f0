"""Carry batches from a worker process to the one that trains in shared memory, which is used again and again.

New memory for every array would be created, faulted in page by page on both sides and passed as a file
descriptor: several times what gathering the batch costs (benchmarks/torch_loader.py, benchmarks/workers.py).
"""

import contextlib
import functools
import io
import math
import mmap
import os
import pickle
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._fork_server import KEEPS_DESCRIPTORS
from yogadl._leaf import dtype_named

_ALIGNED: Final = 64
_PAGES: Final = 16 * 4096
# Who keeps one array of a batch should not keep the memory of all of it. So arrays up to `_SMALL_BYTES` are
# pickled with the structure, from which they are copied in some 2 us, and each larger one gets a segment of
# its own. If there are more than `_MOST_ALONE`, as in a list of arrays, all share one segment: each segment
# is a mapping, of which a process may have some 65,000.
_SMALL_BYTES: Final = 16_384
_MOST_ALONE: Final = 16
# Each mapping also holds a descriptor, of which a process has often but 1,024. Of somebody who keeps so many
# batches the arrays are copied.
MOST_SEGMENTS: Final = 256
_NO_BUFFER: Final = "VMm"  # kinds of dtypes that numpy exports no buffer of: ml_dtypes' and dates

Buffers = list[NDArray[np.uint8]]
# Says how to pickle an object, as `pickle.Pickler.reducer_override` does, given what may be shared.
Reduce = Callable[[Any], Any]


class FilledSegment(NamedTuple):
    """One segment of shared memory, and where in it the buffers of a batch begin and end."""

    number: int
    size: int
    is_new: bool  # then a descriptor to map it with comes along
    spans: list[tuple[int, int]]


class SharedBatch(NamedTuple):
    """A batch in shared memory, as a worker sends it."""

    segments: list[FilledSegment]
    stream: bytes | None  # the pickled structure; None: it is the last buffer
    dropped: list[int]  # the numbers of segments that the worker will not use again


class _Segment(NamedTuple):
    number: int
    memory: NDArray[np.uint8]
    position: int  # in the batch: the same field has about the same size in each batch


class Packer:
    """Pack batches in a worker. A segment is used again once whoever got it has returned it.

    It is a `Memory`, too: what is gathered into its arrays and then packed is not copied.

    Args:
        reduce: Says how to pickle what has memory and is no array of numpy's.
    """

    def __init__(self, reduce: Reduce | None = None) -> None:
        self._reduce = reduce
        self._made = 0
        self._free: dict[int, list[_Segment]] = {}
        self._sent: dict[int, _Segment] = {}
        self._gathered: dict[int, _Segment] = {}  # by address: not sent yet
        self._new: dict[int, int] = {}  # descriptors by number: never sent
        self._going: dict[int, int] = {}  # those that are sent with the batch
        self._kept: dict[int, int] = {}  # descriptors by number; see `KEEPS_DESCRIPTORS`
        self._dropped: list[int] = []

    def take_back(self, numbers: Sequence[int]) -> None:
        """Use these segments again: nobody reads them any more."""
        for number in numbers:
            segment = self._sent.pop(number)
            self._free[segment.position].append(segment)
            if number in self._kept:
                os.close(self._kept.pop(number))

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array for the batch that is packed next."""
        size = math.prod(shape) * dtype.itemsize
        position = len(self._gathered)
        if size <= _SMALL_BYTES or position >= _MOST_ALONE or dtype.kind in _NO_BUFFER or dtype.hasobject:
            return np.empty(shape, dtype)
        segment = self._segment(position, size)
        self._gathered[_address(segment.memory)] = segment
        return segment.memory[:size].view(dtype).reshape(shape)

    def forget(self) -> None:
        """Take back the arrays that were given out for a batch that is not packed."""
        for segment in self._gathered.values():
            self._free[segment.position].append(segment)
        self._gathered.clear()

    def pack(self, batch: Any) -> tuple[SharedBatch, list[int]]:  # any tree of arrays and what pickles
        """Write a batch into segments; return what to send, and the descriptors that go with it."""
        buffers: Buffers = []
        pickled = _pickled(batch, buffers, self._reduce)
        groups = [[buffer] for buffer in buffers] if len(buffers) <= _MOST_ALONE else [buffers]
        stream = pickled if len(pickled) <= _SMALL_BYTES else None
        if stream is None:
            groups.append([np.frombuffer(pickled, np.uint8)])
        segments = [self._write(position, group) for position, group in enumerate(groups)]
        self.forget()
        dropped, self._dropped = self._dropped, []
        return SharedBatch(segments, stream, dropped), list(self._going.values())

    def sent(self) -> None:
        """Let go of the descriptors: they were sent."""
        if KEEPS_DESCRIPTORS:
            self._kept |= self._going
        else:
            for descriptor in self._going.values():
                os.close(descriptor)
        self._going.clear()

    def _write(self, position: int, buffers: Buffers) -> FilledSegment:
        segment = self._gathered.pop(_address(buffers[0]), None) if len(buffers) == 1 else None
        if segment is not None:
            spans = [(0, buffers[0].size)]
        else:
            spans, end = [], 0
            for buffer in buffers:
                start = -(-end // _ALIGNED) * _ALIGNED
                end = start + buffer.size
                spans.append((start, end))
            segment = self._segment(position, end)
            for (start, end), buffer in zip(spans, buffers, strict=True):
                segment.memory[start:end] = buffer
        self._sent[segment.number] = segment
        is_new = segment.number in self._new
        if is_new:
            self._going[segment.number] = self._new.pop(segment.number)
        return FilledSegment(segment.number, segment.memory.size, is_new, spans)

    def _segment(self, position: int, size: int) -> _Segment:
        """Return a segment that is large enough; drop those too small."""
        free = self._free.setdefault(position, [])
        for number, segment in enumerate(free):
            if segment.memory.size >= size:
                del free[number]
                return segment
        for segment in free:
            if segment.number in self._new:  # it was never sent
                os.close(self._new.pop(segment.number))
            else:
                self._dropped.append(segment.number)
        free.clear()
        size = -(-(size + size // 8) // _PAGES) * _PAGES
        self._made += 1
        descriptor = shared_memory(size)
        self._new[self._made] = descriptor
        return _Segment(self._made, _mapped(descriptor, size), position)


def shared_memory(size: int) -> int:
    """Return the descriptor of new memory that other processes can map; it has no name."""
    if hasattr(os, "memfd_create"):  # not in /dev/shm, which containers keep small
        descriptor = os.memfd_create("yogadl-batches")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _mapped(descriptor: int, size: int) -> NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class Unpacker:
    """Unpack the batches that a worker sent: in one thread. Any thread may let go of a batch."""

    def __init__(self) -> None:
        self._segments: dict[int, NDArray[np.uint8]] = {}
        self._returned: deque[int] = deque()

    def __len__(self) -> int:
        """Count the segments that are mapped."""
        return len(self._segments)

    def returned(self) -> tuple[int, ...]:
        """Return the segments that were let go of since the last call."""
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self._returned.popleft())
        return tuple(found)

    def unpack(self, batch: SharedBatch, descriptors: Sequence[int], is_copy: bool = False) -> Any:
        """Return what was packed, without a copy. A segment is free once every array in it is let go of.

        Args:
            batch: What the worker sent.
            descriptors: Those that came along; they are closed.
            is_copy: Copy it, and let go of the segments now.
        """
        for number in batch.dropped:
            self._segments.pop(number, None)
        arrived = iter(descriptors)
        buffers: Buffers = []
        for segment in batch.segments:
            if segment.is_new:
                descriptor = next(arrived)
                try:
                    self._segments[segment.number] = _mapped(descriptor, segment.size)
                finally:
                    os.close(descriptor)
            buffers += self._read(segment)
        stream = buffers.pop().data if batch.stream is None else batch.stream
        if is_copy:
            buffers = [buffer.copy() for buffer in buffers]
        return pickle.loads(stream, buffers=buffers)

    def _read(self, segment: FilledSegment) -> Buffers:
        memory = np.asarray(_Borrowed(self._segments[segment.number], segment.number, self._returned.append))
        return [memory[start:end] for start, end in segment.spans]


class _Borrowed:
    """The memory of a segment as an array's base: given back when the last view of the array is gone."""

    __slots__ = ("__array_interface__", "_give_back", "_memory", "_number")

    def __init__(self, memory: NDArray[np.uint8], number: int, give_back: Callable[[int], None]) -> None:
        self._memory = memory
        self._number = number
        self._give_back = give_back
        self.__array_interface__ = {
            "data": (_address(memory), False),
            "shape": memory.shape,
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._give_back(self._number)


def _pickled(batch: Any, buffers: Buffers, reduce: Reduce | None) -> bytes:
    """Pickle the structure of a batch, and collect the memory of its arrays in `buffers`."""
    stream = io.BytesIO()
    try:
        _Pickler(stream, buffers, reduce).dump(batch)
    except (TypeError, AttributeError, pickle.PicklingError):
        stream = io.BytesIO()
        buffers.clear()
        _by_value()(stream, buffers, reduce).dump(batch)
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    """Pickle what says how to, and collect the memory of large arrays in `buffers`."""

    def __init__(self, stream: io.BytesIO, buffers: Buffers, reduce: Reduce | None) -> None:
        def is_in_stream(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes <= _SMALL_BYTES:
                return True
            buffers.append(np.frombuffer(raw, np.uint8))
            return False

        super().__init__(stream, 5, buffer_callback=is_in_stream)
        self._reduce = reduce

    def reducer_override(self, value: Any) -> Any:
        """Return how to pickle what would copy its memory into the stream itself."""
        if type(value) is np.ndarray:
            if value.dtype.kind in _NO_BUFFER and value.dtype.names is None:
                raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
                return _array, (pickle.PickleBuffer(raw), value.dtype.name, value.shape)
            if not (value.flags.forc or value.dtype.hasobject):
                return np.ascontiguousarray(value).__reduce_ex__(5)
            return NotImplemented
        return NotImplemented if self._reduce is None else self._reduce(value)


@functools.cache
def _by_value() -> Any:
    """Return what also pickles objects of classes of the user's script."""
    import cloudpickle

    class ByValue(_Pickler, cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            found = super().reducer_override(value)
            return cloudpickle.Pickler.reducer_override(self, value) if found is NotImplemented else found

    return ByValue


def _array(raw: Any, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.frombuffer(raw, dtype_named(name), math.prod(shape)).reshape(shape)
