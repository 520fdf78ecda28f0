"""One door: every record is read by its row, which knows index, epoch and position, and what is padding."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import Cut, NumberedBatches, Point
from placed import PADDED, check_places, placed

import yogadl

LIBRARY = Path(yogadl.__file__).parent


def readers():
    """Return the modules that read streams: those of streams, and adapters that import them."""
    files = [*LIBRARY.glob("_stream/*.py"), *LIBRARY.glob("adapters/**/*.py")]
    return {file: tree for file in files if imports_streams(tree := ast.parse(file.read_text("utf-8")))}


def imports_streams(tree):
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return any(name.startswith("yogadl._stream") for name in names)


def files_with(kind, name):
    """Return those of `readers` that have a node of this kind of this name."""
    field = "attr" if kind is ast.Attribute else "id"
    return sorted(
        file.relative_to(LIBRARY).as_posix()
        for file, tree in readers().items()
        if any(isinstance(node, kind) and getattr(node, field) == name for node in ast.walk(tree))
    )


def test_records_are_read_through_one_door():
    assert len(readers()) > 20
    # Tables of Hugging Face are of references; the stream beside them is read by its rows.
    assert files_with(ast.Attribute, "columns") == ["_stream/run.py", "adapters/datasets.py"]


def test_what_comes_next_is_announced_in_one_place():
    # A plan counts what a view reads first.
    readers = ["_stream/block_ahead.py", "_stream/plan.py", "_stream/run.py"]
    assert files_with(ast.Attribute, "will_need") == readers


@st.composite
def runs(draw):
    records, ranks = draw(st.integers(1, 40)), draw(st.integers(1, 5))
    remainder = draw(st.sampled_from([{}, {"drop_shard_remainder": True}, {"pad_shard_remainder": True}]))
    rank = draw(st.integers(0, ranks - 1))
    stream = placed(records, shuffle=draw(st.booleans()), shard_rank=rank, num_shards=ranks, **remainder)
    return stream.run


def places(rows):
    """Return (index, epoch, position, whether it is padding) of each row."""
    where = [(epoch, position) for epoch, positions in rows.pieces for position in positions]
    found = zip(rows.indices.tolist(), where, rows.padding.tolist(), strict=True)
    return [(index, *place, is_padding) for index, place, is_padding in found]


@given(runs(), st.integers(1, 9), st.booleans(), st.booleans(), st.integers(0, 40))
def test_a_row_knows_where_its_record_comes(run, size, drop, across, position):
    start = Point(2, min(position, run.shard.records))
    found = [place for rows in run.chunks(Cut(size, drop, 3, across), start, 5) for place in places(rows)]
    wanted = []
    for epoch in (2, 3, 4):
        origin = start.position if epoch == 2 else 0
        own = run.shard.own(origin)
        own -= own % size if drop and not across else 0
        for row in range(own):
            at = origin + row * run.shard.ranks + run.shard.rank
            index = run.order.indices(np.array([at % run.shard.records]), epoch).item()
            wanted.append((index, epoch, at, at >= run.shard.records))
    assert found == wanted[: len(wanted) - len(wanted) % size if drop else None]


@given(runs(), st.integers(0, 60), st.integers(0, 60), st.integers(1, 7), st.data())
def test_some_rows_are_rows(run, first, last, step, data):
    seen = 0
    for rows in run.chunks(Cut(60, epochs=4, across_epochs=True), Point(0, 0), 4):
        every = places(rows)
        seen += len(every)
        assert places(rows[first:last:step]) == every[first:last:step]
        chosen = data.draw(st.sets(st.integers(0, len(every) - 1))) if every else ()
        numbers = sorted(chosen)
        taken = rows.take(np.array(numbers, np.int64))
        assert places(taken) == [every[number] for number in numbers]
        assert places(taken[first:last:step]) == [every[number] for number in numbers][first:last:step]
    assert seen == 4 * run.shard.own(0)


@pytest.mark.parametrize("count", [1, 2, 103])
def test_records_and_batches_are_read_with_their_places(count):
    stream = placed(count, **PADDED)
    check_places(stream, [record for _ in range(3) for record in stream], range(3))
    options = {"epochs": 3, "padding_field": "p"}
    for loader in (stream.batch(8, **options), stream.batch(8, across_epochs=True, **options)):
        check_places(stream, list(loader), range(3), "p")
        check_places(stream, list(loader.prefetch(2)), range(3), "p")


def test_batches_by_number_are_read_with_their_places():
    stream = placed(103, **PADDED, start_offset=5)
    numbered = NumberedBatches(stream, Cut(8), padding_field="p")
    places = [(epoch, number) for epoch in (0, 1) for number in range(numbered.count(epoch))]
    check_places(stream, [numbered.batch(*place) for place in places], (0, 1), "p")


def test_an_order_that_stays_is_read_in_epochs_that_differ():
    stream = placed(9, shuffle=True, skip_shuffle_at_epoch_end=True)
    first, second = list(stream.batch(9, epochs=2))
    assert first["index"].tolist() == second["index"].tolist()
    assert (first["epoch"].tolist(), second["epoch"].tolist()) == ([0] * 9, [1] * 9)
