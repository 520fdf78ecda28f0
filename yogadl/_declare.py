"""Let a caller declare the shapes of fields that vary, which a sample of the records may not show."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from yogadl._columns import widen
from yogadl._leaf import Leaf
from yogadl._spec import DictNode, NamedTupleNode, Node, SequenceNode, Spec
from yogadl.errors import ConfigurationError


def declare(sampled: Spec, given: Any) -> tuple[Spec, frozenset[int]]:
    """Return the spec with the caller's declarations, and the numbers of the fields that they cover.

    Args:
        sampled: The spec of the records in the sample.
        given: A `Spec`, or a tree like the record's whose leaves are `Leaf`s. A dict names keys of a dict,
            attributes of a namedtuple or positions of a list or tuple, and may leave some out. A field that
            is left out, or declared as ``None``, stays as it was sampled.

    Raises:
        ConfigurationError: if `given` is anything else, or the sampled records don't fit it.
    """
    declared = list(_leaves(sampled.tree, given.tree if isinstance(given, Spec) else given, ""))
    leaves = [
        field.leaf if leaf is None else _checked(field.name, field.leaf, leaf)
        for field, leaf in zip(sampled.fields, declared, strict=True)
    ]
    numbers = frozenset(number for number, leaf in enumerate(declared) if leaf is not None)
    return sampled.with_leaves(leaves), numbers


def written(spec: Spec, numbers: Collection[int]) -> str:
    """Return the Python text that declares these fields of a spec, and no others."""
    fields = iter(range(len(spec.fields)))

    def text(node: Node) -> str:
        if isinstance(node, Leaf):
            return _leaf_text(node) if next(fields) in numbers else ""
        parts = [(key, text(child)) for key, child in zip(node.keys, node.children, strict=True)]
        inner = ", ".join(f"{key!r}: {part}" for key, part in parts if part)
        return f"{{{inner}}}" if inner else ""

    return text(spec.tree)


def _leaf_text(leaf: Leaf) -> str:
    shape = "" if leaf.shape == () else f", {leaf.shape}"
    return f'yogadl.Leaf("{leaf.dtype}"{shape})'


def _leaves(node: Node, given: Any, path: str) -> Iterator[Leaf | None]:
    """Yield the declared leaf of each field below `node`, in order; None for a field without one."""
    if isinstance(node, Leaf):
        if not isinstance(given, Leaf | None):
            raise ConfigurationError(
                f'spec= must declare {_name(path)} with a leaf, such as yogadl.Leaf("float32", (None, 3)), '
                f"not with {given!r:.100}"
            )
        yield given
        return
    of_keys = _by_key(node, given, path)
    for key, child in zip(node.keys, node.children, strict=True):
        yield from _leaves(child, of_keys.get(key), f"{path}/{key}" if path else str(key))


def _by_key(node: DictNode | SequenceNode | NamedTupleNode, given: Any, path: str) -> Mapping[Any, Any]:
    """Return the declaration of each child, by its key."""
    if isinstance(given, DictNode | SequenceNode | NamedTupleNode):
        given = dict(zip(given.keys, given.children, strict=True))
    keys = list(node.keys)
    if given is None:
        return {}
    if isinstance(given, list | tuple) and not isinstance(node, DictNode) and len(given) == len(keys):
        return dict(zip(keys, given, strict=True))
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"spec= must declare {_name(path)} with a dict of some of its keys, which are {keys}, "
            f"not with {given!r:.100}"
        )
    unknown = [key for key in given if key not in keys]
    if unknown:
        raise ConfigurationError(f"spec= names {unknown[0]!r} in {_name(path)}, which has only {keys}")
    return given


def _checked(name: str, sampled: Leaf, declared: Leaf) -> Leaf:
    """Return the leaf with the declared shape; everything else stays as sampled."""
    if declared.dtype != sampled.dtype:
        raise ConfigurationError(
            f"spec= declares {_name(name)} as {declared.dtype}, but the records sampled have {sampled.dtype}"
        )
    wider = widen(declared, sampled.shape)
    if wider != declared:
        raise ConfigurationError(
            f"spec= declares {_name(name)} with the shape {declared.shape}, but the records sampled have "
            f"{sampled.shape}: declare {_leaf_text(wider)}"
        )
    return replace(sampled, shape=declared.shape)


def _name(path: str) -> str:
    return f"field {path!r}" if path else "the record"
