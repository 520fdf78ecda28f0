"""Trees of dicts, lists, tuples and namedtuples: the records and batches of frameworks."""

from collections.abc import Callable
from typing import Any, Final

from yogadl._core.leaf import Leaf
from yogadl._core.spec import DictNode, Spec

RECORD_COLUMN: Final = "record"  # the name of the column in tables whose records are single values

Path = tuple[object, ...]  # the keys and positions from the root to a node


def map_leaves(function: Callable[[Any, Path], Any], tree: Any, path: Path = ()) -> Any:
    """Return the tree with `function(leaf, path)` in the place of each leaf."""
    if isinstance(tree, dict):
        return {key: map_leaves(function, item, (*path, key)) for key, item in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        items = zip(tree._fields, tree, strict=True)
        return type(tree)(*(map_leaves(function, item, (*path, key)) for key, item in items))
    if isinstance(tree, list | tuple):
        return type(tree)(map_leaves(function, item, (*path, key)) for key, item in enumerate(tree))
    return function(tree, path)


def with_padding(spec: Spec, padding_field: str | None) -> Spec:
    """Return the structure of a batch: the record's, with a last field that marks padding."""
    if padding_field is None:
        return spec
    assert isinstance(spec.tree, DictNode)
    return Spec(DictNode((*spec.tree.keys, padding_field), (*spec.tree.children, Leaf("bool"))))
