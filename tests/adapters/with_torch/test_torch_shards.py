"""Shards come from the data-parallel group: real jobs of several gloo processes on this machine."""

import textwrap

import numpy as np
import pytest
import torch
from programs import programs

import yogadl
from yogadl.adapters import torch as adapter
from yogadl.errors import ConfigurationError

RECORDS = 31

PROLOGUE = """
    import json, sys, warnings
    import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    import yogadl
    from yogadl.adapters import torch as adapter

    folder, rank, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    ref = yogadl.open_storage(f"{folder}/caches").fetch("set", "1")

    def stream_of(**options):
        return ref.stream(shuffle=True, shuffle_seed=3, **options)

    def ids(batches):
        return [int(i) for batch in batches for i in batch["id"]]
"""
EPILOGUE = """
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(found))
"""


@pytest.fixture
def folder(tmp_path):
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.submit({"id": np.arange(RECORDS)}, "set", "1")
    return tmp_path


def stream_of(folder, **options):
    ref = yogadl.open_storage(folder / "caches").fetch("set", "1")
    return ref.stream(shuffle=True, shuffle_seed=3, **options)


def run(folder, ranks, code):
    """Run code in a job of so many ranks; return what each found."""
    script = textwrap.dedent(PROLOGUE) + textwrap.dedent(code) + textwrap.dedent(EPILOGUE)
    processes = [programs("torch").start(script, folder, rank, ranks) for rank in range(ranks)]
    try:
        return [process.answer(200) for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_two_data_parallel_by_two_tensor_parallel_ranks_share_the_epoch(folder):
    """Ranks that differ along tp read the same; those that differ along dp, each record once between them."""
    found = run(
        folder,
        4,
        """
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        by_mesh = adapter.shards(mesh)
        assert by_mesh == adapter.shards(mesh.get_group("dp")) == adapter.shards(mesh["dp"])
        assert adapter.shards() == {"shard_rank": rank, "num_shards": 4}
        loader = adapter.make_dataloader(stream_of(**by_mesh), 4, 1)
        batches = iter(loader)
        first = ids(next(batches) for _ in range(2))
        dcp.save({"loader": loader}, checkpoint_id=f"{folder}/checkpoint")
        found = {"place": mesh.get_coordinate(), "first": first, "rest": ids(batches)}
        """,
    )
    places = {tuple(one["place"]): one for one in found}
    assert len(places) == 4
    for dp in range(2):
        assert places[dp, 0] == {**places[dp, 1], "place": [dp, 0]}
    epochs = [places[dp, 0]["first"] + places[dp, 0]["rest"] for dp in range(2)]
    assert epochs == [stream_of(folder, shard_rank=dp, num_shards=2).indices(0).tolist() for dp in range(2)]
    # The same checkpoint, on another number of ranks: one.
    resumed = adapter.make_dataloader(stream_of(folder), 5)
    load(resumed, folder / "checkpoint")
    rest = [int(i) for batch in resumed for i in batch["id"]]
    assert sorted(rest + places[0, 0]["first"] + places[1, 0]["first"]) == list(range(RECORDS))


def load(loader, path):
    import warnings

    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that this is one process
        dcp.load({"loader": loader}, checkpoint_id=path)


def test_meshes_of_fsdp_hsdp_and_no_data_parallel_dimension(folder):
    found = run(
        folder,
        4,
        """
        def asked(*arguments):
            try:
                return adapter.shards(*arguments)
            except yogadl.errors.ConfigurationError as error:
                return str(error)

        hsdp = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
        cp = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "fsdp"))
        tp = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        flat = init_device_mesh("cpu", (4,))
        square = init_device_mesh("cpu", (2, 2))
        pair = dist.new_group([1, 3])
        found = [asked(hsdp), asked(cp), asked(flat), asked(tp), asked(square), asked(pair)]
        """,
    )
    for rank, (hsdp, cp, flat, tp, square, pair) in enumerate(found):
        assert hsdp == flat == {"shard_rank": rank, "num_shards": 4}
        assert cp == {"shard_rank": rank % 2, "num_shards": 2}
        assert "known to be data-parallel" in tp
        assert "does not name its dimensions" in square
        if rank % 2:
            assert pair == {"shard_rank": rank // 2, "num_shards": 2}
        else:
            assert "not in the process group" in pair


def test_an_unsharded_stream_in_a_job_of_several_ranks_warns_once(folder):
    found = run(
        folder,
        2,
        """
        with warnings.catch_warnings(record=True) as caught:
            for _ in range(3):
                adapter.make_dataloader(stream_of(**adapter.shards()), 4)
            quiet = len(caught)
            for _ in range(3):
                adapter.make_dataloader(stream_of(), 4)
                adapter.Sampler(stream_of())
        found = [quiet, [str(warning.message) for warning in caught]]
        """,
    )
    for quiet, messages in found:
        assert quiet == 0
        assert len(messages) == 1
        assert "each of the 2 ranks reads every record" in messages[0]


def test_shards_of_unequal_numbers_of_batches_in_a_job_warn_once(folder):
    """31 records are 16 and 15 for two ranks: as many batches of 4, but not of 3, nor after that cursor."""
    found = run(
        folder,
        2,
        """
        with warnings.catch_warnings(record=True) as caught:
            shard = adapter.shards()
            adapter.make_dataloader(stream_of(**shard), 4)
            adapter.make_dataloader(stream_of(**shard), 3, drop_remainder=True)
            adapter.make_dataloader(stream_of(**shard, drop_shard_remainder=True), 3)
            adapter.make_dataloader(stream_of(**shard, pad_shard_remainder=True), 3)
            adapter.IterableDataset(stream_of(**shard), 4)
            quiet = len(caught)
            for _ in range(3):
                adapter.make_dataloader(stream_of(**shard), 3)
                adapter.make_dataloader(stream_of(**shard, cursor=stream_of().cursor(22)), 4)
                adapter.IterableDataset(stream_of(**shard))
                adapter.BatchSampler(stream_of(**shard), 3)
                adapter.Sampler(stream_of(**shard))
        found = [quiet, [str(warning.message) for warning in caught]]
        """,
    )
    for quiet, messages in found:
        assert quiet == 0
        assert len(messages) == 1
        assert "2 shards of 31 records have different numbers of batches" in messages[0]
        assert "drop_shard_remainder=True or pad_shard_remainder=True" in messages[0]


def test_without_a_job_there_is_one_shard():
    assert adapter.shards() == {"shard_rank": 0, "num_shards": 1}


def test_a_group_without_a_job_is_refused():
    with pytest.raises(ConfigurationError, match="init_process_group"):
        adapter.shards(torch.distributed.group)
