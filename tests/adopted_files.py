"""Write small files of each format that is adopted, and say which records they have."""

from pathlib import Path

import foreign_files
import numpy as np
from foreign_files import megatron_of, npy_of, tfrecord_of

FORMATS = ("webdataset", "tfrecord", "jsonl", "npy", "megatron")
SUFFIXES = {"webdataset": "tar", "tfrecord": "tfrecord", "jsonl": "jsonl", "npy": "npy", "megatron": "bin"}


def record(form, number):
    """Return the record of this number."""
    if form == "webdataset":
        return {
            "__key__": f"folder/{number:06d}",
            "jpg": b"\xff\xd8" + bytes([number % 251]) * (number * 37 % 900),
            "cls": b"%d" % (number % 10),
        }
    if form == "tfrecord":
        return b"record %d " % number + b"t" * (number * 13 % 300)
    if form == "jsonl":
        return b'{"n": %d, "text": "%s"}' % (number, b"x" * (number * 7 % 200))
    if form == "npy":
        return np.arange(number, number + 12, dtype=np.int16).reshape(3, 4)
    return np.arange(number, number + number * 5 % 40 + 1, dtype=np.int32)


def content(form, records):
    """Return the bytes of a file of these records."""
    if form == "webdataset":
        return tar_of(records)
    if form == "tfrecord":
        return tfrecord_of(records)
    if form == "jsonl":
        return b"".join(line + b"\n" for line in records)
    if form == "npy":
        return npy_of(np.array(records, np.int16).reshape(-1, 3, 4))
    return megatron_of(records)[0]


def tar_of(samples):
    """Return a tar file of samples, as webdataset has them."""
    return foreign_files.tar_of(
        (f"{sample['__key__']}.{name}", value)
        for sample in samples
        for name, value in sample.items()
        if name != "__key__"
    )


def write(path: Path, form, records):
    """Write a file of records; that of Megatron with its index."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "megatron":
        path.with_suffix(".idx").write_bytes(megatron_of(records)[1])
    path.write_bytes(content(form, records))
    return path


def write_numbered(folder: Path, form, counts):
    """Write files of so many records each, numbered through, and return all records."""
    every, first = [], 0
    for number, count in enumerate(counts):
        records = [record(form, first + k) for k in range(count)]
        write(folder / f"{number:03d}.{SUFFIXES[form]}", form, records)
        every += records
        first += count
    return every


def plain(value):
    """Return a record as what can be compared: arrays with dtype, shape and bytes."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return bytes(value) if isinstance(value, memoryview) else value


def every(ref, numbers=None):
    """Return records of a reference, read one batch at once, to compare."""
    numbers = range(len(ref)) if numbers is None else numbers
    found = ref.gather(numbers)
    if isinstance(found, dict):
        columns = [found[name] for name in found]
        return [plain(dict(zip(found, row, strict=True))) for row in zip(*columns, strict=True)]
    return [plain(each) for each in found]
