"""Say how a value does not fit the records before, and what to write so that it is stored."""

from typing import Any, Final

from yogadl._core.json_value import is_json
from yogadl._core.spec import (
    JSON,
    PICKLE_HINT,
    STR,
    DictNode,
    Leaf,
    NamedTupleNode,
    Node,
    SequenceNode,
    names_of_namedtuple,
)

_PLAIN_DTYPES: Final = frozenset({"int64", "uint64", "float64", "bool", STR})
_UNKNOWN: Final = "..."
_EMPTY: Final = '"empty"'
_FILLS_OF_DTYPES: Final = {"i": "-1", "u": "0", "f": 'float("nan")', "b": "False", "c": "0j"}
_FILLS_OF_TYPES: Final = {
    int: "-1", float: 'float("nan")', bool: "False", str: '""', bytes: 'b""', list: "[]", dict: "{}",
}  # fmt: skip


def none_problem(path: str, fill: str = _UNKNOWN, *, is_decided: bool = False) -> str:
    """Return what is wrong with a missing value, and what to write."""
    if not path:
        return 'is None: leave it out, or give records that are dicts, such as {"text": None}'
    in_its_place = f"is None: a value in its place, missing={{{path!r}: {fill}}}"
    if is_decided:
        return in_its_place
    return (
        f"{in_its_place}; or the field as a json value, "
        f"json=({path!r},), which has None, too{'' if fill != _UNKNOWN else f'; {PICKLE_HINT}'}"
    )


def fill_of(node: Node) -> str:
    """Return Python code for what may come in the place of a missing value of a field."""
    if isinstance(node, DictNode):
        return _FILLS_OF_TYPES[dict]
    if not isinstance(node, Leaf):
        return _UNKNOWN
    if node.dtype == JSON:
        return "None"
    if node.shape != () or not node.is_numeric:
        return _EMPTY
    return _FILLS_OF_DTYPES.get(node.numpy_dtype.kind, _UNKNOWN)


def difference(path: str, node: DictNode | SequenceNode | NamedTupleNode, value: object) -> str:
    """Return what a value has, and what the records before have in its place."""
    if isinstance(node, DictNode):
        expected = f"a dict with the keys {list(node.keys)}"
        found = f"one with {list(value)}" if isinstance(value, dict) else f"a {type(value).__name__}"
        return f"should be {expected}, as in the records before, but is {found}"
    found = f"a {type(value).__name__}"
    fields = names_of_namedtuple(value)
    if isinstance(node, NamedTupleNode) and fields is not None:
        expected = f"a namedtuple with the fields {list(node.keys)}"
        return f"should be {expected}, as in the records before, but is {found} with {list(fields)}"
    if isinstance(value, list | tuple):
        found += f" of {len(value)}"
    if not path and node.kind == "list" and isinstance(value, list) and dict in map(type, value):
        return (
            f"should be a list of {len(node.children)}, as in the records before, but is {found}: a record "
            'that is a list has a field for each item; give the list a name, {"messages": [...]}'
        )
    return (
        f"should be a {node.kind} of {len(node.children)}, as in the records before, but is {found}; "
        "if the length varies, make it an array (np.asarray)"
    )


def of_storing(path: str, node: Node, value: Any) -> str:
    """Return what to pass where records are stored, after a semicolon; empty if nothing helps.

    Args:
        path: The field's name.
        node: The structure of the field in the records before.
        value: The value of another record.
    """
    if isinstance(node, DictNode) and isinstance(value, dict) and not path:
        return _of_keys(node, value)
    leaf = number_of_both(node, value)
    if path and leaf is not None:
        return f"; to have both, declare the field: records=yogadl.RecordOptions({declaration(path, leaf)})"
    if not path or not _may_be_json(node) or not is_json(value):
        return ""
    return f"; as a json value the field has both: json=({path!r},)"


def of_column(path: str, node: Node, value: Any) -> str:
    """Return the same for the values of a column."""
    if number_of_both(node, value) is None:
        return of_storing(path, node, value)
    return "; make the column an array of floats, or of arrays of them"


def of_continuing(path: str, node: Node, value: Any) -> str:
    """Return the same where the records continue a version, which has decided what fields are."""
    lacks = isinstance(node, DictNode) and isinstance(value, dict) and not set(node.keys) <= value.keys()
    if lacks and not path:
        return of_storing(path, node, value)
    return (
        "; so has the version that the records continue: change them, or build another version of all records"
    )


def of_function(path: str, node: Node, value: Any) -> str:
    """Return the same for the results of a function."""
    if not path:
        return ""
    leaf = number_of_both(node, value)
    if leaf is None and not (_may_be_json(node) and is_json(value)):
        return ""
    return f"; to have both, declare the field: {declaration(path, leaf or Leaf(JSON))}"


def declaration(path: str, leaf: Leaf) -> str:
    """Return Python code for a ``spec=`` argument that declares one field."""
    shape = "" if leaf.shape == () else f", {leaf.shape}"
    text = f'yogadl.Leaf("{leaf.dtype}"{shape})'
    for key in reversed(path.split("/")):
        text = f"{{{key if key.isdigit() else repr(key)}: {text}}}"
    return f"spec={text}"


def number_of_both(node: Node, value: Any) -> Leaf | None:
    """Return the leaf of integers beside floats, or of lists of both, or ``None`` if there are others."""
    if not isinstance(node, Leaf) or node.dtype != "int64":
        return None
    if node.shape == () and type(value) is float:
        return Leaf("float64")
    are_numbers = type(value) is list and {float} <= set(map(type, value)) <= {int, float}
    return Leaf("float64", (None,)) if are_numbers and node.shape and len(node.shape) == 1 else None


def _of_keys(node: DictNode, record: dict[Any, Any]) -> str:
    """Return what gives a value to the records that lack a key."""
    fills = {
        key: fill_of(child) for key, child in zip(node.keys, node.children, strict=True) if key not in record
    }
    if not fills:
        fills = {
            key: _FILLS_OF_TYPES.get(type(value), _UNKNOWN)
            for key, value in record.items()
            if key not in node.keys
        }
    trees = tuple(key for key, fill in fills.items() if fill == _FILLS_OF_TYPES[dict])
    json = f", json={trees!r}" if trees else ""
    return f"; a value for those that lack it: missing={_dict_text(fills)}{json}"


def _dict_text(fills: dict[Any, str]) -> str:
    return "{" + ", ".join(f"{key!r}: {fill}" for key, fill in fills.items()) + "}"


def _may_be_json(node: Node) -> bool:
    """Return whether what records have there may be plain values, and is not stored as such already."""
    if isinstance(node, Leaf):
        return node.dtype in _PLAIN_DTYPES
    return isinstance(node, DictNode) or node.kind == "list"
