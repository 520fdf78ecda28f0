"""A run over windows of time that is stopped again and again goes on exactly, whatever the steps lie in."""

import functools
import random
from importlib.util import find_spec

import pytest
from job import SIZES, Job, episodes_of, records_of
from soak import few_or_many
from test_chains import EPOCHS, Run, mostly_left

import yogadl

BASES = (
    "disk", "bucket", *(["compressed"] if find_spec("zstandard") else []),
    *(["parquet"] if find_spec("pyarrow") else []),
)  # fmt: skip
PARTS = yogadl.BuildOptions(part_bytes=4_000)


def adopted(storage, folder, columns, size):
    """Adopt Parquet files of these columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = pa.FixedSizeListArray.from_arrays(pa.array(columns["x"].reshape(-1)), columns["x"].shape[1])
    rows = pa.table({"id": columns["id"], "x": values, "episode": columns["episode"]})
    folder.mkdir()
    for number, start in enumerate(range(0, size, 200)):
        pq.write_table(rows.slice(start, 200), folder / f"{number}.parquet", row_group_size=13 + number)
    storage.adopt(folder, "steps", str(size))


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Return where steps of each size lie, in each kind of base."""
    root = tmp_path_factory.mktemp("steps")
    places = {base: f"{root}/{base}" for base in BASES} | {"bucket": f"file://{root}/bucket"}
    for base, place in places.items():
        storage = yogadl.open_storage(place, **({"mirror": None} if base == "bucket" else {}))
        for size in SIZES:
            columns = records_of(size) | {"episode": episodes_of(size)}
            if base == "parquet":
                adopted(storage, root / f"files of {size}", columns, size)
            else:
                codec = "zstd" if base == "compressed" else None
                storage.submit(columns, "steps", str(size), codec=codec, build=PARTS)
    return places


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("base", BASES)
def test_any_chain_of_stops_reads_each_window_of_each_epoch_once(trainers, bases, base, part):
    options = {"mirror": None} if base == "bucket" else {}
    for seed in range(part, few_or_many(13, 250), 2):
        dice = random.Random(f"windows of {base} {seed}")
        size = dice.choice(SIZES)
        start = Job(bases[base], "steps", str(size), seed=seed, made="windows", options=options)
        run = Run(trainers, start)
        run.finish(dice, dice.randint(1, 4), functools.partial(mostly_left, dice, "windows"))
        for epoch in range(EPOCHS):
            assert sorted(run.seen[epoch]) == list(range(size)), run.story
        assert run.seen[0] != run.seen[1]
