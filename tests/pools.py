"""What may happen to the workers of any pool, and what its caller must see: one table for all pools."""

import functools
import itertools
import os
import re
import signal
import traceback
from collections.abc import Callable
from typing import NamedTuple

import deadly_functions as deadly
import numpy as np
import psutil
import pytest
from processes import in_fork

import yogadl
from yogadl.errors import StageError, WorkerDiedError, WorkerTimeoutError

COUNT, SIZE = 60, 5
# At an epoch's first batch, in the middle, at its last.
POSITIONS = (0, 20, COUNT - SIZE)
TIMEOUT_S = 0.5


class Scenario(NamedTuple):
    """What happens in a worker, and the error of whoever reads a stream; none where nothing is amiss."""

    do: Callable
    error: type[BaseException] | None = None
    words: str = ""
    cause: type[BaseException] | None = None
    note: str = ""


def died(do, how):
    words = f"a worker process of {{pool}} died {how}.*, at epoch 0, position {{position}} "
    return Scenario(do, WorkerDiedError, words, note=r"may lack memory.* next\(\) tries again")


FAILED = r"map\(partial\) failed at {what} {position}: "
RAISED = {  # in threads, too
    "raises": Scenario(deadly.fail, StageError, FAILED + "LookupError: no label", LookupError),
    "raises oddly": Scenario(deadly.fail_oddly, StageError, FAILED + "OddError: ", deadly.OddError),
    "stops": Scenario(deadly.stop, StageError, FAILED + "StopIteration", StopIteration),
    "calls sys.exit": Scenario(
        deadly.call_exit, SystemExit, "^3$", note=r"map\(partial\) called sys.exit at {what} {position}"
    ),
    "is slow": Scenario(deadly.be_slow),
}
SCENARIOS = RAISED | {
    "raises stubbornly": Scenario(deadly.fail_stubbornly, StageError, FAILED + "StubbornError: stubborn"),
    "is killed": died(deadly.die, "of SIGKILL: is there enough memory"),
    "leaves": died(deadly.leave, "with exit code 7"),
    "is killed beside its child": died(deadly.fork_and_die, "of SIGKILL"),
    "is killed with who started it": died(deadly.kill_the_server, ""),
    "is silent": Scenario(
        deadly.hang, WorkerTimeoutError, f"timed out after {TIMEOUT_S}.* position {{position}} ",
        note=r"Give it more time \(timeout",
    ),
    "prints, forks and starts threads": Scenario(deadly.talk),
}  # fmt: skip


def numbers(batches):
    return [int(number) for batch in batches for number in np.ravel(batch["id"])]


def loader_of(make, path, do, position, *, of_batches=False):
    """Return a loader over two epochs, one of whose functions does something at a position."""
    path.write_text(str(position))
    trap = functools.partial(deadly.trap, path, do)
    ref = yogadl.from_source({"id": np.arange(COUNT), "x": np.ones((COUNT, 3000))}, fingerprint="ids")
    return make(ref.stream(), trap) if of_batches else make(ref.stream().map(trap, spec=ref.spec), None)


def check_scenario(make, path, name, position, *, pool=None, of_batches=False):
    """Check that what came before is delivered, then the error, and all else once that is over.

    `make` gets a stream, and a function of batches or None, if it is not a function of records that fails.
    """
    scenario = SCENARIOS[name]
    batches = iter(loader_of(make, path, scenario.do, position, of_batches=of_batches))
    if scenario.error is None:
        assert numbers(batches) == [*range(COUNT)] * 2
        return
    what = "the batch that begins with record" if of_batches else "record"
    words = {"what": what, "position": position, "pool": pool}
    found = []
    for _ in range(1 if issubclass(scenario.error, (WorkerDiedError, WorkerTimeoutError)) else 2):
        with pytest.raises(scenario.error) as caught:
            found.extend(batches)
        assert numbers(found) == list(range(position))
        assert batches.state_dict()["position"] == position
        assert re.search(scenario.words.format(**words), str(caught.value))
    error, notes = caught.value, "".join(getattr(caught.value, "__notes__", []))
    assert re.search(scenario.note.format(**words), notes)
    if scenario.cause:
        assert isinstance(error.__cause__, scenario.cause)
    if scenario.error in (StageError, SystemExit):
        told = "".join(traceback.format_exception(error))
        assert f"in {scenario.do.__name__}" in told or name == "raises stubbornly"
        assert (f"of {pool}:\nTraceback" in notes) == (pool is not None)
    path.unlink()
    assert numbers(itertools.chain(found, batches)) == [*range(COUNT)] * 2
    child = path.with_suffix(".child")
    if child.exists():
        os.kill(int(child.read_text()), signal.SIGKILL)


def check_fork(make, path):
    """Check that a forked process goes on with workers of its own, and leaves its parent's alone."""
    loader = loader_of(make, path, deadly.stop, -1)
    batches = iter(loader)
    first = numbers([next(batches), next(batches)])
    assert first + in_fork(lambda: numbers(batches)) == [*range(COUNT)] * 2
    in_fork(batches.close)
    assert first + numbers(batches) == [*range(COUNT)] * 2
    assert in_fork(lambda: numbers(loader)) == numbers(loader) == [*range(COUNT)] * 2


def are_gone(pids):
    def is_gone(pid):
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return all(map(is_gone, pids))
