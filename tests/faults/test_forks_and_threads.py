"""References and streams across processes and threads: forked in the middle, spawned, pickled, shared."""

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import fork, in_child, in_fork, until, wait

import yogadl

RECORDS = 1000
PARTS = 50


@pytest.fixture
def root(tmp_path: Path) -> Path:
    storage = yogadl.open_storage(tmp_path)
    source = ({"i": i, "row": np.full(64, i), "text": b"x" * (i % 40)} for i in range(RECORDS))
    storage.submit(source, "data", "1", build=yogadl.BuildOptions(part_bytes=10_000))
    assert storage.info("data", "1").parts >= PARTS
    return tmp_path


def open_ref(root: Path) -> Any:
    return yogadl.open_storage(root).fetch("data", "1")


def numbers_of(items: Any) -> list[int]:
    """Return which records these are, whether single or in batches, all fields checked."""
    found = []
    for item in items:
        for number, row, text in zip(
            np.atleast_1d(item["i"]).tolist(),
            np.atleast_2d(item["row"]),
            item["text"] if isinstance(item["text"], list) else [item["text"]],
            strict=True,
        ):
            assert (row == number).all()
            assert text == b"x" * (number % 40)
            found.append(number)
    return found


KINDS: dict[str, Callable[[Any], Any]] = {
    "records": lambda ref: ref.stream(shuffle=True),
    "batches": lambda ref: ref.stream(shuffle=True).batch(32),
    "batches read ahead": lambda ref: ref.stream(shuffle=True).batch(32).prefetch(3),
    "batches read ahead by many": lambda ref: ref.stream(shuffle=True).batch(32).prefetch(3, threads=3),
    "records read ahead": lambda ref: ref.stream(shuffle=True).prefetch(3),
    "a view": lambda ref: ref[::-1].stream(shuffle=True).batch(7).prefetch(1),
}


def fork_in_the_middle(root: Path, kind: str) -> None:
    """Fork with an iterator in use, its parts half mapped, and let both go on, and the child fork again."""
    ref = open_ref(root)
    loader = KINDS[kind](ref)
    whole = numbers_of(loader.at(epoch=0))
    assert sorted(whole) == list(range(RECORDS))
    ref = open_ref(root)
    items = iter(KINDS[kind](ref))
    start = numbers_of([next(items), next(items), next(items)])
    rest = whole[len(start) :]
    assert start == whole[: len(start)]

    def go_on(depth: int) -> None:
        more = numbers_of([next(items)])
        if depth:
            assert wait(fork(go_on_from, depth - 1, more)) == 0
        assert more + numbers_of(items) == rest

    def go_on_from(depth: int, more: list[int]) -> None:
        found = numbers_of(items)
        assert more + found == rest
        assert ref[-1]["i"] == RECORDS - 1

    children = [fork(go_on, 1) for _ in range(3)]
    assert numbers_of(items) == rest
    assert [wait(child) for child in children] == [0, 0, 0]
    # The next epoch, in a child and here.
    again = in_fork(lambda: numbers_of(KINDS[kind](ref)))
    assert again == numbers_of(KINDS[kind](ref)) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_goes_on_exactly_on_both_sides_of_a_fork(root: Path, kind: str) -> None:
    in_child(fork_in_the_middle, root, kind)


def fork_while_mapping(root: Path, forks: int) -> None:
    """Fork again and again while other threads open the reference and map its parts."""
    for number in range(forks):
        ref = pickle.loads(pickle.dumps(open_ref(root)))  # not opened yet
        together = threading.Barrier(4)

        def read(seed: int, ref: Any = ref, together: Any = together) -> None:
            together.wait()
            for record in np.random.default_rng(seed).permutation(RECORDS)[:200].tolist():
                assert ref[record]["i"] == record

        threads = [threading.Thread(target=read, args=(number * 3 + i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        together.wait()
        children = [fork(read_everything, ref) for _ in range(3)]
        assert [wait(child) for child in children] == [0, 0, 0], "a lock was held at the fork"
        for thread in threads:
            thread.join()
        read_everything(ref)


def read_everything(ref: Any) -> None:
    assert ref.gather(range(RECORDS))["i"].tolist() == list(range(RECORDS))


def test_a_fork_while_other_threads_map_parts_leaves_the_child_able_to_read(root: Path) -> None:
    in_child(fork_while_mapping, root, 12)


def fork_while_inside(root: Path, what: str) -> None:
    """Fork at the very moment at which another thread is mapping a part, or opens the reference."""
    ref = pickle.loads(pickle.dumps(open_ref(root)))
    inside, go_on = threading.Event(), threading.Event()
    owner: Any = os if what == "maps a part" else type(ref._records._storage)
    name = "open" if what == "maps a part" else "published"
    original = getattr(owner, name)

    def slow(*args: Any, **kwargs: Any) -> Any:
        if owner is not os or str(args[0]).endswith(".mdb"):
            inside.set()
            go_on.wait(60)
        return original(*args, **kwargs)

    setattr(owner, name, slow)
    thread = threading.Thread(target=lambda: ref[0], daemon=True)
    thread.start()
    assert inside.wait(20)
    setattr(owner, name, original)
    assert wait(fork(read_everything, ref)) == 0
    go_on.set()
    thread.join()
    read_everything(ref)


@pytest.mark.parametrize("what", ["maps a part", "opens the reference"])
def test_a_fork_while_another_thread_holds_a_lock_does_not_hang_the_child(root: Path, what: str) -> None:
    in_child(fork_while_inside, root, what)


def fork_while_claiming(root: Path) -> None:
    """Fork while another thread is inside of claiming an epoch of the same stream."""
    stream = open_ref(root).stream().batch(100)
    lock = stream._claims._lock
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            go_on.wait(60)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(20)
    assert wait(fork(lambda: numbers_of(stream))) == 0
    go_on.set()
    thread.join()


def test_a_fork_while_another_thread_claims_an_epoch_does_not_hang_the_child(root: Path) -> None:
    in_child(fork_while_claiming, root)


def test_8_threads_read_one_reference_while_its_parts_are_being_mapped(root: Path) -> None:
    ref = pickle.loads(pickle.dumps(open_ref(root)))
    together = threading.Barrier(8)

    def read(seed: int) -> list[int]:
        together.wait()
        order = np.random.default_rng(seed).permutation(RECORDS)
        found = []
        for start in range(0, RECORDS, 37):
            found += numbers_of([ref.gather(order[start : start + 37])])
        assert found == order.tolist()
        return numbers_of(ref.stream(shuffle=True).batch(64).prefetch(2))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, range(8)))
    assert all(order == found[0] for order in found)
    assert sorted(found[0]) == list(range(RECORDS))


def read_in_spawned(pickled: bytes, answers: Any) -> None:
    ref, iterator_state, loader = pickle.loads(pickled)
    items = iter(ref.stream(shuffle=True).batch(32))
    items.load_state_dict(iterator_state)
    answers.put((ref.fingerprint, numbers_of(items), numbers_of(loader)))


def test_a_reference_and_a_loader_pickle_into_a_spawned_process(root: Path) -> None:
    ref = open_ref(root)
    read_everything(ref)
    assert len(pickle.dumps(ref)) < 1024
    assert len(pickle.dumps(ref[5:].fields("i"))) < 2048
    loader = ref.stream(shuffle=True).batch(32).prefetch(2)
    whole = numbers_of(loader.at(epoch=0))
    items = iter(ref.stream(shuffle=True).batch(32))
    start = numbers_of([next(items), next(items)])
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    pickled = pickle.dumps((ref, items.state_dict(), loader))
    process = context.Process(target=read_in_spawned, args=(pickled, answers))
    process.start()
    fingerprint, rest, other = answers.get()
    process.join(30)
    assert process.exitcode == 0
    assert fingerprint == ref.fingerprint
    assert start + rest == other == whole
    answers.close()


def test_a_pickled_reference_still_reads_its_own_version_after_a_replacement_and_a_deletion(
    root: Path,
) -> None:
    ref = open_ref(root)
    pickled = pickle.dumps(ref)
    yogadl.open_storage(root).submit(np.arange(5), "data", "1")
    assert in_child(fingerprint_in_child, pickled) == ref.fingerprint
    yogadl.open_storage(root).delete("data", "1")
    assert in_child(fingerprint_in_child, pickled) == ref.fingerprint


def fingerprint_in_child(pickled: bytes) -> str:
    ref = pickle.loads(pickled)
    read_everything(ref)
    return ref.fingerprint


def fork_in_a_build(root: Path) -> None:
    """Fork while a build goes on: the child may read others and end, and the build goes on."""
    storage = yogadl.open_storage(root)
    children = []

    def source() -> Any:
        for number in range(300):
            if number % 100 == 50:
                children.append(fork(read_everything, open_ref(root)))
            yield number

    storage.submit(source, "built", "1", build=yogadl.BuildOptions(part_bytes=500))
    assert [wait(child) for child in children] == [0, 0, 0]
    storage.verify("built", "1")
    assert storage.fetch("built", "1").gather(range(300)).tolist() == list(range(300))


def test_a_source_that_forks_while_it_is_read_does_not_disturb_the_build(root: Path) -> None:
    in_child(fork_in_a_build, root)


def leave_a_child(root: Path) -> int:
    """Build with a source that forks a helper, which outlives the killed builder."""
    reading, writing = os.pipe()

    def helper() -> None:
        os.close(writing)
        os.read(reading, 1)  # until the tests says so by closing

    def build() -> None:
        def source() -> Any:
            yield 0
            pid = fork(helper)
            (root / "helper").write_text(str(pid))
            os.kill(os.getpid(), 9)

        yogadl.open_storage(root).submit(source, "built", "1")

    assert wait(fork(build)) == -9
    built = fork(lambda: yogadl.open_storage(root).submit(np.arange(9), "built", "1"))
    code = wait(built)
    os.close(writing)
    return code


def test_a_helper_that_outlives_its_killed_builder_does_not_keep_the_lock(root: Path) -> None:
    assert in_child(leave_a_child, root) == 0


def test_the_deadline_of_until_is_kept() -> None:
    with pytest.raises(AssertionError, match="for nothing"):
        for _ in until(0.01, "nothing"):
            pass
