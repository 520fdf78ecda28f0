"""Processes that replace one version again and again take turns, wherever it lies."""

import time

import numpy as np
import pytest
from places import Place
from processes import Process, wait_until

import yogadl

FOR_S = 2.0
# Each should get about half; a quarter of what the other gets is what is promised.
LEAST_SHARE = 0.1


def opened(place, mirror):
    if isinstance(place, Place):
        return place.storage(mirror=mirror)
    return yogadl.open_storage(place.removeprefix("shared:"), shared=place.startswith("shared:"))


def turns(place, folder, mine, other):
    """Submit again and again, from when both have begun; return how often that was done."""
    storage = opened(place, folder / mine)
    storage.submit(np.arange(1_000), "data", mine)  # all is loaded
    (folder / f"{mine} is ready").touch()
    wait_until((folder / f"{other} is ready").exists, "the other process")
    count, end = 0, time.monotonic() + FOR_S
    while time.monotonic() < end:
        storage.submit(np.arange(1_000), "data", "1")
        count += 1
    return count


@pytest.mark.parametrize("kind", ["folder", "shared folder", "bucket"])
def test_of_two_who_replace_a_version_again_and_again_both_get_turns(kind, s3_place, tmp_path):
    caches = str(tmp_path / "caches")
    place = {"folder": caches, "shared folder": f"shared:{caches}", "bucket": s3_place}[kind]
    with Process(turns, place, tmp_path, "a", "b") as one, Process(turns, place, tmp_path, "b", "a") as two:
        counts = sorted([one.result(), two.result()])
    assert counts[0] >= LEAST_SHARE * counts[1]
