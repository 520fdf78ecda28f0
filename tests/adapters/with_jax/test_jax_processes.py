"""JAX jobs of several real processes: each reads its own rows, and a checkpoint moves between them."""

import numpy as np
import pytest
from jax_job import Counted, run_job

import yogadl

COUNT = 101


def order():
    ref = yogadl.from_source(Counted(COUNT), fingerprint="counted")
    return ref.stream(shuffle=True, shuffle_seed=3)


def check_shards(found, batches, size, rows_of):
    """Compare what each process holds, asked for and computed with the order; `rows_of` it in a batch."""
    ids = order().indices().tolist()
    for process, one in enumerate(found):
        assert len(one["sums"]) == batches
        for number in range(batches):
            batch = ids[number * size : (number + 1) * size]
            own = [batch[row] for row in rows_of[process]]
            assert one["asked"][number] == sorted(own)
            assert {index for _, piece in one["held"][number] for index in piece} == set(own)
            for start, piece in one["held"][number]:
                assert piece == batch[start : start + len(piece)]
            assert one["sums"][number] == sum(batch)
        assert one["cursor"] == order().cursor(size * batches)


def test_along_the_data_axis_each_process_reads_its_own_rows_and_no_others():
    mesh = [[0], [1], [2], [3], [4], [5], [6], [7]]
    found = run_job("read_global", 2, 4, count=COUNT, mesh=mesh, size=16, batches=6)
    check_shards(found, 6, 16, [range(8), range(8, 16)])


def test_along_the_model_axis_processes_are_replicas_and_read_the_same_rows():
    mesh = [[0, 4], [1, 5], [2, 6], [3, 7]]
    found = run_job("read_global", 2, 4, count=COUNT, mesh=mesh, size=16, batches=6)
    check_shards(found, 6, 16, [range(16), range(16)])
    assert found[0]["asked"] == found[1]["asked"]


def test_rows_of_a_process_may_lie_apart():
    mesh = [[0], [2], [1], [3]]
    found = run_job("read_global", 2, 2, count=COUNT, mesh=mesh, size=8, batches=3)
    check_shards(found, 3, 8, [[0, 1, 4, 5], [2, 3, 6, 7]])


def test_without_a_sharding_each_process_reads_its_share_and_no_share_is_warned_of():
    found = run_job("read_shares", 2, 1, count=COUNT, size=8)
    ids = order().indices().tolist()
    assert [one["ids"] for one in found] == [ids[0::2], ids[1::2]]
    for one in found:
        (text,) = one["warnings"]
        assert "each of the 2 ranks reads every record" in text
        assert "shards()" in text


def test_a_mesh_of_a_process_s_own_devices_goes_with_its_share():
    found = run_job("read_own_mesh", 2, 2, count=40, size=4)
    assert [one["ids"] for one in found] == [list(range(0, 40, 2)), list(range(1, 40, 2))]


@pytest.mark.parametrize(("count", "size"), [(COUNT, 8), (3, 4)])
def test_an_evaluation_over_processes_counts_each_record_once(count, size):
    expected = [sum(range(count)), count]
    assert (
        run_job("evaluate", 2, 2, count=count, size=size) == [{"shares": expected, "together": expected}] * 2
    )


def test_a_process_without_any_of_the_devices_is_told_so():
    first, second = run_job("miss_the_mesh", 2, 1)
    assert first == ""
    assert "process 1 has none of the devices" in second


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Save model and cursor after three batches in two processes; return the folders, and all ids."""
    pytest.importorskip("orbax.checkpoint")
    root = tmp_path_factory.mktemp("jax")
    yogadl.open_storage(root / "caches").submit({"id": np.arange(COUNT, dtype=np.int32)}, "d", "1")
    places = {"storage": str(root / "caches"), "checkpoint": str(root / "checkpoint")}
    found = run_job("save", 2, 2, **places, size=8, batches=3)
    ref = yogadl.open_storage(places["storage"]).fetch("d", "1")
    ids = ref.stream(shuffle=True, shuffle_seed=3).indices().tolist()
    assert joined(found, 3) == ids[:24]
    return places, ids


def joined(found, batches):
    """Return the ids of all processes in the order of the rows."""
    ids = []
    for number in range(batches):
        pieces = dict(piece for one in found for piece in one["held"][number])
        ids += [index for start in sorted(pieces) for index in pieces[start]]
    return ids


@pytest.mark.parametrize(("processes", "devices", "size"), [(1, 4, 12), (3, 1, 9)])
def test_orbax_carries_the_cursor_beside_the_model_to_another_number_of_processes(
    checkpoint, processes, devices, size
):
    places, ids = checkpoint
    found = run_job("resume", processes, devices, **places, size=size)
    batches = (COUNT - 24) // size
    assert [len(one["held"]) for one in found] == [batches] * processes
    assert joined(found, batches) == ids[24 : 24 + batches * size]
    sums = {int(start): piece for one in found for start, piece in one["sums"].items()}
    total = sum(ids[: 24 + batches * size])  # the model has seen all of them, before and after
    assert [value for start in sorted(sums) for value in sums[start]] == [total * i for i in range(12)]
    for one in found:
        assert (one["cursor"]["epoch"], one["cursor"]["position"]) == (1, 0)
