"""A job of rollouts that is killed at any moment: drivers, their worker processes, and saved states."""

import json
import multiprocessing
import os
import random
import signal
import time
from contextlib import suppress
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path

import numpy as np

import yogadl

WORKERS = 4
SAVE_EVERY = 10  # results
FAILS = 0.05  # the share of rollouts that fail; a twentieth of them kill their worker
DROPPED_AFTER = 3  # failures of a prompt in one run


def with_noise(record, rng):
    return {"id": record["id"], "noise": rng.random()}


def stream_of(count, rank=0, ranks=1):
    ref = yogadl.from_source({"id": np.arange(count)}, fingerprint=f"prompts {count}")
    stream = ref.stream(shuffle=True, shuffle_seed=9, shard_rank=rank, num_shards=ranks)
    return stream.random_map(with_noise, seed=4)


def roll_out(connection, seed):
    """Answer prompts until the driver is gone: after 0.1 to 100 ms, or never."""
    draw, driver = random.Random(seed), os.getppid()
    with suppress(EOFError, OSError):
        while os.getppid() == driver:
            if not connection.poll(0.5):
                continue
            place, record = connection.recv()
            time.sleep(10 ** draw.uniform(-4, -1))
            fails = draw.random() < FAILS
            if fails and draw.random() < 0.05:
                os.kill(os.getpid(), signal.SIGKILL)
            connection.send((place, None if fails else (int(record["id"]), float(record["noise"]))))
    os._exit(0)


class Driver:
    """Rolls out the prompts of one rank, and saves what has ended together with the state of the tickets."""

    def __init__(self, path, tickets, seed):
        self.path, self.tickets, self.seed = path, tickets, seed
        self.ended = []  # what a model has learnt from: the places that are done, with their records
        self.failures = {}
        self.workers = {}  # the process and the places that it works on, by connection
        for number in range(WORKERS):
            self.start(number)
        self.save()

    def start(self, number):
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        pid = os.fork()
        if not pid:
            ours.close()
            roll_out(theirs, f"{self.seed} {number} {time.monotonic_ns()}")
        theirs.close()
        self.workers[ours] = (pid, number, set())

    def save(self):
        held = json.dumps({"state": self.tickets.state_dict(), "ended": self.ended})
        draft = self.path.with_suffix(".draft")
        draft.write_text(held)
        draft.replace(self.path)

    def run(self):
        since = 0
        while not self.tickets.finished:
            for connection, (_, _, places) in self.workers.items():
                while len(places) < 3 and (ticket := self.tickets.take()) is not None:
                    places.add(ticket.place)
                    # A worker that was killed reads nothing more: `receive` finds that it is gone.
                    with suppress(BrokenPipeError, ConnectionResetError):
                        connection.send((tuple(ticket.place), ticket.record))
            for connection in wait_for_any(list(self.workers), 0.5):
                since += self.receive(connection)
            if since >= SAVE_EVERY:
                self.save()
                since = 0
        self.save()
        for connection, (pid, _, _) in self.workers.items():
            connection.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def receive(self, connection):
        """Take one result; return whether a prompt has ended."""
        pid, number, places = self.workers[connection]
        try:
            place, result = connection.recv()
        except (EOFError, OSError):
            os.waitpid(pid, 0)
            connection.close()
            del self.workers[connection]
            for place in places:
                self.tickets.ticket(place).again()
            self.start(number)
            return False
        places.discard(place)
        ticket = self.tickets.ticket(place)
        if result is not None:
            ticket.done()
            self.ended.append([*place, *result])
            return True
        self.failures[place] = self.failures.get(place, 0) + 1
        if self.failures[place] < DROPPED_AFTER:
            ticket.again()
            return False
        ticket.drop("it fails")
        self.ended.append([*place, None, None])
        return True


def waits_alone():
    """Return what `next` raises in the only thread: with all tickets open, and at the last epoch's end."""
    errors = []
    for tickets in (stream_of(3).tickets(max_open=2), stream_of(2).tickets(epochs=1)):
        next(tickets), next(tickets)
        try:
            next(tickets)
        except yogadl.errors.TicketError as error:
            errors.append(str(error))
    return errors


def drive(count, epochs, before, path, rank, ranks):
    """Run the driver of one rank, from the saved states of the job before, until all prompts have ended."""
    states = [json.loads(Path(each).read_text())["state"] for each in before] or None
    tickets = stream_of(count, rank, ranks).tickets(
        max_open=64, max_lead=None if ranks == 1 else 10**6, state=states, epochs=epochs
    )
    Driver(Path(path), tickets, f"{path}").run()
