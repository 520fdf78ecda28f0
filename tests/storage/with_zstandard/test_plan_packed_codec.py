"""Packed rows of compressed documents read whole documents, and their plan says what they read."""

import numpy as np
import pytest

import yogadl


@pytest.mark.parametrize("most", [300, 60_000])
def test_whole_documents_are_counted_once_for_pieces_that_are_read_soon(tmp_path, most):
    random = np.random.default_rng(0)
    lengths = np.minimum(random.lognormal(6, 1.2, 1501).astype(int), most)
    records = [{"tokens": random.integers(0, 5000, length, np.int32)} for length in lengths]
    yogadl.open_storage(tmp_path).submit(
        records, "set", "1", codec="zstd", build=yogadl.BuildOptions(part_bytes=700_000)
    )

    def opened():
        ref = yogadl.open_storage(tmp_path.as_uri(), mirror=None).fetch("set", "1")
        return ref, ref.packed(512, fields="tokens")

    opened()  # keeps the plan of rows
    way = opened()[1].stream(shuffle=True, shuffle_seed=1).batch(16).plan().way("ranges")
    ref, rows = opened()
    list(rows.stream(shuffle=True, shuffle_seed=1).batch(16))
    read = ref.locality()
    assert way.requests == pytest.approx(read.ranges, abs=2)
    assert way.bytes == pytest.approx(read.range_bytes, rel=0.001)
    assert read.range_bytes < 1.4 * yogadl.open_storage(tmp_path).info("set", "1").size_bytes
