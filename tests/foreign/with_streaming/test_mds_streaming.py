"""Shards that MosaicML Streaming writes are indexed as Streaming reads them."""

import numpy as np
import pytest
from indexed_files import records_of
from streaming import LocalDataset, MDSWriter

from yogadl._foreign.mds import MDS, shards_of

COLUMNS = {
    "a": "int", "b": "bytes", "c": "str", "d": "ndarray:float32:2,3", "e": "ndarray:int16", "f": "float32",
    "g": "json", "h": "uint8", "i": "ndarray:float64:2", "j": "int8", "k": "float16", "l": "uint64",
}  # fmt: skip


def sample_of(k):
    return {
        "a": -k, "b": b"b" * (k % 50), "c": "ü" * (k % 7), "d": np.full((2, 3), k, "f4"),
        "e": np.arange(1 + k % 300, dtype="i2"), "f": np.float32(k / 3), "g": {"k": [k]}, "h": k % 256,
        "i": np.array([k, 0.5]), "j": k % 100, "k": np.float16(k % 100), "l": k,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Streaming does not close its index
@pytest.mark.parametrize("window_bytes", [4096, 2**22])
def test_ten_thousand_samples(tmp_path, window_bytes):
    with MDSWriter(out=str(tmp_path), columns=COLUMNS, size_limit=2**20) as writer:
        for k in range(10_000):
            writer.write(sample_of(k))
    dataset = LocalDataset(str(tmp_path))
    shards, number = shards_of((tmp_path / "index.json").read_bytes()), 0
    assert len(shards) > 2
    for name, size in shards:
        content = (tmp_path / name).read_bytes()
        assert len(content) == size
        for record in records_of(MDS(), content, window_bytes=window_bytes)[1]:
            sample = dataset[number]
            assert list(record) == list(sample)
            assert record.pop("g") == f'{{"k": [{number}]}}'
            for key, value in record.items():
                np.testing.assert_array_equal(value, sample[key], strict=isinstance(sample[key], np.ndarray))
            number += 1
    assert number == 10_000
