"""Thousands of forged caches: each is read rightly or refused by an error of ours, in little memory and time.

`pytest tests/faults/test_foreign_fuzz.py --forgeries 5000 --forgery-seed 7` searches further.
"""

import contextlib
import faulthandler
import io
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forge
import numpy as np
import pytest
from processes import fork, in_child
from soak import few_or_many

import yogadl
from yogadl import cli
from yogadl.errors import ConfigurationError, YogaError
from yogadl.storage import copy

MEMORY_BYTES = 2**30
LIMIT_S = 60  # a hang, however busy the machine is
STORAGES = ("local", "local", "local", "shared", "bucket")


def opened(root: Path, kind: str) -> Any:
    if kind == "bucket":
        return yogadl.open_storage(
            f"file://{root}", mirror=yogadl.Mirror(root.parent / "mirror", limit="100MB")
        )
    return yogadl.open_storage(root, shared=kind == "shared")


def read(storage: Any, digest: str | None, whole: Any) -> None:
    """Read in several ways, which must agree; a cache whose digest is right must be what was built."""
    ref = storage.fetch("data", "1", digest=digest)
    count, some = len(ref), sample(ref)
    repr(ref)
    found = ref.gather(some)
    for number in (0, len(some) // 2, len(some) - 1) if count else ():
        one = pickle.loads(pickle.dumps(ref))[int(some[number])]
        assert_equal(one, ref.spec.records(ref.columns(some), len(some))[number])
    list(_first(ref.stream(shuffle=True, shuffle_seed=1).batch(64), 2))
    list(_first(ref[:20], 20))
    cut(ref, some)
    if digest is not None:
        assert_equal(found, whole)


def cut(ref: Any, some: Any) -> None:
    """Cut each field that can be cut into chunks, which must be its values joined."""
    for field in ref.spec.fields:
        with contextlib.suppress(ConfigurationError), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "chunks cuts values along their first axis")  # pictures, too
            chunks = ref.select(some[:50]).chunks(field.name or None, 7)
            whole = chunks.gather(range(len(chunks)))
            values = ref.columns(some[:50])[ref.spec.fields.index(field)]
            joined = np.concatenate(list(values))[: 7 * len(chunks)]
            assert_equal(whole[field.name] if field.name else whole, joined.reshape(-1, 7, *joined.shape[1:]))
            ref.chunks(field.name or None, 7).gather(range(min(len(chunks), 50)))


def sample(ref: Any) -> Any:
    return np.unique(np.linspace(0, len(ref) - 1, min(len(ref), 500)).astype(np.int64))


def _first(items: Any, count: int) -> Iterator[Any]:
    for _, item in zip(range(count), items, strict=False):
        yield item


def assert_equal(ours: Any, theirs: Any) -> None:
    """Compare two trees of arrays to the bit: NaN is NaN."""
    assert type(ours) is type(theirs), (type(ours), type(theirs))
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        ours, theirs = list(ours.values()), list(theirs.values())
    if isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_equal(one, other)
    elif isinstance(ours, np.ndarray | np.generic) and ours.dtype != object:
        assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
    else:
        assert np.array_equal(ours, theirs)


def command(*words: str) -> None:
    """Run the command as a shell would: it raises nothing and says what is wrong."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        cli.main(words)


def stale(storage: Any) -> None:
    """Ask for it as its builder's next version would, which compares what built it."""

    def source(factor: int = 5) -> Any:
        return [factor]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        storage.cacheable("data", "1", records=yogadl.RecordOptions(allow_pickle=False))(source)()


def uses(root: Path, kind: str, digest: str, whole: Any) -> list[Callable[[], Any]]:
    """Return all that somebody may do with a storage."""
    storage = opened(root, kind)
    other = yogadl.open_storage(root.parent / "other")
    where = ("-s", str(root))
    return [
        lambda: read(storage, None, whole),
        lambda: read(storage, digest, whole),
        storage.datasets,
        lambda: storage.versions("data"),
        lambda: storage.info("data", "1"),
        lambda: str(storage.explain("data", "1", "2")),
        lambda: storage.verify("data", "1"),
        lambda: stale(storage),
        lambda: command("ls", *where),
        lambda: command("info", "data", "1", *where),
        lambda: command("info", "data", "1", "--json", *where),
        lambda: command("explain", "data", "2", "1", *where),
        lambda: command("head", "data", "1", *where),
        lambda: copy(storage, other, "data", "1"),
        lambda: other.verify("data", "1"),
        lambda: storage.prune(grace_s=0, dry_run=True),
        lambda: storage.prune(grace_s=0),
        lambda: storage.delete("data", "1"),
        lambda: storage.prune(grace_s=3600),
        lambda: storage.undelete("data", "1"),
        lambda: copy(storage, other, "data", "2"),
    ]


def use(root: Path, kind: str, digest: str, whole: Any, rng: random.Random | None = None) -> None:
    """Do what somebody may do with a storage, with dice half of it; only errors of ours may come of it."""
    for number, one in enumerate(uses(root, kind, digest, whole)):
        try:
            if rng is None or number < 2 or rng.random() < 0.5:
                one()
        except YogaError:
            pass
        except BaseException as error:
            error.add_note(f"in step {number} of uses")
            raise


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def one_case(base: Path, seed: str, digest: str, whole: Any) -> None:
    """Forge a cache and use it, in this process, which is a fork's."""
    rng = random.Random(seed)
    work = base.parent / f"case-{os.getpid()}"
    root, victim = work / "root", work / "victim"
    work.mkdir()
    try:
        forge.copy_cache(base, root)
        kind = rng.choice(STORAGES)
        print(f"seed {seed}, storage {kind}", end="", file=sys.stderr)
        if rng.random() < 0.1:
            forge.copy_cache(base, victim)
            before = contents(victim)
            print(f", {forge.replace_file(root, victim, rng)}", file=sys.stderr, flush=True)
        else:
            forgery = forge.Forgery.of(root)
            what = forgery.mutate(rng)
            forgery.write(what, rng)
            before = {}
            print(f", {what}", file=sys.stderr, flush=True)
        if sys.platform == "linux":  # elsewhere it does not count what is mapped
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        use(root, kind, digest, whole, rng)
        assert not before or contents(victim) == before, "another storage was changed"
    finally:
        shutil.rmtree(work)


def run_cases(base: Path, seeds: list[str]) -> list[str]:
    """Run forged caches, each in a fork of this warm process; return what went wrong."""
    storage = yogadl.open_storage(base)
    digest = storage.info("data", "1").digest
    try:
        ref = storage.fetch("data", "1")
        whole = ref.gather(sample(ref))
    except YogaError:
        whole = None  # pickled
    forge.copy_cache(base, base.parent / "warm")
    use(base.parent / "warm", "local", digest, whole)  # all is imported once
    use(base.parent / "warm", "bucket", digest, whole)
    problems = []
    for seed in seeds:
        log = base.parent / "log"
        pid = fork(logged, log, base, seed, digest, whole)
        problem = ended(pid)
        if problem:
            problems.append(f"{problem}\n{log.read_text(errors='replace')[-6000:]}")
    return problems


def logged(log: Path, *args: Any) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable(descriptor)
    try:
        one_case(*args)
    except BaseException:
        with contextlib.suppress(MemoryError):
            traceback.print_exc()
        raise


def ended(pid: int) -> str:
    """Wait for a process and say how it ended, if not well."""
    deadline = time.monotonic() + LIMIT_S
    is_late = False
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            break
        if time.monotonic() > deadline and not is_late:
            is_late = True
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    if is_late:
        return f"it took longer than {LIMIT_S} s"
    code = os.waitstatus_to_exitcode(status)
    peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if peak_bytes > MEMORY_BYTES:
        return f"it took {peak_bytes / 2**20:.0f} MiB"
    return f"it ended with {code}" if code else ""


@pytest.mark.parametrize("kind", forge.KINDS)
def test_whatever_is_forged_is_read_rightly_or_refused(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    count = request.config.getoption("--forgeries") or few_or_many(12, 1500)
    seed = request.config.getoption("--forgery-seed")
    forge.build(tmp_path / "base", kind)
    seeds = [f"{seed}/{kind}/{number}" for number in range(count)]
    problems = in_child(run_cases, tmp_path / "base", seeds, timeout_s=200 + count * LIMIT_S)
    assert not problems, f"{len(problems)} of {count}:\n" + "\n\n".join(problems[:20])
