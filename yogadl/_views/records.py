"""Read records at any indices without a cache: from an object, or from arrays."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from yogadl._core.arguments import in_words
from yogadl._core.columns import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    batch_column,
    declaration_text,
    declare,
    refuse_value,
    shape_of_value,
    split,
    widen,
)
from yogadl._core.forms import PLAIN, Forms
from yogadl._core.protocols import Column, Indices, Memory, RandomAccess
from yogadl._core.spec import BadShapeError, BadValueError, Spec, refuse
from yogadl._format.columns import RunHash, hash_run, stored_column
from yogadl._sources.sources import ArraysSource, ItemsSource, adapted_source, has_random_access, is_arrays
from yogadl._views.views import hash_of
from yogadl.errors import ConfigurationError, UnsupportedDataError

_SAMPLED_RECORDS: Final = 16
# Larger arrays are not hashed whole, which takes seconds for each task of a build.
_MOST_HASHED_BYTES: Final = 4 * 2**30


class SourceRecords(RandomAccess):
    """Records of an object with ``__len__`` and ``__getitem__``, or of arrays, read in place.

    As safe to use from threads, and as picklable, as the object is.

    Args:
        data: The object, or a dict or tuple of arrays.
        fingerprint: A name for this content; by default a hash of a sample of the records, marked weak.
        spec: The caller's declaration of a record's fields; see `declare`.
        forms: What is said about the values of records.

    Raises:
        UnsupportedDataError: if a record can't be read as a tree of arrays and scalars.
        ConfigurationError: if the sampled records don't fit the declaration.
    """

    spec: Spec
    fingerprint: str
    record_bytes: int

    def __init__(
        self, data: Any, fingerprint: str | None = None, spec: Any = None, forms: Forms = PLAIN
    ) -> None:
        self._source = _source_of(data, forms)
        self._declared: frozenset[int] = frozenset()
        sample = np.unique(np.linspace(0, len(self) - 1, _SAMPLED_RECORDS).astype(np.int64))
        if isinstance(self._source, ItemsSource):
            self._source.decide_by(sample.tolist())
        self.spec = self._source.spec
        self._widen(sample)
        columns = self.columns(sample)
        stored = [
            stored_column(field.leaf, column) for field, column in zip(self.spec.fields, columns, strict=True)
        ]
        sample_bytes = sum(column.size_bytes for column in stored)
        self.record_bytes = max(1, sample_bytes // len(sample))
        run = hash_run([column.hashes() for column in stored], len(sample))
        weak_name = "weak-" + hash_of("sample", len(self), run.value, self.spec.to_json())
        self.fingerprint = forms.decide(fingerprint or "") or weak_name
        self.is_sampled = not fingerprint
        # After the fingerprint: a declaration that is added later must leave cursors valid.
        if spec is not None:
            self.spec, self._declared = declare(self.spec, spec)

    def __len__(self) -> int:
        return int(self._source.length)

    @property
    def source(self) -> Any:
        """Where the records are read from: an `ItemsSource`, or a source that returns columns."""
        return self._source

    def hash_of_all(self, hash_of_object: Callable[[Any], str]) -> str:
        """Return a hash of all records of arrays; of another object that of its code and state.

        Args:
            hash_of_object: Returns that hash: what only reads has no part in finding it.

        Raises:
            ConfigurationError: if the arrays are too large to be hashed by each task of a build. The bytes
                decide, so that all tasks decide alike.
        """
        if not isinstance(self._source, ArraysSource):
            return hash_of_object(self._source)
        columns = self._source.arrays
        plain = [number for number, column in enumerate(columns) if is_plain(column)]
        hashed_bytes = sum(columns[number].nbytes for number in plain)
        _require_hashable(hashed_bytes)
        digest = hashlib.sha256(json.dumps([len(self), self.spec.to_json()]).encode())
        for number in plain:
            digest.update(columns[number].dtype.str.encode())
            add_array(digest, columns[number])
        others = [number for number in range(len(columns)) if number not in plain]
        run, count = RunHash(), max(1, min(CHUNK_RECORDS, CHUNK_BYTES // self.record_bytes))
        for first in range(0, len(self) if others else 0, count):
            indices = np.arange(first, min(first + count, len(self)), dtype=np.int64)
            stored = [
                stored_column(self.spec.fields[number].leaf, column)
                for number, column in zip(others, self.columns(indices, others), strict=True)
            ]
            hashed_bytes += sum(column.size_bytes for column in stored)
            _require_hashable(hashed_bytes)
            run = run.then(hash_run([column.hashes() for column in stored], len(indices)))
        digest.update(f"{run.records} {run.value}".encode())
        return digest.hexdigest()

    def file_of(self, index: int) -> str | None:
        """Return the path of a record's file, if the source lists it."""
        return self._source.file_of(index) if isinstance(self._source, ItemsSource) else None

    def _values(self, indices: Indices) -> list[Any]:
        """Return a column or a list of values for each field."""
        if not isinstance(self._source, ItemsSource):
            return list(self._source.columns(indices))
        records = self._source.items(indices.tolist())
        try:
            return list(split(self.spec, records))
        except UnsupportedDataError:
            for index, record in zip(indices.tolist(), records, strict=True):
                split(self.spec, [record], index)  # the error names the source's record number
            raise

    def _widen(self, sample: Indices) -> None:
        """Widen the spec so that it admits the shapes of all sampled records."""
        leaves = []
        for field, values in zip(self.spec.fields, self._values(sample), strict=True):
            leaf = field.leaf
            for value in values:
                leaf = widen(leaf, shape_of_value(leaf, value))
            leaves.append(leaf)
        self.spec = self.spec.with_leaves(leaves)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> list[Column]:
        """Read records in the order of `indices`."""
        values = self._values(indices)
        found: list[Column] = []
        for number in range(len(values)) if fields is None else fields:
            field, column = self.spec.fields[number], values[number]
            if (
                isinstance(column, np.ndarray)
                and column.shape[1:] == field.leaf.shape
                and field.leaf.is_fixed
            ):
                found.append(np.ascontiguousarray(column))  # numpy keeps the memory order of the source
                continue
            try:
                made = batch_column(field.leaf, column)
                # Values that vary may be the source's own arrays, which a caller must not change.
                own = made if field.leaf.is_fixed else [_copied(value) for value in made]
                found.append(own)
            except BadShapeError as error:
                raise self._shape_error(number, int(indices[error.position]), error.shape) from None
            except BadValueError as error:
                record = int(indices[error.position])
                raise refuse_value(field, error, list(column), record) from error.__cause__
        return found

    def _shape_error(self, number: int, record: int, shape: tuple[int, ...]) -> UnsupportedDataError:
        """Return the error for a shape that a field has in this record, but not in the sampled records."""
        leaves = [field.leaf for field in self.spec.fields]
        expected = "spec= declares" if number in self._declared else "in the records that were read first"
        problem = f"has shape {shape}, not {leaves[number].shape} as {expected}"
        leaves[number] = widen(leaves[number], shape)
        declared = declaration_text(self.spec.with_leaves(leaves), self._declared | {number})
        return refuse(
            self.spec.fields[number].name,
            record,
            f"{problem}. If the shape varies, declare it: yogadl.from_source(..., spec={declared})",
        )


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _require_hashable(size_bytes: int) -> None:
    if size_bytes > _MOST_HASHED_BYTES:
        raise ConfigurationError(
            "the tasks of a run whose source is from_source(arrays) compare what they read, and more than "
            f"{in_words(_MOST_HASHED_BYTES)} are too much to hash in each task: name the content, "
            "from_source(..., fingerprint=), by a text that changes whenever a record does"
        )


def is_plain(column: Any) -> bool:
    """Return whether a column is an array of numbers, whose bytes are the values."""
    return isinstance(column, np.ndarray) and column.dtype.kind in "biufcmM"


def add_array(digest: "hashlib._Hash", array: Any) -> None:
    """Add the bytes of such an array to a hash, some rows at a time: they may not lie in one piece."""
    count = max(1, CHUNK_BYTES * len(array) // max(1, array.nbytes))
    for first in range(0, len(array), count):
        content: Any = np.ascontiguousarray(array[first : first + count])
        digest.update(content.reshape(-1).view(np.uint8))


# Returns an ItemsSource, or a source that returns columns of any records.
def _source_of(data: Any, forms: Forms) -> Any:
    if not is_arrays(data) and not has_random_access(data):
        raise UnsupportedDataError(
            f"a {type(data).__name__} has no __len__ and __getitem__: build a cache of it with storage.submit"
        )
    adapted = adapted_source(data, forms)
    if adapted is None:
        return ArraysSource(data, forms) if is_arrays(data) else ItemsSource(data, forms)
    if not hasattr(adapted, "columns") and not isinstance(adapted, ItemsSource):
        raise UnsupportedDataError(
            f"a {type(data).__name__} can only be read in order: build a cache of it with storage.submit"
        )
    return adapted
