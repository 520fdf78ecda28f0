"""Dask as an engine: its client's executor on a cluster of this machine, whose workers may be killed."""

import functools
import os
import signal

import numpy as np
import pytest
from distributed import Client, LocalCluster
from processes import wait_until

import yogadl


@pytest.fixture(scope="module")
def client():
    """Start a cluster of two processes."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def say(folder, what):
    with (folder / "read").open("a") as file:
        os.write(file.fileno(), f"{what}\n".encode())  # in one piece


def read(folder, number):
    say(folder, number)
    return {"n": np.arange(10 * number, 10 * number + 10)}


class Items:
    def __len__(self):
        return 150

    def __getitem__(self, index):
        return {"n": index, "text": "a" * (index % 5)}


@pytest.mark.parametrize("kind", ["partitions", "random access", "arrays"])
def test_dask_builds_the_same_cache(client, storage, tmp_path, kind):
    source = {
        "partitions": yogadl.partitioned.of(range(9), functools.partial(read, tmp_path)),
        "random access": Items(),
        "arrays": {"n": np.arange(130)},
    }[kind]
    storage.submit(source, "d", "1", build=yogadl.BuildOptions(engine=client.get_executor()))
    storage.submit(source, "d", "2")
    assert storage.info("d", "1").fingerprint == storage.info("d", "2").fingerprint
    storage.verify("d", "1")


def test_a_client_in_place_of_its_executor_is_refused(client, storage):
    with pytest.raises(yogadl.errors.ConfigurationError, match=r"pass client\.get_executor\(\)"):
        storage.submit([1, 2], "d", "1", build=yogadl.BuildOptions(engine=client))
    assert storage.datasets() == []


def test_an_error_of_a_task_of_dasks_is_the_callers(client, storage):
    source = yogadl.partitioned.of(range(4), lambda number: [1 // (number - 2)])
    with pytest.raises(ZeroDivisionError):
        storage.submit(source, "d", "1", build=yogadl.BuildOptions(engine=client.get_executor()))
    assert storage.versions("d") == []


def dies_once(folder, number):
    say(folder, number)
    if number == 5 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [number]


def test_a_worker_of_dasks_that_dies_costs_what_it_had_in_hand(client, storage, tmp_path):
    source = yogadl.partitioned.of(range(12), functools.partial(dies_once, tmp_path))
    storage.submit(source, "d", "1", build=yogadl.BuildOptions(engine=client.get_executor(retries=3)))
    assert storage.fetch("d", "1").gather(range(12)).tolist() == list(range(12))
    assert len((tmp_path / "read").read_text().split()) <= 14
    wait_until(lambda: len(client.scheduler_info()["workers"]) == 2, "the worker's successor")
