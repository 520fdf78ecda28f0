"""Compare `make_tf_dataset` with tf.data that has everything in RAM, and a build with the pipeline it reads.

Run ``python benchmarks/tf_data.py``; needs TensorFlow. (Not called tensorflow.py: a script's own folder is
the first place where it looks for imports.) It justifies gathering many records a call in
`yogadl.adapters.tensorflow`.
"""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import _sets
from _measure import Settings, at_least, at_most, check_equal, clear, interleave, main, rate, ratios
from _sets import Columns, DataSet

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow as tf

import yogadl
from yogadl.adapters import tensorflow as adapter

LARGE_STRINGS = replace(_sets.VARYING, batch=64)
SETS = ((_sets.SMALL_IMAGES, 1.2), (_sets.TOKENS, 0.8), (_sets.LARGE_IMAGES, 0.8), (LARGE_STRINGS, 0.6))
GENERATED = 20_000


def measure(settings: Settings) -> None:
    """Measure shuffled epochs, a restore in the middle of one, and a build."""
    for data, bar in SETS:
        measure_set(settings, data, bar)
    measure_restore(settings)
    measure_build(settings)


def drain(dataset: Any) -> None:
    """Read an epoch to its end."""
    for _ in dataset:
        pass


def measure_set(settings: Settings, data: DataSet, bar: float) -> None:
    """Measure one set in batches; small images also record by record and against `from_generator`."""
    columns, storage = _sets.built(settings, data)
    records = settings.scaled(data.records)
    ref = storage.fetch("set", "1")
    stream = ref.stream(shuffle=True, shuffle_seed=1)
    ours = adapter.make_tf_dataset(stream, data.batch)
    check(ours, stream, columns, data)
    in_memory = tf.data.Dataset.from_tensor_slices(columns).shuffle(records).batch(data.batch).prefetch(2)
    works: dict[str, Callable[[], object]] = {
        "ours": lambda: drain(ours),
        "tf.data": lambda: drain(in_memory),
    }
    if data is _sets.SMALL_IMAGES:
        alone = adapter.make_tf_dataset(stream).batch(data.batch).prefetch(2)
        works["records"] = lambda: drain(alone)
        few = ref[: min(records, GENERATED)]
        generated = tf.data.Dataset.from_generator(
            lambda: iter(few.stream(shuffle=True)),
            output_signature=adapter.make_tf_dataset(few.stream()).element_spec,
        )
        works["generator"] = lambda: drain(generated.batch(data.batch).prefetch(2))
    times = interleave(works, settings.rounds, uncounted=1)
    details = f"{rate(records, times['ours'])}; tf.data {rate(records, times['tf.data'])}"
    what = f"make_tf_dataset(batch_size={data.batch}), shuffled, {data.name}"
    settings.row(
        f"{what}, against tf.data in RAM", at_least(bar), ratios(times["tf.data"], times["ours"]), details
    )
    if data is _sets.SMALL_IMAGES:
        per_record = [t / len(few) * records for t in times["generator"]]
        settings.row("the same, against from_generator", at_least(50), ratios(per_record, times["ours"]),
                     rate(len(few), times["generator"]))  # fmt: skip
        settings.row("record by record, then batch, against its batches", at_least(0.5),
                     ratios(times["ours"], times["records"]), rate(records, times["records"]))  # fmt: skip
    clear(settings.path("cache"))


def check(ours: Any, stream: Any, columns: Columns, data: DataSet) -> None:
    """Compare a first few batches."""
    wanted = stream.indices()
    for number, batch in enumerate(ours.take(5)):
        chosen = wanted[number * data.batch : (number + 1) * data.batch]
        found = {k: v.numpy().tolist() if v.dtype == tf.string else v.numpy() for k, v in batch.items()}
        check_equal(found, _sets.take(columns, chosen), data.name)


def measure_restore(settings: Settings) -> None:
    """Measure from the making of an iterator to its first batch, restored at 90 % of an epoch."""
    records = settings.scaled(1_000_000)
    root = settings.path("cache")
    storage = yogadl.open_storage(root)
    storage.submit(_sets.vectors(records), "set", "1")
    stream = storage.fetch("set", "1").stream(shuffle=True)
    iterator = iter(adapter.make_tf_dataset(stream, 256))
    for _ in range(records * 9 // 10 // 256):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(str(settings.path("checkpoint")))
    expected = next(iterator)["id"].numpy()
    found = []
    for number in range(settings.rounds + 1):
        dataset = adapter.make_tf_dataset(stream, 256)
        started = time.perf_counter()
        iterator = iter(dataset)
        tf.train.Checkpoint(iterator=iterator).read(path)
        batch = next(iterator)["id"].numpy()
        if number:
            found.append(1000 * (time.perf_counter() - started))
        check_equal({"id": batch}, {"id": expected}, "restored")
    settings.row("restore at 90 % of 1 M records, until the first batch", at_most(100, " ms"), found)
    clear(root)


def measure_build(settings: Settings) -> None:
    """Measure a build of small records against iterating over the same pipeline in batches."""
    records = settings.scaled(1_000_000)
    columns = _sets.vectors(records)

    def pipeline() -> Any:
        return tf.data.Dataset.from_tensor_slices(columns).map(lambda r: {"x": r["x"] * 2, "id": r["id"]})

    root = settings.path("cache")
    storage = yogadl.open_storage(root)

    def build() -> None:
        shutil.rmtree(root / "set", ignore_errors=True)
        storage.submit(pipeline(), "set", "1")

    works = {"alone": lambda: drain(pipeline().batch(1024).prefetch(2)), "build": build}
    times = interleave(works, settings.rounds, uncounted=1)
    if not np.array_equal(storage.fetch("set", "1")[records - 1]["x"], columns["x"][-1] * 2):
        raise SystemExit("the build is not what the pipeline gives")
    details = f"{rate(records, times['build'])}; the pipeline {rate(records, times['alone'])}"
    settings.row("build from a pipeline of {float32[16], int64} x 1 M, against iterating it", at_least(0.7),
                 ratios(times["alone"], times["build"]), details)  # fmt: skip
    clear(root)


if __name__ == "__main__":
    main(__file__, measure)
