"""Turn any source of records into one form: chunks of columns, one after another."""

import copy
import functools
import importlib
import itertools
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from yogadl._core.advice import declaration, of_column
from yogadl._core.columns import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    ITEM_COPIERS,
    Columns,
    as_pickled,
    chunks,
    copier_of,
    field_column,
    size_of,
    with_record_number_in_errors,
)
from yogadl._core.forms import PLAIN, Forms
from yogadl._core.infer import SAMPLED_RECORDS, infer, infer_column, is_open, size_of_record, snapshot
from yogadl._core.protocols import Earlier, metadata_of
from yogadl._core.spec import JSON, OBJECT, Keys, Leaf, Node, Spec, is_masked, leaf_at, node_of
from yogadl.errors import ConfigurationError, StageError, UnsupportedDataError, YogaError

# The package or module of an object, and the adapter in `yogadl.adapters` that reads such objects. The
# adapter is imported at the first such object; its function `source` returns the source or None.
_ADAPTERS: Final = {
    "pandas": "arrays",
    "polars": "arrays",
    "pyarrow": "arrays",
    # By module, since users often have a folder `datasets` of their own.
    "datasets.arrow_dataset": "arrays",
    "datasets.dataset_dict": "arrays",
    "datasets.iterable_dataset": "arrays",
    "grain": "grain",
    "keras": "keras",
    "ray": "ray",
    "tensorflow": "tensorflow",
    "tensorflow_datasets": "tfds",
    "torch": "torch",
    "tf_keras": "keras",
}


class Source:
    """A source of records that can be read in order.

    Attributes:
        spec: The structure of a record; later records may show that shapes vary.
        length: The number of records, ``None`` if unknown.
        can_start_anywhere: Whether `chunks` can begin at any record without reading those before it.
        is_costly: Whether records are computed, as by a user's ``__getitem__``: a build that continues an
            earlier one then compares only some of the records.
        is_open: Whether other records of the same kind may show another structure than the first ones.
        has_final_spec: Whether no later record can show that shapes vary.
        starts: The records, 0 first, at which reading starts faster than at others; empty if unknown.
        origin: The object that decides the records, if it is not the object that the source was opened from.
        provenance: What the manifest says of the source.
        metadata: What a version keeps, such as the names of classes.
        fingerprints: Other fingerprints of the same records.
        content_fingerprint: The fingerprint that the records must have, if it is known.
        decoded: The rows that are decoded from the records, if these are groups of rows: see `DecodedRows`.
    """

    length: int | None = None
    can_start_anywhere: bool = False
    is_costly: bool = False
    is_open: bool = False
    has_final_spec: bool = False
    starts: Sequence[int] = ()
    origin: Any = None
    provenance: Mapping[str, Any] = MappingProxyType({})
    metadata: Mapping[str, Any] = MappingProxyType({})
    fingerprints: Set[str] = frozenset()
    content_fingerprint: str | None = None
    decoded: Any = None

    if TYPE_CHECKING:  # each class decides whether it is an attribute, which a hash of the source has, or not

        @property
        def spec(self) -> Spec: ...

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` to `length`, as columns that `CacheWriter.write` takes."""
        raise NotImplementedError

    def as_source(self, forms: Forms) -> "Source":
        """Return this source; one that can still say how values are stored returns another one.

        Raises:
            ConfigurationError: if `forms` say how values are stored.
        """
        refuse_forms(self, forms)
        return self

    def ending_before(self, end: int) -> "Source":
        """Return a copy of this source that ends before record `end`."""
        shortened = copy.copy(self)
        shortened.length = end
        return shortened

    def rows(self, first: int, end: int) -> "Source | None":
        """Return a source of these records alone, or ``None`` if the data can't be cut."""
        return None

    def file_of(self, number: int) -> str | None:
        """Return the path of a record's file, if it is known."""
        return None


class ResumableSource(Source):
    """A source that is read in order, but can save its position and continue there in another process."""

    def state(self, record: int) -> bytes | None:
        """Return a state with which `restore` continues at this record, or ``None`` if there is none."""
        raise NotImplementedError

    def restore(self, state: bytes) -> None:
        """Continue from a state that `state` returned, perhaps in an earlier process."""
        raise NotImplementedError

    def ending_before(self, end: int) -> Source:
        """Return this source: a copy would not share its state."""
        return self


class SelfWritingSource(Source):
    """A source that lies on other machines, whose own tasks write it."""

    def write_partitions(self, write: Callable[[int, Any], object]) -> int:
        """Call ``write(partition, records)`` in the source's own tasks; return the number of partitions."""
        raise NotImplementedError


class ReadOnce(Source):
    """Chunks of records that are read once."""

    def __init__(self, spec: Spec, chunks: Iterator[Columns]) -> None:
        self.spec: Spec = spec
        self._chunks = chunks

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records."""
        return self._chunks

    @classmethod
    def if_any(cls, spec: Spec, chunks: Iterator[Columns]) -> "ReadOnce | None":
        """Return a source of these chunks, or ``None`` if there are none."""
        first = next(chunks, None)
        return None if first is None else cls(spec, itertools.chain([first], chunks))


class _PlainSource(Source):
    """A source of a class of its own, which has the least that a source needs."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self.length = data.length
        self.can_start_anywhere = data.can_start_anywhere

    @functools.cached_property
    def spec(self) -> Spec:
        """The structure of a record."""
        found: Spec = self._data.spec
        return found

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on."""
        found: Iterator[Columns] = self._data.chunks(start)
        return found


# Called with the index of a record that can't be read, and the reason.
LeaveOut = Callable[[int, str], None]


def open_source(data: Any, forms: Forms = PLAIN) -> Source:
    """Return a source that reads `data`.

    An object that is a source already is returned as it is, and an object of a framework, such as a table,
    goes to its adapter. A dict, a tuple or a numpy array is read by column; an object with ``__len__`` and
    ``__getitem__`` by position; a function without arguments is called; an iterable is read once, in order.

    Raises:
        UnsupportedDataError: if `data` is none of these, or empty.
    """
    if hasattr(type(data), "as_source"):  # a `Partitioned`, whose spec opens a partition
        source: Source = data.as_source(forms)
        return source
    if _has(data, "spec", "length", "can_start_anywhere", "chunks"):
        refuse_forms(data, forms)
        return _PlainSource(data)
    adapted = adapted_source(data, forms)
    if adapted is not None:
        return adapted
    if isinstance(data, str | bytes | bytearray | os.PathLike):
        shown = textwrap.shorten(repr(data), 80, placeholder="...")
        raise UnsupportedDataError(
            f"{shown} is no source of records: to read a file, open it first and pass the result, such as "
            f"pyarrow.parquet.ParquetFile(path) or datasets.load_dataset(...); if this {type(data).__name__} "
            "is one record, put it into a list"
        )
    if isinstance(data, np.ndarray) and data.ndim == 0:
        raise UnsupportedDataError(
            f"an array of no dimension, {data}, is no source of records: give one item per record"
        )
    if _has(data, "spec", "columns", "record_bytes", "__len__"):
        refuse_forms(data, forms)
        return RecordsSource(data, forms)
    if is_arrays(data):
        refuse_spec(data, forms)
        return ArraysSource(data, forms)
    if has_random_access(data):
        return ItemsSource(data, forms)
    if callable(data) and not isinstance(data, Iterable):
        data = data()
        if not isinstance(data, Iterable | os.PathLike) and not has_random_access(data):
            raise UnsupportedDataError(
                f"the source function returned a {type(data).__name__}, which can't be iterated; "
                "return or yield the records"
            )
        return open_source(data, forms)
    if isinstance(data, Iterable):
        return IterableSource(data, forms)
    raise UnsupportedDataError(
        f"a {type(data).__module__}.{type(data).__qualname__} is no source of records: give an iterable, "
        "a generator function, an object with __len__ and __getitem__, or a dict or tuple of arrays"
    )


def refuse_forms(data: Any, forms: Forms) -> None:
    """Refuse to say how values are stored of a source that has decided it.

    Raises:
        ConfigurationError: if it is said.
    """
    refuse_spec(data, forms)
    if forms.json or forms.missing:
        raise ConfigurationError(
            f"json= and missing= say how records are stored, which a {type(data).__name__} has decided: pass "
            "them where it is made, or change the records by ref.map"
        )


def refuse_spec(data: Any, forms: Forms) -> None:
    """Refuse to declare fields of a source that says what they are.

    Raises:
        ConfigurationError: if they are declared.
    """
    if forms.spec is not None:
        raise ConfigurationError(
            f"spec= declares fields of records that are read one by one; a {type(data).__name__} says itself "
            "what its fields are: convert them there, or pass records"
        )


def open_if_any(data: Any, forms: Forms = PLAIN) -> Source | None:
    """Return a source that reads `data`, or ``None`` if it has no records at all.

    Raises:
        UnsupportedDataError: if `data` is no source.
    """
    if hasattr(data, "__len__") and not isinstance(data, dict) and len(data) == 0:
        return None
    try:
        return open_source(data, forms)
    except UnsupportedDataError as error:
        if str(error) != NO_RECORDS:  # adapters raise the same text
            raise
        return None


def adapted_source(data: Any, forms: Forms = PLAIN) -> Source | None:
    """Return the source that an adapter makes of `data`, or ``None`` if no adapter handles its type."""
    name = _adapter_of(data)
    if name is None:
        return None
    # Imported by name: no module may import a higher one, and frameworks are imported only by their users.
    adapter = importlib.import_module(f"yogadl.adapters.{name}")
    found: Source | None = adapter.source(data, forms)
    if not isinstance(found, ItemsSource | IterableSource | None):
        refuse_spec(data, forms)
    return found


def _adapter_of(data: Any) -> str | None:
    for kind in type(data).__mro__:
        name = _ADAPTERS.get(kind.__module__) or _ADAPTERS.get(kind.__module__.partition(".")[0])
        if name is not None:
            return name
    if hasattr(data, "__arrow_c_stream__"):  # tables of many other libraries
        return "arrays"
    if _has(data, "description", "fetchmany"):  # any DB-API cursor
        return "sql"
    if _has(data, "reset_state", "__iter__"):  # a DataFlow of TensorPack, or a similar class
        return "dataflow"
    return None


def _has(data: Any, *names: str) -> bool:
    return all(hasattr(data, name) for name in names)


def has_random_access(data: Any) -> bool:
    """Return whether `data` has a length and items by position."""
    if isinstance(data, np.ndarray):
        return data.ndim > 0
    return _has(data, "__len__", "__getitem__") and not isinstance(data, dict | str | bytes)


def is_arrays(data: Any) -> bool:
    """Return whether `data` is read by column: an array, or a dict or tuple of arrays."""
    if isinstance(data, np.ndarray):
        return data.ndim > 0
    if isinstance(data, dict):
        return bool(data)
    # A tuple of dicts is a sequence of records, whatever the dicts hold.
    columns = isinstance(data, tuple) and all(isinstance(item, np.ndarray | tuple) for item in data)
    return columns and any(is_arrays(item) for item in data)


class ArraysSource(Source):
    """A tree of equally long arrays: record i is item i of each array; no loop over records.

    Args:
        data: An array, or a dict, tuple or namedtuple of arrays; lists stand for columns of values.

    Raises:
        UnsupportedDataError: if the lengths differ or a column can't be stored.
    """

    can_start_anywhere = True

    def __init__(self, data: Any, forms: Forms = PLAIN) -> None:
        self._columns: list[Any] = []
        lengths: dict[str, int] = {}

        def leaf(column: Any, path: str, _: Keys) -> Node:
            return _leaf_of(column, path, self._columns, lengths, forms)

        tree = node_of(data, leaf)
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name!r}: {length}" for name, length in lengths.items())
            raise UnsupportedDataError(
                f"the columns have different lengths ({listed}); records need one value of each"
            )
        if not lengths:
            raise UnsupportedDataError(
                f"{data!r:.60} has no columns; give an array for every field of the records"
            )
        self.spec: Spec = Spec(tree)
        forms.check_json(self.spec)
        forms.check_missing(lengths)
        self.length: int = next(iter(lengths.values()))
        # The first item of a list does not determine the shapes of the others.
        self.has_final_spec = all(
            isinstance(column, np.ndarray) or not field.leaf.is_fixed
            for field, column in zip(self.spec.fields, self._columns, strict=True)
        )

    @property
    def arrays(self) -> list[Any]:
        """The column of each field, as it was given: an array or a list."""
        return self._columns

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield slices of the arrays."""
        fixed_bytes = sum(field.leaf.row_bytes for field in self.spec.fields if field.leaf.is_fixed)
        most = max(1, min(CHUNK_BYTES // max(fixed_bytes, 1), 64 * CHUNK_RECORDS))
        # Values of unknown length may be large: the first chunk has one record, and sets the size of the
        # next.
        count, first = most, start
        if not all(isinstance(column, np.ndarray) for column in self._columns):
            count, most = 1, min(most, CHUNK_RECORDS)
        while first < self.length:
            columns = self.columns(slice(first, first + count), first)
            yield columns
            read = min(count, self.length - first)
            first += read
            if count != most:
                size = sum(map(size_of, columns)) // read
                count = max(1, min(most, 8 * count, CHUNK_BYTES // max(size, 1)))

    def rows(self, first: int, end: int) -> "ArraysSource":
        """Return a source of these rows alone."""
        source = copy.copy(self)
        source._columns = [column[first:end] for column in self._columns]
        source.length = end - first
        return source

    def columns(self, chosen: Any, first_record: int = 0) -> Columns:
        """Return the chosen rows of every column; a slice gives views if no conversion is needed."""
        found: Columns = []
        for field, column in zip(self.spec.fields, self._columns, strict=True):
            if isinstance(column, np.ndarray) and field.leaf.is_numeric:
                found.append(column[chosen].astype(field.leaf.numpy_dtype, copy=False))
                continue
            values = column[chosen] if isinstance(chosen, slice) else [column[i] for i in chosen]
            found.append(field_column(field, values, first_record, of_column))
        return found


def _leaf_of(data: Any, path: str, columns: list[Any], lengths: dict[str, int], forms: Forms) -> Leaf:
    """Return the leaf of a column's values, and add the column to `columns` and its length to `lengths`."""
    if not has_random_access(data):
        what = "an array of no dimension" if isinstance(data, np.ndarray) else f"a {type(data).__name__}"
        raise UnsupportedDataError(
            f"column {path!r} is {what}; a dict is read as columns, and each column is an array "
            "or a list with one item per record (for a single record, give a list of one dict)"
        )
    if not len(data):
        raise UnsupportedDataError(NO_RECORDS)
    lengths[path] = len(data)
    if isinstance(data, np.ndarray) and data.dtype == object and data.ndim == 1 and not is_masked(data):
        data = data.tolist()  # any values, as in a list
    if is_masked(data) or isinstance(data, np.ndarray):
        columns.append(data)
        return leaf_at(path, 0, data if is_masked(data) else data[0], forms.allow_pickle)
    if path in forms.missing:
        fill = forms.fill_of(path, [value for value in data[:SAMPLED_RECORDS] if value is not None])
        data = [fill if value is None else value for value in data]
    columns.append(data)
    sample = data[:SAMPLED_RECORDS] if type(data) in (list, tuple) else [data[0]]
    return infer_column(list(sample), forms, path)


NO_RECORDS: Final = (
    "the source has no records, and an empty cache could never be filled; check where it reads from"
)


def _as_it_is(value: Any) -> Any:
    return value


def first_records(
    records: Iterator[Any], *, scalars_decide: bool = True, allow_pickle: bool = False
) -> list[Any]:
    """Return copies of the first records: those that decide the structure of all.

    Args:
        records: The records.
        scalars_decide: Whether more than one record is read if the first one has
            only arrays and Python's scalars.
        allow_pickle: Whether objects are pickled at once.
    """
    found: list[Any] = []
    size = 0
    for record in itertools.islice(records, SAMPLED_RECORDS):
        try:
            found.append(snapshot(record, as_pickled if allow_pickle else _as_it_is))
            size += size_of_record(record)
        except RecursionError:  # nested deeper than what may be stored
            return [*found, record]
        if size >= CHUNK_BYTES or not is_open(found[0], scalars_decide=scalars_decide):
            break
    return found


class IterableSource(Source):
    """Any iterable of records, read once, in order."""

    def __init__(self, data: Iterable[Any], forms: Forms = PLAIN) -> None:
        self.length = len(data) if isinstance(data, Sized) else None
        self._iterator = with_record_number_in_errors(lambda: iter(data))
        self._forms = forms
        self._first = first_records(itertools.islice(self._iterator, 1), allow_pickle=forms.allow_pickle)
        if not self._first:
            raise UnsupportedDataError(NO_RECORDS)
        self.is_open = is_open(self._first[0], scalars_decide=True)

    @functools.cached_property
    def spec(self) -> Spec:
        """The structure that the first records decide, of which as many are read as are needed."""
        records = itertools.chain(self._first, self._iterator)
        self._first = first_records(records, allow_pickle=self._forms.allow_pickle)
        self._forms = self._forms.for_sample(self._first)
        return infer(list(map(self._forms.filled, self._first)), self._forms)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records in chunks; `start` skips by reading."""
        spec, fill = self.spec, self._forms.fill
        records: Iterator[Any] = itertools.chain(self._first, self._iterator)
        for _ in itertools.islice(records, start):
            pass
        return chunks(spec, records if fill is None else map(fill, records), start, self._forms.advise)


# The attributes in which datasets list the files of their records, as `samples` of torchvision's ImageFolder.
_LISTS_OF_FILES: Final = ("samples", "files", "file_paths", "paths")


def file_of(data: Any, number: int) -> str | None:
    """Return the path of a record's file, for errors; None unless the data has a list of a file for each."""
    for name in _LISTS_OF_FILES:
        files = getattr(data, "__dict__", {}).get(name)
        if isinstance(files, list | tuple) and len(files) == len(data):
            path = files[number][:1] if isinstance(files[number], tuple) else files[number : number + 1]
            if path and isinstance(path[0], str | os.PathLike):
                return os.fspath(path[0])
    return None


def runs_that_can_be_read(
    read: Callable[[range], Any], first: int, end: int, at_once: int, leave_out: LeaveOut
) -> Iterator[Any]:
    """Yield what `read` returns for records from `first` to `end`, without those that can't be read.

    Raises:
        YogaError: if the reason is not an error of the user's code, such as a damaged cache.
    """
    for start in range(first, end, at_once):
        run = range(start, min(start + at_once, end))
        found = []
        try:
            found.append(read(run))
        except Exception as error:  # noqa: BLE001  (a user's code may raise anything)
            reason = _reason_of(error)
            for index in run:
                if len(run) > 1:
                    try:
                        found.append(read(range(index, index + 1)))
                        continue
                    except Exception as of_one:  # noqa: BLE001
                        reason = _reason_of(of_one)
                leave_out(index, reason)
        yield from found


def _reason_of(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, StageError) else error
    if cause is None or isinstance(cause, YogaError | MemoryError):
        raise error
    return f"{type(cause).__name__}: {cause}"


class ItemsSource(Source):
    """Any object with ``__len__`` and ``__getitem__``, read by position.

    Chunks are read through ``__getitems__``, as in PyTorch, if the object has it.
    """

    can_start_anywhere = True

    def __init__(self, data: Any, forms: Forms = PLAIN) -> None:
        self.length: int = len(data)
        self.is_costly = type(data) not in (list, tuple)
        self._data, self._said = data, forms
        self._forms = PLAIN  # until the first records show what "empty" is
        self._spec: Spec | None = None
        self._is_skipping = self._is_open = False
        if not self.length:
            raise UnsupportedDataError(NO_RECORDS)

    @property
    def spec(self) -> Spec:
        """The structure that the first records decide."""
        if self._spec is None:
            self._spec = self._spec_of(range(1))
        return self._spec

    @spec.setter
    def spec(self, spec: Spec) -> None:
        self._spec = spec

    @property
    def is_open(self) -> bool:  # type: ignore[override]  # decided when it is needed
        """Whether other records may show another structure than the first ones."""
        self.spec  # noqa: B018  (reads the first records)
        return self._is_open

    def _spec_of(self, run: range) -> Spec:
        """Return the structure that the records decide from the first of `run` on."""
        numbers: list[int] = []

        def read() -> Iterator[Any]:
            for index in range(run[0], self.length):
                try:
                    found = self._read([index], None)
                except Exception:
                    if index == run[0] or not self._is_skipping:
                        raise
                else:
                    numbers.extend(index for _ in found)
                    yield from found

        self._forms = PLAIN
        sample = first_records(read(), scalars_decide=not self.is_costly or bool(self._said.missing))
        return self._decided(sample, numbers)

    def decide_by(self, indices: Sequence[int]) -> None:
        """Let these records, the first among them, decide the structure; of a list the first ones do, too."""
        if not self.is_costly:
            indices = sorted({*indices, *range(min(self.length, SAMPLED_RECORDS))})
        self._forms = PLAIN
        self._spec = self._decided([self._read([index], None)[0] for index in indices], indices)

    def _decided(self, sample: list[Any], indices: Sequence[int]) -> Spec:
        self._forms = self._said.for_sample(sample)
        self._is_open = is_open(sample[0], scalars_decide=True)
        return infer(list(map(self._forms.filled, sample)), self._forms, indices)

    def find_spec(self) -> None:
        """Let the structure be that of the first record that can be read.

        Raises:
            UnsupportedDataError: if there is none.
        """
        reasons: list[str] = []
        self._is_skipping = True
        found = runs_that_can_be_read(
            self._spec_of, 0, self.length, 1, lambda _, reason: reasons.append(reason)
        )
        self._spec = next(found, None)
        if self._spec is None:
            raise UnsupportedDataError(f"none of {self.length} records can be read; the first: {reasons[0]}")

    def file_of(self, number: int) -> str | None:
        """Return the path of a record's file, if the data lists it."""
        return file_of(self._data, number)

    def _named(self, number: int) -> str:
        path = self.file_of(number)
        return f"record {number} of the source" + (f", {path}" if path else "")

    def items(self, indices: Sequence[int]) -> list[Any]:
        """Return these records; neither later reads nor their user change them in the source."""
        return self._read(indices, copier_of(self.spec.tree, ITEM_COPIERS) if self.is_costly else None)

    def _read(self, indices: Sequence[int], copier: Callable[[Any], Any] | None) -> list[Any]:
        """Return these records; each is passed through `copier` before the next one is read."""
        fill = self._forms.fill
        if hasattr(self._data, "__getitems__"):
            try:
                records = self._data.__getitems__(list(indices))
                return list(records) if fill is None else list(map(fill, records))
            except Exception as error:
                error.add_note(f"while reading records {indices[0]} to {indices[-1]} of the source")
                raise
        found: list[Any] = []
        try:
            for index in indices:
                record = self._data[index] if fill is None else fill(self._data[index])
                found.append(record if copier is None else copier(record))
        except Exception as error:
            error.add_note(f"while reading {self._named(indices[len(found)])}")
            raise
        return found

    def rows(self, first: int, end: int) -> "ItemsSource | None":
        """Return a source of these rows alone, or None if the data can't be cut."""
        part = self._part(first, end)
        if part is None:
            return None
        source = copy.copy(self)
        source._data = part
        source.length = end - first
        return source

    def _part(self, first: int, end: int) -> Any:
        """Return the data with these items alone, or None if they are not in memory."""
        return self._data[first:end] if type(self._data) in (list, tuple) else None

    def readable_chunks(self, first: int, end: int, leave_out: LeaveOut) -> Iterator[Columns]:
        """Yield the records from `first` to `end` that can be read."""
        at_once = 64 if hasattr(self._data, "__getitems__") else 1
        runs = runs_that_can_be_read(lambda run: (run[0], self.items(run)), first, end, at_once, leave_out)
        done = number = 0

        def left_out_before(run: tuple[int, list[Any]]) -> int:
            nonlocal done, number
            number, done = run[0], done + len(run[1])
            return number + len(run[1]) - done

        for _, together in itertools.groupby(runs, left_out_before):  # errors name records by their numbers
            yield from chunks(self.spec, itertools.chain.from_iterable(run for _, run in together), number)

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on."""
        spec, fill = self.spec, self._forms.fill
        if hasattr(self._data, "__getitems__"):
            batches = (range(i, min(i + 64, self.length)) for i in range(start, self.length, 64))
            records: Iterator[Any] = itertools.chain.from_iterable(map(self.items, batches))
        else:
            records = with_record_number_in_errors(
                lambda: (self._data[i] for i in range(start, self.length)), start, self._named
            )
            if fill is not None:
                records = map(fill, records)
        return chunks(spec, records, start, self._said.advise, are_constant=not self.is_costly)


class RecordsSource(Source):
    """Records that can be read at random as columns: those of a `DataRef`, or of any object like it."""

    can_start_anywhere = True
    has_final_spec = True

    def __init__(self, records: Any, forms: Forms = PLAIN) -> None:
        self.spec: Spec = records.spec
        pickled_fields = [
            field.name or "the record itself" for field in self.spec.fields if field.leaf.dtype == OBJECT
        ]
        if pickled_fields and not forms.allow_pickle:
            spec_line = declaration(pickled_fields[0], Leaf(JSON))
            raise UnsupportedDataError(
                f"the fields {pickled_fields} are Python objects: to pickle them, pass "
                "RecordOptions(allow_pickle=True); "
                f"lists, dicts and None that map returns are values if declared, {spec_line}"
            )
        self.length: int = len(records)
        self._records = records
        lineage = getattr(records, "lineage", None)
        self.provenance = {} if lineage is None else {"from": lineage.to_json()}
        # A copy goes on with cursors of the original, though its own fingerprint may be another one.
        own = getattr(records, "fingerprint", None)
        stored = getattr(records, "_records", records)  # of a version, if the records are all of one
        self.stored = stored
        # Of the version, what a copy of all its records keeps; nothing of views, which have other records.
        own_lineage = getattr(stored, "lineage", None)
        self.earlier: tuple[Earlier, ...] = () if own_lineage is None else own_lineage.earlier
        self.metadata_of_copy: dict[str, Any] = {} if own_lineage is None else metadata_of(stored)
        self.fingerprints = set() if own is None else {own, *getattr(stored, "aliases", ())}
        self.content_fingerprint: str | None = getattr(stored, "content_fingerprint", None)
        if not self.length:
            raise UnsupportedDataError(NO_RECORDS)

    def readable_chunks(self, first: int, end: int, leave_out: LeaveOut) -> Iterator[Columns]:
        """Yield the records from `first` to `end` that can be read."""
        at_once = max(1, CHUNK_BYTES // max(1, self._records.record_bytes))
        return runs_that_can_be_read(self._columns, first, end, at_once, leave_out)

    def _columns(self, run: range) -> Columns:
        return list(self._records.columns(np.array(run, np.int64)))

    def chunks(self, start: int = 0) -> Iterator[Columns]:
        """Yield the records from `start` on."""
        count = max(1, CHUNK_BYTES // max(1, self._records.record_bytes))
        for first in range(start, self.length, count):
            yield self._columns(range(first, min(first + count, self.length)))
