"""Find the version of a source, or build it; with the version "auto", its name is made from the content."""

import hashlib
import importlib
import inspect
import json
from collections.abc import Callable
from typing import Any, Final, NoReturn

from yogadl._core.forms import PLAIN
from yogadl._core.key import AUTO, DatasetKey
from yogadl._core.protocols import DataRef, RandomAccess, views_of
from yogadl._core.spec import BadValueError, refuse
from yogadl._dataref import RecordsRef
from yogadl._format.columns import RunHash, StoredColumn, fingerprint_of, hash_run, stored_column, widen_by
from yogadl._provenance.builder import sha256_of_data, sha256_of_function
from yogadl._provenance.values import HOOK
from yogadl._sources.partitioned import Partitioned, PartitionedSource
from yogadl._sources.sources import ArraysSource, ItemsSource, Source, is_arrays, open_source
from yogadl._views.records import SourceRecords, add_array, is_plain
from yogadl.errors import ConfigurationError
from yogadl.storage._builds.options import BuildTerms
from yogadl.storage._catalogue.backend import Backend

_DIGITS: Final = 16
# The classes of tables that the adapter of tables knows by less than their content.
_NAMED_TABLES: Final = frozenset(
    {("datasets.arrow_dataset", "Dataset"), ("yogadl.adapters.arrays._columns", "PiecesSource")}
)
# The packages whose objects with a length are tables in memory.
_TABLES: Final = frozenset({"pandas", "polars", "pyarrow"})


def found_or_built(
    backend: Backend,
    data: Any,
    dataset_id: str,
    dataset_version: str,
    options: BuildTerms,
    *,
    check: bool,
) -> RecordsRef:
    """Return a reference to the version of a source: see `CacheStorage.cached`."""
    DatasetKey(dataset_id, dataset_version)  # before anything is read
    if dataset_version == AUTO:
        dataset_version = auto_version(data, dataset_id, options)
    key, catalogue = DatasetKey(dataset_id, dataset_version), backend.catalogue
    published = catalogue.find(key)
    if published is None:
        from yogadl.storage._builds.building import build_if_absent  # a hit needs nothing of builds

        published = build_if_absent(backend, key, lambda: data, options)
    return catalogue.ref(key, published, allow_pickle=options.records.allow_pickle, check=check)


def auto_version(data: Any, dataset_id: str, options: BuildTerms) -> str:
    """Return the name of the version of a source, which is made from its content.

    Options that change the records that are stored are a part of it.

    Raises:
        ConfigurationError: if it can't be known which records the source has.
    """
    identity = options.forms().decide(json.dumps(_identity_of(data, dataset_id, options)))
    changes = {"on_error": options.records.on_error} if options.is_skipping else {}
    text = json.dumps([identity, changes])
    return f"{AUTO}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


def _identity_of(data: Any, dataset_id: str, options: BuildTerms) -> tuple[str, str]:
    """Return a kind of source, and a text that is equal for two of this kind only if their records are.

    Raises:
        ConfigurationError: if it can't be known which records the source has.
    """
    if isinstance(data, DataRef):
        return "records", _with_advice(lambda: _identity_of_ref(data), data, dataset_id)
    if inspect.getattr_static(data, HOOK, None) is not None:
        return "named", _with_advice(lambda: sha256_of_data(data, strict=True), data, dataset_id)
    kinds = type(data).__mro__
    if not _NAMED_TABLES.isdisjoint((kind.__module__, kind.__name__) for kind in kinds):
        # By its name: a storage is below the adapters, and this one imports what reads tables.
        adapter = importlib.import_module("yogadl.adapters.arrays._source")
        found = adapter.identity_of(data, _call_with_version(dataset_id))
        if found is None:
            _refuse(data, dataset_id)
        return "tables", found
    if isinstance(data, Partitioned):
        return "files", _with_advice(lambda: _identity_of_files(data), data, dataset_id)
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    is_table = hasattr(data, "__len__") and not _TABLES.isdisjoint(packages)
    if is_table or is_arrays(data) or type(data) in (list, tuple, range):
        return "content", _hash_of_content(open_source(data, options.forms()))
    _refuse(data, dataset_id)


def _identity_of_ref(ref: Any) -> str:
    """Return the hash of the records of a reference, and of the functions that they pass through."""
    if not isinstance(getattr(ref, "fingerprint", None), str):
        raise ConfigurationError("it has no fingerprint")
    records = getattr(ref, "_records", None)
    views = list(views_of(records)) if isinstance(records, RandomAccess) else []
    sampled = {id(view): view for view in views if isinstance(view, SourceRecords) and view.is_sampled}
    if not sampled:
        return sha256_of_data(ref, strict=True)
    stages = [stage for view in views for stage in view.stages]
    described = [sha256_of_data(ref), *(sha256_of_function(stage.function) for stage in stages)]
    for base in sampled.values():
        if not _is_in_memory(base.source):
            raise ConfigurationError(
                "from_source knows these records by a sample: give it a fingerprint= that changes whenever a "
                "record does"
            )
        described.append(_hash_of_content(base.source))
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _identity_of_files(data: Partitioned) -> str:
    """Return the hash of the functions that open partitions, and of the sizes and times of their files."""
    source: Any = data.as_source(PLAIN)
    assert isinstance(source, PartitionedSource), "which a Partitioned is read as"
    stamps = [source.partition(number).stamp for number in range(source.partitions)]
    if not all(stamps):
        raise ConfigurationError(
            f"partition {stamps.index('')} has no file on this machine, of which size and time tell whether "
            "it was changed"
        )
    return hashlib.sha256(json.dumps([sha256_of_data(data, strict=True), stamps]).encode()).hexdigest()


def _is_in_memory(source: Source) -> bool:
    """Return whether the records are values that Python holds, not those that an object makes or reads."""
    return isinstance(source, ArraysSource) or (isinstance(source, ItemsSource) and not source.is_costly)


def _hash_of_content(source: Source) -> str:
    """Return a hash of all records of a source.

    Arrays of numbers are hashed as bytes, several times as fast as by record.
    """
    arrays = source.arrays if isinstance(source, ArraysSource) else []
    plain = {number for number, column in enumerate(arrays) if is_plain(column)}
    described: list[Any] = []
    for number in sorted(plain):
        digest = hashlib.sha256()
        add_array(digest, arrays[number])
        described.append([number, arrays[number].dtype.str, arrays[number].shape, digest.hexdigest()])
    fields, run, records = source.spec.fields, RunHash(), 0
    leaves = [field.leaf for field in fields]
    for columns in source.chunks() if len(plain) < len(fields) else ():
        stored: list[StoredColumn] = []
        for number in sorted(set(range(len(fields))) - plain):
            try:
                stored.append(stored_column(leaves[number], columns[number]))
                leaves[number] = widen_by(leaves[number], stored[-1])
            except BadValueError as error:
                at = records + error.position
                raise refuse(fields[number].name, at, error.problem) from error.__cause__
        run = run.then(hash_run([column.hashes() for column in stored], len(stored[0])))
        records += len(stored[0])
    described.append(fingerprint_of(source.spec.with_leaves(leaves), run))
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _with_advice(identity: Callable[[], str], data: Any, dataset_id: str) -> str:
    try:
        return identity()
    except ConfigurationError as error:
        raise ConfigurationError(f"{_advice(data, dataset_id)}. The reason: {error}") from error


def _refuse(data: Any, dataset_id: str) -> NoReturn:
    reason = ""
    if callable(data):
        reason = (
            f"; or decorate the function that returns it with @storage.cacheable({dataset_id!r}, {AUTO!r}), "
            "whose version is made from code and arguments"
        )
    raise ConfigurationError(_advice(data, dataset_id) + reason)


def _advice(data: Any, dataset_id: str) -> str:
    kind = type(data)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return (
        f"it can't be known whether this {name} has the same records as before, so the version {AUTO!r} "
        "can't be made: give a version, and change it whenever the records do: "
        f"{_call_with_version(dataset_id)}"
    )


def _call_with_version(dataset_id: str) -> str:
    return f"storage.cached(source, {dataset_id!r}, '1')"
