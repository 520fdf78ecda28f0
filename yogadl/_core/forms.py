"""Say how values of records are stored before the values themselves decide it."""

import hashlib
import json as json_module
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

import numpy as np

from yogadl._core.advice import of_continuing, of_storing
from yogadl._core.frozen import frozen
from yogadl._core.spec import BYTES, JSON, STR, Leaf, Node, Spec, names_of_namedtuple, remade
from yogadl.errors import ConfigurationError

EMPTY: Final = "empty"


@frozen
class Forms:
    """The caller's statements about the values of records, which decide before the values do.

    Args:
        json: The names of fields that are json values.
        missing: By the names of fields, what comes in the place of a value that is ``None`` or not there;
            ``"empty"`` is an empty value of the field's kind.
        like: The structure of other records, or one that the caller declares: a `Spec`, or a tree like the
            record's whose leaves are `Leaf`s.
        allow_pickle: Whether values without a stored form may be pickled.
        spec: The declaration of a build's caller, as a tree of `Leaf`s; `like` goes before it.
        continues: Whether `like` is that of a published version, which the records continue.
    """

    json: tuple[str, ...] = ()
    missing: Mapping[str, Any] = field(default_factory=dict)
    like: Any = None
    allow_pickle: bool = False
    spec: Any = None
    continues: bool = False

    @property
    def advise(self) -> Callable[[str, Node, Any], str]:
        """The function that says what to write where a record does not fit."""
        return of_continuing if self.continues else of_storing

    @property
    def says(self) -> bool:
        """Whether anything is said that may change records."""
        return bool(self.json or self.missing) or self.spec is not None

    def decide(self, origin: str) -> str:
        """Return a hash of all that decides records, given that of their source; empty if that is."""
        if not origin or not self.says:
            return origin
        said = [
            origin,
            sorted(self.json),
            sorted((name, repr(value)) for name, value in self.missing.items()),
            *([] if self.spec is None else [repr(self.spec)]),
        ]
        return hashlib.sha256(json_module.dumps(said).encode()).hexdigest()

    @property
    def fill(self) -> Callable[[Any], Any] | None:
        """The function that fills in a record's missing values, or ``None`` if nothing is said of them."""
        return self.filled if self.missing else None

    def filled(self, record: Any) -> Any:
        """Return a record with its missing values filled in; the record itself stays as it is."""
        for name, value in self.missing.items():
            record = _filled(record, name, value)
        return record

    def for_sample(self, records: Sequence[Any]) -> "Forms":
        """Return the same with each ``"empty"`` as the kind of value that these records have there."""
        if not self.missing:
            return self
        known = self._declared()
        for name in self.missing:
            if name not in known and not any(_found_at(record, name) for record in records):
                import logging  # not for reading a cache

                logging.getLogger("yogadl").warning(
                    "yogadl: missing= names %r, which none of the first %d records has: all of them get %r",
                    name, len(records), self.missing[name],
                )  # fmt: skip
        return replace(
            self, missing={name: self.fill_of(name, _values_at(records, name)) for name in self.missing}
        )

    def check_json(self, spec: Spec) -> None:
        """Refuse names of json values that no field has, which would change nothing without a word.

        Raises:
            ConfigurationError: if there is one.
        """
        leaves = {field.name: field.leaf for field in spec.fields}
        for name in self.json:
            if name not in leaves:
                have = ", ".join(map(repr, leaves))
                raise ConfigurationError(f"json= names {name!r}, and the fields of the records are {have}")
            if leaves[name].dtype != JSON:
                raise ConfigurationError(
                    f"json= names {name!r}, which is {leaves[name]}: give a list of plain Python values"
                )

    def check_missing(self, columns: Iterable[str], *, by_column: bool = False) -> None:
        """Refuse to fill what no column has; `by_column`: the columns alone are known, not what is in them.

        Raises:
            ConfigurationError: if there is such a name.
        """
        known = list(columns)
        for name in self.missing:
            if (name.partition("/")[0] if by_column else name) not in known:
                raise ConfigurationError(f"missing= names {name!r}, and the columns are {', '.join(known)}")

    def fill_of(self, name: str, values: Sequence[Any]) -> Any:
        """Return what comes in the place of a field's missing values, given some that are not."""
        value = self.missing[name]
        return self._empty(name, values) if _is_empty(value) else value

    def _declared(self) -> dict[str, Leaf]:
        """Return the leaves of the structure that records are to be like, by the names of their fields."""
        return {each.name: each.leaf for each in self.like.fields} if isinstance(self.like, Spec) else {}

    def _empty(self, name: str, values: Sequence[Any]) -> Any:
        """Return the empty value of a field, of which these records have these values, perhaps none."""
        leaves = self._declared()
        if values or name not in leaves:
            return _empty_like(values)
        leaf = leaves[name]
        if leaf.is_numeric and leaf.shape != ():
            return np.empty((0, *[size or 0 for size in (leaf.shape or (0,))[1:]]), leaf.numpy_dtype)
        if leaf.dtype in (STR, BYTES):
            return [] if leaf.shape else b"" if leaf.dtype == BYTES else ""
        raise ConfigurationError(
            f'missing={{{name!r}: "empty"}} says nothing where none of the first records has a value, and '
            f"the field is {leaf.dtype}: give the value itself, such as missing={{{name!r}: []}}"
        )


PLAIN: Final = Forms()


def forms_of(
    json: Any = (),
    missing: Mapping[str, Any] | None = None,
    like: Any = None,
    *,
    allow_pickle: bool = False,
    spec: Any = None,
) -> Forms:
    """Return what a caller says about the values of records.

    Raises:
        ConfigurationError: if an argument has a wrong type.
    """
    if not isinstance(json, str | Iterable):
        raise ConfigurationError(f'json= has the names of fields, such as "messages", not {json!r:.100}')
    names = (json,) if isinstance(json, str) else tuple(json)
    for argument, given in (("json", names), ("missing", missing or {})):
        if not all(isinstance(name, str) and name for name in given):
            raise ConfigurationError(
                f'{argument}= has the names of fields, such as "label", not {given!r:.100}'
            )
    if missing is not None and not isinstance(missing, Mapping):
        raise ConfigurationError(
            f'missing= is a dict such as {{"label": -1, "text": "empty"}}, not {missing!r:.100}'
        )
    return Forms(names, dict(missing or {}), like, allow_pickle, spec)


def _is_empty(value: Any) -> bool:
    return type(value) is str and value == EMPTY


def _parts(record: Any, name: str) -> tuple[str, str]:
    """Return the key that a field's name begins with, and the rest of the name; a key may have slashes."""
    if isinstance(record, dict) and name in record:
        return name, ""
    key, _, below = name.partition("/")
    return key, below


def _filled(record: Any, name: str, value: Any) -> Any:
    key, below = _parts(record, name)
    if isinstance(record, dict):
        found = record.get(key)
        if below:
            changed = _filled(found, below, value)
            return record if changed is found else {**record, key: changed}
        return {**record, key: value} if found is None else record
    if isinstance(record, list | tuple):
        names = names_of_namedtuple(record) or tuple(map(str, range(len(record))))
        if key not in names:
            return record
        place = names.index(key)
        changed = _filled(record[place], below, value) if below else record[place]
        changed = value if not below and changed is None else changed
        if changed is record[place]:
            return record
        return remade(record, [*record[:place], changed, *record[place + 1 :]])
    return record


def _found_at(record: Any, name: str) -> list[Any]:
    """Return what a record has at a place, perhaps ``None`` there or above; empty if it has nothing there."""
    key, below = _parts(record, name)
    items = record
    if isinstance(record, list | tuple):
        names = names_of_namedtuple(record) or map(str, range(len(record)))
        items = dict(zip(names, record, strict=True))
    if not isinstance(items, dict) or key not in items:
        return []
    value = items[key]
    return _found_at(value, below) if below and value is not None else [value]


def _values_at(records: Sequence[Any], name: str) -> list[Any]:
    """Return the values that records have at a place."""
    return [value for record in records for value in _found_at(record, name) if value is not None]


def _empty_like(values: Sequence[Any]) -> Any:
    """Return the empty value of the kind of these; an empty text if there is none."""
    first = values[0] if values else ""
    if isinstance(first, np.ndarray) and first.ndim:
        return np.empty((0, *first.shape[1:]), first.dtype)
    if isinstance(first, str | bytes | list | dict):
        return type(first)()
    raise ConfigurationError(
        f'missing="empty" is for text, bytes, lists and arrays, and there is {first!r:.60}: give a value'
    )
