"""Find the structure of records from a sample of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from yogadl._core.advice import none_problem
from yogadl._core.columns import (
    EMPTY_LIST,
    IMMUTABLE_TYPES,
    PYTHON_NUMBERS,
    Content,
    content_of,
    copy_if_mutable,
    declare,
    dtype_of_numbers,
    joined_dtype,
)
from yogadl._core.forms import PLAIN, Forms
from yogadl._core.json_value import PLAIN_TYPES, is_plain
from yogadl._core.spec import (
    JSON,
    MAX_DEPTH,
    DictNode,
    Leaf,
    NamedTupleNode,
    Node,
    SequenceNode,
    Spec,
    check_keys,
    is_array_like,
    leaf_at,
    names_of_namedtuple,
    refuse,
    remade,
)

# How many records decide the structure of all, where the first one does not; fewer if they are large.
SAMPLED_RECORDS: Final = 1024

Known = Callable[[str, Any], "Leaf | None"]


class Wanted:
    """The leaves and lists that are wanted, by the names of their fields.

    Args:
        declaration: A `Spec`, or a tree like the record's whose leaves are `Leaf`s or ``None``.
    """

    def __init__(self, declaration: Any) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.lists: set[str] = set()
        self.nodes: dict[str, Node] = {}  # of a `Spec`, which says all
        self._add("", declaration.tree if isinstance(declaration, Spec) else declaration)

    def _add(self, path: str, node: Any) -> None:
        if isinstance(node, Leaf):
            self.leaves[path] = node
            return
        if isinstance(node, SequenceNode) and node.kind == "list":
            self.lists.add(path)
        if isinstance(node, DictNode | SequenceNode | NamedTupleNode):
            self.nodes[path] = node
            items: Any = zip(node.keys, node.children, strict=True)
        elif isinstance(node, Mapping):
            items = node.items()
        else:
            items = enumerate(node if isinstance(node, list | tuple) else ())
        for key, child in items:
            self._add(_below(path, key), child)


def infer(
    records: Sequence[Any],
    forms: Forms = PLAIN,
    numbers: Sequence[int] | None = None,
    *,
    lists_vary: bool = False,
    known: Known = lambda path, value: None,
) -> Spec:
    """Return the structure of records, which the first of them decide.

    A list below the record is an array if its items are numbers, strings or equally shaped lists, and a json
    value if they are anything else that is plain; a list of arrays or of objects is structure, as a tuple is.
    A record of another structure changes nothing: it is refused when it is stored.

    Args:
        records: The first records, one at least.
        forms: The caller's statements about their values.
        numbers: Their numbers, for errors; by default they are counted from 0.
        lists_vary: Whether lists may have any length, also if those in the records have one.
        known: Given a field's name and a value, returns the leaf that the value is known to have.

    Raises:
        UnsupportedDataError: if a value can't be stored; the error names the field and the record.
    """
    wanted = Wanted(forms.spec if forms.like is None else forms.like)
    finder = _Finder(forms, wanted, known, lists_vary=lists_vary)
    numbers = range(len(records)) if numbers is None else numbers
    spec = Spec(finder.node(list(records), numbers, "", 0))
    if not spec.fields:
        problem = f"is {records[0]!r:.60}, which has no fields; give every record at least one"
        raise refuse("", numbers[0], problem)
    forms.check_json(spec)
    return declare(spec, forms.spec)[0] if forms.like is None and forms.spec is not None else spec


def _below(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


class _Finder:
    """Finds the node at each place of a record from the values that the sample has there."""

    def __init__(self, forms: Forms, wanted: Wanted, known: Known, *, lists_vary: bool) -> None:
        self._forms, self._wanted, self._known, self._lists_vary = forms, wanted, known, lists_vary
        # Whether the values belong to others of one build, which have decided.
        self._is_like_others = isinstance(forms.like, Spec) and not forms.continues

    def node(self, values: list[Any], records: Sequence[int], path: str, depth: int) -> Node:
        """Return the node at a place.

        Args:
            values: The values there, one at least.
            records: The numbers of their records.
            path: The place, as the name of a field.
            depth: How many nodes are above it.
        """
        first, leaf = values[0], self._wanted.leaves.get(path)
        known = self._known(path, first)
        if leaf is None and known is not None:
            return known
        if depth > MAX_DEPTH:
            raise refuse(
                path,
                records[0],
                f"is nested more than {MAX_DEPTH} deep; make lists of numbers arrays, or the field a json "
                f"value, json=({path.partition('/')[0]!r},)",
            )
        if (path and path in self._forms.json) or (leaf is not None and leaf.dtype == JSON):
            return Leaf(JSON)
        present = [value for value in values if value is not None]
        if depth and self._is_decided(values, path):
            return leaf or self._wanted.nodes[path]
        if depth and _is_tree(values, present):
            return Leaf(JSON)
        if isinstance(first, dict):
            return self._dict(values, records, path, depth)
        is_node = isinstance(first, list) and (not depth or path in self._wanted.lists)
        if is_node or isinstance(first, tuple):
            return self._sequence(values, records, path, depth)
        if present and isinstance(present[0], list):
            return self._list(values, present, records, path, depth, leaf)
        return self._leaf(values, present, records, path, leaf)

    def _is_decided(self, values: list[Any], path: str) -> bool:
        """Return whether records before decide what is here: a tree that does not fit is refused later."""
        kinds = set(map(type, values))
        if not isinstance(self._forms.like, Spec) or not kinds <= PLAIN_TYPES:
            return False
        node = self._wanted.nodes.get(path)
        if isinstance(node, DictNode) and kinds == {dict}:
            return any(value.keys() != set(node.keys) for value in values)
        return bool(kinds & {dict, type(None)}) and (node is not None or path in self._wanted.leaves)

    def _dict(self, values: list[Any], records: Sequence[int], path: str, depth: int) -> Node:
        first = values[0]
        check_keys(first, path, records[0])
        node, keys = self._wanted.nodes.get(path), tuple(first)
        if isinstance(node, DictNode) and set(node.keys) == first.keys():
            keys = node.keys  # in their order
        alike = [
            (value, record)
            for value, record in zip(values, records, strict=True)
            if isinstance(value, dict) and value.keys() == first.keys()
        ]
        numbers = [record for _, record in alike]
        children = [
            self.node([value[key] for value, _ in alike], numbers, _below(path, key), depth + 1)
            for key in keys
        ]
        return DictNode(keys, tuple(children))

    def _sequence(self, values: list[Any], records: Sequence[int], path: str, depth: int) -> Node:
        first = values[0]
        names = names_of_namedtuple(first)
        alike = [
            (value, record)
            for value, record in zip(values, records, strict=True)
            if isinstance(value, list | tuple) and len(value) == len(first)
        ]
        numbers = [record for _, record in alike]
        children = tuple(
            self.node(
                [value[number] for value, _ in alike],
                numbers,
                _below(path, number if names is None else names[number]),
                depth + 1,
            )
            for number in range(len(first))
        )
        if names is not None:
            return NamedTupleNode(type(first).__name__, tuple(names), children)
        return SequenceNode("list" if isinstance(first, list) else "tuple", children)

    def _list(
        self,
        values: list[Any],
        present: list[Any],
        records: Sequence[int],
        path: str,
        depth: int,
        wanted: Leaf | None,
    ) -> Node:
        """Return the node of lists below the record."""
        for place, value in enumerate(values):
            if value is not None and not isinstance(value, list) and not is_plain(value):
                problem = f"is a {type(value).__name__} where other records have lists"
                is_array = isinstance(value, np.generic | np.ndarray)
                raise refuse(path, records[place], f"{problem}: write its tolist()" if is_array else problem)
        contents = [content_of(value) for value in present if isinstance(value, list)]
        found = _array_of_all([content for content in contents if content != EMPTY_LIST], len(contents))
        if None in contents or (found is None and not all(map(is_plain, present))):
            # Of arrays or objects; any other value that is not plain is refused by its path.
            if None in contents or len(set(map(len, present))) == 1:
                return self._sequence(present, records, path, depth)
            return Leaf(JSON)
        if wanted is not None:
            return wanted
        if found is None or len(present) < len(values):
            return Leaf(JSON)
        shape = (None,) * len(found.shape or ()) if self._lists_vary else found.shape
        return Leaf(found.dtype, shape)

    def _leaf(
        self, values: list[Any], present: list[Any], records: Sequence[int], path: str, wanted: Leaf | None
    ) -> Leaf:
        allow_pickle = self._forms.allow_pickle
        if len(present) < len(values) and not (allow_pickle and values[0] is None):
            number = next(place for place, value in enumerate(values) if value is None)
            raise refuse(path, records[number], none_problem(path, _kind_of(present)))
        kinds = set(map(type, values))
        if kinds <= PYTHON_NUMBERS:
            has_all = wanted is not None and wanted.numpy_dtype.kind in ("iuf" if kinds == {int} else "f")
            if wanted is not None and self._is_like_others:
                return Leaf(wanted.dtype)  # the one that does not fit is refused by its number
            return Leaf(wanted.dtype if wanted and has_all else dtype_of_numbers(kinds, values))
        return leaf_at(path, records[0], values[0], allow_pickle)


def _is_tree(values: list[Any], present: list[Any]) -> bool:
    """Return whether a field holds trees: lists or dicts beside other values, or dicts of other keys."""
    kinds = set(map(type, values))
    if not kinds <= PLAIN_TYPES or not kinds & {dict, list}:
        return False
    if len(kinds) > 1:
        return True
    return kinds == {dict} and any(value.keys() != present[0].keys() for value in present)


def _kind_of(present: list[Any]) -> str:
    if not present:
        return "..."
    fills = {int: "-1", float: 'float("nan")', bool: "False", str: '"empty"', bytes: '"empty"'}
    return fills.get(type(present[0]), "...")


def infer_column(values: list[Any], forms: Forms, path: str) -> Leaf:
    """Return the leaf of a column of values, as `infer` finds it; dicts are json values.

    Raises:
        UnsupportedDataError: if a value can't be stored; the error names the field and the record.
    """
    finder = _Finder(forms, Wanted(forms.like), lambda path, value: None, lists_vary=False)
    found = finder.node(values, range(len(values)), path, 1)
    if isinstance(found, Leaf):
        return found
    return Leaf(JSON) if isinstance(values[0], dict) else leaf_at(path, 0, values[0], forms.allow_pickle)


def holds_trees(values: list[Any], path: str) -> bool:
    """Return whether plain lists and dicts are json values, or have some, as `infer` finds them."""
    kinds = set(map(type, values))
    if not kinds <= PLAIN_TYPES or not kinds & {dict, list}:
        return False
    finder = _Finder(Forms(), Wanted(None), lambda path, value: None, lists_vary=False)
    found = Spec(finder.node(values, range(len(values)), path, 1))
    return any(field.leaf.dtype == JSON for field in found.fields)


def is_open(value: Any, *, scalars_decide: bool, depth: int = 0) -> bool:
    """Return whether later records may show another structure: of lists, dicts, missing values, scalars."""
    kind = type(value)
    if (kind is dict and not depth) or isinstance(value, tuple) or (kind is list and not depth):
        items = value.values() if kind is dict else value
        return any(is_open(item, scalars_decide=scalars_decide, depth=depth + 1) for item in items)
    return value is None or kind in (list, dict) or (scalars_decide and kind in (bool, int, float, str))


def snapshot(value: Any, copy_object: Callable[[Any], Any]) -> Any:
    """Return a copy of a record that no other code can change.

    Args:
        value: The record.
        copy_object: Copies what has no stored form.
    """
    kind = type(value)
    if kind is dict:
        return {key: snapshot(item, copy_object) for key, item in value.items()}
    if kind is list:
        if set(map(type, value)) <= IMMUTABLE_TYPES:
            return value.copy()
        return [snapshot(item, copy_object) for item in value]
    if isinstance(value, tuple):
        return remade(value, [snapshot(item, copy_object) for item in value])
    if kind in IMMUTABLE_TYPES or isinstance(value, bytearray | memoryview) or is_array_like(value):
        return copy_if_mutable(value)
    return copy_object(value)


def size_of_record(value: Any, depth: int = 0) -> int:
    """Return the approximate size of a record in bytes, without what is too deep to be stored."""
    if isinstance(value, dict | list | tuple):
        items = value.values() if isinstance(value, dict) else value
        if set(map(type, items)) <= PYTHON_NUMBERS:
            return 8 * len(value)
        if depth > MAX_DEPTH:
            return 0
        return sum(size_of_record(item, depth + 1) for item in items)
    size = getattr(value, "nbytes", None)
    return size if type(size) is int else len(value) if isinstance(value, str | bytes) else 8


def _array_of_all(contents: list[Content], lists: int) -> Leaf | None:
    """Return the leaf of lists that hold something, or ``None`` if they are json values."""
    dtype = joined_dtype({content[0] for content in contents if content is not None and content[0]})
    shapes = {content[1] for content in contents if content is not None}
    if not dtype or None in shapes or len({len(shape) for shape in shapes if shape is not None}) != 1:
        return None
    sizes = zip(*[shape for shape in shapes if shape is not None], strict=True)
    shape = tuple(size[0] if len(set(size)) == 1 else None for size in sizes)
    return Leaf(dtype, shape if len(contents) == lists else (None, *shape[1:]))
