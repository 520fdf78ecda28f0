"""Compare windows of time with the same rows gathered by numpy from an array in RAM.

Run ``python benchmarks/windows.py``. It justifies how `yogadl._views.windows` gathers mapped rows directly.
"""

import sys

import numpy as np
from _measure import Settings, at_least, clear, drain, interleave, main, rate, ratios, say

import yogadl

BAR = at_least(0.8)
STEPS, BATCH, EPISODE = 16, 256, 250


def measure(settings: Settings) -> None:
    """Print the row of windows of 16 steps, shuffled, one thread."""
    count = settings.scaled(200_000)
    say(f"records of float32[14], in episodes of {EPISODE}: {count:,}")
    actions = np.random.default_rng(8).random((count, 14), np.float32)
    episodes = np.arange(count) // EPISODE
    storage = yogadl.open_storage(settings.path("cache"))
    ref = storage.submit({"action": actions, "episode": episodes}, "steps", "1")
    windows = ref.windows({"action": range(STEPS)}, "episode", masks=None).fields("action")
    stream = windows.stream(shuffle=True, shuffle_seed=1).batch(BATCH)
    last = np.minimum((episodes + 1) * EPISODE, count) - 1
    rows = np.minimum(np.arange(count)[:, None] + np.arange(STEPS), last[:, None])
    order = windows.stream(shuffle=True, shuffle_seed=1).indices()
    batches = [order[first : first + BATCH] for first in range(0, count, BATCH)]
    for batch, chosen in zip(stream.at(0), batches, strict=True):
        if not np.array_equal(batch["action"], actions[rows[chosen]]):
            sys.exit("windows: they are not those of the array")
    works = {
        "numpy": lambda: drain(actions[rows[chosen]] for chosen in batches),
        "windows": lambda: drain(iter(stream)),
    }
    times = interleave(works, settings.rounds)
    clear(settings.path("cache"))
    details = f"{rate(count, times['windows'])}; numpy {rate(count, times['numpy'])}"
    what = f"windows of {STEPS} steps of float32[14], shuffled, batch {BATCH}, against numpy in RAM"
    settings.row(what, BAR, ratios(times["numpy"], times["windows"]), details, " x")


if __name__ == "__main__":
    main(__file__, measure)
