"""Arrow types that have a stored form, and the spec of records of such columns."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from yogadl._core.leaf import BYTES, STR, Leaf, Shape, leaf_at, refuse
from yogadl._core.spec import DictNode, Node, Spec, check_keys
from yogadl.errors import UnsupportedDataError

# pyarrow has no annotations, so `Any` stands for a pa.DataType or a pa.Array throughout.
# A column: a pa.Array, a pa.ChunkedArray, or a numpy array, which is stored as it is.
Values = Any

_NUMBERS: Final = {
    **{f"{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "bool": "bool",
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "date32[day]": "datetime64[D]",
    "date64[ms]": "datetime64[ms]",
}
NULL: Final = (
    "is null, which has no stored form; fill the nulls (fill_null, fillna) or drop those records (drop_null, "
    "drop_nulls, dropna) first"
)
_MENDS: Final = (
    (pa.types.is_decimal, "cast it to float64, or to string to keep every digit"),
    (pa.types.is_time, "cast it to an integer"),
    (pa.types.is_interval, "cast it to a duration"),
    (pa.types.is_map, "make it two lists, one of keys and one of values"),
    (pa.types.is_union, "make a column of each kind"),
    (pa.types.is_struct, "make it a struct of lists instead of a list of structs"),
)


def spec_of(names: Sequence[Any] | None, columns: Sequence[Values]) -> Spec:
    """Return the spec of records that are a dict of these columns, or a single column's values.

    Args:
        names: The keys of the dict; ``None`` for a single column.
        columns: The columns, with one row or more each; or their pa.Fields.

    Raises:
        UnsupportedDataError: if a column can't be stored; names the column.
    """
    if names is None:
        return Spec(_node("", columns[0]))
    check_keys(names, "", 0)
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UnsupportedDataError(f"two columns are called {name!r}; rename one of them")
    spec = Spec(DictNode(tuple(names), tuple(map(_node, map(str, names), columns))))
    if not spec.fields:
        raise UnsupportedDataError("there are no columns; records need at least one field")
    return spec


def _node(path: str, column: Values) -> Node:
    if isinstance(column, np.ndarray):
        return leaf_at(path, 0, np.empty((), column.dtype))
    return _node_of_type(path, column.type)


def _node_of_type(path: str, data_type: Any) -> Node:
    data_type = _plain_type(data_type)
    if pa.types.is_struct(data_type):
        fields = [data_type.field(i) for i in range(data_type.num_fields)]
        keys = [field.name for field in fields]
        if len(set(keys)) < len(keys):
            raise UnsupportedDataError(f"the struct {path!r} has two fields of one name ({keys}); rename one")
        return DictNode(
            tuple(keys), tuple(_node_of_type(below(path, field.name), field.type) for field in fields)
        )
    shape, element = unnested(path, data_type)
    if is_text(element):
        is_str = (
            pa.types.is_string(element)
            or pa.types.is_large_string(element)
            or pa.types.is_string_view(element)
        )
        return Leaf(STR if is_str else BYTES, shape)
    if pa.types.is_null(element):
        raise refuse(path, 0, NULL)
    dtype = _dtype(element)
    if dtype is None:
        mend = next((mend for holds, mend in _MENDS if holds(element)), "cast it to another type")
        raise _unsupported(path, data_type, mend)
    return Leaf(dtype, shape)


def _dtype(element: Any) -> str | None:
    # A time zone only changes how a time is shown: Arrow stores all times in UTC.
    if pa.types.is_timestamp(element):
        return f"datetime64[{element.unit}]"
    if pa.types.is_duration(element):
        return f"timedelta64[{element.unit}]"
    return _NUMBERS.get(str(element))


def unnested(path: str, data_type: Any) -> tuple[Shape, Any]:
    """Return the shape of a value, of which only the outermost dimension may vary, and the innermost type."""
    declared = None
    if isinstance(data_type, pa.BaseExtensionType):
        declared = _declared_shape(data_type)
        if declared is None:
            raise _unsupported(
                path, data_type, f"cast it to the type that it is kept as, {data_type.storage_type}"
            )
        data_type = data_type.storage_type
    element, sizes = data_type, []
    while is_list(element):
        sizes.append(element.list_size if pa.types.is_fixed_size_list(element) else None)
        element = _plain_type(element.value_type)
    shape = tuple(sizes) if declared is None else declared
    if None in shape[1:]:
        raise _unsupported(
            path,
            data_type,
            "only the outermost dimension may vary; make the inner lists of a fixed size, or flatten them",
        )
    return shape, element


def _declared_shape(data_type: Any) -> Shape | None:
    """Return the shape of a tensor type of Arrow or of HF datasets; ``None`` for other extension types."""
    shape = getattr(data_type, "shape", None)
    order = getattr(data_type, "permutation", None)
    if not shape or (order is not None and list(order) != sorted(order)):
        return None
    return tuple(shape)


def _plain_type(data_type: Any) -> Any:
    """Return a type without dictionary or run-end encoding."""
    while pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
        data_type = data_type.value_type
    return data_type


def is_list(data_type: Any) -> bool:
    """Return whether values are lists, of fixed or varying size."""
    types = pa.types
    return any(
        holds(data_type)
        for holds in (
            types.is_list, types.is_large_list, types.is_fixed_size_list,
            types.is_list_view, types.is_large_list_view,
        )
    )  # fmt: skip


def is_text(data_type: Any) -> bool:
    """Return whether values are bytes or str."""
    types = pa.types
    return any(
        holds(data_type)
        for holds in (
            types.is_string, types.is_large_string, types.is_string_view, types.is_fixed_size_binary,
            types.is_binary, types.is_large_binary, types.is_binary_view,
        )
    ) and not types.is_decimal(data_type)  # fmt: skip


def below(path: str, name: str) -> str:
    """Return the path of a struct's field."""
    return f"{path}/{name}" if path else name


def _unsupported(path: str, data_type: Any, mend: str) -> UnsupportedDataError:
    field = f"field {path!r}" if path else "the record itself"
    return UnsupportedDataError(f"{field} is {data_type} in Arrow, which has no stored form; {mend}")
