"""Measure the functions of docs/howto/images.md, whose libraries are installed, in one thread.

Run ``OMP_NUM_THREADS=1 python benchmarks/decoders.py`` with Pillow, and any of torchvision, OpenCV,
simplejpeg and albumentations. The pictures are 375 x 500, of smooth noise, as large as photos at quality 90.
There is no bar: the rows are for the table of that page.
"""

import io
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
from _measure import Settings, drain, main, say

import yogadl

RECORDS, MADE, BATCH = 1_000, 100, 64
PAGE = Path(__file__).parent.parent / "docs" / "howto" / "images.md"


def measure(settings: Settings) -> None:
    """Print the images a second that each function of the page makes, as a part of a stream."""
    names = functions()
    count = settings.scaled(RECORDS)
    made = [jpeg(number) for number in range(min(count, MADE))]
    jpegs = [made[number % len(made)] for number in range(count)]
    say(f"{count:,} JPEGs of {sum(map(len, jpegs)) / count / 1e3:.0f} KB")
    storage = yogadl.open_storage(settings.path("storage"))
    storage.submit({"jpeg": jpegs}, "pictures", "1")
    stream = storage.fetch("pictures", "1").stream(shuffle=True, shuffle_seed=0)
    loaders = {
        name: stream.random_map(function, out=names["OUT"]).batch(BATCH)
        for name, function in names.items()
        if name.startswith("with_")
    }
    spent: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(1 + settings.rounds):
        for name, loader in loaders.items():
            started = time.process_time()
            drain(loader.at(0))
            spent[name].append(time.process_time() - started)
    for name, times in spent.items():
        rates = [count / seconds for seconds in times[1:]]  # the first round loads the libraries
        settings.row(f"{name}, images/s of processor time", None, rates)


def functions() -> dict[str, Any]:
    """Return the names that the page's examples define, but for those whose library is missing."""
    names: dict[str, Any] = {}
    for example in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M):
        if "\nstorage = " not in example:  # the last one reads
            try:
                exec(example, names)
            except ImportError as error:
                say(f"left out: {error}")
    return names


def jpeg(number: int) -> bytes:
    """Return a JPEG of smooth noise."""
    from PIL import Image

    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (48, 64, 3), np.uint8))
    smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC)).astype(np.int16)
    picture = np.clip(smooth + rng.normal(0, 5, smooth.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=90)
    return file.getvalue()


if __name__ == "__main__":
    main(__file__, measure)
