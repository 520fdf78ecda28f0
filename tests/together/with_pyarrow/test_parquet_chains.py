"""A run over Parquet files that is stopped again and again goes on exactly, also from a copy of the rows."""

import dataclasses
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job import SIZES, Job, records_of
from soak import few_or_many
from test_chains import EPOCHS, Run, drawn

import yogadl

PARTS = 3


@pytest.fixture(scope="module")
def adopted(tmp_path_factory):
    """Return a storage with a version of Parquet files of each size, and a copy of its records."""
    root = tmp_path_factory.mktemp("parquet")
    storage = yogadl.open_storage(root / "caches")
    for size in SIZES:
        columns = records_of(size)
        width = columns["x"].shape[1]
        values = pa.FixedSizeListArray.from_arrays(pa.array(columns["x"].reshape(-1)), width)
        rows, folder = pa.table({"id": columns["id"], "x": values}), root / f"files-{size}"
        folder.mkdir()
        each = -(-size // PARTS)
        for number in range(PARTS):
            part = rows.slice(number * each, each)
            pq.write_table(part, folder / f"{number}.parquet", row_group_size=13 + number)
        ref = storage.adopt(folder, "together", str(size))
        storage.submit(ref, "together", f"copy of {size}")
    return root / "caches"


@pytest.mark.parametrize("part", range(4))
def test_chains(trainers, adopted, part):
    for seed in range(part, few_or_many(4, 100), 4):
        dice = random.Random(f"parquet {seed}")
        size = dice.choice(SIZES)
        groups = dice.choice([None, (1, 1), (2, 3), (4, 1)])
        start = Job(str(adopted), "together", str(size), seed=seed, groups=groups, is_mapped=seed % 3 == 1)
        run = Run(trainers, start)
        for _ in range(dice.randint(1, 8)):
            if run.cursor["epoch"] >= EPOCHS:
                break
            if groups is None and dice.random() < 0.3:  # the copy has the same records, but no groups
                run.start = dataclasses.replace(start, version=f"copy of {size}")
            run.go_on(*drawn(dice, run.cursor))
        run.finish(dice, 0)
        for epoch in range(EPOCHS):
            order = dataclasses.replace(start, is_mapped=False).ids(epoch)
            assert sorted(order) == list(range(size))
            assert sorted(run.start.records(run.seen[epoch])) == list(range(size)), run.story
