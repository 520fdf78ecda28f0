"""Find the differences between two models of Keras, from the form in which Keras saves them."""

import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

_MOST: Final = 5  # the number of differences to name
_NUMBER: Final = re.compile(r"_\d+$")
# Settings of how a model runs, and values that Keras derives from others, are no differences of the model.
_IGNORED: Final = {"jit_compile", "run_eagerly", "build_config", "shared_object_id"}


def changes(saved: Any, made: Any) -> list[str]:
    """Return differences between two models, as "layers[1].units: 8 saved, 16 now"; at most `_MOST` of them.

    Compared are the layers and the arguments of `compile`, except for a learning rate that is a number, which
    callbacks change, and for the numbers that Keras appends to names.

    Args:
        saved: The saved model, in the form of `keras.saving.serialize_keras_object`.
        made: The newly made model, in the same form.
    """
    saved, made = (_without_numbers(tree, set(_names(tree))) for tree in (saved, made))
    return list(itertools.islice(_differences(saved, made, ""), _MOST))


def _names(tree: Any) -> Iterator[str]:
    """Yield the names of layers and of all other named objects."""
    if isinstance(tree, dict):
        if isinstance(tree.get("name"), str):
            yield tree["name"]
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return
    for inner in tree:
        yield from _names(inner)


def _without_numbers(tree: Any, names: set[str]) -> Any:
    """Return the tree with the names that Keras gives first: the second "dense" of a process is "dense_1"."""
    if isinstance(tree, dict):
        if tree.get("class_name") == "__tuple__":
            return _without_numbers(tree["items"], names)
        if tree.get("class_name") == "__lambda__":
            return "a lambda"  # the code of a lambda contains line numbers
        return {key: _without_numbers(inner, names) for key, inner in tree.items() if key not in _IGNORED}
    if isinstance(tree, list | tuple):
        return [_without_numbers(inner, names) for inner in tree]
    if isinstance(tree, str) and tree in names:
        return _NUMBER.sub("", tree)
    return tree


def _differences(saved: Any, made: Any, where: str) -> Iterator[str]:
    if isinstance(saved, dict) and isinstance(made, dict):
        if saved.get("class_name") != made.get("class_name"):
            yield _told(where, saved, made)
            return
        for key in dict.fromkeys([*saved, *made]):
            inside = where if key == "config" else f"{where}.{key}" if where else key
            ours, theirs = saved.get(key), made.get(key)
            if not (key == "learning_rate" and isinstance(ours, float) and isinstance(theirs, float)):
                yield from _differences(ours, theirs, inside)
    elif isinstance(saved, list) and isinstance(made, list) and len(saved) == len(made):
        for number, (ours, theirs) in enumerate(zip(saved, made, strict=True)):
            yield from _differences(ours, theirs, f"{where}[{number}]")
    elif saved != made:
        yield _told(where, saved, made)


def _told(where: str, saved: Any, made: Any) -> str:
    return f"{where or 'the model'}: {_shown(saved)} saved, {_shown(made)} now"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("class_name"))
    if isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        return f"{len(value)} of them"
    return repr(value)
