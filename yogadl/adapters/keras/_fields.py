"""Map the fields of a record to Keras's x, y and sample weight."""

from collections.abc import Callable
from functools import partial
from typing import Any

from yogadl._core.leaf import Leaf
from yogadl._core.spec import DictNode, Node, SequenceNode, Spec
from yogadl.errors import ConfigurationError, UnsupportedDataError

# A function of a batch; or Keras's structure of inputs, with keys of the record in the place of arrays.
Fields = Any
_LARGEST_TUPLE = 3
_TUPLES = "Keras takes (x,), (x, y) or (x, y, sample_weight)"


def arranger(spec: Spec, fields: Fields, padding_field: str | None) -> Callable[[Any], Any] | None:
    """Return the function that makes Keras's batch of a batch of records; None if Keras takes it as it is.

    Batches have `padding_field` in addition to the fields of the spec.
    """
    tree = spec.tree
    if callable(fields):
        function: Callable[[Any], Any] = fields
        return function
    if fields is None:
        if isinstance(tree, SequenceNode) and len(tree.children) > _LARGEST_TUPLE:
            raise ConfigurationError(
                f"the record has {len(tree.children)} items, and {_TUPLES}: choose, by fields=(0, 2) say"
            )
        _require_arrays(tree, "")
        return None
    if not isinstance(fields, tuple | list):
        fields = (fields,)
    if not 1 <= len(fields) <= _LARGEST_TUPLE:
        raise ConfigurationError(f"fields has {len(fields)} items, and {_TUPLES}")
    return partial(_picked, _places(fields, tree, padding_field))


def _picked(places: Any, batch: Any) -> Any:
    """Return the arrays at these places of a batch."""
    if isinstance(places, dict):
        return {key: _picked(place, batch) for key, place in places.items()}
    if isinstance(places, tuple):
        return tuple(_picked(place, batch) for place in places)
    return batch[places]


def _places(fields: Fields, tree: Node, padding_field: str | None) -> Any:
    """Return `fields` with each key replaced by its place in a batch: a dict's key, or a position."""
    if isinstance(fields, dict):
        return {key: _places(item, tree, padding_field) for key, item in fields.items()}
    if isinstance(fields, tuple | list):
        return tuple(_places(item, tree, padding_field) for item in fields)
    if not isinstance(fields, str | int) or isinstance(fields, bool):
        raise ConfigurationError(
            f"fields has {fields!r}: give a key of the record, a tuple or dict of keys, or a function"
        )
    if isinstance(tree, Leaf):
        raise ConfigurationError("the record is a single value: it has no fields to choose from")
    if fields == padding_field:
        return padding_field
    keys = list(tree.keys)
    if fields not in keys:
        raise ConfigurationError(f"fields has {fields!r}, which the record has not; it has {keys}")
    position = keys.index(fields)
    _require_arrays(tree.children[position], str(fields))
    return fields if isinstance(tree, DictNode) else position


def _require_arrays(node: Node, path: str) -> None:
    """Refuse fields whose batches are lists, since Keras would take a list for several inputs."""
    for field in Spec(node).fields:
        if not field.leaf.is_fixed:
            name = "/".join(part for part in (path, field.name) if part)
            named = f"field {name!r}" if name else "the record"
            raise UnsupportedDataError(
                f"{named} varies in length, or is text, so a batch of it is a list, and Keras takes arrays: "
                "leave it out by fields=, or make it an array by a function, say "
                "fields=lambda batch: (pad(batch['text']), batch['label'])"
            )
