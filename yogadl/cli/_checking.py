"""Check that a storage can be used, and that versions are whole."""

import argparse
import contextlib
import errno
import os
import resource
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from yogadl._core.arguments import in_words
from yogadl._core.printable import masked
from yogadl.cli._arguments import (
    Answer,
    bucket_at,
    command,
    declared,
    is_store,
    open_existing,
    open_version,
    refuse_unused_options,
)
from yogadl.cli._output import Bar, contents, counted, error_line, note, repair_result, say
from yogadl.errors import (
    ConfigurationError,
    CredentialsError,
    DatasetNotFoundError,
    MissingDependencyError,
    StorageError,
    YogaError,
)
from yogadl.storage import CacheStorage, Verified
from yogadl.storage._files.folder import file_system, is_network
from yogadl.storage._files.locks import open_lock, try_lock
from yogadl.storage._objects.bucket import Bucket, Object, check_conditions, read
from yogadl.storage._objects.retry import RetryPolicy
from yogadl.storage._objects.store import Verb
from yogadl.storage._remote.eviction import MEMORY_FILE_SYSTEMS
from yogadl.storage._remote.mirror import LocalMirror

_WRITERS: Final = 8
_ROUND_TRIPS: Final = 5
_SKEW_NOTED_S: Final = 5.0
_SKEW_WRONG_S: Final = 300.0
_LITTLE_ROOM_BYTES: Final = 10**9
_FEW_DESCRIPTORS: Final = 1024
# Linux's default limit; in a cache of more parts than the limit, some parts are read without being mapped.
_FEW_MAPPINGS: Final = 65_530

_REMEDIES: Final = {
    errno.ENOENT: "make the bucket, or correct its name or --endpoint-url",
    errno.EAGAIN: "check that the store is up and can be reached: --endpoint-url, proxies, firewalls, DNS",
    errno.ENXIO: "give the bucket's own --region, or the right --endpoint-url",
    errno.EPROTO: "correct --endpoint-url: http or https, and the name that is in its certificate",
}
# The permissions in S3 and in Google Cloud Storage.
_PERMISSIONS: Final = {
    Verb.LIST: ("s3:ListBucket", "storage.objects.list"),
    Verb.READ: ("s3:GetObject", "storage.objects.get"),
    Verb.WRITE: ("s3:PutObject", "storage.objects.create and storage.objects.delete"),
    Verb.DELETE: ("s3:DeleteObject", "storage.objects.delete"),
}


class Outcome(StrEnum):
    """The result of a check."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The finding of one check.

    Args:
        what: The subject of the check, in a word or two.
        state: The result.
        text: A sentence about the result.
        mend: Advice; may be empty.
    """

    what: str
    state: Outcome
    text: str
    mend: str = ""


def _ok(what: str, text: str) -> Finding:
    return Finding(what, Outcome.OK, text)


def _noted(what: str, text: str, mend: str = "") -> Finding:
    return Finding(what, Outcome.NOTE, text, mend)


def _wrong(what: str, text: str, mend: str) -> Finding:
    return Finding(what, Outcome.PROBLEM, text, mend)


def examine_bucket(bucket: Bucket, *, writes: bool = True) -> Iterator[Finding]:
    """Check that a bucket can be reached, listed and read, and whether writes work as they must.

    Args:
        bucket: The bucket.
        writes: Whether to write to it, under ``.yogadl/``.
    """
    started = time.perf_counter()
    try:
        first = next(bucket.list(), None)
    except StorageError as error:
        if error.errno != errno.EACCES or isinstance(error, CredentialsError):
            yield _problem("access", error, "correct the URL or the options")
            return  # every other check would fail, too
        yield _problem("list", error, _allow(bucket, Verb.LIST))
        first = None
    except ConfigurationError as error:
        yield _wrong("access", str(error), "correct the URL or the options")
        return
    else:
        took = f"{bucket.url} took {time.perf_counter() - started:.2f} s for a first answer"
        yield _ok("access", f"{took}: endpoint, region and credentials are right")
        yield _ok("list", "it is empty" if first is None else f"it has {first.name}")
    yield _examine_read(bucket, first)
    if writes:
        yield from _examine_writing(bucket)
    else:
        yield _noted("write", "not tried (read-only); neither were put-if-absent and the clock")


def _examine_read(bucket: Bucket, first: Object | None) -> Finding:
    """Read a byte of an object, or request an object that does not exist."""
    name = ".yogadl/absent" if first is None else first.name
    times = []
    try:
        for _ in range(_ROUND_TRIPS):
            started = time.perf_counter()
            read(bucket, name, 0, 1)
            times.append(time.perf_counter() - started)
    except StorageError as error:
        return _problem("read", error, _allow(bucket, Verb.READ))
    return _ok("read", f"a small read takes {1000 * statistics.median(times):.0f} ms")


def _examine_writing(bucket: Bucket) -> Iterator[Finding]:
    name, content = f".yogadl/doctor-{secrets.token_hex(8)}", secrets.token_bytes(64)
    before = time.time()
    try:
        written = bucket.put(name, content)
    except StorageError as error:
        mend = (
            f"to build, {_allow(bucket, Verb.WRITE)}. To read, this is not needed: --read-only leaves it out"
        )
        yield _problem("write", error, mend)
        return
    after = time.time()
    yield _examine_content(bucket, name, content)
    yield _compare_clocks(written.modified, before, after)
    yield _examine_conditions(bucket, f"{name}-crowd")
    try:
        for each in (name, f"{name}-crowd"):
            bucket.delete(each)
    except StorageError as error:
        text = f"{name} can't be removed: {error!s}"
        yield _noted("delete", text, f"for builders and `prune`, {_allow(bucket, Verb.DELETE)}")
    else:
        yield _ok("delete", "the object was deleted")


def _examine_content(bucket: Bucket, name: str, content: bytes) -> Finding:
    try:
        if read(bucket, name) == content:
            return _ok("write", "an object was written and read back")
    except StorageError as error:
        return _problem("write", error, _allow(bucket, Verb.READ))
    return _wrong("write", f"{name} has other bytes than were written to it", "use another store")


def _compare_clocks(modified: float, before: float, after: float) -> Finding:
    # HTTP dates are whole seconds.
    skew_s = max(0.0, before - (modified + 1), modified - after)
    text = f"the clocks of this machine and of the store are {skew_s:.0f} s apart"
    if skew_s < _SKEW_NOTED_S:
        return _ok("clock", text)
    state = Outcome.NOTE if skew_s < _SKEW_WRONG_S else Outcome.PROBLEM
    return Finding("clock", state, text, "set this machine's clock by NTP: timedatectl set-ntp true")


def _examine_conditions(bucket: Bucket, name: str) -> Finding:
    """Check put-if-absent: only one write succeeds, of two in turn and of several at once to `name`."""
    subject = "put-if-absent"
    mend = "use another store, or let only one machine build, with Lease(exclusive=False)"
    try:
        check_conditions(bucket)
        with ThreadPoolExecutor(_WRITERS) as writers:
            contents = [secrets.token_hex(16).encode() for _ in range(_WRITERS)]
            won = sum(writers.map(lambda content: bucket.put_if_absent(name, content), contents))
    except ConfigurationError as error:
        return _wrong(subject, str(error), mend)
    except StorageError as error:
        return _problem(subject, error, "allow to write on a condition: a policy may forbid it")
    if won != 1:
        return _wrong(subject, f"{won} of {_WRITERS} concurrent conditional writes succeeded, not one", mend)
    return _ok(subject, f"one of {_WRITERS} concurrent conditional writes succeeded")


def _allow(bucket: Bucket, verb: Verb) -> str:
    """Return the advice to allow an operation, with the permission and the names of a policy."""
    scheme, _, place = bucket.url.partition("://")
    name, of_s3, of_gcs = place.partition("/")[0], *_PERMISSIONS[verb]
    if scheme == "gs":
        return f"allow to {verb.value}: {of_gcs} on the bucket {name}"
    if scheme == "s3":
        where = name if verb is Verb.LIST else f"{place}/*"
        return f"allow to {verb.value}: {of_s3} on arn:aws:s3:::{where}"
    return f"allow to {verb.value} in {bucket.url}"


def _problem(subject: str, error: StorageError, mend: str) -> Finding:
    """Return the finding of a store's error; `mend` is the advice if the store denies access."""
    if isinstance(error, CredentialsError):
        mend = "give other credentials, by --profile or the environment; --anonymous for a public bucket"
    elif error.errno == errno.EACCES:
        mend = f"if the credentials are right, {mend}"
    return _wrong(subject, str(error), _REMEDIES.get(error.errno or 0, mend))


def examine_mirror(mirror: LocalMirror, *, writes: bool = True) -> Iterator[Finding]:
    """Check the folder of a mirror.

    Args:
        mirror: The mirror.
        writes: Whether to make the folder, if it is missing, and to try locks in it.
    """
    try:
        location = mirror.location if writes else mirror.location_if_made()
    except (StorageError, ConfigurationError) as error:
        yield _wrong("mirror", str(error), "give a folder on a local disk with --mirror")
        return
    if location is None:
        yield _noted("mirror", "its folder does not exist yet, and was not made (read-only)")
        return
    limit_bytes = location.limit_bytes()
    limit = "only the disk limits it" if limit_bytes is None else f"it may hold {in_words(limit_bytes)}"
    yield from examine_folder("mirror", location.root, f"{location.root}: {limit}", writes=writes)


def examine_folder(subject: str, folder: Path, description: str, *, writes: bool = True) -> Iterator[Finding]:
    """Check the file system that a folder is on, its room, and whether locks work there.

    Args:
        subject: The name of the folder in the findings.
        folder: The folder.
        description: The beginning of the finding about its file system.
        writes: Whether to try locks in it.
    """
    kind = file_system(folder)
    if is_network(kind):
        text = f"{description}. It is on a network file system ({kind}): reads are as fast as that"
        yield _noted(subject, text, "a folder on a local disk is better")
    elif kind in MEMORY_FILE_SYSTEMS:
        yield _noted(
            subject,
            f"{description}. It is in memory ({kind})",
            "a folder on a disk takes no memory",
        )
    else:
        yield _ok(subject, f"{description}, on {kind or 'a file system of unknown kind'}")
    status = os.statvfs(folder)
    free_bytes = status.f_bavail * status.f_frsize
    text = f"{in_words(free_bytes)} are free"
    if free_bytes < _LITTLE_ROOM_BYTES:
        yield _wrong(f"{subject}: room", text, "make room, or choose a folder on a larger disk")
    else:
        yield _ok(f"{subject}: room", text)
    if writes:
        yield _examine_locks(subject, folder)


def _examine_locks(subject: str, folder: Path) -> Finding:
    """Lock a file, and check that it can't be locked again."""
    subject, path = f"{subject}: locks", folder / f".yogadl-doctor-{secrets.token_hex(8)}"
    mend = "choose a folder on a local disk"
    opened: list[int] = []
    try:
        opened += [open_lock(path), open_lock(path)]
        first, second = (try_lock(descriptor, path, exclusive=True) for descriptor in opened)
    except StorageError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            mend = "to build, make it writable. To read, this is not needed: --read-only leaves it out"
        return _wrong(subject, str(error), mend)
    finally:
        for descriptor in opened:
            os.close(descriptor)
        with contextlib.suppress(OSError):  # a read-only disk raises even if the file does not exist
            path.unlink()
    if not first or second:
        return _wrong(subject, f"a file in {folder} could be locked twice at the same time", mend)
    return _ok(subject, "locks work")


def examine_process() -> Iterator[Finding]:
    """Check the limits that this process runs under."""
    yield _limit("open files", resource.RLIMIT_NOFILE, _FEW_DESCRIPTORS, Outcome.PROBLEM, "ulimit -n 65536")
    # All mapped caches together count against this limit.
    yield _limit("address space", resource.RLIMIT_AS, sys.maxsize, Outcome.NOTE, "ulimit -v unlimited")
    yield _limit("size of files", resource.RLIMIT_FSIZE, 2**30, Outcome.PROBLEM, "ulimit -f unlimited")
    try:
        mappings = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return  # not Linux
    if mappings < _FEW_MAPPINGS:
        mend = f"sysctl -w vm.max_map_count={_FEW_MAPPINGS}"
        yield _noted("mappings", f"vm.max_map_count is {mappings}", mend)


def _limit(subject: str, kind: int, enough: int, state: Outcome, mend: str) -> Finding:
    most = resource.getrlimit(kind)[0]
    if most == resource.RLIM_INFINITY:
        return _ok(subject, "no limit")
    if most >= enough:
        return _ok(subject, f"the limit is {most:,}")
    return Finding(subject, state, f"the limit is {most:,}", mend)


_COLORS: Final = {Outcome.PROBLEM: "red"}
# The user waits for the result, so retries end early.
_PATIENCE: Final = RetryPolicy(silence_s=10.0, total_s=20.0)


@command(
    *declared(
        """
        where=[STORAGE]  the storage: the same as -s
        --read-only  write nothing, neither to the storage nor on this machine
        """
    ),
    has_bar=True,
)
def doctor(arguments: argparse.Namespace) -> Answer:
    """Check that a storage can be used; say how to solve each problem.

    In a bucket the command checks the credentials, the region and the endpoint, the permissions to list, read
    and write, whether the store keeps two builders apart, and the clock. On this machine the command checks
    the mirror's folder, the folder's free space, whether locks work there, and the limits of this process.
    The command writes a few objects below .yogadl/ in the bucket, and removes all of them but a small one;
    with --read-only it writes nothing. The exit code is 1 if there is a problem.

    Example:
      yogadl doctor s3://bucket/caches
      yogadl doctor gs://bucket/caches --read-only --mirror /nvme/mirror
      yogadl doctor -s /data/caches
    """
    if arguments.where is not None and arguments.storage is not None:
        arguments.refuse("give the storage only once: as an argument, or with -s")
    arguments.storage = arguments.where if arguments.where is not None else arguments.storage
    findings = []
    for finding in _examine(arguments):
        findings.append(finding)
        if not arguments.json:
            _say(finding)
    problems = sum(finding.state is Outcome.PROBLEM for finding in findings)
    document = {
        "storage": arguments.storage and masked(arguments.storage),
        "checks": [asdict(one) | {"state": one.state.value, "mend": one.mend or None} for one in findings],
        "problems": problems,
    }
    text = f"Problems found: {problems}." if problems else "All is well."
    return Answer(document, [text], int(problems > 0))


def _examine(arguments: argparse.Namespace) -> Iterator[Finding]:
    writes: bool = not arguments.read_only
    location: str | None = arguments.storage
    if location is not None and "://" in location:
        refuse_unused_options(arguments, location)
        patience = {"patience": _PATIENCE} if is_store(location) else {}
        try:
            bucket = bucket_at(location, arguments, **patience)
            yield from examine_bucket(bucket, writes=writes)
        except MissingDependencyError as error:
            yield _wrong("access", str(error), str(error).rpartition(": ")[2])
            return
        except ConfigurationError as error:
            yield _wrong("access", str(error), "correct the URL or the options")
            return
        mirror = LocalMirror(bucket, arguments.mirror, arguments.mirror_limit)
        yield from examine_mirror(mirror, writes=writes)
    else:
        folder = Path(open_existing(arguments).location)
        yield from examine_folder("folder", folder, str(folder), writes=writes)
    yield from examine_process()


def _say(finding: Finding) -> None:
    say(f"{finding.state.value:<8} {finding.what:<15} {finding.text}", _COLORS.get(finding.state, ""))
    if finding.mend:
        say(f"{'':<24} remedy: {finding.mend}")


@dataclass
class _Checked:
    """The result of checking one version: the verified contents, or an error."""

    id: str
    version: str
    verified: Verified | None = None
    error: str = ""


_COMPARED: Final = "all bytes were compared with their checksums"
_NOT_COMPARED: Final = (
    "only their sizes and tags were compared; they were adopted without reading them, so that there are no "
    "checksums"
)


@command(
    *declared(
        """
        [ID]  the name of the dataset; or ID@TAG
        [VERSION]  the name of the version, or a tag
        --all  check all versions: of the dataset ID, or of all datasets
        """
    ),
    has_bar=True,
)
def verify(arguments: argparse.Namespace) -> Answer:
    """Read every byte of a version and compare it with its checksums.

    If the version is in a bucket, the copies in this machine's mirror are compared, too. A damaged copy is
    downloaded again. Foreign files that were adopted are read as well, if they were read then; else only
    their sizes and tags are compared.

    If there is damage, the command names the dataset, the field and the records, and the exit code is 1. With
    --all the other versions are still checked.

    Example:
      yogadl verify squares 1 -s /data/caches
      yogadl verify --all -s /data/caches
    """
    is_named = arguments.version is not None or "@" in (arguments.id or "")
    if arguments.version is not None if arguments.all else not is_named:
        arguments.refuse("give ID and VERSION, or --all, or ID --all")
    storage = open_existing(arguments) if arguments.all else open_version(arguments)
    keys = _keys(storage, arguments.id) if arguments.all else [(arguments.id, arguments.version)]
    found = [_found(storage, *key) for key in keys]
    checked: list[_Checked] = []
    begun_bytes = 0
    with Bar("verifying", sum(size_bytes for *_, size_bytes in found)) as bar:
        for dataset_id, version, size_bytes in found:
            progress = _progress(bar.show, begun_bytes, size_bytes)
            begun_bytes += size_bytes
            result = _Checked(dataset_id, version)
            try:
                result.verified = storage.verify(dataset_id, version, progress=progress)
            except DatasetNotFoundError:
                if arguments.all:
                    continue  # deleted meanwhile
                raise
            except YogaError as error:
                result.error = error_line(error)
            checked.append(result)
            bar.clear()
            if result.verified is None:
                note(result.error, "red")
            elif not arguments.json:
                _say_checked(result, result.verified)
    damaged = sum(result.verified is None for result in checked)
    document = {"storage": storage.location, "versions": [_to_json(result) for result in checked]}
    total = [f"{counted(len(checked), 'version')} checked, {damaged} damaged."] if arguments.all else []
    return Answer(document, total, int(damaged > 0))


def _keys(storage: CacheStorage, dataset_id: str | None) -> list[tuple[str, str]]:
    ids = storage.datasets() if dataset_id is None else [dataset_id]
    keys = [(name, version) for name in ids for version in storage.versions(name)]
    if dataset_id is not None and not keys:
        raise DatasetNotFoundError(f"there is no dataset {dataset_id!r} in {storage.location}")
    return keys


def _found(storage: CacheStorage, dataset_id: str, version: str) -> tuple[str, str, int]:
    """Return a version and its size, with a tag replaced by the version that it names."""
    try:
        info = storage.info(dataset_id, version)
    except YogaError:
        return dataset_id, version, 0  # the check reports the error
    return dataset_id, info.version, info.size_bytes


def _progress(show: Callable[[float], None], before_bytes: int, own_bytes: int) -> Callable[[int, int], None]:
    return lambda parts, total: show(before_bytes + own_bytes * parts / max(1, total))


def _say_checked(result: _Checked, verified: Verified) -> None:
    say(f"{result.id} {result.version} is sound: {contents(verified)}")
    if verified.foreign_files:
        files = counted(verified.foreign_files, "foreign file")
        say(f"{files} of it: " + (_COMPARED if verified.foreign_read else _NOT_COMPARED))
    if verified.mirrored:
        files = counted(verified.mirrored, "file")
        say(f"{files} of it in this machine's mirror: {repair_result(verified.mended)}")


def _to_json(result: _Checked) -> dict[str, Any]:
    names = ("records", "parts", "size_bytes", "mirrored", "mended", "foreign_files", "foreign_read")
    facts = {name: getattr(result.verified, name, None) for name in names}
    is_sound = result.verified is not None
    return {
        "id": result.id,
        "version": result.version,
        "is_sound": is_sound,
        **facts,
        "error": result.error or None,
    }
