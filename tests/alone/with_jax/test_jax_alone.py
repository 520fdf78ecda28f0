"""JAX by itself: its arrays are built, read in batches, and gone on with from a cursor."""

import jax

from yogadl.adapters.jax import make_jax_iterator


def test_its_arrays_are_built_and_read_in_batches_and_from_a_cursor(storage):
    storage.submit({"id": jax.numpy.arange(20)}, "numbers", "1")
    ref = storage.fetch("numbers", "1")
    stream = ref.stream(shuffle=True)
    batches = make_jax_iterator(stream, 8)
    found = next(batches)["id"].tolist()
    for batch in make_jax_iterator(ref.stream(shuffle=True, cursor=batches.state_dict()), 8):
        assert isinstance(batch["id"], jax.Array)
        found += batch["id"].tolist()
    assert found == stream.indices().tolist()
