"""Write the files of other libraries as `adopt.py` reads them: small writers, by the formats' specifications.

Values are given as bytes or arrays; nothing but numpy is needed, and yogadl's CRC-32C for TFRecord. Arrow
files are written by pyarrow, in `_shard_readers.py`.
"""

import io
import json
import struct
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from yogadl._foreign.crc32c import crc32c_of_each, masked

_POOL_BYTES = 2**26
_CRC_TOGETHER = 1024
_MEGATRON_CODES = {"uint8": 1, "int32": 4, "int64": 5, "uint16": 8}


def blobs(count: int, size: int, seed: int = 0) -> Iterator[bytes]:
    """Yield values of this many random bytes, and up to 60 more, so that no two parts of an index are alike.

    They are cut from a pool, and each begins with its number.
    """
    pool = np.random.default_rng(seed).bytes(_POOL_BYTES)
    for number in range(count):
        length = size - 8 + number * 37 % 61
        start = number * 7919 % (_POOL_BYTES - length)
        yield struct.pack("<q", number) + pool[start : start + length]


def write_tars(folder: Path, values: Iterable[bytes], a_shard: int, extension: str = "bin") -> list[Path]:
    """Write tar files of `a_shard` samples each, of one member, as webdataset's ShardWriter names them."""
    paths = []
    for number, some in enumerate(_shared(values, a_shard)):
        paths.append(folder / f"{number:06d}.tar")
        with tarfile.open(paths[-1], "w", format=tarfile.USTAR_FORMAT) as tar:
            for row, value in enumerate(some):
                member = tarfile.TarInfo(f"{number * a_shard + row:08d}.{extension}")
                member.size = len(value)
                tar.addfile(member, io.BytesIO(value))
    return paths


def write_tfrecords(folder: Path, values: Iterable[bytes], a_shard: int) -> list[Path]:
    """Write TFRecord files of `a_shard` records each."""
    paths = []
    for number, some in enumerate(_shared(values, a_shard)):
        paths.append(folder / f"{number:06d}.tfrecord")
        with paths[-1].open("wb") as file:
            for first in range(0, len(some), _CRC_TOGETHER):
                _write_tfrecord(file, some[first : first + _CRC_TOGETHER])
    return paths


def _write_tfrecord(file: Any, values: Sequence[bytes]) -> None:
    lengths = [struct.pack("<Q", len(value)) for value in values]
    sums = [masked(crc32c_of_each(each)).astype("<u4").tobytes() for each in (lengths, values)]
    for row, (length, value) in enumerate(zip(lengths, values, strict=True)):
        crcs = [each[4 * row : 4 * row + 4] for each in sums]
        file.write(b"".join((length, crcs[0], value, crcs[1])))


def write_megatron(prefix: Path, sequences: Sequence[np.ndarray]) -> Path:
    """Write the .bin and .idx of Megatron-LM's IndexedDataset, each sequence a document; return the .bin."""
    lengths = np.array(list(map(len, sequences)), "<i4")
    ends = np.cumsum([0, *(one.nbytes for one in sequences)], dtype="<i8")
    code = _MEGATRON_CODES[sequences[0].dtype.name]
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), len(sequences) + 1)
    documents = np.arange(len(sequences) + 1, dtype="<i8")
    prefix.with_suffix(".idx").write_bytes(
        header + lengths.tobytes() + ends[:-1].tobytes() + documents.tobytes()
    )
    path = prefix.with_suffix(".bin")
    path.write_bytes(b"".join(one.tobytes() for one in sequences))
    return path


def write_mds(folder: Path, samples: Iterable[tuple[int, bytes]], a_shard: int) -> Path:
    """Write MDS shards of {"id": int, "data": bytes} with their index; return the folder."""
    shards = []
    for number, some in enumerate(_shared(samples, a_shard)):
        config = {
            "column_encodings": ["bytes", "int"], "column_names": ["data", "id"], "column_sizes": [None, 8],
            "compression": None, "format": "mds", "hashes": [], "size_limit": 2**26, "version": 2,
        }  # fmt: skip
        text = json.dumps(config, sort_keys=True).encode()
        bodies = [struct.pack("<I", len(data)) + data + struct.pack("<q", key) for key, data in some]
        offsets = np.cumsum([4 * (len(bodies) + 2) + len(text), *map(len, bodies)]).astype("<u4")
        content = struct.pack("<I", len(bodies)) + offsets.tobytes() + text + b"".join(bodies)
        name = f"shard.{number:05d}.mds"
        (folder / name).write_bytes(content)
        raw = {"basename": name, "bytes": len(content), "hashes": {}}
        shards.append({**config, "raw_data": raw, "samples": len(bodies), "zip_data": None})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return folder


def write_npy(folder: Path, rows: np.ndarray, a_shard: int) -> list[Path]:
    """Write .npy files of `a_shard` rows each."""
    paths = []
    for number, first in enumerate(range(0, len(rows), a_shard)):
        paths.append(folder / f"{number:06d}.npy")
        np.save(paths[-1], rows[first : first + a_shard])
    return paths


def write_lines(path: Path, values: Iterable[Any]) -> Path:
    """Write a file of a JSON document a line."""
    with path.open("w") as file:
        for value in values:
            file.write(json.dumps(value) + "\n")
    return path


def _shared(values: Iterable[Any], a_shard: int) -> Iterator[list[Any]]:
    some: list[Any] = []
    for value in values:
        some.append(value)
        if len(some) == a_shard:
            yield some
            some = []
    if some:
        yield some
