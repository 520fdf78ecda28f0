"""Read shards by the libraries that they are of, for `adopt.py`: in a process of a Python that has them.

``python _shard_readers.py digests FORMAT PATHS OUTPUT`` writes the SHA-256 of each record, 32 bytes each;
``python _shard_readers.py epoch RECORDS BATCH PATHS`` prints the seconds of an epoch of webdataset with a
true shuffle; ``python _shard_readers.py arrow VALUES SIZES OUTPUT`` writes an Arrow file of the values that
lie one after the other in a file. PATHS is a list in JSON, SIZES a file with such a list. This file needs
nothing of yogadl, which these Pythons may lack.
"""

import hashlib
import json
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

LIBRARIES = {
    "webdataset": "webdataset", "tfrecord": "tensorflow", "megatron": "megatron.core", "mds": "streaming",
    "npy": "numpy", "jsonl": "json", "arrow": "pyarrow",
}  # fmt: skip


def digest(record: Any) -> bytes:
    """Return the SHA-256 of a record: of all its bytes, in the order of the names, with names and dtypes."""
    found = hashlib.sha256()
    fields = record if isinstance(record, Mapping) else {"": record}
    for name in sorted(fields):
        value = fields[name]
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, bytes):
            array = np.asarray(value)
            value = f"{array.dtype.str} {array.shape} ".encode() + array.tobytes()
        found.update(f"{name} {len(value)} ".encode() + value)
    return found.digest()


def by_webdataset(paths: list[str]) -> Iterator[Any]:
    """Yield samples without what webdataset adds to them."""
    import webdataset

    for sample in webdataset.WebDataset(paths, shardshuffle=False):
        yield {
            name: value for name, value in sample.items() if name == "__key__" or not name.startswith("__")
        }


def by_tensorflow(paths: list[str]) -> Iterator[Any]:
    """Yield the bytes of TFRecords."""
    import tensorflow as tf

    return tf.data.TFRecordDataset(paths).as_numpy_iterator()


def by_megatron(paths: list[str]) -> Iterator[Any]:
    """Yield sequences."""
    with warnings.catch_warnings():  # of what torch deprecates and megatron.core uses
        warnings.simplefilter("ignore")
        from megatron.core.datasets.indexed_dataset import IndexedDataset

    for path in paths:
        dataset = IndexedDataset(path.removesuffix(".bin"))
        for number in range(len(dataset)):
            yield dataset[number]


def by_streaming(paths: list[str]) -> Iterator[Any]:
    """Yield samples of folders of MDS."""
    from streaming import LocalDataset

    for path in paths:
        dataset = LocalDataset(path)
        for number in range(dataset.num_samples):
            sample = dataset[number]
            yield {**sample, "id": np.int64(sample["id"])}


def by_numpy(paths: list[str]) -> Iterator[Any]:
    """Yield rows."""
    for path in paths:
        yield from np.load(path)


def by_json(paths: list[str]) -> Iterator[Any]:
    """Yield documents as sorted JSON."""
    for path in paths:
        with open(path, encoding="utf-8") as file:
            yield from (json.dumps(json.loads(line), sort_keys=True) for line in file)


def by_pyarrow(paths: list[str]) -> Iterator[Any]:
    """Yield rows."""
    import pyarrow as pa

    for path in paths:
        with pa.memory_map(path) as file:
            for row in pa.ipc.open_file(file).read_all().to_pylist():
                yield {**row, "id": np.int64(row["id"])}


READERS = {
    "webdataset": by_webdataset, "tfrecord": by_tensorflow, "megatron": by_megatron, "mds": by_streaming,
    "npy": by_numpy, "jsonl": by_json, "arrow": by_pyarrow,
}  # fmt: skip


def write_arrow(values: bytes, sizes: list[int], path: str) -> None:
    """Write an Arrow IPC file of {"id": int64, "data": binary}, in batches of 1,000 rows."""
    import pyarrow as pa

    ends = np.cumsum([0, *sizes]).tolist()
    cut = [values[start:end] for start, end in pairwise(ends)]
    schema = pa.schema([("id", pa.int64()), ("data", pa.binary())])
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for first in range(0, len(cut), 1000):
            some = cut[first : first + 1000]
            columns = [pa.array(range(first, first + len(some)), pa.int64()), pa.array(some, pa.binary())]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def epoch(records: int, batch: int, paths: list[str]) -> float:
    """Return the seconds of an epoch of webdataset whose buffer holds all samples before one is given."""
    import webdataset

    dataset = (
        webdataset.WebDataset(paths, shardshuffle=len(paths))
        .shuffle(records, initial=records)
        .to_tuple("bin")
        .batched(batch)
    )
    began = time.perf_counter()
    count = sum(len(found[0]) for found in dataset)
    seconds = time.perf_counter() - began
    if count != records:
        sys.exit(f"webdataset gave {count} samples, not {records}")
    return seconds


def main() -> None:
    """Do what the arguments say."""
    if sys.argv[1] == "epoch":
        print(epoch(int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])))
        return
    if sys.argv[1] == "arrow":
        values, sizes = map(Path, sys.argv[2:4])
        write_arrow(values.read_bytes(), json.loads(sizes.read_text()), sys.argv[4])
        return
    form, paths, output = sys.argv[2:]
    Path(output).write_bytes(b"".join(map(digest, READERS[form](json.loads(paths)))))


if __name__ == "__main__":
    main()
