"""Builders of several machines that are killed, stopped, or busy: one publication each time, nobody hangs.

The bucket is a folder, so that this runs everywhere; tests/remote does the same to real stores.
"""

import ctypes
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from inside import BucketRoot, DatasetKey, Lease, Leases, LocalBucket, Object, read_manifest
from processes import Process, until

import yogadl
from yogadl.errors import LeaseError
from yogadl.storage import CacheStorage

KEY = DatasetKey("data", "1")
RECORDS = 8_000
PART_BYTES = 8_000


def opened(root: Path, host: str, ttl_s: float) -> CacheStorage:
    """Open the storage as a machine of that name would: a bucket with a mirror, or a shared folder."""
    if (root / "is-shared").exists():
        return yogadl.open_storage(root / "bucket", shared=True, lease=yogadl.Lease(ttl_s=ttl_s))
    return yogadl.open_storage(
        (root / "bucket").as_uri(), mirror=root / f"mirror-{host}", lease=yogadl.Lease(ttl_s=ttl_s)
    )


@pytest.fixture(params=["bucket", "shared"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where the storage is, and what the processes tell each other."""
    if request.param == "shared":
        (tmp_path / "is-shared").write_text("")
    return tmp_path


class Halting:
    """Records that can be read in any order; reading one of them waits until a file is there."""

    def __init__(self, root: Path, host: str, at: int, seed: int = 0) -> None:
        self._said = root / f"{host}-is-at"
        self._go_on = root / f"{host}-may-go-on"
        self._at = at
        self._seed = seed
        self.read: list[int] = []

    @property
    def __yogadl_version__(self) -> int:
        """What decides its records: not who reads them, nor where that is held up."""
        return self._seed

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: int) -> int:
        self.read.append(number)
        if number == self._at:
            self._said.write_text("")
            while not self._go_on.exists():
                time.sleep(0.005)
        return number * 7 + self._seed


def build(root: Path, host: str, ttl_s: float, at: int = -1, seed: int = 0) -> tuple[str, list[int], int]:
    """Ask for the dataset; return its fingerprint, a few records, and how many were read here to build it."""
    source = Halting(root, host, at, seed)

    @opened(root, host, ttl_s).cacheable(
        KEY.id, KEY.version, build=yogadl.BuildOptions(part_bytes=PART_BYTES, progress=False)
    )
    def data() -> Halting:
        return source

    with warnings.catch_warnings():
        # Who was overtaken by a builder of other data is told so.
        warnings.filterwarnings("ignore", ".* was built by other code or arguments", UserWarning)
        ref = data()
    return ref.fingerprint, ref.gather([0, 57, RECORDS - 1]).tolist(), len(source.read)


def is_at(root: Path, host: str) -> None:
    for _ in until(200, f"{host} to build"):
        if (root / f"{host}-is-at").exists():
            return


def let_go(root: Path, host: str) -> None:
    (root / f"{host}-may-go-on").write_text("")


def manifest(root: Path) -> Any:
    (name,) = (root / "bucket" / "data" / "versions").iterdir()
    return read_manifest(name.read_bytes(), KEY, str(name))


def helpers(child: Process) -> list[psutil.Process]:
    return psutil.Process(child.pid).children(recursive=True)


def expected(seed: int = 0) -> list[int]:
    return [number * 7 + seed for number in (0, 57, RECORDS - 1)]


def test_a_killed_builder_is_taken_over_long_before_its_time_to_live(root: Path) -> None:
    first = Process(build, root, "a", 600.0, 6_000)
    is_at(root, "a")
    second = Process(build, root, "b", 600.0)
    first.kill()
    _, records, _ = second.result(60)
    assert records == expected()
    assert manifest(root).builder["lease_epoch"] == 2


def test_a_builder_goes_on_with_what_a_killed_one_has_uploaded(root: Path) -> None:
    first = Process(build, root, "a", 600.0, 6_000)
    is_at(root, "a")
    for _ in until(200, "two parts"):
        if len(list((root / "bucket" / "data").glob("builds/*/one/*.json"))) >= 2:
            break
    first.kill()
    fingerprint, records, read = Process(build, root, "b", 600.0).result(60)
    assert records == expected()
    assert read < RECORDS
    opened(root, "c", 600.0).submit(np.arange(RECORDS) * 7, "same", "1")
    assert opened(root, "c", 600.0).fetch("same", "1").fingerprint == fingerprint
    opened(root, "c", 600.0).verify(*(KEY.id, KEY.version))


def test_a_builder_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    first = Process(build, tmp_path, "a", 600.0, 6_000)
    is_at(tmp_path, "a")
    first.kill()
    _, records, _ = Process(build, tmp_path, "b", 600.0, -1, 1).result(60)
    assert records == expected(seed=1)


def test_a_builder_whose_machine_has_died_is_taken_over_after_its_time_to_live(tmp_path: Path) -> None:
    first = Process(build, tmp_path, "a", 3.0, 6_000)
    is_at(tmp_path, "a")
    second = Process(build, tmp_path, "b", 3.0)
    started = time.monotonic()
    for process in [*helpers(first), psutil.Process(first.pid)]:
        process.kill()
    first.kill()
    assert second.result(60)[1] == expected()
    assert time.monotonic() - started > 2  # it may have begun to wait a little before
    assert manifest(tmp_path).builder["lease_epoch"] == 2


def hold_the_interpreter(root: Path) -> str:
    storage = opened(root, f"{os.getpid()}", 3.0)

    @storage.cacheable(KEY.id, KEY.version)
    def data() -> Iterator[int]:
        yield from range(RECORDS)
        (root / f"built-by-{os.getpid()}").write_text("")
        # As a source in C may: no other thread of this process runs meanwhile.
        ctypes.PyDLL(None).usleep(8_500_000)
        yield RECORDS

    return data().fingerprint


def test_a_source_that_lets_no_other_thread_run_keeps_the_right_to_build(tmp_path: Path) -> None:
    children = [Process(hold_the_interpreter, tmp_path) for _ in range(2)]
    assert len({child.result(100) for child in children}) == 1
    assert len(list(tmp_path.glob("built-by-*"))) == 1
    assert manifest(tmp_path).builder["lease_epoch"] == 1


def stopped_and_overtaken(root: Path, first: Process) -> None:
    """Stop a builder until another has built, then let it go on."""
    is_at(root, "a")
    os.kill(first.pid, signal.SIGSTOP)
    try:
        assert Process(build, root, "b", 2.0, -1, 1).result(100)[1] == expected(seed=1)
    finally:
        let_go(root, "a")
        os.kill(first.pid, signal.SIGCONT)


def test_a_builder_that_was_stopped_and_overtaken_serves_what_is_published(root: Path) -> None:
    first = Process(build, root, "a", 2.0, 6_000)
    stopped_and_overtaken(root, first)
    assert first.result(60)[1] == expected(seed=1)
    assert manifest(root).builder["lease_epoch"] == 2
    opened(root, "c", 2.0).verify(KEY.id, KEY.version)


def replace(root: Path) -> None:
    storage = opened(root, "a", 2.0)
    with pytest.raises(LeaseError, match="another process has taken over the lease"):
        storage.submit(
            Halting(root, "a", 6_000), KEY.id, KEY.version, build=yogadl.BuildOptions(part_bytes=PART_BYTES)
        )


def test_a_replacement_that_was_stopped_and_overtaken_replaces_nothing(root: Path) -> None:
    first = Process(replace, root)
    stopped_and_overtaken(root, first)
    first.result(60)
    ref = opened(root, "c", 2.0).fetch(KEY.id, KEY.version)
    assert ref.gather([0, 57, RECORDS - 1]).tolist() == expected(seed=1)


def test_whoever_is_killed_at_any_moment_the_rest_is_served(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    for number in range(3):
        root = tmp_path / str(number)
        root.mkdir()
        for _ in range(2):
            child = Process(build, root, "a", 600.0)
            time.sleep(random.uniform(0.0, 1.5))
            child.kill()
        _, records, _ = Process(build, root, "b", 600.0).result(100)
        assert records == expected()
        opened(root, "c", 600.0).verify(KEY.id, KEY.version)


class Deadly(LocalBucket):
    """A bucket whose user, but no process of its own, is killed at a moment of its lease."""

    def __init__(self, folder: Path, moment: str) -> None:
        super().__init__(folder)
        self._moment = moment
        self._pid = os.getpid()

    def put(self, name: str, content: bytes | Path) -> Object:
        if name.endswith(".end"):
            self._reached("before it has ended")
        found = super().put(name, content)
        if name.endswith(".end"):
            self._reached("once it has ended")
        return found

    def put_if_absent(self, name: str, content: bytes) -> bool:
        is_done = super().put_if_absent(name, content)
        if "/leases/" in name and is_done:
            self._reached("once it is taken")
        return is_done

    def _reached(self, moment: str) -> None:
        if (moment, os.getpid()) == (self._moment, self._pid):
            os.kill(os.getpid(), signal.SIGKILL)


def take_and_die(root: Path, moment: str) -> None:
    with Leases(BucketRoot(Deadly(root / "bucket", moment)), Lease(600.0, None)).held(KEY):
        pass
    raise AssertionError("it is dead by now")


@pytest.mark.parametrize("moment", ["once it is taken", "before it has ended", "once it has ended"])
def test_who_is_killed_at_a_moment_of_its_lease_is_not_waited_for(tmp_path: Path, moment: str) -> None:
    (tmp_path / "bucket").mkdir()
    with pytest.raises(AssertionError, match="ended with -9"):
        Process(take_and_die, tmp_path, moment).result(60)
    _, records, _ = Process(build, tmp_path, "b", 600.0).result(60)
    assert records == expected()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_all_processes_of_a_builder_leaves_nobody_waiting(
    tmp_path: Path, sent: signal.Signals
) -> None:
    first = Process(build, tmp_path, "a", 600.0, 6_000)
    is_at(tmp_path, "a")
    for process in helpers(first):
        process.send_signal(sent)
    first.kill()
    assert Process(build, tmp_path, "b", 600.0).result(60)[1] == expected()


def build_in_a_thread_that_goes_with_the_process(root: Path) -> None:
    threading.Thread(target=build, args=(root, "a", 600.0, 6_000), daemon=True).start()
    is_at(root, "a")


def test_a_process_that_ends_while_a_thread_of_it_builds_leaves_nobody_waiting(tmp_path: Path) -> None:
    Process(build_in_a_thread_that_goes_with_the_process, tmp_path).result(60)
    assert Process(build, tmp_path, "b", 600.0).result(60)[1] == expected()
