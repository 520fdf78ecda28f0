"""Workers of `prefetch` that are killed, hang or lose their owner: nothing is lost, repeated or left."""

import contextlib
import functools
import itertools
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from deadly_functions import (
    die,
    hang_first,
    killing,
    leave_by_exit,
    note_replacement,
    one_after_the_other,
    slow_batch,
    trap,
)
from processes import children, in_child, until, wait_until
from soak import few_or_many
from worker_functions import note_pid, with_pid

import yogadl
from yogadl.errors import WorkerDiedError, WorkerTimeoutError

COUNT = 60
SIZE = 5


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    storage = yogadl.open_storage(folder)
    storage.submit({"id": np.arange(COUNT), "x": np.ones((COUNT, 3000))}, "set", "1")
    return folder


def stream_of(root, **options):
    return yogadl.open_storage(root).fetch("set", "1").stream(shuffle=True, shuffle_seed=5, **options)


def ids(batches):
    return [number for batch in batches for number in batch["id"].tolist()]


def order(root, *epochs):
    return [number for epoch in epochs or (0,) for number in stream_of(root).indices(epoch).tolist()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trap"


def trapped(root, path, how, position, **options):
    """Return a loader whose workers meet the trap at the batch of one position."""
    path.write_text(str(order(root)[position]))
    loader = stream_of(root).batch(SIZE, epochs=2).map(functools.partial(trap, path, how))
    return loader.prefetch(3, **{"workers": 2, **options})


def deaths(path):
    found = path.with_suffix(".deaths")
    return len(found.read_text()) if found.exists() else 0


def test_a_batch_that_kills_twice_is_final(root, path):
    loader = trapped(root, path, die, 20)
    batches = iter(loader)
    assert ids(itertools.islice(batches, 4)) == order(root)[:20]
    raised = []
    for _ in range(5):
        with pytest.raises(WorkerDiedError) as caught:
            next(batches)
        raised.append(caught.value)
    assert deaths(path) == 2
    assert len(set(map(id, raised[1:]))) == 1
    assert "2 worker processes died at this item, so it is not tried again" in raised[1].__notes__[-1]
    assert batches.state_dict()["position"] == 20
    batches.load_state_dict(stream_of(root).cursor(25))  # around it
    assert ids(batches) == order(root, 0, 1)[25:]
    again = loader.at(epoch=0, position=20)  # another iterator tries it
    with pytest.raises(WorkerDiedError):
        next(again)
    assert deaths(path) == 3
    path.unlink()
    assert ids(again) == order(root, 0, 1)[20:]


def test_deaths_at_several_batches_are_each_tried_again(root, path):
    batches = iter(trapped(root, path, die, 20))
    for position in (20, 25, 40):
        path.write_text(str(order(root)[position]))
        with pytest.raises(WorkerDiedError, match=f"position {position}"):
            list(batches)
        assert batches.state_dict()["position"] == position
    path.unlink()
    assert ids(batches) == order(root, 0, 1)[40:]


def test_a_batch_that_a_dead_worker_left_is_not_told_for_the_batch_that_kills_another(root, path):
    """The other one has that batch in its queue, behind the one at which it dies."""
    deadly = functools.partial(one_after_the_other, path, order(root)[::SIZE])
    loader = stream_of(root).batch(SIZE, epochs=2).map(deadly)
    init = functools.partial(note_replacement, path)
    batches = iter(loader.prefetch(3, workers=2, worker_init=init, start_method="fork"))
    next(batches)
    batches.load_state_dict(stream_of(root).cursor(30))
    found = []
    with pytest.raises(WorkerDiedError) as caught:
        found.extend(batches)
    position = int(path.with_suffix(".died").read_text())
    assert f"epoch 0, position {position} " in str(caught.value)
    assert ids(found) == order(root)[30:position]
    assert ids([*found, *batches]) == order(root, 0, 1)[30:]


def test_a_worker_that_is_killed_between_batches(root):
    loader = stream_of(root).batch(SIZE, epochs=3).map(with_pid).prefetch(1, workers=1)
    batches = iter(loader)
    found = [next(batches), next(batches)]
    os.kill(found[-1]["pid"], signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        found.extend(batches)
    assert ids([*found, *batches]) == order(root, 0, 1, 2)


def test_workers_that_are_killed_at_an_iterators_end_are_replaced_at_the_next(root):
    loader = stream_of(root).batch(SIZE).map(with_pid).prefetch(2, workers=2)
    for epoch in range(3):
        batches = list(loader)
        assert ids(batches) == order(root, epoch)
        for pid in {batch["pid"] for batch in batches}:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not psutil.pid_exists(pid), "it is reaped")


def test_the_process_that_starts_them_is_killed(root):
    loader = stream_of(root).batch(SIZE).map(with_pid).prefetch(2, workers=2)
    batches = iter(loader)
    found = [next(batches)]
    os.kill(psutil.Process(found[0]["pid"]).ppid(), signal.SIGKILL)
    with contextlib.suppress(WorkerDiedError):  # they may have been faster
        found.extend(batches)
    assert ids([*found, *batches]) == order(root)


def test_the_process_that_starts_them_is_killed_after_the_last_batch_was_made(root, path):
    made = []
    loader = stream_of(root).batch(SIZE).map(functools.partial(note_pid, path)).prefetch(4, workers=1)
    batches = iter(loader)
    while len(made) < COUNT // SIZE - 5:  # all others are sent then, and that none is left is not known
        made.append(next(batches))
    wait_until(lambda: len(path.read_text()) == COUNT // SIZE, "all are made")
    time.sleep(0.05)
    worker = psutil.Process(made[0]["pid"])
    os.kill(worker.ppid(), signal.SIGKILL)
    wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, "it is gone, too")
    with contextlib.suppress(WorkerDiedError):  # the last one was not sent yet
        made.extend(batches)
    assert ids([*made, *batches]) == order(root)


@pytest.mark.parametrize("only", [(0,), (0, 1)])
def test_a_worker_init_that_hangs_is_timed_out(root, path, only):
    path.touch()
    init = functools.partial(hang_first, path, only)
    # Longer than the others take: the loop waits for a worker, or has read all before.
    loader = stream_of(root).batch(SIZE, epochs=None).prefetch(3, workers=2, worker_init=init, timeout_s=2)
    batches, found = iter(loader), []
    with pytest.raises(WorkerTimeoutError, match=r"^worker_init timed out after 2 seconds") as caught:
        found.extend(batches)
    assert f"in worker process {only[0]}" in str(caught.value) or len(only) == 2
    assert "Give it more time (timeout_s=)" in caught.value.__notes__[0]
    path.unlink()
    found += [next(batches) for _ in range(100)]
    assert ids(found) == order(root, *range(1000))[: SIZE * len(found)]


def test_a_worker_that_dies_before_its_first_batch_is_told_though_others_go_on(root):
    def die_unless_first(number):
        if number:
            os.kill(os.getpid(), signal.SIGKILL)

    loader = stream_of(root).batch(SIZE, epochs=None).prefetch(2, workers=2, worker_init=die_unless_first)
    batches, found = iter(loader), []
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        found.extend(next(batches) for _ in until(60, "the death of a worker"))
    epochs = 1 + SIZE * len(found) // COUNT
    assert ids(found) == order(root, *range(epochs))[: SIZE * len(found)]


def test_sys_exit_in_worker_init_is_that(root):
    batches = iter(stream_of(root).batch(SIZE).prefetch(2, workers=2, worker_init=leave_by_exit))
    for _ in range(2):
        with pytest.raises(SystemExit) as caught:
            next(batches)
        assert caught.value.code == 3
        assert "in leave_by_exit" in "".join(caught.value.__notes__)


class PulseError(Exception):
    """Raised by a signal's handler."""


def read_interrupted(root):
    """Read while a signal's handler raises every 30 ms: each batch takes longer."""

    def beat(*_):
        raise PulseError

    batches, found = iter(stream_of(root).batch(SIZE).map(slow_batch).prefetch(2, workers=2)), []
    signal.signal(signal.SIGALRM, beat)
    while len(found) < COUNT // SIZE:
        with contextlib.suppress(PulseError):
            signal.setitimer(signal.ITIMER_REAL, 0.03)
            try:
                found.append(next(batches))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    return ids(found)


def test_signals_that_interrupt_next_lose_nothing_that_was_read(root):
    assert in_child(read_interrupted, root) == order(root)


@pytest.mark.parametrize("ends", ["close and drop", "drop the loader first", "read to the end"])
def test_nothing_is_left_when_all_is_dropped(root, ends):
    before = children()
    loader = stream_of(root).batch(SIZE).map(with_pid).prefetch(2, workers=2)
    batches = iter(loader)
    next(batches)
    wait_until(lambda: len(children() - before) == 3, "the second worker")
    pids = children() - before
    if ends == "close and drop":
        batches.close()
        assert children() - before == pids  # for the next iterator
    elif ends == "drop the loader first":
        del loader
        next(batches)
    else:
        assert len(ids(batches)) == COUNT - SIZE
    loader = batches = None
    assert not children() & pids


SCRIPT = """
import os, sys, yogadl

class Own:
    def __init__(self, number):
        self.number = number

def own(batch):
    return Own(batch["id"])

loader = yogadl.open_storage(sys.argv[1]).fetch("set", "1").stream().batch(50).map(own).prefetch(2, workers=2)
for found in loader:
    assert type(found) is Own
    print(*found.number[:2])
batches = iter(loader)
next(batches)
"""


def test_a_script_needs_no_guard_and_ends_with_them_open(root, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(root)], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1\n50 51\n", "")


def in_a_daemon(root):
    import multiprocessing

    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(talk_less(root)), daemon=True)
    process.start()
    found = queue.get()
    process.join()
    return found


def talk_less(root):
    return ids(stream_of(root).batch(SIZE).prefetch(2, workers=2))


def test_a_daemonic_process_may_have_them(root):
    assert in_child(in_a_daemon, root) == order(root)


def noisy(record, rng):
    return {"id": record["id"], "noise": rng.integers(1000)}


def taken_of(stream, size, taken, dice):
    """Return the records of so many batches of a shard, whose workers may die again and again."""
    loader = stream.batch(size)
    if dice.random() < 0.5:
        loader = loader.map(functools.partial(killing, dice.choice([0, 0, 0.05]), dice.random()))
    workers, method = dice.choice([1, 2, 3]), dice.choice(["fork"] * 7 + [None])
    items = iter(loader.prefetch(dice.randint(1, 4), workers=workers, start_method=method))
    found = []
    for _ in range(taken):
        batch = None
        while batch is None:
            try:
                batch = next(items)
            except StopIteration:
                return found
            except WorkerDiedError as error:
                if "not tried again" in "".join(error.__notes__):
                    state = items.state_dict()
                    items = iter(stream.batch(size))
                    items.load_state_dict(state)
        found += zip(batch["id"].tolist(), batch["noise"].tolist(), strict=True)
    return found


@pytest.mark.parametrize("part", range(5))
def test_any_chain_of_stops_kills_and_resumes_reads_each_record_once(root, part):
    """Over numbers of workers, batches, shards and functions; with the randomness of who never stopped."""
    for seed in range(part, few_or_many(5, 1000), 5):
        dice = random.Random(seed)
        wanted = [(int(record["id"]), int(record["noise"])) for record in stream_of(root).random_map(noisy)]
        found, cursor = [], None
        while cursor is None or cursor["epoch"] == 0:
            ranks, size = dice.randint(1, 3), dice.choice([1, 2, 7, 20])
            taken, rows = dice.randint(1, 5), []
            for rank in range(ranks):
                stream = stream_of(root, shard_rank=rank, num_shards=ranks, cursor=cursor).random_map(noisy)
                rows.append(taken_of(stream, size, taken, dice))
            found += [one for row in itertools.zip_longest(*rows) for one in row if one is not None]
            first = stream_of(root, num_shards=ranks, cursor=cursor)  # which has as many as any
            cursor = first.cursor(len(rows[0]), epoch=0)
            if cursor["position"] == COUNT:
                break
        assert found == wanted, seed
