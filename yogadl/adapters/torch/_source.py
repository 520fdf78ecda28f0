"""A `DataRef` as a map-style dataset, PyTorch's datasets as sources, and arrays as tensors and back."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from yogadl._core.arguments import checked_indices
from yogadl._core.columns import Columns
from yogadl._core.forms import PLAIN, Forms
from yogadl._core.protocols import Column, Indices
from yogadl._core.spec import NUMPY_DTYPES, Leaf, Spec, dtype_named, refuse
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
from yogadl.adapters._checks import Path, map_leaves
from yogadl.errors import UnsupportedDataError

# Convert numpy arrays to tensors that share their memory, and tensors to arrays.


# A torch.Tensor, a torch.dtype: torch need not be installed where the types are checked.
Tensor = Any
Convert = Callable[[Any], Any]  # of a column

# The dtypes that torch has in addition to numpy's own, and that numpy gets from ml_dtypes under the same
# names. Not listed are complex32 and the quantized types, which numpy lacks, and dates and int4, which torch
# lacks.
_FOREIGN: Final = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)


def tensor_of(array: NDArray[Any]) -> Any:  # a tensor; or the array itself if torch lacks the dtype
    """Return a tensor that shares the array's memory; dates and sub-byte integers stay arrays."""
    name = array.dtype.name
    if name in NUMPY_DTYPES:
        return torch.from_numpy(array)
    dtype = getattr(torch, name, None) if name in _FOREIGN else None
    if dtype is None:
        return array
    return torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(dtype)


def to_tensors(spec: Spec) -> Callable[[Sequence[Column]], list[Any]]:
    """Return the function that converts the columns of records to the values in a batch of tensors."""
    converters = [_converter(field.leaf) for field in spec.fields]
    return lambda columns: [convert(column) for convert, column in zip(converters, columns, strict=True)]


def _converter(leaf: Leaf) -> Convert:
    """Return the function for a leaf; a varying field stays a list, of tensors, bytes, str or objects."""
    if not leaf.is_numeric:
        return _same
    if not leaf.is_fixed:
        return _tensors
    return torch.from_numpy if leaf.dtype in NUMPY_DTYPES else tensor_of


def _same(column: Column) -> Column:
    return column


def _tensors(column: Column) -> list[Any]:
    return [tensor_of(np.asarray(value)) for value in column]


def array_of(tensor: Tensor) -> NDArray[Any] | None:
    """Return the tensor's values as an array, sharing memory if the tensor is on the CPU.

    The result is ``None`` if the values have no numpy form: sparse, quantized, nested, or of a dtype that
    numpy lacks.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return None
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in NUMPY_DTYPES:
        found: NDArray[Any] = tensor.numpy()
        return found
    if name not in _FOREIGN:
        return None
    bits = getattr(torch, f"uint{8 * tensor.element_size()}")
    found = tensor.contiguous().view(bits).numpy().view(dtype_named(name))
    return found


def arrays_in(tree: Any, record: int) -> Any:
    """Return a record with its tensors converted to arrays; everything else stays as it is.

    Raises:
        UnsupportedDataError: if a tensor has no numpy form; names field and record.
    """

    def stored(leaf: Any, path: Path) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        found = array_of(leaf)
        if found is None:
            raise refuse("/".join(map(str, path)), record, _refusal(leaf))
        return found

    return map_leaves(stored, tree)


def _refusal(tensor: Tensor) -> str:
    if tensor.is_quantized:
        return f"is a quantized tensor ({tensor.dtype}); store dequantize(), or int_repr() and the scale"
    if tensor.is_nested:
        return (
            "is a nested tensor; store each of unbind() as a record, or values() and offsets() as two fields"
        )
    if tensor.layout is not torch.strided:
        return f"is a sparse tensor ({tensor.layout}); make it dense, or store its indices and values"
    return f"is a tensor of {tensor.dtype}, which has no stored form; cast it, or view it as integers"


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
        self._to_tensors = to_tensors(ref.spec)

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
        columns = self._to_tensors(self.ref.columns(found))
        # `unbind` makes the views of all rows in C.
        rows = [column.unbind() if isinstance(column, torch.Tensor) else column for column in columns]
        records = self.ref.spec.records(rows, len(found))
        return records if self.transform is None else [self.transform(record) for record in records]


# Read PyTorch's datasets as sources: by record, or by column if they consist of tensors.


_MOST_RECORDS = 8192
_MOST_BYTES = 8 * 2**20


def source(
    data: Any, forms: Forms = PLAIN
) -> Source | None:  # any object of torch's classes, or of subclasses
    """Return the source in a dataset, a tensor or a DataLoader that makes no batches.

    Tensors become arrays; other values are stored as from any source. A `TensorDataset`, a `StackDataset`
    of tensors and a `Subset` of them are read by column, without a loop over records.

    Args:
        data: A `torch.utils.data.Dataset` of either kind, or a tensor, whose rows are the records.
        forms: The caller's statements about the values of records.

    Returns:
        The source, or ``None`` if `data` is none of these.

    Raises:
        UnsupportedDataError: if there are no records, or one can't be stored; names field and record.
    """
    columns = _columns_of(data, forms)
    if columns is not None:
        return columns
    if isinstance(data, Dataset) and data.transform is None:
        return RecordsSource(data.ref, forms)
    if isinstance(data, torch.utils.data.IterableDataset):
        return IterableSource(_iterated(data), forms)
    if isinstance(data, torch.utils.data.Dataset):
        if not has_random_access(data):
            raise UnsupportedDataError(
                f"the dataset {type(data).__name__} has no __len__: give it one, so that its records can be "
                "counted"
            )
        wrap = _BatchedItems if hasattr(data, "__getitems__") else _Items
        return ItemsSource(wrap(data), forms)
    if isinstance(data, torch.utils.data.DataLoader):
        if data.batch_sampler is not None:
            raise UnsupportedDataError(
                "a DataLoader yields batches, but a cache stores records: submit its dataset "
                "(loader.dataset), and let the stream shuffle and make batches"
            )
        return IterableSource(_iterated(data), forms)
    return None


def _iterated(data: Any) -> Iterator[Any]:
    """Yield the records with tensors converted to arrays."""
    for number, record in enumerate(data):
        yield arrays_in(record, number)


class _Items:
    """The items of a map-style dataset, with tensors converted to arrays."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self.samples = getattr(data, "__dict__", {}).get(
            "samples"
        )  # the files that ImageFolder lists, for errors

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return arrays_in(self._data[index], index)


class _BatchedItems(_Items):
    """The same for a dataset that returns several items at once."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        records = self._data.__getitems__(list(indices))
        return [arrays_in(record, index) for record, index in zip(records, indices, strict=True)]


def _columns_of(data: Any, forms: Forms) -> "ArraysSource | SubsetSource | None":
    """Return the source of data that consists only of tensors, else ``None``."""
    if type(data) is torch.utils.data.Subset:
        inner = _columns_of(data.dataset, forms)
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
    return ArraysSource(arrays_in(data, 0), forms)


class SubsetSource(Source):
    """Some records of a source by column, in the order of a `Subset`'s indices; a record may come twice."""

    can_start_anywhere = True

    def __init__(self, parent: "ArraysSource | SubsetSource", indices: Sequence[int]) -> None:
        self.spec: Spec = parent.spec
        self.has_final_spec: bool = parent.has_final_spec
        self.length: int = len(indices)
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
