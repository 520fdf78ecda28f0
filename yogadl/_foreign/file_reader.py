"""Read a foreign file in windows, and say where the values of its records lie."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl._core.protocols import Column, Int64s
from yogadl._core.spec import Spec
from yogadl._format.foreign import ForeignFile
from yogadl.errors import UnsupportedDataError

# Windows that are kept: a value, and the bytes that are hashed, may reach from one window into the next.
_KEPT_WINDOWS: Final = 3


class FileReader:
    """Reads one foreign file, mostly forwards. For one thread.

    Args:
        file: The file.
        fetch: Returns the bytes of a range, given position and length, all of them.
        window_bytes: The bytes that are fetched at once.
        sibling: Opens another file beside this one by its name, such as an index; None if there is none.
    """

    def __init__(
        self,
        file: ForeignFile,
        fetch: Callable[[int, int], bytes | memoryview],
        *,
        window_bytes: int = 4 * 2**20,
        sibling: "Callable[[str], FileReader | None]" = lambda name: None,
    ) -> None:
        self.file = file
        self.size_bytes = file.size_bytes
        self.window_bytes = window_bytes
        self.sibling = sibling
        self._fetch = fetch
        self._windows: dict[int, memoryview] = {}

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return os.path.basename(self.file.address)

    def read(self, position: int, length: int) -> memoryview:
        """Return these bytes, of which several windows may be joined.

        Raises:
            UnsupportedDataError: if the file ends before.
        """
        if not 0 <= position <= position + length <= self.size_bytes:
            self.refuse(
                position, f"{length} bytes are expected there, but the file ends at {self.size_bytes}"
            )
        first, last = position // self.window_bytes, (position + max(length, 1) - 1) // self.window_bytes
        if first == last:
            start = position - first * self.window_bytes
            return self._window(first)[start : start + length]
        if last - first > 1:
            return memoryview(self._fetch(position, length))
        start = position - first * self.window_bytes
        head = bytes(self._window(first)[start:])
        return memoryview(head + bytes(self._window(last)[: length - len(head)]))

    def array(self, position: int, dtype: str, count: int) -> NDArray[Any]:
        """Return this many numbers from a position on.

        Raises:
            UnsupportedDataError: if the file ends before.
        """
        kind = np.dtype(dtype)
        if count < 0:
            self.refuse(position, f"there can't be {count} numbers")
        return np.frombuffer(self.read(position, count * kind.itemsize), kind)

    def _window(self, number: int) -> memoryview:
        found = self._windows.get(number)
        if found is None:
            start = number * self.window_bytes
            content = self._fetch(start, min(self.window_bytes, self.size_bytes - start))
            found = self._windows[number] = memoryview(content)
            if len(self._windows) > _KEPT_WINDOWS:
                del self._windows[next(iter(self._windows))]
        return found

    def refuse(self, position: int, problem: str) -> NoReturn:
        """Raise the error of a file that is not of its format, or can't be read at random.

        Raises:
            UnsupportedDataError: always.
        """
        raise UnsupportedDataError(f"{self.file.address}, byte {position}: {problem}")


@frozen
class Places:
    """The values of a field in some consecutive records, which lie in the file.

    Args:
        positions: Where each begins in the file.
        lengths: The bytes of each.
        shapes: Of arrays, the rank and sizes of each, a row each; None for bytes and str.
    """

    positions: Int64s
    lengths: Int64s
    shapes: NDArray[np.int64] | None = None


# Some consecutive records of a file: of each field, in the order of the spec, the places of its values, or
# the values themselves if they are small.
Batch = Sequence[Places | Column]


class Format(Protocol):
    """Finds the records in files of one format. Immutable and picklable.

    Attributes:
        suffixes: The ends of the names of its files, by which they are found in a folder.
        spec: The structure of a record; only after `of_first_file`.
    """

    suffixes: ClassVar[tuple[str, ...]]

    @property
    def spec(self) -> Spec: ...

    def matches(self, name: str) -> bool:
        """Return whether a file of this name is one of the format's, when a folder is searched for them."""
        return name.endswith(self.suffixes)

    def of_first_file(self, reader: FileReader) -> "Format":
        """Return the format with the fields of all files, which the first one decides if the user did not."""

    def batches(self, reader: FileReader) -> Iterator[Batch]:
        """Yield the records of a file in order, as many at a time as are known without reading further.

        A format whose records are found by reading forwards ends a batch where a record begins in another
        window than the first of the batch: the bytes of the batch are then still in memory.

        Raises:
            UnsupportedDataError: if the file is damaged, or has other fields.
        """
