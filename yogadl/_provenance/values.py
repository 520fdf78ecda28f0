"""Describe values so that equal content gives equal text, in any process, on any machine.

A value has two descriptions. Its form, made by `ValueForms`, is hashed: it is exact and not meant to be read.
Its shown text, made by `shown_value`, is one short line for users.
"""

import copyreg
import enum
import functools
import gc
import hashlib
import inspect
import itertools
import logging
import os
import pickle
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any, Final, NamedTuple

import numpy as np

from yogadl._core.protocols import DataRef, RandomAccess, Storage, views_of
from yogadl.errors import ConfigurationError

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_MOST_SHOWN_CHARACTERS: Final = 120
# Matches whole words, so that "tokenizer" is no secret.
_SECRET: Final = re.compile(
    r"(?:^|[_.])(?:(?:api|access|private|secret|auth)_?key|token|secret|passw(?:or)?d|passphrase|credential)s?(?:$|[_.])",
    re.IGNORECASE,
)
_UNORDERED_REPRS: Final[tuple[Any, ...]] = (set.__repr__, frozenset.__repr__)
_CODE_TYPES: Final = (type, ModuleType, FunctionType, CodeType, FrameType, TracebackType)
_MOST_EXAMINED_OBJECTS: Final = 10_000  # the most objects that are searched for sets shown in a `repr`


def shown_value(name: str, value: Any) -> str:
    """Return a value as readable text in one line; a value whose name suggests a secret is hidden."""
    if _SECRET.search(name) and isinstance(value, str | bytes):
        return "(not shown)"
    if type(value) in CONTAINERS and len(value) > MOST_EXAMINED_ITEMS:
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest = "" if value.nbytes > MOST_WARNING_BYTES else f" {array_sha256(value)[:16]}"
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
    for held in itertools.islice(_objects_in(value), _MOST_EXAMINED_OBJECTS + len(text)):
        if issubclass(type(held), type(os.environ)):  # isinstance would resolve a weak proxy
            in_order[repr(held)] = "environ"
        # A set longer than the text is not shown in it. A set with a `repr` of its own may have a meaningful
        # order.
        elif type(held).__repr__ in _UNORDERED_REPRS and 1 < len(held) < len(text):
            items = f"{{{', '.join(sorted(map(_text_of, held)))}}}"
            in_order[repr(held)] = items if type(held) is set else f"{type(held).__name__}({items})"
    # Marks replace the sets first, and texts replace the marks at the end: a text may look like another set.
    marks = {}
    for number, shown in enumerate(sorted(in_order, key=len, reverse=True)):  # outer ones first
        marks[f"\0{number}\0"] = in_order[shown]
        text = text.replace(shown, f"\0{number}\0")
    return re.sub("\0[0-9]+\0", lambda mark: marks.get(mark[0], mark[0]), text)


def _objects_in(value: Any) -> Iterator[Any]:
    """Yield a value and all objects inside of it, the nearest first, except code."""
    seen, waiting = {id(value): value}, deque([value])
    while waiting:
        outer = waiting.popleft()
        yield outer
        is_array = issubclass(type(outer), np.ndarray | np.generic)  # gc does not report an array's objects
        for held in [outer.tolist()] if is_array and outer.dtype.hasobject else gc.get_referents(outer):
            if id(held) not in seen and not issubclass(type(held), _CODE_TYPES):
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
    if len(text) <= _MOST_SHOWN_CHARACTERS:
        return text
    return (
        f"{text[:_MOST_SHOWN_CHARACTERS]}... {hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"
    )


HOOK: Final = "__yogadl_version__"

_SCALARS: Final = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
CONTAINERS: Final = (tuple, list, set, frozenset, dict)
# Larger arrays are hashed only if `ValueForms` is `thorough`, since hashing takes too long for a warning.
MOST_WARNING_BYTES: Final = 64 * 2**20
_MOST_CHEAP_ITEMS: Final = 100_000
CACHE_WRAPPER: Final = type(functools.lru_cache(len))
MOST_EXAMINED_ITEMS: Final = 1_000  # the most items of a container that are examined
_MOST_INLINE_CHARACTERS: Final = 200


class _KnownForm(NamedTuple):
    """A value whose form was computed before.

    Args:
        value: The object itself; while it is kept, no other object gets its id.
        form: Its form. If it refers to enclosing objects, it is valid only inside of the same objects.
        above: The ids of the enclosing objects, from the outermost that the form refers to down to the value;
            empty for most values.
        number: The value's number among those whose forms refer to enclosing objects.
    """

    value: Any
    form: str
    above: list[int]
    number: int


class ValueForms:
    """Gives values a form: a text that is equal if and only if the content is equal.

    Args:
        code_form: Returns the form of a function, class or module.
        is_library: Returns whether a class belongs to a library.
        thorough: Whether every value must be described exactly, as for a version. Otherwise values are
            described only if that is cheap, as for a warning; all other objects of one type have one form.
        strict: Whether a value that can't be described exactly is refused; otherwise its form is its type.
    """

    def __init__(
        self,
        code_form: Callable[[Any, str], str],
        is_library: Callable[[type], bool],
        *,
        thorough: bool,
        strict: bool,
    ) -> None:
        self._code_form = code_form
        self._is_library = is_library
        self._thorough = thorough
        self._strict = strict
        self._enclosing: list[int] = []  # ids of the objects that are being described, outermost first
        self._outermost = 0  # the position in `_enclosing` of the outermost object that this form refers to
        self._known: dict[int, _KnownForm] = {}
        self._numbered = 0  # the values whose forms refer to enclosing objects

    def form(self, value: Any, where: str) -> str:
        """Return the form of any value; `where` is its name in an error.

        Raises:
            ConfigurationError: if the value's content can't be described.
        """
        if type(value) in _SCALARS:
            return _short(f"{type(value).__name__} {value!a}")
        depth = len(self._enclosing)
        known = self._known.get(id(value))
        if known is not None and known.above:
            if known.above != self._enclosing[depth - len(known.above) :]:
                return f"number {known.number} of what its own content holds"
            self._outermost = min(self._outermost, depth - len(known.above))
        if known is not None:
            return known.form
        if id(value) in self._enclosing:
            self._outermost = min(self._outermost, self._enclosing.index(id(value)))
            return f"what is {depth - self._enclosing.index(id(value))} above"
        outermost, self._outermost = self._outermost, depth
        self._enclosing.append(id(value))
        try:
            form = _short(self._form(value, where))
        except RecursionError:
            if not self._thorough or not self._strict:
                return f"deep {type(value).__name__}"
            raise _refusal(where, value, "is nested too deeply") from None
        except Exception:  # from a user's __reduce__, for example
            if self._strict:
                raise
            form = self._type_form(value, where)
        finally:
            self._enclosing.pop()
            above = self._enclosing[self._outermost :] if self._outermost < depth else []
            self._outermost = min(outermost, self._outermost)
        self._numbered += bool(above)
        self._known[id(value)] = _KnownForm(value, form, above, self._numbered)
        return form

    def _form(self, value: Any, where: str) -> str:
        if _has_hook(value):
            return f"version {self.form(getattr(value, HOOK), f'{where}.{HOOK}')}"
        if isinstance(value, FunctionType | type | ModuleType):
            return self._code_form(value, where)
        for kinds, describe in self._kinds.items():
            if isinstance(value, kinds):
                return describe(self, value, where)
        if type(value) in CONTAINERS:
            return self._container(value, where)
        wrapped = inspect.getattr_static(value, "__wrapped__", None)
        if isinstance(wrapped, FunctionType) and self._is_library(type(value)):
            # The internal state of wrappers such as jax.jit does not affect their results; functools.cache
            # adds nothing at all.
            inner = self.form(wrapped, where)
            return (
                inner if isinstance(value, CACHE_WRAPPER) else f"{self._type_form(value, where)} of {inner}"
            )
        if not self._thorough:
            return self._type_form(value, where)
        if hasattr(type(value), "__dlpack__") and hasattr(type(value), "__array__"):
            return self._tensor(value, where)
        return self._object(value, where)

    def _type_form(self, value: Any, where: str) -> str:
        return f"object {self.form(type(value), where)}"

    def _forms(self, values: Iterable[Any], where: str) -> str:
        return f"[{', '.join(self.form(value, f'{where}[{i}]') for i, value in enumerate(values))}]"

    def _container(self, value: Any, where: str) -> str:  # a value of a type in CONTAINERS
        name = type(value).__name__
        if len(value) > _MOST_CHEAP_ITEMS and not (self._thorough and self._strict):
            is_hashed = self._thorough and is_plain(value)
            return f"{name} of {len(value)} {_pickled_sha256(value) if is_hashed else ''}"
        if isinstance(value, dict):
            # In order: the order of a dict's keys may become the order of a record's fields.
            return f"{name} {self._pairs(value, where)}"
        if isinstance(value, set | frozenset):
            items = sorted(value, key=_sort_key)
            return f"{name} {sorted(self.form(item, f'an item of {where}') for item in items)}"
        return f"{name} {self._forms(value, where)}"

    def _pairs(self, value: dict[Any, Any], where: str) -> str:
        pairs = (
            f"{self.form(key, f'a key of {where}')}: {self.form(item, f'{where}[{key!r:.40}]')}"
            for key, item in list(value.items())  # a copy, since another thread may add items
        )
        return f"{{{', '.join(pairs)}}}"

    def _array(self, value: Any, where: str) -> str:  # an array of any dtype
        if isinstance(value, np.ndarray) and type(value) not in (np.ndarray, np.memmap):
            # A subclass, such as a masked array.
            return self._object(value, where) if self._thorough else self._type_form(value, where)
        described = f"{'array' if value.ndim else 'scalar'} {_dtype_form(value.dtype)} {value.shape}"
        if value.dtype.hasobject:
            return f"{described} {self._forms(value.ravel().tolist(), where)}"
        if value.nbytes > MOST_WARNING_BYTES and not self._thorough:
            return described
        if value.nbytes > MOST_WARNING_BYTES and not self._strict and isinstance(value, np.memmap):
            return f"{described} {_file_form(value.filename)}"
        return f"{described} {array_sha256(value)}"

    def _tensor(self, value: Any, where: str) -> str:  # of torch, jax, TensorFlow, ...
        value = value.detach() if hasattr(value, "detach") else value
        try:
            array = np.asarray(value)
        except (TypeError, RuntimeError, ValueError) as error:
            raise _refusal(where, value, f"can't be read here ({error})") from error
        return f"tensor {self._array(array, where)}"

    def _data_ref(self, value: Any, where: str) -> str:
        fingerprint = getattr(value, "fingerprint", None)
        if not isinstance(fingerprint, str):
            return self._object(value, where) if self._thorough else self._type_form(value, where)
        records = getattr(value, "_records", None)
        views = list(views_of(records)) if isinstance(records, RandomAccess) else []
        is_weak = any(one.fingerprint.startswith("weak-") for one in (value, *views))
        if self._thorough and self._strict and is_weak:
            raise _refusal(
                where,
                value,
                "has only a fingerprint of a sample: pass fingerprint= to from_source, or submit it",
            )
        # The fingerprint covers the records, but not the results of functions, nor the choice of fields.
        forms = [f"records {fingerprint}"]
        for view in views:
            forms += [f"through {self.form(stage.function, where)}" for stage in view.stages]
            if len(view.parents) == 1 and view.spec != view.parents[0].spec:
                forms.append(f"{type(view).__name__} {view.spec.to_json()}")
        if hasattr(value, "_mixture"):
            forms.append(str(value._mixture))
        return " ".join(forms)

    def _method(self, value: Any, where: str) -> str:
        if isinstance(value.__self__, ModuleType | None):
            return f"builtin {value.__module__}.{value.__qualname__}"
        owner = self.form(value.__self__, f"the object of {where}")
        if isinstance(value, MethodType):
            return f"method {self.form(value.__func__, where)} of {owner}"
        return f"method {value.__name__} of {owner}"

    def _partial(self, value: Any, where: str) -> str:
        named = dict(sorted(value.keywords.items()))
        return (
            f"partial {self.form(value.func, f'{where}.func')} "
            f"{self._forms(value.args, f'{where}.args')} {self._pairs(named, f'{where}.keywords')}"
        )

    def _object(self, value: Any, where: str) -> str:
        """Describe an object by its class and its state, as pickle reduces it."""
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            reduced: Any = reduce(value) if reduce else value.__reduce_ex__(4)
        except (TypeError, ValueError, AttributeError, RuntimeError, pickle.PicklingError) as error:
            raise _refusal(where, value, "has no content that could be described") from error
        if isinstance(reduced, str):
            return f"global {reduced}"
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        forms = (
            self.form(make, where),
            self._forms(arguments, where),
            self._state(value, state, where),
            self._forms(items or (), where),
            self._pairs(dict(pairs or ()), where),
        )
        return f"object {' '.join(forms)}"

    def _state(self, value: Any, state: Any, where: str) -> str:  # state: the result of __getstate__
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            return f"{self._state(value, state[0], where)} {self._state(value, state[1], where)}"
        if not isinstance(state, dict):
            return self.form(state, where)
        kept = []
        for name in sorted(state, key=str):
            class_member = inspect.getattr_static(type(value), str(name), None)
            # The value of a cached property is left out, since it is computed from the other attributes.
            if not isinstance(class_member, functools.cached_property):
                kept.append(f"{name}={self.form(state[name], f'{where}.{name}')}")
        return f"({', '.join(kept)})"

    def _enum(self, value: enum.Enum, where: str) -> str:
        return f"{self.form(type(value), where)}.{value.name} {self.form(value.value, where)}"

    _kinds: Final[dict[Any, Callable[..., str]]] = {  # the first match counts
        enum.Enum: _enum,
        (np.ndarray, np.generic): _array,
        np.dtype: lambda _, value, __: f"dtype {_dtype_form(value)}",
        np.ufunc: lambda _, value, __: f"ufunc {value.__name__}",
        PurePath: lambda _, value, __: f"path {str(value)!a}",
        # Without content: the environment is read when the code runs, and a manifest must have no secrets.
        type(os.environ): lambda *_: "environ",
        logging.Logger: lambda *_: "logger",  # a logger only reports
        Storage: lambda *_: "storage",  # the location of caches does not matter, only their content
        DataRef: _data_ref,
        (MethodType, BuiltinFunctionType): _method,
        functools.partial: _partial,
        MappingProxyType: lambda self, value, where: f"proxy {self._pairs(dict(value), where)}",
    }


def nested(value: Any) -> Iterator[Any]:
    """Yield a value and the items of lists, tuples, sets and dicts in it, each object once.

    Of a container with more than `MOST_EXAMINED_ITEMS` items, only the first ones are yielded.
    """
    seen, waiting = {}, deque([value])
    while waiting:
        outer = waiting.popleft()
        if id(outer) in seen:
            continue
        seen[id(outer)] = outer
        yield outer
        if type(outer) in CONTAINERS:
            items = itertools.chain.from_iterable(list(outer.items())) if type(outer) is dict else outer
            items = itertools.islice(items, MOST_EXAMINED_ITEMS)
            waiting.extend(sorted(items, key=_sort_key) if isinstance(outer, set | frozenset) else items)


def is_plain(value: Any) -> bool:
    """Return whether a value is only data; of a long container the first items are examined."""
    plain = *_SCALARS, *CONTAINERS
    return all(
        type(one) in plain
        or isinstance(one, np.generic | np.dtype | PurePath)
        or (type(one) is np.ndarray and not one.dtype.hasobject)
        for one in nested(value)
    )


def _has_hook(value: Any) -> bool:
    missing = object()
    if inspect.getattr_static(value, HOOK, missing) is missing:
        return False
    # functools.wraps copies the attributes of the wrapped function, so a copied hook belongs to that one.
    inner = getattr(value, "__wrapped__", None) if isinstance(value, FunctionType) else None
    return inner is None or getattr(inner, HOOK, missing) is not getattr(value, HOOK)


def _sort_key(item: Any) -> tuple[str, str]:
    """Return a sort key for the items of a set, so that their order does not depend on the hash seed."""
    text = ascii(item) if type(item) in _SCALARS else getattr(item, "__qualname__", "")
    return type(item).__name__, text


def array_sha256(array: Any) -> str:  # an array or a scalar of numpy
    """Return the hash of the content of an array without objects."""
    if not array.nbytes:
        return hashlib.sha256().hexdigest()
    # Viewed as bytes, since datetimes export no buffer; a contiguous array is not copied. Any: mypy does not
    # know that an array is a buffer.
    content: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.sha256(content).hexdigest()


def _pickled_sha256(value: Any) -> str:  # value: a large container of plain data
    digest = _Digest()
    pickler = pickle.Pickler(digest, 5)
    pickler.fast = True  # without it, shared objects inside would change the bytes of equal content
    pickler.dump(value)
    return digest.sha256.hexdigest()


class _Digest:
    """A file that only hashes the bytes written."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def write(self, content: Any) -> int:  # bytes, or another buffer
        self.sha256.update(content)
        return memoryview(content).nbytes


def _file_form(path: Any) -> str:  # path: the file of a np.memmap
    status = os.stat(path)
    return f"file {os.fspath(path)!a} {status.st_size} {status.st_mtime_ns}"


def _dtype_form(dtype: np.dtype[Any]) -> str:
    return f"{dtype.name} {dtype.descr if dtype.names else dtype.str}"


def _short(form: str) -> str:
    if len(form) <= _MOST_INLINE_CHARACTERS:
        return form
    return f"{form[:24]}... {hashlib.sha256(form.encode(errors='surrogatepass')).hexdigest()}"


def _refusal(where: str, value: Any, problem: str) -> ConfigurationError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return ConfigurationError(
        f"version='auto' is a hash of the code and of every value that it uses, but {where} ({kind}) "
        f"{problem}. Open or make it inside of the function, give it an attribute {HOOK} that changes "
        "whenever what is built from it would, or name the version yourself instead of 'auto'"
    )
