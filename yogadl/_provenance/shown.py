"""Show values to users, each in one line that is the same in every process."""

import gc
import hashlib
import itertools
import os
import re
from collections import deque
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any, Final

import numpy as np

from yogadl._provenance.values import CHEAP_BYTES, CONTAINERS, LOOKED_AT, array_sha256, is_plain

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_SHOWN: Final = 120
# Matches whole words, so that "tokenizer" is no secret.
_SECRET: Final = re.compile(
    r"(?:^|[_.])(?:(?:api|access|private|secret|auth)_?key|token|secret|passw(?:or)?d|passphrase|credential)s?(?:$|[_.])",
    re.IGNORECASE,
)
_UNORDERED: Final[tuple[Any, ...]] = (set.__repr__, frozenset.__repr__)
_CODE: Final = (type, ModuleType, FunctionType, CodeType, FrameType, TracebackType)
_HELD_LOOKED_AT: Final = 10_000  # the most objects that are searched for sets shown in a `repr`


def shown_value(name: str, value: Any) -> str:
    """Return a value as readable text in one line; a value whose name suggests a secret is hidden."""
    if _SECRET.search(name) and isinstance(value, str | bytes):
        return "(not shown)"
    if type(value) in CONTAINERS and len(value) > LOOKED_AT:
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest = "" if value.nbytes > CHEAP_BYTES else f" {array_sha256(value)[:16]}"
        return f"array {value.dtype}{list(value.shape)}{digest}"
    try:
        text = _text_of(value)
    except RecursionError:  # the value contains itself, or is nested too deeply
        try:
            text = _repr_of(value)
        except RecursionError:
            text = f"deep {type(value).__name__}"
    return shortened(_ADDRESS.sub("", text))


def _text_of(value: Any) -> str:
    """Return a value's `repr` with the items of each set in order; their order varies by process."""
    if isinstance(value, type(os.environ)):
        return "environ"
    if isinstance(value, set | frozenset):
        return repr(sorted(map(_text_of, value)))
    if type(value) is dict:
        return f"{{{', '.join(f'{_text_of(key)}: {_text_of(item)}' for key, item in value.items())}}}"
    if type(value) is list:
        return f"[{', '.join(map(_text_of, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_text_of, value))}{',' * (len(value) == 1)})"
    return _repr_of(value)


def _repr_of(value: Any) -> str:
    """Return an object's own `repr`, in which the items of sets inside the object are in order, too."""
    text = repr(value)
    if "{" not in text:
        return text
    in_order: dict[str, str] = {}
    for held in itertools.islice(_held_by(value), _HELD_LOOKED_AT + len(text)):
        if issubclass(type(held), type(os.environ)):  # isinstance would resolve a weak proxy
            in_order[repr(held)] = "environ"
        # A set longer than the text is not shown in it. A set with a `repr` of its own may have a meaningful
        # order.
        elif type(held).__repr__ in _UNORDERED and 1 < len(held) < len(text):
            items = f"{{{', '.join(sorted(map(_text_of, held)))}}}"
            in_order[repr(held)] = items if type(held) is set else f"{type(held).__name__}({items})"
    # Marks are inserted first, since an inserted text may look like another set.
    marks = {}
    for number, shown in enumerate(sorted(in_order, key=len, reverse=True)):  # outer ones first
        marks[f"\0{number}\0"] = in_order[shown]
        text = text.replace(shown, f"\0{number}\0")
    return re.sub("\0[0-9]+\0", lambda mark: marks.get(mark[0], mark[0]), text)


def _held_by(value: Any) -> Iterator[Any]:
    """Yield a value and all objects inside, the nearest first, without code."""
    seen, waiting = {id(value): value}, deque([value])
    while waiting:
        one = waiting.popleft()
        yield one
        is_array = issubclass(type(one), np.ndarray | np.generic)  # gc does not report an array's objects
        for held in [one.tolist()] if is_array and one.dtype.hasobject else gc.get_referents(one):
            if id(held) not in seen and not issubclass(type(held), _CODE):
                seen[id(held)] = held
                waiting.append(held)


def shown_object(value: Any, form: str) -> str:
    """Return an object with its plain attributes, or else its form, in one line."""
    state = getattr(value, "__dict__", None)
    has_form = isinstance(value, type | FunctionType | ModuleType | type(os.environ))
    if has_form or not isinstance(state, dict) or not state:
        return form
    shown = (f"{name}={shown_value(name, item)}" for name, item in sorted(state.items()) if is_plain(item))
    return shortened(f"{type(value).__qualname__}({', '.join(shown)})")


def shortened(text: str) -> str:
    """Return a text short enough to show; a cut text ends with a hash of the whole."""
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}... {hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"
