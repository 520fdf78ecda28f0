"""Orbax saves the iterator beside the model; a new process goes on with the same records."""

import numpy as np
import pytest
from programs import programs

import yogadl

PROGRAM = """
import json, sys
import grain
import yogadl
from yogadl.adapters import grain as yogadl_grain

root, kind, task = sys.argv[1:]


def open_iterator(**options):
    ref = yogadl.open_storage(f"{root}/caches").fetch("set", "1")
    stream = ref.stream(shuffle=True, shuffle_seed=3, **options)
    if kind == "records":
        return iter(yogadl_grain.make_dataloader(stream, [grain.transforms.Batch(8)], epochs=2))
    if kind == "batches":
        return iter(yogadl_grain.make_dataloader(stream, batch_size=8, epochs=2))
    if kind == "workers":
        return iter(yogadl_grain.make_dataloader(stream, [grain.transforms.Batch(8)], 2, epochs=2))
    dataset = yogadl_grain.map_dataset(stream, 8, epochs=2)
    return iter(dataset.to_iter_dataset(grain.ReadOptions(0, 0)))


def rest_of(iterator):
    return [batch["id"].tolist() for batch in iterator]


if __name__ == "__main__":
    import jax
    import orbax.checkpoint as ocp
    from grain.python import PyGrainCheckpointRestore, PyGrainCheckpointSave
    from grain_workers import fork_workers

    fork_workers()
    model = {"w": jax.numpy.arange(4.0)}
    iterator = open_iterator()
    with ocp.CheckpointManager(f"{root}/checkpoints-{kind}") as manager:
        if task == "save":
            for _ in range(9):
                next(iterator)
            manager.save(9, args=ocp.args.Composite(
                model=ocp.args.StandardSave(model), data=PyGrainCheckpointSave(iterator)))
            manager.wait_until_finished()
        else:
            found = manager.restore(9, args=ocp.args.Composite(
                model=ocp.args.StandardRestore(model), data=PyGrainCheckpointRestore(iterator)))
            assert found["model"]["w"].tolist() == [0, 1, 2, 3]
    cursor = yogadl_grain.cursor(iterator)
    print(json.dumps([cursor, rest_of(iterator)]))
"""


@pytest.mark.parametrize("kind", ["records", "batches", "workers", "dataset"])
def test_a_restored_iterator_gives_the_same_records(tmp_path, kind):
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.submit({"id": np.arange(53)}, "set", "1")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(task):
        return programs("jax").start(program, tmp_path, kind, task).answer()

    cursor, rest = run("save")
    assert run("restore") == [cursor, rest]
    stream = storage.fetch("set", "1").stream(shuffle=True, shuffle_seed=3, cursor=cursor)
    assert [i for batch in rest for i in batch] == [i for e in (0, 1) if e >= cursor["epoch"]
                                                    for i in stream.indices(e).tolist()]  # fmt: skip
    assert len(rest) > 4
