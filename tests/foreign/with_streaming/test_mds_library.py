"""Shards that MosaicML's own library has written, against the samples that it reads."""

import os
from pathlib import Path

import numpy as np
import pytest
from other_libraries import records_of_library

import yogadl

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=[2**26, 5_000], ids=["one shard", "many shards"])
def theirs(request, tmp_path_factory):
    """Return the folder of shards, and the samples; in a process whose torchvision is a stand-in."""
    folder = tmp_path_factory.mktemp("mds")
    paths = os.pathsep.join(filter(None, [str(HERE / "stand_in"), os.environ.get("PYTHONPATH")]))
    script = HERE / "write_and_read.py"
    return folder, records_of_library(script, folder, str(request.param), PYTHONPATH=paths)


@pytest.mark.parametrize("read", [True, False])
def test_samples_are_those_that_streaming_reads(theirs, tmp_path, read):
    folder, samples = theirs
    ref = yogadl.open_storage(tmp_path).adopt(
        folder, "d", "1", format="mds", files=yogadl.FileOptions(read=read)
    )
    assert len(ref) == len(samples) == 1_000
    for ours, other in zip(ref, samples, strict=True):
        assert ours.keys() == other.keys()
        for name, value in other.items():
            assert np.array_equal(ours[name], value)
            if isinstance(value, np.ndarray | np.generic):
                assert np.asarray(ours[name]).dtype == value.dtype
            else:
                assert isinstance(ours[name], str | bytes) == isinstance(value, str | bytes)
