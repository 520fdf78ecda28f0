"""Carry batches from a worker process to the training loop in shared memory, which is used again and again.

PyTorch's own way makes a new piece of shared memory for every tensor, which is created, faulted in page by
page on both sides and passed as a file descriptor: several times what gathering the batch costs
(benchmarks/torch_loader.py).
"""

import io
import math
import mmap
import os
import pickle
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from yogadl._leaf import dtype_named

_ALIGNED: Final = 64
_PAGES: Final = 16 * 4096
# Who keeps one array of a batch should not keep the memory of all of it. So arrays up to `_SMALL_BYTES` are
# pickled with the structure, from which they are copied in some 2 us, and each larger one gets a segment of
# its own. If there are more than `_MOST_ALONE`, as in a list of arrays, all share one segment: each segment
# is a mapping, of which a process may have some 65,000.
_SMALL_BYTES: Final = 16_384
_MOST_ALONE: Final = 16
_NO_BUFFER: Final = "VMm"  # kinds of dtypes that numpy exports no buffer of: ml_dtypes' and dates

Buffers = list[NDArray[np.uint8]]


class FilledSegment(NamedTuple):
    """One segment of shared memory, and where in it the buffers of a batch begin and end."""

    number: int
    size: int
    handle: Any  # multiprocessing's, to map it with; only the first time that it is sent
    spans: list[tuple[int, int]]


class SharedBatch(NamedTuple):
    """A batch in shared memory, as a worker sends it."""

    worker: int
    segments: list[FilledSegment]  # the last buffer of the first is the pickled structure
    dropped: list[int]  # the numbers of segments that the worker will not use again


class _Segment(NamedTuple):
    number: int
    memory: NDArray[np.uint8]
    position: int  # in the batch: the same field has about the same size in each batch


class Packer:
    """Pack batches in a worker. A segment is used again once the training loop has returned it."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._made = 0
        self._free: dict[int, list[_Segment]] = {}
        self._sent: dict[int, _Segment] = {}

    def take_back(self, numbers: Sequence[int]) -> None:
        """Use these segments again: the training loop has let go of them."""
        for number in numbers:
            segment = self._sent.pop(number)
            self._free[segment.position].append(segment)

    def pack(self, batch: Any) -> SharedBatch:  # any tree of arrays, tensors and what pickles
        """Write a batch into segments."""
        buffers: Buffers = []
        stream = io.BytesIO()
        _Pickler(stream, buffers).dump(batch)
        groups = [[buffer] for buffer in buffers] if 0 < len(buffers) <= _MOST_ALONE else [buffers]
        groups[0].append(np.frombuffer(stream.getbuffer(), np.uint8))
        dropped: list[int] = []
        segments = [self._write(position, group, dropped) for position, group in enumerate(groups)]
        return SharedBatch(self._worker, segments, dropped)

    def _write(self, position: int, buffers: Buffers, dropped: list[int]) -> FilledSegment:
        spans, end = [], 0
        for buffer in buffers:
            start = -(-end // _ALIGNED) * _ALIGNED
            end = start + buffer.size
            spans.append((start, end))
        segment, handle = self._segment(position, end, dropped)
        for (start, end), buffer in zip(spans, buffers, strict=True):
            segment.memory[start:end] = buffer
        self._sent[segment.number] = segment
        return FilledSegment(segment.number, segment.memory.size, handle, spans)

    def _segment(self, position: int, size: int, dropped: list[int]) -> tuple[_Segment, Any]:
        """Return a segment that is large enough, and what maps it if it is new; drop those too small."""
        free = self._free.setdefault(position, [])
        for number, segment in enumerate(free):
            if segment.memory.size >= size:
                del free[number]
                return segment, None
        dropped += [segment.number for segment in free]
        free.clear()
        memory, handle = _share(-(-(size + size // 8) // _PAGES) * _PAGES)
        self._made += 1
        return _Segment(self._made, memory, position), handle


def _share(size: int) -> tuple[NDArray[np.uint8], Any]:
    """Return new memory, and what another process can map it with."""
    if hasattr(os, "memfd_create"):  # not in /dev/shm, which containers keep small
        descriptor = os.memfd_create("yogadl-batches")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
        return _mapped(descriptor, size), reduction.DupFd(descriptor)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, size: int) -> NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)


class Unpacker:
    """Unpack the batches that the workers sent: in one thread. Any thread may let go of a batch."""

    def __init__(self, workers: int) -> None:
        self._segments: dict[tuple[int, int], NDArray[np.uint8]] = {}
        self._returned: list[deque[int]] = [deque() for _ in range(workers)]

    def returned(self, worker: int) -> tuple[int, ...]:
        """Return the segments of a worker that were let go of since the last call."""
        found, queue = [], self._returned[worker]
        while queue:
            found.append(queue.popleft())
        return tuple(found)

    def unpack(self, batch: SharedBatch) -> Any:  # what was packed
        """Return the batch without a copy. A segment is free again once every array in it is let go of.

        Raises:
            OSError: if the worker died before its memory could be mapped.
        """
        for number in batch.dropped:
            self._segments.pop((batch.worker, number), None)
        buffers = [buffer for segment in batch.segments for buffer in self._read(batch.worker, segment)]
        stream = buffers.pop(len(batch.segments[0].spans) - 1)
        return pickle.loads(stream.data, buffers=buffers)

    def _read(self, worker: int, segment: FilledSegment) -> Buffers:
        key = (worker, segment.number)
        if segment.handle is not None:
            descriptor = segment.handle.detach()
            try:
                self._segments[key] = _mapped(descriptor, segment.size)
            finally:
                os.close(descriptor)
        memory = np.asarray(_Borrowed(self._segments[key], segment.number, self._returned[worker].append))
        return [memory[start:end] for start, end in segment.spans]


class _Borrowed:
    """The memory of a segment as an array's base: given back when the last view of the array is gone."""

    __slots__ = ("__array_interface__", "_give_back", "_memory", "_number")

    def __init__(self, memory: NDArray[np.uint8], number: int, give_back: Callable[[int], None]) -> None:
        self._memory = memory
        self._number = number
        self._give_back = give_back
        address = memory.__array_interface__["data"][0]
        self.__array_interface__ = {
            "data": (address, False),
            "shape": memory.shape,
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._give_back(self._number)


class _Pickler(pickle.Pickler):
    """Pickle the structure of a batch, and collect the memory of its arrays and tensors in `buffers`."""

    def __init__(self, stream: io.BytesIO, buffers: list[NDArray[np.uint8]]) -> None:
        def is_in_stream(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes <= _SMALL_BYTES:
                return True
            buffers.append(np.frombuffer(raw, np.uint8))
            return False

        super().__init__(stream, 5, buffer_callback=is_in_stream)

    def reducer_override(self, value: Any) -> Any:
        """Return how to pickle arrays and tensors that would copy their memory into the stream themselves."""
        if type(value) is np.ndarray and value.dtype.kind in _NO_BUFFER and value.dtype.names is None:
            raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
            return _array, (pickle.PickleBuffer(raw), value.dtype.name, value.shape)
        if type(value) is torch.Tensor and _is_plain(value):
            raw = value.contiguous().as_strided((value.numel(),), (1,)).view(torch.uint8).numpy().data
            return _tensor, (pickle.PickleBuffer(raw), value.dtype, tuple(value.shape))
        return NotImplemented


def _is_plain(tensor: Any) -> bool:
    """Return whether a tensor is just memory on the CPU."""
    return bool(
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _array(raw: Any, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.frombuffer(raw, dtype_named(name), math.prod(shape)).reshape(shape)


def _tensor(raw: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    return torch.from_numpy(np.frombuffer(raw, np.uint8)).view(dtype).reshape(shape)
