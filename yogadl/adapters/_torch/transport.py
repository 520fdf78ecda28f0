"""Carry batches from a worker process to the training loop, in memory that both map and that is used again.

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
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from yogadl._leaf import dtype_named

_ALIGNED: Final = 64
_PAGES: Final = 16 * 4096
_SMALL_BYTES: Final = 256  # goes along with the structure instead
_NO_BUFFER: Final = "VMm"  # kinds of dtypes that numpy exports no buffer of: ml_dtypes' and dates

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Parcel:
    """Say where in a segment of shared memory a batch lies.

    Args:
        worker: Who sent it.
        segment: In which of his segments.
        size: How large that is.
        handle: What maps it; just the first time.
        spans: Where the buffers begin and end, and last of all the structure that they belong in.
        dropped: Segments that he will not use again.
    """

    worker: int
    segment: int
    size: int
    handle: Any  # multiprocessing's, without annotations
    spans: tuple[Span, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Segment:
    number: int
    memory: NDArray[np.uint8]


class Packer:
    """Pack batches in a worker. A segment is used again once the other side has returned it.

    Args:
        worker: The worker's number.
    """

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._made = 0
        self._free: list[_Segment] = []
        self._sent: dict[int, _Segment] = {}

    def take_back(self, numbers: Sequence[int]) -> None:
        """Note that nobody reads these segments any more."""
        self._free += [self._sent.pop(number) for number in numbers]

    def pack(self, batch: Any) -> Parcel:  # any tree of arrays, tensors and what pickles
        """Write a batch into a segment."""
        buffers: list[NDArray[np.uint8]] = []
        stream = io.BytesIO()
        _Pickler(stream, buffers).dump(batch)
        buffers.append(np.frombuffer(stream.getbuffer(), np.uint8))
        spans, end = [], 0
        for buffer in buffers:
            start = -(-end // _ALIGNED) * _ALIGNED
            end = start + buffer.size
            spans.append((start, end))
        segment, handle, dropped = self._segment(end)
        for (start, end), buffer in zip(spans, buffers, strict=True):
            segment.memory[start:end] = buffer
        self._sent[segment.number] = segment
        return Parcel(self._worker, segment.number, segment.memory.size, handle, tuple(spans), tuple(dropped))

    def _segment(self, size: int) -> tuple[_Segment, Any, list[int]]:
        """Return a segment that is large enough, what maps it if it is new, and those that were too small."""
        for place, segment in enumerate(self._free):
            if segment.memory.size >= size:
                del self._free[place]
                return segment, None, []
        dropped = [segment.number for segment in self._free]
        self._free.clear()
        memory, handle = _share(-(-(size + size // 8) // _PAGES) * _PAGES)
        self._made += 1
        return _Segment(self._made, memory), handle, dropped


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
    """Unpack what the workers sent. One thread unpacks; batches may be let go of in any."""

    def __init__(self, workers: int) -> None:
        self._segments: dict[tuple[int, int], NDArray[np.uint8]] = {}
        self._returned: list[deque[int]] = [deque() for _ in range(workers)]

    def returned(self, worker: int) -> tuple[int, ...]:
        """Return which segments of a worker nobody reads any more, each once."""
        found, queue = [], self._returned[worker]
        while queue:
            found.append(queue.popleft())
        return tuple(found)

    def unpack(self, parcel: Parcel) -> Any:  # what was packed
        """Return the batch, lying where it was written; its segment is returned once all of it is let go of.

        Raises:
            OSError: if the worker died before its memory could be mapped.
        """
        for number in parcel.dropped:
            self._segments.pop((parcel.worker, number), None)
        key = (parcel.worker, parcel.segment)
        if parcel.handle is not None:
            descriptor = parcel.handle.detach()
            try:
                self._segments[key] = _mapped(descriptor, parcel.size)
            finally:
                os.close(descriptor)
        give_back = self._returned[parcel.worker].append
        memory = np.asarray(_Lease(self._segments[key], parcel.segment, give_back))
        *buffers, stream = [memory[start:end] for start, end in parcel.spans]
        return pickle.loads(stream.data, buffers=buffers)


class _Lease:
    """Own the memory of an array; every view of it refers to this, and once all are gone it is given back."""

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
    """Pickle the structure, and put the memory of arrays and tensors aside."""

    def __init__(self, stream: io.BytesIO, buffers: list[NDArray[np.uint8]]) -> None:
        def aside(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes <= _SMALL_BYTES:
                return True
            buffers.append(np.frombuffer(raw, np.uint8))
            return False

        super().__init__(stream, 5, buffer_callback=aside)

    def reducer_override(self, value: Any) -> Any:
        """Return how numpy and torch values are pickled that would not put their memory aside."""
        if type(value) is np.ndarray and value.dtype.kind in _NO_BUFFER and value.dtype.names is None:
            raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
            return _array, (pickle.PickleBuffer(raw), value.dtype.name, value.shape)
        if type(value) is torch.Tensor and _is_plain(value):
            raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().data
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
