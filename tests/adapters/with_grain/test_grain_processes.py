"""Grain in a job of two JAX processes: each reads its share, and no share is warned of."""

import socket

import pytest
from programs import programs

PROGRAM = """
import json, sys, warnings
import grain, jax, numpy as np
import yogadl
from yogadl.adapters import grain as yogadl_grain

address, rank = sys.argv[1], int(sys.argv[2])
jax.distributed.initialize(address, 2, rank)
ref = yogadl.from_source({"id": np.arange(23)})
shards = grain.sharding.ShardByJaxProcess()
stream = ref.stream(shuffle=True, shard_rank=jax.process_index(), num_shards=jax.process_count())
loader = yogadl_grain.make_dataloader(stream, batch_size=4, shard_options=shards)
ids = [i for batch in loader for i in batch["id"].tolist()]
by_hand = grain.DataLoader(
    data_source=yogadl_grain.DataSource(ref), sampler=yogadl_grain.IndexSampler(ref.stream(shuffle=True)),
    shard_options=grain.sharding.ShardByJaxProcess(drop_remainder=True))
even = [int(record["id"]) for record in by_hand]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("default")
    for _ in range(3):
        yogadl_grain.make_dataloader(ref.stream(), batch_size=4)
print(json.dumps({"ids": ids, "even": even, "warnings": [str(w.message) for w in caught],
                  "order": ref.stream(shuffle=True).indices().tolist()}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return what each process printed."""
    program = tmp_path_factory.mktemp("job") / "program.py"
    program.write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    running = [programs("jax").start(program, address, rank) for rank in range(2)]
    try:
        return [process.answer() for process in running]
    finally:
        for process in running:
            process.kill()


def test_each_process_reads_its_share(found):
    assert [one["ids"] for one in found] == [found[0]["order"][0::2], found[0]["order"][1::2]]


def test_grain_shards_an_unsharded_sampler_by_process(found):
    assert [one["even"] for one in found] == [found[0]["order"][0:22:2], found[0]["order"][1:22:2]]


def test_no_share_is_warned_of_once(found):
    for one in found:
        (text,) = one["warnings"]
        assert "each of the 2 ranks reads every record" in text
