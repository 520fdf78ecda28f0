"""Whatever two callers do to a dataset at the same time, nothing that a manifest names is ever gone.

For each two operations, the second runs whole between the steps of the first: before a call that the
first makes of its folder or bucket. If the second has to wait for the first, it is refused, and runs once
the first is done. Then all must be there that a manifest, live or in the trash, names; no version is lost.
"""

import contextvars
import functools
import itertools
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inside import (
    DatasetKey,
    Folder,
    Lease,
    LocalBucket,
    LocalMirror,
    SerialExecutor,
    _folder,
    _names,
    call_into,
    copy,
    digest_of,
    lease,
    local,
    open_table,
    read_manifest,
    remote_backend,
    set_constants,
)

import yogadl
from yogadl import DataRef
from yogadl.errors import DatasetNotFoundError, LeaseError, YogaError
from yogadl.storage import CacheStorage
from yogadl.testing import MemoryBucket

ID = "some/data"
DAY_S = 86_400.0
PART_BYTES = 80  # ten records

FIRST = np.arange(20)
SECOND = np.arange(10)  # one of FIRST's parts
REPLACED = np.arange(300, 310)  # was the first version, and is in the trash
DELETED = np.r_[10:20, 400:410]  # the same; one of its parts is one of FIRST's
NEW = np.arange(100, 110)  # no version has it, but a killed build has left its parts


# What can be done. Each returns the records that it read, if it reads.


def submit(world: "World") -> None:
    world.storage.submit(NEW, ID, "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))


def submit_deleted(world: "World") -> None:
    """Build anew what is in the trash only, so that its parts are there and soon may not be."""
    world.storage.submit(DELETED, ID, "3", build=yogadl.BuildOptions(part_bytes=PART_BYTES))


def append(world: "World") -> None:
    """Continue what others replace, delete and prune."""
    world.storage.append(NEW, ID, "5", base_version="1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))


def cacheable(world: "World") -> Any:
    return records_of(
        world.storage.cacheable(ID, "4", build=yogadl.BuildOptions(part_bytes=PART_BYTES))(replaced)()
    )


def replaced() -> Any:
    return REPLACED


def commit(world: "World") -> None:
    build = world.storage.begin(ID, "1", partitions=1, run="job")
    build.write(0, NEW, part_bytes=PART_BYTES)
    build.commit()


def push(world: "World") -> None:
    copy(world.other, world.storage, ID, "1", replaces=True)


def pull(world: "World") -> Any:
    target = yogadl.open_storage(world.new_folder())
    copy(world.storage, target, ID, "1")
    return records_of(target.fetch(ID, "1"))


def fetch(world: "World") -> Any:
    return records_of(world.storage.fetch(ID, "1"))


def records_of(ref: DataRef) -> list[int]:
    return ref.gather(range(len(ref))).tolist()


def delete(world: "World") -> None:
    world.storage.delete(ID, "1")


def undelete(world: "World") -> None:
    world.storage.undelete(ID, "1")


def undelete_deleted(world: "World") -> None:
    world.storage.undelete(ID, "3")


def prune_all(world: "World") -> None:
    world.storage.prune(grace_s=0)


def prune_old(world: "World") -> None:
    world.storage.prune(grace_s=DAY_S)


BUILDS = (submit, submit_deleted, append, cacheable, commit, push)
MOVES = (delete, undelete, undelete_deleted)
PRUNES = (prune_all, prune_old)
READS = (fetch, pull)
OPERATIONS = (*BUILDS, *MOVES, *PRUNES, *READS)
# All builders end in the same way: two of them, and one reader, are all that others can meet.
# Who commits writes what an orphan is, too, and holds no right until then; who appends reads parts of others.
SECOND_OPERATIONS = (submit, submit_deleted, append, commit, *MOVES, *PRUNES, fetch)

Operation = Callable[["World"], Any]


def can_meet(first: Operation, second: Operation, kind: str) -> bool:
    """Return whether a pair has something of its own: each takes a quarter of a second."""
    seconds = {
        submit_deleted: (undelete_deleted, *PRUNES),
        append: (submit, delete, undelete, *PRUNES),
        cacheable: PRUNES,
        commit: (delete, undelete, *PRUNES),
        push: (submit, delete, undelete, *PRUNES),
        prune_all: (submit, append, commit, delete, undelete_deleted, prune_all),
    }
    if (second is commit and first not in PRUNES) or (second is append and first not in (delete, *PRUNES)):
        return False
    if first in (prune_old, *READS) and second is fetch:
        return False
    # It has a local folder's files and a bucket's leases.
    if kind == "shared" and not {first, second} <= {submit, delete, undelete, prune_old}:
        return False
    return second in seconds.get(first, SECOND_OPERATIONS)


# What may come of them beside success: what one operation has thrown away, or pruned, another can't find.
MAY_FAIL: dict[tuple[Operation, Operation], type[YogaError]] = {
    **{(read, delete): DatasetNotFoundError for read in READS},
    (delete, delete): DatasetNotFoundError,
    (append, delete): DatasetNotFoundError,
    **{(move, prune): DatasetNotFoundError for move in (undelete, undelete_deleted) for prune in PRUNES},
    (undelete_deleted, undelete_deleted): DatasetNotFoundError,
}


# The world that they are done to.


@dataclass
class World:
    """A storage with live, deleted and replaced versions, two days old, and leftovers of a killed build.

    Args:
        folder: Where all of it is.
        storage: The storage.
        other: One with another version of the same name.
        is_its: Whether a folder or bucket is the storage's.
        known: What manifests name, by their bytes.
    """

    folder: Path
    storage: CacheStorage
    other: CacheStorage
    is_its: Callable[[object], bool]
    known: dict[bytes, dict[str, int]]
    published: set[str] = field(default_factory=set)
    trashed: set[str] = field(default_factory=set)
    targets: Iterator[int] = field(default_factory=itertools.count)

    def new_folder(self) -> Path:
        return self.folder / f"target-{next(self.targets)}"

    def note(self, name: str, content: bytes) -> None:
        """Remember a manifest that was put somewhere."""
        if name.startswith(f"{ID}/versions/"):
            self.published.add(digest_of(content))
        if name.startswith(f"{ID}/trash/"):
            self.trashed.add(digest_of(content))

    def manifests(self) -> dict[str, bytes]:
        """Return all manifests, live and trashed, by name."""
        root = self.storage._backend.root
        names = [name for below in ("versions", "trash") for name in root.names(f"{ID}/{below}", ".json")]
        return {name: root.read(name) or b"" for name in names}

    def named(self, name: str, content: bytes) -> dict[str, int]:
        """Return the files that a manifest names, and their sizes."""
        if content not in self.known:
            version = name.removesuffix(".json").partition("/versions/")[2]
            if not version:
                version, _ = _names.split_trashed(name.partition("/trash/")[2])
            manifest = read_manifest(content, DatasetKey(ID, version), name)
            table = open_table(self.storage._backend.root, manifest)
            named = {_names.table(ID, manifest.table_sha256): manifest.table_bytes}
            each = zip(table.sha256, table.index_sha256, table.size_bytes.tolist(), strict=True)
            for sha256, index_sha256, size_bytes in each:
                index = _names.index(ID, index_sha256)
                named |= {_names.part(ID, sha256): size_bytes, index: self.storage._backend.root.size(index)}
            self.known[content] = named
        return self.known[content]

    def check(self, pruned: set[str]) -> None:
        """Make sure that all that is named is there, and that no version is gone but these."""
        found = self.manifests()
        entries = itertools.chain.from_iterable(
            self.storage._backend.root.entries(f"{ID}/{below}") for below in ("parts", "tables")
        )
        sizes = {entry.name: entry.size_bytes for entry in entries}
        for name, content in found.items():
            assert self.named(name, content).items() <= sizes.items(), name
        gone = self.published - set(map(digest_of, found.values()))
        assert gone <= pruned
        assert not self.storage._backend.coordinator.has_builder(ID)


def furnish(storage: CacheStorage) -> None:
    """Build what all worlds begin with."""
    for version, records in (("1", REPLACED), ("1", FIRST), ("2", SECOND), ("3", DELETED), ("9", NEW)):
        storage.submit(records, ID, version, build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    storage.delete(ID, "3")
    storage._backend.root.remove(f"{ID}/versions/9.json")
    for name in storage._backend.root.names(f"{ID}/trash", ".json"):
        version, stamp = _names.split_trashed(name.partition("/trash/")[2])
        aged = _names.trashed(DatasetKey(ID, version), stamp - int(2 * DAY_S * 1e9))
        assert storage._backend.root.rename(name, aged)


class Silent:
    """No signs of life: builds here take milliseconds."""

    def __init__(self, *_: Any) -> None: ...

    def report(self, *_: Any) -> None: ...

    def stop(self) -> None: ...


class BlockedError(Exception):
    """What is waited for goes on only once this is over."""


class Refuse(logging.Handler):
    """Be as impatient as who interrupts a call when it says for whom it waits."""

    def emit(self, record: logging.LogRecord) -> None:
        if "waiting for" in record.getMessage():
            raise BlockedError(record.getMessage())


def call_here(_: SerialExecutor, fn: Callable[..., Any], *args: Any, **options: Any) -> "Future[Any]":
    """Make a call at once, where it takes no steps, as in a thread: waiting for threads takes long."""
    future: Future[Any] = Future()
    contextvars.Context().run(call_into, future, functools.partial(fn, *args, **options))
    return future


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lease, "Heartbeat", Silent)
    monkeypatch.setattr(SerialExecutor, "submit", call_here)
    set_constants(monkeypatch, LOCK_LOG_AFTER_S=0.0, FIRST_PAUSE_S=0.0)
    handler = Refuse()
    logger = logging.getLogger("yogadl")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.fixture(params=["folder", "shared", "bucket"])
def kind(request: pytest.FixtureRequest) -> str:
    """What kind of storage it is."""
    found: str = request.param
    return found


@pytest.fixture
def make_world(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], World]:
    """Return what makes the same world again and again."""
    other = yogadl.open_storage(tmp_path / "other")
    other.submit(NEW, ID, "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    numbers = itertools.count()
    known: dict[bytes, dict[str, int]] = {}
    if kind == "bucket":
        furnished = MemoryBucket()
        furnish(_in_bucket(furnished, tmp_path / "mirror"))

        def in_bucket() -> World:
            bucket = MemoryBucket()
            bucket._tags = itertools.count(10_000)
            for name, (found, content) in furnished._objects.items():
                bucket._objects[name] = replace(found, modified=found.modified - 2 * DAY_S), content
            folder = tmp_path / str(next(numbers))
            storage = _in_bucket(bucket, tmp_path / "mirror")
            return World(folder, storage, other, lambda it: it is bucket, known)

        return in_bucket

    def opened(folder: Path) -> CacheStorage:
        if kind == "shared":
            return yogadl.open_storage(folder, shared=True, lease=yogadl.Lease(wait_s=0.0))
        return yogadl.open_storage(folder)

    furnish(opened(tmp_path / "furnished"))
    then = time.time() - 2 * DAY_S
    for path in (tmp_path / "furnished").rglob("*"):
        os.utime(path, (then, then))
    for module in (_folder, local):  # the other time of a file can't be set
        monkeypatch.setattr(module, "changed", lambda found: found.st_mtime)

    def in_folder() -> World:
        folder = tmp_path / str(next(numbers))
        root = folder / "caches"
        shutil.copytree(tmp_path / "furnished", root)
        return World(folder, opened(root), other, lambda it: _folder_of(it) == root, known)

    return in_folder


def _in_bucket(bucket: MemoryBucket, mirror: Path) -> CacheStorage:
    return CacheStorage(remote_backend(bucket, LocalMirror(bucket, mirror), Lease(wait_s=0.0)))


def _folder_of(it: object) -> Path | None:
    folder = it._folder if isinstance(it, LocalBucket) else it
    return folder.root if isinstance(folder, Folder) else None


# Stopping at each step.

NUMBERS = r"[0-9a-f]{12,}|\d+"  # in which names of one kind differ


@dataclass
class Script:
    """Do something else before one step of an operation.

    Args:
        world: Whose steps count.
        at: Before which step; 0 for none.
        do: What is done.
        left_out: Verbs that don't count.
        reads: What was read since anything else was done: how to read it again, and what it was.
        same: How many of the reads before that step find the same when what is done is done before them.
    """

    world: World
    at: int = 0
    do: Callable[[], None] = lambda: None
    left_out: tuple[str, ...] = ()
    steps: list[str] = field(default_factory=list)
    is_inside: bool = False
    reads: list[tuple[Callable[[], Any], Any]] = field(default_factory=list)
    same: int = 0

    def step(self, verb: str, of: object, call: Callable[[], Any]) -> Any:
        if self.is_inside:
            return call()
        if verb in self.left_out:
            self.reads.clear()
            return call()
        self.is_inside = True
        try:
            self.steps.append(f"{verb} {re.sub(NUMBERS, '#', str(of))}")
            if len(self.steps) == self.at:
                contextvars.Context().run(self.do)
                finds_same = (again() == found for again, found in reversed(self.reads))
                self.same = sum(itertools.takewhile(bool, finds_same))
            reads = [*self.reads] if verb in READING else []
            self.reads.clear()
            found = call()
            if verb in READING:
                self.reads = [*reads, (call, found)]
            return found
        finally:
            self.is_inside = False


running: contextvars.ContextVar[Script | None] = contextvars.ContextVar("running", default=None)

READING = ("read", "view", "size", "names", "entries", "get", "list")
VERBS = {
    Folder: "read view size write write_if_absent adopt rename names entries age_s keep remove remove_folder",
    LocalBucket: "get put put_if_absent head list delete",
    MemoryBucket: "get put put_if_absent head list delete",
}


@pytest.fixture
def worlds(make_world: Callable[[], World], monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Give a new world each time, whose folder or bucket takes steps and notes manifests."""
    current: list[World] = []

    def stepping(verb: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not current or not current[0].is_its(self):
                return original(self, *args, **kwargs)
            script = running.get()

            def act() -> Any:
                done = original(self, *args, **kwargs)
                return list(done) if verb in ("list", "entries") else done  # one step, however long

            done = act() if script is None else script.step(verb, args[:1], act)
            if verb in ("write", "put") or (verb.endswith("if_absent") and done):
                if isinstance(args[1], bytes):
                    current[0].note(args[0], args[1])
            elif verb == "rename" and done:
                current[0].note(args[1], (self.root / args[1]).read_bytes())
            return iter(done) if verb in ("list", "entries") else done

        return call

    for kind, verbs in VERBS.items():
        for verb in verbs.split():
            monkeypatch.setattr(kind, verb, stepping(verb, getattr(kind, verb)))

    def new() -> World:
        current.clear()
        world = make_world()
        for name, content in world.manifests().items():
            world.note(name, content)
            world.published.add(digest_of(content))
        current.append(world)
        return world

    return iter(new, None)


def left_out(operation: Operation) -> tuple[str, ...]:
    """Return what is no step: that prune looks at each file's age before it removes it."""
    return ("age_s", "head") if operation in PRUNES else ()


def steps_of(world: World, operation: Operation, kind: str) -> list[int]:
    """Return where to stop: of steps that do the same to one kind of file, at the first, second and last.

    Only in a folder at the second, too: the others take the same steps.
    """
    script = Script(world, left_out=left_out(operation))
    token = running.set(script)
    try:
        operation(world)
    finally:
        running.reset(token)
    numbers: dict[str, list[int]] = {}
    for number, step in enumerate(script.steps, 1):
        numbers.setdefault(step, []).append(number)
    first = 2 if kind == "folder" else 1
    return sorted({number for same in numbers.values() for number in (*same[:first], same[-1])})


def run_pair(world: World, first: Operation, second: Operation, step: int) -> int:
    """Run the second operation before a step of the first, or after it if it has to wait; check all.

    Returns:
        How many steps before that one need no run of their own: they read, and would have read the same.
    """
    old = set(world.trashed)
    is_refused = False

    def do() -> None:
        nonlocal is_refused
        try:
            attempt(world, second, first)
        except (BlockedError, LeaseError):
            is_refused = True

    script = Script(world, step, do, left_out(first))
    token = running.set(script)
    try:
        attempt(world, first, second)
    finally:
        running.reset(token)
    if is_refused:
        attempt(world, second, first)
    both = {first, second}
    world.check(world.trashed if prune_all in both else old if prune_old in both else set())
    # Who holds a lock of a folder is no step; a lease is.
    return 0 if is_refused and isinstance(world.storage._backend.root, Folder) else script.same


def attempt(world: World, operation: Operation, other: Operation) -> None:
    """Do it, and make sure that it read what there was, or failed as it should."""
    try:
        found = operation(world)
    except MAY_FAIL.get((operation, other), ()):
        return
    assert found in (None, *(records.tolist() for records in (FIRST, REPLACED, NEW)))


@pytest.mark.parametrize("first", OPERATIONS, ids=lambda operation: operation.__name__)
def test_nothing_that_is_named_is_ever_gone(worlds: Iterator[World], kind: str, first: Operation) -> None:
    steps = steps_of(next(worlds), first, kind)
    for second in SECOND_OPERATIONS:
        if not can_meet(first, second, kind):
            continue
        least = steps[-1]
        for step in reversed(steps):
            if step > least:
                continue
            world = next(worlds)
            try:
                least = step - 1 - run_pair(world, first, second, step)
            except BaseException as error:
                error.add_note(f"{second.__name__} before step {step} of {first.__name__}")
                raise
            shutil.rmtree(world.folder, ignore_errors=True)
