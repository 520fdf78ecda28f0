"""Caches as Ray datasets."""

import itertools

import numpy as np
import pytest
import ray
from inside import _RefDatasource, set_constants
from trees import same_json

import yogadl
from yogadl.adapters.ray import read
from yogadl.errors import ConfigurationError, StageError


def records(count):
    return [
        {
            "id": n,
            "x": np.full((2, 3), n, np.float32),
            "text": f"r{n}",
            "raw": bytes([n % 256]) * (n % 5),
            "tokens": np.arange(n % 4),
            "nested": {"k": n * 2, "pair": (n, -n)},
            "flag": n % 2 == 0,
            "day": np.datetime64(n, "D"),
        }
        for n in range(count)
    ]


@pytest.fixture
def ref(cached):
    return cached(records(101), build=yogadl.BuildOptions(part_bytes=2_000))


def test_each_column_has_what_was_stored_in_order(ref):
    dataset = read(ref)
    assert dataset.context.execution_options.preserve_order
    assert not ray.data.DataContext.get_current().execution_options.preserve_order  # others' datasets
    rows = dataset.take_all()
    assert [row["id"] for row in rows] == list(range(101))
    for n, (row, record) in enumerate(zip(rows, records(101), strict=True)):
        assert row["x"].tolist() == record["x"].tolist()
        assert row["x"].dtype == np.float32
        assert (row["text"], row["raw"], row["flag"]) == (record["text"], record["raw"], n % 2 == 0)
        assert row["tokens"].tolist() == record["tokens"].tolist()
        assert (row["nested/k"], row["nested/pair/0"], row["nested/pair/1"]) == (2 * n, n, -n)


@pytest.mark.parametrize("tasks", [1, 7, 101, 500])
def test_any_number_of_tasks_reads_each_row_once(ref, tasks):
    dataset = read(ref.fields("id"), tasks=tasks)
    assert sorted(row["id"] for row in dataset.iter_rows()) == list(range(101))
    assert dataset.count() == 101


@pytest.mark.parametrize("count", [999, 1000, 1001])
def test_tasks_give_their_rows_in_blocks_of_so_many_bytes(cached, monkeypatch, count):
    set_constants(monkeypatch, BLOCK_BYTES=8 * 1000)
    ref = cached(np.arange(count))
    [task] = _RefDatasource(ref).get_read_tasks(1)
    blocks = [table["record"].to_pylist() for table in task.read_fn()]
    assert list(map(len, blocks)) == [1000, 1] if count > 1000 else [count]
    assert list(itertools.chain.from_iterable(blocks)) == list(range(count))


def test_views_filters_and_functions_are_read_as_they_are(ref):
    view = ref.filter(lambda record: record["id"] % 10 == 3)[::-1].fields("id")
    assert [row["id"] for row in read(view).take_all()] == list(range(93, 0, -10))
    doubled = ref[:5].map(lambda record: record["id"] * 2)
    assert [row["record"] for row in read(doubled).take_all()] == [0, 2, 4, 6, 8]


def test_windows_of_time_are_read_with_a_column_for_each_step_of_a_list(ref):
    found = read(ref.windows({"x": [-1, 0], "raw": [0, 1]}, None)[:9]).take_all()
    for n, row in enumerate(found):
        assert row["x"][:, 0, 0].tolist() == [max(0, n - 1), n]
        assert [row["raw/0"], row["raw/1"]] == [bytes([k]) * (k % 5) for k in (n, n + 1)]
        assert row["x_is_pad"].tolist() == [n == 0, False]


def test_arrays_that_could_vary_and_are_all_of_one_shape_are_read_as_what_they_are(cached):
    ref = cached([{"tokens": np.arange(4), "two": np.ones((2, n % 2 + 1))} for n in range(9)])
    same = ref.select([0, 2, 4])
    for dataset in (read(same), read(cached([{"tokens": np.arange(n)} for n in (3, 3, 4)])[:2])):
        assert len({row["tokens"].tobytes() for row in dataset.take_all()}) == 1
    assert [row["two"].shape for row in read(same).take_all()] == [(2, 1)] * 3


def test_no_records_are_a_dataset_of_none(ref):
    assert read(ref[:0]).count() == 0
    assert read(ref[:0]).take_all() == []


def test_a_function_that_fails_says_at_which_record(ref):
    def fails(record):
        if record["id"] == 7:
            raise LookupError("no such label")
        return record["id"]

    with pytest.raises(
        (StageError, ray.exceptions.RayTaskError), match="record 7: LookupError: no such label"
    ):
        read(ref.map(fails, spec=yogadl.Leaf("int64"))).take_all()


@pytest.mark.parametrize("given", [[1, 2], None, "s3://bucket"])
def test_what_can_not_be_read_at_random_is_refused(given):
    with pytest.raises(ConfigurationError, match="can't be read by tasks"):
        read(given)


def test_a_mix_is_refused(ref):
    with pytest.raises(ConfigurationError, match="can't be read by tasks"):
        read(yogadl.mix({"a": (ref, 1), "b": (ref, 1)}))


TREES = [{"a": 1, "l": [1, 2]}, {"b": None}, {"a": 2.5, "c": {}}, [1, "x"], None, "text"]


def test_json_values_are_python_objects_also_in_batches(cached):
    ref = cached([{"id": n, "tree": TREES[n % 6]} for n in range(60)], json="tree")
    dataset = read(ref, tasks=3)
    wanted = [TREES[n % 6] for n in range(60)]
    assert [row["tree"] for row in dataset.iter_rows()] == wanted
    found = [value for batch in dataset.iter_batches(batch_size=7) for value in batch["tree"]]
    assert same_json(found, wanted)
    only = read(ref.fields("tree")[:3], tasks=1)
    assert same_json([row["tree"] for row in only.take_all()], TREES[:3])
