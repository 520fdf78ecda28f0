"""Ray by itself: its datasets are built, read as such, and gone on with from a cursor."""

import pytest
import ray

from yogadl.adapters.ray import read


@pytest.fixture
def cluster():
    """Start a small cluster on this machine."""
    ray.init(
        address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        _node_ip_address="127.0.0.1",
    )  # fmt: skip
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_its_data_are_built_and_read_in_batches_and_from_a_cursor(storage):
    storage.submit(ray.data.range(20), "numbers", "1")
    ref = storage.fetch("numbers", "1")
    assert [row["id"] for row in read(ref).take_all()] == [record["id"] for record in ref]
    stream = ref.stream(shuffle=True)
    batches = iter(stream.batch(8))
    found = next(batches)["id"].tolist()
    for batch in ref.stream(shuffle=True, cursor=batches.state_dict()).batch(8):
        found += batch["id"].tolist()
    assert found == [ref[index]["id"] for index in stream.indices().tolist()]
