"""Measure what tickets cost: processor time beside reading, and the bytes of a saved state.

Run ``python benchmarks/tickets.py``. ``pytest --soak tests/faults/test_killed_rollouts.py`` tries that each
prompt ends exactly once, however often drivers and workers are killed.
"""

import json
import random
import time

import numpy as np
from _measure import Settings, at_most, main

import yogadl

COUNT = 200_000
OPEN = 1024


def measure(settings: Settings) -> None:
    """Measure `next` and `done` of a ticket, with any ticket of many open ones ended, and the state."""
    ref = yogadl.from_source({"id": np.arange(COUNT)}, fingerprint="prompts")
    stream = ref.stream(shuffle=True, shuffle_seed=1, num_shards=2)
    for name, lead in (("", None), (", max_lead", 10**6)):
        found = [ticket_us(stream.tickets(OPEN, lead)) for _ in range(settings.rounds)]
        settings.row(f"processor time of next and done, {OPEN:,} open{name}", at_most(20.0, " us"), found)
    tickets = stream.tickets(OPEN)
    for _ in range(COUNT // 2 - OPEN):
        next(tickets).done()
    empty = len(json.dumps(tickets.state_dict()))
    for _ in range(OPEN):
        next(tickets)
    full = len(json.dumps(tickets.state_dict()))
    settings.row(
        "bytes of the state an open ticket", at_most(64.0, ""), [(full - empty) / OPEN], f"{full:,} in all"
    )


def ticket_us(tickets: "yogadl.Tickets[object]") -> float:
    """Return the processor time of a ticket, in microseconds; its record is not read."""
    draw = random.Random(1)
    given = [next(tickets) for _ in range(OPEN - 1)]
    chosen = [draw.randrange(OPEN) for _ in range(50_000)]
    begun = time.process_time()
    for number in chosen:
        given.append(next(tickets))
        given[number], given[-1] = given[-1], given[number]
        given.pop().done()
    return (time.process_time() - begun) / len(chosen) * 1e6


if __name__ == "__main__":
    main(__file__, measure)
