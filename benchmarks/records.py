"""Measure json values: gathers of chats against a loop that decodes texts in RAM, and builds.

Run ``python benchmarks/records.py``; needs orjson, and measures without it, too. A chat has 8 messages and
1.7 KB of text.
"""

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _measure import Settings, at_least, batches_of, clear, in_child, interleave, main, rate, ratios, say

import yogadl

RECORDS, BATCH = 20_000, 256
MESSAGES, MESSAGE_BYTES = 8, 180
GATHER, BUILD, BUILD_OF_FLOATS = 0.85, 0.3, 0.12


def measure(settings: Settings) -> None:
    """Measure gathers with orjson and without it, then builds."""
    import orjson

    count = settings.scaled(RECORDS)
    texts = [orjson.dumps(chat) for chat in chats(count)]
    say(f"{count:,} chats of {sum(map(len, texts)) / count:,.0f} bytes")
    folder = str(settings.path("store"))
    yogadl.open_storage(folder).submit({"chat": chats(count)}, "chats", "1")
    for decoder in ("orjson", "json"):
        times = in_child(__file__, "gather", folder=folder, decoder=decoder, rounds=settings.rounds)
        settings.row(
            f"gather of chats, batch {BATCH}, against [{decoder}.loads(text) for text in texts] in RAM",
            at_least(GATHER),
            ratios(times["loads"], times["gather"]),
            "; ".join(f"{name} {rate(count, spent)}" for name, spent in times.items()),
        )
    for name, bar, has_floats in (("", BUILD, False), (" with floats", BUILD_OF_FLOATS, True)):
        records = chats(count, has_floats=has_floats)
        times = measure_build(settings, records)
        settings.row(
            f"build of chats{name} against orjson.dumps of each and one file",
            at_least(bar),
            ratios(times["dumps"], times["build"]),
            "; ".join(f"{work} {rate(count, spent)}" for work, spent in times.items()),
        )
    clear(settings.path("store"))


def chats(count: int, *, has_floats: bool = False) -> list[list[dict[str, Any]]]:
    """Return chats, each with objects of its own."""
    dice = random.Random(0)
    words = [dice.randbytes(dice.randrange(1, 6)).hex() for _ in range(2_000)]
    found = []
    for _ in range(count):
        chat = []
        for number in range(MESSAGES):
            text = " ".join(dice.choices(words, k=MESSAGE_BYTES // 7))
            message: dict[str, Any] = {"role": "user" if number % 2 == 0 else "assistant", "content": text}
            if has_floats:
                message["logprobs"] = [-dice.random() for _ in range(8)]
            chat.append(message)
        found.append(chat)
    return found


def gather(folder: str, decoder: str, rounds: int) -> dict[str, list[float]]:
    """Read all batches, in a process that has orjson or has it not."""
    from yogadl._core import json_value

    loads: Callable[[Any], Any] = json.loads
    if decoder == "orjson":
        import orjson

        loads = orjson.loads
    else:
        json_value._orjson = None  # type: ignore[misc]  # as where it is not installed
    ref = yogadl.open_storage(folder).fetch("chats", "1")
    texts: list[Any] = [json.dumps(record["chat"], ensure_ascii=False) for record in ref]
    if decoder == "orjson":
        texts = [text.encode() for text in texts]
    batches = batches_of(np.random.default_rng(0).permutation(len(texts)), BATCH)
    if ref.gather(batches[0])["chat"] != [loads(texts[number]) for number in batches[0]]:
        raise SystemExit("records.py: a batch is not what the source has")

    def bare() -> None:
        for chosen in batches:
            [loads(texts[number]) for number in chosen.tolist()]

    def gather_all() -> None:
        for chosen in batches:
            ref.gather(chosen)

    return interleave({"loads": bare, "gather": gather_all}, rounds)


def measure_build(settings: Settings, records: list[Any]) -> dict[str, list[float]]:
    """Return the seconds of builds, and of the least that anybody can do."""
    path = settings.path("chats.jsonl")
    storage = yogadl.open_storage(settings.path("builds"))
    works = {
        "dumps": partial(write_lines, path, records),
        "build": partial(storage.submit, {"chat": records}, "chats", "1"),
    }
    return interleave(works, settings.rounds, before=lambda: clear(settings.path("builds")))


def write_lines(path: Path, records: list[Any]) -> None:
    """Write a line for each record, to the disk."""
    import os

    import orjson

    with path.open("wb") as file:
        for record in records:
            file.write(orjson.dumps(record))
            file.write(b"\n")
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main(__file__, measure, {"gather": gather})
