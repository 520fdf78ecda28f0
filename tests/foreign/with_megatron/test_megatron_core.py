"""What megatron.core's IndexedDatasetBuilder writes is indexed as its IndexedDataset reads it."""

import warnings

import numpy as np
import pytest
import torch
from indexed_files import records_of

from yogadl._foreign.megatron import Megatron

with warnings.catch_warnings():  # of what torch deprecates and megatron.core uses
    warnings.simplefilter("ignore")
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder


@pytest.mark.parametrize("multimodal", [False, True])
@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_ten_thousand_sequences(tmp_path, dtype, multimodal):
    prefix = str(tmp_path / "data")
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype, multimodal=multimodal)
    for k in range(10_000):
        builder.add_item(torch.arange(k % 250), mode=int(multimodal))
        if k % 3 == 0:
            builder.end_document()
    builder.finalize(f"{prefix}.idx")
    dataset = IndexedDataset(prefix, multimodal=multimodal)
    content, index = ((tmp_path / f"data.{end}").read_bytes() for end in ("bin", "idx"))
    records = records_of(Megatron(), content, name="data.bin", siblings={"data.idx": index})[1]
    assert len(records) == len(dataset) == 10_000
    for number, record in enumerate(records):
        sequence = dataset[number][0] if multimodal else dataset[number]
        assert (record.dtype, record.tolist()) == (sequence.dtype, sequence.tolist())
