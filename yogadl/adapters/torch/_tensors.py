"""Convert numpy arrays to tensors that share their memory, and tensors to arrays."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from yogadl._core.leaf import NUMPY_DTYPES, Leaf, dtype_named, refuse
from yogadl._core.protocols import Column
from yogadl._core.spec import Spec
from yogadl.adapters._checks import Path, map_leaves

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


def converters(spec: Spec) -> list[Convert]:
    """Return for each field a function that converts a column to the value in a batch of tensors."""
    return [_converter(field.leaf) for field in spec.fields]


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
