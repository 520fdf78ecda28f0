"""Describe the tree of a record, and convert between records, fields and batches."""

import keyword
import unicodedata
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from yogadl._core.frozen import frozen
from yogadl._core.leaf import Leaf, refuse
from yogadl.errors import CacheFormatError, ConfigurationError, UnsupportedDataError

MAX_FIELDS = 4096
MAX_DEPTH = 64
# The most characters of all fields' names together. A field's name repeats the keys of all nodes above it, so
# the names could take far more memory than the manifest.
_MAX_NAME_CHARACTERS = 2**24


@frozen
class DictNode:
    """A dict: its keys in order, and a node for each."""

    keys: tuple[str | int, ...]
    children: tuple["Node", ...]
    kind: ClassVar[str] = "dict"

    def build(self, parts: Iterable[Any]) -> Any:
        """Return the dict whose values are `parts`."""
        return dict(zip(self.keys, parts, strict=False))


@frozen
class SequenceNode:
    """A list or a tuple, a node for each item."""

    kind: str
    children: tuple["Node", ...]

    @property
    def keys(self) -> tuple[int, ...]:
        """The positions of the items."""
        return tuple(range(len(self.children)))

    def build(self, parts: Iterable[Any]) -> Any:
        """Return the list or tuple of `parts`."""
        return list(parts) if self.kind == "list" else tuple(parts)


@frozen
class NamedTupleNode:
    """A namedtuple: its name, the names of its items, and a node for each."""

    name: str
    keys: tuple[str, ...]
    children: tuple["Node", ...]
    kind: ClassVar[str] = "namedtuple"

    def build(self, parts: Iterable[Any]) -> Any:
        """Return the namedtuple of `parts`."""
        return named_tuple(self.name, self.keys)._make(parts)


Node = Leaf | DictNode | SequenceNode | NamedTupleNode
Keys = tuple[Any, ...]  # keys of dicts, positions in other nodes, from the root down


@frozen
class Field:
    """One leaf with its name: the keys from the root, joined by slashes."""

    name: str
    leaf: Leaf


@lru_cache(maxsize=256)  # keyed by name and fields alone: every unpickling process makes the same class
def named_tuple(name: str, keys: tuple[str, ...]) -> Any:  # a class made at run time
    """Return a namedtuple class with this name and these fields, whose instances pickle."""
    base = namedtuple(name, keys, rename=True)  # type: ignore[misc]

    def reduce(self: Any) -> Any:
        return rebuild_named_tuple, (name, keys, tuple(self))

    return type(name, (base,), {"__slots__": (), "__reduce__": reduce, "__module__": __name__})


def rebuild_named_tuple(name: str, keys: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Unpickle a namedtuple whose class was made at run time."""
    return named_tuple(name, keys)._make(values)


# Pickles of users and published caches name this module, so the name must never change.
rebuild_named_tuple.__module__ = "yogadl._spec"


@frozen
class Spec:
    """The structure of a record with dtype and shape per leaf. Immutable and picklable."""

    tree: Node

    def __post_init__(self) -> None:
        if len(self.fields) > MAX_FIELDS:
            raise UnsupportedDataError(
                f"a record has {len(self.fields)} fields, more than {MAX_FIELDS}: "
                "make lists of numbers arrays (np.asarray), since every item of a list is a field"
            )

    def __getstate__(self) -> Any:
        return {"tree": self.tree}  # the generated functions don't pickle, and are generated again

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The leaves in tree order, each with its name."""
        found: list[Field] = []
        length = 0

        def visit(node: Node, path: str) -> None:
            nonlocal length
            length += len(path)
            if length > _MAX_NAME_CHARACTERS:
                raise UnsupportedDataError(
                    f"the names of a record's fields have more than {_MAX_NAME_CHARACTERS} characters "
                    "together: shorten the keys"
                )
            if isinstance(node, Leaf):
                found.append(Field(path, node))
                return
            for key, child in zip(node.keys, node.children, strict=True):
                visit(child, f"{path}/{key}" if path else str(key))

        visit(self.tree, "")
        return tuple(found)

    def keys(self) -> list[str | int] | None:
        """Return the keys of a record that is a dict, else None."""
        return list(self.tree.keys) if isinstance(self.tree, DictNode) else None

    @cached_property
    def assemble(self) -> Callable[[Sequence[Any]], Any]:
        """A function that puts one value per field, in order, into the record's tree."""
        if isinstance(self.tree, Leaf):
            return _first
        if all(isinstance(child, Leaf) for child in self.tree.children):
            return self.tree.build

        def build(node: Node, parts: Any) -> Any:
            if isinstance(node, Leaf):
                return next(parts)
            return node.build([build(child, parts) for child in node.children])

        return lambda parts: build(self.tree, iter(parts))

    def records(self, columns: Sequence[Any], count: int) -> list[Any]:
        """Split columns of `count` rows into records."""
        found: list[Any] = self._loops[0](count, *columns)
        return found

    def call(
        self,
        function: Callable[[Any], Any],
        columns: Sequence[Any],
        count: int,
        keep: Callable[[Any], object],
    ) -> None:
        """Call a function with each record in columns of `count` rows, and pass its results to `keep`.

        The list that `records` would return is not made, which saves time and memory.
        """
        self._loops[1](count, function, keep, *columns)

    @cached_property
    def _loops(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The loops of `records` and `call`, as code generated for this spec.

        For each record they take a third of the time of `assemble` (benchmarks/stages.py); generating takes
        0.3 ms.
        """
        names: dict[str, Any] = {}
        fields = [f"field{number}" for number in range(len(self.fields))]
        columns = [f"column{number}" for number in range(len(fields))]
        unused_fields = iter(fields)

        def constant(value: Any) -> str:
            # Keys and names may be any text, so the generated code contains none of them.
            name = f"constant{len(names)}"
            names[name] = value
            return name

        def expression_of(node: Node) -> str:
            """Return the code of an expression that makes this part of the record from its fields' values."""
            if isinstance(node, Leaf):
                return next(unused_fields)
            parts = [expression_of(child) for child in node.children]
            if isinstance(node, DictNode):
                pairs = zip(map(constant, node.keys), parts, strict=True)
                return f"{{{', '.join(f'{key}: {part}' for key, part in pairs)}}}"
            if node.kind == "list":
                return f"[{', '.join(parts)}]"
            items = f"({''.join(f'{part}, ' for part in parts)})"
            if isinstance(node, NamedTupleNode):
                return f"{constant(named_tuple(node.name, node.keys)._make)}({items})"
            return items

        record, arguments = expression_of(self.tree), "".join(f", {column}" for column in columns)
        loop = f"for {', '.join(fields)} in zip({', '.join(columns)}, strict=True)"
        if len(fields) <= 1:
            loop = "for field0 in column0" if fields else "for _ in range(count)"
        exec(
            f"def records(count{arguments}): return [{record} {loop}]\n"
            f"def call(count, function, keep{arguments}):\n {loop}: keep(function({record}))",
            names,
        )
        return names["records"], names["call"]

    def is_like(self, other: "Spec") -> bool:
        """Return whether another spec has the same structure and dtypes; shapes may differ."""
        ours, theirs = self.fields, other.fields
        if [field.leaf.dtype for field in ours] != [field.leaf.dtype for field in theirs]:
            return False
        return self.with_leaves(field.leaf for field in theirs) == other

    def with_leaves(self, leaves: Iterable[Leaf]) -> "Spec":
        """Return the same tree with other leaves, in order."""
        unused_leaves = iter(leaves)

        def rebuild(node: Node) -> Node:
            if isinstance(node, Leaf):
                return next(unused_leaves)
            return replace(node, children=tuple(map(rebuild, node.children)))

        return Spec(rebuild(self.tree))

    def project(self, names: Sequence[str | int]) -> tuple["Spec", tuple[int, ...]]:
        """Return the spec that keeps only the named top-level keys, and the numbers of their fields.

        Raises:
            ConfigurationError: if a name is not a key, or the record has no keys.
        """
        if isinstance(self.tree, Leaf):
            raise ConfigurationError("the record is a single value: it has no fields to choose from")
        keys = list(self.tree.keys)
        for name in names:
            if name not in keys:
                raise ConfigurationError(f"there is no field {name!r}; there are {keys}")
        if not names or len(set(names)) != len(names):
            raise ConfigurationError(f"choose at least one field, and each once: {list(names)}")
        positions = [keys.index(name) for name in names]
        starts = [0]
        for child in self.tree.children:
            starts.append(starts[-1] + len(Spec(child).fields))
        numbers = tuple(number for i in positions for number in range(starts[i], starts[i + 1]))
        return Spec(_select_children(self.tree, positions)), numbers

    def to_json(self) -> Any:
        """Return the tree as JSON."""
        return _node_to_json(self.tree)

    @staticmethod
    def from_json(document: Any) -> "Spec":
        """Return the spec that a document of `to_json` describes.

        Raises:
            CacheFormatError: if the document describes no spec.
        """
        return Spec(_node_from_json(document))


def _first(parts: Iterable[Any]) -> Any:
    return next(iter(parts))


def names_of_namedtuple(value: Any) -> tuple[str, ...] | None:
    """Return the names of a namedtuple's fields; None for any other value."""
    is_named = isinstance(value, tuple) and hasattr(value, "_fields")  # any class of the user's
    return tuple(value._fields) if is_named else None


def remade(value: Any, items: Iterable[Any]) -> Any:
    """Return a list or tuple of other items, of the same kind as a value."""
    if names_of_namedtuple(value) is not None:
        return value._make(items)
    return list(items) if isinstance(value, list) else tuple(items)


def node_of(
    tree: object, leaf: Callable[[Any, str, Keys], Node], number: int = 0, *, has_lists: bool = False
) -> Node:
    """Return the node of a tree of dicts, tuples and namedtuples, and, with `has_lists`, of lists.

    Args:
        tree: The tree, such as a record.
        leaf: Returns the node of any other value, given its path and the keys and positions that lead to it.
        number: The record's number, for errors.
        has_lists: Whether a list is a node, too; else `leaf` gets it.

    Raises:
        UnsupportedDataError: if the tree is nested too deeply, or a key is neither str nor int.
    """

    def visit(value: object, path: str, keys: Keys) -> Node:
        def child(key: object, subscript: object, item: object) -> Node:
            return visit(item, f"{path}/{key}" if path else str(key), (*keys, subscript))

        if len(keys) > MAX_DEPTH:
            raise refuse(path, number, f"is nested more than {MAX_DEPTH} deep; make lists of numbers arrays")
        if isinstance(value, dict):
            check_keys(value, path, number)
            return DictNode(tuple(value), tuple(child(key, key, item) for key, item in value.items()))
        names = names_of_namedtuple(value)
        if names is not None:
            items: Any = value
            children = tuple(map(child, names, range(len(names)), items))
            return NamedTupleNode(type(value).__name__, names, children)
        if isinstance(value, tuple) or (has_lists and isinstance(value, list)):
            kind = "list" if isinstance(value, list) else "tuple"
            return SequenceNode(kind, tuple(child(i, i, item) for i, item in enumerate(value)))
        return leaf(value, path, keys)

    return visit(tree, "", ())


def check_keys(keys: Iterable[Any], path: str, number: int) -> None:
    """Refuse keys of a dict that the manifest can't store.

    Raises:
        UnsupportedDataError: if a key is neither str nor int.
    """
    for key in keys:
        if type(key) not in (str, int):
            raise refuse(path, number, f"has the dict key {key!r}; keys are str or int")


def _select_children(node: DictNode | SequenceNode | NamedTupleNode, positions: Sequence[int]) -> Node:
    """Return a node with only the children at these positions."""
    selected = replace(node, children=tuple(node.children[i] for i in positions))
    if isinstance(selected, SequenceNode):
        return selected  # the keys of a sequence are positions
    keys: Any = tuple(node.keys[i] for i in positions)
    return replace(selected, keys=keys)


def _node_to_json(node: Node) -> dict[str, Any]:
    if isinstance(node, Leaf):
        return {"leaf": node.to_json()}
    children = [_node_to_json(child) for child in node.children]
    if isinstance(node, DictNode):
        return {"dict": children, "keys": list(node.keys)}
    if isinstance(node, NamedTupleNode):
        return {"namedtuple": children, "keys": list(node.keys), "name": node.name}
    return {node.kind: children}


def _node_from_json(document: Any, depth: int = 0) -> Node:
    if depth > MAX_DEPTH:
        raise CacheFormatError(f"the description of a record is nested more than {MAX_DEPTH} deep")
    if not isinstance(document, dict):
        raise CacheFormatError(f"not the description of a record: {document!r:.100}")
    if "leaf" in document:
        return Leaf.from_json(document["leaf"])
    for kind in ("dict", "list", "tuple", "namedtuple"):
        items = document.get(kind)
        if isinstance(items, list):
            children = tuple(_node_from_json(item, depth + 1) for item in items)
            if kind in ("list", "tuple"):
                return SequenceNode(kind, children)
            keys = document.get("keys")
            if not isinstance(keys, list) or len(keys) != len(children):
                raise CacheFormatError(f"the keys of a {kind} don't match its items: {document!r:.100}")
            if kind == "dict":
                if not all(type(key) in (str, int) for key in keys) or len(set(keys)) < len(keys):
                    raise CacheFormatError(f"not the keys of a dict: {document!r:.100}")
                return DictNode(tuple(keys), children)
            name = document.get("name")
            are_names = all(isinstance(key, str) and key.isidentifier() for key in [name, *keys])
            # Python treats names that differ only in Unicode form (a ligature, for example) as the same.
            if (
                not are_names
                or keyword.iskeyword(str(name))
                or len({unicodedata.normalize("NFKC", key) for key in keys}) < len(keys)
            ):
                raise CacheFormatError(f"not the names of a namedtuple: {document!r:.100}")
            return NamedTupleNode(str(name), tuple(keys), children)
    raise CacheFormatError(f"a record of an unknown kind: {document!r:.100}")
