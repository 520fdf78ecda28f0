"""Take a record's tree apart into components for tf.data, and put elements of them together."""

from collections.abc import Iterator
from typing import Any

from yogadl._leaf import BYTES, STR, Leaf
from yogadl._spec import DictNode, NamedTupleNode, Node, Spec
from yogadl.adapters.tensorflow._parts import (
    FixedPart,
    PaddingPart,
    Part,
    RaggedPart,
    RowsPart,
    StackedPart,
    VaryingPart,
)
from yogadl.adapters.tensorflow._specs import DTYPES, TypeSpec, is_ragged
from yogadl.errors import UnsupportedDataError


def assembled(node: Node, parts: Iterator[Any]) -> Any:
    """Put one thing a part, in order, into the record's tree; a list of the record becomes a tuple."""
    if isinstance(node, Leaf) or is_ragged(node):
        return next(parts)
    built = [assembled(child, parts) for child in node.children]
    return tuple(built) if node.kind == "list" else node.build(built)


def flat_specs(node: Node, spec: TypeSpec) -> list[TypeSpec]:
    """Return the specs of the parts, in order."""
    if isinstance(node, Leaf) or is_ragged(node):
        return [spec]
    items = [spec[key] for key in node.keys] if isinstance(node, DictNode) else list(spec)
    return [
        found for child, item in zip(node.children, items, strict=True) for found in flat_specs(child, item)
    ]


def parts_of(spec: Spec, padding_field: str | None, *, is_batched: bool) -> tuple[list[Part], Node]:
    """Return what a record consists of for tf.data, and the tree that it is put into."""
    parts: list[Part] = []
    numbers = iter(range(len(spec.fields)))

    def visit(node: Node, path: str) -> None:
        if isinstance(node, Leaf):
            parts.append(_part_of(path, node, next(numbers), is_batched))
        elif is_ragged(node):
            assert isinstance(node, NamedTupleNode)
            parts.append(RaggedPart(path, node, [next(numbers) for _ in node.children], is_batched))
        else:
            for key, child in zip(node.keys, node.children, strict=True):
                visit(child, f"{path}/{key}" if path else str(key))

    visit(spec.tree, "")
    if padding_field is None:
        return parts, spec.tree
    assert isinstance(spec.tree, DictNode)
    parts.append(PaddingPart(padding_field))
    return parts, DictNode((*spec.tree.keys, padding_field), (*spec.tree.children, Leaf("bool")))


def _part_of(path: str, leaf: Leaf, number: int, is_batched: bool) -> Part:
    if leaf.dtype not in (BYTES, STR) and leaf.dtype not in DTYPES:
        mend = (
            "view it as int64 before it is cached"
            if leaf.dtype[:4] in ("date", "time")
            else "choose the others by ref.fields(...)"
        )
        raise UnsupportedDataError(
            f"field {path!r} has dtype {leaf.dtype}, which tf.data has no tensors for: {mend}"
        )
    is_empty = leaf.shape is not None and 0 in leaf.shape and not is_batched  # at which unbatch crashes
    if leaf.shape is not None and None not in leaf.shape and not is_empty:
        return FixedPart(path, leaf, number)
    if not is_batched:
        return VaryingPart(path, leaf, number)
    if leaf.shape is None:
        return StackedPart(path, leaf, number)
    return RowsPart(path, leaf, number)
