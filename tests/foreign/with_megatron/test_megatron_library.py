"""Sequences that Megatron's own library has written, against those that it reads."""

from pathlib import Path

import numpy as np
import pytest
from other_libraries import records_of_library

import yogadl

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Return the folder of files, and the sequences of each; in a process, as the library warns a lot."""
    folder = tmp_path_factory.mktemp("megatron")
    return folder, records_of_library(HERE / "write_and_read.py", folder, PYTHONWARNINGS="ignore")


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "int64", "float32"])
@pytest.mark.parametrize("read", [True, False])
def test_sequences_are_those_that_megatron_reads(theirs, tmp_path, dtype, read):
    folder, sequences = theirs
    ref = yogadl.open_storage(tmp_path).adopt(
        folder / f"{dtype}.bin", "d", "1", files=yogadl.FileOptions(read=read)
    )
    assert len(ref) == len(sequences[dtype]) == 3_003
    for ours, other in zip(ref, sequences[dtype], strict=True):
        assert ours.dtype == other.dtype
        assert np.array_equal(ours, other)
