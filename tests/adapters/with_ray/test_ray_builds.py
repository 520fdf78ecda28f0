"""Builds whose partitions are tasks of Ray, and Ray datasets as sources."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import ray
from partitioned_sources import Rows, partitions, row, said
from processes import wait_until

import yogadl
from yogadl.adapters.ray import RayExecutor
from yogadl.errors import ConfigurationError, UnsupportedDataError

COUNT = 101


def is_same(storage, version, count=COUNT):
    """Return whether a version has these records in order, and the fingerprint that one process's has."""
    storage.submit([row(index) for index in range(count)], "reference", "1")
    ref, reference = storage.fetch("d", version), storage.fetch("reference", "1")
    records = [record["n"] for record in ref] == list(range(count))
    return records and ref.fingerprint == reference.fingerprint


@pytest.mark.parametrize("engine", ["ray", RayExecutor(num_cpus=1, max_retries=0)], ids=["name", "executor"])
def test_sources_of_both_kinds_give_the_same_cache(storage, tmp_path, engine):
    storage.submit(Rows(COUNT, tmp_path / "rows"), "d", "1", build=yogadl.BuildOptions(engine=engine))
    storage.submit(
        partitions(tmp_path / "parts", 40, 40, 77, COUNT), "d", "2", build=yogadl.BuildOptions(engine=engine)
    )
    assert is_same(storage, "1")
    assert is_same(storage, "2")
    assert len(said(tmp_path / "rows")) >= COUNT


def test_arrays_are_sent_by_share(storage):
    arrays = {"x": np.arange(COUNT * 2.0).reshape(COUNT, 2), "n": np.arange(COUNT)}
    storage.submit(arrays, "d", "1", build=yogadl.BuildOptions(engine="ray"))
    storage.submit(arrays, "d", "2")
    assert storage.info("d", "1").fingerprint == storage.info("d", "2").fingerprint


ALREADY = "leave out workers and engine"


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (lambda: ray.data.range(20), {"workers": 2}, ALREADY),
        (lambda: ray.data.range(20), {"build": yogadl.BuildOptions(engine=RayExecutor())}, ALREADY),
    ],
    ids=["workers", "executor"],
)
def test_options_that_do_not_fit_are_refused(storage, source, options, words):
    with pytest.raises(ConfigurationError, match=words):
        storage.submit(source(), "d", "1", **options)


def test_an_engine_that_is_unknown_is_refused():
    with pytest.raises(ConfigurationError, match='engine must be "ray"'):
        yogadl.BuildOptions(engine="spark")


def test_an_error_of_the_source_is_raised_as_what_it_is(storage, tmp_path):
    def fails(number):
        if number == 2:
            raise ConnectionResetError("gone")
        return [number]

    with pytest.raises(ConnectionResetError, match="gone") as caught:
        storage.submit(
            yogadl.partitioned.of(range(4), fails), "d", "1", build=yogadl.BuildOptions(engine="ray")
        )
    assert caught.value.__notes__ == ["in partition 2 of 4 ('2')"]
    assert "test_ray_builds.py" in str(caught.value.__cause__)
    assert storage.versions("d") == []


def test_a_task_that_is_killed_costs_its_partition_alone(storage, tmp_path):
    def read(number):
        with (tmp_path / "opened").open("a") as file:
            file.write(f"{number}\n")
        for record in range(10):
            if number == 3 and record == 5 and not (tmp_path / "killed").exists():
                (tmp_path / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield 10 * number + record

    storage.submit(yogadl.partitioned.of(range(8), read), "d", "1", build=yogadl.BuildOptions(engine="ray"))
    assert list(storage.fetch("d", "1")) == list(range(80))
    assert sorted(said(tmp_path / "opened")) == sorted([*"01234567", "3"])


READ = """
import sys, time
from pathlib import Path
import ray, yogadl
folder = Path(sys.argv[1])

def read(number):
    with (folder / "opened").open("a") as file:
        file.write(f"{number}\\n")
    if number >= 20 and not (folder / "go").exists():
        (folder / ray.get_runtime_context().get_node_id()).touch()
        while not (folder / "go").exists():
            time.sleep(0.05)
    return [number]

def build():
    storage = yogadl.open_storage(folder / "caches")
    storage.submit(yogadl.partitioned.of(range(40), read), "d", "1", build=yogadl.BuildOptions(engine="ray"))
"""
DRIVER = """
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
build()
"""
NODES = """
import threading
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
ray.init(address=cluster.address, log_to_driver=False)
[other, *_] = [node for node in nodes if node.node_id != ray.get_runtime_context().get_node_id()]

def lose():
    while not (folder / other.node_id).exists():
        time.sleep(0.05)
    other.kill_raylet(check_alive=False)
    (folder / "go").touch()

threading.Thread(target=lose).start()
build()
ray.shutdown()
cluster.shutdown()
"""


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a script, which has `READ` and an own Ray."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    started = []

    def start(code):
        command = [sys.executable, "-c", READ + code, tmp_path]
        started.append(subprocess.Popen(command, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def check_built(folder, most):
    """Compare what was built, and how many partitions were opened for that."""
    assert list(yogadl.open_storage(folder / "caches").fetch("d", "1")) == list(range(40))
    opened = said(folder / "opened")
    assert sorted(set(opened), key=int) == [str(number) for number in range(40)]
    assert len(opened) <= most


def test_a_driver_that_is_killed_is_gone_on_with(tmp_path, start):
    driver = start(DRIVER)
    receipts = tmp_path / "caches"
    while len(list(receipts.glob("d/builds/*/many-*/*.json"))) < 20 or len(said(tmp_path / "opened")) < 22:
        assert driver.poll() is None
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    (tmp_path / "go").touch()
    assert start(DRIVER).wait() == 0
    check_built(tmp_path, 42)  # those that were being written are written again


def test_a_node_that_dies_costs_its_partition_alone(tmp_path, start):
    assert start(NODES).wait() == 0
    check_built(tmp_path, 41)


@pytest.mark.parametrize("actors", [False, True], ids=["tasks", "actors"])
def test_a_dataset_keeps_its_order(storage, actors):
    class Slow:
        """Make every third block late, so that those after it overtake it."""

        def __call__(self, batch):
            time.sleep(0.3 if batch["id"][0] % 3 == 0 else 0)
            return batch

    dataset = ray.data.range(200, override_num_blocks=10)
    if actors:
        dataset = dataset.map_batches(Slow, compute=ray.data.ActorPoolStrategy(size=2))
    else:
        dataset = dataset.map_batches(Slow().__call__)
    storage.submit(dataset, "d", "1")
    assert [record["id"] for record in storage.fetch("d", "1")] == list(range(200))
    assert not dataset.context.execution_options.preserve_order


def test_columns_of_all_kinds_come_back(storage):
    rows = [
        {
            "n": n,
            "x": np.full((2, 3), n, np.float32),
            "text": "a" * n,
            "raw": b"b" * n,
            "tokens": np.arange(n),
        }
        for n in range(20)
    ]
    storage.submit(ray.data.from_items(rows, override_num_blocks=4), "d", "1")
    for n, record in zip(range(20), storage.fetch("d", "1"), strict=True):
        assert (int(record["n"]), record["text"], record["raw"]) == (n, "a" * n, b"b" * n)
        assert record["x"].tolist() == rows[n]["x"].tolist()
        assert record["tokens"].tolist() == list(range(n))


def test_a_cache_that_was_read_as_a_dataset_is_the_same_again(storage):
    storage.submit([row(index) for index in range(COUNT)], "reference", "1")
    dataset = yogadl.adapters.ray.read(storage.fetch("reference", "1"), tasks=5)
    storage.submit(dataset, "d", "1", build=yogadl.BuildOptions(engine="ray"))  # it may be named, too
    assert is_same(storage, "1")


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize(
    ("values", "fill", "filled"),
    [
        (["a", None, "c", None], "empty", ""),
        ([b"a", None, b"c", None], b"?", b"?"),
        ([7, None, 9, None], -1, -1),
        ([1.5, None, 2.5, None], 0.5, 0.5),
        ([True, None, True, None], False, False),
        ([[1, 2], None, [3], None], "empty", []),
        ([["a"], None, ["b", "c"], None], "empty", []),
    ],
    ids=repr,
)
def test_missing_values_may_have_one_in_their_place(storage, values, fill, filled, blocks):
    rows = [{"n": n, "column": value} for n, value in enumerate(values)]
    dataset = ray.data.from_items(rows, override_num_blocks=blocks)
    ref = storage.submit(dataset, "d", "1", missing={"column": fill})
    found = [record["column"] for record in ref]
    found = [value.tolist() if isinstance(value, np.ndarray) else value for value in found]
    assert found == [filled if value is None else value for value in values]
    with pytest.raises(UnsupportedDataError, match=r"missing=\{'column': "):
        storage.submit(dataset, "d", "2")


def test_a_missing_value_of_another_type_is_refused(storage):
    dataset = ray.data.from_items([{"column": 1}, {"column": None}], override_num_blocks=1)
    with pytest.raises(UnsupportedDataError, match="column 'column' is int64, which has no 'x'"):
        storage.submit(dataset, "d", "1", missing={"column": "x"})


def test_empty_blocks_are_no_records_and_nothing_else_is_an_error(storage):
    def from_on(first):
        dataset = ray.data.range(100, override_num_blocks=10)
        return dataset.map_batches(lambda batch: {"id": batch["id"][batch["id"] >= first]})

    storage.submit(from_on(42), "d", "1")
    assert [record["id"] for record in storage.fetch("d", "1")] == list(range(42, 100))
    with pytest.raises(UnsupportedDataError, match="no partition has any records"):
        storage.submit(from_on(100), "d", "2")
    assert storage.versions("d") == ["1"]


@pytest.mark.parametrize(
    ("value", "blocks"),
    [("a", 1), ("a", 3), (True, 1), (7, 3), (1.5, 1), ([1, 2], 3), ([1, None], 1), ([1, None], 3), (b"x", 3)],
    ids=repr,
)
def test_a_missing_value_is_an_error_that_names_the_column(storage, value, blocks):
    rows = [{"n": n, "column": value if n != 1 or None in np.ravel(value) else None} for n in range(3)]
    with pytest.raises(UnsupportedDataError, match=r"^column 'column' has missing values") as caught:
        storage.submit(ray.data.from_items(rows, override_num_blocks=blocks), "d", "1")
    assert type(caught.value) is UnsupportedDataError
    assert isinstance(caught.value.__cause__, ray.exceptions.RayTaskError)
    assert storage.versions("d") == []
    if blocks == 1:
        assert storage.unfinished() == []
        return

    def is_clear():
        """Prune; a task that Ray lets run to its end writes files after the build has failed."""
        storage.prune(unfinished=True)
        return not storage.unfinished()

    wait_until(is_clear, "the files of the failed build's other tasks to be pruned")


def test_an_error_of_a_datasets_function_is_told_with_its_text(storage):
    with pytest.raises(ray.exceptions.RayTaskError, match="ZeroDivisionError"):
        storage.submit(ray.data.range(20).map(lambda row: {"n": 1 // (row["id"] - 7)}), "d", "1")
    assert storage.versions("d") == []


def test_a_dataset_replaces_a_version_and_leaves_nothing_behind(storage):
    for first in (0, 10):
        dataset = ray.data.range(20).map(lambda row, first=first: {"id": row["id"] + first})
        storage.submit(dataset, "d", "1")
    assert [record["id"] for record in storage.fetch("d", "1")] == list(range(10, 30))
    assert storage.unfinished() == []


def test_dicts_and_what_is_named_are_json_values(storage):
    rows = [{"tree": [{"a": n}, {"b": "x"}], "named": ["t"] * (n % 3), "n": n} for n in range(20)]
    ref = storage.submit(ray.data.from_items(rows), "d", "1", json="named")
    for n, record in zip(range(20), ref, strict=True):
        # Ray gives each dict of a column the keys of all.
        assert record["tree"] == [{"a": n, "b": None}, {"a": None, "b": "x"}]
        assert record["named"] == ["t"] * (n % 3)
