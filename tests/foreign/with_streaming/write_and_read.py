"""Write shards by MosaicML's MDSWriter, and write down what its StreamingDataset reads; see the tests.

Called with the folder of the shards, the file of the result, and a limit of a shard's size.
"""

import pickle
import sys

import numpy as np
from streaming import MDSWriter, StreamingDataset

COUNT = 1_000
COLUMNS = {
    "n": "int", "text": "str", "raw": "bytes", "f": "float32", "u": "uint16",
    "ints": "ndarray:int32", "fixed": "ndarray:float32:2,3",
}  # fmt: skip


def sample(number):
    rng = np.random.default_rng(number)
    return {
        "n": number - 5,
        "text": "ü" * (number % 7),
        "raw": rng.bytes(number % 50),
        "f": np.float32(number / 3),
        "u": np.uint16(number),
        "ints": np.arange(1 + number % 40, dtype=np.int32),
        "fixed": rng.random((2, 3)).astype(np.float32),
    }


def main():
    folder, result, limit = sys.argv[1:]
    with MDSWriter(out=folder, columns=COLUMNS, size_limit=int(limit), hashes=["sha1"]) as writer:
        for number in range(COUNT):
            writer.write(sample(number))
    read = StreamingDataset(local=folder, shuffle=False, batch_size=1)
    with open(result, "wb") as file:
        pickle.dump([read[number] for number in range(len(read))], file)


if __name__ == "__main__":
    main()
