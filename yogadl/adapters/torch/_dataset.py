"""Present a `DataRef` to PyTorch as a map-style dataset."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from yogadl._core.arguments import checked_indices
from yogadl._dataref import RecordsRef, as_ref
from yogadl.adapters.torch._tensors import converters


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
