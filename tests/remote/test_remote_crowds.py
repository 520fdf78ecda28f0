"""Many processes that want one dataset at once: one builds it, however many of them are killed or stopped."""

import random

import pytest
from crowds import KEY, ask, assert_sound, killed_and_stopped, opened
from inside import _names
from processes import Process, processes, wait_until

from yogadl.errors import DatasetNotFoundError


def test_processes_that_ask_at_once_build_once(either_place, tmp_path):
    tasks = [(either_place, tmp_path, f"host-{number % 2}") for number in range(6)]
    with processes(ask, tasks) as crowd:
        answers = [process.result() for process in crowd]
    assert len(list(tmp_path.glob("built-*"))) == 1
    assert {tuple(records) for _, records in answers} == {(0, 4_500, 9_000)}
    assert_sound(either_place, tmp_path, {fingerprint for fingerprint, _ in answers})
    assert opened(either_place, tmp_path, "checker").info(KEY.id, KEY.version).builder["lease_epoch"] == 1


@pytest.mark.parametrize(("any_place", "seed"), [("ministack", 0), ("gcs", 1)], indirect=["any_place"])
def test_the_survivors_of_killed_and_stopped_builders_are_served(any_place, tmp_path, seed):
    assert_sound(any_place, tmp_path, killed_and_stopped(any_place, tmp_path, random.Random(seed)))


def test_nothing_unfinished_can_be_read_while_builders_die(s3_place, tmp_path):
    watching = opened(s3_place, tmp_path, "watcher")
    for _ in range(2):
        with Process(ask, s3_place, tmp_path, "a", 600.0, 0.3) as builder:
            builds = f"{_names.builds(KEY)}/"
            wait_until(lambda: list(s3_place.open().list(builds)), "a part to be sent")  # noqa: B023
            assert watching.datasets() == []
            builder.kill()
        with pytest.raises(DatasetNotFoundError):
            watching.fetch(KEY.id, KEY.version)
        assert watching.prune().files == ()
    fingerprint, _ = ask(s3_place, tmp_path, "b", 600.0, 0.3)
    assert_sound(s3_place, tmp_path, {fingerprint})
