"""Compare windows of time with the same rows gathered by numpy from an array in RAM, and with torch's loader.

Run ``python benchmarks/windows.py``. It justifies how `yogadl._views.windows` gathers mapped rows directly.
The row against a dataset that computes each window by itself needs PyTorch.
"""

import importlib.util
import sys
from typing import Any

import numpy as np
from _measure import Settings, at_least, clear, drain, interleave, main, rate, ratios, say

import yogadl

BAR, TORCH = at_least(0.8), at_least(5)
STEPS, BATCH, EPISODE = 16, 256, 250
BEFORE = [-1, 0]  # the steps of the state


def measure(settings: Settings) -> None:
    """Print the rows of windows of 16 steps, shuffled, one thread."""
    measure_numpy(settings)
    measure_torch(settings)


def measure_numpy(settings: Settings) -> None:
    """Print the row against numpy's gather."""
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


def measure_torch(settings: Settings) -> None:
    """Print the row against torch's DataLoader with two workers, over a dataset that computes each window.

    The arithmetic is that of LeRobot's datasets: for each item the bounds of its episode, the clamped rows of
    each field, and their masks. Its rows are in RAM, and nothing is decoded.
    """
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    from yogadl.adapters.torch import make_dataloader

    count = settings.scaled(40_000)
    rng = np.random.default_rng(8)
    arrays = {name: rng.random((count, 14), np.float32) for name in ("state", "action")}
    episodes = np.arange(count) // EPISODE
    offsets = {"state": BEFORE, "action": [*range(STEPS)]}
    storage = yogadl.open_storage(settings.path("steps"))
    ref = storage.submit(arrays | {"episode": episodes}, "steps", "1").windows(offsets, "episode")

    class Steps(torch.utils.data.Dataset):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = {name: torch.from_numpy(array) for name, array in arrays.items()}
            self.episodes = episodes.tolist()
            self.bounds = [(n * EPISODE, min((n + 1) * EPISODE, count)) for n in range(episodes[-1] + 1)]

        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> dict[str, Any]:
            episode = self.episodes[index]
            begin, end = self.bounds[episode]
            item: dict[str, Any] = {"episode": episode}
            for name, rows in self.rows.items():
                wanted = [index + offset for offset in offsets[name]]
                item[name] = rows[[min(max(row, begin), end - 1) for row in wanted]]
                item[f"{name}_is_pad"] = torch.tensor([not begin <= row < end for row in wanted])
            return item

    theirs = torch.utils.data.DataLoader(
        Steps(), BATCH, shuffle=True, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    plain = torch.utils.data.DataLoader(Steps(), BATCH)
    for ours, other in zip(make_dataloader(ref.stream(), BATCH), plain, strict=True):
        if not all(torch.equal(ours[name], values) for name, values in other.items()):
            sys.exit("windows: they are not those of the dataset")
    loader = make_dataloader(ref.stream(shuffle=True, shuffle_seed=1), BATCH)
    works = {"torch": lambda: drain(iter(theirs)), "windows": lambda: drain(iter(loader))}
    times = interleave(works, settings.rounds)
    clear(settings.path("steps"))
    details = f"{rate(count, times['windows'])}; DataLoader, 2 workers {rate(count, times['torch'])}"
    what = (
        f"windows of {len(BEFORE)} and {STEPS} steps of float32[14], with masks, as tensors: one thread "
        "against torch's DataLoader with 2 workers over LeRobot's arithmetic, rows in RAM"
    )
    settings.row(what, TORCH, ratios(times["torch"], times["windows"]), details, " x")


if __name__ == "__main__":
    main(__file__, measure)
