"""Run one process of a job with several: `run_job` starts them, each calls one of the tasks below.

Everything runs on CPU devices; the processes meet at 127.0.0.1 and talk by gloo.
"""

import json
import socket
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from programs import programs

TIMEOUT_S = 200


def run_job(task: str, processes: int, devices: int, **arguments: Any) -> list[Any]:
    """Run a task in so many processes with so many devices each; return what each of them returned."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        results = [Path(folder, f"{number}.json") for number in range(processes)]
        variables = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        server = programs("jax")
        given = [task, json.dumps(arguments)]
        places = [(number, processes, address, result) for number, result in enumerate(results)]
        started = [server.start(Path(__file__), *given, *place, variables=variables) for place in places]
        try:
            ended = [child.ended(TIMEOUT_S) for child in started]
        finally:
            for child in started:
                child.kill()
        assert not any(one.returncode for one in ended), ended
        return [json.loads(result.read_text()) for result in results]


def read_global(count: int, mesh: list[list[int]], size: int, batches: int) -> dict[str, Any]:
    """Read global batches over a mesh; return what this process asked for, holds and computes.

    Args:
        count: How many records there are.
        mesh: Data by model, as numbers of devices, which count on from process to process.
        size: Records in a global batch.
        batches: How many to read.
    """
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import yogadl
    from yogadl.adapters.jax import make_jax_iterator

    source = Counted(count)
    stream = yogadl.from_source(source, fingerprint="counted").stream(shuffle=True, shuffle_seed=3)
    source.asked.clear()  # some were asked for the structure of all
    devices = Mesh(np.array(jax.devices())[np.array(mesh)], ("data", "model"))
    iterator = make_jax_iterator(stream, size, NamedSharding(devices, PartitionSpec("data")), prefetch=0)
    total = jax.jit(lambda ids: ids.sum(), out_shardings=NamedSharding(devices, PartitionSpec()))
    found: dict[str, Any] = {"held": [], "sums": [], "asked": []}
    for _ in range(batches):
        batch = next(iterator)
        found["held"].append(held_ids(batch))
        found["sums"].append(int(total(batch["id"])))
        found["asked"].append(sorted(source.asked))
        source.asked.clear()
    return found | {"cursor": iterator.state_dict()}


def read_shares(count: int, size: int) -> dict[str, Any]:
    """Read this process's own share, without a sharding; return its ids, and the warning about no share."""
    import yogadl
    from yogadl.adapters.jax import make_jax_iterator, shards

    ref = yogadl.from_source(Counted(count), fingerprint="counted")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = make_jax_iterator(ref.stream(shuffle=True, shuffle_seed=3, **shards()), size)
        ids = [index for batch in own for index in batch["id"].tolist()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        next(make_jax_iterator(ref.stream(), size))
    return {"ids": ids, "warnings": [str(warning.message) for warning in caught]}


def read_own_mesh(count: int, size: int) -> dict[str, Any]:
    """Read this process's own share over a mesh of just its own devices."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import yogadl
    from yogadl.adapters.jax import make_jax_iterator, shards

    ref = yogadl.from_source(Counted(count), fingerprint="counted")
    sharding = NamedSharding(Mesh(np.array(jax.local_devices()), ("data",)), PartitionSpec("data"))
    batches = make_jax_iterator(ref.stream(**shards()), size, sharding)
    return {"ids": [index for batch in batches for index in batch["id"].tolist()]}


def evaluate(count: int, size: int) -> dict[str, Any]:
    """Sum up ids, and how many there are, in the two ways of docs/howto/jax.md; return both sums."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import yogadl
    from yogadl.adapters.jax import make_jax_iterator, shards

    ref = yogadl.from_source(Counted(count), fingerprint="counted")
    sums = np.zeros(2, np.int32)
    for batch in make_jax_iterator(ref.stream(**shards()), size):
        sums += [int(batch["id"].sum()), len(batch["id"])]
    shares = multihost_utils.process_allgather(sums).reshape(-1, 2).sum(axis=0)

    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    places = np.arange(-(-count // size) * size)
    counts = (places < count).reshape(-1, size)
    add = jax.jit(
        lambda batch, counts: jnp.array([jnp.sum(batch["id"] * counts), jnp.sum(counts)]),
        out_shardings=everywhere,
    )
    batches = make_jax_iterator(ref.select(places % count).stream(), size, rows)
    together = sum(np.array(add(*step)) for step in zip(batches, counts, strict=True))
    return {"shares": shares.tolist(), "together": together.tolist()}


def miss_the_mesh() -> str:
    """Ask for batches on devices of process 0 alone; return what is said to the others."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import yogadl
    from yogadl.adapters.jax import make_jax_iterator, shards
    from yogadl.errors import ConfigurationError

    stream = yogadl.from_source(Counted(8)).stream(**shards())
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    try:
        make_jax_iterator(stream, 4, sharding)
    except ConfigurationError as error:
        return str(error)
    return ""


def save(storage: str, checkpoint: str, size: int, batches: int) -> dict[str, Any]:
    """Train a little, and save model and cursor with Orbax; return the ids that this process held."""
    import orbax.checkpoint as ocp

    iterator, model, step = training(storage, size, None)
    held = []
    for _ in range(batches):
        batch = next(iterator)
        model = step(model, batch)
        held.append(held_ids(batch))
    with ocp.CheckpointManager(checkpoint) as manager:
        data = ocp.args.JsonSave(iterator.state_dict())
        manager.save(batches, args=ocp.args.Composite(model=ocp.args.StandardSave(model), data=data))
        manager.wait_until_finished()
    return {"held": held}


def resume(storage: str, checkpoint: str, size: int) -> dict[str, Any]:
    """Restore model and cursor, read on to the epoch's end; return ids and what the model has summed up."""
    import jax
    import orbax.checkpoint as ocp

    _, model, _ = training(storage, size, None)
    with ocp.CheckpointManager(checkpoint) as manager:
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), model)
        restored = manager.restore(
            manager.latest_step(),
            args=ocp.args.Composite(model=ocp.args.StandardRestore(shapes), data=ocp.args.JsonRestore()),
        )
    iterator, _, step = training(storage, size, restored.data)
    model, held = restored.model, []
    for batch in iterator:
        model = step(model, batch)
        held.append(held_ids(batch))
    sums = {start: shard.tolist() for start, shard in of_this_process(model["sums"])}
    return {"held": held, "sums": sums, "cursor": iterator.state_dict()}


def training(storage: str, size: int, cursor: Any) -> tuple[Any, Any, Any]:
    """Return global batches over all devices of the job, a model that adds up what it sees, and a step."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import yogadl
    from yogadl.adapters.jax import make_jax_iterator

    ref = yogadl.open_storage(storage).fetch("d", "1")
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    stream = ref.stream(shuffle=True, shuffle_seed=3, cursor=cursor)
    batches = make_jax_iterator(stream, size, rows, prefetch=3)
    model = {"sums": jax.make_array_from_callback((12,), rows, lambda index: np.zeros(12, np.int32)[index])}

    def step(model: Any, batch: Any) -> Any:
        return {"sums": model["sums"] + jnp.sum(batch["id"]) * jnp.arange(12)}

    return batches, model, jax.jit(step, out_shardings={"sums": rows})


def held_ids(batch: Any) -> list[Any]:
    """Return the ids of a batch that this process holds: where each piece begins, and the piece."""
    return [[start, piece.tolist()] for start, piece in of_this_process(batch["id"])]


def of_this_process(array: Any) -> list[tuple[int, Any]]:
    """Return the pieces of a global array that lie here, each with its first row."""
    return [(shard.index[0].indices(array.shape[0])[0], shard.data) for shard in array.addressable_shards]


class Counted:
    """Records that know their number, and note who was asked for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        self.asked.append(index)
        return {"id": np.int32(index)}


def main(task: str, arguments: str, number: str, processes: str, address: str, result: str) -> None:
    """Join the job, run the task, and write down what it returns."""
    import jax

    jax.distributed.initialize(address, int(processes), int(number))
    found = globals()[task](**json.loads(arguments))
    Path(result).write_text(json.dumps(found))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
