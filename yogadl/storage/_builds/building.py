"""Begin builds of a source, for one process that holds the right to build, or in partitions for any tasks."""

import errno
import hashlib
import json
import logging
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from yogadl._core.arguments import in_words
from yogadl._core.forms import PLAIN, Forms
from yogadl._core.key import DatasetKey, is_version, new_key
from yogadl._core.process import one_operation
from yogadl._core.progress import Progress, must_log, showing_progress
from yogadl._core.protocols import DataRef, RandomAccess, views_of
from yogadl._core.spec import Spec
from yogadl._dataref import RecordsRef
from yogadl._format.codec import SAME, Codec, checked_codec, codecs_of, described
from yogadl._format.manifest import checked_metadata
from yogadl._provenance.builder import Call, sha256_of_data
from yogadl._sources.partitioned import PartitionedSource
from yogadl._sources.sources import ItemsSource, RecordsSource, SelfWritingSource, Source, open_source
from yogadl._views.functions import with_found_spec
from yogadl._views.records import SourceRecords
from yogadl.errors import ConfigurationError, StorageError, UnsupportedDataError
from yogadl.storage import _names
from yogadl.storage._builds.build import (
    Build,
    InOrder,
    PlannedBuild,
    Writing,
    describe_machine,
    digest_replaced,
)
from yogadl.storage._builds.executors import ByItsSource, Parallel
from yogadl.storage._builds.left_out import all_left_out, refuse_other_metadata, with_metadata
from yogadl.storage._builds.options import ENGINES, BuildTerms
from yogadl.storage._builds.partitions import Partitions
from yogadl.storage._builds.shares import Shares, shares_of
from yogadl.storage._catalogue.backend import Backend, BuildExclusion, LeaseLostError, reporting_loss
from yogadl.storage._catalogue.cached import Published
from yogadl.storage._catalogue.tags import refuse_tag
from yogadl.storage._files.root import Root
from yogadl.storage._keeping import clear_unresumable
from yogadl.storage._leases.locks import exclusive_build_unless

_log = logging.getLogger("yogadl")

_DIGITS: Final = 24  # of the hash that names a run


class PartitionedBuild:
    """A build in progress, to be handed to tasks: small and picklable; its calls can be repeated.

    Attributes:
        key: The version to build.
        partitions: The number of partitions.
        run: The name that distinguishes this build from other builds of the same key.
    """

    def __init__(self, every: Partitions) -> None:
        self.key, self.partitions, self.run = every.key, every.count, every.run
        self._all = every

    @one_operation()
    def write(
        self,
        partition: int,
        records: Any = None,
        *,
        part_bytes: int | None = None,
        allow_pickle: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Write the records of one partition. If several tasks write it, the first to finish is used.

        Args:
            partition: The number of the partition, from 0.
            records: Any source, also one without records; left out if `begin` was given the source of all
                partitions.
            part_bytes: The largest size of a part; ``None`` is the storage's own choice.
            allow_pickle: Whether objects without a stored form may be pickled.
            progress: Called with records so far, records in all or ``None``, and bytes so far.

        Raises:
            ConfigurationError: if the partition was written from other records than the source has.
        """
        if type(partition) is not int or not 0 <= partition < self.partitions:
            raise ConfigurationError(
                f"there is no partition {partition!r}: they are 0 to {self.partitions - 1}"
            )
        if (records is None) == (self._all.shares is None):
            raise ConfigurationError(
                "begin was given no source: give the records of the partition, [] for none"
                if records is None
                else "begin was given the source of all partitions: leave the records out"
            )
        if self._all.is_published():
            return  # parts that are written now would belong to no version
        part_bytes = part_bytes or self._all.backend.part_bytes
        if records is None:
            self._all.write_share(partition, part_bytes, progress)
        else:
            self._all.write_records(
                partition, records, part_bytes=part_bytes, progress=progress, allow_pickle=allow_pickle
            )

    @one_operation()
    def commit(self, *, metadata: dict[str, Any] | None = None) -> None:
        """Publish the cache, after all partitions are written. Any task may call it, also several times.

        Args:
            metadata: As for `CacheStorage.submit`; that of the first task to commit is used.

        Raises:
            ConfigurationError: if a partition is not written yet.
            UnsupportedDataError: if partitions have different structures.
        """
        self._all.commit({}, metadata=None if metadata is None else checked_metadata(metadata))


def begin_build(
    backend: Backend,
    key: DatasetKey,
    partitions: int | None,
    run: str | None,
    data: Any,
    *,
    forms: Forms = PLAIN,
    origin: str = "",
    codec: Codec = None,
) -> PartitionedBuild:
    """Begin a build of partitions: see `CacheStorage.begin`.

    Args:
        backend: The storage.
        key: The version.
        partitions: The number of partitions.
        run: The name that distinguishes this build from other builds of the same key.
        data: The source of all partitions, or ``None``.
        forms: What is said about the values of records.
        origin: The hash of the code and values that `data` was made from, if it is known.
        codec: How values are compressed.
    """
    codec = checked_codec(codec)
    refuse_tag(backend.root, key)
    if run is not None and (type(run) is not str or not is_version(run) or "/" in run):
        raise ConfigurationError(f"a run can't be called {run!r:.100}: use letters, digits, '-', '_' and '.'")
    if partitions is not None and (type(partitions) is not int or partitions < 1):
        raise ConfigurationError(f"partitions must be a positive integer, not {partitions!r}")
    if data is None:
        # Without a source, a name made from the arguments would mix the partitions of two attempts.
        if partitions is None:
            raise ConfigurationError(
                "partitions must be a positive integer, not None; or give the source of all of them"
            )
        name = run or secrets.token_hex(8)
        folder = _names.partitioned(key, name, partitions)
        return PartitionedBuild(Partitions(backend, key, partitions, name, folder, codec=codec, forms=forms))
    source = open_source(data, forms)
    _check_names(codec, source)
    shares = shares_of(source, partitions)

    def hash_of_data(strict: bool = isinstance(data, DataRef)) -> str:  # if not strict, it may be of samples
        return origin or _hash_of(source, data, strict=strict)

    try:
        data_sha256 = shares.origin(hash_of_data) or hash_of_data()
    except ConfigurationError as error:
        if run is None:
            raise ConfigurationError(
                "it is not certain which records this source has, so partitions of different data could be "
                f"mixed: give a run, such as the id of the job, or solve this: {error}"
            ) from error
        data_sha256 = hash_of_data(False)
    if run is not None:
        data_sha256 = _with_all_records(data_sha256, source)
    data_sha256 = forms.decide(data_sha256)
    name = run or run_of(backend, key, shares, data_sha256, codec=codec)
    folder = _names.partitioned(key, name, shares.count)
    return PartitionedBuild(
        Partitions(
            backend, key, shares.count, name, folder, shares, data_sha256, codec, forms,
            is_named=run is not None,
        )
    )  # fmt: skip


def _with_all_records(data_sha256: str, source: Source) -> str:
    """Return a hash of data in which records that it knows by a sample are hashed whole.

    Raises:
        ConfigurationError: if they are too large for that.
    """
    stored = source.stored if isinstance(source, RecordsSource) else None
    views = views_of(stored) if isinstance(stored, RandomAccess) else ()
    sampled = {id(one): one for one in views if isinstance(one, SourceRecords) and one.is_sampled}
    if not sampled:
        return data_sha256
    described = [data_sha256, *(one.hash_of_all(sha256_of_data) for one in sampled.values())]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _hash_of(source: Source, data: Any, *, strict: bool = False) -> str:
    """Return the hash of the code and values that a source was made from."""
    return sha256_of_data(data if source.origin is None else source.origin, strict=strict)


def _check_names(codec: Codec, source: Source) -> None:
    """Refuse a codec for a field that the source does not have."""
    if isinstance(codec, Mapping):  # else the spec, which some sources have to look for, is not needed
        codecs_of(codec, [field.name for field in source.spec.fields])


def run_of(backend: Backend, key: DatasetKey, shares: Shares, origin: str, codec: Codec, **terms: Any) -> str:
    """Return the name that all builds of the same key from the same source and terms share.

    A build that begins after such a build was published gets another name, because partitions that remain
    from before may have older data.
    """
    if codec is not None:
        terms["codec"] = described(codec)
    terms |= {
        "shares": shares.terms(),
        "origin": origin,
        "replaces": digest_replaced(backend.root, key),
    }
    return hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def build_version(
    backend: Backend,
    key: DatasetKey,
    data: Callable[[], Any],
    options: BuildTerms,
    call: Call | None = None,
) -> Published:
    """Build a version, also one that exists; at the end, remove files that no build can continue with.

    Args:
        backend: The storage.
        key: The version.
        data: Returns the source, or a `PlannedBuild`; called once no other process builds.
        options: The options of the build.
        call: The call that returned the source, if the manifest is to describe it.

    Raises:
        ConfigurationError: if the name is not allowed for a new version.
    """
    published = _built(backend, key, data, options, call, replaces=True)
    assert published is not None, "what replaces any version is published"
    return published


def build_if_absent(
    backend: Backend,
    key: DatasetKey,
    data: Callable[[], Any],
    options: BuildTerms,
    call: Call | None = None,
) -> Published:
    """Return a version, which is built if it does not exist, by this process or another one.

    The arguments are those of `build_version`.
    """
    published = backend.catalogue.find(key)
    while published is None:  # again, if another process has built it, and a third one deleted it
        published = _built(backend, key, data, options, call, replaces=False)
        published = published or backend.catalogue.find(key)
    return published


@one_operation()
def _built(
    backend: Backend,
    key: DatasetKey,
    data: Callable[[], Any],
    options: BuildTerms,
    call: Call | None,
    *,
    replaces: bool,
) -> Published | None:
    """Build a version; return ``None`` if another process has published it, which `replaces` excludes."""
    new_key(key.id, key.version)
    unless = None if replaces else lambda: backend.catalogue.find(key) is not None
    token = secrets.token_hex(8)
    published, made = None, None
    try:
        with exclusive_build_unless(backend, key, unless) as exclusion:
            if exclusion is not None:
                records = data()
                try:
                    made = _build(backend, key, records, options, call, token, exclusion, replaces)
                except LeaseLostError as error:
                    if replaces:
                        raise
                    _log.warning(
                        "yogadl: another process has taken over the build of %s; its result is used: %s",
                        key, error,
                    )  # fmt: skip
        published = key
    finally:
        clear_unresumable(backend, key.id, _names.unresumable(key, token), published)
    return made


def _build(
    backend: Backend,
    key: DatasetKey,
    data: Any,
    options: BuildTerms,
    call: Call | None,
    token: str,
    exclusion: BuildExclusion,
    replaces: bool,
) -> Published | None:
    planned = data if isinstance(data, PlannedBuild) else PlannedBuild(data)
    codec = checked_codec(planned.codec) if options.codec == SAME else options.codec
    build_options = replace(options.build, part_bytes=options.build.part_bytes or backend.part_bytes)
    options = replace(options, codec=codec, build=build_options)
    source = _open(planned.data, options, planned.like)
    planned.check(source)
    refuse_other_metadata(source, options.build.metadata or {})
    machine = describe_machine()

    def sha256() -> str:
        return call.sha256() if call else _hash_of(source, planned.data)

    with reporting_loss(exclusion), showing_progress(options.build.progress, f"building {key}") as show:
        build = _begun(backend, key, source, options, sha256, token)
        if options.build.check_space:
            _check_space(backend.root, key, source, build.folder, options.codec)
        log_level = logging.WARNING if must_log(options.build.progress) else logging.INFO  # of the progress
        build, written = build.write_all(source, Writing(options, exclusion, show, log_level))
        left_out = all_left_out(written)
        if left_out.count == source.length:
            reason = left_out.records[0]["reason"]
            raise UnsupportedDataError(f"{key}: none of {source.length} records can be read: {reason}")
        receipts = build.receipts(written)
        if left_out.count:
            first = left_out.records[0]
            _log.warning(
                "yogadl: %s: %d of %s records can't be read and are left out; the first is record %d: %s",
                key, left_out.count, source.length, first["index"], first["reason"],
            )  # fmt: skip
        if isinstance(source, PartitionedSource):
            source.check_at_end()
        content = with_metadata(planned.content(receipts), options.build.metadata, source, key, left_out)
        builder = {**machine, **source.provenance, **(call.manifest() if call else {})}
        aside = _names.unresumable(key, token)
        return build.publish(content, builder, exclusion, replaces=replaces, aside=aside)


def _open(data: Any, options: BuildTerms, like: Spec | None) -> Source:
    """Open a source, whose records are like those before, if there are any.

    Raises:
        ConfigurationError: if records that can't be read are to be left out, and can't be.
    """
    if options.is_skipping and isinstance(data, RecordsRef):
        data = RecordsRef(with_found_spec(data._records))
    source = open_source(data, options.forms(like))
    if not options.is_skipping:
        return source
    if isinstance(source, ItemsSource):
        source.find_spec()
    elif not isinstance(source, RecordsSource):
        raise ConfigurationError(
            'on_error="skip" needs records that are read one by one: an object with __len__ and __getitem__, '
            f"or a DataRef. After an error, the rest of a {type(data).__name__} can't be read: catch errors "
            "in it, and leave the records out there"
        )
    return source


def _begun(
    backend: Backend,
    key: DatasetKey,
    source: Source,
    options: BuildTerms,
    sha256: Callable[[], str],
    token: str,
) -> Build:
    """Begin a build of a source, or continue one that was killed; the caller holds the right to build.

    Args:
        backend: The storage.
        key: The version.
        source: The source.
        options: The options of the build.
        sha256: Returns a hash of the code and values that the source was made from.
        token: A name of this attempt alone.

    Raises:
        ConfigurationError: if the source can't be read as the options require.
    """
    codec, forms = options.codec, options.forms()
    _check_names(codec, source)
    if isinstance(source, SelfWritingSource):
        if options.workers > 1 or options.build.engine not in (None, *ENGINES):
            raise ConfigurationError(
                "the tasks that make the records of this source also write them: leave out workers and engine"
            )
        folder = _names.parallel(key, token)
        build: Parallel = ByItsSource(backend, key, 0, token, folder, codec=codec, forms=forms)
        build.put_others_aside()
        return build
    is_cut = options.build.engine is not None or options.workers > 1 or options.is_skipping
    if not is_cut and not isinstance(source, PartitionedSource):
        if not source.can_start_anywhere:
            return InOrder(backend, key, 1, token, _names.unresumable(key, token), codec=codec)
        origin = forms.decide(_origin_of(source, sha256))
        return InOrder(backend, key, 1, token, _names.resumable(key), origin=origin, codec=codec)
    shares, run, origin = shares_of(source), token, ""
    try:
        found = forms.decide(shares.origin(sha256))
        skips = {"on_error": "skip"} if options.is_skipping else {}
        run = run_of(backend, key, shares, found, codec, part_bytes=options.build.part_bytes, **skips)
        origin = found
    except ConfigurationError as error:
        _log.info(
            "yogadl: %s: if this build is killed, the next one starts from the beginning: %s", key, error
        )
    build = Parallel(
        backend, key, shares.count, run, _names.parallel(key, run), shares, origin, codec, forms,
        is_skipping=options.is_skipping,
    )  # fmt: skip
    build.put_others_aside()
    return build


def _origin_of(source: Source, sha256: Callable[[], str]) -> str:
    """Return the hash of all that decides a source's records; empty if all records must be compared."""
    if not source.is_costly:
        return ""
    decisive = {"provenance": dict(source.provenance), "sha256": sha256()}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _check_space(root: Root, key: DatasetKey, source: Source, folder: str, codec: Codec) -> None:
    """Refuse to build a version that certainly needs more space than the disk has.

    Only sizes that a source states before its records are read are certain, of fields that are not
    compressed. The sizes of the first records are no measure: these may be by far the largest.

    Raises:
        StorageError: if the version does not fit.
    """
    if source.length is None or not root.promises.renames or not source.has_final_spec:
        return
    codecs = codecs_of(codec, [field.name for field in source.spec.fields])
    leaves = [field.leaf for field, one in zip(source.spec.fields, codecs, strict=True) if one is None]
    least_bytes = source.length * sum(leaf.row_bytes for leaf in leaves if leaf.is_fixed)
    with root.workplace(folder) as work:
        free_bytes = shutil.disk_usage(work).free
    if least_bytes <= free_bytes:
        return
    # Parts of an earlier build are continued, and parts of another version may have the same content.
    parts_bytes = sum(entry.size_bytes for entry in root.entries(f"{key.id}/parts"))
    if least_bytes > free_bytes + parts_bytes:
        raise StorageError(
            errno.ENOSPC,
            f"{key} can't fit: it takes {in_words(least_bytes)} at least, and {root.location} has "
            f"{in_words(free_bytes)} free; free some space, or build on a larger disk. If it fits "
            "nevertheless (the file system may compress), pass BuildOptions(check_space=False), or "
            "--no-space-check to yogadl build",
        )
