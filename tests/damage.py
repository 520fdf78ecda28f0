"""A cache with every way to store a field, and ways to damage it; who checks it does so in a child."""

import hashlib
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import yogadl
from yogadl.errors import YogaError

RECORDS = 300
FIELDS = ("number", "row", "text", "raw", "ragged", "rank", "words")
# What one of these caches needs, with room to spare; an allocation by a damaged number needs more.
MEMORY_BYTES = 4 * 2**30


def record(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "row": np.full((2, 4), number, np.float32),
        "text": f"text {'ä' * (number % 50)}",
        "raw": bytes([number % 256]) * (number % 70),
        "ragged": np.arange(number % 9, dtype=np.int16),
        "rank": np.zeros((number % 3,) * (number % 4), np.int32),
        "words": np.array(["a", "b" * (number % 5)], object),
    }


def records() -> Iterator[dict[str, Any]]:
    return map(record, range(RECORDS))


def build(root: Path, dataset_id: str = "data") -> None:
    """Build the cache, in several parts."""
    yogadl.open_storage(root).submit(records(), dataset_id, "1", build=yogadl.BuildOptions(part_bytes=12_000))


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def files(root: Path, suffix: str) -> list[Path]:
    return sorted((root / "data").rglob(f"*{suffix}"))


def manifest_of(root: Path) -> Path:
    return root / "data" / "versions" / "1.json"


def read_all(root: Path) -> Any:
    """Return what can be read, or the error."""
    try:
        return yogadl.open_storage(root).fetch("data", "1").gather(range(RECORDS))
    except YogaError as error:
        return error


def verify(root: Path) -> Any:
    """Return what `verify` says, or the error."""
    try:
        return yogadl.open_storage(root).verify("data", "1")
    except YogaError as error:
        return error


def is_right(found: Any) -> bool:
    """Return whether a batch of all records is what was built."""
    return all(
        np.array_equal(found[field][number], value)
        for number in range(RECORDS)
        for field, value in record(number).items()
    )


class Altered:
    """A file with other content for a while."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = path.read_bytes()

    def __enter__(self) -> "Altered":
        return self

    def __exit__(self, *_: object) -> None:
        self.write(self.content)

    def write(self, content: bytes) -> None:
        """Write in place, so that who has the file open sees it, too."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT)
        os.ftruncate(descriptor, len(content))
        os.pwrite(descriptor, content, 0)
        os.close(descriptor)

    def flip(self, position: int, bit: int) -> None:
        changed = bytearray(self.content)
        changed[position] ^= 1 << bit
        self.write(bytes(changed))


def forge_table(root: Path, content: bytes) -> Path:
    """Put a part table in place of the right one, under a name that the manifest agrees with."""
    path = manifest_of(root)
    document = json.loads(path.read_bytes())
    name = hashlib.sha256(content).hexdigest()
    document["table"] |= {"sha256": name, "bytes": len(content)}
    path.write_text(json.dumps(document))
    table = root / "data" / "tables" / f"{name}.parts"
    table.write_bytes(content)
    return table
