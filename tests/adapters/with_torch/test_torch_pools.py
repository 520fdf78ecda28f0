"""Workers of `make_dataloader`: whatever happens to them, by the table of pools.py."""

import functools

import pytest
from pools import POSITIONS, SCENARIOS, SIZE, TIMEOUT_S, check_fork, check_scenario

from yogadl.adapters.torch import make_dataloader


def loader_of(stream, of_batches, **options):
    options = {"epochs": 2, "multiprocessing_context": "fork", **options}
    return make_dataloader(stream, SIZE, 2, **options)


# At each position by turns, and with workers that stay by turns.
ROWS = [(name, POSITIONS[row % 3], row % 2 == 0) for row, name in enumerate(SCENARIOS)]


@pytest.mark.parametrize(("name", "position", "is_persistent"), ROWS)
def test_workers_of_a_dataloader(tmp_path, name, position, is_persistent):
    options = {"timeout": TIMEOUT_S} if name == "is silent" else {}
    if name == "is killed with who started it":
        options["multiprocessing_context"] = "forkserver"
    make = functools.partial(loader_of, persistent_workers=is_persistent, **options)
    check_scenario(make, tmp_path / "trap", name, position, pool="make_dataloader")


@pytest.mark.parametrize("is_persistent", [False, True])
def test_a_forked_process_has_workers_of_its_own(tmp_path, is_persistent):
    make = functools.partial(
        loader_of, persistent_workers=is_persistent, multiprocessing_context="forkserver"
    )
    check_fork(make, tmp_path / "trap")
