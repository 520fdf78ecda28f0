"""Write sequences by Megatron's IndexedDatasetBuilder, and write down what its IndexedDataset reads.

Called with the folder of the files, and the file of the result; see the tests.
"""

import pickle
import sys
from pathlib import Path

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

COUNT = 3_000
DTYPES = [np.uint8, np.int16, np.uint16, np.int32, np.int64, np.float32]


def tensor_of(values):
    return torch.from_numpy(values.astype(np.int64) if values.dtype == np.uint16 else values)


def main():
    folder, result = map(Path, sys.argv[1:])
    found = {}
    for dtype in DTYPES:
        rng, prefix = np.random.default_rng(3), f"{folder}/{dtype.__name__}"
        builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
        for number in range(COUNT):
            values = rng.integers(0, 100, int(rng.integers(0, 60)) if number else 0).astype(dtype)
            builder.add_document(tensor_of(values), [len(values)])
        values = np.arange(10).astype(dtype)
        builder.add_document(tensor_of(values), [3, 0, 7])  # a document of several sequences
        builder.finalize(f"{prefix}.idx")
        read = IndexedDataset(prefix)
        found[dtype.__name__] = [np.array(read[number]) for number in range(len(read))]
    result.write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
