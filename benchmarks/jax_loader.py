"""Compare `make_jax_iterator` with core batches that the training loop puts on to the device itself.

Run ``python benchmarks/jax_loader.py``; needs JAX. (Not called jax.py: a script's own folder is the first
place where it looks for imports.) It justifies that the thread which reads ahead also fills the device, and
that small records are read for many batches at once.
"""

import itertools
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import _sets
import jax
import numpy as np
from _measure import (
    Settings,
    at_least,
    at_most,
    check_equal,
    clear,
    in_child,
    interleave,
    main,
    rate,
    ratios,
)

import yogadl
from yogadl.adapters.jax import make_jax_iterator

IMAGES = replace(_sets.SMALL_IMAGES, name="{uint8[32,32,3], int64} x 60 k", records=60_000)
VECTORS = _sets.VECTORS
PROCESSES = 7

# The ids fit into 32 bits, and both sides put the same on to the device.
warnings.filterwarnings("ignore", "JAX makes these fields narrower", UserWarning)


def measure(settings: Settings) -> None:
    """Measure shuffled epochs on to one device, on to a mesh of it, and the first batch after a resume."""
    measure_epochs(settings, IMAGES, at_least(0.8))
    measure_epochs(settings, VECTORS, None)
    measure_resume(settings)


def measure_epochs(settings: Settings, data: _sets.DataSet, bar: Any) -> None:
    """Print the rows of one set."""
    columns, storage = _sets.built(settings, data)
    records = settings.scaled(data.records)
    ref = storage.fetch("set", "1")
    stream = ref.stream(shuffle=True, shuffle_seed=1)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    check(stream, columns, data, None)
    check(stream, columns, data, sharding)
    loader = stream.batch(data.batch)
    epochs = itertools.count()

    def ours(**options: Any) -> None:
        cursor = stream.cursor(0, epoch=next(epochs))
        drain(
            make_jax_iterator(ref.stream(shuffle=True, shuffle_seed=1, cursor=cursor), data.batch, **options)
        )

    def in_the_loop() -> None:
        drain(jax.device_put(batch) for batch in loader)

    times = interleave(
        {
            "core": in_the_loop,
            "ours": ours,
            "inline": lambda: ours(prefetch=0),
            "mesh": lambda: ours(sharding=sharding),
        },
        settings.rounds,
    )
    baseline = f"in the loop {rate(records, times['core'])}"
    for what, name, its_bar in (
        ("JAX iterator", "ours", bar),
        ("JAX iterator, prefetch=0", "inline", None),
        ("JAX iterator, sharding over a mesh of one", "mesh", None),
    ):
        settings.row(
            f"{what} against device_put in the loop, {data.name}",
            its_bar,
            ratios(times["core"], times[name]),
            f"{rate(records, times[name])}; {baseline}",
            " x",
        )
    clear(settings.path("cache"))


def drain(batches: Iterator[Any]) -> None:
    """Read to the end, holding one batch at a time, and wait until the last one has arrived."""
    newest = None
    for batch in batches:
        newest = batch
    jax.block_until_ready(newest)


def check(stream: Any, columns: _sets.Columns, data: _sets.DataSet, sharding: Any) -> None:
    """Compare an epoch's batches with the source."""
    batches = make_jax_iterator(stream, data.batch, sharding)
    for number, batch in enumerate(batches):
        chosen = stream.indices(0, number * data.batch, (number + 1) * data.batch)
        expected = jax.device_put(_sets.take(columns, chosen))
        check_equal(
            {name: np.asarray(array) for name, array in batch.items()},
            {name: np.asarray(array) for name, array in expected.items()},
            data.name,
        )


def measure_resume(settings: Settings) -> None:
    """Print the row of the first batch from the middle of an epoch, in processes of their own."""
    records = settings.scaled(VECTORS.records)
    root = settings.path("cache")
    storage = yogadl.open_storage(root)
    storage.submit(VECTORS.make(records), "set", "1")
    stream = storage.fetch("set", "1").stream(shuffle=True, shuffle_seed=1)
    cursor = stream.cursor(delivered=records // 2)
    expected = stream.indices(0, records // 2, records // 2 + VECTORS.batch).tolist()
    seen = [
        in_child(__file__, "read_first", root=str(root), cursor=cursor, expected=expected)
        for _ in range(3 if settings.is_quick else PROCESSES)
    ]
    settings.row(
        f"JAX: first batch after a resume at 50% of {VECTORS.name}",
        at_most(200, " ms"),
        [one["batch_ms"] for one in seen],
        f"fetch {np.median([one['open_ms'] for one in seen]):.1f} ms before that",
    )
    clear(root)


def read_first(root: str, cursor: dict[str, Any], expected: list[int]) -> dict[str, float]:
    """Open a cache and put one batch on to the device; return how long both took."""
    jax.block_until_ready(jax.device_put(np.zeros(1)))  # JAX itself has started
    started = time.perf_counter()
    ref = yogadl.open_storage(root).fetch("set", "1")
    opened = time.perf_counter()
    stream = ref.stream(shuffle=True, shuffle_seed=1, cursor=cursor)
    batch = jax.block_until_ready(next(make_jax_iterator(stream, VECTORS.batch)))
    done = time.perf_counter()
    check_equal({"id": np.asarray(batch["id"])}, {"id": np.array(expected, np.int32)}, "the first batch")
    return {"open_ms": 1e3 * (opened - started), "batch_ms": 1e3 * (done - opened)}


if __name__ == "__main__":
    main(__file__, measure, {"read_first": read_first})
