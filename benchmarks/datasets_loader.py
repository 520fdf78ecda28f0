"""Compare `to_hf` in PyTorch's DataLoader with `ref.gather` there, and with an Arrow `Dataset`.

Run ``python benchmarks/datasets_loader.py``; needs datasets and PyTorch. A loader's batch is in each the same
list of 32 rows, which a collator would take.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import records
import torch
from _measure import Settings, at_least, clear, drain, interleave, main, rate, ratios, say

import yogadl

RECORDS, BATCH = 20_000, 32
BY_HAND, OF_ARROW = 0.6, 1.0


def measure(settings: Settings) -> None:
    """Measure shuffled epochs of chats, of tokens and of labelled texts."""
    count = settings.scaled(RECORDS)
    dice = np.random.default_rng(0)
    chats = records.chats(count)
    tokens = [dice.integers(0, 50_000, dice.integers(50, 200)) for _ in range(count)]
    measure_kind(settings, "chats", {"messages": chats})
    measure_kind(settings, "tokens", {"input_ids": tokens, "label": np.arange(count)})
    texts = [chat[0]["content"] for chat in chats]
    measure_kind(settings, "texts", {"text": texts, "label": np.arange(count)})


class ByHand(torch.utils.data.Dataset):  # type: ignore[misc]  # torch may not be there to check
    """What a user of `gather` writes for a DataLoader."""

    def __init__(self, ref: Any) -> None:
        self._ref = ref

    def __len__(self) -> int:
        return len(self._ref)

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        columns = self._ref.gather(numbers)
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def measure_kind(settings: Settings, kind: str, columns: dict[str, Any]) -> None:
    """Measure an epoch of one kind of records."""
    import datasets

    datasets.disable_progress_bars()
    count = len(next(iter(columns.values())))
    say(f"{count:,} {kind}")
    root = settings.path("cache")
    ref = yogadl.open_storage(root).submit(columns, "set", "1")
    ours = ref.to_hf()
    arrow = datasets.Dataset.from_list(ours.to_list(), features=ours.features)
    if arrow[:10] != ours[:10] or list(map(dict, ours.__getitems__([3, 1]))) != [arrow[3], arrow[1]]:
        raise SystemExit(f"{kind}: not the rows of the source")
    sets = {"ours": ours, "by hand": ByHand(ref), "arrow": arrow}
    times = interleave({name: epoch(dataset) for name, dataset in sets.items()}, settings.rounds)
    shuffled = {"ours": ours.shuffle(seed=1), "arrow": arrow.shuffle(seed=1)}
    after = interleave({name: epoch(dataset) for name, dataset in shuffled.items()}, settings.rounds)
    what = f"to_hf() through DataLoader(batch_size={BATCH}, shuffle=True), {kind}, against"
    for spent, other, bar, name in (
        (times, "by hand", BY_HAND, "ref.gather there"),
        (times, "arrow", OF_ARROW, "an Arrow Dataset"),
        (after, "arrow", OF_ARROW, "an Arrow Dataset, both after shuffle()"),
    ):
        details = f"{rate(count, spent['ours'])}; {rate(count, spent[other])}"
        settings.row(f"{what} {name}", at_least(bar), ratios(spent[other], spent["ours"]), details)
    clear(root)


def epoch(dataset: Any) -> Callable[[], object]:
    """Return a function that reads a loader's epoch."""
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=list)
    return lambda: drain(iter(loader))


if __name__ == "__main__":
    main(__file__, measure)
