"""What workers call that die, hang or leave: a module that imports little, since each of them imports it."""

import os
import random
import signal
import sys
import threading
import time

import numpy as np
from processes import wait_until


def trap(path, how, given):
    """Do something at the record, or the batch that begins with it, whose number is in a file."""
    number = int(np.ravel(given["id"])[0])
    if path.exists() and str(number) in path.read_text().split():
        how(path)
    return given


class StubbornError(Exception):
    """One that does not pickle."""

    def __reduce__(self):
        raise TypeError("no")


class OddError(Exception):
    """One that can't be made from a text alone."""

    def __init__(self, code, what):
        super().__init__(code, what)
        self.code = code


def fail(path):
    raise LookupError("no label")


def fail_stubbornly(path):
    raise StubbornError("stubborn")


def fail_oddly(path):
    raise OddError(7, "odd")


def stop(path):
    raise StopIteration


def call_exit(path):
    sys.exit(3)


def be_slow(path):
    time.sleep(0.5)


def kill_the_server(path):
    """Kill the process that starts the workers, and with it this one."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)


def die_once(path):
    path.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


def fork_and_die_once(path):
    path.rename(path.with_suffix(".over"))
    fork_and_die(path)


def block(folder, first, given):
    """Say that this process is at a record that is not among the first, and stay there."""
    if int(np.ravel(given["id"])[0]) >= first:
        (folder / str(os.getpid())).touch()
        time.sleep(10_000)
    return given


def die(path):
    with path.with_suffix(".deaths").open("a") as file:
        file.write(".")
    os.kill(os.getpid(), signal.SIGKILL)


def leave(path):
    os._exit(7)


def hang(path):
    path.with_suffix(".hangs").touch()
    threading.Event().wait()


def fork_and_die(path):
    """Leave behind a process that holds everything open."""
    child = os.fork()
    if not child:
        time.sleep(100)
        os._exit(0)
    path.with_suffix(".child").write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


def hang_first(path, only, number):
    if path.exists() and number in only:
        hang(path)


def leave_by_exit(number):
    sys.exit(3)


def note_replacement(path, number):
    """Note that the first of two workers is replaced after both have begun."""
    one_after_the_other.worker = number
    if path.with_suffix(".busy").exists():
        path.with_suffix(".replaced").touch()


def one_after_the_other(path, firsts, batch):
    """Let the last of two workers die in an iteration that is over, and then the other in the one after it.

    The second iteration begins with the batch number 6, of which `firsts` has the first records. The last
    worker stays in the first iteration until the other has a batch of the second one; that one dies at it
    when the last worker was replaced.
    """
    held, busy, replaced = (path.with_suffix(suffix) for suffix in (".held", ".busy", ".replaced"))
    if replaced.exists():
        return batch
    number, is_last = firsts.index(batch["id"][0]), one_after_the_other.worker == 1
    if is_last and 0 < number < 6:
        held.touch()
        wait_until(busy.exists, "the other worker")
        os.kill(os.getpid(), signal.SIGKILL)
    elif not is_last and number == 0:
        wait_until(held.exists, "the last worker")
    elif not is_last and number > 6:
        busy.touch()
        wait_until(replaced.exists, "the last worker's replacement")
        path.with_suffix(".died").write_text(str(number * len(batch["id"])))
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def slow_batch(batch):
    time.sleep(0.1)
    return batch


def talk(path):
    """Print, fork and start threads, as users' functions may."""
    print("in a worker", flush=False)
    if (child := os.fork()) == 0:
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    found = []
    thread = threading.Thread(target=found.append, args=(path,))
    thread.start()
    thread.join()
    assert found == [path]


def killing(odds, seed, batch):
    """Die now and then: not always at the same batch."""
    if random.Random(f"{seed} {os.getpid()} {batch['id'][0]}").random() < odds:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch
