"""Run the scripts of examples/ as jobs of several processes on this machine, and stop them by signals."""

import contextlib
import json
import re
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from processes import until
from programs import programs
from warm import Program

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 240
START = re.compile(r"^starts at epoch (\d+), record (\d+)$", re.MULTILINE)
EPOCH = re.compile(r"^epoch (\d+): loss ([\d.]+), accuracy ([\d.]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Job:
    """A script, where it keeps what it has, and how many processes run it."""

    script: str
    framework: str  # that is loaded before it is forked
    folder: Path
    ranks: int
    epochs: int
    save_every: int = 4

    def places(self) -> Iterator[tuple[list[str], dict[str, str]]]:
        """Yield each process's own arguments and variables, by which the framework finds the others."""
        addresses = [f"127.0.0.1:{port}" for port in free_ports(self.ranks)]
        host, port = addresses[0].split(":")
        for rank in range(self.ranks):
            if self.script == "train_pytorch.py":  # as torchrun sets them
                place = {"RANK": str(rank), "WORLD_SIZE": str(self.ranks), "MASTER_ADDR": host}
                yield [], {**place, "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
            elif self.script == "train_tensorflow.py":
                task = {"type": "worker", "index": rank}
                yield [], {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}
            elif self.script == "train_keras.py":  # is a single process
                yield [], {}
            else:
                options = {"coordinator": addresses[0], "processes": self.ranks, "process": rank}
                yield [word for name, value in options.items() for word in (f"--{name}", str(value))], {}

    def arguments(self) -> list[str]:
        """Return the arguments that all processes have."""
        options = {
            "data": self.folder / "data",
            "checkpoint": self.folder / "checkpoint",
            "epochs": self.epochs,
            "save-every": self.save_every,
        }
        return [word for name, value in options.items() for word in (f"--{name}", str(value))]

    def start(self) -> list[Program]:
        """Start all processes, each in a session of its own; what they print goes to files."""
        server = programs(self.framework)
        return [
            server.start(
                EXAMPLES / self.script,
                *self.arguments(),
                *arguments,
                variables=variables,
                output=self.output(rank),
                errors=self.errors(rank),
            )
            for rank, (arguments, variables) in enumerate(self.places())
        ]

    def output(self, rank: int) -> Path:
        """Return the file that a rank prints to."""
        return self.folder / f"output-{rank}"

    def errors(self, rank: int) -> Path:
        """Return the file of what a rank and its framework say besides."""
        return self.folder / f"errors-{rank}"

    def run(
        self,
        stop: signal.Signals | None = None,
        epochs: int = 1,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> "Printed":
        """Run it to its end, or up to a signal to all processes once it has spoken of so many epochs.

        `is_ready` is asked while all of them stand still.
        """
        self.folder.mkdir(exist_ok=True)
        running = self.start()
        try:
            if stop is not None:
                for _ in until(TIMEOUT_S, f"{self} to be through an epoch"):
                    if self.is_stoppable(running, epochs):
                        send(running, signal.SIGSTOP)
                        if is_ready():
                            break
                        send(running, signal.SIGCONT)
                send(running, stop)
                send(running, signal.SIGCONT)
            codes = [process.wait(TIMEOUT_S) for process in running]
        finally:
            send(running, signal.SIGKILL)
            for process in running:
                process.wait()
        expected = -signal.SIGKILL if stop == signal.SIGKILL else 0
        errors = [self.errors(rank).read_text(errors="replace")[-4000:] for rank in range(self.ranks)]
        assert codes == [expected] * self.ranks, "\n".join(errors)
        printed = [Printed.parse(self.output(rank).read_text()) for rank in range(self.ranks)]
        assert printed[1:] == [None] * (self.ranks - 1)  # one of them speaks for all
        assert printed[0] is not None
        return printed[0]

    def is_stoppable(self, running: list[Program], epochs: int) -> bool:
        """Return whether it has spoken of so many epochs, or has failed."""
        has_ended = any(process.poll() is not None for process in running)
        return has_ended or len(EPOCH.findall(self.output(0).read_text())) >= epochs

    def weights(self) -> list[np.ndarray]:
        """Return what a job that came to its end has learned."""
        with np.load(self.folder / "checkpoint" / "weights.npz") as file:
            return [file[name] for name in file.files]


@dataclass(frozen=True)
class Printed:
    """What a job has printed: where it started, and loss and accuracy of each epoch that it ended."""

    epoch: int
    record: int
    epochs: dict[int, tuple[float, float]]

    @staticmethod
    def parse(text: str) -> "Printed | None":
        """Read what a process has printed, if anything; some frameworks print, too."""
        start = START.search(text)
        if start is None:
            assert EPOCH.search(text) is None, text
            return None
        epochs = {int(epoch): (float(loss), float(accuracy)) for epoch, loss, accuracy in EPOCH.findall(text)}
        return Printed(int(start[1]), int(start[2]), epochs)


def send(running: list[Program], number: signal.Signals) -> None:
    """Send a signal to all processes of a job, and to those that they have started."""
    for process in running:
        process.send(number)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def largest_difference(some: list[np.ndarray], others: list[np.ndarray]) -> float:
    """Return how far two models' weights are apart at most."""
    return max(float(np.abs(one - other).max()) for one, other in zip(some, others, strict=True))
