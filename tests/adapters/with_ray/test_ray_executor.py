"""Tasks of Ray as an executor."""

import concurrent.futures
import os
import signal
import time

import pytest

from yogadl.adapters.ray import RayExecutor
from yogadl.errors import ConfigurationError, UnsupportedDataError, WorkerDiedError

LIMIT_S = 200


def test_a_function_is_called_in_another_process():
    made = RayExecutor().submit(lambda a, b: (a + b, os.getpid()), 1, b=2).result(LIMIT_S)
    assert made[0] == 3
    assert made[1] != os.getpid()


def test_many_are_waited_for_as_those_of_any_executor():
    with RayExecutor(num_cpus=0.5) as engine:
        tasks = [engine.submit(pow, number, 2) for number in range(20)]
        done, left = concurrent.futures.wait(tasks, LIMIT_S)
        assert not left
        assert [task.result() for task in tasks] == [number**2 for number in range(20)]
        assert list(engine.map(abs, [-1, 2])) == [1, 2]
    assert len(done) == 20


@pytest.mark.parametrize("kind", [KeyError, UnsupportedDataError, PermissionError])
def test_an_error_is_what_the_function_raised_with_the_tasks_traceback(kind):
    def fails():
        raise kind("no such label")

    with pytest.raises(kind, match="no such label") as caught:
        RayExecutor().submit(fails).result(LIMIT_S)
    assert type(caught.value) is kind
    assert "in fails" in str(caught.value.__cause__)
    assert not hasattr(caught.value, "__notes__")


def test_a_task_whose_process_dies_is_run_again_and_in_the_end_an_error(tmp_path):
    def dies(times):
        with (tmp_path / "runs").open("a") as file:
            file.write("x")
        if (tmp_path / "runs").stat().st_size <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        return "lived"

    engine = RayExecutor(max_retries=2)
    assert engine.submit(dies, 2).result(LIMIT_S) == "lived"
    with pytest.raises(WorkerDiedError, match="died"):
        engine.submit(dies, 99).result(LIMIT_S)
    assert (tmp_path / "runs").stat().st_size == 6


def test_tasks_that_are_cancelled_end_whether_or_not_they_run(tmp_path):
    def waits(number):
        (tmp_path / str(number)).touch()
        time.sleep(3600)

    engine = RayExecutor(num_cpus=1)
    tasks = [engine.submit(waits, number) for number in range(4)]
    while not list(tmp_path.iterdir()):
        time.sleep(0.01)
    assert [task.cancel() for task in tasks] == [True] * 4
    concurrent.futures.wait(tasks, LIMIT_S)
    assert all(task.cancelled() for task in tasks)
    assert engine.submit(abs, -1).result(LIMIT_S) == 1
    done = engine.submit(abs, -1)
    assert done.result(LIMIT_S) == 1
    assert not done.cancel()


def test_an_option_that_ray_does_not_have_is_refused():
    with pytest.raises(ConfigurationError, match="num_cpu"):
        RayExecutor(num_cpu=1)
