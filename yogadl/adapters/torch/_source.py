"""A `DataRef` as a map-style dataset of PyTorch, and PyTorch's datasets as sources."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from yogadl._core.arguments import checked_indices
from yogadl._core.columns import Columns
from yogadl._core.protocols import Indices
from yogadl._core.spec import Spec
from yogadl._dataref import RecordsRef, as_ref
from yogadl._sources.sources import (
    NO_RECORDS,
    ArraysSource,
    ItemsSource,
    IterableSource,
    RecordsSource,
    Source,
    has_random_access,
)
from yogadl.adapters.torch._tensors import arrays_in, converters
from yogadl.errors import UnsupportedDataError

# Present a `DataRef` to PyTorch as a map-style dataset.


class Dataset(torch.utils.data.Dataset):  # type: ignore[misc]  # torch is not installed where types are checked
    """The records of a reference by index, with tensors for arrays: a map-style dataset.

    Numbers become tensors without dimensions; bytes, str and dates stay as they are. A whole batch is read in
    one step (``__getitems__``, which DataLoader calls); its samples share memory with each other, never with
    the cache. Thread-safe; usable after a fork; pickles in well under a kilobyte if the reference does.

    (For records of numpy arrays pass the reference itself to DataLoader.)

    Args:
        ref: The result of `fetch`, `cacheable` or `from_source`.
        transform: A function of a record that returns the sample.

    Raises:
        ConfigurationError: if `ref` has no random access.

    Example:
        >>> import numpy as np, yogadl
        >>> from yogadl.adapters import torch as yogadl_torch
        >>> ref = yogadl.from_source({"x": np.eye(3, dtype=np.float32), "y": np.arange(3)})
        >>> dataset = yogadl_torch.Dataset(ref)
        >>> len(dataset), dataset[2]
        (3, {'x': tensor([0., 0., 1.]), 'y': tensor(2)})
    """

    def __init__(self, ref: RecordsRef, transform: Callable[[Any], Any] | None = None) -> None:
        self.ref = as_ref(ref)
        self.transform = transform
        self._converters = converters(ref.spec)

    def __reduce__(self) -> Any:
        return type(self), (self.ref, self.transform)

    def __len__(self) -> int:
        return len(self.ref)

    def __repr__(self) -> str:
        return f"<Dataset over {self.ref!r}>"

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Return a list of samples, read at once."""
        found = checked_indices([int(index) for index in indices], len(self.ref))
        columns = [to(column) for to, column in zip(self._converters, self.ref.columns(found), strict=True)]
        # `unbind` makes the views of all rows in C.
        rows = [column.unbind() if isinstance(column, torch.Tensor) else column for column in columns]
        records = self.ref.spec.records(rows, len(found))
        return records if self.transform is None else [self.transform(record) for record in records]


# Read PyTorch's datasets as sources: by record, or by column if they consist of tensors.


_MOST_RECORDS = 8192
_MOST_BYTES = 8 * 2**20


def source(
    data: Any, allow_pickle: bool = False
) -> Source | None:  # any object of torch's classes, or of subclasses
    """Return the source in a dataset, a tensor or a DataLoader that makes no batches.

    Tensors become arrays; other values are stored as from any source. A `TensorDataset`, a `StackDataset`
    of tensors and a `Subset` of them are read by column, without a loop over records.

    Args:
        data: A `torch.utils.data.Dataset` of either kind, or a tensor, whose rows are the records.
        allow_pickle: Whether values without a stored form may be pickled.

    Returns:
        The source, or ``None`` if `data` is none of these.

    Raises:
        UnsupportedDataError: if there are no records, or one can't be stored; names field and record.
    """
    columns = _columns_of(data, allow_pickle)
    if columns is not None:
        return columns
    if isinstance(data, Dataset) and data.transform is None:
        return RecordsSource(data.ref, allow_pickle=allow_pickle)
    if isinstance(data, torch.utils.data.IterableDataset):
        return IterableSource(_iterated(data), allow_pickle=allow_pickle)
    if isinstance(data, torch.utils.data.Dataset):
        if not has_random_access(data):
            raise UnsupportedDataError(
                f"the dataset {type(data).__name__} has no __len__: give it one, so that its records can be "
                "counted"
            )
        wrap = _BatchedItems if hasattr(data, "__getitems__") else _Items
        return ItemsSource(wrap(data), allow_pickle=allow_pickle)
    if isinstance(data, torch.utils.data.DataLoader):
        if data.batch_sampler is not None:
            raise UnsupportedDataError(
                "a DataLoader yields batches, but a cache stores records: submit its dataset "
                "(loader.dataset), and let the stream shuffle and make batches"
            )
        return IterableSource(_iterated(data), allow_pickle=allow_pickle)
    return None


def _iterated(data: Any) -> Iterator[Any]:
    """Yield the records with tensors converted to arrays."""
    for number, record in enumerate(data):
        yield arrays_in(record, number)


class _Items:
    """The items of a map-style dataset, with tensors converted to arrays."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return arrays_in(self._data[index], index)


class _BatchedItems(_Items):
    """The same for a dataset that returns several items at once."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        records = self._data.__getitems__(list(indices))
        return [arrays_in(record, index) for record, index in zip(records, indices, strict=True)]


def _columns_of(data: Any, allow_pickle: bool) -> "ArraysSource | SubsetSource | None":
    """Return the source of data that consists only of tensors, else ``None``."""
    if type(data) is torch.utils.data.Subset:
        inner = _columns_of(data.dataset, allow_pickle)
        return None if inner is None else SubsetSource(inner, data.indices)
    if type(data) is torch.utils.data.TensorDataset:
        data = tuple(data.tensors)
    elif type(data) is torch.utils.data.StackDataset:
        data = data.datasets
        tensors = data.values() if isinstance(data, dict) else data
        if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            return None
    elif not isinstance(data, torch.Tensor):
        return None
    elif not data.dim():
        raise UnsupportedDataError(
            "a tensor without dimensions has no rows to store as records: unsqueeze it"
        )
    return ArraysSource(arrays_in(data, 0), allow_pickle=allow_pickle)


class SubsetSource:
    """Some records of a source by column, in the order of a `Subset`'s indices; a record may come twice."""

    can_start_anywhere = True

    def __init__(self, parent: "ArraysSource | SubsetSource", indices: Sequence[int]) -> None:
        self.spec: Spec = parent.spec
        self.has_final_spec: bool = parent.has_final_spec
        self.length = len(indices)
        if not self.length:
            raise UnsupportedDataError(NO_RECORDS)
        self._parent = parent
        self._indices = np.asarray(indices, np.int64)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on."""
        row_bytes = sum(field.leaf.row_bytes for field in self.spec.fields)
        count = max(1, min(_MOST_RECORDS, _MOST_BYTES // max(1, row_bytes)))
        for first in range(start, self.length, count):
            yield self.columns(np.arange(first, min(first + count, self.length)))

    def columns(self, chosen: Indices, first_record: int = 0) -> Columns:
        """Return the chosen rows of every column."""
        return self._parent.columns(self._indices[chosen], first_record)
