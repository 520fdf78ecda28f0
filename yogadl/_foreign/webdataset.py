"""Find the samples of a tar file as the webdataset library groups them."""

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np

from yogadl._core.frozen import frozen
from yogadl._core.spec import BYTES, MAX_FIELDS, STR, DictNode, Leaf, Spec
from yogadl._foreign.fields import Missing, MissingArgument, refuse_unknown
from yogadl._foreign.file_reader import Batch, FileReader, Format, Places
from yogadl._foreign.tar import members
from yogadl.errors import ConfigurationError

KEY: Final = "__key__"
# The names that every sample of webdataset has: a member with such an extension is an error there.
_TAKEN: Final = frozenset({KEY, "__url__"})
_META: Final = re.compile(r"__[^/]*__($|/)|___?$")
_WAY_OUT: Final = 'give fields=("jpg", "cls") to choose fields, those that you have'

# Of the members of a sample, by extension, position and size.
_Places = dict[str, tuple[int, int]]


@frozen
class WebDataset(Format):
    """Tar files of samples: consecutive members whose names differ only after the first dot.

    A record is a dict: ``"__key__"`` is the name before the dot, with folders; the bytes of each member
    stand under its extension in lower case, such as ``"jpg"`` or ``"seg.png"``.

    Args:
        fields: The extensions that are taken; by default, all those of the first file.
        missing: ``None``: a sample without one of the fields is refused; ``"empty"``: the field is empty;
            a dict with ``"empty"`` for those fields that may be.
        are_of_first_file: Whether the fields are those of the first file; set by `of_first_file`.

    Raises:
        ConfigurationError: if an argument is none of these.
    """

    fields: tuple[str, ...] | None = None
    missing: MissingArgument = None
    are_of_first_file: bool = False
    suffixes: ClassVar[tuple[str, ...]] = (".tar",)

    def __post_init__(self) -> None:
        fields: Any = self.fields  # as the caller passed it
        Missing(self.missing)
        if fields is None:
            return
        if not isinstance(fields, tuple | list) or not fields:
            raise ConfigurationError(f'fields are extensions such as ("jpg", "cls"), not {fields!r}')
        for name in fields:
            if not isinstance(name, str) or not name or name != name.lower() or "/" in name or name in _TAKEN:
                raise ConfigurationError(
                    f'a field is an extension in lower case without its dot, such as "jpg", not {name!r}'
                )
        if len(set(fields)) < len(fields):
            raise ConfigurationError(f"a field is named twice: {fields!r}")
        object.__setattr__(self, "fields", tuple(fields))
        Missing(self.missing).check(dict.fromkeys(fields, Leaf(BYTES)))

    @property
    def spec(self) -> Spec:
        """A dict of the key and the fields."""
        assert self.fields is not None
        return Spec(DictNode((KEY, *self.fields), (Leaf(STR), *[Leaf(BYTES)] * len(self.fields))))

    def of_first_file(self, reader: FileReader) -> "WebDataset":
        """Return the format with the extensions of this file's samples, in the order in which they come.

        Raises:
            UnsupportedDataError: if the file is damaged or has no samples, or none of them has a field that
                may be missing: its name is likely to be wrong.
        """
        if self.fields is not None:
            unseen = {} if self.are_of_first_file else dict.fromkeys(self._may_be_empty)
            if unseen:
                for _, _, places in _samples(reader, None):
                    unseen = {name: None for name in unseen if name not in places}
                    if not unseen:
                        break
                refuse_unknown(reader, "sample", unseen)
            return self
        found: dict[str, None] = {}
        for key, start, places in _samples(reader, None):
            found.update(dict.fromkeys(places))
            if len(found) >= MAX_FIELDS:
                reader.refuse(start, f"sample {key!r} has extension number {len(found)}: {_WAY_OUT}")
        if not found:
            reader.refuse(0, f"there is no sample, whose extensions would be the fields: {_WAY_OUT}")
        return WebDataset(tuple(found), self.missing, are_of_first_file=True)

    def with_spec(self, spec: Spec) -> "WebDataset | None":
        """Return the format with the fields of this spec: those of the first file, or those given."""
        fields = tuple(map(str, spec.tree.keys[1:])) if isinstance(spec.tree, DictNode) else ()
        if self.fields not in (None, fields):
            return None
        try:
            found = WebDataset(fields, self.missing, are_of_first_file=self.fields is None)
        except ConfigurationError:
            return None
        return found if found.spec == spec else None

    def batches(self, reader: FileReader) -> Iterator[Batch]:
        """Yield the samples that begin in a stretch of `batch_bytes`, then those of the next.

        Raises:
            UnsupportedDataError: if the file is damaged, or a sample has other fields.
        """
        assert self.fields is not None
        fields = frozenset(self.fields)
        keys: list[str] = []
        found: list[tuple[int, int]] = []
        window = -1
        for key, start, places in _samples(reader, None if self.are_of_first_file else fields):
            if start // reader.batch_bytes != window:
                if keys:
                    yield self._batch(keys, found)
                keys, found, window = [], [], start // reader.batch_bytes
            if places.keys() != fields:
                places = self._mend(reader, key, start, places)
            keys.append(key)
            found += [places[name] for name in self.fields]
        if keys:
            yield self._batch(keys, found)

    def _batch(self, keys: list[str], found: list[tuple[int, int]]) -> Batch:
        places = np.array(found, np.int64).reshape(len(keys), -1, 2).transpose(1, 2, 0)
        return (keys, *[Places(np.ascontiguousarray(row[0]), np.ascontiguousarray(row[1])) for row in places])

    @cached_property
    def _may_be_empty(self) -> list[str]:
        missing = Missing(self.missing)
        return [name for name in self.fields or () if missing.fill(name, Leaf(BYTES)) is not None]

    def _mend(self, reader: FileReader, key: str, start: int, places: _Places) -> _Places:
        """Return a sample's places with those of the empty fields, or refuse the sample."""
        assert self.fields is not None
        for name in places:
            if name not in self.fields:
                reader.refuse(
                    places[name][0],
                    f"sample {key!r} has {name!r}, which the first file's samples don't have: to leave it "
                    f"out, give fields={self.fields}",
                )
        for name in self.fields:
            if name not in places and name not in self._may_be_empty:
                others = tuple(other for other in self.fields if other != name)
                rest = f"leave it out of the fields, fields={others}, or " if others else ""
                reader.refuse(start, f'sample {key!r} has no {name!r}: {rest}make it empty, missing="empty"')
        return {name: places.get(name, (start, 0)) for name in self.fields}


def split_name(name: str) -> tuple[str, str] | None:
    r"""Return the key and the extension in lower case of a member, None if it belongs to no sample.

    They are those of webdataset, which matches ``^((?:.*/|)[^.]+)[.]([^/]*)$``; this takes time that grows
    with the square of the length of a hostile name.
    """
    dot = name.find(".", name.rfind("/") + 1)
    if dot < 1:
        return None
    before = name.rfind(".", 0, dot)
    if before >= 0:
        slash = name.find("/", before + 1, dot - 1)
        if slash < 0 or "\n" in name[:slash]:
            return None
    return name[:dot], name[dot + 1 :].lower()


def _samples(reader: FileReader, fields: frozenset[str] | None) -> Iterator[tuple[str, int, _Places]]:
    """Yield the samples of a file: key, where the first header begins, and the places of these fields.

    Members that webdataset leaves out are left out here: those without a dot, and those of its own, such as
    `__meta__`. They end no sample.
    """
    key, first, places = "", -1, _Places()
    for name, start, position, size in members(reader):
        split = split_name(name)
        if split is None or _META.match(name):
            continue
        prefix, extension = split
        if prefix != key:
            if first >= 0:
                yield key, first, places
            key, first, places = prefix, start, {}
        if extension in places or extension in _TAKEN:
            reader.refuse(start, f"sample {key!r} has two members {extension!r}: {name!r} is the second")
        if fields is None or extension in fields:
            if not extension:
                reader.refuse(start, f"{name!r} has no extension after its dot: {_WAY_OUT}")
            places[extension] = position, size
    if first >= 0:
        yield key, first, places
