"""What packed rows take to read by range is known before: compared with what the bucket really gave."""

import numpy as np
import pytest

import yogadl

COUNT = 1501


def documents(most):
    """Return documents of which some are much longer than others, as texts are."""
    random = np.random.default_rng(0)
    lengths = np.minimum(random.lognormal(6, 1.2, COUNT).astype(int), most)
    return [
        {"tokens": random.integers(0, 5000, length, np.int32), "mask": np.ones(length, np.uint8), "id": n}
        for n, length in enumerate(lengths)
    ]


def submitted(tmp_path, most, **options):
    yogadl.open_storage(tmp_path / "caches").submit(
        documents(most), "set", "1", build=yogadl.BuildOptions(part_bytes=700_000), **options
    )


def planned_and_served(tmp_path, served, rows_of):
    """Return requests and bytes of the plan, and of reading, by processes that find the plan of rows."""
    refs = [yogadl.open_storage(f"file://{tmp_path}/caches", mirror=None).fetch("set", "1") for _ in range(3)]
    rows_of(refs[0])  # reads the lengths, and keeps the plan of rows
    way = rows_of(refs[1]).stream(shuffle=True, shuffle_seed=1).batch(16).plan().way("ranges")
    rows = rows_of(refs[2])
    served.clear()
    list(rows.stream(shuffle=True, shuffle_seed=1).batch(16))
    sizes = [size_bytes for name, size_bytes in served if name.endswith(".mdb")]
    return (way.requests, way.bytes), (len(sizes), sum(sizes))


WAYS = {
    "cut": lambda ref: ref.packed(512, fields=("tokens", "mask"), values="id"),
    "dropped": lambda ref: ref.packed(512, fields=("tokens", "mask"), values="id", long="drop"),
    "some": lambda ref: ref[100:1400:3].packed(512, fields="tokens"),
    "a mix": lambda ref: yogadl.mix(
        {
            "a": (ref[:700].packed(512, fields="tokens"), 0.5),
            "b": (ref[700:].packed(512, fields="tokens"), 0.5),
        }
    ),
}


@pytest.mark.parametrize("most", [300, 60_000])
@pytest.mark.parametrize("way", WAYS)
def test_packed_rows_take_what_is_planned(tmp_path, served, way, most):
    submitted(tmp_path, most)
    planned, made = planned_and_served(tmp_path, served, WAYS[way])
    assert planned == pytest.approx(made, rel=0.02)
